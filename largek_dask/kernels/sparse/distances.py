"""Exact distances of sparse rows to the centres that their labels name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import SparseBlock
from largek_dask.kernels.emit import square_distance
from largek_dask.kernels.exact.movement import squared_lengths
from largek_dask.kernels.jit import njit, readonly
from largek_dask.kernels.prepared import Prepared

__all__ = ["center_norms", "squared_distances"]

Array = NDArray[Any]

LOST = 8.0
"""Ratio of a centre's square to the remaining difference above which digits are lost."""


def center_norms(centers: Array) -> NDArray[np.float64]:
    """Return (k,) squared lengths in float64, the features added in order."""
    return readonly(squared_lengths(centers))


def squared_distances(
    x: SparseBlock,
    centers: Array,
    prepared: Prepared,
    labels: NDArray[np.int32],
    out: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Write the squared distance of every row to the centre of its label to `out`.

    It is ``||c||² - sum c²`` over the row's columns, which covers those where the row is 0, plus
    ``sum (x - c)²`` over its columns. The squares of c are added in the order of the columns in
    both, so a row that equals its centre is at distance 0. If that difference has lost digits,
    since the row lies near its centre, the sum goes over all features.
    """
    data = x.data.astype(centers.dtype, copy=False)
    _distances(
        readonly(data), readonly(x.indices), readonly(x.indptr),
        readonly(centers), prepared.get(center_norms), readonly(labels), out,
    )  # fmt: skip
    return out


@njit
def _distances(data, indices, indptr, centers, norms, labels, out):
    d = centers.shape[1]
    flat, row = centers.reshape(centers.size), np.zeros(d, data.dtype)
    for i in range(labels.shape[0]):
        j = labels[i]
        seen, apart = 0.0, 0.0
        for p in range(indptr[i], indptr[i + 1]):
            c = np.float64(centers[j, indices[p]])
            difference = np.float64(data[p]) - c
            seen += c * c
            apart += difference * difference
        total = max(norms[j] - seen, 0.0) + apart
        if LOST * total < norms[j]:
            for p in range(indptr[i], indptr[i + 1]):
                row[indices[p]] = data[p]
            total = square_distance(row, 0, flat, j * d, d)
            for p in range(indptr[i], indptr[i + 1]):
                row[indices[p]] = 0
        out[i] = total
