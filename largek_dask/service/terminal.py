"""A job in a terminal: a live panel, made with rich, or lines of text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from largek_dask.algorithms.objective import INERTIA, Objective, value_in
from largek_dask.driver.events import Event, is_number
from largek_dask.driver.formatting import (
    count_of,
    human_count,
    human_seconds,
    printable,
)
from largek_dask.driver.job_view import JobView
from largek_dask.plots.job_text import (
    COLORS,
    NONE,
    WORKER_COLUMNS,
    Show,
    compiling_told,
    energy_in,
    facts,
    figure,
    figures_in,
    left_of,
    on_sample,
    precise,
    shape_of,
    sparkline,
    whole,
    worker_rows,
)

__all__ = ["Lines", "job_panel", "line_of", "origin_of", "terminal"]

SILENT_SECONDS = 6.0
"""Seconds without an answer of the scheduler or the store after which the view says so."""


def job_panel(view: JobView, silent: float = 0.0) -> Any:
    """Return a job as a rich panel; ``silent`` is the seconds since the last answer."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    color = COLORS.get(view.state, "default")
    # Texts, not strings: in a string rich would read an output called "[red]" as an order.
    about = Table.grid(padding=(0, 2))
    about.add_column(style="cyan", no_wrap=True)
    about.add_column(overflow="fold")
    for name, text in facts(view):
        about.add_row(Text(name), Text(text, style="bold red" if name == "error" else ""))
        if name == view.objective.of_step:
            about.add_row("", Text(sparkline(view.cost_values, 48), style=color))
    share = view.share_done()
    if share is not None and not view.has_ended:
        done = Table.grid(padding=(0, 2))
        done.add_row(ProgressBar(total=1.0, completed=share, width=32), left_of(view))
        about.add_row("done", done)
    parts: list[Any] = [about]
    if rows := worker_rows(view):
        workers = Table(*WORKER_COLUMNS, box=None)
        for row in rows:
            workers.add_row(*map(Text, row))
        parts += [Text(), workers]
    if view.warnings:
        parts += [Text(), *(Text(f"warning: {text}", style="yellow") for text in view.warnings)]
    if silent > SILENT_SECONDS:
        away = f"no answer for {silent:.0f} s; waiting for it"
        parts += [Text(), Text(away, style="bold yellow")]
    name = f" · {view.status['name']}" if view.status.get("name") else ""
    title = Text(f" {printable(view.status.get('id'))}{printable(name)} · ")
    title.append(f"{view.state} ", style=f"bold {color}")
    return Panel(Group(*parts), title=title, title_align="left", border_style=color)


@contextmanager
def terminal(view: JobView, stream: TextIO | None = None) -> Iterator[Show]:
    """Show a job on a stream: a live view where it is a terminal, lines elsewhere."""
    from rich.console import Console

    stream = sys.stdout if stream is None else stream
    console = Console(file=stream)
    if not console.is_terminal or console.is_dumb_terminal:
        yield Lines(view, stream, time.monotonic)
        return
    from rich.live import Live

    heard_at = time.monotonic()

    def show(event: Event | None) -> None:
        nonlocal heard_at
        heard_at = time.monotonic()

    with Live(
        get_renderable=lambda: job_panel(view, time.monotonic() - heard_at),
        console=console,
        vertical_overflow="crop",
    ):
        yield show


STEP_SECONDS = 10.0
"""Least time between two lines of steps where there is no terminal."""
WORDS = {"joined": "takes part", "left": "takes part no longer", "slow": "kept others waiting",
         "back": "takes part again"}  # fmt: skip
QUIET = ("step", "workers", "sizes")
"""Kinds of events that are not told one by one where there is no terminal."""
AGAIN = ("retries", "rebuilt", "evictions")


def line_of(event: Event, objective: Objective = INERTIA) -> str:
    """Return an event as one line: time (UTC), kind and text."""
    when = str(event.get("time") or "")[:23].replace("T", " ")
    kind = str(event.get("event"))
    if kind == "step":
        told = _step_line(event, objective)
    else:
        told = _TOLD[kind](event) if kind in _TOLD else _others(event)
    return printable(f"{when:<23}  {kind:<11} {told}").rstrip()


