"""A job, a fit and a list of jobs as HTML, for notebooks: nothing is loaded from anywhere.

Every text is escaped. Colours are given only where they mean something, so that the cards can be
read on light and on dark pages.
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
from largek_dask.html_table import CELL, FRAME
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
from largek_dask.observe.page import text as _text

__all__ = ["Card", "card", "card_of_jobs", "in_notebook", "notebook"]

HUES = {
    "yellow": "#b58900",
    "magenta": "#c0398a",
    "blue": "#2f81d6",
    "green": "#2e9e4f",
    "red": "#d43f3f",
}
LINE = "border-bottom:2px solid "
"""How a hue is shown: beneath the text, which no hue leaves readable on both white and black."""
CURVE_WIDTH, CURVE_HEIGHT = 320, 48
CURVE_POINTS = 200
EVERY_SECONDS = 0.5
"""Least time between two updates of a card."""
LEFT_ALIGNED = frozenset(
    {"worker", "job", "name", "state", "algorithm", "submitted", "output"}
)  # fmt: skip


def card(view: JobView, note: str = "") -> str:
    """A job as HTML.

    Parameters
    ----------
    view : JobView
    note : str
        Shown at the bottom, such as that the card is not updated any more.
    """
    parts = [f"<div>{_title(view)}</div>", _pairs(view)]
    share = view.share_done()
    if share is not None and not view.has_ended:
        parts.append(_bar(share, left_of(view)))
    if rows := worker_rows(view):
        parts.append(_table(WORKER_COLUMNS, rows))
    parts += [f'<div style="{LINE}{HUES["yellow"]}">⚠ {_text(w)}</div>' for w in view.warnings]
    if note:
        parts.append(f'<div style="opacity:.7">{_text(note)}</div>')
    return f'<div style="{FRAME}">{"".join(parts)}</div>'


def card_of_jobs(statuses: Iterable[Mapping[str, Any]], title: str) -> str:
    """A table of jobs as HTML."""
    rows = [job_row(status) for status in statuses]
    table = _table(JOB_COLUMNS, rows) if rows else "<div>no jobs yet</div>"
    return f'<div style="{FRAME}"><div><b>{_text(title)}</b></div>{table}</div>'


def _badge(state: str) -> str:
    hue = HUES.get(COLORS.get(state, ""), "#888")
    return f'<b style="{LINE}{hue}">{_text(state)}</b>'


def _title(view: JobView) -> str:
    name = view.status.get("name")
    named = f" · {_text(name)}" if name else ""
    return f"<b>{_text(view.title)}</b>{named} · {_badge(view.state)}"


def _pairs(view: JobView) -> str:
    rows, costs = [], view.cost_values
    for name, text in facts(view):
        style = f' style="{LINE}{HUES["red"]}"' if name == "error" else ""
        value = f"<span{style}>{_text(text)}</span>"
        if name == view.objective.of_step:
            value += _curve(costs, f"{name} over the steps")
            costs = []  # a figure of the result may have the same name
        cell = CELL.format("left")
        rows.append(
            f'<tr style="background:none"><td style="{cell};opacity:.7;vertical-align:top">'
            f'{_text(name)}</td><td style="{cell};word-break:break-all">{value}</td></tr>'
        )
    return f'<table style="border:none;margin:4px 0">{"".join(rows)}</table>'


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def cell(column: str, text: str, tag: str) -> str:
        style = CELL.format("left" if column in LEFT_ALIGNED else "right")
        if tag == "th":
            style += ";white-space:nowrap"
        shown = _badge(text) if column == "state" and tag == "td" else _text(text)
        return f'<{tag} style="{style}">{shown}</{tag}>'

    head = "".join(cell(column, column, "th") for column in columns)
    body = "".join(
        f'<tr style="background:none">'
        f"{''.join(cell(c, text, 'td') for c, text in zip(columns, row, strict=True))}</tr>"
        for row in rows
    )
    return (
        f'<table style="border:none;margin:4px 0"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _bar(share: float, words: str) -> str:
    return (
        '<div style="display:flex;align-items:center;gap:8px;margin:4px 0">'
        '<div style="width:320px;height:8px;border-radius:4px;background:#8884">'
        f'<div style="width:{100 * share:.1f}%;height:8px;border-radius:4px;'
        f'background:{HUES["blue"]}"></div></div><span>{_text(words)}</span></div>'
    )


def _curve(costs: Sequence[float], title: str) -> str:
    """The objective over the steps, as a line; nothing for fewer than two."""
    n = min(len(costs), CURVE_POINTS)
    if n < 2:
        return ""
    shown = [costs[i * (len(costs) - 1) // (n - 1)] for i in range(n)]
    low, high = min(shown), max(shown)
    points = " ".join(
        f"{2 + i / (n - 1) * (CURVE_WIDTH - 4):.1f},"
        f"{2 + (high - cost) / (high - low or 1.0) * (CURVE_HEIGHT - 4):.1f}"
        for i, cost in enumerate(shown)
    )
    return (
        f'<svg width="{CURVE_WIDTH}" height="{CURVE_HEIGHT}" style="display:block" role="img" '
        f'aria-label="{_text(title)}"><polyline fill="none" stroke="{HUES["blue"]}" '
        f'stroke-width="1.5" points="{points}"/></svg>'
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
