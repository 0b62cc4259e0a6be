"""nmbatch as published: J. Newling, F. Fleuret, Nested Mini-Batch K-Means, NIPS 2016.

================================  ==============================================================
in the paper (arXiv 1602.02934)   here
================================  ==============================================================
Algorithm 5, lines 1 to 7         ``NMBatchPaper.init``, with Algorithm 2 (initialise-c-S-v)
lines 8 to 42: an iteration       ``NMBatchPaper.step``
lines 9 to 29: the rows of M_t    ``vote_chunk``
lines 10 and 22: bounds l(i, j)   ``decayed``, ``tight``
Algorithm 1                       ``assignment_with_bounds``
Algorithm 3 (accumulate)          ``AssignmentTotal.assign``: S and v, but for the seeds
lines 31 and 36, equation 4       ``smallest_ratio``
section 3.3: equal parts          ``RowSlice``: M_t is the same share of every chunk's shuffle
================================  ==============================================================

S and v are exact sums over rows, so lines 15 and 16 undo line 18 of the previous iteration. As
printed, a seed remains in S(j) and v(j) (Algorithm 2) in addition to its vote as a row, so the
centre of a cluster without rows returns to its seed. If v(j) = 1, line 31 is 0/0, and the cluster
does not vote.

Departures from the paper: seeds are k random rows, not the first k of the shuffle, unless ``init``
gives them. Ties go to the lowest index in Algorithm 1 too, as on line 25, so an assignment depends
only on the centres, and lost bounds are rebuilt as exact distances to the previous centres.

A centre with p(j) = 0 does not prevent growth. Bounds are rounded down to float32. Weights, which
the paper does not have, are in units of the mean weight of a row, and a seed weighs one unit.
"""
# ruff: noqa: E741 (l is the paper's letter)

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms import base
from largek_dask.algorithms.base import Chunk, Info, Passes, Rng, RowSlice, RowState
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.parts.totals import AssignmentTotal, Tally
from largek_dask.algorithms.problem import check_integer, check_number
from largek_dask.algorithms.starts.seeding import initial_centers
from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import Table, rows_at
from largek_dask.kernels.distances import PackedCenters, pack_centers, scores, squared_distances
from largek_dask.kernels.exact.extrapolated import moved_means
from largek_dask.kernels.exact.movement import squared_movement, squared_movements
from largek_dask.kernels.exact.numbers import ExactSums

BLOCK = 16_384
"""Number of rows that Algorithm 1 processes together; no result depends on it."""
Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NestedState:
    """State after iteration t (``step``)."""

    step: int
    b: int
    """Number of rows of the next batch M_{t+1}; ``b_old`` is the number of rows of M_t."""
    c: NDArray[Any]
    """(k, d) centres of the compute dtype; ``p`` is their last movement."""
    p: Real
    seeds: NDArray[Any]
    """(k, d) seed rows, the initial values of S."""
    counts: Real
    shift: NDArray[Any]
    b_old: int = 0
    c_old: NDArray[Any] | None = None
    """(k, d) centres of iteration t, from which lost bounds are rebuilt."""


