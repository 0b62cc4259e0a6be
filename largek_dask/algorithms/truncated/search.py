"""Truncated search on original or projected rows, from its first sample to all rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Info, Passes, Rng, RowSample, TableShape
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.starts.samples import (
    coarse_centers,
    cost_of,
    different_rows,
    greedy_start,
    n_starts,
    two_level_start,
)
from largek_dask.algorithms.starts.seeding import centers_of_sample, initial_centers
from largek_dask.algorithms.truncated.far import FAR_COST, FAR_DISTANCE, FarSample, draw_rows
from largek_dask.algorithms.truncated.passes import (
    Pass,
    PassDone,
    current_labels,
    given_labels,
    pass_over,
)
from largek_dask.algorithms.truncated.probe import probe_sample
from largek_dask.algorithms.truncated.schedule import (
    DENSE_CLUSTERS,
    LARGEST_SHARE,
    MOST_ROUNDS,
    PASS_WORK,
    RESTART_ROWS,
    RESTARTED_CLUSTERS,
    ROW_WORK,
    Outcome,
    Schedule,
    Setting,
    Task,
    center_work,
    ended_round,
    first_schedule,
    next_step,
    sample_sizes,
)
from largek_dask.algorithms.truncated.state import (
    TruncatedState,
    back_to_round,
    failed_splits,
    next_pass,
    overstep,
    with_moves,
    with_neighbours,
)
from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import SparseBlock
from largek_dask.kernels.distances import nearest, pack_centers

Labels = NDArray[np.int32]


def row_bytes(itemsize: int) -> int:
    """Return the maximum size of the row state (two labels and two distances) in bytes per row."""
    return 2 * 4 + 2 * itemsize


@dataclass(frozen=True)
class TruncatedSearch:
    """Implementation of ``Truncated``, with the same parameters."""

    problem: KMeansProblem
    neighbours: int | Literal["auto"] = "auto"
    moves: bool = True
    rounds: int | Literal["auto"] = "auto"

    def init(self, passes: Passes, rng: Rng) -> TruncatedState:
        if passes.is_sparse and self.neighbours != "auto":
            raise ParameterError(
                f"neighbours={self.neighbours} is not supported for sparse rows, which are "
                "compared with all centres. Use neighbours='auto'."
            )
        k, shift, init = self.problem.n_clusters, passes.statistics.shift, self.problem.init
        guided = isinstance(init, str) and init == "auto"
        samples: tuple[int, ...] = ()
        if guided:
            samples = sample_sizes_of(passes, k)
            sample = self.start_sample(passes, rng, samples[0])
            if samples[0] >= passes.n_rows:
                samples = ()
        schedule = first_schedule(self.setting(passes), samples, guided=guided)
        if not guided:
            centers = initial_centers(passes, rng, k, init)
            coarse = centers[:1]
        elif schedule.task.kind == "start":
            # The first step replaces these centres.
            centers = np.resize(sample.take().x[:k], (k, passes.n_features))
            coarse = centers[:1]
        else:
            centers, coarse, _ = self.start(passes, rng, sample)
        return TruncatedState(0, schedule, centers, np.zeros(k), shift, coarse)

    def setting(self, table: TableShape) -> Setting:
        k, work = self.problem.n_clusters, 0.0
        rounds = MOST_ROUNDS if self.rounds == "auto" else self.rounds
        length = None if self.neighbours == "auto" else self.neighbours
        if table.is_sparse:
            work = center_work(table.n_features, table.row_values, k)
        moves = self.moves and k > 2
        sparse, d = table.is_sparse, table.n_features
        return Setting(table.n_rows, k, moves, rounds, length, sparse, work, d)

    def step(self, passes: Passes, rng: Rng, state: TruncatedState) -> tuple[TruncatedState, Info]:
        """Run a step on a sample or on all rows; probes always use a sample."""
        sample = self._sample(passes, rng, state)
        origin: Labels | None = None
        if state.schedule.task.kind == "start":
            assert sample is not None
            centers, coarse, origin = self.start(passes, rng, sample)
            shift = sample.statistics.shift
            state = replace(state, centers=centers, coarse=coarse, shift=shift, history=History())
        elif state.schedule.task.restarts:
            assert sample is not None
            centers, coarse, _ = self.start(passes, rng, sample, state.centers)
            state = replace(state, centers=centers, coarse=coarse)
        if state.schedule.task.anchors:
            table = passes if sample is None or state.schedule.everywhere else sample
            state = replace(state, history=_anchored(table, state.history))
        n_threads = passes.threads.n
        state = with_neighbours(state, n_threads)
        done = _run_pass(passes, state, sample, origin)
        moves, curve, misled = probe_sample(passes, state, done, sample)
        far, restart_rows = _far_sample(passes, rng, state, done)
        tally, k = done.total.tally, len(done.centers)
        outcome = Outcome(
            cost=done.cost,
            work=done.work,
            n_changed=tally.n_changed,
            n_replayed=len(done.history),
            n_moves=0 if moves is None else len(moves.split),
            misled=misled,
            curve=curve,
            restart_rows=restart_rows,
            met=tally.n_evaluated / (done.n_rows * k),
        )
        schedule, back = next_step(state.schedule, outcome, self.problem.tol)
        continues = schedule.stage.name in ("sample", "round") and schedule.stage.passes > 0
        centers, cost = done.centers, done.cost
        if state.schedule.task.keeps_centers:
            centers, cost = state.centers, done.cost + done.by_means
        elif continues and not back:
            centers = overstep(state.centers, done.centers, state.moves, n_threads)
            cost = done.scale * done.total.sums.cost(centers, done.total.squares.value, n_threads)
        unmet = None if state.moves is None else np.isin(np.arange(k), state.moves.clusters)
        after = replace(
            state,
            step=state.step + 1,
            schedule=schedule,
            centers=centers,
            counts=done.total.sums.counts * done.scale,
            cost=cost,
            everywhere=state.schedule.everywhere,
            history=done.history,
            table_age=state.table_age + 1,
            unmet=unmet,
            moves=None,
            restores=False,
            failed=failed_splits(state, schedule, back),
            far=far,
        )
        if back:
            assert after.round is not None
            after = back_to_round(after, after.round, restores=True)
        else:
            # Moves in the stage "sample" are final; moves in rounds may be undone.
            after = with_moves(after, moves, tried=state.schedule.stage.name != "sample")
        leaves_sample = schedule.everywhere and not state.schedule.everywhere
        if sample is not None and state.far is None and leaves_sample:
            sample.close()
        return after, _info(state, done, schedule, back)

    def _sample(self, passes: Passes, rng: Rng, state: TruncatedState) -> Passes | None:
        """Return the sample of the next step; None if it uses all rows and does not probe."""
        schedule = state.schedule
        if schedule.everywhere and not schedule.task.probes:
            return None
        if state.far is not None:
            return passes.subset(state.far.rows, state.far.shares)
        if not schedule.everywhere:
            return self.start_sample(passes, rng, schedule.n_rows)
        n = split_rows(passes.row_values, self.problem.n_clusters)
        return passes.subset(RowSample(rng, "split", n, ascending=True))

    def start(
        self, passes: Passes, rng: Rng, sample: Passes, known: NDArray[Any] | None = None
    ) -> tuple[NDArray[Any], NDArray[Any], Labels]:
        """Return starting centres, coarse centres, and labels of the rows of the sample.

        For few clusters of dense rows, the best of several starts is used. The centres ``known``
        are returned instead if they have a lower cost.
        """
        x, weight, _ = sample.take()
        k, shift, n_threads = self.problem.n_clusters, sample.statistics.shift, passes.threads.n
        if isinstance(x, SparseBlock):
            # Sparse rows do not need coarse centres, so any centre will do.
            mass, grid = np.ones(len(x)) if weight is None else weight, passes.statistics.grid
            if known is None and passes.n_rows > LARGEST_SHARE * RESTART_ROWS * k:
                # With many rows, moves after a simple start are faster than a better start.
                found = different_rows(x, mass, k, grid, rng.generator(0, "rows"), n_threads)
                if found is not None:
                    return found[0], found[0][:1], found[1]
            centers = centers_of_sample(x, mass, k, passes, rng)
            coarse = centers[:1]
            cost = 0.0 if known is None else cost_of(x, weight, centers, shift)
        elif known is None and k > RESTARTED_CLUSTERS:
            return two_level_start(x, weight, k, shift, n_threads)
        else:
            starts = n_starts(passes.n_rows, len(x), passes.n_features, k)
            centers, cost = greedy_start(x, weight, k, shift, rng, starts, n_threads)
            coarse = coarse_centers(x, k, shift)
        if known is not None and cost_of(x, weight, known, shift) < cost:
            centers = known
        return centers, coarse, nearest(x, pack_centers(centers, shift))

    def start_sample(self, passes: Passes, rng: Rng, n: int) -> Passes:
        """Return ``n`` rows in random order; a smaller sample is a prefix of a larger one."""
        largest = sample_sizes_of(passes, self.problem.n_clusters)[-1]
        return passes.subset(RowSample(rng, "start", n, largest, any_order=True))

    def model(self, state: TruncatedState) -> CenterArrays:
        """Return the centres, or the centres before moves that have not lowered the cost yet."""
        best = state.fallback or state
        return CenterArrays(best.centers, best.counts, state.shift)

    def labels(
        self, passes: Passes, rng: Rng, state: TruncatedState
    ) -> tuple[Labels, float, NDArray[np.float64]]:
        begun, schedule, step = state.fallback, state.schedule, state.step + 1
        if begun is not None:
            # Restore labels from before the moves, unless rows are compared with all centres.
            restores = state.moves is None and not schedule.dense
            state = back_to_round(state, begun, restores=restores)
        if not state.everywhere and not schedule.dense:
            # Rows outside the sample have no labels yet, so they are searched by coarse cells.
            first = Pass("cells", state.centers, state.shift, coarse=state.coarse)
            pass_over(passes, History(), first, step, None, retain=False)
            history = History(1, (first,))
            state = replace(state, everywhere=True, history=history, unmet=None, restores=False)
        task = Task("all" if schedule.dense else "lists", schedule.length)
        state = replace(state, schedule=replace(schedule, task=task))
        state = with_neighbours(state, passes.threads.n)
        last = next_pass(passes, state)
        total, labels = pass_over(passes, state.history, last, step, "all", retain=False)
        assert labels is not None
        cost = total.sums.cost(state.centers, total.squares.value)
        return labels, cost, total.sums.counts


def sample_sizes_of(table: TableShape, k: int) -> tuple[int, ...]:
    """Return the sizes of the samples on which a search begins."""
    n_features = table.n_features if table.is_sparse else None
    return sample_sizes(table.n_rows, table.row_values, k, n_features)


def split_rows(row_values: int, k: int) -> int:
    """Return the maximum size of the sample on which splits are tried."""
    return min(256 * k, (1 << 26) // row_values)


def _anchored(table: Passes, history: History[Pass]) -> History[Pass]:
    """Return a history in which the labels of the rows replace all passes."""
    assert history.last is not None
    labels, last = current_labels(table, history), history.last
    return given_labels(last.centers, last.shift, labels, history.generation)


def _run_pass(
    passes: Passes, state: TruncatedState, sample: Passes | None, origin: Labels | None
) -> PassDone:
    """Run the next pass over all rows or over the sample; call ``with_neighbours`` first.

    ``origin`` (m,) are the initial labels of the sample, if this first pass is not an anchor.
    """
    schedule, step = state.schedule, state.step + 1
    task, pass_, history = schedule.task, next_pass(passes, state), state.history
    if schedule.stage.name == "grow" and schedule.cost < float("inf"):
        mean = schedule.cost / passes.statistics.total_weight
        pass_ = replace(pass_, far=FAR_DISTANCE * mean)
    if schedule.everywhere:
        rows = None if sample is None else sample.take().rows
        history = history if state.everywhere else History()
        total, labels = pass_over(passes, history, pass_, step, rows)
        n_rows, scale = passes.n_rows, 1.0
    else:
        assert sample is not None
        wanted: Literal["all"] | None = "all" if task.probes else None
        total, labels = pass_over(sample, history, pass_, step, wanted, origin)
        n_rows = sample.n_rows
        scale = passes.statistics.total_weight / sum(total.sums.counts.tolist())
    pass_.forget()
    if origin is not None:
        # Initial labels are not stored, so this pass cannot be replayed: an anchor must follow.
        history = History(history.generation + 1)
    else:
        # Undone passes are not replayed: a restoring pass follows the passes before the round.
        back_to = state.round.n_replayed if pass_.restore and state.round else None
        history = history.then(pass_.to_keep(), anchor=pass_.is_anchor, back_to=back_to)
    n_threads, squares = passes.threads.n, total.squares.value
    centers = total.sums.means(state.centers, n_threads)
    # Read-only arrays are packed without a copy.
    centers.flags.writeable = False
    cost = scale * total.sums.cost(centers, squares, n_threads)
    by_means = scale * total.sums.cost(state.centers, squares, n_threads) - cost
    k, n_evaluated = len(centers), total.tally.n_evaluated
    length = k if pass_.kind == "unsettled" else min(k, task.length)
    n_searched = n_rows if pass_.is_anchor else n_evaluated // length
    work = n_evaluated + ROW_WORK * n_searched + PASS_WORK * n_rows
    if state.table_age == 0:
        work += float(k) * k
    return PassDone(pass_, total, labels, n_rows, scale, history, centers, cost, by_means, work)


def _far_sample(
    passes: Passes, rng: Rng, state: TruncatedState, done: PassDone
) -> tuple[FarSample | None, int]:
    """Draw a sample with far rows if these account for much of the cost of the pass.

    Also returns the size of the sample if the search has to start again on it, otherwise 0.
    """
    if not done.total.tally.far.value > FAR_COST * (done.cost + done.by_means):
        return state.far, 0
    mean, k = state.schedule.cost / passes.statistics.total_weight, len(state.centers)
    far = draw_rows(passes, rng, done.history, done.total.sums.counts, mean)
    known = k <= RESTARTED_CLUSTERS and sample_sizes_of(passes, k)[0] >= passes.n_rows
    restarts = state.far is None and k <= DENSE_CLUSTERS and not known
    return far, len(far.rows) if restarts else 0


def _info(state: TruncatedState, done: PassDone, schedule: Schedule, back: bool) -> Info:
    task, tally, k = state.schedule.task, done.total.tally, len(state.centers)
    readings = max(1, state.n_read + (done.history.generation if state.schedule.everywhere else 0))
    return Info(
        cost=done.cost,
        rows=done.n_rows,
        n_changed=tally.n_changed,
        converged=schedule.stage.name == "end",
        extra={
            "neighbours": float(k if task.kind in ("all", "unsettled") else task.length),
            "distances": tally.n_evaluated / (done.n_rows * k),
            "everywhere": float(state.schedule.everywhere),
            "moves": 0.0 if state.moves is None else float(len(state.moves.split)),
            "opens_round": float(state.schedule.opens_round),
            "ends_round": float(ended_round(state.schedule, schedule)),
            "back": float(back),
            "work": done.work,
            "steps_per_reading": (state.step + 1) / readings,
            "by_means": done.by_means,
            "features": float(state.centers.shape[1]),
        },
    )
