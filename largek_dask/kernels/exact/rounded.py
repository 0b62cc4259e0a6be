"""Rows rounded to the grid of exact sums once, to be added to clusters of many partitions.

Rounding a row costs several times as much as adding it. If the same rows are labelled by one
partition after the other, they are rounded a block at a time and stay in the processor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.sum_loops import (
    INTEGERS,
    ONES,
    REALS,
    carry,
    first_refused,
    round_rows,
    round_rows_wide,
)
from largek_dask.kernels.jit import njit, readonly
from largek_dask.kernels.rows import native_blocks

__all__ = ["RoundedRows", "add_rounded", "add_rounded_wide"]


@dataclass(frozen=True, slots=True, eq=False)
class RoundedRows:
    """``weight * (x - shift)`` of rows, and their weights, in whole steps of a grid."""

    steps: NDArray[np.int64]
    """(n, d)"""
    weights: NDArray[np.int64]
    """(n,)"""
    low_steps: NDArray[np.int64]
    """(n, d) rest below whole steps, in a wide grid; else (0, d)."""
    low_weights: NDArray[np.int64]
    """(n,) or (0,)"""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.steps)

    @classmethod
    def of(
        cls, x: NDArray[Any], weight: NDArray[np.float64] | None, grid: FixedPoint
    ) -> RoundedRows:
        """Round (n, d) rows of any real type.

        Parameters
        ----------
        x : (n, d)
            Rows of weight 0 may hold anything: they add nothing.
        weight : (n,) float64 or None
            None: every row weighs 1.
        grid : FixedPoint
            Chosen for these rows.

        Raises
        ------
        ValueError
            A weight that the grid cannot represent (see ``ClusterSums.add``).
        """
        n, d = x.shape
        n_low = n if grid.wide else 0
        out = cls(
            np.empty((n, d), np.int64),
            np.empty(n, np.int64),
            np.empty((n_low, d), np.int64),
            np.empty(n_low, np.int64),
        )
        kind = INTEGERS if grid.integer_weights else REALS
        if weight is None:
            weight = np.ones(n)
            kind = ONES if grid.integer_weights else REALS
        own, scale, weight_scale = readonly(weight), 2.0**grid.bits, 2.0**grid.weight_bits
        refused = int(first_refused(own, kind, weight_scale, grid.wide))
        if refused >= 0:
            raise ValueError(
                f"row {refused} weighs {weight[refused]!r}, and the grid of these sums was chosen "
                "for " + ("integer" if grid.integer_weights else "other") + " weights"
            )
        shift = grid.shift.astype(np.float64)
        for at, block in native_blocks(x):
            into = out.steps[at], out.weights[at]
            rows = block, own[at], kind, shift, scale, weight_scale
            if grid.wide:
                round_rows_wide(*rows, *into, out.low_steps[at], out.low_weights[at])
            else:
                round_rows(*rows, *into)
        return out


@njit
def add_rounded(steps, weights, labels, first, sums, totals):
    """Add rows to the clusters ``first + label``; label -1 leaves a row out."""
    n, d = steps.shape
    for i in range(n):
        if labels[i] < 0:
            continue
        c = np.int64(first) + labels[i]
        totals[c] += weights[i]
        for f in range(d):
            sums[c, f] += steps[i, f]


@njit
def add_rounded_wide(
    steps, weights, low_steps, low_weights, labels, first, sums, totals, low, low_totals
):
    """Do the same as `add_rounded`, in two limbs."""
    n, d = steps.shape
    for i in range(n):
        if labels[i] < 0:
            continue
        c = np.int64(first) + labels[i]
        carry(totals, low_totals, c, weights[i], low_weights[i])
        for f in range(d):
            carry(sums[c], low[c], f, steps[i, f], low_steps[i, f])
