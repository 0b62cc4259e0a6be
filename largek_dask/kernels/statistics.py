"""What one scan over the rows finds: extent, mean, weight, bad rows, and the grid of their sums.

Every number is the same whatever the chunking and the order: minima and maxima are exact, sums are
exact, and the mean is rounded once from the true one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from largek_dask.errors import DataError
from largek_dask.kernels.exact import LIMB, ORIGIN, ExactSums, two_product_error
from largek_dask.kernels.jit import njit, readonly
from largek_dask.kernels.sums import FixedPoint

__all__ = ["RowScan", "Statistics", "compute_dtype"]

_MAGIC = 6755399441055744.0  # 1.5 * 2^52
_MAGIC_BITS = 0x4338000000000000
_BLOCK_VALUES = 1 << 17
_MAX_BLOCK_ROWS = 1 << 12
_WIDE = 64


def compute_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """The type in which the kernels compute with rows of this type.

    float32 for float16, float32, bool and integers of up to 16 bits; float64 for float64 and
    larger integers.

    Raises
    ------
    DataError
        Anything else is not a table of numbers (complex, object, text, dates).
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "b" or (dtype.kind in "iu" and dtype.itemsize <= 2):
        return np.dtype(np.float32)
    if dtype.kind in "iu":
        return np.dtype(np.float64)
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return np.dtype(np.float32 if dtype.itemsize <= 4 else np.float64)
    raise DataError(
        f"rows of type {dtype} are not a table of numbers: convert them to float32, float64 or "
        "integers"
    )


