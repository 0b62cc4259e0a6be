"""Render the page of jobs with Jinja templates, which escape every value; load static files."""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import bokeh
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from largek_dask.driver.events import is_number
from largek_dask.driver.formatting import count_of, human_count, human_seconds, printable
from largek_dask.driver.job_view import JobView, number_in
from largek_dask.driver.stopping import ENDS
from largek_dask.plots.figures import key
from largek_dask.plots.job_text import facts, iso, shown
from largek_dask.plots.panels import Panel, marks_of, panels
from largek_dask.version import __version__

Row = Mapping[str, Any]

MOST_LISTED = 100
"""Maximum number of jobs in the list; active jobs come first, then the newest."""
COLUMNS = {
    "state": "State", "name": "Job", "algorithm": "Algorithm", "n_clusters": "k", "data": "Data",
    "owner": "Owner", "cost": "Cost", "share": "Done", "eta_s": "Time left",
    "rows_per_second": "Rows/s", "seconds": "Duration",
}  # fmt: skip
"""Column headings of the job list, by sort field."""
TEXTS = ("id", "name", "state", "algorithm", "data", "owner")
SIGNS = {"running": "●", "queued": "○", "waiting": "◔", "finished": "✓", "failed": "✕",
         "cancelled": "■"}  # fmt: skip
ORDER = ("running", "waiting", "queued")
"""First states in an unsorted list; jobs in other states follow."""
LATE_SECONDS, LATE_STEPS = 15.0, 4
"""A running job is overdue after this many seconds and step durations without an event."""
NONE = "–"


@cache
def _environment() -> Environment:
    loader = PackageLoader("largek_dask.service.web")
    found = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True,
                        undefined=StrictUndefined)  # fmt: skip
    found.globals |= {"SIGNS": SIGNS, "NONE": NONE, "version": __version__}
    found.filters |= {
        "count": lambda value: human_count(value) if is_number(value) else NONE,
        "whole": lambda value: f"{value:,.0f}" if is_number(value) else NONE,
        "cost": lambda value: f"{value:.6g}" if is_number(value) else NONE,
        "seconds": lambda value: human_seconds(max(0.0, value)) if is_number(value) else NONE,
        "share": lambda value: f"{int(100 * value)} %" if is_number(value) else NONE,
    }
    return found


def _rendered(template: str, /, **values: Any) -> str:
    return _environment().get_template(template).render(values)


def whole_page(content: Mapping[str, Any], page: Any, **about: Any) -> bytes:
    html = Markup(content["html"])
    return _rendered("base.html", title=content["title"], html=html, page=page, **about).encode()


# --- the list -------------------------------------------------------------------------------------


def selected(rows: Sequence[Row], sort: str) -> list[Row]:
    """Select and sort the newest rows by a field of :data:`COLUMNS` (descending after ``-``).

    If ``sort`` is empty, active jobs come first, then the newest jobs.
    """
    newest = list(reversed(rows))
    ranks = {state: rank for rank, state in enumerate(ORDER)}
    newest.sort(key=lambda row: ranks.get(row["state"], len(ranks)))
    found = newest[:MOST_LISTED]
    if not sort:
        return found
    name = sort.removeprefix("-")
    known = [row for row in found if _sort_key(row, name) is not None]
    known.sort(key=lambda row: _sort_key(row, name), reverse=sort.startswith("-"))
    return known + [row for row in found if _sort_key(row, name) is None]


def _sort_key(row: Row, name: str) -> Any:
    value = (row.get("name") or row["id"]) if name == "name" else row.get(name)
    return value.casefold() if isinstance(value, str) else value if is_number(value) else None


def jobs_content(rows: Sequence[Row], sort: str) -> dict[str, Any]:
    found = selected(rows, sort)
    states = Counter(row["state"] for row in rows)
    summary = [f"{n:,} {state}" for state, n in states.items()] or ["no jobs yet"]
    if workers := {name for row in rows for name in row.get("workers", ())}:
        summary.append(f"{count_of(len(workers), 'worker')} at work")
    speeds = [speed for row in rows if is_number(speed := row.get("rows_per_second"))]
    if speeds:
        summary.append(f"{human_count(sum(speeds))} rows/s")
    columns = []
    for name, heading in COLUMNS.items():
        is_up, is_down = sort == name, sort == f"-{name}"
        order = "ascending" if is_up else "descending" if is_down else ""
        columns.append({"heading": heading, "order": order, "sort": f"-{name}" if is_up else name,
                        "is_text": name in TEXTS})  # fmt: skip
    shown_rows, line = [_shown_row(row) for row in found], " · ".join(summary)
    html = _rendered("list.html", columns=columns, summary=line, rows=shown_rows, n_jobs=len(rows))
    return {"title": "Jobs", "html": html}


def _shown_row(row: Row) -> dict[str, Any]:
    """Return a row with all fields of the list, and with texts made short and printable."""
    found = {**dict.fromkeys(COLUMNS), **row}
    return {**found, **{name: shown(found[name] or "") for name in TEXTS}}


