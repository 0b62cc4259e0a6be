"""Nearest dense centres of sparse rows (CSR), and exact distances to these centres.

Scores ``||c||² - 2 x·c`` use one fused multiply-add per stored number of a row, in column order,
and are bit-identical to scores of dense rows without a shift. Centres are transposed in blocks, so
that the coordinates of all centres of a block in one column are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from largek_dask.kernels.blocks import SparseBlock, readonly
from largek_dask.kernels.dense import panels
from largek_dask.kernels.emit import LANES, scan_sparse, square_distance
from largek_dask.kernels.exact.movement import squared_lengths
from largek_dask.kernels.jit import njit
from largek_dask.kernels.packed_cache import PackedCache

Array = NDArray[Any]

MOST_VECTORS = 4
"""Maximum number of vectors in a block of centres, which keeps two multiply-add units busy."""
_ROWS = 4096
"""Number of rows in one pass over the blocks of centres."""
_LINE = 64
_FEATURES = 256
"""Number of features that are transposed together."""
LOST = 8.0
"""Distances are computed again if the squared length of the centre is more than this many times the
squared distance."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseCenters:
    """Centres packed for the sparse kernels."""

    columns: Array
    """(n_blocks, d, width) coordinates of centres, multiplied by -2."""
    starts: Array
    """(n_blocks * width,) squared lengths of centres; infinity for padding."""
    n_clusters: int


def pack_sparse(centers: Array) -> SparseCenters:
    """Pack (k, d) centres of a compute dtype."""
    vectors = MOST_VECTORS
    # Use powers of two, so that fewer kernels are compiled.
    while vectors > 1 and vectors * LANES >= 2 * len(centers):
        vectors //= 2
    return _pack(centers, vectors * LANES)


def pack_narrow(centers: Array) -> SparseCenters:
    """Pack centres for :func:`scores_sparse`."""
    return _pack(centers, LANES)


