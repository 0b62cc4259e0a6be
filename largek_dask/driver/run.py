"""The loop: the only one in the package.

It knows neither what an algorithm computes nor where. It steps, keeps the history, writes
checkpoints, tells the world, and stops.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar, get_type_hints

from largek_dask.algorithms.base import Algorithm, Info, ModelArrays, Rng
from largek_dask.algorithms.objective import Objective
from largek_dask.driver.checkpoint import Checkpoints, Progress
from largek_dask.driver.compile_watch import CompileWatch
from largek_dask.driver.events import FORMAT, TREND, Events, estimate_end
from largek_dask.driver.formatting import short_number
from largek_dask.driver.history import MOST_STEPS, sample_of, thinned, up_to
from largek_dask.driver.sizes import Sizes
from largek_dask.driver.stopping import StepRecord, StopReason, StopRules, record_of
from largek_dask.driver.worker_columns import WorkerColumns
from largek_dask.errors import CancelledFit, NoModelError
from largek_dask.fault_injection import at
from largek_dask.kernels.compiling import asked_before, seconds_ahead
from largek_dask.passes.base import BasePasses
from largek_dask.version import __version__

__all__ = [
    "Callback",
    "Clock",
    "Reserve",
    "RunResult",
    "Snapshot",
    "no_model",
    "run",
    "state_class",
]

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a callback sees after a step."""

    record: StepRecord
    history: Sequence[StepRecord]
    """It goes on growing; of many steps not all are kept, see ``driver.history``."""
    model: Callable[[], ModelArrays]
    """Makes the model as it is now."""
    objective: Objective
    """What ``cost`` in the records is of."""

    def steps(self) -> list[StepRecord]:
        """The history up to this step."""
        return thinned(up_to(self.record["step"], self.history), self.objective)


Callback = Callable[[Snapshot], object]
"""Called after every step; a true result stops the fit."""


class Reserve(NamedTuple):
    """What the last pass means for a time limit, in seconds."""

    last_pass: float = 0.0
    """How long it is going to take, about; infinite where its kernels would have to be compiled and
    there is no time to."""
    kept_back: float = 0.0
    """How much sooner the steps end: less where it does not fit, and can be done without."""


@dataclass(frozen=True, slots=True)
class RunResult(Generic[State]):
    """How a run ended."""

    arrays: ModelArrays
    n_iter: int
    history: tuple[StepRecord, ...]
    stop_reason: StopReason
    state: State
    seconds: float
    """Seconds used, earlier runs included."""
    begun: float
    """Time of ``time.monotonic()`` from which these seconds count."""
    reserve: Reserve
    """What was kept back from the time limit for the last pass."""


def state_class(algorithm: Algorithm[State]) -> type[State]:
    """The class of an algorithm's state, from the annotation of its ``init``."""
    return get_type_hints(type(algorithm).init)["return"]  # type: ignore[no-any-return]


