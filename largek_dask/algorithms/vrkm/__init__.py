"""VRKM: k-means by variance-reduced steps, with a table of labels or as published."""

from __future__ import annotations

from largek_dask.algorithms.vrkm.algorithm import VRKM

__all__ = ["VRKM"]
