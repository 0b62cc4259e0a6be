"""What a running fit tells the world: events as JSON lines, and one line of progress.

An event is a flat mapping of JSON values with ``event`` (its kind), ``time`` (UTC) and what its
kind adds:

========== =====================================================================================
chosen     what ``algorithm="auto"`` takes: ``name``, its parameters, ``starts``, ``reason``
started    ``format`` of the events that follow, ``version`` of the package, ``n_rows``,
           ``n_features``, ``n_chunks``, ``n_workers`` (0: this process computes), ``n_iter``
           (more than 0 on a resume), and of what is no k-means ``objective``: its ``name``,
           ``of_step``, ``unit`` and ``sense``
progress   of a pass that takes more than a second: ``done`` of its ``n_chunks``, at most once a
           second; jobs keep only the latest, and files none
compiling  kernels are being compiled: ``functions`` so far in this fit, ``seconds`` that they took,
           ``left_s`` that others will take, or null
step       the history record (``step cost rows n_changed shift converged extra``), ``sample``
           (rows of the sample that it was about; null: it was about all), its ``seconds`` as
           ``{total, compile, compute, read, wait, reduce, driver}`` (``driver``: computing
           over rows that the driver holds), ``bytes`` (read or moved), ``copied``
           (bytes picked out of chunks), ``state_bytes`` and ``cache_bytes`` (held by workers or
           threads), ``retries`` and ``rebuilt`` (chunks), ``evictions``, ``rows_per_second`` (of
           the seconds without ``compile``), ``elapsed``, ``eta_s``, ``limited_by``, ``share``
workers    what workers did in the last ``seconds``, every few of them, the fewer workers the more
           often: columns of what was added (``rows``, and of ``chunks compute read wait compiled
           bytes_read rebuilt evictions retries state_bytes cache_bytes`` those that are not all
           0; seconds, bytes and counts), one value a worker in the order of ``names``. These are
           told the first time, when they change and every 16 times, with ``before``: columns of
           the figures of all passes before. (Earlier versions had ``workers``: the figures of all
           passes so far as a mapping by worker. ``driver.worker_figures`` reads both.)
worker     one worker, ``address``: its ``change`` is "joined" or "left" (gone, silent or without
           memory), "slow" (it kept others waiting, and has no chunks for a while) or "back";
           ``chunks`` that it has now, or had until then
sizes      rows of the clusters (their weight) as the last step left them, at most every 30
           seconds, and in the end those of the model: ``n_empty`` clusters; of the others
           ``least``, ``median``, ``mean``, ``most``, and ``counts`` of those in each of 32 bins
           on a log scale, between 33 ``edges``
checkpoint ``n_iter``, ``url``, ``seconds``
warning    ``message``
stopped    ``reason``, ``n_iter``, ``cost``, ``elapsed``
best       of several starts, after the last: which ``start`` (from 0) of how many ``starts``, its
           ``n_iter`` and exact ``value``, the ``reason`` and ``elapsed`` of the whole fit
report     what the algorithm tells of the model in the end: figures, and ``words``
========== =====================================================================================
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, TypeGuard

from largek_dask.algorithms.objective import INERTIA, Objective, objective_in
from largek_dask.data.storage_errors import trouble
from largek_dask.driver.formatting import human_count, human_seconds, printable
from largek_dask.driver.history import sample_of
from largek_dask.driver.stopping import StepRecord, StopRules
from largek_dask.errors import RecoveryWarning, warn

__all__ = [
    "FORMAT",
    "Event",
    "Events",
    "ProgressLine",
    "Sink",
    "compiling_words",
    "estimate_end",
    "is_number",
    "plain",
]

FORMAT = 1
"""Format of events; those of the earliest versions do not say it."""

logger = logging.getLogger(__name__)

Event = Mapping[str, Any]
Sink = Callable[[Event], None]


class Events:
    """Hands every event to every sink.

    Parameters
    ----------
    sinks : iterable of callable
        Each is called with the event. One that fails is dropped with a warning: the fit is
        worth more than its log. One whose storage is in trouble stays: that may pass.
    context : mapping, optional
        Put into every event (which start, which job).
    """

    def __init__(
        self, sinks: Iterable[Sink] = (), context: Mapping[str, Any] | None = None
    ) -> None:
        self._sinks = list(sinks)
        self._in_trouble: list[Sink] = []
        self._context = dict(context or {})

    def __bool__(self) -> bool:
        return bool(self._sinks)

    @property
    def start(self) -> tuple[int, int]:
        """Return which start events are of, from 0, and of how many."""
        return self._context.get("start", 0), self._context.get("starts", 1)

    def within(self, **context: Any) -> Events:
        """The same sinks with more context in every event."""
        inner = Events((), {**self._context, **context})
        inner._sinks, inner._in_trouble = self._sinks, self._in_trouble
        return inner

    def emit(self, kind: str, **values: Any) -> None:
        """Send one event."""
        event = {
            "event": kind,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **self._context,
            **values,
        }
        if kind == "warning" and not self._sinks:
            # A quiet fit without a folder: what should be known still shows in Python's log.
            logger.warning(values["message"])
        for sink in list(self._sinks):
            try:
                sink(event)
            except Exception as error:
                self._failed(sink, error)
            else:
                if sink in self._in_trouble:
                    self._in_trouble.remove(sink)

    def _failed(self, sink: Sink, error: Exception) -> None:
        """Drop a sink; one with trouble in its storage is only mentioned, once."""
        if trouble(error) is None:
            self._sinks.remove(sink)
            warn(f"No more events go to {sink!r}: {error!r}", RecoveryWarning)
        elif sink not in self._in_trouble:
            self._in_trouble.append(sink)
            warn(f"Events cannot be written to {sink!r} now: {error}", RecoveryWarning)

    def close(self) -> None:
        """Close every sink that can be closed; what cannot be written then is lost with a warning.

        Warns
        -----
        RecoveryWarning
        """
        for sink in self._sinks:
            close = getattr(sink, "close", None)
            if close is None:
                continue
            try:
                close()
            except OSError as error:
                warn(f"Not all events are in {sink!r}: {error}", RecoveryWarning)


def plain(value: Any) -> Any:
    """``value`` as JSON that every reader takes: NaN and infinity become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value of an event or status is a number that a float holds, and finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


