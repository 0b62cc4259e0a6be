"""A job in a terminal: a live view, made with rich."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from largek_dask.driver.events import Event
from largek_dask.driver.job_view import JobView
from largek_dask.driver.words import printable
from largek_dask.observe.job_text import (
    COLORS,
    WORKER_COLUMNS,
    Show,
    facts,
    left_of,
    sparkline,
    worker_rows,
)
from largek_dask.observe.tables import Column, Fitting
from largek_dask.service.lines import Lines

__all__ = ["job_panel", "terminal"]

SILENT_SECONDS = 6.0
"""Seconds without an answer of the scheduler or the store after which the view says so."""


def job_panel(view: JobView, silent: float = 0.0) -> Any:
    """A job as a rich panel.

    Parameters
    ----------
    view : JobView
    silent : float
        Seconds since the last answer of the scheduler or the store.
    """
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
        columns = [Column(name, rank, right=rank > 0) for rank, name in enumerate(WORKER_COLUMNS)]
        more = "a wider terminal shows them"
        parts += [Text(), Fitting(columns, rows, more=more, ruled=False)]
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
    """Show a job on a stream: a live view where it is a terminal, lines elsewhere.

    Parameters
    ----------
    view : JobView
        Looked at whenever something is shown.
    stream : text stream, optional
        Standard output by default.
    """
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
