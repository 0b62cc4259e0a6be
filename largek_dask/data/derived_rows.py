"""Transform rows when they are read: select columns, add noise, or standardise features."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.csr_blocks import block_of
from largek_dask.data.rows import Rows
from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import SparseBlock
from largek_dask.kernels.rows import compute_dtype

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
MOST_BITS = 32
"""Maximum size of integers, in bits, for which adding noise is exact in float64."""
BLOCK_VALUES = 1 << 15


class DerivedRows(Rows):
    """Rows computed from other rows, chunk by chunk."""

    def __init__(self, rows: Rows, n_features: int, dtype: np.dtype[Any]) -> None:
        self._rows = rows
        super().__init__(
            n_features=n_features,
            dtype=dtype,
            chunk_table=rows.chunk_table,
            location=rows.location,
            weight=rows.weight,
        )
        self.is_sparse = rows.is_sparse  # type: ignore[misc]  # of these rows, not of the class
        self.shuffled = rows.shuffled

    @abstractmethod
    def _derive(self, x: Any, first: int) -> Any:
        """Transform rows ``x``, the first of which has index ``first`` in the table."""

    def _find_names(self) -> tuple[str, ...] | None:
        return self._rows.feature_names

    def _load(self, i: int, start: int, stop: int) -> Any:
        return self._derive(self._rows.read(i), start)

    def read_ids(self, i: int) -> NDArray[Any]:
        return self._rows.read_ids(i)

    def stretch(self, i: int, begin: int, end: int) -> tuple[int, int]:
        return self._rows.stretch(i, begin, end)

    def read_part(self, i: int, begin: int, end: int) -> Any:
        part = self._rows.read_part(i, begin, end)
        return self._checked(i, self._derive(part, int(self.chunk_table[i]) + begin), end - begin)

    def _stamps(self) -> list[str] | None:
        return self._rows._stamps()

    def describe_source(self, location: str | None) -> str:
        return self._rows.describe_source(location)


class ColumnRows(DerivedRows):
    """Selected columns of dense or sparse rows, in any order."""

    def __init__(self, rows: Rows, columns: Sequence[int]) -> None:
        self._columns = np.asarray(columns, np.intp)
        super().__init__(rows, len(self._columns), rows.dtype)

    @property
    def nbytes(self) -> int:
        """Total size of the rows in bytes; an upper bound if the rows are sparse."""
        return self._rows.nbytes if self.is_sparse else super().nbytes

    def _find_names(self) -> tuple[str, ...] | None:
        names = self._rows.feature_names
        return None if names is None else tuple(names[place] for place in self._columns)

    def _derive(self, x: Any, first: int) -> Any:
        if not isinstance(x, SparseBlock):
            return x[:, self._columns]
        place = np.full(self._rows.n_features, -1, np.int32)
        place[self._columns] = np.arange(len(self._columns), dtype=np.int32)
        indices = place[x.indices[x.stored]]
        kept = indices >= 0
        indptr = np.concatenate([[0], np.cumsum(kept)])[x.indptr - x.indptr[0]]
        return block_of(x.data[x.stored][kept], indices[kept], indptr, self.n_features)


class DitheredRows(DerivedRows):
    """Dense rows of integers with added noise, uniform in [0, 1).

    The likelihood of a Gaussian mixture is unbounded on integers, because variances can shrink to
    zero around a single value. Uniform noise turns integers into samples of a density (Theis, van
    den Oord and Bethge, "A note on the evaluation of generative models", 2016).
    """

    def __init__(self, rows: Rows, key: int) -> None:
        if rows.is_sparse or rows.dtype.kind not in "iu":
            what = "sparse" if rows.is_sparse else rows.dtype
            raise ParameterError(
                f"dither requires dense rows of integers, but the rows are {what}."
            )
        self._key = key
        super().__init__(rows, rows.n_features, compute_dtype(rows.dtype))

    def _derive(self, x: Any, first: int) -> Any:
        return dithered(x, first, self._key)


@dataclass(frozen=True, eq=False, slots=True)
class Scaling:
    """Mean and scale of each feature: a standardised value is ``(x - mean) / scale``."""

    mean: NDArray[np.float64]
    """(d,) weighted mean of each feature."""
    scale: NDArray[np.float64]
    """(d,) weighted standard deviation of each feature; 1 if the feature is constant."""

    def restore(self, x: NDArray[Any]) -> NDArray[Any]:
        """Convert (n, d) standardised rows or centres back to the original units."""
        restored: NDArray[Any] = (x * self.scale + self.mean).astype(x.dtype)
        return restored


SCALING = ("mean", "scale")
"""Array names of a :class:`Scaling` in stored models."""


class StandardizedRows(DerivedRows):
    """Dense rows with standardised features, computed in float64 and rounded."""

    def __init__(self, rows: Rows, scaling: Scaling) -> None:
        check_standardizable(rows)
        self.scaling = scaling
        super().__init__(rows, rows.n_features, compute_dtype(rows.dtype))

    def _derive(self, x: Any, first: int) -> Any:
        out = np.empty(x.shape, self.dtype)
        step = max(1, BLOCK_VALUES // self.n_features)
        # Invalid rows, which may contain infinity, are detected later.
        with np.errstate(over="ignore", invalid="ignore"):
            for begin in range(0, len(x), step):
                at = slice(begin, begin + step)
                out[at] = (x[at].astype(np.float64) - self.scaling.mean) / self.scaling.scale
        return out


def check_standardizable(rows: Rows) -> None:
    """Raise ParameterError if rows are sparse."""
    if rows.is_sparse:
        raise ParameterError(
            "scale='standard' needs dense rows, but the rows are sparse, and subtracting the mean "
            "would make them dense. Divide the columns by their scales before the fit (as "
            "sklearn's MaxAbsScaler does), use normalize='l2', or pass the rows as a dense array."
        )


def dithered(x: NDArray[Any], first: int, key: int) -> NDArray[Any]:
    """Add noise in [0, 1) to integer rows; the first row has index ``first`` in the table.

    The noise is a hash of the key, row index and feature index, computed by SplitMix64 (Steele, Lea
    and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). The number of random
    bits is as large as possible without rounding errors in the sum of integer and noise.
    """
    (n, d), dtype = x.shape, compute_dtype(x.dtype)
    bits = np.finfo(dtype).nmant + 1 - min(8 * x.dtype.itemsize, MOST_BITS)
    out = np.empty(x.shape, dtype)
    start = _mixed(np.array([key], np.uint64))
    step = max(1, BLOCK_VALUES // d)
    for begin in range(0, n, step):
        block = x[begin : begin + step]
        places = np.arange(block.size, dtype=np.uint64) + np.uint64((first + begin) * d)
        noise = _mixed(start + places * np.uint64(GOLDEN)) >> np.uint64(64 - bits)
        own = noise.astype(dtype).reshape(block.shape) * dtype.type(2.0**-bits)
        out[begin : begin + step] = block.astype(dtype) + own
    return out


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = z + np.uint64(GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
    return z ^ (z >> np.uint64(31))