def run(
    algorithm: Algorithm[State],
    passes: BasePasses,
    *,
    rng: Rng,
    stop: StopRules,
    checkpoints: Checkpoints[State] | None = None,
    events: Events | None = None,
    cancelled: Callable[[], bool] | None = None,
    callbacks: Sequence[Callback] = (),
    seconds_used: float = 0.0,
    last_pass: Callable[[ModelArrays, float], Reserve] | None = None,
    watch: CompileWatch | None = None,
) -> RunResult[State]:
    """Step until a rule says stop, from the newest checkpoint if there is one.

    The result is that of the last complete step, the best so far where no step makes the objective
    worse; a step that was cut leaves nothing behind.

    Parameters
    ----------
    algorithm : Algorithm
        With its problem set.
    passes : LocalPasses or ClusterPasses
        The data.
    rng : Rng
        Seed and start.
    stop : StopRules
        The limits; they may differ from those of the run that wrote the checkpoint.
    checkpoints : Checkpoints, optional
        Where to resume from and write to. The last step is always written.
    events : Events, optional
    cancelled : callable, optional
        Asked between steps and inside them.
    callbacks : sequence of Callback
    seconds_used : float
        Time used before this run (a scan of the rows, other starts).
    last_pass : callable, optional
        Tells for a model and the seconds left of ``max_time`` what to keep back of them for what
        comes after the last step; called once, and only where there is such a limit.
    watch : CompileWatch, optional
        Of the whole fit.

    Returns
    -------
    RunResult

    Raises
    ------
    NoModelError
        The time limit or a cancel came before there was any state.
    KeyboardInterrupt
        Ctrl-C came before there was any state, or a second time during the first.
    """
    events = Events() if events is None else events
    before = passes.retry(checkpoints.latest) if checkpoints else None
    used = seconds_used if before is None else max(seconds_used, before.seconds)
    clock, asked = Clock(used, stop), cancelled or _never
    watch = CompileWatch(events) if watch is None else watch
    loop = _Loop(
        algorithm, passes, rng, stop, checkpoints, events, asked, callbacks, clock, watch, before
    )
    loop.tell_start()
    reason: StopReason
    before_run = passes.cancelled
    passes.cancelled = lambda: watch.report() or asked() or clock.is_over()
    try:
        reason = loop.go(last_pass)
    except CancelledFit as cut:
        reason = "max_time" if clock.is_over() else "cancelled"
        if loop.progress is None:
            raise no_model(clock, stop) from cut
    except KeyboardInterrupt:
        reason = "interrupted"
        if loop.progress is None:
            raise
    finally:
        passes.cancelled = before_run
    loop.save_if_due(always=True)
    return loop.end(reason)


def _never() -> bool:
    return False


