"""Emit the events of a fit as JSON, and print the progress of the fit.

An event is a flat mapping of JSON values with ``event`` (its kind), ``time`` (UTC) and the fields
of its kind:

========== =====================================================================================
chosen     the choice of ``algorithm="auto"``: ``name``, its parameters, ``starts``, ``reason``
started    ``format`` of the following events, ``version`` of the package, ``n_rows``,
           ``n_features``, ``n_chunks``, ``n_workers`` (0: this process computes), ``workers``
           (their addresses), ``n_iter`` (positive if the fit is resumed), and (except for
           k-means) ``objective`` with ``name``, ``of_step``, ``unit`` and ``sense``
progress   during a pass of more than a second, at most once per second: number of chunks ``done``,
           of ``n_chunks``; jobs keep only the latest of these events, and files keep none
compiling  kernels are being compiled: ``functions`` so far in this fit, their ``seconds``, and
           ``left_s``, the estimated seconds left, or null
step       the history record (``step cost rows n_changed shift converged extra``), ``sample``
           (number of rows in its sample; null: all rows), its ``seconds`` as
           ``{total, compile, compute, read, wait, reduce, driver}`` (``driver``: time spent
           on rows in the driver's memory), ``bytes`` (read or moved), ``state_bytes`` and
           ``cache_bytes`` (held by workers or threads), ``retries`` and ``rebuilt`` (chunks),
           ``evictions``, ``rows_per_second`` (of the seconds without ``compile``), ``elapsed``,
           ``share`` (of ``max_time`` or ``max_iter``), ``eta_s`` (seconds left at most)
worker     a worker with this ``address``: its ``change`` is "joined", "left" (gone, silent or out
           of memory), "slow" (other workers waited for it, so it gets no chunks for a while) or
           "back"; ``chunks`` is the number of chunks that it has, or had before it left
sizes      rows (or weight) per cluster of the final model: the number ``n_empty`` of empty
           clusters; ``least``, ``median``, ``mean`` and ``most`` of the other clusters, and their
           ``counts`` in 32 bins on a log scale, between 33 ``edges``
checkpoint ``n_iter``, ``url``, ``seconds``
warning    ``message``
stopped    ``reason``, ``n_iter``, ``cost``, ``elapsed``
best       after the last of several starts: the best ``start`` (from 0) of ``starts``, its
           ``n_iter`` and exact ``value``, and ``reason`` and ``elapsed`` of the whole fit
========== =====================================================================================
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO, TypeGuard

from largek_dask.algorithms.objective import INERTIA, Objective, objective_in
from largek_dask.driver.formatting import human_count, human_seconds, printable
from largek_dask.errors import RecoveryWarning, warn

FORMAT = 1
"""Version of the event format; the earliest versions of the package did not record it."""

logger = logging.getLogger(__name__)

Event = Mapping[str, Any]
Sink = Callable[[Event], None]


class Events:
    """Send each event to all sinks, with the fields of ``context``.

    A failing sink is kept; only the first failure is reported until the sink succeeds again.
    """

    def __init__(
        self, sinks: Iterable[Sink] = (), context: Mapping[str, Any] | None = None
    ) -> None:
        self._sinks = list(sinks)
        self._failing: list[Sink] = []
        self._context = dict(context or {})

    def __bool__(self) -> bool:
        return bool(self._sinks)

    @property
    def start(self) -> tuple[int, int]:
        """Index of the current start, from 0, and the total number of starts."""
        return self._context.get("start", 0), self._context.get("starts", 1)

    def with_context(self, **context: Any) -> Events:
        """Return an ``Events`` with the same sinks that adds these fields to each event."""
        inner = Events((), {**self._context, **context})
        inner._sinks, inner._failing = self._sinks, self._failing
        return inner

    def emit(self, kind: str, **values: Any) -> None:
        event = {
            "event": kind,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **self._context,
            **values,
        }
        if kind == "warning" and not self._sinks:
            # Without sinks, warnings go to the log.
            logger.warning(values["message"])
        for sink in self._sinks:
            try:
                sink(event)
            except Exception as error:
                if sink not in self._failing:
                    self._failing.append(sink)
                    warn(f"Events cannot be written to {sink!r} now: {error!r}", RecoveryWarning)
            else:
                if sink in self._failing:
                    self._failing.remove(sink)

    def close(self) -> None:
        """Close all sinks that have a ``close`` method; warn about lost events."""
        for sink in self._sinks:
            close = getattr(sink, "close", None)
            if close is None:
                continue
            try:
                close()
            except OSError as error:
                warn(f"Not all events are in {sink!r}: {error}", RecoveryWarning)


def plain(value: Any) -> Any:
    """Return ``value`` as strict JSON: NaN and infinity become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number that fits in a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def seconds_of(event: Event) -> float:
    """Return the time of an event in seconds since 1970; 0 if it has none."""
    try:
        return datetime.fromisoformat(str(event.get("time"))).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


