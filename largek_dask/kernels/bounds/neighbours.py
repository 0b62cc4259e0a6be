"""Nearest centres of every centre, or those of the smallest scores.

Up to `EXACT` centres all pairs are compared: k² d / 2 multiply-adds are then less than a
pass over the rows takes. If there are more, centres are first put into about √k groups, and those
of a group are compared with the centres of the nearest groups only. Centres left out are farther
away than most of those found, but occasionally one of the last neighbours is missed.

Of components of a mixture with unequal variances, distance misleads: a wide one far away explains
a row better than a narrow one close by. Their criterion is the expected log joint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.bounds.groups import group_centers
from largek_dask.kernels.dense import panels
from largek_dask.kernels.dense.gathered import bare, load_rows
from largek_dask.kernels.distances import PackedCenters, pack_centers
from largek_dask.kernels.emit import as_readonly, lanes_within, lowest_bit, scan
from largek_dask.kernels.jit import njit
from largek_dask.kernels.mixtures import PackedMixture
from largek_dask.kernels.threads import on_threads
from largek_dask.kernels.tile import SCORES, Micro, Tile, select_tile

__all__ = ["Pairs", "n_compared", "nearest_centers", "nearest_components", "nearest_pairs"]

EXACT = 20_000
"""Maximum number of centres of which all pairs are compared."""
_MEMBERS = 64
"""Centres whose distances to all candidates are held at a time."""
_CANDIDATES = 16
"""Minimum candidates of each group, times m, with many centres."""
_LEAST = 4096
"""Minimum candidates of a group: 32,000 centres then cost about a tenth of all pairs."""
_SORTED = 64
"""Candidates up to which numpy sorts all, so that a first fit of few clusters need not
wait until the kernel is compiled."""
_FEW = 1024
"""Maximum number of values sorted by counting, for each, how many come before it."""
_TRIES, _WIDER = 4, 0.5
"""Attempts with a limit that is too low, and the factor by which the range is then widened:
sorting all of very many centres would take much longer."""
_STRIDE = 8
"""Each eighth distance is used to estimate how far away the m-th nearest may be."""

Array = NDArray[Any]
Labels = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Factors from which the tile makes the scores of pairs; small ones are near."""

    found: Array
    """(k, F) centres as those that are found, rows of the tile."""
    offsets: Array
    """(F,) origin subtracted from these."""
    factors: Array
    """(k, F) centres as those whose neighbours are searched."""
    starts: Array
    """(k,) initial values of their scores."""
    direct: int
    """The number of features if scores are sums of (x - c)², else 0."""
    distances: bool
    """Scores lack the squared length of the found ones, if they are not direct."""


def nearest_centers(packed: PackedCenters, m: int, n_threads: int = 1) -> Labels:
    """Return the m nearest centres of every centre, itself the first.

    Parameters
    ----------
    packed : PackedCenters
    m : int
        1 to k.
    n_threads : int
        Threads that share the work; the result is the same.

    Returns
    -------
    int32 array (k, m)
        By distance, in the compute dtype and with its rounding; ties go to the lowest index.
        Of more than `EXACT` centres, among the centres of near groups.

    Raises
    ------
    ParameterError
        `m` is not between 1 and k.
    """
    if not 1 <= m <= packed.n_clusters:
        raise ParameterError(f"m must be between 1 and {packed.n_clusters}, got {m}.")
    form = packed.dense
    pairs = Pairs(packed.centers, form.offsets, form.factors, form.starts, packed.direct, True)
    return nearest_pairs(pairs, packed, m, n_threads)


def n_compared(k: int, m: int) -> int:
    """Return about how many centres each of k is compared with for its m nearest."""
    return k if k <= EXACT else max(_CANDIDATES * m, _LEAST)


def nearest_pairs(pairs: Pairs, packed: PackedCenters, m: int, n_threads: int = 1) -> Labels:
    """Return for every centre itself and the m - 1 others of the smallest scores.

    Parameters
    ----------
    pairs : Pairs
    packed : PackedCenters
        The centres, by which they are grouped if there are very many.
    m : int
        1 to k.
    n_threads : int
        Threads that share the work; the result is the same.

    Returns
    -------
    int32 array (k, m)
        By score, in the compute dtype and with its rounding; ties go to the lowest index, and NaN
        comes last. Of more than `EXACT` centres, among the centres of near groups.
    """
    k = packed.n_clusters
    out = np.empty((k, m), np.int32)
    jobs = _everything(k) if k <= EXACT else _by_groups(packed, m, n_threads)
    on_threads(n_threads, lambda job: _compare(pairs, *job, out), jobs)
    return out


