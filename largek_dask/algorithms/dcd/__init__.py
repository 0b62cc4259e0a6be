"""DCD-Bundle: every partition up to k in one fit, with bounds and measures of each."""

from __future__ import annotations

from largek_dask.algorithms.dcd.algorithm import DCDBundle
from largek_dask.algorithms.dcd.dcclust import DCClust

__all__ = ["DCClust", "DCDBundle"]
