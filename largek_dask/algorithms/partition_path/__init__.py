"""Partitions into all numbers of clusters: a search of ours, after DCD-Bundle."""

from __future__ import annotations

from largek_dask.algorithms.partition_path.algorithm import PartitionPath

__all__ = ["PartitionPath"]
