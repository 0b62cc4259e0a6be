"""Truncated search with moves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Info, KMeansProblem, ModelArrays, Passes, Rng, TableShape
from largek_dask.algorithms.seeding import initial_centers
from largek_dask.algorithms.truncated_engines import run_everywhere, run_on_sample, take_sample
from largek_dask.algorithms.truncated_look import Labelled, gains_of_lists, gains_of_splits
from largek_dask.algorithms.truncated_moves import (
    Moves,
    choose_moves,
    lists_of,
    lists_with_moves,
    reach_of,
)
from largek_dask.algorithms.truncated_plan import PASS_WORK, ROW_WORK, Outcome, Plan
from largek_dask.algorithms.truncated_rows import Order, PassTotal
from largek_dask.algorithms.truncated_start import cells_order, coarse_centers, two_level_start
from largek_dask.errors import ParameterError
from largek_dask.kernels.distances import pack_centers
from largek_dask.kernels.movement import squared_movements
from largek_dask.kernels.neighbours import nearest_centers
from largek_dask.kernels.truncated import loss_scale

__all__ = ["Truncated", "TruncatedState"]

START_ROWS = 64
"""Rows a centre of the sample that the search begins on."""
SPLIT_ROWS = 256
"""Rows a centre of the sample on which splits are tried, at most."""
SPLIT_VALUES = 1 << 26
"""Values (rows times features) of that sample, at most."""
SPLITS = 5
"""Clusters in which a split is tried, for each that may be made."""
TABLE_AGE = 6
"""Passes after which neighbours are found anew."""
WIDTH = 64
"""Nearest centres that are found for every centre."""


@dataclass(frozen=True, slots=True)
class Round:
    """Where to go back to if moves do not pay."""

    centers: NDArray[Any]
    counts: NDArray[np.float64]
    replay: tuple[Order, ...]
    table: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TruncatedState:
    """Between two steps."""

    step: int
    plan: Plan
    centers: NDArray[Any]
    """(k, d) centres that the next step assigns rows to."""
    counts: NDArray[np.float64]
    """(k,) weight of the rows of each cluster in the last assignment, scaled to all rows."""
    shift: NDArray[Any]
    """(d,) origin about which the kernels compute."""
    coarse: NDArray[Any]
    """(about sqrt(k), d) coarse centres."""
    everywhere: bool = False
    """Passes were over all rows, not over the sample."""
    generation: int = 0
    """Passes over the present rows."""
    replay: tuple[Order, ...] = ()
    """Those since the last anchor."""
    table: NDArray[np.int32] | None = None
    """(k, m) nearest centres of each centre, itself first."""
    age: int = 0
    """Passes since the table was made."""
    strange: NDArray[np.bool_] | None = None
    """(k,) clusters whose rows have not met the list of their cluster."""
    moves: Moves | None = None
    """Moves that the next step carries out; ``centers`` is after them."""
    round: Round | None = None
    restores: bool = False
    """The next step goes back to where the last round began."""


@dataclass(frozen=True)
class Truncated:
    """Truncated search with moves of centres: few distances a row, and no lasting poor optimum."""

    neighbours: int | Literal["auto"] = "auto"
    moves: bool = True
    rounds: int | Literal["auto"] = "auto"
    problem: KMeansProblem | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        for name, value, least in (("neighbours", self.neighbours, 2), ("rounds", self.rounds, 0)):
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
            if value != "auto" and not whole:
                raise ParameterError(
                    f"{name} must be 'auto' or an integer of at least {least}, got {value!r}."
                )
        if not isinstance(self.moves, bool):
            raise ParameterError(f"moves must be True or False, got {self.moves!r}.")

    def init(self, passes: Passes, rng: Rng) -> TruncatedState:
        """Starting centres."""
        assert self.problem is not None
        if passes.is_sparse:
            raise ParameterError("Truncated needs dense rows, and these are sparse; use NMBatch.")
        k, shift = self.problem.n_clusters, passes.statistics.shift
        named = not isinstance(self.problem.init, str) or self.problem.init != "auto"
        sample = self._start_sample(passes, rng)
        x, n_threads = sample.held.x, passes.driver_threads
        if named:
            centers = initial_centers(passes, rng, k, self.problem.init)
            coarse = coarse_centers(x, k, shift)
        else:
            weight = sample.held.weight
            centers, coarse, sample.held.origin = two_level_start(x, weight, k, shift, n_threads)
        rounds = None if self.rounds == "auto" else self.rounds
        length = None if self.neighbours == "auto" else self.neighbours
        plan = Plan.first(self.moves and k > 2, rounds, length, k, sampled=not named)
        return TruncatedState(0, plan, centers, np.zeros(k), shift, coarse)

    def _start_sample(self, passes: Passes, rng: Rng) -> Any:
        assert self.problem is not None
        n = START_ROWS * self.problem.n_clusters
        return take_sample(passes, rng, n, "start", ascending=False)

    def _split_sample(self, passes: Passes, rng: Rng) -> Any:
        assert self.problem is not None
        n = min(SPLIT_ROWS * self.problem.n_clusters, SPLIT_VALUES // passes.n_features)
        return take_sample(passes, rng, n, "split", ascending=True)

    def step(
        self, passes: Passes, rng: Rng, state: TruncatedState
    ) -> tuple[TruncatedState, Info]:
        """One pass, and what comes next."""
        task, k = state.plan.task, len(state.centers)
        step = state.step + 1
        everywhere = task.everywhere
        # The first pass over all rows begins anew.
        table, age, work = state.table, state.age, 0.0
        if task.kind in ("lists", "rest") and (table is None or state.moves is not None or age >= TABLE_AGE):
            width = min(k, max(WIDTH, task.length))
            table = nearest_centers(
                pack_centers(state.centers, state.shift), width, passes.driver_threads
            )
            age, work = 0, float(k * k)
        order = self._order(passes, state, table)
        generation = 1 if everywhere and not state.everywhere else state.generation + 1
        replay = () if order.is_anchor else state.replay
        wanted = sample = None
        if everywhere:
            if task.looks:
                sample = self._split_sample(passes, rng)
                wanted = sample.rows
            total, labels = run_everywhere(passes, generation, replay, order, step, wanted)
            n_rows, scale = passes.n_rows, 1.0
        else:
            sample = self._start_sample(passes, rng)
            if sample.held.origin is None:
                held = sample.held
                held.origin = two_level_start(
                    held.x, held.weight, k, state.shift, passes.driver_threads
                )[2]
            total = run_on_sample(sample, generation, replay, order, step, passes)
            labels = sample.held.rows.labels
            n_rows = len(sample.rows)
            scale = passes.statistics.total_weight / max(1.0, total.sums.counts.sum())
        centers, counts = total.sums.means(state.centers), total.sums.counts
        cost = total.sums.cost(centers, total.squares)
        length = k if task.kind in ("all", "rest") else task.length
        n_looked = n_rows if order.is_anchor else total.n_evaluated // max(1, min(length, k))
        work += total.n_evaluated + ROW_WORK * n_looked + PASS_WORK * n_rows
        if order.restore:
            # Rows that were lost go straight to where the round began.
            assert state.round is not None
            replay = state.round.replay
            order = replace(order, restore=False, drift=np.zeros(k), reach=np.full(k, np.inf))
        replay = (*replay, order)
        moves, curve = None, ()
        if task.looks:
            rows = _labelled(sample, labels, total.sums.counts)
            if everywhere:
                curve = gains_of_lists(rows, centers, state.shift)
            if state.plan.moves:
                moves = self._choose(state, total, centers, rows, table, order.loss_steps, passes.driver_threads)
        done = Outcome(
            cost * scale, work, n_rows, n_looked, total.n_changed, k, len(replay),
            0 if moves is None else len(moves.split), curve,
        )
        plan, back = state.plan.after(done)
        extra = {
            "neighbours": float(k if task.kind in ("all", "rest") else task.length),
            "distances": total.n_evaluated / (n_rows * k),
            "everywhere": float(everywhere),
            "work": work,
            "moves": 0.0 if state.moves is None else float(len(state.moves.split)),
            "opens_round": float(state.plan.opens_round),
            "ends_round": float(plan.n_rounds > state.plan.n_rounds),
            "back": float(back),
        }
        info = Info(
            cost=cost * scale, rows=n_rows, n_changed=total.n_changed,
            converged=plan.stage == "end", extra=extra,
        )
        strange = None
        if state.moves is not None:
            strange = np.zeros(k, np.bool_)
            strange[state.moves.split] = strange[state.moves.removed] = True
        after = TruncatedState(
            step, plan, centers, counts * scale, state.shift, state.coarse, everywhere, generation, replay,
            table, age + 1, strange, None, state.round, False,
        )
        if back:
            assert state.round is not None
            after = replace(after, centers=state.round.centers, counts=state.round.counts, restores=True, table=state.round.table, strange=None)
        elif plan.stage == "round" and plan.passes == 0:
            after = replace(after, round=Round(centers, counts, replay, table))
            if moves is not None and len(moves.split):
                after = replace(after, centers=moves.apply(centers), moves=moves)
        elif plan.stage == "grow" and moves is not None:
            after = replace(after, centers=moves.apply(centers))
        return after, info

    def _order(self, passes: Passes, state: TruncatedState, table: Any) -> Order:
        task, centers, shift = state.plan.task, state.centers, state.shift
        max_loss = steps = 0.0
        if task.looks:
            statistics = passes.statistics
            # Beyond so many times the mean a row's part tells nothing more.
            max_loss = min(
                4 * passes.n_features * statistics.max_abs**2,
                2.0**20 * state.plan.cost / statistics.total_weight,
            )
            # With all rows on their centres any scale will do.
            max_loss = max_loss if max_loss > 0 else 1.0
            steps = loss_scale(max_loss, statistics.total_weight)
        if task.kind == "all":
            return Order("all", centers, shift)
        if task.kind == "cells":
            return cells_order(centers, state.coarse, shift)
        if state.moves is not None:
            offsets, listed = lists_with_moves(table, task.length, state.table, state.moves)
        else:
            offsets, listed = lists_of(table, task.length)
        k = len(centers)
        if state.restores:
            return Order("lists", centers, shift, offsets, listed, skip=False, restore=True, max_loss=max_loss, loss_steps=steps)
        before = state.replay[-1].centers if state.replay else centers
        drift = np.sqrt(squared_movements(centers, before))
        moved, strange = None, state.strange
        if state.moves is not None:
            moved = np.concatenate([state.moves.split, state.moves.removed])
            drift[moved] = 0
            strange = np.zeros(k, np.bool_) if strange is None else strange.copy()
            strange[moved] = True
        reach = reach_of(drift, offsets, listed, strange, moved)
        if not state.replay:
            reach[:] = np.inf
        if task.kind == "rest":
            offsets = listed = None
        return Order(
            task.kind, centers, shift, offsets, listed, None, drift, reach,
            skip=not task.looks, save=state.plan.opens_round, max_loss=max_loss, loss_steps=steps,
        )

    def _choose(
        self,
        state: TruncatedState,
        total: PassTotal,
        centers: NDArray[Any],
        rows: Labelled,
        table: NDArray[np.int32],
        steps: float,
        n_threads: int,
    ) -> Moves:
        """The moves that may pay."""
        assert total.losses is not None
        losses, costs = total.losses / steps
        k = len(centers)
        most = max(1, int(state.plan.share * k))
        # What costs most has most to gain.
        wanted = np.argsort(-costs, kind="stable")[: max(SPLITS * most, k // 4)]
        gains, halves = gains_of_splits(rows, centers, np.sort(wanted), n_threads)
        return choose_moves(losses, gains, halves, table, most, state.plan.factor)

    def row_bytes(self, table: TableShape, k: int, budget: int | None) -> int:
        """Bytes that are kept for every row, at most."""
        return 16

    def model(self, state: TruncatedState) -> ModelArrays:
        """The centres that the next step would assign rows to, moves that are not tried yet left out."""
        if state.plan.opens_round and state.round is not None:
            return ModelArrays(state.round.centers, state.round.counts, state.shift)
        return ModelArrays(state.centers, state.counts, state.shift)


def _labelled(sample: Any, labels: NDArray[np.int32], counts: NDArray[np.float64]) -> Labelled:
    """The sample as the pass has labelled it."""
    x, weight = sample.held.x, sample.held.weight
    mass = float(len(x)) if weight is None else sum(weight.tolist())
    return Labelled(x, weight, labels, sum(counts.tolist()) / mass)
