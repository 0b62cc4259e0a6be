"""Partitions into all numbers of clusters: a search based on DCD-Bundle."""

from __future__ import annotations

from largek_dask.algorithms.partition_path.algorithm import PartitionPath

__all__ = ["PartitionPath"]
