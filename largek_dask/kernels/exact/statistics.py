"""Statistics from one scan: extents, mean, weights, invalid rows and the grid for sums.

Results do not depend on chunking or order: minima, maxima and sums are exact, and the mean is
rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from largek_dask.errors import DataError
from largek_dask.kernels.blocks import SparseBlock, Table, readonly
from largek_dask.kernels.exact.fixed_point import FixedPoint, power_above
from largek_dask.kernels.exact.numbers import N_LIMBS, UNIT, ExactSums
from largek_dask.kernels.exact.origin import FEWEST_ROWS, DistinctRows, Middle, is_far, words_of
from largek_dask.kernels.exact.scan import scan_float32, scan_floats, scan_integers, scan_weighted
from largek_dask.kernels.rows import compute_dtype, finite_rows, native_blocks

_MAX_WEIGHT = 2.0**500
WIDE = 64
"""Maximum number of values in a group of short rows that are scanned together."""
_MANY_VALUES = 1 << 18
"""Minimum number of values in a chunk for the fast float32 kernel, which takes time to compile."""

_PLAIN = (
    "n_rows", "n_total", "n_features", "integer_weights", "n_bad", "first_bad", "first_bad_weight"
)  # fmt: skip
_REALS = ("max_abs", "total_weight", "max_weight", "min_weight")
_OF_GRID = ("bits", "weight_bits", "integer_weights", "wide")


@dataclass(frozen=True, eq=False, slots=True)
class Statistics:
    """Statistics of all rows, computed before any clustering."""

    n_rows: int
    """Number of valid rows: finite rows with a positive weight."""
    n_total: int
    """Number of rows, including invalid rows."""
    n_features: int
    dtype: np.dtype[Any]
    """Compute dtype of the kernels, which is also the type of centres. It depends on the type of
    the rows, and is float64 if rows are far from 0 (:func:`.origin.is_far`)."""
    mean: NDArray[np.float64]
    """(d,) weighted mean of the valid rows, rounded once."""
    shift: NDArray[Any]
    """(d,) origin of all computation, in the compute dtype. It is 0 for sparse rows, the median of
    a sample if outliers dominate the mean (:mod:`.origin`), or the mean, rounded to integers for
    integer data."""
    max_abs: float
    """Maximum of ``|x - shift|`` over all valid rows and features."""
    total_weight: float
    """Sum of the weights of the valid rows, rounded once; equal to ``n_rows`` without weights."""
    max_weight: float
    min_weight: float
    """Smallest weight of a valid row."""
    integer_weights: bool
    """True if every weight is an integer, or if there are no weights."""
    n_bad: int
    """Number of rows of positive weight that contain NaN or infinity."""
    first_bad: int | None
    """Lowest global index of a row counted in ``n_bad``, or None if ``n_bad`` is 0."""
    first_bad_weight: int | None
    """Lowest global index of a row with a negative, NaN or infinite weight, or None if all weights
    are valid."""
    grid: FixedPoint
    """Fixed-point grid for exact sums of these rows."""

    def of_weights(self, weight: NDArray[np.float64]) -> Statistics:
        """Return the statistics of m selected rows with new positive weights (m,).

        The extent is unchanged. The grid and the statistics of weights are computed again.
        """
        total = ExactSums(1)
        total.add(weight)
        most, least = float(weight.max()), float(weight.min())
        whole = bool((weight == np.floor(weight)).all())
        weights: dict[str, Any] = {
            "n_rows": len(weight),
            "total_weight": total.value,
            "max_weight": most,
            "min_weight": least,
            "integer_weights": whole,
        }
        grid = FixedPoint.choose(self.shift, self.max_abs, **weights)
        # Outliers require wide sums for any weights.
        grid = replace(grid, wide=grid.wide or self.grid.wide)
        return replace(self, **weights, n_total=len(weight), grid=grid)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible values for :meth:`from_dict`, without rounding."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            **{name: getattr(self, name).hex() for name in _REALS},
            "dtype": self.dtype.name,
            "mean": _to_hex(self.mean),
            "shift": _to_hex(self.shift),
            "grid": {name: getattr(self.grid, name) for name in _OF_GRID},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Statistics:
        """Restore statistics from the values of :meth:`to_dict`.

        Raises
        ------
        KeyError, TypeError, ValueError
            If the values were not written by :meth:`to_dict`.
        """
        d, dtype = values["n_features"], np.dtype(values["dtype"])
        mean, own = (_from_hex(values[name]) for name in ("mean", "shift"))
        shift = readonly(own.astype(dtype))
        # Older stores, which have no weights, lack the minimum weight.
        values = {"min_weight": values["max_weight"], **values}
        reals: dict[str, Any] = {name: float.fromhex(values[name]) for name in _REALS}
        figures = [reals[name] for name in _REALS[:3]]
        figures += [values[name] for name in ("n_rows", "n_total", "n_bad")]
        if not (dtype == compute_dtype(dtype) and mean.shape == shift.shape == (d,)):
            raise ValueError(f"statistics have {len(mean)} {dtype} features, expected {d}")
        if not (np.isfinite(mean).all() and np.isfinite(shift).all()):
            raise ValueError("mean and origin must be finite")
        if not all(0 <= figure < np.inf for figure in figures):
            raise ValueError("extents, weights and row counts must be finite and not negative")
        return cls(
            **{name: values[name] for name in _PLAIN},
            **reals,
            dtype=dtype,
            mean=readonly(mean),
            shift=shift,
            grid=FixedPoint(shift=shift, extent=power_above(reals["max_abs"]), **values["grid"]),
        )


def _to_hex(values: NDArray[Any]) -> list[str]:
    return [v.hex() for v in values.astype(np.float64).tolist()]


def _from_hex(values: list[str]) -> NDArray[np.float64]:
    return np.array([float.fromhex(v) for v in values], np.float64)


class RowScan:
    """Accumulate the statistics of rows, chunk by chunk, in any order.

    Parameters
    ----------
    n_features : int
    dtype : numpy dtype
        Type of the rows as they are stored.
    """

    def __init__(self, n_features: int, dtype: DTypeLike) -> None:
        self.n_features = n_features
        self.dtype = np.dtype(dtype)
        self.compute_dtype = compute_dtype(dtype)
        self._sums = ExactSums(n_features)
        self._weights = ExactSums(1)
        self._low = np.full(n_features, np.inf)
        self._high = np.full(n_features, -np.inf)
        self._n_total = 0
        self._n_rows = 0
        self._n_bad = 0
        self._first_bad: int | None = None
        self._first_bad_weight: int | None = None
        self._max_weight = 0.0
        self._min_weight = np.inf
        self._integer_weights = True
        self._sparse = False
        self._sample = DistinctRows(n_features, self.compute_dtype)

    def add(self, x: Table, weight: NDArray[np.float64] | None = None, start_row: int = 0) -> None:
        """Add a chunk of rows.

        Parameters
        ----------
        x : (n, d), C-contiguous, of the scan's type; or sparse in all chunks
        weight : (n,) float64, optional
            Rows of weight 0 are ignored. Rows whose weight is negative, infinite or NaN are
            skipped, and the index of the first such row is recorded.
        start_row : int
            Global index of the first row.
        """
        if x.dtype != self.dtype or x.shape[1:] != (self.n_features,):
            raise ValueError(
                f"expected rows with {self.n_features} {self.dtype} features, got {x.dtype} rows "
                f"of shape {x.shape}"
            )
        self._sparse |= isinstance(x, SparseBlock)
        self._n_total += len(x)
        kept = None
        if weight is not None:
            valid = np.isfinite(weight) & (weight >= 0)
            if not valid.all():
                first = start_row + int(valid.argmin())
                self._first_bad_weight = _lowest(self._first_bad_weight, first)
            present = valid & (weight > 0)
            if not present.all():
                kept = np.flatnonzero(present)
                x, weight = x[kept], weight[kept]
        if isinstance(x, SparseBlock):
            finite, own = self._finite(x, weight, start_row, kept)
            if len(finite):
                self._count(len(finite), own)
                self._add_sparse(finite, own)
            return
        for rows, block in native_blocks(x):
            is_many = block.size >= max(1, _MANY_VALUES)
            is_fast = is_many and weight is None and block.dtype == np.float32
            if is_fast and self._add_float32(block):
                continue
            begin = start_row + rows.start if kept is None else start_row
            own = None if weight is None else weight[rows]
            numbers = None if kept is None else kept[rows]
            block, own = self._finite(block, own, begin, numbers)
            if len(block):
                self._count(len(block), own)
                self._sample.add(block)
                self._add_dense(block, own)

    def _finite(
        self, x: Any, weight: NDArray[np.float64] | None, begin: int, kept: NDArray[np.int64] | None
    ) -> tuple[Any, NDArray[np.float64] | None]:
        """Return the finite rows and their weights, and record the others.

        Row i has the global index ``begin + i``, or ``begin + kept[i]``.
        """
        finite = finite_rows(x)
        if finite.all():
            return x, weight
        first = int(finite.argmin())
        first = begin + (first if kept is None else int(kept[first]))
        self._n_bad += int((~finite).sum())
        self._first_bad = _lowest(self._first_bad, first)
        return x[finite], None if weight is None else weight[finite]

    def _count(self, n: int, weight: NDArray[np.float64] | None) -> None:
        self._n_rows += n
        least, most = (1.0, 1.0) if weight is None else (float(weight.min()), float(weight.max()))
        self._max_weight = max(self._max_weight, most)
        self._min_weight = min(self._min_weight, least)
        if weight is None:
            self._weights.add_units(UNIT, np.array([n]))
        else:
            self._integer_weights &= bool((weight == np.floor(weight)).all())
            self._weights.add(weight)

    def _add_float32(self, x: NDArray[np.float32]) -> bool:
        """Add rows without weights; return False, and add none, if some are not finite."""
        (words, factors), hashes = words_of(x), np.empty(len(x), np.uint64)
        limbs, extents = np.zeros((N_LIMBS, self.n_features), np.int64), []
        for rows, wide in self._wide_rows(x):
            low = np.full(wide.shape[1], np.inf, np.float32)
            extents.append((low, np.full_like(low, -np.inf)))
            # Without compilation, numpy would warn of hashes that overflow, and of NaN.
            with np.errstate(over="ignore", invalid="ignore"):
                args = wide, limbs, *extents[-1], words[rows], factors, hashes[rows]
                if not scan_float32(*args):
                    return False
        self._count(len(x), None)
        self._sample.add(x, hashes)
        self._sums.add_table(limbs)
        for low, high in extents:
            self._widen(low, high)
        return True

    def _add_dense(self, x: NDArray[Any], weight: NDArray[np.float64] | None) -> None:
        """Add extents and sums of finite rows."""
        for _, wide in self._wide_rows(x) if weight is None else [(None, readonly(x))]:
            limbs = np.zeros((N_LIMBS, self.n_features), np.int64)
            low, high = np.full(wide.shape[1], np.inf), np.full(wide.shape[1], -np.inf)
            if weight is not None:
                self._sums.n_not_finite += scan_weighted(wide, readonly(weight), limbs, low, high)
                self._sums.add_table(limbs)
            elif wide.dtype.kind in "iu" and wide.itemsize <= 2:
                low, high = wide[0].copy(), wide[0].copy()
                sums = np.zeros(wide.shape[1], np.int64)
                scan_integers(wide, sums, low, high)
                self._sums.add_units(UNIT, sums.reshape(-1, self.n_features).sum(axis=0))
            else:
                scan_floats(wide, limbs, low, high)
                self._sums.add_table(limbs)
            self._widen(low, high)

    def _wide_rows(self, x: NDArray[Any]) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield slices of rows and these rows, where several short rows form one wide row."""
        d = self.n_features
        group = min(len(x), max(1, WIDE // d))
        whole = len(x) // group * group
        for rows, n in ((slice(0, whole), group), (slice(whole, len(x)), 1)):
            if rows.start < rows.stop:
                yield rows, readonly(np.ascontiguousarray(x[rows])).reshape(-1, n * d)

    def _widen(self, low: NDArray[Any], high: NDArray[Any]) -> None:
        """Widen the extent by that of rows, which may consist of several data rows."""
        self._low = np.minimum(self._low, low.reshape(-1, self.n_features).min(axis=0))
        self._high = np.maximum(self._high, high.reshape(-1, self.n_features).max(axis=0))

    def _add_sparse(self, x: SparseBlock, weight: NDArray[np.float64] | None) -> None:
        """Add sums of stored values, and update the common extent of all columns."""
        values = x.data[x.stored].astype(np.float64)
        of_rows = None if weight is None else weight[x.row_numbers()]
        self._sums.add(values, of_rows, x.indices[x.stored])
        self._low = np.minimum(self._low, values.min(initial=0.0))
        self._high = np.maximum(self._high, values.max(initial=0.0))

    def merge(self, other: RowScan) -> RowScan:
        """Add the rows of another scan in place, and return ``self``."""
        self._sums.merge(other._sums)
        self._weights.merge(other._weights)
        self._low = np.minimum(self._low, other._low)
        self._high = np.maximum(self._high, other._high)
        self._n_total += other._n_total
        self._n_rows += other._n_rows
        self._n_bad += other._n_bad
        self._first_bad = _lowest(self._first_bad, other._first_bad)
        self._first_bad_weight = _lowest(self._first_bad_weight, other._first_bad_weight)
        self._max_weight = max(self._max_weight, other._max_weight)
        self._min_weight = min(self._min_weight, other._min_weight)
        self._integer_weights &= other._integer_weights
        self._sparse |= other._sparse
        self._sample.merge(other._sample)
        return self

    def finish(self) -> Statistics:
        """Return the statistics of all rows added so far.

        Raises
        ------
        DataError
            If values are so large that squared distances overflow the compute dtype.
        """
        sample, dtype = self._sample.rows, self.compute_dtype
        if not self._sparse and is_far(sample):
            dtype, sample = np.dtype(np.float64), sample.astype(np.float64)
        with np.errstate(over="ignore"):
            extent = float((self._high - self._low).max()) if self._n_rows else 0.0
            overflows = self.n_features * np.square(extent) > np.finfo(dtype).max
        if overflows or self._max_weight > _MAX_WEIGHT or self._sums.n_not_finite:
            raise DataError(
                f"squared distances overflow {dtype}: values differ by up to {extent:.3g}, with "
                f"weights up to {self._max_weight:.3g}; divide data or weights by a constant"
            )
        integer_data = self.dtype.kind in "biu"
        weights, weight_exponent = self._weights.integers()
        total = Fraction(weights[0]) * Fraction(2) ** weight_exponent
        mean = self._sums.over(total or Fraction(1))
        origin = np.zeros(len(mean)) if self._sparse else mean
        if integer_data:
            sums, exponent = self._sums.integers()
            above, below = (Fraction(2) ** exponent / (total or 1)).as_integer_ratio()
            origin = np.array([float(round(Fraction(s * above, below))) for s in sums])
        shift = readonly(origin.astype(dtype))
        spread = None
        if not self._sparse and len(sample) >= FEWEST_ROWS:
            middle = Middle(sample)
            spread = middle.spread
            if middle.serves_better(shift):
                shift = middle.point
        max_abs = 0.0
        if self._n_rows:
            about = shift.astype(np.float64)
            max_abs = float(np.maximum(self._high - about, about - self._low).max())
        figures: dict[str, Any] = {
            "n_rows": self._n_rows,
            "total_weight": float(total),
            "max_weight": self._max_weight,
            "min_weight": min(self._min_weight, self._max_weight),
            "integer_weights": self._integer_weights,
        }
        return Statistics(
            **figures,
            n_total=self._n_total,
            n_features=self.n_features,
            dtype=dtype,
            mean=readonly(mean),
            shift=shift,
            max_abs=max_abs,
            n_bad=self._n_bad,
            first_bad=self._first_bad,
            first_bad_weight=self._first_bad_weight,
            grid=FixedPoint.choose(
                shift, max_abs, **figures, integer_data=integer_data, spread=spread
            ),
        )


def _lowest(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
