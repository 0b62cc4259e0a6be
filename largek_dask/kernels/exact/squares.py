"""Compute squared norms of rows, and exact sums of squares of features."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import SparseBlock, Table, readonly
from largek_dask.kernels.emit import row_square
from largek_dask.kernels.exact.numbers import BLOCK_VALUES, N_LIMBS, UNIT, ExactSums
from largek_dask.kernels.exact.scan import scan_floats, scan_weighted
from largek_dask.kernels.jit import njit
from largek_dask.kernels.rows import NATIVE, compute_dtype, native_blocks

_SPLITTER = 134217729.0  # 2^27 + 1 splits floats into halves (`numbers.two_product_error`)
_ALL = readonly(np.empty(0, np.int64))


class FeatureSquares:
    """Exact weighted sum and maximum of ``(x - shift)^2`` for each feature of dense rows."""

    __slots__ = ("largest", "shift", "sums")

    def __init__(self, shift: NDArray[Any]) -> None:
        self.shift = shift.astype(np.float64)
        self.sums = ExactSums(len(shift))
        self.largest: NDArray[np.float64] = np.zeros(len(shift))
        """(d,) largest square of each feature among rows of positive weight."""

    @property
    def nbytes(self) -> int:
        return int(self.sums.nbytes + self.largest.nbytes + self.shift.nbytes)

    def add(self, x: NDArray[Any], weight: NDArray[np.float64] | None) -> None:
        """Add (n, d) rows; rows of weight 0 are ignored."""
        if weight is not None and not weight.all():
            x, weight = x[weight > 0], weight[weight > 0]
        limbs = np.zeros((N_LIMBS, len(self.shift)), np.int64)
        least = np.full(len(self.shift), np.inf)
        step = max(1, BLOCK_VALUES // len(self.shift))
        for begin in range(0, len(x), step):
            at = slice(begin, begin + step)
            squares = readonly(np.square(x[at].astype(np.float64) - self.shift))
            if weight is None:
                scan_floats(squares, limbs, least, self.largest)
            else:
                scan_weighted(squares, readonly(weight[at]), limbs, least, self.largest)
        self.sums.add_table(limbs)

    def merge(self, other: FeatureSquares) -> FeatureSquares:
        """Add the sums of other rows with the same ``shift`` in place, and return ``self``."""
        self.sums.merge(other.sums)
        self.largest = np.maximum(self.largest, other.largest)
        return self


class FeatureMoments:
    """Exact weighted sums of values and squares for each feature of dense rows."""

    def __init__(self, n_features: int) -> None:
        self._weights = ExactSums(1)
        self._most_weight = 0.0
        self._sums, self._squares = ExactSums(n_features), ExactSums(n_features)
        self._low, self._high = np.full(n_features, np.inf), np.full(n_features, -np.inf)

    def add(self, x: NDArray[Any], weight: NDArray[np.float64] | None) -> None:
        """Add (n, d) rows; rows of weight 0 are ignored."""
        if weight is not None and not weight.all():
            x, weight = x[weight > 0], weight[weight > 0]
        if not len(x):
            return
        if weight is None:
            self._weights.add_units(UNIT, np.array([len(x)]))
        else:
            self._weights.add(weight)
        self._most_weight = max(self._most_weight, 1.0 if weight is None else float(weight.max()))
        d = x.shape[1]
        sums, squares = np.zeros((N_LIMBS, d), np.int64), np.zeros((N_LIMBS, d), np.int64)
        ignored = np.empty(d), np.empty(d)
        step = max(1, BLOCK_VALUES // d)
        for begin in range(0, len(x), step):
            at = slice(begin, begin + step)
            values = x[at].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):  # `finish` returns NaN.
                products = np.square(values)
                parts = [(values, sums, (self._low, self._high)), (products, squares, ignored)]
                if compute_dtype(x.dtype) == np.float64:  # Float32 values have exact squares.
                    t = _SPLITTER * values
                    high = t - (t - values)
                    low = values - high
                    rests = ((high * high - products) + 2 * (high * low)) + low * low
                    parts.append((rests, squares, ignored))
                for block, limbs, extent in parts:
                    if weight is None:
                        scan_floats(readonly(block), limbs, *extent)
                    else:
                        scan_weighted(readonly(block), readonly(weight[at]), limbs, *extent)
        self._sums.add_table(sums)
        self._squares.add_table(squares)

    def merge(self, other: FeatureMoments) -> FeatureMoments:
        """Add the sums of other rows in place, and return ``self``."""
        self._weights.merge(other._weights)
        self._most_weight = max(self._most_weight, other._most_weight)
        self._sums.merge(other._sums)
        self._squares.merge(other._squares)
        self._low = np.minimum(self._low, other._low)
        self._high = np.maximum(self._high, other._high)
        return self

    def finish(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean, variance and largest absolute value of each feature, correctly rounded.

        The variance is 0 if and only if the feature is constant or the variance underflows. The
        variance is NaN if the sum of squares may overflow. If no row has a positive weight, all
        results are 0.
        """
        d = len(self._low)
        (weight,), of_weight = self._weights.integers()
        if not weight:
            return np.zeros(d), np.zeros(d), np.zeros(d)
        mean = self._sums.over(Fraction(weight) * Fraction(2) ** of_weight)
        size = np.maximum(np.abs(self._low), np.abs(self._high))
        with np.errstate(over="ignore"):
            overflows = ~np.isfinite(np.square(size) * self._most_weight)
        # In integer arithmetic: variance = (weight * sum of squares - sum^2) / weight^2.
        (sums, of_sums), (squares, of_squares) = self._sums.integers(), self._squares.integers()
        unit = min(of_squares + of_weight, 2 * of_sums)
        shifts = of_squares + of_weight - unit, 2 * of_sums - unit
        power = Fraction(2) ** (unit - 2 * of_weight) / weight**2
        variance = np.zeros(d)
        for f in np.flatnonzero((self._low < self._high) & ~overflows).tolist():
            above = (squares[f] * weight << shifts[0]) - (sums[f] ** 2 << shifts[1])
            variance[f] = max(above, 0) * power.numerator / power.denominator
        variance[overflows] = np.nan
        return mean, variance, size


