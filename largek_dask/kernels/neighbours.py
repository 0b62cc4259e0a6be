"""The nearest centres of every centre."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.distances import PackedCenters, scores

__all__ = ["nearest_centers"]

_BLOCK = 96
"""Centres whose distances to all others are held at a time."""


def nearest_centers(packed: PackedCenters, m: int, n_threads: int = 1) -> NDArray[np.int32]:
    """The m nearest centres of every centre, itself the first.

    Parameters
    ----------
    packed : PackedCenters
    m : int
        1 to k.
    n_threads : int

    Returns
    -------
    int32 array (k, m)
        By distance, in the compute dtype and with its rounding; ties go to the lowest index.

    Raises
    ------
    ParameterError
        `m` is not between 1 and k.
    """
    k = packed.n_clusters
    if not 1 <= m <= k:
        raise ParameterError(f"m must be between 1 and {k}, got {m}.")
    out = np.empty((k, m), np.int32)
    for begin in range(0, k, _BLOCK):
        end = min(begin + _BLOCK, k)
        table: NDArray[Any] = scores(packed.centers[begin:end], packed)
        table[np.arange(end - begin), np.arange(begin, end)] = -1
        out[begin:end] = table.argsort(axis=1, kind="stable")[:, :m]
    return out
