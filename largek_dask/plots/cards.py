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
from types import TracebackType
from typing import Any, Self

from largek_dask.driver.events import Event, plain
from largek_dask.driver.fit import FitResult
from largek_dask.driver.job_view import JobView
from largek_dask.model.base import Model
from largek_dask.plots.job_text import (
    COLORS,
    JOB_COLUMNS,
    WORKER_COLUMNS,
    Show,
    facts,
    job_row,
    left_of,
    worker_rows,
)
from largek_dask.plots.render import render

__all__ = ["Card", "FitCard", "card", "card_of_jobs", "in_notebook", "notebook"]

HUES = {"yellow": "#b58900", "magenta": "#c0398a", "blue": "#2f81d6", "green": "#2e9e4f",
        "red": "#d43f3f"}  # fmt: skip
CURVE_WIDTH, CURVE_HEIGHT = 320, 48
CURVE_POINTS = 200
EVERY_SECONDS = 0.5
"""Least time between two updates of a card."""
LEFT_ALIGNED = ("worker", "job", "name", "state", "algorithm", "submitted", "output")
LOOK = {"hues": HUES, "colors": COLORS, "left": LEFT_ALIGNED}


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
        **LOOK,
    )


def card_of_jobs(statuses: Iterable[Mapping[str, Any]], title: str) -> str:
    """Return a table of jobs as HTML."""
    rows = [job_row(status) for status in statuses]
    return render("card.html", title=title, view=None, columns=JOB_COLUMNS, rows=rows, **LOOK)


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
    """Whether this process is the kernel of a notebook, which has imported IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class Card:
    """HTML in a notebook that is updated in place."""

    def __init__(self, html: str) -> None:
        # IPython is not a dependency.
        display = importlib.import_module("IPython.display")
        self._html = display.HTML
        self._handle = display.display(self._html(html), display_id=f"largek-{uuid.uuid4().hex}")
        self._shown = html

    def show(self, html: str) -> None:
        """Replace the HTML."""
        if html != self._shown:
            self._handle.update(self._html(html))
            self._shown = html


class _Throttle:
    """Updates a card at most every ``EVERY_SECONDS``."""

    def __init__(self, view: JobView) -> None:
        self.view = view
        self._card = Card(card(view))
        self._shown_at = time.monotonic()

    def show(self, event: Event | None = None) -> None:
        """Show the job if the last update is long ago."""
        if time.monotonic() - self._shown_at >= EVERY_SECONDS:
            self.show_now()

    def show_now(self) -> None:
        """Show the job."""
        self._card.show(card(self.view))
        self._shown_at = time.monotonic()


@contextmanager
def notebook(view: JobView) -> Iterator[Show]:
    """Show a job as a card that is updated."""
    shown = _Throttle(view)
    try:
        yield shown.show
    finally:
        shown.show_now()


class FitCard(_Throttle):
    """A sink of events that shows a fit of this process as a card, like that of a job.

    As a context manager, it also shows how the fit ended.

    Parameters
    ----------
    about : mapping
        What is known before the fit begins, by the names of :meth:`Job.status`: ``title``,
        ``data``, ``algorithm``, ``n_clusters``, ``max_iter``, and ``mixture`` for a mixture.
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
        self._close(
            "finished",
            {
                "stop_reason": result.stop_reason,
                "n_iter": result.n_iter,
                "seconds": result.seconds,
                **result.objective.describe(value=result.value),
                "figures": model.fit_figures(),
                "digest": model.digest(),
            },
        )

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
