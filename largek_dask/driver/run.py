"""The loop: the only one in the package.

It knows neither what an algorithm computes nor where. It steps, keeps the history, writes
checkpoints, tells the world, and stops.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

from largek_dask.algorithms.base import Algorithm, Info, ModelArrays, Rng
from largek_dask.driver.checkpoint import Checkpoints, Progress
from largek_dask.driver.events import Events, estimate_seconds_left
from largek_dask.driver.history import MOST_STEPS, thinned, up_to
from largek_dask.driver.stopping import StepRecord, StopReason, StopRules, record_of
from largek_dask.errors import CancelledFit, NoModelError
from largek_dask.passes.base import BasePasses
from largek_dask.points import at

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

    def steps(self) -> list[StepRecord]:
        """The history up to this step."""
        return thinned(up_to(self.record["step"], self.history))


Callback = Callable[[Snapshot], object]
"""Called after every step; a true result stops the fit."""


class Reserve(NamedTuple):
    """What the last pass means for a time limit, in seconds."""

    last_pass: float = 0.0
    """How long it is going to take, about."""
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
) -> RunResult[State]:
    """Step until a rule says stop, from the newest checkpoint if there is one.

    The result is that of the last complete step, which is the best so far for algorithms whose
    cost falls; a step that was cut leaves nothing behind.

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
        Told of every step.
    cancelled : callable, optional
        Asked between steps and inside them whether to stop.
    callbacks : sequence of callable
        See :data:`Callback`.
    seconds_used : float
        Time that the fit has used before this run (a scan of the rows, other starts).
    last_pass : callable, optional
        Tells for a model and the seconds that are left of ``max_time`` what to keep back of them
        for what comes after the last step; called once, and only where there is such a limit.

    Returns
    -------
    RunResult

    Raises
    ------
    NoModelError
        The time limit or a cancel came before there was any state.
    KeyboardInterrupt
        Ctrl-C came before there was any state, or a second time while the first was being
        obeyed.
    """
    events = Events() if events is None else events
    progress = checkpoints.latest() if checkpoints else None
    clock = Clock(seconds_used if progress is None else max(seconds_used, progress.seconds), stop)
    asked = cancelled or _never
    meter = _Meter(passes)
    events.emit(
        "started",
        n_rows=passes.n_rows,
        n_features=passes.n_features,
        n_chunks=passes.n_chunks,
        n_iter=0 if progress is None else progress.n_iter,
    )
    reason: StopReason | None = None
    reserve = Reserve()
    passes.cancelled = lambda: asked() or clock.is_over()
    try:
        if progress is None:
            progress = Progress(algorithm.init(passes, rng), 0, [], clock.seconds())
        if last_pass is not None and not math.isinf(stop.seconds):
            reserve = last_pass(algorithm.model(progress.state), stop.seconds - clock.seconds())
            clock.kept_back = reserve.kept_back
        reason = _reason(stop, progress, clock, asked)
        while reason is None:
            _save_if_due(checkpoints, progress, events)
            with at("step"):
                state, info = algorithm.step(passes, rng, progress.state)
            progress = _advance(progress, state, info, clock.seconds())
            _tell(events, progress, meter, stop)
            reason = _reason(stop, progress, clock, asked)
            if _any_says_stop(callbacks, algorithm, progress) and reason is None:
                reason = "callback"
    except CancelledFit as cut:
        reason = "max_time" if clock.is_over() else "cancelled"
        if progress is None:
            raise no_model(clock, stop) from cut
    except KeyboardInterrupt:
        reason = "interrupted"
        if progress is None:
            raise
    finally:
        passes.cancelled = None
    _save_if_due(checkpoints, progress, events, always=True)
    history = tuple(progress.records())
    events.emit(
        "stopped",
        reason=reason,
        n_iter=progress.n_iter,
        cost=history[-1]["cost"] if history else None,
        elapsed=clock.seconds(),
    )
    return RunResult(
        algorithm.model(progress.state),
        progress.n_iter,
        history,
        reason,
        progress.state,
        clock.seconds(),
        reserve,
    )


def _never() -> bool:
    return False


def _advance(before: Progress[State], state: State, info: Info, seconds: float) -> Progress[State]:
    """The progress after a step: one object, so that a stop finds either it or the one before.

    Those that follow each other share one growing history, of which each counts only the records
    of its own steps. When it has grown to twice what is kept in the end, it is thinned.
    """
    n_iter = before.n_iter + 1
    history = before.history
    assert isinstance(history, list)
    if len(history) >= 2 * MOST_STEPS:
        history = thinned(history)
    history.append(record_of(n_iter, info, seconds))
    return Progress(state, n_iter, history, seconds)


def _reason(
    stop: StopRules, progress: Progress[Any], clock: Clock, asked: Callable[[], bool]
) -> StopReason | None:
    """Why to stop between two steps."""
    last = progress.history[-1] if progress.history else None
    reason = stop.reason(last, progress.n_iter, clock.seconds() + clock.kept_back)
    if reason is None and asked():
        return "cancelled"
    return reason


def _any_says_stop(
    callbacks: Sequence[Callback], algorithm: Algorithm[State], progress: Progress[State]
) -> bool:
    """Call every callback, whether or not one before it said stop."""
    snapshot = Snapshot(
        progress.history[-1], progress.history, lambda: algorithm.model(progress.state)
    )
    answers = [bool(callback(snapshot)) for callback in callbacks]
    return any(answers)


def _save_if_due(
    checkpoints: Checkpoints[State] | None,
    progress: Progress[State],
    events: Events,
    *,
    always: bool = False,
) -> None:
    """Write a checkpoint if it is time for one; say so if it cannot be written."""
    if checkpoints is None or not (always or checkpoints.due()):
        return
    begin, url = time.monotonic(), checkpoints.folder.url
    try:
        is_new = checkpoints.save(progress)
    except OSError as error:
        # A fit is worth more than what it would go on from.
        if always or not checkpoints.has_failed:
            then = "" if always else "; it is tried again until one is written"
            message = f"no checkpoint after step {progress.n_iter}: {error}{then}"
            events.emit("warning", topic="checkpoint", message=message)
        checkpoints.has_failed = True
        return
    checkpoints.has_failed = False
    if is_new:
        seconds = time.monotonic() - begin
        events.emit("checkpoint", n_iter=progress.n_iter, url=url, seconds=seconds)


def _tell(events: Events, progress: Progress[Any], meter: _Meter, stop: StopRules) -> None:
    """Send the event of the last step."""
    seconds, counts = meter.since_last()
    if not events:
        return
    record = progress.history[-1]
    total = seconds["total"]
    events.emit(
        "step",
        **{**record, "seconds": seconds},
        **counts,
        rows_per_second=record["rows"] / total if total > 0 else None,
        elapsed=progress.seconds,
        eta_s=estimate_seconds_left(progress.history, stop, progress.seconds),
    )
    if workers := meter.workers():
        events.emit("workers", workers=workers)


def no_model(clock: Clock, stop: StopRules) -> NoModelError:
    """The error of a stop that came before there was anything to return."""
    if clock.is_over():
        return NoModelError(
            f"The time limit (max_time={stop.seconds:g} s) passed before there were any centres; "
            "allow more time, or choose a cheaper init such as 'random'.",
            "max_time",
        )
    return NoModelError("The fit was cancelled before there were any centres.", "cancelled")


class Clock:
    """Seconds used so far, and whether they are used up."""

    def __init__(self, used_before: float, stop: StopRules) -> None:
        self._origin = time.monotonic() - used_before
        self._limit = stop.seconds
        self.kept_back = 0.0
        """Seconds that are wanted after the last step."""

    def seconds(self) -> float:
        """Seconds used so far."""
        return time.monotonic() - self._origin

    def is_over(self) -> bool:
        """Whether the limit is reached."""
        spent = self.seconds() + self.kept_back
        return not math.isinf(self._limit) and spent >= self._limit


WORKERS_SECONDS = 5.0
"""Least time between two events about workers."""


class _Meter:
    """What the passes spent since it was last asked."""

    def __init__(self, passes: BasePasses) -> None:
        self._passes = passes
        self._before = self._now()
        self._told = time.monotonic()

    def _now(self) -> dict[str, float]:
        spent = self._passes.total
        return {
            "total": time.monotonic(),
            "compute": spent.compute,
            "read": spent.read,
            "wait": spent.wait,
            "reduce": spent.reduce,
            "bytes": spent.bytes_read + spent.bytes_moved,
            "copied": spent.copied,
            "retries": spent.retries,
            "rebuilt": spent.rebuilt,
            "evictions": spent.evictions,
        }

    def since_last(self) -> tuple[dict[str, float], dict[str, int]]:
        """Seconds by kind (summed over threads; ``total`` is on the wall), and counts by kind.

        ``bytes`` were read or moved, ``copied`` were picked out of chunks; ``state_bytes`` and
        ``cache_bytes`` are what is held now.
        """
        now, before = self._now(), self._before
        self._before = now
        spent = {key: now[key] - before[key] for key in now}
        counted = ("bytes", "copied", "retries", "rebuilt", "evictions")
        counts = {key: int(spent.pop(key)) for key in counted}
        total = self._passes.total
        return spent, counts | {"state_bytes": total.state_bytes, "cache_bytes": total.cache_bytes}

    def workers(self) -> dict[str, dict[str, Any]]:
        """Figures of all passes so far by worker, every now and then; nothing in between."""
        now = time.monotonic()
        if now - self._told < WORKERS_SECONDS:
            return {}
        self._told = now
        return {address: report.as_dict() for address, report in self._passes.by_worker.items()}
