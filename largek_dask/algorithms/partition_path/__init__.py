"""Partitions into every number of clusters up to k: a search based on DCD-Bundle."""

from __future__ import annotations

from largek_dask.algorithms.partition_path.algorithm import PartitionPath

__all__ = ["PartitionPath"]
