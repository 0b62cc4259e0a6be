"""The events of a job as lines of text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from largek_dask.algorithms.objective import INERTIA, Objective, value_in
from largek_dask.driver.events import Event, is_number
from largek_dask.driver.formatting import (
    human_count,
    human_seconds,
    printable,
)
from largek_dask.driver.job_view import JobView
from largek_dask.plots.job_text import (
    compiling_told,
    energy_in,
    facts,
    figure,
    figures_in,
    on_sample,
    precise,
    whole,
)

__all__ = ["Lines", "line_of", "origin_of"]

STEP_SECONDS = 10.0
"""Least time between two lines of steps."""
QUIET = ("step", "sizes")
"""Kinds of events that are not shown one by one."""
AGAIN = ("retries", "rebuilt", "evictions")


def line_of(event: Event, objective: Objective = INERTIA) -> str:
    """Return an event as one line: time (UTC), kind and text."""
    when = str(event.get("time") or "")[:23].replace("T", " ")
    kind = str(event.get("event"))
    if kind == "step":
        text = _step_line(event, objective)
    else:
        text = _TEXTS.get(kind, _fields)(event)
    return printable(f"{when:<23}  {kind:<11} {text}").rstrip()


def origin_of(event: Event) -> list[str]:
    """Return the traceback of an event and the last warnings of its process, as indented lines."""
    found = str(event.get("traceback") or "").splitlines()
    log = event.get("log")
    if isinstance(log, list) and log:
        process = event.get("worker") or event.get("address") or "the scheduler"
        found += [f"last warnings of {process}:", *map(str, log)]
    return [f"    {printable(line)}".rstrip() for text in found for line in text.splitlines()]


def _fields(event: Event) -> str:
    """Return the numbers and texts of an event by name."""
    known = ("event", "time", "n", "job")
    values = {name: value for name, value in event.items() if name not in known}
    return ", ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in values.items()
        if is_number(value) or isinstance(value, str)
    )


def _step_line(event: Event, objective: Objective) -> str:
    texts: dict[str, Callable[[float], str]] = {
        "step": whole,
        "cost": lambda v: f"{objective.of_step} {precise(v)}{on_sample(event)}",
        "energy": lambda v: f"energy {precise(v)} a row",
        "n_changed": lambda v: f"{whole(v)} rows changed",
        "rows_per_second": lambda v: f"{human_count(v)} rows/s",
        "eta_s": lambda v: f"at most {human_seconds(v)} left",
        "retries": lambda v: f"{whole(v)} chunks handed out again",
        "rebuilt": lambda v: f"{whole(v)} rebuilt",
        "evictions": lambda v: f"{whole(v)} evictions",
    }
    values = {"energy": energy_in(event), **event}
    # Of a step without retries it is not said that there were none.
    return ", ".join(
        words(value)
        for name, words in texts.items()
        if is_number(value := values.get(name)) and (value or name not in AGAIN)
    )


def _end_line(event: Event) -> str:
    if event.get("error"):
        return f"{event['error']}: {event.get('message')}"
    objective, value = value_in(event)
    texts = [
        f"{event.get('stop_reason')} after {figure(event.get('n_iter'), whole)} steps",
        f"{objective.words} {figure(value, precise)}",
        *(f"{name} {text}" for name, text in figures_in(event)),
        f"digest {event.get('digest')}",
    ]
    return ", ".join(texts)


_TEXTS: dict[str, Callable[[Event], str]] = {
    "waiting": lambda e: f"for {e.get('reason')}: {e.get('message')}",
    "compiling": compiling_told,
    "stopped": lambda e: (
        f"{e.get('reason')} after {figure(e.get('n_iter'), whole)} steps, "
        f"{figure(e.get('elapsed'), human_seconds)}"
    ),
    "warning": lambda e: f"{e.get('message')} ({e.get('topic')})",
    **dict.fromkeys(("finished", "failed", "cancelled"), _end_line),
}


class Lines:
    """Shows a job as the lines of its events, with few of its steps."""

    def __init__(
        self,
        view: JobView,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view, self._clock = view, clock
        self._stream = sys.stdout if stream is None else stream
        self._stepped_at = -STEP_SECONDS
        self._step: Event | None = None
        self._waits = ""

    def __call__(self, event: Event | None) -> None:
        """Show one event, if it is time to."""
        kind = None if event is None else event.get("event")
        if kind == "step":
            self._step = event
            if self._clock() - self._stepped_at < STEP_SECONDS:
                return
        if self._step is not None and event is not None:
            self._write(line_of(self._step, self._view.objective))
            self._step, self._stepped_at = None, self._clock()
        if event is not None and kind not in QUIET:
            self._write(line_of(event, self._view.objective))
        waits = "; ".join(text for name, text in facts(self._view) if name == "waits")
        if waits != self._waits and waits:
            self._write(f"{self._view.state}: {waits}")
        self._waits = waits

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()
