"""Decide the labels of rows whose rounded scores do not determine the nearest centre.

The scores |c|² - 2 x·c are rounded, so two close scores do not show which of two centres is nearer.
For rows in a tight group far from the origin, this may be true for all centres of the group.
:class:`Rounding` bounds the rounding errors. A row is *in doubt* if its scores are too close to
determine the nearest centre. Such a row is assigned to the centre with the smallest sum (x - c)²,
computed in float64 from the given numbers.

So every search labels a row by the smallest sum (x - c)², and ties go to the lowest index. The
dense search records rows in doubt (``search._note_doubts``) and decides small numbers of rows
immediately; otherwise :func:`~.distances.decide` decides them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.emit import square_distance
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.jit import njit

Array = NDArray[Any]

_SMALL = 2.0**-10
_BLOCK = 32
"""Number of scores that are compared with a limit at a time."""
_FAR = 2.0**26
"""A row is far if its distance from the centres exceeds the distances between centres by this
factor; float64 sums (x - c)² then cannot distinguish the centres."""
_FAR_SCORES = 2**20
"""Maximum number of scores of far rows that are stored at a time."""
NO_LIST = readonly(np.empty(0, np.int32))


@dataclass(frozen=True, slots=True)
class Rounding:
    r"""Upper bounds on the rounding errors of product-form scores.

    Let u be the unit roundoff of the compute dtype and γ_n = n u / (1 - n u) (Higham 2002, lemma
    3.1, for fused or separate multiply-adds in any order). A score begins with fl(|c|²) and takes n
    multiply-adds of ``x_f * -2 c_f``, one for each feature or for each stored number of a sparse
    row. By Cauchy-Schwarz the error is at most γ_{n+2} (|c|² + 2 |x| |c|). Subtracting the origin
    from a row and from a centre adds one rounding each, counted as two more terms. `product` is
    γ_{n+6}.

    *Margin.* If another centre is no farther than the centre with the smallest score s, its score
    exceeds s by at most the errors of both scores. The lengths of the two centres are bounded by
    the longest of all centres, and by |x| and the distance D given by s: for γ below 2^-10, D² is
    at most s + |x|² + 5γ|x|², and both centres are within |x| + 1.003 D of the origin. Computed
    values of |x|² have an error of γ|x|².

    `exact` is the relative rounding error of the float64 sums (x - c)² that decide rows in doubt;
    `absolute` covers products that underflow.
    """

    product: float
    """Relative error bound γ_{n+6} of scores; infinite if there is no bound."""
    longest: float
    """Upper bound on the distance of every centre from the origin."""
    exact: float
    absolute: float
    coarse: tuple[float, float, float, float, float]
    """Coefficients a, b, c, e and f of two simpler upper bounds on every margin, ``a + b |x|²`` and
    ``c + e |x|² + f D²``, where D² is the score plus |x|². The first bound uses the length of the
    longest centre. The second bound is tighter if one centre is far from the others; it follows
    from ``1.02 (|x| + near)`` in :func:`margin` and ``2 |x| near <= |x|² + near²``."""

    @classmethod
    def of(cls, dtype: np.dtype[Any], n_terms: int, longest_square: float) -> Rounding:
        """Return bounds for `n_terms` multiply-adds and the largest squared length of a centre."""
        product, exact, absolute, factor, others = _of_terms(dtype, n_terms)
        longest = math.sqrt(longest_square) * (1 + 2.0**-20)
        first = 2 * factor * longest * longest + 2 * absolute
        (a,), (b, c, e, f) = _above(dtype, first), others
        return cls(product, longest, exact, absolute, (a, b, c, e, f))

    def as_tuple(self) -> tuple[float, float, float, float]:
        """Return the fields that compiled code needs."""
        return self.product, self.longest, self.exact, self.absolute


@cache
def _of_terms(
    dtype: np.dtype[Any], n_terms: int
) -> tuple[float, float, float, float, tuple[float, ...]]:
    """Return the parts of :class:`Rounding` that do not depend on the centres."""
    kind = np.finfo(dtype)
    share = (n_terms + 6) * float(kind.eps) / 2
    product = share / (1 - share) if share < 0.5 else np.inf
    exact = (n_terms + 8) * 2.0**-50
    absolute = (n_terms + 8) * 8 * float(kind.smallest_subnormal)
    twice = 2.04 * product * (1 + 4 * product)
    factor = twice + 2.04 * exact
    near = product < _SMALL
    others = _above(
        dtype,
        factor,
        2 * absolute if near else np.inf,
        5.2 * twice + 8.4 * exact if near else np.inf,
        3.2 * twice + 2.2 * exact if near else np.inf,
    )
    return product, exact, absolute, factor, others


def _above(dtype: np.dtype[Any], *numbers: float) -> tuple[float, ...]:
    """Round numbers up to strictly larger values of type ``dtype``."""
    with np.errstate(all="ignore"):
        return tuple(np.nextafter(np.array(numbers, dtype), dtype.type(np.inf)).tolist())


@njit
def margin(score, square, rounding):
    """Return how much the score of a centre may exceed ``score`` if the centre is no farther.

    `score` is the smallest or second smallest score of a row, `square` is an upper bound on the
    row's squared length, and `rounding` is the result of ``Rounding.as_tuple``.
    """
    product, longest, exact, absolute = rounding
    length, reach = np.sqrt(square), longest
    if product < _SMALL:
        near = np.sqrt(max(score + square, 0.0) + 16.0 * product * square)
        reach = min(longest, 1.02 * (length + near))
    widest = reach * (reach + 2.0 * length)
    both = length + reach
    return 2.02 * (1.0 + 4.0 * product) * product * widest + exact * both * both + absolute


@njit(internal=True, refcounts=False)
def choose(rows, at, centers, d, scores, scores_at, limit, lists, begin, end):
    """Find the nearest and second nearest of given centres by float64 sums (x - c)².

    Parameters
    ----------
    rows, at, centers, d : real (…,), int, real (…,), int
        The row is ``rows[at : at + d]``, and `centers` is flat; neither is shifted or rounded.
    scores, scores_at, limit : real (…,), int, real
        Scores of all centres, from index `scores_at` on; centres with scores above the limit are
        skipped. There are no scores if `scores_at` is negative.
    lists, begin, end : int32 (…,), int, int
        The centres are ``lists[begin : end]``, ascending; or ``begin .. end`` if `lists` is empty.

    Returns
    -------
    label, square, second_label, second_square
        Ties go to the lowest index; -1 and infinity if there is none.
    """
    label, second_label = np.int64(-1), np.int64(-1)
    square, second_square = np.inf, np.inf
    for block in range(begin, end, _BLOCK):
        stop = min(block + _BLOCK, end)
        if scores_at >= 0:
            beyond = 0  # Counting avoids a branch, so the loop is vectorized.
            for p in range(block, stop):
                beyond += scores[scores_at + p] > limit
            if beyond == stop - block:
                continue
        for p in range(block, stop):
            if scores_at >= 0 and scores[scores_at + p] > limit:
                continue
            c = np.int64(lists[p]) if lists.size > 0 else np.int64(p)
            distance = square_distance(rows, at, centers, c * d, d)
            if label < 0 or distance < square:
                second_label, second_square = label, square
                label, square = c, distance
            elif second_label < 0 or distance < second_square:
                second_label, second_square = c, distance
    return label, square, second_label, second_square


@njit
def choose_rows(x, centers, scores, limits, labels, squares, second_labels, second_squares):
    """Run :func:`choose` for (m, d) rows with their (m, k) scores and (m,) limits."""
    m, d = x.shape
    rows, flat = x.reshape(m * d), centers.reshape(centers.size)
    k, table = scores.shape[1], scores.reshape(scores.size)
    for i in range(m):
        found = choose(rows, i * d, flat, d, table, i * k, limits[i], NO_LIST, 0, k)
        labels[i], squares[i], second_labels[i], second_squares[i] = found


def too_far(
    squares: NDArray[np.float64], dtype: np.dtype[Any], reach: float = np.inf
) -> NDArray[np.intp]:
    """Return the rows that are too far from the centres for sums (x - c)² to distinguish them.

    A fit rejects such rows, but a fitted model may receive them. Either their scores or sums
    overflow `dtype`, or the distances to the centres are so much larger than the distances between
    centres that rounding hides the differences.
    """
    far = _FAR * reach if reach else np.inf
    # A product of floats overflows to infinity, whereas a power raises an error.
    most = min(float(np.finfo(dtype).max) / 16, far * far)
    return np.flatnonzero(~(squares <= most))


def reach_of(centers: Array) -> float:
    """Return the largest distance of a centre from the first centre."""
    others, exponent = _scaled(centers)
    apart = row_squares(others, others[0])
    return float(np.ldexp(np.sqrt(apart.max()), exponent))


def nearest_of_far(x: Array, centers: Array) -> NDArray[np.int32]:
    """Return the labels of (m, d) rows, which may be extremely far from the centres.

    Rows and centres are scaled by a power of two, and float64 sums (x - c)² are compared. If these
    sums cannot distinguish the centres, products c (c - 2 x) relative to the first centre are
    compared.
    """
    labels, reach = np.empty(len(x), np.int32), reach_of(centers)
    step = max(1, _FAR_SCORES // max(len(centers), x.shape[1]))
    for begin in range(0, len(x), step):
        block = x[begin : begin + step]
        (rows, exponent), (others, own) = _scaled(block), _scaled(centers)
        others_there = readonly(np.ldexp(others, own - exponent))
        apart = np.ldexp(np.abs(rows - others_there[0]).max(axis=1), exponent)
        far = (apart > _FAR * reach) & (reach > 0)
        found = labels[begin : begin + step]
        found[~far] = _sums(readonly(rows[~far]), others_there).argmin(axis=1)
        found[far] = _products(block[far], others, own).argmin(axis=1)
    return labels


def _sums(rows: Array, others: Array) -> NDArray[np.float64]:
    """Return (m, k) squared distances as sums of (x - c)²."""
    scores = np.empty((len(rows), len(others)))
    for row, out in zip(rows, scores, strict=True):
        out[:] = row_squares(others, row)
    return scores


def _products(x: Array, centers: Array, exponent: int) -> NDArray[np.float64]:
    """Return (m, k) values of (x - c)² - x², relative to the first centre and scaled.

    The true centres are ``centers * 2^exponent``.
    """
    x, others = x.astype(np.float64), centers - centers[0]
    powers = np.frexp(np.abs(x).max(axis=1))[1][:, None]
    rows = np.ldexp(x, -powers) - np.ldexp(centers[0], exponent - powers)
    scores = np.zeros((len(x), len(others)))
    for f, column in enumerate(others.T):
        scores += column * (np.ldexp(column, exponent - powers) - 2 * rows[:, f, None])
    return scores


def distances_of_far(x: Array, centers: Array) -> NDArray[np.float64]:
    """Return (m, k) distances of rows to all centres, infinite if float64 overflows."""
    (rows, exponent), (others, own) = _scaled(x), _scaled(centers)
    most = max(exponent, own)
    rows, others = np.ldexp(rows, exponent - most), np.ldexp(others, own - most)
    with np.errstate(over="ignore"):
        return np.ldexp(np.sqrt(_sums(readonly(rows), readonly(others))), most)


def _scaled(x: Array) -> tuple[NDArray[np.float64], int]:
    """Return numbers scaled by a power of two to less than 1, and the exponent of the scale."""
    exponent = int(np.frexp(float(np.abs(x).max(initial=0)))[1])
    return readonly(np.ldexp(x.astype(np.float64), -exponent)), exponent
