"""A job, a fit or a list of jobs as HTML for notebooks: nothing is loaded, and all text is escaped.

Colours only underline, so that cards can be read on light and on dark pages.
"""

from __future__ import annotations

import importlib
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from largek_dask.driver.events import Event
from largek_dask.driver.job_view import JobView
from largek_dask.observe.job_text import (
    COLORS,
    JOB_COLUMNS,
    WORKER_COLUMNS,
    Show,
    facts,
    job_row,
    left_of,
    worker_rows,
)
from largek_dask.observe.render import render

__all__ = ["Card", "card", "card_of_jobs", "in_notebook", "notebook"]

CURVE_WIDTH, CURVE_HEIGHT = 320, 48
CURVE_POINTS = 200
EVERY_SECONDS = 0.5
"""Least time between two updates of a card."""
LEFT_ALIGNED = ("worker", "job", "name", "state", "algorithm", "submitted", "output")


def card(view: JobView, note: str = "") -> str:
    """Return a job as HTML.

    Parameters
    ----------
    view : JobView
    note : str
        Shown at the bottom, for example that the card is no longer updated.
    """
    known, share = facts(view), view.share_done()
    # The result may have a figure of the same name.
    at = next((i for i, (name, _) in enumerate(known) if name == view.objective.of_step), None)
    return render(
        "card.html",
        title=view.title,
        view=view,
        facts=known,
        curve=_curve(view.cost_values),
        curve_at=at,
        share=None if view.has_ended else share,
        left_words=left_of(view),
        columns=WORKER_COLUMNS,
        rows=worker_rows(view),
        note=note,
        colors=COLORS,
        left=LEFT_ALIGNED,
    )


def card_of_jobs(statuses: Iterable[Mapping[str, Any]], title: str) -> str:
    """Return a table of jobs as HTML."""
    rows = [job_row(status) for status in statuses]
    return render(
        "card.html", title=title, view=None, columns=JOB_COLUMNS, rows=rows, colors=COLORS,
        left=LEFT_ALIGNED,
    )  # fmt: skip


def _curve(costs: Sequence[float]) -> str:
    """Return the points of a polyline of the objective; empty for fewer than two steps."""
    n = min(len(costs), CURVE_POINTS)
    if n < 2:
        return ""
    values = [costs[i * (len(costs) - 1) // (n - 1)] for i in range(n)]
    low, high = min(values), max(values)
    return " ".join(
        f"{2 + i / (n - 1) * (CURVE_WIDTH - 4):.1f},"
        f"{2 + (high - value) / (high - low or 1.0) * (CURVE_HEIGHT - 4):.1f}"
        for i, value in enumerate(values)
    )


# --- notebooks --------------------------------------------------------------------------------


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook: then IPython has been imported already."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class Card:
    """A card on a page that can be shown anew in its place."""

    def __init__(self, html: str) -> None:
        # By name, as IPython is no dependency: there is a notebook only where it is.
        display = importlib.import_module("IPython.display")
        self._html = display.HTML
        self._handle = display.display(self._html(html), display_id=f"largek-{uuid.uuid4().hex}")
        self._shown = html

    def show(self, html: str) -> None:
        """Show this instead."""
        if html != self._shown:
            self._handle.update(self._html(html))
            self._shown = html


@contextmanager
def notebook(view: JobView) -> Iterator[Show]:
    """Show a job as a card that is updated."""
    shown, shown_at = Card(card(view)), time.monotonic()

    def show(event: Event | None) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= EVERY_SECONDS:
            shown.show(card(view))
            shown_at = time.monotonic()

    try:
        yield show
    finally:
        shown.show(card(view))
