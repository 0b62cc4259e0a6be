"""Valid values of options. Imports nothing heavy, so that ``largek --help`` is fast."""

from __future__ import annotations

from typing import Literal, get_args

Effort = Literal["fast", "balanced", "best"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
"""Valid values of ``effort``: how long to look for a lower inertia."""
DEFAULT_EFFORT: Effort = "balanced"

EmptyClusters = Literal["relocate", "keep"]
EMPTY_CLUSTERS: tuple[EmptyClusters, ...] = get_args(EmptyClusters)
"""Treatment of a centre without rows: move it to one of the rows farthest from their centres, or
leave it where it is."""

OnBadRows = Literal["raise", "skip"]
ON_BAD_ROWS: tuple[OnBadRows, ...] = get_args(OnBadRows)
"""Treatment of rows with NaN or infinity: raise an error, or leave them out."""

Normalize = Literal["l2"]
NORMALIZE: tuple[Normalize, ...] = get_args(Normalize)
"""Norms by which rows can be scaled to unit length; None: rows are not scaled."""

Scale = Literal["standard"]
SCALES: tuple[Scale, ...] = get_args(Scale)
"""Ways to scale features; "standard": mean 0 and variance 1. None: features are not scaled."""

Covariance = Literal["iso", "isoflex", "diag"]
COVARIANCES: tuple[Covariance, ...] = get_args(Covariance)
"""Covariances of the components of a mixture: one variance for all components; one per component;
one per component and feature. Components have equal weights in the first case only."""

Dither = Literal["uniform"]
DITHER: tuple[Dither, ...] = get_args(Dither)
"""Distributions of noise in [0, 1) that can be added to integers; None: no noise."""

INITS = ("random", "two-level", "k-means++", "greedy-k-means++", "k-means||", "afk-mc2")
"""Ways to choose the first centres; "auto" selects one by the number of clusters."""

OTHER_INITS = {"scalable-k-means++": "k-means||"}
"""Names used by other libraries (cuML) for ways to choose the first centres, and the names used
here."""

MIXTURE_INITS = ("k-means", "two-level", "afk-mc2", "random")
"""Ways to find the first components of a mixture; "auto" selects one of them."""