def row_squares(
    x: Table, shift: NDArray[Any], rows: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """Return (n,) squared norms of ``x - shift`` in float64, for all rows or for ``rows``.

    Squares are added to eight partial sums in turn, because additions to a single sum cannot run
    in parallel.
    """
    chosen = _ALL if rows is None else readonly(rows)
    out = np.empty(len(x) if rows is None else len(rows))
    if isinstance(x, SparseBlock):
        check_origin(shift)
        _sparse_squares(*x.parts(), chosen, out)
        return out
    about = shift.astype(np.float64)
    if rows is not None and x.dtype not in NATIVE:
        return row_squares(x[rows], shift)
    for part, block in native_blocks(x):
        _row_squares(block, about, chosen, out if rows is not None else out[part])
    return out


def check_origin(shift: NDArray[Any]) -> None:
    """Raise ValueError unless the origin is 0, as required for sparse rows."""
    if shift.any():
        raise ValueError("the origin of sparse rows must be 0")


@njit
def _sparse_squares(data, indices, indptr, rows, out):
    lanes = np.empty(8)
    for i in range(out.shape[0]):
        row = rows[i] if rows.shape[0] > 0 else i
        lanes[:] = 0.0
        for p in range(indptr[row], indptr[row + 1]):
            lanes[indices[p] & 7] += np.float64(data[p]) * np.float64(data[p])
        out[i] = _joined(lanes)


@njit
def _row_squares(x, shift, rows, out):
    for i in range(out.shape[0]):
        out[i] = row_square(x, rows[i] if rows.shape[0] > 0 else i, shift)


@njit
def _joined(lanes):
    low = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
    return low + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))
