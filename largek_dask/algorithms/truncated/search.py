"""The truncated search among rows of whatever features, from its first sample to all rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Info, Passes, Rng, RowSample, TableShape
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.projected import Project, Standing
from largek_dask.algorithms.starts.dense_sample import (
    coarse_centers,
    cost_of,
    greedy_start,
    n_starts,
    two_level_start,
)
from largek_dask.algorithms.starts.seeding import centers_of_sample, initial_centers
from largek_dask.algorithms.starts.sparse_sample import different_rows
from largek_dask.algorithms.truncated.far import FarRows, carry_the_cost, draw_rows, far_from
from largek_dask.algorithms.truncated.passes import (
    STATE,
    Pass,
    PassDone,
    RowArrays,
    pass_over,
    read_row_state,
)
from largek_dask.algorithms.truncated.probe import ask_sample
from largek_dask.algorithms.truncated.schedule import (
    MOST_ROUNDS,
    TUNING,
    Outcome,
    Schedule,
    Setting,
    Task,
    center_work,
    ended_round,
    first_schedule,
    is_restarted,
    next_step,
    on_all_rows,
    sample_sizes,
)
from largek_dask.algorithms.truncated.state import (
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

__all__ = ["ROW_BYTES", "TruncatedSearch", "sample_sizes_of", "split_rows"]

SPLIT_ROWS = 256
"""Maximum rows per centre of the sample on which splits are tried."""
SPLIT_VALUES = 1 << 26
"""Maximum values (rows times features) of that sample."""
ROW_BYTES = 16
"""Bytes per row: label, two distances, and the label to go back to."""


@dataclass(frozen=True)
class TruncatedSearch:
    """The search that ``Truncated`` describes, with the same parameters."""

    problem: KMeansProblem
    neighbours: int | Literal["auto"] = "auto"
    moves: bool = True
    rounds: int | Literal["auto"] = "auto"
    row_state: ClassVar[str] = STATE

    @property
    def _k(self) -> int:
        return self.problem.n_clusters

    def init(self, passes: Passes, rng: Rng) -> TruncatedState:
        """Return the state before the first step among these rows."""
        if passes.is_sparse and self.neighbours != "auto":
            raise ParameterError(
                f"neighbours={self.neighbours} is for dense rows, and these are sparse, which meet "
                "all centres: leave it at 'auto'."
            )
        k, shift = self._k, passes.statistics.shift
        if isinstance(self.problem.init, str) and self.problem.init == "auto":
            first, *larger = sample_sizes_of(passes, k)
            sample = self.first_sample(passes, rng)
            centers, coarse, _ = self._start(passes, rng, sample)
            samples = () if first >= passes.n_rows else (first, *larger)
            guided = True
        else:
            centers = initial_centers(passes, rng, k, self.problem.init)
            coarse, samples, guided = centers[:1], (), False
        schedule = first_schedule(self.setting(passes), samples, guided=guided)
        return TruncatedState(0, schedule, centers, np.zeros(k), shift, coarse)

    def setting(self, table: TableShape) -> Setting:
        """Return the problem of a search among the rows of a table."""
        k, beside = self._k, 0.0
        rounds = MOST_ROUNDS if self.rounds == "auto" else self.rounds
        length = None if self.neighbours == "auto" else self.neighbours
        if table.is_sparse:
            beside = center_work(table.n_features, table.row_values, k)
        moves = self.moves and k > 2
        return Setting(table.n_rows, k, moves, rounds, length, table.is_sparse, beside)

    # --- steps ------------------------------------------------------------------------------------

    def step(self, passes: Passes, rng: Rng, state: TruncatedState) -> tuple[TruncatedState, Info]:
        """Run one pass, and decide what comes next."""
        return self._step(passes, rng, state, self._sample(passes, rng, state))[:2]

    def _step(
        self, passes: Passes, rng: Rng, state: TruncatedState, sample: Passes | None
    ) -> tuple[TruncatedState, Info, PassDone]:
        """Run a step that is on a sample, or probes it."""
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

    def _restart_rows(self, passes: Passes, state: TruncatedState, far: FarRows | None) -> int:
        """Return the rows of the sample to start again on; 0: continue with the present model."""
        if far is None or state.far is not None:
            return 0
        k = self._k
        whole = sample_sizes_of(passes, k)[0] >= passes.n_rows
        if k > TUNING.dense_clusters or (whole and is_restarted(k)):
            return 0
        return len(far.rows)

    def _start(
        self, passes: Passes, rng: Rng, sample: Passes, known: NDArray[Any] | None = None
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int32]]:
        """Return centres, coarse centres, and first labels of the sample's rows.

        With few clusters of dense rows take the best of several starts, or ``known`` if that is
        better.
        """
        x, weight, _ = sample.take()
        k, shift, n_threads = self._k, sample.statistics.shift, passes.threads.n
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

    # --- samples ----------------------------------------------------------------------------------

    def first_sample(self, passes: Passes, rng: Rng, least: int = 0) -> Passes:
        """Return the rows that the search begins on, at least so many, in random order."""
        return self._start_sample(passes, rng, max(least, sample_sizes_of(passes, self._k)[0]))

    def _start_sample(self, passes: Passes, rng: Rng, n: int) -> Passes:
        largest = sample_sizes_of(passes, self._k)[-1]
        return passes.subset(RowSample(rng, "start", n, largest=largest))

    def _sample(self, passes: Passes, rng: Rng, state: TruncatedState) -> Passes | None:
        """Return the sample that the next step is on, or probes."""
        if state.schedule.task.everywhere:
            if not state.schedule.task.looks:
                return None
            if state.far is None:
                n = split_rows(passes.row_values, self._k)
                return passes.subset(RowSample(rng, "split", n, ascending=True))
        if state.far is not None:
            return passes.subset(state.far.rows, state.far.shares)
        return self._start_sample(passes, rng, state.schedule.sampling.sizes[0])

    # --- results ----------------------------------------------------------------------------------

    def model(self, state: TruncatedState) -> CenterArrays:
        """Return the centres of the last pass, or those before the last moves until these pay."""
        best = state.fallback or state
        return CenterArrays(best.centers, best.counts, state.shift)

    def labels(
        self, passes: Passes, rng: Rng, state: TruncatedState
    ) -> tuple[NDArray[np.int32], float, NDArray[np.float64]]:
        """Label rows by ``model(state)``, in one or two passes over few centres."""
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

    # --- among projected rows ---------------------------------------------------------------------

    def begin(
        self, passes: Passes, rng: Rng, shape: tuple[int, int], project: Project
    ) -> TruncatedState:
        """Return the state before the first step among projected rows of this shape."""
        (n, m), k = shape, self._k
        setting, sizes = replace(self.setting(passes), n_rows=n), sample_sizes(n, m, k)
        schedule = first_schedule(setting, sizes)
        if schedule.stage.name == "first":
            # Fetching its rows takes longer than searching the next sample in few directions.
            schedule = first_schedule(setting, sizes[1:])
        few = self._few(passes, rng, schedule)
        view = project(few)
        sample = self._start_sample(view, rng, sizes[0]) if few is None else view
        if schedule.task.kind == "start":
            # The first step makes better ones.
            centers = np.resize(sample.take().x[:k], (k, m))
            coarse = centers[:1]
        else:
            centers, coarse, _ = self._start(view, rng, sample)
        return TruncatedState(0, schedule, centers, np.zeros(k), view.statistics.shift, coarse)

    def few(self, passes: Passes, rng: Rng, state: TruncatedState) -> Passes | None:
        """Return the rows of the next step if these are a small sample."""
        return self._few(passes, rng, state.schedule)

    def _few(self, passes: Passes, rng: Rng, schedule: Schedule) -> Passes | None:
        sizes = schedule.sampling.sizes
        if not sizes or schedule.searched or sizes[0] >= schedule.setting.n_rows:
            return None
        return self._start_sample(passes, rng, sizes[0])

    def step_on(
        self, passes: Passes, rng: Rng, state: TruncatedState, sample: Passes
    ) -> tuple[TruncatedState, Info, NDArray[np.int32], float]:
        """Run one step on a sample; also return its labels, and the ratio of all weight to its."""
        after, info, done = self._step(passes, rng, state, sample)
        assert done.labels is not None
        return after, info, done.labels, done.scale

    def standing(self, state: TruncatedState) -> Standing:
        """Return the progress of the search."""
        schedule, ended = state.schedule, state.schedule.stage.name == "end"
        sizes = schedule.sampling.sizes
        n_rows = sizes[0] if sizes else schedule.setting.n_rows
        begins = schedule.everywhere and state.everywhere and schedule.opens_round
        return Standing(schedule.cost, n_rows, begins or ended, ended, state.restores)

    def labels_of(self, passes: Passes, state: TruncatedState) -> NDArray[np.int32]:
        """Return the labels of all rows after the last step."""
        found: dict[int, NDArray[np.int32]] = read_row_state(
            passes, state.history, _show_labels, start=dict, combine=dict.__or__
        )
        return np.concatenate([found[begin] for begin in sorted(found)])

    def rescaled(self, state: TruncatedState, factor: float) -> TruncatedState:
        """Return the state with all costs multiplied."""
        schedule, stage = state.schedule, state.schedule.stage
        stage = replace(stage, cost_before=factor * stage.cost_before)
        schedule = replace(schedule, cost=factor * schedule.cost, stage=stage)
        return replace(state, schedule=schedule, cost=factor * state.cost)

    def continued(self, passes: Passes, state: TruncatedState, **found: Any) -> TruncatedState:
        """Return the state of a search of these rows that continues another one."""
        schedule = on_all_rows(state.schedule, self.setting(passes))
        schedule = replace(schedule, cost=found.get("cost", schedule.cost))
        return TruncatedState(state.step, schedule, shift=passes.statistics.shift, **found)


def _show_labels(
    first: int,
    weight: NDArray[np.float64] | None,
    rows: RowArrays,
    total: dict[int, NDArray[np.int32]],
) -> None:
    total[first] = rows.labels


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


def sample_sizes_of(table: TableShape, k: int) -> tuple[int, ...]:
    """Return the rows of the samples that a search among these begins on."""
    n_features = table.n_features if table.is_sparse else None
    return sample_sizes(table.n_rows, table.row_values, k, n_features)


def split_rows(row_values: int, k: int) -> int:
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