def origin_of(event: Event) -> list[str]:
    """Return the traceback of an event and the last warnings of its process, as indented lines."""
    found = str(event.get("traceback") or "").splitlines()
    log = event.get("log")
    if isinstance(log, list) and log:
        process = event.get("worker") or event.get("address") or "the scheduler"
        found += [f"last warnings of {process}:", *map(str, log)]
    return [f"    {printable(line)}".rstrip() for text in found for line in text.splitlines()]


def _others(event: Event) -> str:
    known = ("event", "time", "n", "job")
    return ", ".join(f"{name}={value}" for name, value in event.items() if name not in known)


def _step_line(event: Event, objective: Objective) -> str:
    told: dict[str, Callable[[float], str]] = {
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
        for name, words in told.items()
        if is_number(value := values.get(name)) and (value or name not in AGAIN)
    )


def _workers_line(event: Event) -> str:
    rows = event.get("rows")
    if not isinstance(rows, list):
        return NONE
    counted = sum(float(n) for n in rows if is_number(n))
    seconds = figure(event.get("seconds"), human_seconds)
    return f"{count_of(len(rows), 'worker')}: {figure(counted)} rows in {seconds}"


def _end_line(event: Event) -> str:
    if event.get("error"):
        return f"{event['error']}: {event.get('message')}"
    objective, value = value_in(event)
    told = [
        f"{event.get('stop_reason')} after {figure(event.get('n_iter'), whole)} steps",
        f"{objective.words} {figure(value, precise)}",
        *(f"{name} {text}" for name, text in figures_in(event)),
        f"digest {event.get('digest')}",
    ]
    return ", ".join(told)


_TOLD: dict[str, Callable[[Event], str]] = {
    "queued": lambda e: f"run {figure(e.get('run'))}, submitted by {e.get('owner')}",
    "waiting": lambda e: f"for {e.get('reason')}: {e.get('message')}",
    "running": lambda e: f"run {figure(e.get('run'))}, by {e.get('owner')}",
    "chosen": lambda e: f"auto takes {e['name']}: {e['reason']}",
    "started": lambda e: (
        f"{shape_of(e)}, goes on after step {figure(e['n_iter'], whole)}"
        if e.get("n_iter")
        else shape_of(e)
    ),
    "compiling": compiling_told,
    "progress": lambda e: (
        f"{figure(e.get('done'), whole)} of {figure(e.get('n_chunks'), whole)} chunks"
    ),
    "workers": _workers_line,
    "worker": lambda e: (
        f"{e.get('address')} {WORDS.get(str(e.get('change')), e.get('change'))}, "
        f"{figure(e.get('chunks'), whole)} chunks"
    ),
    "sizes": lambda e: (
        f"{figure(e.get('n_empty'), whole)} clusters empty, the others "
        f"{figure(e.get('least'))} to {figure(e.get('most'))} rows, "
        f"median {figure(e.get('median'))}"
    ),
    "checkpoint": lambda e: (
        f"after step {figure(e.get('n_iter'), whole)}, written in "
        f"{figure(e.get('seconds'), human_seconds)} to {e.get('url')}"
    ),
    "warning": lambda e: f"{e.get('message')} ({e.get('topic')})",
    "stopped": lambda e: (
        f"{e.get('reason')} after {figure(e.get('n_iter'), whole)} steps, "
        f"{figure(e.get('elapsed'), human_seconds)}"
    ),
    "best": lambda e: (
        f"start {figure(e.get('start'), lambda n: whole(n + 1))} of "
        f"{figure(e.get('starts'), whole)}, {figure(e.get('n_iter'), whole)} steps: "
        f"{figure(e.get('value'), precise)}"
    ),
    "report": lambda e: str(e.get("words")),
    "labels": lambda e: f"{figure(e.get('rows'), whole)} of {figure(e.get('n_rows'), whole)}",
    "interrupted": lambda e: f"{e.get('reason')}: it goes on later from its checkpoint",
    "accepted": lambda e: f"goes on, computed by {', '.join(map(str, e.get('versions') or ()))}",
    "cancelling": lambda e: f"asked to end from {e['who']}" if e.get("who") else "asked to end",
    "finished": _end_line,
    "failed": _end_line,
    "cancelled": _end_line,
}


class Lines:
    """Shows a job where there is no terminal: the lines of its events, and few of its steps."""

    def __init__(self, view: JobView, stream: TextIO, clock: Callable[[], float]) -> None:
        self._view, self._stream, self._clock = view, stream, clock
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
        if self._step is not None and event is not None and kind != "workers":
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