@dataclass(slots=True)
class _Loop(Generic[State]):
    """A run under way."""

    algorithm: Algorithm[State]
    passes: BasePasses
    rng: Rng
    stop: StopRules
    checkpoints: Checkpoints[State] | None
    events: Events
    asked: Callable[[], bool]
    """Whether somebody has asked for a stop."""
    callbacks: Sequence[Callback]
    clock: Clock
    watch: CompileWatch
    progress: Progress[State] | None
    """After the last complete step; None before there is any state. Always one whole object, so
    that a stop finds either it or the one before."""
    reserve: Reserve = field(default_factory=Reserve)
    meter: _Meter = field(init=False)
    workers: WorkerColumns = field(init=False)
    sizes: Sizes = field(init=False)
    recent: deque[StepRecord] = field(init=False)
    """The last steps of this run, their seconds without those in which kernels were compiled."""

    def __post_init__(self) -> None:
        self.meter = _Meter(self.passes, self.watch)
        self.workers = WorkerColumns(self.passes.by_worker, self.passes.left, time.monotonic)
        self.sizes = Sizes(time.monotonic)
        self.recent = deque(maxlen=TREND + 1)

    @property
    def _now(self) -> Progress[State]:
        assert self.progress is not None
        return self.progress

    def tell_start(self) -> None:
        """Send the event of a run that begins, or goes on."""
        self.events.emit(
            "started",
            format=FORMAT,
            version=__version__,
            n_rows=self.passes.n_rows,
            n_features=self.passes.n_features,
            n_chunks=self.passes.n_chunks,
            n_workers=self.passes.n_workers,
            n_iter=0 if self.progress is None else self.progress.n_iter,
            **self.algorithm.objective.told(),
        )

    def go(self, last_pass: Callable[[ModelArrays, float], Reserve] | None) -> StopReason:
        """Make a first state and step; what is not compiled when the time is over stays so."""
        with asked_before(self.passes.raise_if_stopped):
            self.begin(last_pass)
            return self.go_on()

    def begin(self, last_pass: Callable[[ModelArrays, float], Reserve] | None) -> None:
        """Make the first state unless there is one, and keep time back for the last pass."""
        if self.progress is None:
            state = self.algorithm.init(self.passes, self.rng)
            self.progress = Progress(state, 0, [], self.clock.seconds())
        if last_pass is not None and not math.isinf(self.stop.seconds):
            left = self.stop.seconds - self.clock.seconds()
            # What a stop leaves: nobody knows how long it is going to take.
            self.reserve = Reserve(math.inf)
            self.reserve = last_pass(self.algorithm.model(self.progress.state), left)
            self.clock.kept_back = self.reserve.kept_back

    def go_on(self) -> StopReason:
        """Step until there is a reason to stop."""
        reason = self._reason()
        while reason is None:
            self.save_if_due()
            with at("step"):
                state, info = self.algorithm.step(self.passes, self.rng, self._now.state)
            self.progress = self._after(state, info)
            self._tell()
            reason = self._reason()
            if self._any_says_stop() and reason is None:
                reason = "callback"
        return reason

    def _reason(self) -> StopReason | None:
        """Why to stop between two steps."""
        now, seconds = self._now, self.clock.seconds() + self.clock.kept_back
        last = now.history[-1] if now.history else None
        reason = self.stop.reason(last, now.n_iter, seconds, self.algorithm.objective)
        if reason is None and self.asked():
            return "cancelled"
        return reason

    def _after(self, state: State, info: Info) -> Progress[State]:
        """The progress after a step.

        Those that follow each other share one growing history, of which each counts only the
        records of its own steps. When it has grown to twice what is kept in the end, it is thinned.
        """
        n_iter, seconds, history = self._now.n_iter + 1, self.clock.seconds(), self._now.history
        assert isinstance(history, list)
        if len(history) >= 2 * MOST_STEPS:
            history = thinned(history, self.algorithm.objective)
        history.append(record_of(n_iter, info, seconds))
        return Progress(state, n_iter, history, seconds)

    def _any_says_stop(self) -> bool:
        """Call every callback, whether or not one before it said stop."""
        if not self.callbacks:
            return False
        now, algorithm = self._now, self.algorithm
        snapshot = Snapshot(
            now.history[-1], now.history, lambda: algorithm.model(now.state), algorithm.objective
        )
        answers = [bool(callback(snapshot)) for callback in self.callbacks]
        return any(answers)

    def save_if_due(self, *, always: bool = False) -> None:
        """Write a checkpoint if it is time for one; say so if it cannot be written."""
        checkpoints, n_iter = self.checkpoints, self._now.n_iter
        if checkpoints is None or not (always or checkpoints.due()):
            return
        begin, url = time.monotonic(), checkpoints.folder.url
        try:
            is_new = checkpoints.save(self._now)
        except OSError as error:
            # A fit is worth more than what it would go on from.
            if always or not checkpoints.has_failed:
                then = "" if always else "; it is tried again until one is written"
                message = f"no checkpoint after step {n_iter}: {error}{then}"
                self.events.emit("warning", topic="checkpoint", message=message)
            checkpoints.has_failed = True
            return
        checkpoints.has_failed = False
        if is_new:
            seconds = time.monotonic() - begin
            self.events.emit("checkpoint", n_iter=n_iter, url=url, seconds=seconds)

    def _tell(self) -> None:
        """Send the event of the last step."""
        if not self.events:
            return
        seconds, counts = self.meter.since_last()
        now, total = self._now, seconds["total"]
        record, working = now.history[-1], total - seconds["compile"]
        at_work = record["seconds"] - self.watch.seconds(self.passes)
        self.recent.append({**record, "seconds": at_work})
        start, starts = self.events.start
        limit, left = estimate_end(
            list(self.recent),
            self.stop,
            now.seconds,
            self.passes.n_rows,
            self.algorithm.objective,
            starts - start - 1,
        )
        # Neither falls from one step, or start, to the next, whichever of them is going to end it.
        share = max(
            now.seconds / self.stop.seconds, (start + now.n_iter / self.stop.max_iter) / starts
        )
        self.events.emit(
            "step",
            **{**record, "seconds": {kind: short_number(spent) for kind, spent in seconds.items()}},
            **counts,
            sample=sample_of(record, self.passes.n_rows),
            rows_per_second=short_number(record["rows"] / working) if working > 0 else None,
            elapsed=round(now.seconds, 6),
            eta_s=None if left is None else short_number(left),
            limited_by=limit,
            share=None if left is None else short_number(min(1.0, share)),
        )
        if told := self.workers.due():
            self.events.emit("workers", **told)
        if told := self.sizes.due(lambda: self.algorithm.model(now.state).counts):
            self.events.emit("sizes", **told)

    def end(self, reason: StopReason) -> RunResult[State]:
        """Say that the run has ended, and how."""
        now = self._now
        history = tuple(now.records(self.algorithm.objective))
        self.events.emit(
            "stopped",
            reason=reason,
            n_iter=now.n_iter,
            cost=history[-1]["cost"] if history else None,
            elapsed=self.clock.seconds(),
        )
        return RunResult(
            self.algorithm.model(now.state),
            now.n_iter,
            history,
            reason,
            now.state,
            self.clock.seconds(),
            self.clock.begun,
            self.reserve,
        )


