"""Decide the labels of rows in doubt: rounded scores do not show which centre is nearest.

The scores |c|² - 2 x·c are rounded, so two scores that lie close together do not show which of two
centres is nearer. For rows in a tight group far from the origin this may hold for all centres of
the group. The rounding errors are bounded (:class:`Rounding`). Rows whose scores are too close are
in doubt: among their possible centres the one with the smallest sum (x - c)² is chosen, computed in
float64 from the given numbers. So every search labels a row by the smallest such sum (ties go to
the lowest index). The dense search notes rows in doubt (``search._note_doubts``) and decides them
immediately if they are few; otherwise :func:`~.distances.decide` does.
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
"""Number of scores that are compared with the limit together."""
_FAR = 2.0**26
"""Minimum ratio of a far row's distance from the centres to the distances between the centres: a
float64 sum (x - c)² has twice as many bits as this ratio."""
_FAR_SCORES = 2**20
"""Number of scores of far rows that are stored at a time."""
NO_LIST = readonly(np.empty(0, np.int32))


@dataclass(frozen=True, slots=True)
class Rounding:
    r"""Bounds on the errors of scores in the product form.

    With unit roundoff u of the compute dtype and γ_n = n u / (1 - n u) (Higham 2002, lemma 3.1; it
    holds for fused and separate multiply-adds in any order) a score begins with fl(|c|²) and takes
    n multiply-adds of ``x_f * -2 c_f``, one for each feature or each stored number of a sparse row.
    By Cauchy-Schwarz its error is at most γ_{n+2} (|c|² + 2 |x| |c|). Subtracting the origin from a
    row and from a centre adds one rounding each, counted as two more terms. `product` is γ_{n+6}.

    *The margin.* If another centre is not farther than the centre with the smallest score s, its
    score exceeds s by at most the errors of both scores. The lengths of the two centres are bounded
    by the longest of all centres, and by |x| and the distance D given by s: for γ below 2^-10, D²
    is at most s + |x|² + 5γ|x|², and both centres lie within |x| + 1.003 D of the origin.
    Computed |x|² have an error of γ|x|². `exact` is the relative rounding error of the float64 sums
    (x - c)² that decide rows in doubt; `absolute` covers products that underflow.
    """

    product: float
    """γ_{n+6}; infinite if there is no bound."""
    longest: float
    """Upper bound on the distance of any centre from the origin."""
    exact: float
    absolute: float
    coarse: tuple[float, float, float, float, float]
    """Numbers a, b, c, e, f of the compute dtype for two simpler bounds on every margin.

    No margin exceeds ``a + b |x|²``, nor ``c + e |x|² + f D²``, where D² is the score plus |x|².
    The first bounds the lengths of possible centres by the longest centre. The second is tighter if
    one centre is far out: it uses ``1.02 (|x| + near)`` of :func:`margin`, and
    ``2 |x| near <= |x|² + near²``.
    """

    @classmethod
    def of(cls, dtype: np.dtype[Any], n_terms: int, longest_square: float) -> Rounding:
        """Return bounds for `n_terms` multiply-adds and the given maximum squared length."""
        product, exact, absolute, factor, others = _of_terms(dtype, n_terms)
        longest = math.sqrt(longest_square) * (1 + 2.0**-20)
        first = 2 * factor * longest * longest + 2 * absolute
        (a,), (b, c, e, f) = _above(dtype, first), others
        return cls(product, longest, exact, absolute, (a, b, c, e, f))

    def as_tuple(self) -> tuple[float, float, float, float]:
        """Return the fields as arguments of compiled code."""
        return self.product, self.longest, self.exact, self.absolute


@cache
def _of_terms(
    dtype: np.dtype[Any], n_terms: int
) -> tuple[float, float, float, float, tuple[float, ...]]:
    """Return the numbers that do not depend on the centres."""
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
    """Round numbers up to values of `dtype` that are strictly larger."""
    with np.errstate(all="ignore"):
        return tuple(np.nextafter(np.array(numbers, dtype), dtype.type(np.inf)).tolist())


@njit
def margin(score, square, rounding):
    """Return the maximum excess over `score` of the score of a centre that is not farther.

    `score` is the smallest or the second smallest score of a row; `square` is an upper bound on the
    row's squared length; `rounding` is the result of ``Rounding.as_tuple``.
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
            beyond = 0  # (count: a branch would prevent vectorization)
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
    """Return the rows for which sums (x - c)² cannot distinguish centres, by their distances.

    A fit refuses such rows, but a fitted model may receive them. In one case their scores or sums
    have overflowed `dtype`; if all scores of a row have, its label is arbitrary, which shows in the
    distance to that centre. In the other case the rows are so far from all centres, compared to the
    distances between the centres, that the sums have lost the differences.
    """
    far = _FAR * reach if reach else np.inf
    # (a product of floats overflows to infinity, whereas a power raises an error)
    most = min(float(np.finfo(dtype).max) / 16, far * far)
    return np.flatnonzero(~(squares <= most))


def reach_of(centers: Array) -> float:
    """Return the largest distance of a centre from the first centre."""
    others, exponent = _scaled(centers)
    apart = row_squares(others, others[0])
    return float(np.ldexp(np.sqrt(apart.max()), exponent))


def nearest_of_far(x: Array, centers: Array) -> NDArray[np.int32]:
    """Return labels of (m, d) rows at any distance.

    Float64 sums (x - c)² are computed from numbers divided by a power of two. If these sums cannot
    distinguish centres, products c (c - 2 x) about the first centre are used.
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
    """Return (m, k) sums (x - c)²."""
    scores = np.empty((len(rows), len(others)))
    for row, out in zip(rows, scores, strict=True):
        out[:] = row_squares(others, row)
    return scores


def _products(x: Array, centers: Array, exponent: int) -> NDArray[np.float64]:
    """Return (m, k) sums (x - c)² - x² about the first centre, divided by a power of two per row.

    The centres are the given numbers times ``2^exponent``.
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
    """Divide by the least power of two above all numbers; return the quotients and the exponent."""
    exponent = int(np.frexp(float(np.abs(x).max(initial=0)))[1])
    return readonly(np.ldexp(x.astype(np.float64), -exponent)), exponent
