"""Partitions into all numbers of clusters: DCD-Bundle as published, and a search of ours."""

from __future__ import annotations

from largek_dask.algorithms.dcd.partition_path import PartitionPath
from largek_dask.algorithms.dcd.published import DCDBundle

__all__ = ["DCDBundle", "PartitionPath"]
