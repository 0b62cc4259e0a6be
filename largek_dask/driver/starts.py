"""Run the ``n_init`` starts of a fit and return the best, or read the best from checkpoints."""

from __future__ import annotations

import functools
import itertools
import json
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from largek_dask.algorithms.auto import Auto
from largek_dask.algorithms.base import Algorithm, ModelArrays, Rng
from largek_dask.algorithms.mixture import MixtureProblem
from largek_dask.algorithms.names import ALGORITHMS, algorithm_of_mixture
from largek_dask.algorithms.objective import Objective
from largek_dask.algorithms.problem import Final, LabelRows, Problem
from largek_dask.algorithms.randomness import TakenRows
from largek_dask.driver.checkpoint import Checkpoints, description_in
from largek_dask.driver.compile_watch import CompileWatch
from largek_dask.driver.events import Events
from largek_dask.driver.final import label_rows, seconds_of_last_pass, sizes_of
from largek_dask.driver.formatting import human_seconds
from largek_dask.driver.labels import LabelStore
from largek_dask.driver.options import FitOptions
from largek_dask.driver.run import Callback, Reserve, Run, RunResult, state_class
from largek_dask.driver.stopping import StepRecord, StopReason
from largek_dask.driver.storage import DamagedError, Folder
from largek_dask.errors import (
    CancelledFit,
    LostJobError,
    NoModelError,
    ParameterWarning,
    RecoveryWarning,
    warn,
)
from largek_dask.passes.base import BasePasses

ENDS_FIT = (
    "max_time",
    "max_time_without_last_pass",
    "max_time_without_search",
    "callback",
    "cancelled",
    "interrupted",
)
"""Stop reasons that end the whole fit, not only one start."""
SLACK, SLACK_SECONDS = 1.05, 0.05
"""Tolerated excess over the time limit, as a factor and in seconds; not tuned."""
MOST_KEPT = 0.8
"""Maximum fraction of the remaining time reserved for a last pass that is too long; not tuned."""
LONG = 60.0
"""Minimum duration of a last pass for a warning that the fit ends late; not tuned."""
ROWS_SECONDS = 20.0
"""Timeout for reading the rows of a fallback model, in seconds."""
FALLBACK_ROWS, FALLBACK_ROWS_PER_CLUSTER, FALLBACK_CHUNKS = 2_048, 4, 4
"""Minimum number of rows for a fallback model, in total and per cluster, and number of stored
chunks that are read for them; not tuned."""
WITHOUT = ("converged", "tol", "max_iter", "max_time")
"""Stop reasons after which the last pass is skipped if it does not fit in the time limit."""


@dataclass(frozen=True, slots=True)
class StartResult:
    stream: int
    run: RunResult[Any]
    reason: StopReason
    value: float | None
    """Exact objective over all rows; None if the fit was cancelled."""
    final: Final | None
    """Result of the last pass; None if the fit was cancelled."""
    labelled: bool = False
    """Whether labels are in ``final`` or in storage."""
    seconds: float = 0.0
    """Seconds used by all runs of the fit, including reading, compiling and the last pass."""