@dataclass(frozen=True)
class NMBatchPaper(base.Algorithm[NestedState, KMeansProblem]):
    """Nested mini-batch k-means as published (Algorithm 5).

    Parameters
    ----------
    b0 : int
        Number of rows in the first batch.
    rho : float
        The batch doubles when min_j σ̂_C(j) / p(j) exceeds it.
    bounds : {"lower", None}
        "lower": store l(i, j) for every used row and every centre, N k numbers of 4 bytes. None:
        omit the bound test, as for figure 3. No result depends on it.
    """

    b0: int = 5_000
    rho: float = 100.0
    bounds: Literal["lower"] | None = "lower"
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    def __post_init__(self) -> None:
        check_integer("b0", self.b0, 1)
        check_number("rho", self.rho)
        if self.bounds not in ("lower", None):
            raise ParameterError(f"bounds must be 'lower' or None, got {self.bounds!r}.")

    def init(self, passes: Passes, rng: Rng) -> NestedState:
        """Choose the seeds, with S(j) = x, v(j) = 1 and sse(j) = 0 (lines 1 to 7)."""
        k, n, limit = self.problem.n_clusters, passes.n_rows, passes.state_limit
        needed = n * self._row_bytes(k)
        if self.bounds and limit is not None and needed > limit:
            raise ParameterError(
                f"bounds='lower' stores {k} bounds for each of {n} rows, {needed:,} bytes in all, "
                f"but row state is limited to {limit:,}: raise memory_limit, or use bounds=None."
            )
        init = self.problem.init
        init = "random" if isinstance(init, str) and init == "auto" else init
        c, zeros = initial_centers(passes, rng, k, init), np.zeros(k)
        return NestedState(0, min(self.b0, n), c, zeros, c, zeros, passes.statistics.shift)

    def step(self, passes: Passes, rng: Rng, state: NestedState) -> tuple[NestedState, Info]:
        """Run one iteration of Algorithm 5."""
        n, (k, d), t, c = passes.n_rows, state.c.shape, state.step + 1, state.c
        known = passes.statistics
        replay: tuple[Any, ...] = ()
        M_old = RowSlice(rng, 0, state.b_old, n) if state.b_old else None
        if state.c_old is not None:
            replay = ((pack_centers(state.c_old, state.shift), state.p, self.bounds, t - 1),)
        total: Votes = passes.reduce(  # lines 9 to 29
            vote_chunk,
            pack_centers(c, state.shift),
            state.p,
            self.bounds,
            t,
            start=partial(AssignmentTotal, k, d, known.grid, partial(_tally, k)),
            combine=AssignmentTotal.combine,
            state=RowState("nmbatch", t, replay, rebuild_rows=M_old, retain=True),
            rows=None if state.b == n else RowSlice(rng, 0, state.b, n),
        )
        tally, sse, counts = total.tally, total.tally.sse.values, total.sums.counts
        # lines 30 to 35: c(j) = S(j) / v(j), including the seed
        unit = known.total_weight / known.n_rows
        v, S_0 = counts / unit + 1, state.seeds.astype(np.float64)
        c_new = moved_means(S_0, total.sums, (v - 1) / v).astype(c.dtype)
        p = np.sqrt(squared_movements(c_new, c))
        # lines 36 to 41
        ratio, everything = smallest_ratio(sse / unit, v, p), state.b == n
        b = min(2 * state.b, n) if ratio > self.rho else state.b
        # J is estimated over all rows; ``tol`` applies only once M_t contains all rows.
        weight, variance = sum(counts.tolist()), total.squares.value / (known.total_weight * d)
        cost = sum(sse.tolist()) * (known.total_weight / weight if weight > 0 else 1.0)
        shift = squared_movement(c_new, c) / variance if everything and variance > 0 else None
        extra = {"batch_rows": float(tally.n_rows), "distances": tally.n_evaluated / (state.b * k)}
        extra |= {"growth_ratio": ratio} if ratio < np.inf else {}
        done = everything and tally.n_changed == 0
        after = replace(state, b=b, c=c_new, p=p, counts=counts, b_old=state.b, c_old=c, step=t)
        return after, Info(cost, tally.n_rows, tally.n_changed, shift, done, extra)

    def model(self, state: NestedState) -> CenterArrays:
        return CenterArrays(state.c, state.counts, state.shift)

    def _row_bytes(self, k: int) -> int:  # a(i), position in the chunk's shuffle, l(i, j)
        return 12 + (4 * k if self.bounds else 0)

    def footprint(self, table: base.PlannedTable) -> base.Footprint:
        own, before = self._row_bytes(self.problem.n_clusters), self.problem.passes_to_start()
        return base.Footprint(own, passes_before=before)