def no_model(clock: Clock, stop: StopRules) -> NoModelError:
    """The error of a stop that came before there was anything to return."""
    if clock.is_over():
        return NoModelError(
            f"The time limit (max_time={stop.seconds:g} s) passed before there was a model; "
            "allow more time, or choose a cheaper init such as 'random'.",
            "max_time",
        )
    return NoModelError(
        "The fit was cancelled before there was a model: fit again, from a checkpoint if it has "
        "one.",
        "cancelled",
    )


class Clock:
    """Seconds used so far, and whether they are used up."""

    def __init__(self, used_before: float, stop: StopRules) -> None:
        self.begun = time.monotonic() - used_before
        self._limit = stop.seconds
        self._was_over = False
        self.kept_back = 0.0
        """Seconds that are wanted after the last step."""

    def seconds(self) -> float:
        """Seconds used so far."""
        return time.monotonic() - self.begun

    def is_over(self) -> bool:
        """Whether the limit is reached, or a kernel would have to be compiled beyond it.

        Then it stays so: what was left out is not there.
        """
        if not self._was_over and self._limit < math.inf:
            wanted = self.kept_back + seconds_ahead()
            self._was_over = self.seconds() + wanted >= self._limit
        return self._was_over


class _Meter:
    """What the passes spent since it was last asked."""

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
            "compute": spent.compute,
            "read": spent.read,
            "wait": spent.wait,
            "reduce": spent.reduce,
            "driver": self._passes.beside,
            "bytes": spent.bytes_read + spent.bytes_moved,
            "copied": spent.copied,
            "retries": spent.retries,
            "rebuilt": spent.rebuilt,
            "evictions": spent.evictions,
        }

    def since_last(self) -> tuple[dict[str, float], dict[str, int]]:
        """Seconds by kind, and counts by kind.

        They are summed over threads; ``total`` is on the wall, and ``compile`` the part of it in
        which kernels were compiled, also by those threads. ``driver`` is at least the time on the
        wall in which workers have nothing to do, as the driver's process computes.

        ``bytes`` were read or moved, ``copied`` were picked out of chunks; ``state_bytes`` and
        ``cache_bytes`` are what is held now.
        """
        now, before = self._now(), self._before
        self._before = now
        spent = {key: now[key] - before[key] for key in now}
        between = spent["total"] - spent.pop("passes")
        if self._passes.n_workers:
            spent["driver"] = max(spent["driver"], between)
        counted = ("bytes", "copied", "retries", "rebuilt", "evictions")
        counts = {key: int(spent.pop(key)) for key in counted}
        total = self._passes.total
        return spent, counts | {"state_bytes": total.state_bytes, "cache_bytes": total.cache_bytes}
