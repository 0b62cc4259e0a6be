"""Rows of integers with noise below one step, so that they are spread over real numbers.

Integers lie on a lattice: the likelihood of a mixture of Gaussians has no bound there, as variances
may shrink onto single values. Noise that is uniform in [0, 1) makes a density of them (L. Theis,
A. van den Oord, M. Bethge, A note on the evaluation of generative models, ICLR 2016).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.rows import Rows
from largek_dask.errors import ParameterError
from largek_dask.kernels.rows import compute_dtype

__all__ = ["DitheredRows", "dithered"]

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
MOST_BITS = 32
"""Bits of an integer that a float64 keeps beside the noise; of wider types larger values may be
rounded."""
BLOCK_VALUES = 1 << 15


class DitheredRows(Rows):
    """Rows of integers, each with noise in [0, 1) added that depends on a key and its place.

    Parameters
    ----------
    rows : Rows
        Dense rows of integers.
    key : int
        Below 2^64; another one is other noise.

    Raises
    ------
    ParameterError
        The rows are sparse, or no integers.
    """

    def __init__(self, rows: Rows, key: int) -> None:
        if rows.is_sparse or rows.dtype.kind not in "iu":
            what = "sparse" if rows.is_sparse else rows.dtype
            raise ParameterError(f"dither is for dense rows of integers, and these are {what}.")
        self._rows, self._key = rows, key
        super().__init__(
            n_features=rows.n_features,
            dtype=compute_dtype(rows.dtype),
            chunk_table=rows.chunk_table,
            location=rows.location,
            weight=rows.weight,
        )
        self.shuffled = rows.shuffled

    def _find_names(self) -> tuple[str, ...] | None:
        return self._rows.feature_names

    def _load(self, i: int, start: int, stop: int) -> Any:
        return dithered(self._rows.read(i), start, self._key)

    def stretch(self, i: int, begin: int, end: int) -> tuple[int, int]:
        """What has to be read for the rows ``begin`` to ``end`` of chunk ``i``."""
        return self._rows.stretch(i, begin, end)

    def read_part(self, i: int, begin: int, end: int) -> Any:
        """``read(i)[begin:end]``; reads no more than the :meth:`stretch` of these rows."""
        part = self._rows.read_part(i, begin, end)
        x = dithered(part, int(self.chunk_table[i]) + begin, self._key)
        return self._checked(i, x, end - begin)

    def _stamps(self) -> list[str] | None:
        return self._rows._stamps()

    def describe_source(self, location: str | None) -> str:
        """As the rows are called."""
        return self._rows.describe_source(location)


def dithered(x: NDArray[Any], first: int, key: int) -> NDArray[Any]:
    """Rows of integers with noise in [0, 1) added.

    The noise is a hash of the key, the row and the feature (SplitMix64: G. Steele, D. Lea,
    C. Flood, Fast splittable pseudorandom number generators, OOPSLA 2014), with as many bits as
    leave the sum without rounding.

    Parameters
    ----------
    first : int
        Index of its first row in the table.
    key : int
        Below 2^64.
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
    """SplitMix64 of many counters."""
    z = z + np.uint64(GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
    return z ^ (z >> np.uint64(31))
