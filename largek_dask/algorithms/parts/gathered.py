"""All rows in the driver's process, for algorithms that visit rows one by one.

If every step depends on the row before, several processes are of no use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, Rng, RowSample, TableShape
from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import dense_rows


def check_held(passes: Passes, n_bytes: int, name: str, instead: str) -> None:
    """Raise ParameterError if held rows take more memory than a fit may use.

    ``name`` is the algorithm with the parameter that holds rows, ``instead`` its replacement for
    large tables.
    """
    if passes.state_limit is not None and n_bytes > passes.state_limit:
        raise ParameterError(
            f"{name} holds all rows in the memory of the process that drives the fit: "
            f"{passes.n_rows} rows of {passes.n_features} features take {n_bytes} bytes, and "
            f"memory_limit is {passes.state_limit}. Raise memory_limit, or use {instead}."
        )


def bytes_of_held(table: TableShape, n: int, itemsize: int, beside: int, copies: int = 1) -> int:
    """Return the bytes of n rows in the driver's process, for plans.

    Each row has an index, a weight and ``beside`` further bytes. While rows are read there are two
    ``copies`` of the values, as they arrive in any order.
    """
    return n * (copies * table.row_values * itemsize + 2 * 8 + beside)


def bytes_of_gathered(table: TableShape, itemsize: int, beside: int = 0) -> int:
    """Return the bytes of :func:`gather_rows`, for plans; twice the rows while they are read."""
    return table.n_rows * (2 * table.n_features * itemsize + 3 * 8 + beside)


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """Rows of positive weight, in the order of the table."""

    x: NDArray[Any]
    """(n, d) dense, C-contiguous, compute dtype."""
    weight: NDArray[np.float64] | None
    """(n,) positive; None if every row weighs 1."""
    passes: Passes
    """Passes over the same rows; ``chunk.start`` is a place in ``x``."""

    def draws(self, rng: Rng, step: int, purpose: str, share: float) -> NDArray[np.int64]:
        """Draw positions of rows with replacement: this share of all rows, at least one."""
        n = len(self.x)
        return rng.generator(step, purpose).integers(n, size=max(1, round(share * n)))


def gather_rows(passes: Passes, rng: Rng) -> GatheredRows:
    """Return all rows; they are read once and stay until others are requested."""
    n = passes.n_rows
    held = passes.subset(RowSample(rng, "all rows", n, ascending=True))
    x, weight, _ = held.take()
    return GatheredRows(np.ascontiguousarray(dense_rows(x)), weight, held)
