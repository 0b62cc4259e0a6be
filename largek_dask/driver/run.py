"""Step loop for any algorithm, with history, checkpoints, events and stop rules."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

from largek_dask.algorithms.base import Algorithm, Info, ModelArrays, Rng
from largek_dask.algorithms.objective import Objective
from largek_dask.driver.checkpoint import Checkpoints, Progress
from largek_dask.driver.compile_watch import CompileWatch
from largek_dask.driver.events import FORMAT, Events
from largek_dask.driver.formatting import short_number
from largek_dask.driver.stopping import (
    MOST_STEPS,
    StepRecord,
    StopReason,
    StopRules,
    last_steps,
    record_of,
    sample_of,
)
from largek_dask.errors import CancelledFit, NoModelError
from largek_dask.fault_injection import at
from largek_dask.kernels.compiling import checked_by, seconds_ahead
from largek_dask.passes.base import BasePasses
from largek_dask.version import __version__

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State after a step, passed to callbacks."""

    record: StepRecord
    history: Sequence[StepRecord]
    """History that grows during later steps; :meth:`steps` ends with this step."""
    model: Callable[[], ModelArrays]
    objective: Objective

    def steps(self) -> list[StepRecord]:
        """Return the history up to this step."""
        return last_steps(self.history, self.record["step"])


Callback = Callable[[Snapshot], object]
"""Function called after every step; a true result stops the fit."""


class Reserve(NamedTuple):
    """Part of a time limit that is reserved for the last pass, in seconds."""

    last_pass: float = 0.0
    """Estimated seconds of the last pass."""
    kept_back: float = 0.0
    """Seconds before the time limit at which steps end; reduced if the last pass is too long but
    can be skipped."""


@dataclass(frozen=True, slots=True)
class RunResult(Generic[State]):
    arrays: ModelArrays
    n_iter: int
    history: tuple[StepRecord, ...]
    stop_reason: StopReason
    state: State
    seconds: float
    """Seconds used, including earlier runs."""
    begun: float
    """Start of ``seconds``, as a value of ``time.monotonic()``."""
    reserve: Reserve


def state_class(algorithm: Algorithm[State, Any]) -> type[State]:
    """Return the class of an algorithm's state, from the annotation of its ``init``."""
    return get_type_hints(type(algorithm).init)["return"]  # type: ignore[no-any-return]


def never() -> bool:
    return False


