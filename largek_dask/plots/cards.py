"""A job, a fit or a list of jobs as HTML for notebooks: nothing is loaded, and all text is escaped.

Colours only underline, so that cards can be read on light and on dark pages.
"""

from __future__ import annotations

import importlib
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from largek_dask.driver.events import Event, plain
from largek_dask.driver.fit import FitResult
from largek_dask.driver.job_view import JobView
from largek_dask.model.base import Model
from largek_dask.plots.job_text import (
    COLORS,
    JOB_COLUMNS,
    Show,
    facts,
    job_row,
    left_of,
    sparkline,
)

__all__ = ["Card", "FitCard", "card", "card_of_jobs", "in_notebook", "notebook"]

HUES = {"yellow": "#b58900", "magenta": "#c0398a", "blue": "#2f81d6", "green": "#2e9e4f",
        "red": "#d43f3f"}  # fmt: skip
CURVE_POINTS = 48
EVERY_SECONDS = 0.5
"""Least time between two updates of a card."""
LEFT_ALIGNED = ("worker", "job", "name", "state")
LOOK = {"hues": HUES, "colors": COLORS, "left": LEFT_ALIGNED}


def card(view: JobView, note: str = "") -> str:
    """Return a job as HTML, with a note at the bottom."""
    from largek_dask.plots.render import render

    known, share = facts(view), view.share_done()
    # The result may have a figure of the same name.
    at = next((i for i, (name, _) in enumerate(known) if name == view.objective.of_step), None)
    return render(
        "card.html",
        title=view.title,
        view=view,
        facts=known,
        curve=sparkline(view.cost_values, CURVE_POINTS),
        curve_at=at,
        share=None if view.has_ended else share,
        left_words=left_of(view),
        note=note,
        **LOOK,
    )


def card_of_jobs(statuses: Iterable[Mapping[str, Any]], title: str) -> str:
    """Return a table of jobs as HTML."""
    from largek_dask.plots.render import render

    rows = [job_row(status) for status in statuses]
    return render("card.html", title=title, view=None, columns=JOB_COLUMNS, rows=rows, **LOOK)


# --- notebooks --------------------------------------------------------------------------------


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which has imported IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class Card:
    """A job in a notebook, updated in place at most every ``EVERY_SECONDS``."""

    def __init__(self, view: JobView) -> None:
        # IPython is not a dependency.
        display = importlib.import_module("IPython.display")
        self.view, self._html, self._shown = view, display.HTML, card(view)
        name = f"largek-{uuid.uuid4().hex}"
        self._handle = display.display(self._html(self._shown), display_id=name)
        self._shown_at = time.monotonic()

    def show(self, event: Event | None = None) -> None:
        """Show the job if the last update is long ago."""
        if time.monotonic() - self._shown_at >= EVERY_SECONDS:
            self.show_now()

    def show_now(self, note: str = "") -> None:
        """Show the job, with a note at the bottom."""
        html = card(self.view, note)
        if html != self._shown:
            self._handle.update(self._html(html))
            self._shown = html
        self._shown_at = time.monotonic()


@contextmanager
def notebook(view: JobView) -> Iterator[Show]:
    """Show a job as a card that is updated."""
    shown = Card(view)
    try:
        yield shown.show
    finally:
        shown.show_now()


class FitCard(Card):
    """A sink of events that shows a fit of this process as a card, like that of a job.

    As a context manager, it also shows how the fit ended. ``about`` is what is known before the fit
    begins, by the names of :meth:`Job.status`.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._about = about
        super().__init__(JobView({**about, "state": "running"}))

    def __call__(self, event: Event) -> None:
        """Take an event, and show it if the last update is long ago."""
        self.view.update(event)
        self.show()

    def end(self, result: FitResult, model: Model) -> None:
        """Show the result."""
        about = {"stop_reason": result.stop_reason, "n_iter": result.n_iter,
                 "seconds": result.seconds, "figures": model.fit_figures(),
                 "digest": model.digest()}  # fmt: skip
        self._close("finished", about | result.objective.describe(value=result.value))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            self._close("failed", {"error": type(error).__name__, "message": str(error)})
        elif error is not None:
            self._close("cancelled", {})

    def _close(self, state: str, result: Mapping[str, Any]) -> None:
        self.view.set_status({**self._about, "state": state, "result": plain(result)})
        self.show_now()
