"""Truncated search with moves: the fastest way to any cost that this project has measured.

Most of what Lloyd's steps compute is known to be needless: from one step to the next a row stays
where it is, or goes to a centre near its own. So each row meets only the centres nearest to that of
its own cluster (the truncated search of variational EM: J. Lücke, D. Forster, k-means as a
variational EM approximation of Gaussian mixture models, 2019; D. Forster, J. Lücke, Can clustering
scale sublinearly with its clusters?, AISTATS 2018), and not even those while distances kept from
earlier passes, widened by the movement of centres, prove that nothing can change (G. Hamerly,
Making k-means even faster, SDM 2010). Sums are exact and only rows that change cluster touch them.

If clusters overlap, centres keep moving in the same direction for long; so between the passes of a
round they overshoot the means of their rows.

Such steps end in the nearest local optimum. Moves leave it: centres that are hardly missed are
taken away, each from the rows that would lose least, and split the clusters that gain most by it
(the swap of centres: P. Fränti, Efficiency of random swap clustering, J. Big Data 2018; many at a
time here). They are tried in rounds: some passes after the moves the cost is compared with the one
before, and if it is not lower, the round is undone.

The next step is chosen by gain per work (:mod:`~largek_dask.algorithms.truncated.schedule`): the
length of lists, when rows meet all centres, the number of passes in a round. It compares exact
costs and counted distances, and estimates on a seeded sample; so the same data and seed take the
same way on any machine. On data without structure, where a row's second choice may be anywhere,
lists soon become long.

A row's state (label and two distances) depends on the passes since the last anchor: these are kept,
and repeated where the state is lost (:mod:`~largek_dask.algorithms.truncated.passes`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import (
    Algorithm,
    Footprint,
    Info,
    Passes,
    ProjectedRows,
    Rng,
    RowSample,
    TableShape,
)
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.parts.directions import SAMPLE_ROWS, LeftOut
from largek_dask.algorithms.parts.gathered import bytes_of_held
from largek_dask.algorithms.parts.greedy import cost_of, greedy_start, n_starts
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.seeding import centers_of_sample, initial_centers
from largek_dask.algorithms.parts.sparse_start import different_rows
from largek_dask.algorithms.parts.two_level import coarse_centers, two_level_start
from largek_dask.algorithms.truncated.far import FarRows, carry_the_cost, draw_rows, far_from
from largek_dask.algorithms.truncated.lists import NEAR_CELLS
from largek_dask.algorithms.truncated.passes import Pass, PassDone, pass_over
from largek_dask.algorithms.truncated.probe import ask_sample
from largek_dask.algorithms.truncated.projected import (
    asks_few,
    begins_round,
    directions_of,
    first_directions,
    in_all_features,
    is_done,
    lifted,
    misses_far_rows,
    most_held,
    opened,
    rows_to_hold,
    saves,
    scaled,
    seen_ahead,
    seen_back,
    some_directions,
    tells_little,
    told,
    view_of,
    widened,
    with_means,
    with_sample_means,
)
from largek_dask.algorithms.truncated.schedule import (
    TUNING,
    Outcome,
    Schedule,
    Search,
    Task,
    center_work,
    ended_round,
    first_schedule,
    is_restarted,
    next_step,
    sample_sizes,
)
from largek_dask.algorithms.truncated.state import (
    Projected,
    TruncatedState,
    failed_splits,
    moved_clusters,
    next_pass,
    overstep,
    where_it_began,
    with_neighbours,
    with_round,
    without_round,
)
from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import SparseBlock
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.projection import Directions

__all__ = ["Truncated"]

SPLIT_ROWS = 256
"""Maximum rows per centre of the sample on which splits are tried."""

SPLIT_VALUES = 1 << 26
"""Maximum values (rows times features) of that sample."""

GATHERED = 2.0
"""Cost of distances to lists for all rows at once, relative to those to all centres (measured)."""

COPIES, DENSE_COPIES = 72, 16
"""Most models that a search keeps to continue from: with lists of near centres, and without."""
ROW_BYTES = 16
"""Bytes per row: label, two distances, and the label to go back to."""
USUAL_STEPS = 120
"""Approximate number of steps of a search, including those on samples: from 30 to 335 on the sets
of ``benchmarks.auto``, half of them within 80 and 170."""
WORK_OF_A_ROW = 7.0
"""Cost of a row in a step, in distances, divided by the root of the number of clusters: by the
seconds of the same table (2 to 784 features, 500 to 2,000 clusters) and of that of
``benchmarks.auto_scale`` (32 features, 10,000 and 32,000)."""


@dataclass(frozen=True)
class Truncated(Algorithm[TruncatedState]):
    """Truncated search with moves of centres.

    Rows meet only the centres near their own, in passes of a few distances per row; in between,
    centres that are hardly missed are moved to where a split gains most, and moves that did not
    pay are undone. It ends at a lower cost than Lloyd's algorithm, and much sooner.

    Parameters
    ----------
    neighbours : int or "auto"
        Centres that a row meets in a pass, at least 2; "auto": as many as a probe finds best, and
        all of them if there are at most 128, or rows are sparse. From time to time all of them are
        searched, whatever is given here.
    moves : bool
        Move centres.
    rounds : int or "auto"
        Maximum rounds of moves (or of passes, without moves) over all rows; "auto": until they do
        not pay. Rounds over samples come first and end when more rows pay better; with 0 there
        are none of them either.
    directions : int or "auto"
        Principal directions of the rows in which the search begins, before it continues in more of
        them and to all features; "auto": as few as hold most of the variance, where there are 128
        features or more and that saves time; 0: in all features at once, as with centres that are
        given. Rows are held in projected form, a sample if they have more than 2^26
        values (256 MiB); with fewer than 64 of these per cluster all features come at once.

    Notes
    -----
    A step is one pass. ``history_`` describes each in ``extra``: ``neighbours`` (the length of
    the lists, k if all centres were searched), ``everywhere`` (0: on one of the samples
    that the search begins on), ``moves`` (carried out in it), ``opens_round``, ``ends_round`` and
    ``back`` (the round was undone); and ``steps_per_reading``, the number of steps per reading of
    all rows, wherever these are stored. ``cost`` counts rows where they are labelled, which is
    above the inertia, for not all of them are at their nearest centre; ``features`` is the number
    of directions in which it was found, or of all features. The search ends when five rounds have
    failed: raised the cost, or lowered it by a share of less than ``tol / 50``. Sparse rows meet
    all centres, and all features at once.

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.repeat(np.eye(3, dtype=np.float32), 50, axis=0)
    >>> km = lk.KMeans(3, algorithm=lk.Truncated(), random_state=0).fit(x)
    >>> float(km.inertia_)
    0.0
    """

    neighbours: int | Literal["auto"] = "auto"
    moves: bool = True
    rounds: int | Literal["auto"] = "auto"
    directions: int | Literal["auto"] = "auto"
    problem: KMeansProblem | None = field(default=None, repr=False, kw_only=True)
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    def __post_init__(self) -> None:
        for name, value, least in (
            ("neighbours", self.neighbours, 2),
            ("rounds", self.rounds, 0),
            ("directions", self.directions, 0),
        ):
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
            if value != "auto" and not whole:
                raise ParameterError(
                    f"{name} must be 'auto' or an integer of at least {least}, got {value!r}."
                )
        if not isinstance(self.moves, bool):
            raise ParameterError(f"moves must be True or False, got {self.moves!r}.")

    def init(self, passes: Passes, rng: Rng) -> TruncatedState:
        """Return the state at the starting centres: by ``init``, or on two levels on a sample."""
        assert self.problem is not None
        if passes.is_sparse and self.neighbours != "auto":
            raise ParameterError(
                f"neighbours={self.neighbours} is for dense rows, and these are sparse, which meet "
                "all centres: leave it at 'auto'."
            )
        found = self._directions(passes, rng)
        if found is not None:
            return self._projected(passes, rng, *found)
        return self._first(passes, rng)

    def _first(self, passes: Passes, rng: Rng) -> TruncatedState:
        """Return the state before the first step among these rows."""
        assert self.problem is not None
        k, shift = self.problem.n_clusters, passes.statistics.shift
        if isinstance(self.problem.init, str) and self.problem.init == "auto":
            first, *larger = _sample_sizes(passes, self.problem.n_clusters)
            sample = self._start_sample(passes, rng, first)
            centers, coarse, _ = self._start(passes, rng, sample)
            samples = () if first >= passes.n_rows else (first, *larger)
            guided = True
        else:
            centers = initial_centers(passes, rng, k, self.problem.init)
            coarse, samples, guided = centers[:1], (), False
        schedule = first_schedule(self._search(passes), samples, guided=guided)
        return TruncatedState(0, schedule, centers, np.zeros(k), shift, coarse)

    def _search(self, passes: Passes) -> Search:
        assert self.problem is not None
        return self._search_of(passes, self.problem.n_clusters)

    def _search_of(self, table: TableShape, k: int) -> Search:
        rounds = TUNING.most_rounds if self.rounds == "auto" else self.rounds
        length = None if self.neighbours == "auto" else self.neighbours
        moves, beside = self.moves and k > 2, 0.0
        if table.is_sparse:
            beside = center_work(table.n_features, table.row_values, k)
        return Search(table.n_rows, k, moves, rounds, length, table.is_sparse, beside)

    # --- fewer features first ---------------------------------------------------------------------

    def _directions(self, passes: Passes, rng: Rng) -> tuple[Directions, LeftOut] | None:
        """Return the first directions, and the variance outside; None: begin in all features."""
        assert self.problem is not None
        m, init = self.directions, self.problem.init
        if not isinstance(init, str) or init != "auto" or passes.is_sparse:
            return None
        k = self.problem.n_clusters
        if m == 0 or (
            m != "auto" and (m >= passes.n_features or rows_to_hold(passes.n_rows, m, k) is None)
        ):
            return None
        sample = self._direction_sample(passes, rng)
        if m == "auto":
            found = first_directions(passes, rng, sample, k)
        else:
            found = some_directions(passes, rng, sample, m)
        if found is None or misses_far_rows(passes, sample, len(found[0].vectors), k):
            return None
        return found

    def _direction_sample(self, passes: Passes, rng: Rng) -> Passes:
        """Return rows in random order from which the first directions, or more, are computed."""
        assert self.problem is not None
        first = _sample_sizes(passes, self.problem.n_clusters)[0]
        return self._start_sample(passes, rng, max(first, min(passes.n_rows, 2 * SAMPLE_ROWS)))

    def _projected(
        self, passes: Passes, rng: Rng, directions: Directions, outside: LeftOut
    ) -> TruncatedState:
        """Return the state before the first step, which is one among projected rows."""
        assert self.problem is not None
        n_rows = self._rows_to_hold(passes, directions)
        k, n, m = self.problem.n_clusters, passes.statistics.n_rows, len(directions.vectors)
        n = n_rows or n
        search, sizes = replace(self._search(passes), n_rows=n), sample_sizes(n, m, k)
        schedule = first_schedule(search, sizes)
        if schedule.stage.name == "first":
            # Fetching its rows takes longer than searching the next sample in few directions.
            schedule = first_schedule(search, sizes[1:])
        if asks_few(schedule):
            view = sample = self._few_rows(passes, rng, schedule).subset(ProjectedRows(directions))
        else:
            view = view_of(passes, rng, directions, n_rows)
            sample = self._start_sample(view, rng, sizes[0])
        if schedule.task.kind == "start":
            # The first step makes better ones.
            centers = np.resize(sample.take().x[:k], (k, m))
            coarse = centers[:1]
        else:
            centers, coarse, _ = self._start(view, rng, sample)
        inner = TruncatedState(0, schedule, centers, np.zeros(k), view.statistics.shift, coarse)
        full = first_schedule(self._search(passes))
        return opened(passes, directions, outside, inner, full, n_rows)

    def _few_rows(self, passes: Passes, rng: Rng, schedule: Schedule) -> Passes:
        """Return the rows of a small sample, in all features."""
        return self._start_sample(passes, rng, schedule.sampling.sizes[0])

    def _rows_to_hold(self, passes: Passes, directions: Directions) -> int:
        assert self.problem is not None
        n_rows = rows_to_hold(passes.n_rows, len(directions.vectors), self.problem.n_clusters)
        assert n_rows is not None
        return n_rows

    def _projected_step(
        self, passes: Passes, rng: Rng, state: TruncatedState, projected: Projected
    ) -> tuple[TruncatedState, Info]:
        """Run one step among projected rows; at the end of a round, find means in all features.

        A step on a small sample projects only that, and finds means at once.
        """
        directions = directions_of(projected)
        if asks_few(projected.search.schedule):
            rows = self._few_rows(passes, rng, projected.search.schedule)
            view: Passes = rows.subset(ProjectedRows(directions))
            search, info, done = self._step(passes, rng, projected.search, view)
            assert done.labels is not None
            after = replace(state, step=state.step + 1, projected=replace(projected, search=search))
            after = with_sample_means(rows, done.labels, after, done.scale)
            return after, told(info, after)
        view = view_of(passes, rng, directions, projected.n_rows)
        projected = scaled(passes, view, projected)
        search, info = self.step(view, rng, projected.search)
        after = replace(state, step=state.step + 1, projected=replace(projected, search=search))
        after = seen_ahead(projected.search.schedule, after)
        ends = search.schedule.stage.name == "end"
        if not ends and not begins_round(search):
            return after, told(info, after)
        if not search.restores:
            # Otherwise it goes back to the start of the last round, whose means are known.
            after = with_means(after, *lifted(passes, view, after))
        info = told(info, after)
        if ends or is_done(projected, after) or tells_little(after):
            after = self._widened(passes, rng, after, view)
        return after, info

    def _widened(
        self, passes: Passes, rng: Rng, state: TruncatedState, view: Passes
    ) -> TruncatedState:
        """Return the state in twice as many directions, or in all features if they save little."""
        assert self.problem is not None
        assert state.projected is not None
        known = directions_of(state.projected)
        m, found = 2 * len(known.vectors), None
        if saves(passes, m, self.problem.n_clusters) and not tells_little(state):
            sample = self._direction_sample(passes, rng)
            found = some_directions(passes, rng, sample, m, known)
            if found is not None and misses_far_rows(passes, sample, m, self.problem.n_clusters):
                found = None
        if found is None:
            view.close()
            return in_all_features(state)
        n_rows = self._rows_to_hold(passes, found[0])
        view = view_of(passes, rng, found[0], n_rows)
        return widened(state, view, *found, self._search(view), n_rows)

    def _start_sample(self, passes: Passes, rng: Rng, n: int) -> Passes:
        assert self.problem is not None
        sizes = _sample_sizes(passes, self.problem.n_clusters)
        return passes.subset(RowSample(rng, "start", n, largest=sizes[-1]))

    def _split_sample(self, passes: Passes, rng: Rng) -> Passes:
        assert self.problem is not None
        n = _split_rows(passes.row_values, self.problem.n_clusters)
        return passes.subset(RowSample(rng, "split", n, ascending=True))

    def _start(
        self, passes: Passes, rng: Rng, sample: Passes, known: NDArray[Any] | None = None
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int32]]:
        """Return centres, coarse centres, and first labels of the sample's rows.

        With few clusters of dense rows take the best of several starts, or ``known`` if that is
        better.
        """
        assert self.problem is not None
        x, weight, _ = sample.take()
        k, shift, n_threads = self.problem.n_clusters, sample.statistics.shift, passes.threads.n
        if known is None and not is_restarted(k) and not isinstance(x, SparseBlock):
            return two_level_start(x, weight, k, shift, n_threads)
        if isinstance(x, SparseBlock):
            # Sparse rows have no coarse cells to speak of: one centre represents all.
            mass, grid = np.ones(len(x)) if weight is None else weight, passes.statistics.grid
            if known is None and passes.n_rows > TUNING.largest_share * TUNING.restart_rows * k:
                # Moves mend such a start before a better one is made, unless rows are few.
                generator = rng.generator(0, "rows")
                found = different_rows(x, mass, k, grid, generator, n_threads)
                if found is not None:
                    return found[0], found[0][:1], found[1]
            centers = centers_of_sample(x, mass, k, passes, rng)
            coarse = centers[:1]
            cost = 0.0 if known is None else cost_of(x, weight, centers, shift)
        else:
            starts = n_starts(passes.n_rows, len(x), passes.n_features, k)
            centers, cost = greedy_start(x, weight, k, shift, rng, starts, n_threads)
            coarse = coarse_centers(x, k, shift)
        if known is not None and cost_of(x, weight, known, shift) < cost:
            centers = known
        return centers, coarse, nearest(x, pack_centers(centers, shift))

    def step(self, passes: Passes, rng: Rng, state: TruncatedState) -> tuple[TruncatedState, Info]:
        """Run one pass, and decide what comes next."""
        if state.projected is not None:
            return self._projected_step(passes, rng, state, state.projected)
        return self._step(passes, rng, state, self._sample(passes, rng, state))[:2]

    def _step(
        self, passes: Passes, rng: Rng, state: TruncatedState, sample: Passes | None
    ) -> tuple[TruncatedState, Info, PassDone]:
        """Run a step that is on a sample, or probes it."""
        assert self.problem is not None
        state, origin = self._started(passes, rng, state, sample)
        state = with_neighbours(state, passes.threads.n)
        done = run_pass(passes, state, sample, origin)
        found = ask_sample(passes, state, done, sample)
        far = _far_rows(passes, rng, state, done)
        outcome = Outcome(
            cost=done.cost,
            work=done.work,
            n_changed=done.total.tally.n_changed,
            n_replayed=len(done.history),
            n_moves=0 if found.moves is None else len(found.moves.split),
            misled=found.misled,
            curve=found.curve,
            restart_rows=self._restart_rows(passes, state, far),
            met=done.total.tally.n_evaluated / (done.n_rows * len(done.centers)),
        )
        schedule, back = next_step(state.schedule, outcome, self.problem.tol)
        centers, cost = _centers_after(state, done, goes_on=schedule.goes_on and not back)
        after = replace(
            state,
            step=state.step + 1,
            schedule=schedule,
            centers=centers,
            counts=done.total.sums.counts * done.scale,
            cost=cost,
            everywhere=state.schedule.task.everywhere,
            history=done.history,
            table_age=state.table_age + 1,
            unmet=moved_clusters(state.moves, len(centers)),
            moves=None,
            restores=False,
            failed=failed_splits(state, schedule, back),
            far=far,
        )
        if back:
            after = without_round(after)
        else:
            # Over a sample moves are carried out immediately, but those of rounds are tried.
            after = with_round(after, found.moves, tried=state.schedule.stage.name != "sample")
        leaves_sample = schedule.everywhere and not state.schedule.everywhere
        if sample is not None and state.far is None and leaves_sample:
            sample.close()
        return after, _info(state, done, schedule, back), done

    def _started(
        self, passes: Passes, rng: Rng, state: TruncatedState, sample: Passes | None
    ) -> tuple[TruncatedState, NDArray[np.int32] | None]:
        """Return the state, with new centres if a search begins or starts again.

        Also return the labels of the sample's rows, if the first pass continues from them.
        """
        if state.schedule.task.kind == "start":
            assert sample is not None
            centers, coarse, labels = self._start(passes, rng, sample)
            begun = replace(state, centers=centers, coarse=coarse, history=History())
            return replace(begun, shift=sample.statistics.shift), labels
        if state.schedule.task.restarts:
            assert sample is not None
            centers, coarse, _ = self._start(passes, rng, sample, state.centers)
            state = replace(state, centers=centers, coarse=coarse)
        return state, None

    def _sample(self, passes: Passes, rng: Rng, state: TruncatedState) -> Passes | None:
        """Return the sample that the next step is on, or probes."""
        if state.schedule.task.everywhere:
            if not state.schedule.task.looks:
                return None
            if state.far is None:
                return self._split_sample(passes, rng)
        if state.far is not None:
            return passes.subset(state.far.rows, state.far.shares)
        return self._start_sample(passes, rng, state.schedule.sampling.sizes[0])

    def _restart_rows(self, passes: Passes, state: TruncatedState, far: FarRows | None) -> int:
        """Return the rows of the sample to start again on; 0: continue with the present model."""
        assert self.problem is not None
        if far is None or state.far is not None:
            return 0
        k = self.problem.n_clusters
        whole = _sample_sizes(passes, self.problem.n_clusters)[0] >= passes.n_rows
        if k > TUNING.dense_clusters or (whole and is_restarted(k)):
            return 0
        return len(far.rows)

    def labels(
        self, passes: Passes, rng: Rng, state: TruncatedState
    ) -> tuple[NDArray[np.int32], float, NDArray[np.float64]]:
        """Label rows by ``model(state)``, in one or two passes over few centres.

        For a fit that has no time to search all of them.

        Returns
        -------
        labels : (n,) int32
            -1 for rows of weight 0.
        cost : float
        counts : (k,)
            Weight of the rows of each cluster.
        """
        if state.projected is not None:
            state = in_all_features(state)
        before, dense = state.fallback, state.schedule.dense
        if before is not None:
            # Rows that have met the moved centres go back, unless they meet all anyway.
            restores = state.moves is None and not dense
            state = replace(where_it_began(state, before), restores=restores)
        if not state.everywhere and not dense:
            # Of the other rows only the nearest coarse centre can be found.
            first = Pass("cells", state.centers, state.shift, coarse=state.coarse)
            pass_over(passes, History(), first, state.step + 1, None, retain=False)
            state = replace(
                state, everywhere=True, history=History(1, (first,)), unmet=None, restores=False
            )
        k = len(state.centers)
        task = Task("all", True, k) if dense else Task("lists", True, state.schedule.lengths.usual)
        state = replace(state, schedule=replace(state.schedule, task=task))
        state = with_neighbours(state, passes.threads.n)
        last = next_pass(passes, state)
        total, labels = pass_over(passes, state.history, last, state.step + 1, "all", retain=False)
        assert labels is not None
        cost = total.sums.cost(state.centers, total.squares.value)
        return labels, cost, total.sums.counts

    def share_of_labels(self, table: TableShape, k: int) -> float | None:
        """Estimate the most that ``labels`` takes, as a share of a pass over all centres.

        None: sparse rows meet all of them in any case.
        """
        if table.is_sparse:
            return None
        cells = sqrt(k)
        met = cells + NEAR_CELLS * k / cells + max(TUNING.usual_lengths)
        return min(1.0, GATHERED * (met + 2 * (TUNING.row_work + TUNING.pass_work)) / k)

    def footprint(
        self, table: TableShape, itemsize: int, n_threads: int | None, budget: int | None
    ) -> Footprint:
        """Estimate memory and work: rows meet few centres in a step, all in the last pass.

        A checkpoint has the centres, and their movements, of the passes since the last anchor.
        """
        assert self.problem is not None
        k, looks = self.problem.n_clusters, "now and then, for rows whose bounds are worn out"
        if self.neighbours != "auto":
            distances = self.neighbours + TUNING.row_work
        elif k <= TUNING.dense_clusters or table.is_sparse:
            distances, looks = float(k), "every row, at every step"
        else:
            distances = WORK_OF_A_ROW * sqrt(k)
        return Footprint(
            row_bytes=ROW_BYTES,
            model_copies=DENSE_COPIES if self._search_of(table, k).dense else COPIES,
            held_bytes=self._held_bytes(table, k, itemsize),
            passes_before=0,
            steps=USUAL_STEPS,
            distances=min(distances, float(k)),
            full_search=looks,
        )

    def _held_bytes(self, table: TableShape, k: int, itemsize: int) -> int:
        """Return the bytes of the largest searched sample, its state, and other rows held with it.

        These are projected rows, and later another sample, for splits.
        """
        splits = min(table.n_rows, _split_rows(table.row_values, k))
        searched = bytes_of_held(table, _sample_sizes(table, k)[-1], itemsize, 2 * ROW_BYTES, 2)
        beside = bytes_of_held(table, splits, itemsize, 0)
        if not table.is_sparse and self.directions != 0:
            m = None if self.directions == "auto" else self.directions
            values, rows = most_held(table, k, m)
            # As they are read, and in one piece.
            beside = max(beside, 2 * values * itemsize + rows * (2 * 8 + 2 * ROW_BYTES))
        return searched + beside

    def model(self, state: TruncatedState) -> CenterArrays:
        """Return the centres of the last pass, or those before the last moves until these pay.

        For a search in few directions those of its last round, or its own before there was one.
        """
        projected = state.projected
        if projected is not None and projected.is_ahead:
            own = self.model(projected.search)
            counts = projected.scale * own.counts
            return CenterArrays(seen_back(own.centers, projected), counts, state.shift)
        before = state.fallback
        if before is not None:
            return CenterArrays(before.centers, before.counts, state.shift)
        return CenterArrays(state.centers, state.counts, state.shift)


def run_pass(
    passes: Passes,
    state: TruncatedState,
    sample: Passes | None,
    origin: NDArray[np.int32] | None,
) -> PassDone:
    """Run the next pass; ``with_neighbours`` has made its tables.

    Parameters
    ----------
    passes : Passes
    state : TruncatedState
    sample : Passes or None
        Rows of the pass, or those whose labels are requested.
    origin : (m,) int32 or None
        Labels of the sample's rows, if the pass is the first over them and no anchor.
    """
    task, step = state.schedule.task, state.step + 1
    pass_ = next_pass(passes, state)
    if state.schedule.stage.name == "grow" and state.schedule.cost < float("inf"):
        pass_ = replace(pass_, far=far_from(_mean_cost(passes, state)))
    history = state.history
    if task.everywhere and not state.everywhere:
        history = History()
    if task.everywhere:
        wanted = None if sample is None else sample.take().rows
        total, labels = pass_over(passes, history, pass_, step, wanted)
        n_rows, scale = passes.n_rows, 1.0
    else:
        assert sample is not None
        total, labels = pass_over(sample, history, pass_, step, "all", origin)
        n_rows = sample.n_rows
        scale = passes.statistics.total_weight / sum(total.sums.counts.tolist())
    centers = total.sums.means(state.centers)
    # Packing need not copy a read-only array.
    centers.flags.writeable = False
    cost = scale * total.sums.cost(centers, total.squares.value)
    by_means = scale * total.sums.cost(state.centers, total.squares.value) - cost
    k = len(centers)
    length = k if pass_.kind == "unsettled" else min(k, task.length)
    n_searched = n_rows if pass_.is_anchor else total.tally.n_evaluated // length
    work = total.tally.n_evaluated + TUNING.row_work * n_searched + TUNING.pass_work * n_rows
    if state.table_age == 0:
        work += float(k) * k
    return PassDone(
        pass_=pass_,
        total=total,
        labels=labels,
        n_rows=n_rows,
        scale=scale,
        history=_history_after(state, history, pass_, repeatable=origin is None),
        centers=centers,
        cost=cost,
        by_means=by_means,
        work=work,
    )


def _history_after(
    state: TruncatedState, history: History[Pass], pass_: Pass, *, repeatable: bool
) -> History[Pass]:
    """Return the history of these rows, including this pass."""
    pass_.forget()
    if not repeatable:
        # The labels that it began with are not kept: the next pass has to be an anchor.
        return History(history.generation + 1)
    if not pass_.restore:
        return history.then(pass_.to_keep(), anchor=pass_.is_anchor)
    # Undone passes need not be repeated: from the start of the round it leads here, too.
    assert state.round is not None
    kept = replace(pass_, restore=False).to_keep()
    return history.then(kept, back_to=state.round.n_replayed)


def _sample_sizes(table: TableShape, k: int) -> tuple[int, ...]:
    """Return the rows of the samples that a search among these begins on."""
    n_features = table.n_features if table.is_sparse else None
    return sample_sizes(table.n_rows, table.row_values, k, n_features)


def _split_rows(row_values: int, k: int) -> int:
    """Return the rows of the sample on which splits are tried, if there are as many."""
    return min(SPLIT_ROWS * k, SPLIT_VALUES // row_values)


def _mean_cost(passes: Passes, state: TruncatedState) -> float:
    """Return the mean cost of a row, as estimated by the samples so far."""
    return state.schedule.cost / passes.statistics.total_weight


def _far_rows(passes: Passes, rng: Rng, state: TruncatedState, done: PassDone) -> FarRows | None:
    """Return rows to search on if the far rows found by the pass carry the cost, or None."""
    if not carry_the_cost(done.total.tally.far.value, done.cost + done.by_means):
        return state.far
    counts, mean = done.total.sums.counts, _mean_cost(passes, state)
    return draw_rows(passes, rng, done.history, counts, mean)


def _centers_after(
    state: TruncatedState, done: PassDone, *, goes_on: bool
) -> tuple[NDArray[Any], float]:
    """Return centres for the next step, and the cost of the rows with them."""
    if state.schedule.task.keeps_centers:
        return state.centers, done.cost + done.by_means
    if not goes_on:
        return done.centers, done.cost
    centers = overstep(state.centers, done.centers, state.moves)
    return centers, done.scale * done.total.sums.cost(centers, done.total.squares.value)


def _info(state: TruncatedState, done: PassDone, schedule: Schedule, back: bool) -> Info:
    """Return the record of a step: the state before it, its pass, and the next schedule."""
    task, total, k = state.schedule.task, done.total, len(state.centers)
    readings = max(1, state.n_read + (done.history.generation if task.everywhere else 0))
    return Info(
        cost=done.cost,
        rows=done.n_rows,
        n_changed=total.tally.n_changed,
        converged=schedule.stage.name == "end",
        extra={
            "neighbours": float(k if task.kind in ("all", "unsettled") else task.length),
            "distances": total.tally.n_evaluated / (done.n_rows * k),
            "everywhere": float(task.everywhere),
            "moves": 0.0 if state.moves is None else float(len(state.moves.split)),
            "opens_round": float(state.schedule.opens_round),
            "ends_round": float(ended_round(state.schedule, schedule)),
            "back": float(back),
            "work": done.work,
            "steps_per_reading": (state.step + 1) / readings,
            "by_means": done.by_means,
            "features": float(state.centers.shape[1]),
            "row_state_bytes": float(ROW_BYTES),
        },
    )