def _pack(centers: Array, width: int) -> SparseCenters:
    centers = readonly(np.ascontiguousarray(centers))
    k, d = centers.shape
    n_blocks = -(-k // width)
    # Align to cache lines, so that no vector extends into a second line.
    room = np.empty(n_blocks * d * width + _LINE // centers.itemsize, centers.dtype)
    skipped = -room.ctypes.data % _LINE // centers.itemsize
    columns = room[skipped : skipped + n_blocks * d * width].reshape(n_blocks, d, width)
    _transpose(centers, columns)
    norms = np.empty(k)
    origin = readonly(np.zeros((1, d), centers.dtype))
    panels.square_distances(centers.dtype)(centers, origin, readonly(np.zeros(k, np.int32)), norms)
    starts = np.full(n_blocks * width, np.inf, centers.dtype)
    starts[:k] = norms
    return SparseCenters(readonly(columns), readonly(starts), k)


@njit
def _transpose(centers, columns):
    """Write transposed centres times -2, in patches that fit in the cache."""
    k, d = centers.shape
    n_blocks, _, width = columns.shape
    factor = centers.dtype.type(-2)
    for b in range(n_blocks):
        for begin in range(0, d, _FEATURES):
            for first in range(0, min(width, k - b * width), LANES):
                few = min(LANES, k - b * width - first)
                for f in range(begin, min(begin + _FEATURES, d)):
                    for q in range(first, first + few):
                        columns[b, f, q] = factor * centers[b * width + q, f]
        # Scores of padding start from infinity.
        columns[b, :, max(0, k - b * width) :] = 0


def nearest_sparse(
    x: SparseBlock, packed: SparseCenters
) -> tuple[NDArray[np.int32], Array, NDArray[np.int32], Array]:
    """Return the nearest and second nearest centres of each row, with their scores.

    Results are ordered as in :func:`~largek_dask.kernels.distances.nearest_two`. Scores do not
    include the squared length of the row.
    """
    n, dtype = len(x), packed.starts.dtype
    labels, first = np.zeros(n, np.int32), np.empty(n, dtype)
    second_labels, second = np.full(n, -1, np.int32), np.full(n, np.inf, dtype)
    width = packed.columns.shape[2]
    _search(dtype, width // LANES)(
        *x.parts(dtype), packed.columns.reshape(-1), packed.starts, x.n_features, labels, first,
        second_labels, second,
    )  # fmt: skip
    return labels, first, second_labels, second


def scores_sparse(x: SparseBlock, narrow: SparseCenters, out: Array) -> None:
    """Write squared distances of all rows to all centres, bit-identical to `nearest_sparse`."""
    columns, starts = narrow.columns.reshape(-1), narrow.starts
    _scores(*x.parts(starts.dtype), columns, starts, x.n_features, out)


@njit
def _scores(data, indices, indptr, columns, starts, d, out):
    values, others = np.empty(LANES, data.dtype), np.empty(LANES, data.dtype)
    winners, runners = np.empty(LANES, np.int32), np.empty(LANES, np.int32)
    for i in range(out.shape[0]):
        norm = length(data, indptr[i], indptr[i + 1])
        for block in range(0, starts.size, LANES):
            values[:] = np.inf
            scan_sparse(
                2, data, indices, indptr[i], indptr[i + 1], columns, block * d, starts, block,
                values, winners, others, runners, 0,
            )  # fmt: skip
            for q in range(min(LANES, out.shape[1] - block)):
                out[i, block + q] = max(values[q] + norm, data.dtype.type(0))


@cache
def _search(dtype: np.dtype[Any], vectors: int) -> Any:
    width, spec = vectors * LANES, 2 * vectors + 1
    read, write = panels.real_arrays, panels.outputs

    @njit(
        (
            *read(dtype, 1), *read("i4", 1), *read("i8", 1), *read(dtype, 1, 1), types.int64,
            *[*write("i4", 1), *write(dtype, 1)] * 2,
        )
    )  # fmt: skip
    def run(data, indices, indptr, columns, starts, d, labels, first, second_labels, second):
        n = indptr.size - 1
        size = min(n, _ROWS) * LANES
        values, winners = np.empty(size, data.dtype), np.empty(size, np.int32)
        others, runners = np.empty(size, data.dtype), np.empty(size, np.int32)
        for base in range(0, n, _ROWS):
            count = min(_ROWS, n - base)
            for q in range(count * LANES):
                values[q] = others[q] = np.inf
                winners[q] = runners[q] = -1
            for block in range(0, starts.size, width):
                for i in range(count):
                    scan_sparse(
                        spec, data, indices, indptr[base + i], indptr[base + i + 1],
                        columns, block * d, starts, block,
                        values, winners, others, runners, i * LANES,
                    )  # fmt: skip
            for i in range(count):
                row, own = base + i, i * LANES
                best = own
                for q in range(own + 1, own + LANES):
                    if comes_first(values[q], winners[q], values[best], winners[best]):
                        best = q
                labels[row], first[row] = max(winners[best], 0), values[best]
                rest, at = others[best], runners[best]
                for q in range(own, own + LANES):
                    if q != best and comes_first(values[q], winners[q], rest, at):
                        rest, at = values[q], winners[q]
                second_labels[row], second[row] = at, rest

    return run


@njit
def comes_first(value, label, other, other_label):
    """Return True if a score is lower than another, or equal with a lower label."""
    if value != other:
        return value < other
    return label >= 0 and (other_label < 0 or label < other_label)


@njit
def length(data, begin, end):
    total = data.dtype.type(0)
    for i in range(begin, end):
        total += data[i] * data[i]
    return total


def center_norms(centers: Array) -> NDArray[np.float64]:
    """Return (k,) squared lengths of centres in float64, summed in feature order."""
    return readonly(squared_lengths(centers))


def squared_distances(
    x: SparseBlock, centers: Array, cache: PackedCache, labels: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Return the (n,) squared distances of rows to the centres of their labels.

    A distance is the sum of ``||c||² - sum c²`` and ``sum (x - c)²``, where both sums are over the
    stored columns of a row. Squares of c are added in column order, so a row that equals its centre
    has distance 0. If the first term loses digits because the row is near its centre, (x - c)² is
    summed over all features instead.
    """
    out, norms = np.empty(len(x)), cache.get(center_norms)
    _distances(*x.parts(centers.dtype), readonly(centers), norms, readonly(labels), out)
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