def _everything(k: int) -> Iterator[tuple[Labels, Labels]]:
    """Yield all centres, a block at a time, against all."""
    every = np.arange(k, dtype=np.int32)
    for begin in range(0, k, _MEMBERS):
        yield every[begin : begin + _MEMBERS], every


def _by_groups(packed: PackedCenters, m: int, n_threads: int) -> Iterator[tuple[Labels, Labels]]:
    """Yield the centres of each group, a block at a time, against those of the nearest groups."""
    groups = group_centers(packed.centers, packed.shift, int(np.sqrt(packed.n_clusters)))
    sizes = np.diff(groups.offsets)
    means = np.add.reduceat(packed.centers[groups.lists].astype(np.float64), groups.offsets[:-1])
    middles = (means / sizes[:, None]).astype(packed.dtype)
    near = nearest_centers(pack_centers(middles, packed.shift), groups.n_groups, n_threads)
    wanted = n_compared(packed.n_clusters, m)
    for g, order in enumerate(near):
        enough = int(np.searchsorted(np.cumsum(sizes[order]), wanted)) + 1
        parts = [groups.lists[groups.offsets[h] : groups.offsets[h + 1]] for h in order[:enough]]
        candidates = np.sort(np.concatenate(parts))
        for begin in range(0, sizes[g], _MEMBERS):
            yield parts[0][begin : begin + _MEMBERS], candidates