@dataclass(slots=True)
class Run(Generic[State]):
    """Run the steps of an algorithm until a stop rule applies, resuming from a saved checkpoint.

    ``algorithm`` is bound to a problem. The ``stop`` rules may differ from those of the run that
    wrote the checkpoint. ``cancelled`` is called between and during steps. ``seconds_used`` is the
    time spent before this run, such as on a scan of the rows or on other starts. If there is a time
    limit, ``last_pass`` is called once with a model and the remaining seconds, and returns the time
    to reserve. ``watch`` tracks compilation during the whole fit.
    """

    algorithm: Algorithm[State, Any]
    passes: BasePasses
    _: KW_ONLY
    rng: Rng
    stop: StopRules
    checkpoints: Checkpoints[State] | None = None
    events: Events = field(default_factory=Events)
    cancelled: Callable[[], bool] = never
    callbacks: Sequence[Callback] = ()
    seconds_used: float = 0.0
    last_pass: Callable[[ModelArrays, float], Reserve] | None = None
    watch: CompileWatch = field(default_factory=lambda: CompileWatch(Events()))
    clock: Clock = field(init=False)
    progress: Progress[State] | None = field(init=False)
    """Progress after the last complete step; None before the first state. The object is replaced
    atomically, so that an interrupt finds either the old or the new object."""
    reserve: Reserve = field(default_factory=Reserve, init=False)
    meter: _Meter = field(init=False)

    def __post_init__(self) -> None:
        latest = None if self.checkpoints is None else self.checkpoints.latest
        self.progress = before = None if latest is None else self.passes.retry(latest)
        used = self.seconds_used if before is None else max(self.seconds_used, before.seconds)
        self.clock, self.meter = Clock(used, self.stop), _Meter(self.passes, self.watch)

    @property
    def _now(self) -> Progress[State]:
        assert self.progress is not None
        return self.progress

    def result(self) -> RunResult[State]:
        """Run all steps and return the result of the last complete step.

        Raises NoModelError or KeyboardInterrupt if a time limit, a cancel or Ctrl-C stops the run
        before there is any state, and KeyboardInterrupt at a second Ctrl-C.
        """
        self._report_start()
        reason: StopReason
        before_run = self.passes.cancelled
        self.passes.cancelled = lambda: (
            self.watch.report() or self.cancelled() or self.clock.is_over()
        )
        try:
            # Do not compile kernels after the time limit.
            with checked_by(self.passes.raise_if_stopped):
                self._begin()
                reason = self._loop()
        except CancelledFit as cut:
            reason = "max_time" if self.clock.is_over() else "cancelled"
            if self.progress is None:
                raise no_model(self.clock, self.stop) from cut
        except KeyboardInterrupt:
            reason = "interrupted"
            if self.progress is None:
                raise
        finally:
            self.passes.cancelled = before_run
        self._save_if_due(always=True)
        return self._end(reason)

    def _report_start(self) -> None:
        self.events.emit(
            "started",
            format=FORMAT,
            version=__version__,
            n_rows=self.passes.n_rows,
            n_features=self.passes.n_features,
            n_chunks=self.passes.n_chunks,
            n_workers=self.passes.n_workers,
            workers=list(self.passes.workers),
            n_iter=0 if self.progress is None else self.progress.n_iter,
            **self.algorithm.problem.objective.describe(),
        )

    def _begin(self) -> None:
        """Create the first state if there is none, and reserve time for the last pass."""
        if self.progress is None:
            state = self.algorithm.init(self.passes, self.rng)
            self.progress = Progress(state, 0, [], self.clock.seconds())
        if self.last_pass is not None and not math.isinf(self.stop.seconds):
            left = self.stop.seconds - self.clock.seconds()
            self.reserve = self.last_pass(self.algorithm.model(self.progress.state), left)
            self.clock.kept_back = self.reserve.kept_back

    def _loop(self) -> StopReason:
        reason = self._reason()
        while reason is None:
            self._save_if_due()
            with at("step"):
                state, info = self.algorithm.step(self.passes, self.rng, self._now.state)
            self.progress = self._advance(state, info)
            self._report_step()
            reason = self._reason()
            if self._call_callbacks() and reason is None:
                reason = "callback"
        return reason

    def _reason(self) -> StopReason | None:
        now, seconds = self._now, self.clock.seconds() + self.clock.kept_back
        last = now.history[-1] if now.history else None
        reason = self.stop.reason(last, now.n_iter, seconds, self.algorithm.change)
        return "cancelled" if reason is None and self.cancelled() else reason

    def _advance(self, state: State, info: Info) -> Progress[State]:
        """Return the progress after a step.

        Successive ``Progress`` objects share one growing history, and each ignores records of later
        steps. The history is shortened when it reaches twice its maximum length.
        """
        n_iter, seconds, history = self._now.n_iter + 1, self.clock.seconds(), self._now.history
        assert isinstance(history, list)
        if len(history) >= 2 * MOST_STEPS:
            history = history[-MOST_STEPS:]
        history.append(record_of(n_iter, info, seconds))
        return Progress(state, n_iter, history, seconds)

    def _call_callbacks(self) -> bool:
        """Call all callbacks, even if one stops the fit; return whether one does."""
        if not self.callbacks:
            return False
        now, algorithm = self._now, self.algorithm
        model, objective = lambda: algorithm.model(now.state), algorithm.problem.objective
        snapshot = Snapshot(now.history[-1], now.history, model, objective)
        answers = [bool(callback(snapshot)) for callback in self.callbacks]
        return any(answers)

    def _save_if_due(self, *, always: bool = False) -> None:
        """Write a checkpoint if one is due; warn if writing fails."""
        checkpoints, n_iter = self.checkpoints, self._now.n_iter
        if checkpoints is None or not (always or checkpoints.due()):
            return
        begin = time.monotonic()
        try:
            is_new = checkpoints.save(self._now)
        except OSError as error:
            # A failed checkpoint does not stop the fit.
            if always or not checkpoints.has_failed:
                then = "" if always else "; it will be retried"
                message = f"the checkpoint after step {n_iter} is not written: {error}{then}"
                self.events.emit("warning", topic="checkpoint", message=message)
            checkpoints.has_failed = True
            return
        checkpoints.has_failed = False
        if is_new:
            seconds, url = time.monotonic() - begin, checkpoints.folder.url
            self.events.emit("checkpoint", n_iter=n_iter, url=url, seconds=seconds)

    def _report_step(self) -> None:
        if not self.events:
            return
        seconds, counts = self.meter.since_last()
        now, total = self._now, seconds["total"]
        record, working = now.history[-1], total - seconds["compile"]
        sample = sample_of(record, self.passes.n_rows)
        share, left = self._share_and_left(now, sample)
        self.events.emit(
            "step",
            **{**record, "seconds": {kind: short_number(spent) for kind, spent in seconds.items()}},
            **counts,
            sample=sample,
            rows_per_second=short_number(record["rows"] / working) if working > 0 else None,
            elapsed=round(now.seconds, 6),
            eta_s=None if left is None else short_number(left),
            share=None if left is None else short_number(share),
        )

    def _share_and_left(
        self, now: Progress[State], sample: int | None
    ) -> tuple[float, float | None]:
        """Return the fraction of the limit that is used, and the maximum remaining seconds.

        The fraction never decreases. The remaining time is unknown while samples grow, because
        later steps take longer, but it is known for mini-batches of a fixed size.
        """
        start, starts = self.events.start
        by_time = now.seconds / self.stop.seconds
        by_steps = (start + now.n_iter / self.stop.max_iter) / starts
        if by_time >= by_steps:
            return min(1.0, by_time), max(0.0, self.stop.seconds - now.seconds)
        at_work = now.seconds - self.watch.seconds(self.passes)
        first, last = now.history[0], now.history[-1]
        is_batch = first["rows"] == last["rows"] and "everywhere" not in last["extra"]
        is_known = sample is None or is_batch
        left = at_work * (1 / by_steps - 1) if is_known else None
        return by_steps, left

    def _end(self, reason: StopReason) -> RunResult[State]:
        now, clock = self._now, self.clock
        history = tuple(now.records())
        cost = history[-1]["cost"] if history else None
        elapsed = clock.seconds()
        self.events.emit("stopped", reason=reason, n_iter=now.n_iter, cost=cost, elapsed=elapsed)
        arrays, used = self.algorithm.model(now.state), clock.seconds()
        return RunResult(
            arrays, now.n_iter, history, reason, now.state, used, clock.begun, self.reserve
        )