@dataclass(frozen=True, slots=True)
class Starts:
    """Run the starts of a fit; ``algorithm`` is bound to a problem, and ``out`` stores labels."""

    passes: BasePasses
    algorithm: Algorithm[Any, Any]
    options: FitOptions
    folder: Folder | None
    events: Events
    cancelled: Callable[[], bool]
    callbacks: Sequence[Callback]
    labels: bool
    """Whether labels are requested, in memory or in ``out``."""
    out: LabelStore | None
    watch: CompileWatch
    label_share: float | None

    @property
    def _problem(self) -> Problem:
        problem: Problem = self.algorithm.problem
        return problem

    def best(self, n_init: int, seconds: float) -> StartResult:
        """Run all starts and return the best; ``seconds`` were already used for other work."""
        best: StartResult | None = None
        begun = time.monotonic() - seconds
        objective = self._problem.objective
        for stream in range(n_init):
            try:
                outcome = self._run_start(stream, seconds, n_init)
            except (KeyboardInterrupt, NoModelError) as stopped:
                if best is not None:
                    reason = stopped.reason if isinstance(stopped, NoModelError) else "interrupted"
                    best = replace(best, reason=reason)
                elif (best := self._fallback(stopped, stream, begun)) is None:
                    raise
                break
            # A resumed start includes the time of earlier runs.
            begun = min(begun, outcome.run.begun)
            seconds = time.monotonic() - begun
            if best is None or objective.is_better(outcome.value, best.value):
                best = outcome
            if outcome.reason in ENDS_FIT:
                best = replace(best, reason=outcome.reason)
                break
        assert best is not None
        if n_init > 1:
            self.events.emit(
                "best", start=best.stream, starts=n_init, reason=best.reason,
                n_iter=best.run.n_iter, value=best.value, elapsed=time.monotonic() - begun,
                **objective.describe(),
            )  # fmt: skip
        lacks_labels = self.labels and not best.labelled
        if best.reason != "cancelled" and (best.final is None or lacks_labels):
            best = replace(best, final=self._last_pass(best.run, labels=self.labels, out=self.out))
        arrays = best.run.arrays if best.final is None else best.final.arrays
        if self.events and (sizes := sizes_of(arrays.counts)):
            self.events.emit("sizes", **sizes)
        return replace(best, seconds=time.monotonic() - begun)

    def _fallback(self, stopped: BaseException, stream: int, begun: float) -> StartResult | None:
        """Return a fallback result if the time limit was reached before there was a model."""
        if not isinstance(stopped, NoModelError) or stopped.reason != "max_time":
            return None
        reason: StopReason = "max_time_without_search"
        seconds = time.monotonic() - begun
        self.events.emit("stopped", reason=reason, n_iter=0, cost=None, elapsed=seconds)
        draws = Rng(self.options.seed, stream).generator(0, "unsearched")
        # Set a new deadline, because waiting for workers may have used all the time.
        before, self.passes.deadline = self.passes.deadline, time.monotonic() + ROWS_SECONDS
        try:
            rows = sample_stored_rows(self.passes, self._problem.n_clusters, draws)
        except CancelledFit:
            return None
        finally:
            self.passes.deadline = before
        arrays = self._problem.unsearched(rows, self.passes.statistics.shift, draws)
        if arrays is None:
            return None
        result: RunResult[Any] = RunResult(
            arrays, 0, (), "max_time", None, seconds, begun, Reserve()
        )
        final = self._last_pass(result, labels=self.labels, out=self.out)
        return StartResult(stream, result, reason, final.value, final, labelled=self.labels)

    def _run_start(self, stream: int, seconds: float, n_init: int) -> StartResult:
        alone, folder, objective = n_init == 1, self.folder, self._problem.objective
        if folder is not None and stream > 0:
            folder = folder.sub(f"starts/{stream:02d}")
        checkpoints = None
        if folder is not None:
            checkpoints = Checkpoints(folder, state_class(self.algorithm))
        self.passes.begin_run()
        result = Run(
            self._algorithm(stream),
            self.passes,
            rng=Rng(self.options.seed, stream),
            stop=self.options.stop,
            checkpoints=checkpoints,
            events=self.events if alone else self.events.with_context(start=stream, starts=n_init),
            cancelled=self.cancelled,
            callbacks=self.callbacks,
            seconds_used=seconds,
            last_pass=self._reserve,
            watch=self.watch,
        ).result()
        reason = result.stop_reason
        if reason in WITHOUT and self._share_without() is not None and self._is_late(result):
            reason, final = "max_time_without_last_pass", self._labels_of_search(stream, result)
            return StartResult(stream, result, reason, final.value, final, labelled=True)
        if reason == "cancelled":
            return StartResult(stream, result, reason, None, None)
        if alone:
            final = self._last_pass(result, labels=self.labels, out=self.out)
            return StartResult(stream, result, reason, final.value, final, labelled=self.labels)
        if folder is not None:
            known = self.passes.retry(lambda: _counted_value(folder, result.n_iter, objective))
            if known is not None:
                return StartResult(stream, result, reason, known, None)
        labels = self.labels and self.out is None
        final = self._last_pass(result, labels=labels, out=None)
        if folder is not None:
            note = {"n_iter": result.n_iter, objective.name: final.value.hex()}
            try:
                folder.publish("counted.json", json.dumps(note).encode())
            except OSError as error:
                # A resumed fit computes this value again.
                message = f"the {objective.words} of start {stream} is not saved: {error}"
                self.events.emit("warning", topic="checkpoint", message=message)
        return StartResult(stream, result, reason, final.value, final, labels)

    def _algorithm(self, stream: int) -> Algorithm[Any, Any]:
        """Return the algorithm of one start, with the start's own initial centres if given."""
        init = self._problem.init
        if isinstance(init, str) or init.ndim != 3:
            return self.algorithm
        return self.algorithm.bind(replace(self._problem, init=init[stream]))

    def _reserve(self, arrays: ModelArrays, left: float) -> Reserve:
        """Return how much of the remaining seconds ``left`` to reserve for the last pass."""
        full = seconds_of_last_pass(self.passes, self._problem.labelling(arrays))
        share, most = self._share_without(), MOST_KEPT * left
        if share is not None and full > most:
            return Reserve(full, min(share * full, most))
        if not 0 < left < full:
            return Reserve(full, full)
        # The fit exceeds its time limit anyway, so let the steps use their time.
        if full >= LONG:
            self._warn_late(full, left)
        return Reserve(full, most)

    def _warn_late(self, full: float, left: float) -> None:
        """Warn that the last pass alone takes longer than the remaining time."""
        limit = self.options.stop.seconds
        warn(
            f"max_time={human_seconds(limit)} cannot be kept: {human_seconds(left)} are left, and "
            f"the last pass over all rows alone takes about {human_seconds(full)}. Stop and allow "
            f"more than {human_seconds(limit - left + full)}, or use fewer clusters.",
            ParameterWarning,
        )

    def _share_without(self) -> float | None:
        """Return the cost of labels relative to a last pass; None if labels need that pass."""
        if not self.labels or self.out is not None:
            return None
        return self.label_share

    def _is_late(self, result: RunResult[Any]) -> bool:
        most = max(SLACK * self.options.stop.seconds, self.options.stop.seconds + SLACK_SECONDS)
        return result.seconds + result.reserve.last_pass > most

    def _labels_of_search(self, stream: int, result: RunResult[Any]) -> Final:
        """Return the labels from the search, which compared each row with only a few centres."""
        rng = Rng(self.options.seed, stream)
        algorithm = self._algorithm(stream)
        labels, value, counts = algorithm.labels(self.passes, rng, result.state)
        arrays = replace(result.arrays, counts=counts)
        return Final(arrays, value, labels, int(np.count_nonzero(counts == 0)))

    def _last_pass(self, result: RunResult[Any], *, labels: bool, out: LabelStore | None) -> Final:
        n_rows = self.passes.n_rows
        label: LabelRows = functools.partial(
            label_rows,
            self.passes,
            labels=labels,
            out=out,
            report=lambda rows: self.events.emit("labels", rows=rows, n_rows=n_rows),
        )
        return self._problem.finish(self.passes, result.arrays, label)


