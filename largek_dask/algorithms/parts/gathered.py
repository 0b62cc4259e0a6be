"""All rows in the driver's process, for algorithms that process rows one by one.

Several processes cannot share the work if every update depends on the previous row.
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
    """Raise ``ParameterError`` if holding all rows exceeds the memory limit.

    ``name`` is the algorithm with the parameter that makes it hold rows, and ``instead`` is the
    alternative for large tables.
    """
    if passes.state_limit is not None and n_bytes > passes.state_limit:
        raise ParameterError(
            f"{name} holds all rows in the memory of the process that drives the fit: "
            f"{passes.n_rows} rows of {passes.n_features} features take {n_bytes} bytes, and "
            f"memory_limit is {passes.state_limit}. Raise memory_limit, or use {instead}."
        )


def bytes_of_held(table: TableShape, n: int, itemsize: int, beside: int, copies: int = 1) -> int:
    """Return the memory in bytes of n rows in the driver's process.

    Each row needs an index, a weight and ``beside`` more bytes. ``copies=2`` includes the copy for
    sorting rows that arrive in any order.
    """
    return n * (copies * table.row_values * itemsize + 2 * 8 + beside)


def bytes_of_gathered(table: TableShape, itemsize: int, beside: int = 0) -> int:
    """Return the memory of :func:`gather_rows` in bytes, including two copies of the rows."""
    return table.n_rows * (2 * table.n_features * itemsize + 3 * 8 + beside)


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """Rows of positive weight, in the order of the table."""

    x: NDArray[Any]
    """(n, d) dense, C-contiguous rows of the compute dtype."""
    weight: NDArray[np.float64] | None
    passes: Passes
    """Passes over the same rows; ``chunk.start`` is a position in ``x``."""

    def draws(self, rng: Rng, step: int, purpose: str, share: float) -> NDArray[np.int64]:
        """Draw positions of a share of all rows, at least one, with replacement."""
        n = len(self.x)
        return rng.generator(step, purpose).integers(n, size=max(1, round(share * n)))


def gather_rows(passes: Passes, rng: Rng) -> GatheredRows:
    """Return all rows, read once and cached until other rows are requested."""
    n = passes.n_rows
    held = passes.subset(RowSample(rng, "all rows", n, ascending=True))
    x, weight, _ = held.take()
    return GatheredRows(np.ascontiguousarray(dense_rows(x)), weight, held)