# --- a job ----------------------------------------------------------------------------------------


def job_content(view: JobView, lack: str, *, can_cancel: bool) -> dict[str, Any]:
    """Return the title and HTML for a job, and the series and marks of its charts.

    ``lack`` is a message about missing events, or empty.
    """
    status, state = view.status, shown(view.state)
    found = {panel.kind: panel for panel in panels(view)}
    series = {kind: panel.series for kind, panel in found.items() if panel.series}
    known = [(shown(name), shown(text)) for name, text in facts(view)]
    marks, result = marks_of(view), status.get("result")
    result = result if isinstance(result, Mapping) else {}
    html = _rendered(
        "job.html",
        id=shown(status.get("id")),
        name=shown(status.get("name") or ""),
        state=state,
        error=shown(f"{result['error']}: {result.get('message')}") if result.get("error") else "",
        lack=shown(lack),
        waits=[text for name, text in known if name == "waits"],
        tiles=_tiles(view, found.get("cost")),
        panels=found.values(),
        figures={kind: digest(key(found[kind]).encode()) for kind in series},
        facts=known,
        marks=_main_marks(marks),
        can_cancel=can_cancel and state not in ENDS,
        model=repr(f"{printable(status.get('output'))}/model.zarr") if result.get("digest") else "",
    )
    share = view.share_done()
    done = f" {int(100 * share)} %" if state == "running" and share else ""
    return {
        "title": f"{state}{done} · {shown(status.get('name') or status.get('id'))}",
        "html": html,
        "series": {kind: [{"name": trace.name, **trace.columns} for trace in traces]
                   for kind, traces in series.items()},
        "marks": marks,
        "panels": found,
    }  # fmt: skip


def _main_marks(marks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the marks, latest first, with only the last checkpoint; charts show all marks."""
    last = next((mark for mark in reversed(marks) if mark["kind"] == "checkpoint"), None)
    shown_marks = (mark for mark in reversed(marks) if mark["kind"] != "checkpoint" or mark is last)
    return [{**mark, "iso": iso(mark["time"] / 1e3) or ""} for mark in shown_marks]


def _tiles(view: JobView, cost: Panel | None) -> list[dict[str, Any]]:
    status, is_live = view.status, view.state == "running"
    step, share, labelled = view.step_seconds, view.share_done(), view.labelled
    tiles = []

    def add(name: str, text: str, small: str = "", **more: Any) -> None:
        tiles.append({"name": name, "text": text, "small": small, "share": None, "time": "",
                      "late": None, **more})  # fmt: skip

    sign = status.get("last_event") or iso(view.last_seconds)
    if sign:
        usual = f"usually every {human_seconds(step)}" if step and is_live else ""
        late = max(LATE_SECONDS, LATE_STEPS * (step or 0.0)) if is_live else None
        add("Last event", "", usual, time=shown(sign), late=late)
    if cost is not None:
        (_, last), (best_name, best) = cost.figures[:2]
        add(cost.title, last, f"{best_name} {best}")
    progress = status.get("progress") if is_live else None
    done, of = number_in(progress, "done"), number_in(progress, "n_chunks")
    if done is not None and of:
        add("This pass", f"{100 * done / of:.0f} %", f"{done:,.0f} of {of:,.0f} chunks",
            share=round(done / of, 4))  # fmt: skip
    if share is not None:
        small = ""
        if labelled is not None and view.state != "finished":
            small = f"{int(100 * labelled)} % of the labels written"
        add("Done", f"{int(100 * share)} %", small, share=round(share, 4))
    if is_live and (left := number_in(status, "eta_s")) is not None:
        add("Time left", human_seconds(max(0.0, left)), "at most")
    if is_live and (speed := number_in(status, "rows_per_second")) is not None:
        add("Rows/s", human_count(speed))
    workers = status.get("workers")
    if is_live and isinstance(workers, list) and workers:
        add("Workers", f"{len(workers):,}")
    return tiles


# --- files ----------------------------------------------------------------------------------------


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:12]


def packed(body: bytes) -> bytes:
    """Compress with gzip, reproducibly: equal bodies give equal bytes."""
    return gzip.compress(body, 5, mtime=0)


@cache
def _file(package: str, path: str) -> bytes:
    return packed(resources.files(package).joinpath(path).read_bytes())


class Files:
    """Versioned names and contents of the static files ``style``, ``script`` and ``bokeh``."""

    def __init__(self) -> None:
        own, script, style = "largek_dask.service.web", "static/page.js", "static/page.css"
        self.style = f"page-{digest(_file(own, style))}.css"
        self.script = f"page-{digest(_file(own, script))}.js"
        self.bokeh = f"bokeh-{bokeh.__version__}.js"
        self._places = {
            self.style: (own, style),
            self.script: (own, script),
            self.bokeh: ("bokeh", "server/static/js/bokeh.min.js"),
        }

    def read(self, name: str) -> bytes | None:
        """Return a file compressed with gzip; None for an unknown name."""
        return _file(*self._places[name]) if name in self._places else None