@dataclass(frozen=True, eq=False, slots=True)
class Statistics:
    """What is known of the rows before anything is clustered."""

    n_rows: int
    """Rows that count: finite, with a weight above 0."""
    n_total: int
    """All rows."""
    n_features: int
    dtype: np.dtype[Any]
    """Compute dtype, float32 or float64."""
    mean: NDArray[np.float64]
    """(d,) weighted mean of the rows that count, rounded once."""
    shift: NDArray[Any]
    """(d,) origin of all computing: the mean in the compute dtype, in integers for integer data."""
    max_abs: float
    """Largest ``|x - shift|`` of a feature."""
    total_weight: float
    """Sum of the weights of the rows that count, rounded once; their number without weights."""
    max_weight: float
    integer_weights: bool
    """Every weight is an integer (or there are none)."""
    n_bad: int
    """Rows with NaN or infinity among those of weight above 0."""
    first_bad: int | None
    """Lowest global index of such a row."""
    first_bad_weight: int | None
    """Lowest global index of a row whose weight is negative, NaN or infinite."""
    grid: FixedPoint
    """Fixed-point grid of the sums of these rows."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values that give back the same bits."""
        return {
            "n_rows": self.n_rows,
            "n_total": self.n_total,
            "n_features": self.n_features,
            "dtype": self.dtype.name,
            "mean": _to_hex(self.mean),
            "shift": _to_hex(self.shift),
            "max_abs": self.max_abs.hex(),
            "total_weight": self.total_weight.hex(),
            "max_weight": self.max_weight.hex(),
            "integer_weights": self.integer_weights,
            "n_bad": self.n_bad,
            "first_bad": self.first_bad,
            "first_bad_weight": self.first_bad_weight,
            "grid": {
                "bits": self.grid.bits,
                "weight_bits": self.grid.weight_bits,
                "integer_weights": self.grid.integer_weights,
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Statistics:
        """The statistics that :meth:`to_dict` wrote."""
        dtype = np.dtype(values["dtype"])
        shift = readonly(_from_hex(values["shift"]).astype(dtype))
        return cls(
            n_rows=values["n_rows"],
            n_total=values["n_total"],
            n_features=values["n_features"],
            dtype=dtype,
            mean=readonly(_from_hex(values["mean"])),
            shift=shift,
            max_abs=float.fromhex(values["max_abs"]),
            total_weight=float.fromhex(values["total_weight"]),
            max_weight=float.fromhex(values["max_weight"]),
            integer_weights=values["integer_weights"],
            n_bad=values["n_bad"],
            first_bad=values["first_bad"],
            first_bad_weight=values["first_bad_weight"],
            grid=FixedPoint(shift=shift, **values["grid"]),
        )


def _to_hex(values: NDArray[Any]) -> list[str]:
    return [v.hex() for v in values.astype(np.float64).tolist()]


def _from_hex(values: list[str]) -> NDArray[np.float64]:
    return np.array([float.fromhex(v) for v in values], np.float64)


class RowScan:
    """Accumulates the statistics of rows, chunk by chunk, in any order.

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
        self._integer_weights = True

    def add(
        self, x: NDArray[Any], weight: NDArray[np.float64] | None = None, start_row: int = 0
    ) -> None:
        """Add a chunk of rows.

        Parameters
        ----------
        x : (n, d)
        weight : (n,) float64, optional
            Rows of weight 0 are absent. A negative or infinite weight or NaN is recorded, and its
            row left out.
        start_row : int
            Global index of the first row.
        """
        n = len(x)
        self._n_total += n
        counts = np.ones(n, bool)
        if weight is not None:
            valid = np.isfinite(weight) & (weight >= 0)
            if not valid.all():
                at = start_row + int(np.argmin(valid))
                self._first_bad_weight = _lowest(self._first_bad_weight, at)
            counts = valid & (weight > 0)
        finite = np.isfinite(x).all(axis=1)
        bad = counts & ~finite
        if bad.any():
            self._n_bad += int(bad.sum())
            self._first_bad = _lowest(self._first_bad, start_row + int(np.argmax(bad)))
            counts &= finite
        rows = x[counts].astype(np.float64)
        self._n_rows += len(rows)
        if not len(rows):
            return
        self._low = np.minimum(self._low, rows.min(axis=0))
        self._high = np.maximum(self._high, rows.max(axis=0))
        row_weights = np.ones(len(rows)) if weight is None else weight[counts]
        self._weights.add(row_weights)
        self._max_weight = max(self._max_weight, float(row_weights.max()))
        self._integer_weights &= bool((row_weights == np.floor(row_weights)).all())
        cells = np.tile(np.arange(self.n_features), len(rows))
        self._sums.add(rows.ravel(), np.repeat(row_weights, self.n_features), cells)

    def merge(self, other: RowScan) -> RowScan:
        """Add another scan's rows into this one, which is returned."""
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
        self._integer_weights &= other._integer_weights
        return self

    def finish(self) -> Statistics:
        """The statistics of all rows added so far.

        Raises
        ------
        DataError
            The values are so large that squared distances overflow the compute dtype.
        """
        integer_data = self.dtype.kind in "biu"
        sums, exponent = self._sums.integers()
        weights, weight_exponent = self._weights.integers()
        total = Fraction(weights[0]) * Fraction(2) ** weight_exponent
        unit = Fraction(2) ** exponent
        means = [s * unit / total if total else Fraction(0) for s in sums]
        mean = np.array([float(m) for m in means], np.float64)
        origin = np.array([float(round(m)) for m in means]) if integer_data else mean
        shift = readonly(origin.astype(self.compute_dtype))
        max_abs = 0.0
        if self._n_rows:
            about = shift.astype(np.float64)
            max_abs = float(max((self._high - about).max(), (about - self._low).max()))
        if not 4.0 * self.n_features * max_abs**2 <= float(np.finfo(self.compute_dtype).max):
            raise DataError(
                f"values up to {max_abs:.3g} away from the mean: squared distances overflow "
                f"{self.compute_dtype}; divide the data by a constant"
            )
        total_weight = float(total)
        return Statistics(
            n_rows=self._n_rows,
            n_total=self._n_total,
            n_features=self.n_features,
            dtype=self.compute_dtype,
            mean=readonly(mean),
            shift=shift,
            max_abs=max_abs,
            total_weight=total_weight,
            max_weight=self._max_weight,
            integer_weights=self._integer_weights,
            n_bad=self._n_bad,
            first_bad=self._first_bad,
            first_bad_weight=self._first_bad_weight,
            grid=FixedPoint.choose(
                shift,
                max_abs,
                n_rows=self._n_rows,
                total_weight=total_weight,
                max_weight=self._max_weight,
                integer_weights=self._integer_weights,
                integer_data=integer_data,
            ),
        )


def _lowest(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