LINE_SECONDS = 10.0
"""Minimum time between two printed steps, in seconds."""


class ProgressLine:
    """Sink that prints at most one step per ten seconds, and always the last step."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._shown_at = -math.inf
        self._line = ""
        """Text that describes the last step; empty if the text has been printed."""
        self._objective = INERTIA

    def __call__(self, event: Event) -> None:
        kind = event["event"]
        if kind == "started":
            self._objective = objective_in(event)
        elif kind == "step":
            of = f"start {event['start'] + 1} of {event['starts']}, " if "start" in event else ""
            self._line = f"{of}step {step_words(event, self._objective)}\n"
            if self._clock() - self._shown_at >= LINE_SECONDS:
                self._show_step()
        elif kind == "warning":
            self._stream.write(f"warning: {printable(event['message'])}\n")
        elif kind in ("stopped", "best"):
            self._end(event)
        self._stream.flush()

    def _show_step(self) -> None:
        self._stream.write(self._line)
        self._line, self._shown_at = "", self._clock()

    def _end(self, event: Event) -> None:
        """Print a summary; if a fit has several starts, print it only after the last start."""
        self._show_step()
        if event["event"] == "stopped" and "start" in event:
            return
        after = f"{event['n_iter']} steps, {human_seconds(event['elapsed'])}"
        if event["event"] == "best":
            after = (
                f"{human_seconds(event['elapsed'])}; the best of {event['starts']} starts is "
                f"start {event['start'] + 1}, of {event['n_iter']} steps"
            )
            if event["value"] is not None:
                after += f": {self._objective.words} {event['value']:.6g}"
        self._stream.write(f"stopped: {event['reason']} after {after}\n")


def compiling_words(left: float | None) -> str:
    """Describe the wait while kernels are compiled; ``left`` is the remaining time in seconds."""
    text = "compiling kernels, once on this machine"
    return text if left is None else f"{text}: about {human_seconds(math.ceil(left))} left"


def step_words(event: Event, objective: Objective) -> str:
    """Describe a step by its number and all valid values."""
    extra, sample = event.get("extra"), event.get("sample")
    where = f" on a sample of {sample:,.0f} rows" if is_number(sample) else ""
    figures = {**event, "energy": extra.get("energy") if isinstance(extra, Mapping) else None}
    words: dict[str, Callable[[float], str]] = {
        "step": lambda v: f"{v:,.0f}",
        "cost": lambda v: f"{objective.of_step} {v:.8g}{where}",
        # The energy may differ from the cost.
        "energy": lambda v: f"energy {v:.8g} per row",
        "n_changed": lambda v: f"{v:,.0f} rows changed",
        "rows_per_second": lambda v: f"{human_count(v)} rows/s",
        "eta_s": lambda v: f"at most {human_seconds(v)} left",
        # Only if there were any.
        "retries": lambda v: f"{v:,.0f} chunks retried" if v else "",
        "rebuilt": lambda v: f"{v:,.0f} rebuilt" if v else "",
        "evictions": lambda v: f"{v:,.0f} evictions" if v else "",
    }
    texts = (text(v) for name, text in words.items() if is_number(v := figures.get(name)))
    return ", ".join(filter(None, texts))