def _compare(pairs: Pairs, members: Labels, candidates: Labels, out: Labels) -> None:
    """Write the nearest candidates of the members, which are among them, into rows of `out`."""
    tile = select_tile().for_form(pairs.direct)
    d, dtype = pairs.found.shape[1], pairs.found.dtype
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    blocks = panels.Blocking(panels=1, tiles=-(-_MEMBERS // tile.centres), features=0)
    space = panels.workspace(tile, dtype, False, d, blocks, (_MEMBERS, 0))
    count = len(candidates)
    padded = -(-count // width) * width
    places = np.full(padded, candidates[-1])
    places[:count] = candidates
    own = np.searchsorted(candidates, members)
    table = np.empty((len(members), padded), dtype)
    fill, select = _kernels(tile, dtype, pairs.direct, pairs.distances)
    fill(
        pairs.found, pairs.offsets, pairs.factors, pairs.starts, members, places, space, table
    )  # fmt: skip
    if count <= _SORTED:
        table[np.arange(len(members)), own] = -np.inf
        order = np.argsort(table[:, :count], axis=1, kind="stable")
        out[members] = candidates[order[:, : out.shape[1]]]
        return
    found = np.empty((len(members), out.shape[1]), np.int32)
    select(table, own, readonly(places), count, found)
    out[members] = found


@cache
def _kernels(
    tile: Tile, dtype: panels.Dtype, direct: int, distances: bool
) -> tuple[panels.Kernel, panels.Kernel]:
    """Compile scores of members and candidates, and the choice among them."""
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    return _fill(tile, dtype, direct, distances), _select(width)


@cache
def _fill(tile: Tile, dtype: panels.Dtype, direct: int, distances: bool) -> panels.Kernel:
    """Compute scores of members and candidates: candidates are the rows here."""
    lanes, centres = tile.lanes_of(dtype.itemsize), tile.centres
    width, real = tile.vectors * lanes, dtype.type
    spec = Micro(centres, tile.vectors, lanes, SCORES, direct).code
    # (without the squared lengths if these are not needed)
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
    """Compile finding the m smallest of each row of a table, in order, by their names."""

    @bare
    def below(row, count, limits, near):
        """Return places of the values up to a limit, ascending, and their number."""
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
        """Select; the centre itself, whose place is `own`, comes first."""
        m = found.shape[1]
        near, values = np.empty(count + 1, np.int32), np.empty(count + 1, table.dtype)
        ranks, ranked = np.empty(_FEW, np.int32), np.empty(m, np.int32)
        limits = np.empty(width, table.dtype)
        # except in few rows, the largest of this many, the smallest of each _STRIDE-th value, is
        # not below the m-th smallest of all
        part = m * 4 // (3 * _STRIDE) + 6
        smallest = np.empty(part, table.dtype)
        for i in range(table.shape[0]):
            row = table[i]
            row[own[i]] = -np.inf
            limit = table.dtype.type(np.inf)
            if count >= 2 * _STRIDE * part:
                limit = _sampled(row, count, own[i] % _STRIDE, smallest)
            for lane in range(width):
                limits[lane] = limit
            n_near = below(row, count, limits, near)
            for _ in range(_TRIES):
                if n_near < m:
                    # (the first may be the centre itself)
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
            _rank(values, n_near, ranks, ranked)
            for g in range(m):
                found[i, g] = places[near[ranked[g]]]

    return select


@bare
def _sampled(row, count, first, smallest):
    """Return the largest of the smallest values of every `_STRIDE`-th."""
    last = smallest.size - 1
    for g in range(last + 1):
        smallest[g] = np.inf
    for j in range(first, count, _STRIDE):
        value = row[j]
        if value < smallest[last]:
            g = last
            while g > 0 and smallest[g - 1] > value:
                smallest[g] = smallest[g - 1]
                g -= 1
            smallest[g] = value
    return smallest[last]


@njit(internal=True)
def _merge_sort(values, n):
    """Sort the places of n values without NaN; of equal ones the earlier comes first."""
    order, other = np.empty(n, np.int32), np.empty(n, np.int32)
    for c in range(n):
        order[c] = c
    size = 1
    while size < n:
        for begin in range(0, n, 2 * size):
            middle, end = min(begin + size, n), min(begin + 2 * size, n)
            left, right = begin, middle
            for at in range(begin, end):
                from_left = right >= end
                if not from_left and left < middle:
                    from_left = not values[order[right]] < values[order[left]]
                if from_left:
                    other[at] = order[left]
                    left += 1
                else:
                    other[at] = order[right]
                    right += 1
        order, other = other, order
        size *= 2
    return order


@njit(internal=True)
def _rank(values, n, ranks, ranked):
    """Rank the places of the m smallest of n values; of equal ones the earlier comes first."""
    m = ranked.size
    if n > _FEW:
        order = _merge_sort(values, n)
        for g in range(m):
            ranked[g] = order[g]
        return
    for g in range(m):
        ranked[g] = -1
    for c in range(n):
        ranks[c] = 0
    for e in range(n):
        value = values[e]
        for c in range(n):
            ranks[c] += value < values[c]
    for c in range(n):
        g = ranks[c]
        while g < m and ranked[g] >= 0:  # an equal value
            g += 1
        if g < m:
            ranked[g] = c


def nearest_components(packed: PackedMixture, m: int, n_threads: int = 1) -> Labels:
    r"""For each component, find the ones that its rows most probably come from as well.

    With unequal variances c' is ranked under c by the expected log joint of a row of c,

    .. math:: \log \pi_{c'} - \tfrac12 \sum_f \left[ \log 2\pi\sigma^2_{c'f}
       + \frac{\sigma^2_{cf} + (\mu_{cf} - \mu_{c'f})^2}{\sigma^2_{c'f}} \right]

    That is minus a score of the tile: the features of c, its mean and the expected squares of its
    rows, times those of c', its factors and the start of its scores.

    Parameters
    ----------
    packed : PackedMixture
    m : int
        1 to k.
    n_threads : int
        No result depends on it.

    Returns
    -------
    int32 array (k, m)
        Each component itself first, then the others, most probable first, in the compute dtype and
        with its rounding; ties go to the lowest index, and retired components come last. Of very
        many components, among those of near groups (see above).
    """
    k = packed.n_components
    if not 1 <= m <= k:
        raise ParameterError(f"m must be between 1 and {k}, got {m}.")
    if packed.covariance == "iso" and packed.alive.all():
        return nearest_centers(packed.centers, m, n_threads)
    return nearest_pairs(_pairs_of(packed), packed.centers, m, n_threads)


def _pairs_of(packed: PackedMixture) -> Pairs:
    """Return factors and starts of the components, and the features that they meet."""
    form, (k, d) = packed.weighted_form, packed.means.shape
    n_factors = form.factors.shape[1]
    found, factors = np.empty((2, k, n_factors + 1), packed.dtype)
    found[:, :n_factors] = form.factors[:k]
    # (retired ones begin at infinity, and that times 0 is NaN)
    found[:, n_factors] = np.minimum(form.starts[:k], np.finfo(packed.dtype).max)
    means = packed.centers.values.astype(np.float64)
    squares = means * means + packed.variances
    if packed.covariance != "diag":
        squares = np.cumsum(squares, axis=1)[:, -1:]
    factors[:, :d] = means
    factors[:, d:n_factors] = squares
    factors[:, n_factors] = 1
    nothing = np.zeros(-(-(n_factors + 1) // panels.PAD) * panels.PAD, packed.dtype)
    starts = np.zeros(k, packed.dtype)
    return Pairs(found, nothing, factors, starts, direct=0, distances=False)
