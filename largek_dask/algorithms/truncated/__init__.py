"""Truncated search: rows are compared with few centres, and centres are moved."""

from largek_dask.algorithms.truncated.algorithm import Truncated
from largek_dask.algorithms.truncated.state import TruncatedState

__all__ = ["Truncated", "TruncatedState"]
