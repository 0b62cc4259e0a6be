"""Decide which centre is nearest to a sparse row if rounding leaves the answer in doubt.

Ties up to rounding errors are common: a text that shares no word with most centres is about equally
near to all of them. Sums of (x - c)² over all features would be slow, so float64 scores of the
stored numbers are compared first. The sums are computed only for centres whose float64 scores are
too close as well. For dense rows, see :mod:`~largek_dask.kernels.dense.doubts`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import SparseBlock, readonly
from largek_dask.kernels.dense.doubts import NO_LIST, choose, margin
from largek_dask.kernels.emit import square_distance
from largek_dask.kernels.jit import njit
from largek_dask.kernels.packed_cache import PackedCache
from largek_dask.kernels.sparse.search import center_norms, length, nearest_sparse, pack_sparse

Array = NDArray[Any]

_OFF = 2.0**-48
"""Gap between two float64 scores above which their order is certain, per term and (|x| + |c|)². On
the same scale, errors are at most 2^-52 for scores and 2^-50 for sums of (x - c)², and two errors
of each kind may add up."""
_LEAST = 2.0**-1070
"""Extra gap between scores for products that underflow."""
_SHARP = 2.0**-24
"""Maximum relative error of distances from scores. Less precise distances are computed again."""


def nearest_two_sparse(
    x: SparseBlock, centers: Array, cache: PackedCache, two: bool
) -> tuple[NDArray[np.int32], Array, NDArray[np.int32], Array]:
    """Return the two nearest centres of each row. The second is exact only if `two` is True."""
    packed = cache.get(pack_sparse)
    found = nearest_sparse(x, packed)
    dtype = centers.dtype
    kind, norms = np.finfo(dtype), cache.get(center_norms)
    longest = float(np.sqrt(norms.max())) * (1 + 2.0**-20)
    _decide(
        *x.parts(dtype), readonly(centers), packed.columns, norms, two, float(kind.eps) / 2,
        float(kind.smallest_subnormal), longest, *found,
    )  # fmt: skip
    return found


def mend_scores(x: SparseBlock, centers: Array, cache: PackedCache, out: Array) -> None:
    """Replace imprecise squared distances from the product form by sums of (x - c)².

    `out` (n, k) contains squared distances and is updated in place. The error of a distance that is
    not replaced is at most eight times the error of its terms.
    """
    lengths = readonly(np.sqrt(cache.get(center_norms)))
    _mend(*x.parts(centers.dtype), readonly(centers), lengths, out)


@njit
def _decide(
    data, indices, indptr, centers, columns, norms, two, roundoff, least, longest, labels, first,
    second_labels, second,
):  # fmt: skip
    """Convert scores to distances, and find the exact nearest centres of rows in doubt."""
    k, d = centers.shape
    flat, row = centers.reshape(centers.size), np.zeros(d, data.dtype)
    scores = np.empty(columns.shape[0] * columns.shape[2])
    zero = data.dtype.type(0)
    for i in range(labels.size):
        begin, end = indptr[i], indptr[i + 1]
        n_terms, square = end - begin, length(data, begin, end)
        best, following = np.float64(first[i]), np.float64(second[i])
        first[i] = max(first[i] + square, zero)
        second[i] = max(second[i] + square, zero)
        share = (n_terms + 6) * roundoff
        product = share / (1 - share) if share < 0.5 else np.inf
        rounding = product, longest, (d + 8) * 2.0**-50, (n_terms + 8) * 8 * least
        if following > best + margin(best, np.float64(square), rounding):
            continue
        whole = _scores(data, indices, begin, end, columns, norms, scores)
        label, other, third = _lowest(scores, k)
        if label >= 0 and other >= 0:
            apart = scores[label] + whole, scores[other] + whole
            off = (d + n_terms + 8) * (_OFF * (np.sqrt(whole) + longest) ** 2 + _LEAST)
            is_clear = scores[label] + off < scores[other] and (
                not two or scores[other] + off < third
            )
            if is_clear and apart[0] * _SHARP > off:
                labels[i], second_labels[i] = label, other
                first[i], second[i] = apart
                continue
            limit = scores[other] + off
        else:
            limit = np.inf
        for p in range(begin, end):
            row[indices[p]] = data[p]
        found = choose(row, 0, flat, d, scores, 0, limit, NO_LIST, 0, k)
        labels[i], first[i], second_labels[i], second[i] = found
        for p in range(begin, end):
            row[indices[p]] = zero


@njit
def _scores(data, indices, begin, end, columns, norms, scores):
    """Compute float64 scores of a row and all centres, and return the squared length of the row."""
    n_blocks, _, width = columns.shape
    square = 0.0
    for p in range(begin, end):
        square += np.float64(data[p]) * np.float64(data[p])
    scores[: norms.size] = norms
    scores[norms.size :] = np.inf
    for b in range(n_blocks):
        block = scores[b * width : (b + 1) * width]
        for p in range(begin, end):
            value, column = np.float64(data[p]), columns[b, indices[p]]
            for q in range(width):
                block[q] += value * np.float64(column[q])
    return square


@njit
def _lowest(scores, k):
    """Return the indices of the two lowest scores (-1 if not finite) and the third lowest score."""
    label, other, third = np.int64(-1), np.int64(-1), np.inf
    lowest, following = np.inf, np.inf
    for j in range(k):
        score = scores[j]
        if not score < np.inf:
            if score != np.inf:
                return np.int64(-1), np.int64(-1), np.inf
        elif score < lowest:
            other, third, label = label, following, np.int64(j)
            lowest, following = score, lowest
        elif score < following:
            other, third, following = np.int64(j), following, score
        elif score < third:
            third = score
    return label, other, third


@njit
def _mend(data, indices, indptr, centers, lengths, out):
    k, d = centers.shape
    flat = centers.reshape(centers.size)
    row, zero = np.zeros(d, data.dtype), data.dtype.type(0)
    for i in range(out.shape[0]):
        square = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            row[indices[p]] = data[p]
            square += np.float64(data[p]) * np.float64(data[p])
        length = np.sqrt(square)
        for j in range(k):
            if not 8.0 * out[i, j] > lengths[j] * (lengths[j] + 2.0 * length):
                out[i, j] = square_distance(row, 0, flat, j * d, d)
        for p in range(indptr[i], indptr[i + 1]):
            row[indices[p]] = zero
