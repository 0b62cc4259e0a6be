"""The algorithms by the names that users, command lines and job documents give them."""

from __future__ import annotations

from typing import Any

from largek_dask.algorithms.auto import Auto
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.minibatch import MiniBatch
from largek_dask.algorithms.nmbatch import NMBatch
from largek_dask.algorithms.truncated import Truncated

__all__ = ["ALGORITHMS"]

ALGORITHMS: dict[str, type[Any]] = {
    "auto": Auto,
    "lloyd": Lloyd,
    "minibatch": MiniBatch,
    "nmbatch": NMBatch,
    "truncated": Truncated,
}
"""Algorithms by the name a user gives."""
