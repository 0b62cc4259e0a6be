"""A job or a list of jobs as HTML for notebooks: nothing is loaded, and all text is escaped.

Colours only underline, so that cards can be read on light and on dark pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from largek_dask.driver.job_view import JobView
from largek_dask.plots.job_text import JOB_COLUMNS, facts, job_row, left_of
from largek_dask.plots.render import render

__all__ = ["card", "card_of_jobs"]

HUES = {"queued": "#b58900", "waiting": "#c0398a", "running": "#2f81d6", "finished": "#2e9e4f",
        "cancelled": "#b58900", "failed": "#d43f3f", "unreadable": "#d43f3f"}  # fmt: skip
"""Colours by state."""
LEFT_ALIGNED = ("worker", "job", "name", "state")


def card(view: JobView) -> str:
    """Return a job as HTML."""
    share = None if view.has_ended else view.share_done()
    return render("card.html", title=view.title, view=view, facts=facts(view), share=share,
                  left_words=left_of(view), hues=HUES, left=LEFT_ALIGNED)  # fmt: skip


def card_of_jobs(statuses: Iterable[Mapping[str, Any]], title: str) -> str:
    """Return a table of jobs as HTML."""
    rows = [job_row(status) for status in statuses]
    return render("card.html", title=title, view=None, columns=JOB_COLUMNS, rows=rows, hues=HUES,
                  left=LEFT_ALIGNED)  # fmt: skip
