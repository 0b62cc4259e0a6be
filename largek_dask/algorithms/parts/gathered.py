"""All rows in one piece in the driver's process, for algorithms that visit rows one by one.

If every row depends on the one before, several processes are of no use: one kernel runs over rows
that are held in the driver's process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, Rng, RowSample, TableShape
from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import dense_rows

__all__ = [
    "GatheredRows",
    "bytes_of_gathered",
    "bytes_of_held",
    "check_held",
    "gather_rows",
]


def check_held(passes: Passes, n_bytes: int, name: str, instead: str) -> None:
    """Refuse rows that take more memory than a fit may use.

    Parameters
    ----------
    passes : Passes
    n_bytes : int
        Bytes of the rows as they are held.
    name, instead : str
        The algorithm with the parameter that holds rows, and what to use for large tables.

    Raises
    ------
    ParameterError
        The message has both sizes.
    """
    if passes.state_limit is not None and n_bytes > passes.state_limit:
        raise ParameterError(
            f"{name} works on rows in the memory of the process that drives the fit: "
            f"{passes.n_rows} rows of {passes.n_features} features take {n_bytes} bytes, and "
            f"memory_limit is {passes.state_limit}. Raise memory_limit, or use {instead}."
        )


def bytes_of_held(table: TableShape, n: int, itemsize: int, beside: int, copies: int = 1) -> int:
    """Return the bytes of rows that the driver's process holds, for plans.

    Parameters
    ----------
    table : TableShape
        Table of the rows.
    n : int
    itemsize : int
        Bytes per number.
    beside : int
        Further bytes per row; its index and weight count in any case.
    copies : int
        Copies at the same time: two while rows are read, as they come in any order.
    """
    return n * (copies * table.row_values * itemsize + 2 * 8 + beside)


def bytes_of_gathered(table: TableShape, itemsize: int, beside: int = 0) -> int:
    """Return the bytes of :func:`gather_rows`, for plans; twice the rows while they are read."""
    return table.n_rows * (2 * table.n_features * itemsize + 3 * 8 + beside)


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """Rows of positive weight, in the order of the table."""

    x: NDArray[Any]
    """(n, d) dense, compute dtype."""
    weight: NDArray[np.float64] | None
    """(n,) positive; None if every row weighs 1."""
    passes: Passes
    """Passes over the same rows; ``chunk.start`` is a place in ``x``."""

    def draws(self, rng: Rng, step: int, purpose: str, share: float) -> NDArray[np.int64]:
        """Draw positions of rows with replacement: this share of all rows, at least one."""
        n = len(self.x)
        return rng.generator(step, purpose).integers(n, size=max(1, round(share * n)))


def gather_rows(passes: Passes, rng: Rng) -> GatheredRows:
    """Hold the rows here; they are read once and stay until others are requested."""
    n = passes.n_rows
    held = passes.subset(RowSample(rng, "all rows", n, ascending=True))
    x, weight, _ = held.take()
    return GatheredRows(np.ascontiguousarray(dense_rows(x)), weight, held)
