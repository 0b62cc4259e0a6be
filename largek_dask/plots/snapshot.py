"""A job as plain values: everything that a page, a notebook or a file draws.

The form::

    {"format": 1, "id", "name", "state", "title",
     "error": text, where there is one,
     "facts": [[name, text], ...],
     "now": {"last_event": time in ISO form or null, "step_seconds": how long a step takes or null,
             "share": 0..1 or null, "eta_s": seconds or null, "limited_by": text or null,
             "progress": {"done", "n_chunks"} or null, "labelled": 0..1 or null,
             "rows_per_second": number or null, "workers": number},
     "panels": [panel, ...],                    # in their order; one without data is absent
     "marks": [{"elapsed", "time", "passes", "kind", "text"}, ...]}

A panel::

    {"kind": "cost", "title": text, "words": one sentence, last and lowest value (its label),
     "figures": [[name, text], ...],
     "x": axis, "axes": [axis, ...],            # elapsed (ms), time (ms since 1970), passes, …
     "y": label, "log": whether the axis is logarithmic,
     "series": [{"name": text, "x": [...], "y": [...], further columns: [...]}, ...],
     "table": {"columns": [text, ...], "rows": [[text, ...], ...]}}

``x`` of a series are of the panel's axis ``x``; a column that has the name of another of its
``axes`` is where its points are on that one. ``above`` is how far the objective is from its best
value, ``right`` where a bar ends, and ``mark`` the size in pixels of the mark at each point. All
numbers are finite; null in ``y`` is where the line is interrupted. Marks have a column for each
axis as well. ``plots.figures`` makes a figure of each panel that has series.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from largek_dask.driver.job_view import JobView, number_in
from largek_dask.plots.job_text import facts
from largek_dask.plots.panels import iso, marks_of, panels, rounded, shown

__all__ = ["FORMAT", "snapshot"]

FORMAT = 1
"""Version of this form: another number where fields have changed their meaning."""


def snapshot(view: JobView) -> dict[str, Any]:
    """Return everything that is drawn of a job, as plain values.

    Examples
    --------
    >>> view = JobView({"id": "7f3a"})
    >>> view.update({"event": "started", "n_rows": 100})
    >>> for n in (1, 2):
    ...     view.update({"event": "step", "step": n, "elapsed": n, "cost": 9 / n, "rows": 100})
    >>> {panel["kind"]: panel["words"] for panel in snapshot(view)["panels"]}["cost"]
    'Cost 4.5 last, 4.5 at its lowest.'
    """
    return {
        "format": FORMAT,
        "id": shown(view.status.get("id")),
        "name": shown(view.status.get("name") or ""),
        "state": shown(view.state),
        "title": shown(view.title),
        **_error(view.status.get("result")),
        "facts": [[shown(name), shown(text)] for name, text in facts(view)],
        "now": _now(view),
        "panels": [panel.to_dict() for panel in panels(view)],
        "marks": marks_of(view),
    }


def _now(view: JobView) -> dict[str, Any]:
    status = view.status
    progress = status.get("progress")
    done, n_chunks = number_in(progress, "done"), number_in(progress, "n_chunks")
    last_event, limit = status.get("last_event"), status.get("limited_by")
    return {
        "last_event": shown(last_event) if last_event else iso(view.last_seconds),
        "step_seconds": rounded(view.step_seconds()),
        "share": rounded(view.share_done()),
        "eta_s": None if view.has_ended else rounded(number_in(status, "eta_s")),
        "limited_by": None if view.has_ended or not limit else shown(limit),
        "progress": None
        if done is None or not n_chunks or view.has_ended
        else {"done": rounded(done, 12), "n_chunks": rounded(n_chunks, 12)},
        "labelled": rounded(view.labelled),
        "rows_per_second": rounded(number_in(status, "rows_per_second")),
        "workers": n_workers(status),
    }


def _error(result: object) -> dict[str, str]:
    """What a job has failed with, if it has."""
    if not isinstance(result, Mapping) or not result.get("error"):
        return {}
    return {"error": shown(f"{result['error']}: {result.get('message')}")}


def n_workers(status: Mapping[str, Any]) -> int:
    """How many workers a status tells of."""
    workers = status.get("workers")
    return len(workers) if isinstance(workers, Mapping) else 0