def sample_stored_rows(passes: BasePasses, k: int, draws: np.random.Generator) -> TakenRows:
    """Draw at least ``k`` rows of positive weight, if they exist, from a few chunks."""
    order, table = draws.permutation(passes.n_chunks), passes.chunk_table
    wanted, n_read = max(FALLBACK_ROWS, FALLBACK_ROWS_PER_CLUSTER * k), FALLBACK_CHUNKS
    while True:
        there = np.concatenate([np.arange(table[i], table[i + 1]) for i in order[:n_read]])
        drawn = draws.choice(there, min(wanted, len(there)), replace=False)
        taken = passes.take(np.sort(drawn))
        if taken.weight is not None:
            some = np.flatnonzero(taken.weight > 0)
            taken = TakenRows(taken.x[some], taken.weight[some], taken.rows[some])
        if len(taken.x) >= k or len(drawn) == passes.n_rows:
            return taken
        wanted, n_read = 2 * wanted, 2 * n_read


def kind_of_problem(algorithm: Algorithm[Any, Any], mixture: str | None) -> type[Problem]:
    return algorithm.solves if mixture is None else MixtureProblem


@dataclass(frozen=True, slots=True)
class SavedStart:
    """The last checkpoint of a start."""

    stream: int
    arrays: ModelArrays
    n_iter: int
    history: tuple[StepRecord, ...]
    seconds: float
    """Seconds used so far by all runs."""
    objective: Objective
    value: float | None
    """Exact objective over all rows; None unless the start has ended."""