@dataclass(kw_only=True)
class VoteTally(Tally):
    """Tally of one iteration, which starts empty (line 14)."""

    sse: ExactSums


Votes = AssignmentTotal[VoteTally]


def _tally(k: int) -> VoteTally:
    return VoteTally(sse=ExactSums(k))


def vote_chunk(
    chunk: Chunk, total: Votes, c: PackedCenters, p: Real, bounds: str | None, t: int
) -> None:
    """Assign the rows of M_t in a chunk, and renew their votes (lines 9 to 29)."""
    n, k = len(chunk), c.n_clusters
    rows = np.arange(n) if chunk.rows is None else chunk.rows
    a_old, l = np.full(n, -1, np.int32), np.empty((n if bounds else 0, k), np.float32, "F")
    if chunk.state is not None:
        reused = np.searchsorted(rows, chunk.state["rows"])  # M_{t-1}
        a_old[reused] = chunk.state["a"]
        if bounds:
            l[reused] = decayed(chunk.state["l"], p)
    a, d2 = a_old.copy(), np.empty(n)
    total.begin(t)
    for begin in range(0, n, BLOCK):
        at = slice(begin, begin + BLOCK)
        x, own = chunk.x[at], a[at]
        l_own = l[at] if bounds else np.empty((len(own), k), np.float32, "F")
        # Without the bound test every row is compared with all centres, like a new row.
        new = np.flatnonzero(own < 0) if bounds else np.arange(len(own))
        l_own[new], own[new] = tight(rows_at(x, new), c)
        d2[at], n_met = assignment_with_bounds(x, c, own, l_own)
        total.tally.n_evaluated += len(new) * k + (len(own) - len(new) + n_met if bounds else 0)
    total.assign(chunk.x, chunk.weight, a_old, a, chunk.counted)
    total.tally.sse.add(d2, chunk.weight, a)
    chunk.keep(a=a, rows=rows.astype(np.int32), **({"l": l} if bounds else {}))


def tight(x: Table, c: PackedCenters) -> tuple[Any, NDArray[np.intp]]:
    """Return l(i, j) = ‖x(i) − c(j)‖ and its argmin (lines 22 and 25), before ties are resolved."""
    found = scores(x, c)
    rounding = min(0.5, 8 * (c.n_features + 8) * float(np.finfo(c.dtype).eps))
    return _below(np.sqrt(found * (1 - rounding))), found.argmin(axis=1)


def decayed(l: NDArray[np.float32], p: Real) -> Any:
    """Return l(i, j) − p(j) (line 10)."""
    return _below(l - p * (1 + 2.0**-40))


def _below(values: Any) -> Any:
    return np.nextafter(values.astype(np.float32), np.float32(-np.inf))


def assignment_with_bounds(
    x: Table, c: PackedCenters, a: NDArray[np.int32], l: NDArray[np.float32]
) -> tuple[Real, int]:
    """Run Algorithm 1 for all rows; update a and l; return d(i)² and the number of evaluations."""
    d2, n_met = squared_distances(x, c, a), 0  # line 1
    for j in range(c.n_clusters):
        i = np.flatnonzero((l[:, j] < np.sqrt(d2)) & (a != j))  # lines 2 and 3
        found = squared_distances(rows_at(x, i), c, np.full(len(i), j, np.int32))
        l[i, j] = _below(np.sqrt(found))  # line 4
        nearer = (found < d2[i]) | ((found == d2[i]) & (j < a[i]))  # line 5
        a[i[nearer]], d2[i[nearer]] = j, found[nearer]  # lines 6 and 7
        n_met += len(i)
    return d2, n_met


def smallest_ratio(sse: Real, v: Real, p: Real) -> float:
    """Return min_j σ̂_C(j) / p(j) (lines 31 and 36), or infinity if no cluster votes."""
    votes = (v > 1) & (p > 0)
    sse, v, p = sse[votes], v[votes], p[votes]
    return float((np.sqrt(sse / (v * (v - 1))) / p).min(initial=np.inf))
