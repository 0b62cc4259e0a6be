"""Names of options. Imports nothing else, as ``largek --help`` reads it."""

from __future__ import annotations

from typing import Literal, get_args

Effort = Literal["fast", "balanced", "best"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
"""Valid efforts: how long to look for a lower inertia."""
DEFAULT_EFFORT: Effort = "balanced"

EmptyClusters = Literal["relocate", "keep"]
EMPTY_CLUSTERS: tuple[EmptyClusters, ...] = get_args(EmptyClusters)
"""A centre without rows moves to the rows farthest from theirs, or stays where it is."""

OnBadRows = Literal["raise", "skip"]
ON_BAD_ROWS: tuple[OnBadRows, ...] = get_args(OnBadRows)
"""Rows with NaN or infinity are an error, or are left out."""

Normalize = Literal["l2"]
NORMALIZE: tuple[Normalize, ...] = get_args(Normalize)
"""Scalings of rows to unit length; None: rows stay as they are."""

Covariance = Literal["iso", "isoflex", "diag"]
COVARIANCES: tuple[Covariance, ...] = get_args(Covariance)
"""Covariances of the components of a mixture: one variance for all components, with equal weights;
one per component; one per component and feature. The latter two have weights of their own."""

Dither = Literal["uniform"]
DITHER: tuple[Dither, ...] = get_args(Dither)
"""Noise in [0, 1) that is added to integers; None: they stay as they are."""

INITS = ("random", "two-level", "k-means++", "greedy-k-means++", "k-means||", "afk-mc2")
"""Ways to choose the first centres; "auto" takes one of them by the number of clusters."""

OTHER_INITS = {"scalable-k-means++": "k-means||"}
"""Names of other libraries (cuML) for ways to choose the first centres, and the names here."""

MIXTURE_INITS = ("k-means", "two-level", "afk-mc2", "random")
"""Ways to find the first components of a mixture; "auto" takes one of them."""
