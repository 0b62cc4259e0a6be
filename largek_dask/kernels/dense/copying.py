"""Copy scattered rows of an array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.emit import prefetch
from largek_dask.kernels.jit import njit

_LINE = 64
_BYTES_AHEAD = 8 << 10
"""Prefetch distance in bytes; speed is not sensitive to this value."""
_ROWS_AHEAD = 32


def copy_rows(x: NDArray[Any], places: NDArray[np.int64], out: NDArray[Any]) -> None:
    """Write ``out[:] = x[places]``, prefetching rows that are far apart in memory.

    `x` has shape (n, d), and `out` is a C-ordered (m, d) array of the same type. `places` contains
    m row numbers, which are not checked. Without prefetching, numpy takes 1.1 to 2 times as long.
    """
    if not x.flags.c_contiguous:
        # With mode "clip", numpy needs no buffer.
        x.take(places, axis=0, out=out, mode="clip")
        return
    ahead = min(_ROWS_AHEAD, _BYTES_AHEAD // max(1, x.shape[1] * x.itemsize) + 1)
    bits = np.dtype(f"u{x.itemsize}")  # one kernel per item size
    _copy_rows(readonly(x.view(bits)), readonly(places), ahead, out.view(bits))


@njit
def _copy_rows(x, places, ahead, out):
    n, d = out.shape
    flat, line = x.reshape(x.size), _LINE // x.itemsize
    for i in range(n):
        if i + ahead < n:
            begin = places[i + ahead] * d
            for f in range(begin, begin + d, line):
                prefetch(flat, f)
            prefetch(flat, begin + d - 1)
        row = places[i]
        for f in range(d):
            out[i, f] = x[row, f]
