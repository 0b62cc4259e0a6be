"""DCD-Bundle: every partition up to k in one fit, and what is certain of them."""

from __future__ import annotations

from largek_dask.algorithms.dcd.algorithm import DCDBundle
from largek_dask.algorithms.dcd.dcclust import DCClust

__all__ = ["DCClust", "DCDBundle"]