TREND = 8
"""Steps that the estimate of the time left looks back over."""
WELL_BEFORE = 0.8
"""Fraction of the time to ``max_time`` or ``max_iter`` within which a guess says convergence."""
LEAST_STEPS = 3
"""Steps over all rows that there have to be for one."""


Limit = Literal["max_time", "max_iter", "convergence"]
"""What is going to end a fit."""


def estimate_end(
    history: Sequence[StepRecord],
    stop: StopRules,
    elapsed: float,
    n_rows: int,
    objective: Objective = INERTIA,
    starts_left: int = 0,
) -> tuple[Limit | None, float | None]:
    """Estimate what will end the fit, and in how many seconds at most.

    Steps are taken to last as long as the mean of the last eight. The limit is "convergence" if
    ``n_changed`` will fall below one row, or what ``tol`` is compared with to ``tol``, well before
    the other two, as long as they go on falling by the mean factor of the last eight steps: that is
    a guess, so no seconds are given. Only ``max_time`` says anything before three steps have gone
    through as many rows as the last one (eight of batches), and while they go through a sample
    that all rows come after. Only shown, never used to decide anything.

    Parameters
    ----------
    history : sequence of StepRecord
    stop : StopRules
    elapsed : float
        Seconds since the fit began.
    n_rows : int
    objective : Objective
    starts_left : int
        Starts that follow this one.

    Returns
    -------
    limit : "max_time", "max_iter", "convergence" or None
        None if nothing can be said.
    seconds : float or None
        None if the limit is no bound.
    """
    recent = _alike(history[-TREND - 1 :])
    until = math.inf if stop.max_time is None else max(0.0, stop.seconds - elapsed)
    steps, guess = math.inf, math.inf
    if recent and len(recent) >= _least_steps(recent[-1], n_rows):
        steps_done = recent[-1]["step"] - recent[0]["step"]
        per_step = (recent[-1]["seconds"] - recent[0]["seconds"]) / max(1, steps_done)
        left = max(0, stop.max_iter - recent[-1]["step"]) + starts_left * stop.max_iter
        steps = left * per_step
        changed = [float(r["n_changed"]) for r in recent if r["n_changed"] is not None]
        guesses = _steps_until(changed, 0.5)
        if stop.tol > 0:
            changes = [objective.change_in(record) for record in recent]
            guesses += _steps_until([c for c in changes if c is not None], stop.tol)
        guess = min(guesses, default=math.inf) * per_step if starts_left == 0 else math.inf
    bound = min(until, steps)
    if guess < WELL_BEFORE * bound:
        return "convergence", None
    if math.isinf(bound):
        return None, None
    return ("max_time" if until <= steps else "max_iter"), bound


