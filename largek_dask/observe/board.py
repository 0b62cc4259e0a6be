"""A job as it is drawn: what its events have told, as panels of plain values.

A board is told a job's status and its events, and answers with everything that a page, a notebook
or a file draws. It has no clock, does no I/O, holds at most 2 MB however long the job runs, and
never raises for what it is told.

The answer::

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
     "skip": x up to which the first steps lie, or null,
     "table": {"columns": [text, ...], "rows": [[text, ...], ...]}}

``x`` of a series are of the panel's axis ``x``; a column that has the name of another of its
``axes`` is where its points are on that one. ``above`` is how far the objective is from its best
value, ``right`` where a bar ends, and ``mark`` the size in pixels of the mark at each point. All
numbers are finite; null in ``y`` is where the line is interrupted. Marks have a column for each
axis as well. ``observe.figures`` makes a figure of each panel that has series.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from largek_dask.algorithms.objective import value_in
from largek_dask.driver.events import Event
from largek_dask.driver.stopping import ENDS
from largek_dask.observe.heard import Heard, Window, number_in
from largek_dask.observe.panels import iso, panels, rounded, shown
from largek_dask.observe.showing import Seen, facts, is_number

__all__ = ["FORMAT", "Board", "row"]

FORMAT = 1
"""Number of the answer's form: another one where fields have changed their meaning."""


class Board:
    """What is drawn of a job.

    Parameters
    ----------
    job_id : str
    window : Window, optional
        A part of an axis that is looked at closely: only steps in it have points.
    whole : Board, optional
        The job's board without it.

    Attributes
    ----------
    whole : Board or None
        As given.

    Examples
    --------
    >>> board = Board("7f3a")
    >>> board.hear({"event": "started", "n_rows": 100})
    >>> for n in (1, 2):
    ...     board.hear({"event": "step", "step": n, "elapsed": n, "cost": 9 / n, "rows": 100})
    >>> board.answer()["panels"][0]["words"]
    'Cost 4.5 last, 4.5 at its lowest.'
    """

    def __init__(
        self, job_id: str, window: Window | None = None, whole: Board | None = None
    ) -> None:
        self.whole = whole
        self._seen = Seen({"id": job_id})
        self._heard: Heard = Heard(window, None if whole is None else whole._heard)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers in all series."""
        return self._heard.nbytes()

    def know(self, status: Mapping[str, Any]) -> None:
        """Take in a newer status; see ``Job.status``."""
        self._seen.know(status)

    def hear(self, event: object) -> None:
        """Take in an event, whatever it is."""
        if isinstance(event, Mapping):
            self._seen.hear(event)
            self._heard.hear(event)

    def hear_all(self, events: Iterable[Event]) -> Board:
        """Take in events, the oldest first."""
        for event in events:
            self.hear(event)
        return self

    def answer(self) -> dict[str, Any]:
        """Everything that is drawn, as plain values."""
        seen, heard = self._seen, self._heard
        return {
            "format": FORMAT,
            "id": shown(seen.status.get("id")),
            "name": shown(seen.status.get("name") or ""),
            "state": shown(seen.state),
            "title": shown(seen.title),
            **_error(seen.status.get("result")),
            "facts": [[shown(name), shown(text)] for name, text in facts(seen)],
            "now": self._now(),
            "panels": panels(seen, heard),
            "marks": [
                {
                    "elapsed": rounded(1e3 * mark.elapsed, 5),
                    "time": round(1e3 * mark.seconds),
                    "passes": rounded(mark.passes, 4),
                    "kind": mark.kind,
                    "text": mark.text,
                }
                for mark in heard.marks()
            ],
        }

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """The series of one panel; none where there is no such panel."""
        found = [panel for panel in panels(self._seen, self._heard) if panel["kind"] == kind]
        return list(found[0]["series"]) if found else []

    def _now(self) -> dict[str, Any]:
        status, heard = self._seen.status, self._heard
        progress = status.get("progress")
        done, n_chunks = number_in(progress, "done"), number_in(progress, "n_chunks")
        told = status.get("last_event")
        has_ended, limit = self._seen.state in ENDS, status.get("limited_by")
        return {
            "last_event": shown(told) if told else iso(heard.last_seconds),
            "step_seconds": rounded(heard.step_seconds()),
            "share": rounded(self._seen.share_done()),
            "eta_s": None if has_ended else rounded(number_in(status, "eta_s")),
            "limited_by": None if has_ended or not limit else shown(limit),
            "progress": None
            if done is None or not n_chunks or has_ended
            else {"done": rounded(done, 12), "n_chunks": rounded(n_chunks, 12)},
            "labelled": rounded(self._seen.labelled),
            "rows_per_second": rounded(number_in(status, "rows_per_second")),
            "workers": n_workers(status),
        }


def _error(result: object) -> dict[str, str]:
    """What a job has failed with, if it has."""
    if not isinstance(result, Mapping) or not result.get("error"):
        return {}
    return {"error": shown(f"{result['error']}: {result.get('message')}")}


def row(status: Mapping[str, Any]) -> dict[str, Any]:
    """A job in the list of jobs, as plain values; it never raises.

    Returns
    -------
    dict
        ``id``, ``name``, ``state``, ``algorithm`` and ``created`` as text; ``n_clusters``,
        ``step``, ``cost``, ``share`` (0 to 1), ``eta_s``, ``rows_per_second`` and ``workers`` as
        numbers, null where they are not known; ``last_event`` in ISO form or null.
    """
    seen = Seen(status)
    _, value = (
        value_in(result) if isinstance(result := status.get("result"), Mapping) else (0, None)
    )
    running = seen.state not in ENDS
    told = status.get("last_event")
    return {
        **{name: shown(status.get(name) or "") for name in ("id", "name", "state", "algorithm")},
        "created": shown(status.get("created") or ""),
        "n_clusters": rounded(number_in(status, "n_clusters"), 12),
        "step": rounded(number_in(status, "step"), 12),
        "cost": rounded(float(value) if is_number(value) else number_in(status, "cost"), 8),
        "share": rounded(seen.share_done()),
        "eta_s": rounded(number_in(status, "eta_s")) if running else None,
        "rows_per_second": rounded(number_in(status, "rows_per_second")) if running else None,
        "workers": n_workers(status) if running else 0,
        "last_event": shown(told) if told else None,
    }


def n_workers(status: Mapping[str, Any]) -> int:
    """How many workers a status tells of."""
    workers = status.get("workers")
    return len(workers) if isinstance(workers, Mapping) else 0
