"""Valid values of options, without heavy imports, so that ``largek --help`` is fast."""

from __future__ import annotations

from typing import Literal, get_args

Effort = Literal["fast", "balanced", "best"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
"""Valid values of ``effort``, in ascending order of the time spent on lowering the inertia."""
DEFAULT_EFFORT: Effort = "balanced"

EmptyClusters = Literal["relocate", "keep"]
EMPTY_CLUSTERS: tuple[EmptyClusters, ...] = get_args(EmptyClusters)
"""Treatment of centres without rows: relocate them to rows far from their centres, or keep them
unchanged."""

OnBadRows = Literal["raise", "skip"]
ON_BAD_ROWS: tuple[OnBadRows, ...] = get_args(OnBadRows)

Normalize = Literal["l2"]
NORMALIZE: tuple[Normalize, ...] = get_args(Normalize)

Scale = Literal["standard"]
SCALES: tuple[Scale, ...] = get_args(Scale)
"""Ways to scale features; "standard": mean 0 and variance 1. None: features are not scaled."""

Covariance = Literal["iso", "isoflex", "diag"]
COVARIANCES: tuple[Covariance, ...] = get_args(Covariance)
"""Types of covariance of a mixture: one variance for all components with equal weights, one
variance per component, or one variance per component and feature."""

Dither = Literal["uniform"]
DITHER: tuple[Dither, ...] = get_args(Dither)
"""Distributions of the noise in [0, 1) that can be added to integers."""

INITS = ("random", "two-level", "k-means++", "greedy-k-means++", "k-means||", "afk-mc2")
"""Methods to choose the initial centres; "auto" selects one by the number of clusters."""

OTHER_INITS = {"scalable-k-means++": "k-means||"}
"""Names in other libraries (cuML) for methods to choose initial centres, with the equivalent names
here."""

MIXTURE_INITS = ("k-means", "two-level", "afk-mc2", "random")
"""Methods to find the initial components of a mixture; "auto" selects one of them."""