def _alike(history: Sequence[StepRecord]) -> Sequence[StepRecord]:
    """The last records that are of as many rows each."""
    n = len(history)
    while n and history[n - 1]["rows"] == history[-1]["rows"]:
        n -= 1
    return history[n:]


def _least_steps(last: StepRecord, n_rows: int) -> float:
    """How many steps like the last one say how long those to come will take."""
    if last["extra"].get("everywhere", 1) == 0:
        return math.inf
    # Batches may grow: they stay as they are where they have been so for long.
    return LEAST_STEPS if sample_of(last, n_rows) is None else TREND


def _steps_until(values: Sequence[float], goal: float) -> list[float]:
    """How many more steps a falling sequence needs to ``goal``; nothing if it does not fall."""
    if len(values) < 3 or not 0 < values[-1] < values[0]:
        return []
    factor = (math.log(values[-1]) - math.log(values[0])) / (len(values) - 1)
    return [max(0.0, (math.log(goal) - math.log(values[-1])) / factor)]


class ProgressLine:
    """A sink that shows a fit as one line of text.

    On a terminal the line is rewritten, at most ten times a second; elsewhere a plain line is
    written at most every ten seconds, and the last one always.

    Parameters
    ----------
    stream : text stream, optional
        Standard error by default.
    clock : callable
        Seconds, for the limits of rate.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._terminal = self._stream.isatty()
        self._shown_at = -math.inf
        self._line = ""
        self._pending = False
        self._objective = INERTIA

    def __call__(self, event: Event) -> None:
        """Show one event, if it is time to."""
        kind = event["event"]
        if kind == "started":
            self._objective = objective_in(event)
        elif kind == "step":
            self._line, self._pending = _progress_text(event, self._objective), True
            if self._clock() - self._shown_at >= (0.1 if self._terminal else 10.0):
                self._show()
        elif kind == "warning":
            self._end_line()
            self._stream.write(f"warning: {printable(event['message'])}\n")
        elif kind == "report":
            self._stream.write(f"{printable(event['words'])}\n")
        elif kind in ("stopped", "best"):
            self._end(event)
        self._stream.flush()

    def close(self) -> None:
        """End the line, where a fit has ended without a word."""
        self._end_line()
        self._stream.flush()

    def _end(self, event: Event) -> None:
        """Sum up; of several starts all together, when the best is known."""
        if self._pending:
            self._show()
        is_one_of_several = event["event"] == "stopped" and "start" in event
        if is_one_of_several:
            return
        self._end_line()
        after = f"{event['n_iter']} steps, {human_seconds(event['elapsed'])}"
        if event["event"] == "best":
            after = (
                f"{human_seconds(event['elapsed'])}; the best of {event['starts']} starts is "
                f"start {event['start'] + 1}, of {event['n_iter']} steps"
            )
            if event["value"] is not None:
                after += f": {self._objective.words} {event['value']:.6g}"
        self._stream.write(f"stopped: {event['reason']} after {after}\n")

    def _show(self) -> None:
        self._stream.write(f"\r{self._line}\x1b[K" if self._terminal else f"{self._line}\n")
        self._shown_at, self._pending = self._clock(), False

    def _end_line(self) -> None:
        if self._terminal and self._line:
            self._stream.write("\n")
        self._line = ""


def compiling_words(left: float | None) -> str:
    """Describe what is waited for while kernels are compiled; ``left``: seconds, if known."""
    text = "compiling kernels, once on this machine"
    return text if left is None else f"{text}: about {human_seconds(math.ceil(left))} left"


def _progress_text(event: Event, objective: Objective) -> str:
    """One step in words."""
    start = event.get("start")
    parts = [] if start is None else [f"start {start + 1} of {event['starts']}"]
    parts.append(f"step {event['step']}")
    if event["cost"] is not None:
        sample = event.get("sample")
        where = "" if sample is None else f" on a sample of {sample:,} rows"
        parts.append(f"{objective.of_step} {event['cost']:.6g}{where}")
    energy = event.get("extra", {}).get("energy")
    if energy is not None:
        # Where it is not the cost it may say otherwise: both are shown.
        parts.append(f"energy {energy:.6g} a row")
    if event["n_changed"] is not None:
        parts.append(f"{event['n_changed']:,} rows changed")
    if event["rows_per_second"] is not None:
        parts.append(f"{human_count(event['rows_per_second'])} rows/s")
    if event.get("limited_by") == "convergence":
        parts.append("converging")
    elif event["eta_s"] is not None:
        parts.append(f"at most {human_seconds(event['eta_s'])} left")
    return ", ".join(parts)
