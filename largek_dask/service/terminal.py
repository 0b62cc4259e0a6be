"""A job in a terminal: a live view, made with rich."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from largek_dask.driver.events import Event
from largek_dask.driver.stopping import ENDS
from largek_dask.driver.words import printable
from largek_dask.observe.showing import (
    COLORS,
    WORKER_COLUMNS,
    Seen,
    Show,
    facts,
    left_of,
    sparkline,
    worker_rows,
)
from largek_dask.observe.tables import Column, Fitting
from largek_dask.service.lines import Lines

__all__ = ["terminal", "view"]

SILENT_SECONDS = 6.0
"""Seconds without an answer of the scheduler or the store after which the view says so."""


def view(seen: Seen, silent: float = 0.0) -> Any:
    """A job as a rich panel.

    Parameters
    ----------
    seen : Seen
    silent : float
        Seconds since the last answer of the scheduler or the store.
    """
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    color = COLORS.get(seen.state, "default")
    # Texts, not strings: in a string rich would read an output called "[red]" as an order.
    about = Table.grid(padding=(0, 2))
    about.add_column(style="cyan", no_wrap=True)
    about.add_column(overflow="fold")
    for name, text in facts(seen):
        about.add_row(Text(name), Text(text, style="bold red" if name == "error" else ""))
        if name == seen.objective.of_step:
            about.add_row("", Text(sparkline(seen.costs, 48), style=color))
    share = seen.share_done()
    if share is not None and seen.state not in ENDS:
        done = Table.grid(padding=(0, 2))
        done.add_row(ProgressBar(total=1.0, completed=share, width=32), left_of(seen))
        about.add_row("done", done)
    parts: list[Any] = [about]
    if rows := worker_rows(seen):
        columns = [Column(name, rank, right=rank > 0) for rank, name in enumerate(WORKER_COLUMNS)]
        more = "a wider terminal shows them"
        parts += [Text(), Fitting(columns, rows, more=more, ruled=False)]
    if seen.warnings:
        parts += [Text(), *(Text(f"warning: {text}", style="yellow") for text in seen.warnings)]
    if silent > SILENT_SECONDS:
        away = f"no answer for {silent:.0f} s; waiting for it"
        parts += [Text(), Text(away, style="bold yellow")]
    name = f" · {seen.status['name']}" if seen.status.get("name") else ""
    title = Text(f" {printable(seen.status.get('id'))}{printable(name)} · ")
    title.append(f"{seen.state} ", style=f"bold {color}")
    return Panel(Group(*parts), title=title, title_align="left", border_style=color)


@contextmanager
def terminal(seen: Seen, stream: TextIO | None = None) -> Iterator[Show]:
    """Show a job on a stream: a live view where it is a terminal, lines elsewhere.

    Parameters
    ----------
    seen : Seen
        Looked at whenever something is shown.
    stream : text stream, optional
        Standard output by default.
    """
    from rich.console import Console

    stream = sys.stdout if stream is None else stream
    console = Console(file=stream)
    if not console.is_terminal or console.is_dumb_terminal:
        yield Lines(seen, stream, time.monotonic)
        return
    from rich.live import Live

    heard_at = time.monotonic()

    def show(event: Event | None) -> None:
        nonlocal heard_at
        heard_at = time.monotonic()

    with Live(
        get_renderable=lambda: view(seen, time.monotonic() - heard_at),
        console=console,
        vertical_overflow="crop",
    ):
        yield show
