"""Log-likelihoods, most probable components and posteriors of rows under a mixture.

The register tile computes rounded scores of all rows and components. A bound on the difference
between a score and the exact log joint (:class:`_ScoreBounds`) determines which components may be
within `NEAR` nats of the best component. The log joints of these components are computed again in
float64, in the direct form, and the best component is chosen among them. Components up to `FAR`
nats away contribute by their scores. All other components are ignored, as they would add less than
k e^-45 of a row's likelihood. The result does not depend on the tile.

If there are many components, only a few are near a given row, and rows of the same panel are near
different components. A bit mask therefore selects the rows that are near a component, and
exponentials are computed in batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from largek_dask.kernels.arguments import check_rows, converted
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.dense import panels
from largek_dask.kernels.emit import (
    lanes_within,
    lowest_bit,
    scan,
    square_distance,
    square_lengths,
    weighted_square_distance,
)
from largek_dask.kernels.exact.transcendental import exp_of, log, log_of
from largek_dask.kernels.jit import njit
from largek_dask.kernels.mixtures import PackedMixture, log_joint
from largek_dask.kernels.tile import SCORES, Micro, Tile, select_tile

NEAR = 14.0
"""Log joints within this distance of the best, in nats, are computed in float64. All other
densities are below e^-14 (2^-20) of the best density, so relative errors of 2^-20 do not matter."""
FAR = 45.0
"""Components whose log joint is certainly lower than the best by more than this, in nats, are
ignored: e^-45 is about 2^-65."""
UNSURE = 2.0**-5
"""Log joints are computed in float64 if their bounds differ by at least this much."""
_TOGETHER = 128
"""Number of components in a batch of scores, which fits in the first-level cache."""
_TERMS = 256
"""Number of components in a batch of exponentials, which takes 96 KB for a panel of rows."""
_KEPT = 8
"""Expected number of posteriors per row."""
_LARGEST = 1.7976931348623157e308

Array = NDArray[Any]
Floats = NDArray[np.float64]
Labels = NDArray[np.int32]


def log_likelihoods(x: Array, packed: PackedMixture) -> tuple[Labels, Floats]:
    """Return the most probable components (n,) and the log-likelihoods (n,) of dense rows.

    The most probable component has the largest log joint in float64; ties go to the lowest index.
    If all squares of a row overflow, its log-likelihood is the lowest finite float64.
    """
    n = check_rows(x, packed.n_features)
    labels, found = np.empty(n, np.int32), np.empty(n)
    none = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0)
    for rows, block in converted(x, packed.dtype, packed.means.size):
        _search_of(packed)(block, 0, NEAR, 1.0, labels[rows], found[rows], *none)
    return labels, found


def posteriors(
    x: Array, packed: PackedMixture, least: float = 2.0**-20
) -> tuple[NDArray[np.int64], Labels, Floats]:
    """Return the posterior probabilities of components for dense rows, as a CSR matrix.

    ``indices[indptr[i] : indptr[i + 1]]`` are the components of row i in ascending order, and the
    same slice of `probabilities` adds up to 1. Components with a probability of at most `least`, or
    below 2^-64, are omitted, except for the most probable component.
    """
    n = check_rows(x, packed.n_features)
    least = min(max(least, 2.0**-64), 1.0)
    near = min(FAR, max(NEAR, 1.0 - float(log(np.array([least]))[0])))
    counts = np.zeros(n, np.int64)
    parts: list[tuple[Labels, Floats]] = [(np.empty(0, np.int32), np.empty(0))]
    for rows, block in converted(x, packed.dtype, packed.means.size):
        search, begin, size = _search_of(packed), 0, len(block)
        labels, found = np.empty(size, np.int32), np.empty(size)
        room = max(packed.n_components, _KEPT * size)
        indices, shares = np.empty(room, np.int32), np.empty(room)
        while begin < size:
            out = counts[rows], indices, shares
            begin, written = search(block, begin, near, least, labels, found, *out)
            parts.append((indices[:written].copy(), shares[:written].copy()))
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    indices, shares = (np.concatenate(part) for part in zip(*parts, strict=True))
    return indptr, indices, shares


@dataclass(frozen=True, slots=True, eq=False)
class _ScoreBounds:
    r"""Packed components for the register tile, and bounds on log joints in terms of scores.

    Let w be the weights (half the precision of each feature). Let v be a mean and x a row, both
    relative to the shift. The tile computes S = Σ w (x - v)² as Σ w v² - Σ 2 w v x + Σ w x². A sum
    of n products of numbers that have been rounded a few times has an error of at most γ_n Σ w (|x|
    + |v|)² (:class:`~.dense.doubts.Rounding`), and (|x| + |v|)² ≤ 2 (x - v)² + 8 v². So |computed -
    S| ≤ e with e = γ (2 S + 8 V), where V = Σ w v². Since S ≤ computed + e, the bound in terms of
    the computed S is e ≤ γ / (1 - 2γ) (2 computed + 8 V). The log joint, constant - S, is between
    ``lower - lower_share * computed`` and ``upper - upper_share * computed``, where the shares
    include the factor 1 ± 2γ, and ``lower`` and ``upper`` include ∓8γV. In the direct form, which
    sums (x - v)² for few features, there is no V.
    """

    factors: Array
    """(k padded, d) factors of features, or (k padded, 2 d) factors of features and their
    squares."""
    starts: Array
    """(k padded,) initial values of scores."""
    offsets: Array
    """(d padded,) origin that is subtracted when rows are packed."""
    lower: Array
    lower_share: Array
    upper: Array
    upper_share: Array
    shares: Floats
    """(k,) factors of the computed sums of squares: half the precision, or 1 for ``"diag"``."""
    largest: float
    """A row cannot overflow on the tile if its squared length times ``largest`` is below
    :func:`_safe`. The value is infinity if any row may overflow."""


def _bounds(centers: Array, packed: PackedMixture, dense: panels.DenseForm) -> _ScoreBounds:
    k, d = packed.means.shape
    dtype = packed.dtype
    kind = np.finfo(dtype)
    diagonal = packed.covariance == "diag"
    direct = packed.centers.direct and not diagonal
    weights = packed.precisions / 2 if diagonal else packed.halves[:, None]
    lengths = np.empty(k)
    with np.errstate(all="ignore"):
        _lengths(readonly(packed.centers.values), readonly(weights), lengths)
        n_terms = 2 * d + 20
        gamma = n_terms * float(kind.eps) / 2
        gamma = 1.02 * gamma / (1 - 4 * gamma) if gamma < 0.125 else np.inf
        off = np.zeros(k) if direct else 8 * lengths
        underflow = n_terms * 16 * float(kind.smallest_subnormal)
        off = gamma * (off + np.abs(packed.constants)) + underflow * np.maximum(packed.halves, 1)
        off[~packed.alive] = 0.0
        shares = np.ones(k) if diagonal else packed.halves.copy()
        factors, starts, offsets = dense.factors, dense.starts, dense.offsets
        largest = 1.0
        if diagonal:
            factors, offsets = packed.form.factors, packed.form.offsets
            starts = np.zeros(len(factors), dtype)
            starts[:k] = lengths
            largest = max(1.0, float(weights.max()))
        widest = max(float(lengths.max()), float(np.abs(factors).max()), float(starts[:k].max()))
        return _ScoreBounds(
            factors,
            readonly(starts),
            offsets,
            _rounded(packed.constants - off, dtype, -np.inf),
            _rounded(shares * (1 + 2 * gamma), dtype, np.inf),
            _rounded(packed.constants + off, dtype, np.inf),
            _rounded(shares * (1 - 2 * gamma), dtype, 0.0),
            readonly(shares),
            largest if widest < _safe(dtype) else np.inf,
        )


def _rounded(values: Floats, dtype: np.dtype[Any], towards: float) -> Array:
    """Convert to another type, rounding towards a given number. Infinity is preserved."""
    narrow = values.astype(dtype)
    moved = np.nextafter(narrow, dtype.type(towards))
    return readonly(np.where(np.isfinite(narrow), moved, narrow).astype(dtype))


def _safe(dtype: np.dtype[Any]) -> float:
    """Return the largest square for which no computation on the tile can overflow."""
    limit: float = float(np.finfo(dtype).max) ** 0.75
    return limit


@njit
def _lengths(values, weights, out):
    k, d = values.shape
    last = weights.shape[1] - 1
    for c in range(k):
        total = 0.0
        for f in range(d):
            value = np.float64(values[c, f])
            total += weights[c, min(f, last)] * value * value
        out[c] = total


def _search_of(packed: PackedMixture) -> Callable[..., Any]:
    """Return the search function of a mixture, with scratch memory for one thread.

    ``search(block, begin, near, least, labels, found, kept, indices, probabilities)`` starts at row
    `begin` and stops when the space for posteriors is used up. It returns the next row and the
    number of posteriors.
    """
    diagonal, dtype = packed.covariance == "diag", packed.dtype
    direct = 0 if diagonal else packed.centers.direct
    tile = select_tile().for_form(direct)
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    k, d = packed.means.shape
    bounds = packed.centers.cache.get(_bounds, packed, packed.centers.dense)
    blocks = panels.Blocking(panels=1, tiles=-(-k // tile.centres), features=0)
    space = panels.workspace(tile, dtype, False, 2 * d if diagonal else d, blocks, (0, 0))
    lists = np.empty(width * k, np.int32), np.empty(width, np.int64)
    limits = [np.empty(width, dtype) for _ in range(5)]
    far = np.empty(width), np.empty(width * _TERMS), np.empty(width, np.int64)
    return partial(
        _weigh(tile, dtype, direct, diagonal),
        packed.means, packed.precisions, packed.constants, packed.halves, bounds.shares,
        bounds.factors, bounds.starts, bounds.offsets, bounds.lower, bounds.lower_share,
        bounds.upper, bounds.upper_share, bounds.largest, _safe(dtype),
        space, *lists, *limits, *far, np.empty(k), np.empty(k),
    )  # fmt: skip


@cache
def _weigh(tile: Tile, dtype: panels.Dtype, direct: int, diagonal: bool) -> panels.Kernel:
    """Compile a kernel that searches all components for one panel of rows at a time."""
    meet = _meet(tile, dtype, direct, diagonal)
    collect, settle = _collect(tile, dtype), _settle(dtype, diagonal)
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    pack = panels.pack_rows(dtype, width)

    read, write, real = panels.real_arrays, panels.outputs, types.float64

    @njit(
        (
            *read(dtype, 2), *read("f8", 2, 1, 1, 1), *read(dtype, 2, 1, 1, 1, 1, 1, 1), real, real,
            panels.workspace_type(dtype), *write("i4", 1), *write("i8", 1),
            *write(dtype, 1, 1, 1, 1, 1), *write("f8", 1, 1), *write("i8", 1), *write("f8", 1, 1),
            *read(dtype, 2), types.int64, real, real, *write("i4", 1), *write("f8", 1),
            *write("i8", 1), *write("i4", 1), *write("f8", 1),
        ),
        refcounts=False,
    )  # fmt: skip
    def run(
        means, precisions, constants, halves, shares, factors, starts, offsets, lower, lower_share,
        upper, upper_share, largest, safe, space, lists, counts, best, limits, nears, loose, edges,
        totals, far, filled, joints, terms, x, first, near, least, labels, found, kept, indices,
        probabilities,
    ):  # fmt: skip
        n, d = x.shape
        rows = x.reshape(n * d)
        panel, spare = space[0], space[1]
        written = 0
        for begin in range(first, n, width):
            m = min(width, n - begin)
            pack(rows, begin, m, d, offsets, panel, 0, spare)
            meet(d, factors, starts, lower, lower_share, space, best)
            collect(
                m, constants, shares, lower, lower_share, upper, upper_share, space, largest, safe,
                near, best, limits, nears, loose, edges, totals, far, filled, lists, counts,
            )  # fmt: skip
            for q in range(m):
                if indices.size > 0 and written + counts[q] > indices.size:
                    return begin + q, written
                written = settle(
                    rows, begin + q, d, means, precisions, constants, halves, best[q], totals[q],
                    lists[q * constants.size :], counts[q], joints, terms, least, labels, found,
                    kept, indices, probabilities, written,
                )  # fmt: skip
        return n, written

    return run


@cache
def _meet(tile: Tile, dtype: panels.Dtype, direct: int, diagonal: bool) -> panels.Kernel:
    """Compile a kernel for scores of all components, and lower bounds of the best log joints."""
    lanes, centres, real = tile.lanes_of(dtype.itemsize), tile.centres, dtype.type
    width = tile.vectors * lanes
    spec = Micro(centres, tile.vectors, lanes, SCORES, direct).code
    together = max(1, _TOGETHER // centres)

    @panels.inner
    def meet(d, factors, starts, lower, lower_share, space, best):
        panel, _, norms, values, labels, sums, _, _, _ = space
        k, wide = lower.size, factors.shape[1]
        flat = factors.reshape(factors.size)
        square_lengths(width, 1, panel, 0, width, d, norms)
        if diagonal:
            for f in range(d):
                own = panel[f * width : (f + 1) * width]
                square = panel[(d + f) * width : (d + f + 1) * width]
                for q in range(width):
                    square[q] = own[q] * own[q]
        for q in range(width):
            best[q] = -np.inf
        n_tiles = (k + centres - 1) // centres
        for t in range(0, n_tiles, together):
            count = min(together, n_tiles - t)
            scan(
                spec, panel, 0, flat, wide, 0, wide, starts, t * centres, count,
                values, labels, 0, sums, t * centres * width, sums, -1,
            )  # fmt: skip
            for c in range(t * centres, min(k, (t + count) * centres)):
                level, share = lower[c], lower_share[c]
                own = sums[c * width : (c + 1) * width]
                for q in range(width):
                    square = own[q] if direct or diagonal else own[q] + norms[q]
                    square = max(square, real(0))
                    own[q] = square
                    value = level - share * square
                    best[q] = value if value > best[q] else best[q]

    return meet


@cache
def _collect(tile: Tile, dtype: panels.Dtype) -> panels.Kernel:
    """Compile a kernel that lists components to recompute, and adds up all other densities."""
    width, real = tile.vectors * tile.lanes_of(dtype.itemsize), dtype.type
    slack = 4 * float(np.finfo(dtype).eps)
    more, unsure = real(slack), real(UNSURE)
    every, one = np.uint64((1 << width) - 1), np.uint64(1)

    @panels.inner
    def collect(
        m, constants, shares, lower, lower_share, upper, upper_share, space, largest, safe, near,
        best, limits, nears, loose, edges, totals, far, filled, lists, counts,
    ):  # fmt: skip
        _, _, norms, _, _, sums, _, _, _ = space
        k = constants.size
        for q in range(width):
            counts[q], totals[q] = 0, 0.0
            # Allow for rounding errors of the limits.
            level = np.float64(best[q])
            level -= slack * abs(level)
            limits[q], nears[q] = real(level - FAR), real(level - near)
            if not np.float64(norms[q]) * largest < safe:
                # Scores may have overflowed, so no component can be excluded.
                limits[q] = nears[q] = -np.inf
            loose[q] = limits[q] - more * abs(limits[q])
        for begin in range(0, k, _TERMS):
            filled[:] = 0
            for c in range(begin, min(k, begin + _TERMS)):
                constant = constants[c]
                if constant == -np.inf:
                    continue
                level, share, low, low_share, half = (
                    upper[c], upper_share[c], lower[c], lower_share[c], shares[c]
                )  # fmt: skip
                mask: Any = every
                if share > 0:
                    # Select slightly too many scores; the exact test follows below.
                    above, times = level + more * abs(level), (real(1) + more) / share
                    for q in range(width):
                        edges[q] = (above - loose[q]) * times
                    mask = lanes_within(width, sums, c * width, edges)
                while mask != 0:
                    q = lowest_bit(mask)
                    mask &= mask - one
                    if q >= m:
                        break
                    square = sums[c * width + q]
                    high = level - share * square
                    if not high < nears[q] or not high - (low - low_share * square) < unsure:
                        lists[q * k + counts[q]] = c
                        counts[q] += not high < limits[q]
                    else:
                        term = constant - half * np.float64(square) - np.float64(best[q])
                        far[q * _TERMS + filled[q]] = term
                        filled[q] += not high < limits[q]
            add(m, far, filled, totals)

    @panels.inner
    def add(m, far, filled, totals):
        for q in range(m):
            own, n, total = far[q * _TERMS :], filled[q], totals[q]
            for p in range(n):
                own[p] = exp_of(min(own[p], 0.0))
            for p in range(n):
                total += own[p]
            totals[q] = total

    return collect


@cache
def _settle(dtype: panels.Dtype, diagonal: bool) -> panels.Kernel:
    """Compile a kernel for the log joints, likelihood and posteriors of a row in float64."""

    @panels.inner
    def settle(
        rows, i, d, means, precisions, constants, halves, level, others, members, n, joints, terms,
        least, labels, found, kept, indices, probabilities, written,
    ):  # fmt: skip
        flat, weights = means.reshape(means.size), precisions.reshape(precisions.size)
        best, label = -np.inf, np.int32(members[0] if n > 0 else 0)
        for p in range(n):
            c = np.int64(members[p])
            if diagonal:
                exact = weighted_square_distance(rows, i * d, flat, c * d, weights, c * d, d)
            else:
                exact = square_distance(rows, i * d, flat, c * d, d)
            joints[p] = log_joint(constants[c], halves[c], exact)
            if joints[p] > best:
                best, label = joints[p], np.int32(c)
        labels[i], found[i] = label, -_LARGEST
        if best == -np.inf:
            # All squares overflow.
            if indices.size > 0:
                kept[i], indices[written], probabilities[written] = 1, label, 1.0
                written += 1
            return written
        for p in range(n):
            terms[p] = exp_of(min(joints[p] - best, 0.0))
        # The level may be infinite if no component was excluded.
        total = others * exp_of(min(np.float64(level) - best, 0.0)) if others > 0 else 0.0
        for p in range(n):
            total += terms[p]
        found[i] = best + log_of(total)
        if indices.size > 0:
            begin, limit, sum_kept = written, least * total, 0.0
            for p in range(n):
                if terms[p] > limit or members[p] == label:
                    indices[written], probabilities[written] = members[p], terms[p]
                    sum_kept += terms[p]
                    written += 1
            for p in range(begin, written):
                probabilities[p] /= sum_kept
            kept[i] = written - begin
        return written

    return settle
