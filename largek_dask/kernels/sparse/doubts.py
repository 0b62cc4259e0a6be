"""Decide sparse rows in doubt (as :mod:`~largek_dask.kernels.dense.doubts` does for dense rows).

A score of a sparse row has one term per stored number, and its rounding error depends on the number
of terms. Sums (x - c)² cover all features, including zeros, since their terms may cancel. This is
slow for short rows: a text that shares no word with most centres is about equally near to all of
them. So float64 scores of the stored numbers decide first; the sums are computed only where these
scores are too close as well.
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
"""Gap of two float64 scores, per term and (|x| + |c|)², above which no sums are needed. Relative to
this, errors of scores are at most 2^-52, errors of sums (x - c)² 2^-50; two of each may add up."""
_LEAST = 2.0**-1070
"""Addition to the gap for products that underflow."""
_SHARP = 2.0**-24
"""Maximum relative error of a distance; otherwise the distance is computed again by a sum."""


def nearest_two_sparse(
    x: SparseBlock, centers: Array, cache: PackedCache, two: bool
) -> tuple[NDArray[np.int32], Array, NDArray[np.int32], Array]:
    """Return the two nearest centres of every row; the second is exact only with `two`."""
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
    """Replace squared distances that have lost digits in the product form by sums (x - c)².

    `out` (n, k) holds squared distances by the product form. Where they are not replaced, their
    error is at most eight times the error of their terms.
    """
    lengths = readonly(np.sqrt(cache.get(center_norms)))
    _mend(*x.parts(centers.dtype), readonly(centers), lengths, out)


@njit
def _decide(
    data, indices, indptr, centers, columns, norms, two, roundoff, least, longest, labels, first,
    second_labels, second,
):  # fmt: skip
    """Turn scores into distances; label rows in doubt by the nearest of their possible centres."""
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
    """Compute the float64 scores of a row and all centres; return its squared length."""
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
    """Return the positions of the two lowest scores (-1 if not finite), and the third score."""
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