def best_saved(folder: Folder) -> SavedStart | None:
    """Return the start that a fit would return if stopped now, or None without a checkpoint.

    Returns the best start that has ended, otherwise the first start, as ``Starts.best`` does.
    Neither rows nor workers are needed. Damaged checkpoints are skipped with a RecoveryWarning.
    """
    about = description_in(folder)
    mixture = None if about is None else about["job"].get("mixture")
    algorithms, best = _algorithms(), None
    for stream, place in _starts_in(folder):
        progress = _checkpoints_in(place, algorithms).latest()
        if progress is None:
            continue
        algorithm = algorithms[type(progress.state)]
        # The model and objective may depend on the kind of problem.
        algorithm = algorithm if mixture is None else algorithm_of_mixture(algorithm, mixture)
        algorithm = algorithm.bind(kind_of_problem(algorithm, mixture)(n_clusters=1))
        objective = algorithm.problem.objective
        value = _counted_value(place, progress.n_iter, objective)
        if best is None or objective.is_better(value, best.value):
            best = SavedStart(
                stream, algorithm.model(progress.state), progress.n_iter,
                tuple(progress.records()), progress.seconds, objective, value,
            )  # fmt: skip
    return best


def keep_last_checkpoints(folder: Folder) -> None:
    """Remove all checkpoints except the newest intact checkpoint of each start.

    Raises LostJobError if another scheduler has the job. Other failures only give a warning.
    """
    try:
        for _, place in _starts_in(folder):
            _checkpoints_in(place, _algorithms()).keep_last()
    except LostJobError:
        raise
    except Exception as error:  # Storage drivers raise various exception classes.
        warn(f"Old checkpoints in {folder.url} are not removed: {error}", RecoveryWarning)


def _starts_in(folder: Folder) -> Iterator[tuple[int, Folder]]:
    yield 0, folder
    for stream in itertools.count(1):
        if not (place := folder.sub(f"starts/{stream:02d}")).names():
            return
        yield stream, place


def _algorithms() -> dict[type[Any], Algorithm[Any, Any]]:
    """Return all algorithms by the class of their state."""
    made = (kind() for kind in ALGORITHMS.values() if kind is not Auto)
    states = ((state_class(algorithm), algorithm) for algorithm in made)
    return {kind: algorithm for state, algorithm in states for kind in get_args(state) or (state,)}


def _checkpoints_in(place: Folder, states: Iterable[type[Any]]) -> Checkpoints[Any]:
    return Checkpoints(place, functools.reduce(operator.or_, states))


def _counted_value(folder: Folder, n_iter: int, objective: Objective) -> float | None:
    """Return the exact value after ``n_iter`` steps if an earlier run has computed it."""
    try:
        note = json.loads(folder.read("counted.json"))
        return float.fromhex(note[objective.name]) if note["n_iter"] == n_iter else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, DamagedError):
        return None  # The file is damaged, so the value is computed again.
