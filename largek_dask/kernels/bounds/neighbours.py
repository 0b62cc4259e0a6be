"""Find the nearest centres of each centre, or the nearest components of each component.

If there are at most `EXACT` centres, all pairs are compared, which takes less time than a pass over
the rows (k² d / 2 multiply-adds). More centres are first divided into about √k groups, and centres
are compared only with centres of the nearest groups. Occasionally this misses one of the farthest
neighbours.

For components of a mixture with unequal variances, distance is misleading: a wide component far
away may explain a row better than a narrow component close by. Such components are therefore ranked
by the expected log joint.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.dense import panels
from largek_dask.kernels.dense.gathered import load_rows
from largek_dask.kernels.dense.panels import inner
from largek_dask.kernels.distances import PackedCenters, nearest, pack_centers
from largek_dask.kernels.emit import as_readonly, lanes_within, lowest_bit, scan
from largek_dask.kernels.jit import njit
from largek_dask.kernels.mixtures import PackedMixture
from largek_dask.kernels.threads import on_threads
from largek_dask.kernels.tile import SCORES, Micro, Tile, select_tile

EXACT = 20_000
"""Maximum number of centres for which all pairs are compared."""
_MEMBERS = 64
"""Number of centres whose distances to all candidates are stored at a time."""
_CANDIDATES = 16
"""Minimum number of candidates per group of centres, as a multiple of m."""
_LEAST = 4096
"""Minimum number of candidates per group of centres."""
_SORTED = 64
"""Maximum number of candidates that are sorted with numpy, so that a first fit of few clusters does
not wait for the kernel to be compiled."""
_TRIES, _WIDER = 4, 0.5
"""Number of retries with a higher distance limit, and the relative increase per retry."""
_STRIDE = 8
"""Minimum stride of the sampled distances from which the m-th smallest is estimated."""

_GROUPING_STEPS = 5
"""Number of Lloyd steps that divide the centres into groups."""

Array = NDArray[Any]
Labels = NDArray[np.int32]


class _Scores(NamedTuple):
    """Inputs to the scores of pairs of centres; near pairs have low scores."""

    candidates: Array
    """(k, F) candidate centres, which the kernel treats as rows."""
    offsets: Array
    """(F,) origin to subtract from the candidates."""
    factors: Array
    """(k, F) factors of the centres whose neighbours are searched."""
    starts: Array
    """(k,) initial scores of the centres whose neighbours are searched."""
    direct: int
    """Number of features if scores are sums of (x - c)², otherwise 0."""
    distances: bool
    """True if the squared length of a candidate is added to product-form scores."""


def nearest_centers(packed: PackedCenters, m: int, n_threads: int = 1) -> Labels:
    """Return (k, m) indices: each centre, followed by its m - 1 nearest centres.

    Distances are rounded to the compute dtype. Ties go to the lowest index, and NaN distances come
    last. The result does not depend on the number of threads.
    """
    if not 1 <= m <= packed.n_clusters:
        raise ParameterError(f"m must be between 1 and {packed.n_clusters}, got {m}.")
    form, direct = packed.dense, packed.direct
    scores = _Scores(packed.centers, form.offsets, form.factors, form.starts, direct, True)
    return _nearest(scores, packed, m, n_threads)


def nearest_components(packed: PackedMixture, m: int, n_threads: int = 1) -> Labels:
    r"""Return (k, m) indices: each component, followed by those that best explain its rows.

    If variances are unequal, components c' are ranked for a component c by the expected log joint
    of a row of c:

    .. math:: \log \pi_{c'} - \tfrac12 \sum_f \left[ \log 2\pi\sigma^2_{c'f}
       + \frac{\sigma^2_{cf} + (\mu_{cf} - \mu_{c'f})^2}{\sigma^2_{c'f}} \right]

    Scores are the negative expected log joints, computed from the mean and the expected squares of
    c and the factors of c'. Ties go to the lowest index, and retired components come last.
    """
    k = packed.n_components
    if not 1 <= m <= k:
        raise ParameterError(f"m must be between 1 and {k}, got {m}.")
    if packed.covariance == "iso" and packed.alive.all():
        return nearest_centers(packed.centers, m, n_threads)
    return _nearest(_expected_log_joints(packed), packed.centers, m, n_threads)


def _expected_log_joints(packed: PackedMixture) -> _Scores:
    form, (k, d) = packed.weighted_form, packed.means.shape
    n_factors = form.factors.shape[1]
    candidates, factors = np.empty((2, k, n_factors + 1), packed.dtype)
    candidates[:, :n_factors] = form.factors[:k]
    # Replace the infinite scores of retired components, since infinity times 0 is NaN.
    candidates[:, n_factors] = np.minimum(form.starts[:k], np.finfo(packed.dtype).max)
    means = packed.centers.values.astype(np.float64)
    squares = means * means + packed.variances
    if packed.covariance != "diag":
        squares = np.cumsum(squares, axis=1)[:, -1:]
    factors[:, :d] = means
    factors[:, d:n_factors] = squares
    factors[:, n_factors] = 1
    origin = np.zeros(-(-(n_factors + 1) // panels.PAD) * panels.PAD, packed.dtype)
    starts = np.zeros(k, packed.dtype)
    return _Scores(candidates, origin, factors, starts, direct=0, distances=False)


def n_compared(k: int, m: int) -> int:
    """Estimate the number of comparisons per centre in a search for the m nearest of k centres."""
    return k if k <= EXACT else max(_CANDIDATES * m, _LEAST)


def _nearest(scores: _Scores, packed: PackedCenters, m: int, n_threads: int) -> Labels:
    """Return (k, m) indices: each centre, followed by the m - 1 centres with the lowest scores."""
    out = np.empty((packed.n_clusters, m), np.int32)
    blocks = _blocks(packed, m, n_threads)
    on_threads(n_threads, lambda block: _compare(scores, *block, out), blocks)
    return out


def _blocks(packed: PackedCenters, m: int, n_threads: int) -> Iterator[tuple[Labels, Labels]]:
    """Yield blocks of centres with their candidates, which are all centres or nearby centres."""
    if packed.n_clusters <= EXACT:
        every = np.arange(packed.n_clusters, dtype=np.int32)
        for begin in range(0, len(every), _MEMBERS):
            yield every[begin : begin + _MEMBERS], every
        return
    members, edges = _groups(packed, int(np.sqrt(packed.n_clusters)))
    sizes = np.diff(edges)
    means = np.add.reduceat(packed.centers[members].astype(np.float64), edges[:-1])
    middles = (means / sizes[:, None]).astype(packed.dtype)
    near = nearest_centers(pack_centers(middles, packed.shift), len(sizes), n_threads)
    wanted = n_compared(packed.n_clusters, m)
    for g, order in enumerate(near):
        enough = int(np.searchsorted(np.cumsum(sizes[order]), wanted)) + 1
        parts = [members[edges[h] : edges[h + 1]] for h in order[:enough]]
        candidates = np.sort(np.concatenate(parts))
        for begin in range(0, sizes[g], _MEMBERS):
            yield parts[0][begin : begin + _MEMBERS], candidates


def _groups(packed: PackedCenters, n_groups: int) -> tuple[Labels, NDArray[np.int64]]:
    """Return centre indices sorted by group, and the boundaries of at most `n_groups` groups.

    Groups are found by a few Lloyd steps that start from evenly spaced centres.
    """
    centers, seeds_of = packed.centers, np.arange(n_groups) * packed.n_clusters // n_groups
    seeds = centers[seeds_of].astype(np.float64)
    for _ in range(_GROUPING_STEPS):
        of = nearest(centers, pack_centers(seeds.astype(packed.dtype), packed.shift))
        counts = np.bincount(of, minlength=n_groups)
        members, filled = np.argsort(of, kind="stable").astype(np.int32), np.flatnonzero(counts)
        first = np.cumsum(counts) - counts
        sums = np.add.reduceat(centers[members].astype(np.float64), first[filled], axis=0)
        seeds[filled] = sums / counts[filled, None]
    return members, np.concatenate([[0], np.cumsum(counts[filled])])


def _compare(scores: _Scores, members: Labels, candidates: Labels, out: Labels) -> None:
    """Write the nearest candidates of each member to `out`; all members are candidates."""
    tile = select_tile().for_form(scores.direct)
    d, dtype = scores.candidates.shape[1], scores.candidates.dtype
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    blocks = panels.Blocking(panels=1, tiles=-(-_MEMBERS // tile.centres), features=0)
    space = panels.workspace(tile, dtype, False, d, blocks, (_MEMBERS, 0))
    count = len(candidates)
    padded = -(-count // width) * width
    places = np.full(padded, candidates[-1])
    places[:count] = candidates
    own = np.searchsorted(candidates, members)
    table = np.empty((len(members), padded), dtype)
    *arrays, direct, distances = scores
    _fill(tile, dtype, direct, distances)(*arrays, members, places, space, table)
    if count <= _SORTED:
        table[np.arange(len(members)), own] = -np.inf
        order = np.argsort(table[:, :count], axis=1, kind="stable")
        out[members] = candidates[order[:, : out.shape[1]]]
        return
    found = np.empty((len(members), out.shape[1]), np.int32)
    _select(width)(table, own, readonly(places), count, found)
    out[members] = found


@cache
def _fill(tile: Tile, dtype: panels.Dtype, direct: int, distances: bool) -> panels.Kernel:
    """Compile a kernel that computes the scores of all members and candidates."""
    lanes, centres = tile.lanes_of(dtype.itemsize), tile.centres
    width, real = tile.vectors * lanes, dtype.type
    spec = Micro(centres, tile.vectors, lanes, SCORES, direct).code
    # Compute squared lengths only if they are needed.
    load = load_rows(dtype, dtype, width, direct > 0 or not distances)

    @njit
    def finish(sums, norms, out):
        for q in range(width):
            score = sums[q]
            if distances:
                score = max(score if direct else score + norms[q], real(0))
            # NaN comes last
            out[q] = score if score == score else real(np.inf)

    @njit(refcounts=False)
    def run(centers, shift, factors, starts, members, places, space, table):
        k, d = centers.shape
        rows = centers.reshape(k * d)
        panel, spare, norms, values, labels, sums, copies, openings, _ = space
        block, block_openings = as_readonly(copies), as_readonly(openings)
        count = members.size
        n_tiles = (count + centres - 1) // centres
        for i in range(n_tiles * centres):
            openings[i] = starts[members[i]] if i < count else np.inf
            for f in range(d):
                copies[i * d + f] = factors[members[i], f] if i < count else real(0)
        for p in range(0, places.size, width):
            load(rows, places, p, d, shift, panel, norms, spare, 0)
            scan(
                spec, panel, 0, block, d, 0, d, block_openings, 0, n_tiles,
                values, labels, 0, sums, 0, sums, -1,
            )  # fmt: skip
            for i in range(count):
                finish(sums[i * width : (i + 1) * width], norms, table[i, p : p + width])

    return run


@cache
def _select(width: int) -> panels.Kernel:
    """Compile a function that finds the m nearest candidates of each centre, nearest first."""

    @inner
    def below(row, count, limits, near):
        """Write the positions of the values within the limits to ``near``; return their number."""
        found = 0
        for at in range(0, count, width):
            mask = lanes_within(width, row, at, limits)
            while mask != 0:
                j = at + lowest_bit(mask)
                mask &= mask - np.uint64(1)
                if j < count:
                    near[found] = j
                    found += 1
        return found

    @njit
    def select(table, own, places, count, found):
        """Write each centre's nearest candidates to ``found``; the centre itself comes first."""
        m = found.shape[1]
        near, values = np.empty(count + 1, np.int32), np.empty(count)
        counts, order = np.empty(256, np.int64), np.empty(count, np.int32)
        other = np.empty(count, np.int32)
        limits = np.empty(width, table.dtype)
        # Estimate the m-th smallest value from a sample; the estimate is seldom too low.
        stride = max(_STRIDE, m // 32)
        part = m * 4 // (3 * stride) + 6
        smallest = np.empty(part, table.dtype)
        for i in range(table.shape[0]):
            row = table[i]
            row[own[i]] = -np.inf
            limit = table.dtype.type(np.inf)
            if count >= 2 * stride * part:
                limit = _sampled(row, own[i] % stride, count, stride, smallest)
            for lane in range(width):
                limits[lane] = limit
            n_near = below(row, count, limits, near)
            for _ in range(_TRIES):
                if n_near < m:
                    # Use the second value, because the first may belong to the centre itself.
                    limit += table.dtype.type(_WIDER) * (limit - smallest[1])
                    for lane in range(width):
                        limits[lane] = limit
                    n_near = below(row, count, limits, near)
            if n_near < m:
                for lane in range(width):
                    limits[lane] = np.inf
                n_near = below(row, count, limits, near)
            for c in range(n_near):
                values[c] = row[near[c]]
            ranked = _rank(values, n_near, counts, order, other)
            for g in range(m):
                found[i, g] = places[near[ranked[g]]]

    return select


@inner
def _sampled(row, first, count, stride, smallest):
    """Write the smallest values of a regular sample to ``smallest``; return the largest of them."""
    last = smallest.size - 1
    for g in range(last + 1):
        smallest[g] = np.inf
    for j in range(first, count, stride):
        value = row[j]
        if value < smallest[last]:
            g = last
            while g > 0 and smallest[g - 1] > value:
                smallest[g] = smallest[g - 1]
                g -= 1
            smallest[g] = value
    return smallest[last]


@njit(internal=True)
def _rank(values, n, counts, order, other):
    """Return the positions of n values in ascending order; equal values are in order of position.

    This is a radix sort of the bits of float64 values, which are overwritten, like the arrays
    (256,) and twice (n,) of integers. The result is one of the last two. No value is NaN.
    """
    keys, sign, differ = values.view(np.uint64), np.uint64(1 << 63), np.uint64(0)
    for c in range(n):
        values[c] += 0.0  # -0 becomes 0
        keys[c] ^= sign if keys[c] < sign else ~np.uint64(0)
        differ |= keys[c] ^ keys[0]
        order[c] = c
    byte = np.uint64(255)
    for turn in range(8):
        shift = np.uint64(8 * turn)
        if (differ >> shift) & byte == 0:
            continue
        counts[:] = 0
        for c in range(n):
            counts[np.int64((keys[c] >> shift) & byte)] += 1
        before = 0
        for g in range(counts.size):
            counts[g], before = before, before + counts[g]
        for p in range(n):
            place = order[p]
            at = np.int64((keys[place] >> shift) & byte)
            other[counts[at]] = place
            counts[at] += 1
        order, other = other, order
    return order