def no_model(clock: Clock, stop: StopRules) -> NoModelError:
    """Return the error to raise if a fit stops before it has a model."""
    if clock.is_over():
        return NoModelError(
            f"The time limit (max_time={stop.seconds:g} s) passed before there was a model; "
            "allow more time, start workers if there are none, or choose a cheaper init such as "
            "'random'.",
            "max_time",
        )
    return NoModelError("The fit was cancelled before there was a model: fit again.", "cancelled")


class Clock:
    """Clock that measures the time used so far, and checks it against a limit."""

    def __init__(self, used_before: float, stop: StopRules) -> None:
        self.begun = time.monotonic() - used_before
        self._limit = stop.seconds
        self._was_over = False
        self.kept_back = 0.0
        """Seconds reserved for the work after the last step."""

    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def is_over(self) -> bool:
        """Return whether the limit is reached, or would be reached by compiling the next kernel.

        Once the result is True, it stays True, because a kernel may have been left uncompiled.
        """
        if not self._was_over and self._limit < math.inf:
            wanted = self.kept_back + seconds_ahead()
            self._was_over = self.seconds() + wanted >= self._limit
        return self._was_over


COUNTS = ("retries", "rebuilt", "evictions")


class _Meter:
    """Measure the time and other costs of passes since the last call."""

    def __init__(self, passes: BasePasses, watch: CompileWatch) -> None:
        self._passes = passes
        self._watch = watch
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        spent = self._passes.total
        return {
            "passes": spent.seconds,
            "total": time.monotonic(),
            "compile": self._watch.seconds(self._passes),
            **{name: getattr(spent, name) for name in ("compute", "read", "wait", "reduce")},
            "driver": self._passes.subset_seconds,
            "bytes": spent.bytes_read + spent.bytes_moved,
            **{name: getattr(spent, name) for name in COUNTS},
        }

    def since_last(self) -> tuple[dict[str, float], dict[str, int]]:
        """Return seconds and counts by kind; see the event ``step`` in ``driver.events``.

        Seconds are summed over threads, but ``total`` and ``compile`` (a part of ``total``) are
        wall time. On a cluster, ``driver`` includes the wall time between passes.
        """
        now, before = self._now(), self._before
        self._before = now
        spent = {key: now[key] - before[key] for key in now}
        between = spent["total"] - spent.pop("passes")
        if self._passes.n_workers:
            spent["driver"] = max(spent["driver"], between)
        counts = {key: int(spent.pop(key)) for key in ("bytes", *COUNTS)}
        total = self._passes.total
        return spent, counts | {"state_bytes": total.state_bytes, "cache_bytes": total.cache_bytes}
