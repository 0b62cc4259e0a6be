"""Format jobs as text: their properties, rows of job tables, and numbers in events.

Fields that are missing or have the wrong type are shown as a dash. Control characters are removed
from all texts, so that no text can forge lines or control a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any

from dask.utils import format_bytes

from largek_dask.algorithms.objective import value_in
from largek_dask.driver.events import Event, compiling_words, is_number
from largek_dask.driver.formatting import human_count, human_seconds, printable
from largek_dask.driver.job_view import KINDS, JobView
from largek_dask.driver.stopping import ENDS
from largek_dask.html_table import html_table

NONE = "–"
JOB_COLUMNS = ("job", "name", "state", "k", "step", "objective", "left")
MOST_TEXT = 400
"""Maximum number of characters in a formatted text."""
LATEST = 253_402_300_799.0
"""End of the year 9999, in seconds since 1970."""


def shown(text: object) -> str:
    """Convert a text to one printable line of limited length."""
    words = printable(str(text)[: 2 * MOST_TEXT])
    return words if len(words) <= MOST_TEXT else f"{words[: MOST_TEXT - 1]}…"


def iso(seconds: float) -> str | None:
    """Format a Unix time as ISO 8601; return None outside the supported range."""
    if not 0 < seconds < LATEST:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def figure(value: Any, words: Callable[[float], str] = human_count) -> str:
    """Format a number; return a dash for any other value."""
    return words(value) if is_number(value) else NONE


def whole(value: float) -> str:
    return f"{value:,.0f}"


def precise(value: float) -> str:
    return f"{value:.8g}"


def figures_in(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Format the values of ``Model.fit_figures`` in a job's result."""
    return [
        (printable(name).replace("_", " "), figure(value, precise))
        for name, value in _mapping(result.get("figures")).items()
    ]


def compiling_text(event: Event) -> str:
    """Format the progress of kernel compilation, with the time left if known."""
    left = event.get("left_s")
    return compiling_words(left if is_number(left) else None)


def _on_sample(event: Event) -> str:
    """Describe the sample on which a step's cost was computed; empty for all rows."""
    sample = event.get("sample")
    return f" on a sample of {whole(sample)} rows" if is_number(sample) else ""


def shape_of(event: Event) -> str:
    """Format the shape of the rows given in an event "started"."""
    rows, features = event.get("n_rows"), event.get("n_features")
    chunks = figure(event.get("n_chunks"), whole)
    noun = "chunk" if chunks == "1" else "chunks"
    return f"{figure(rows, whole)} × {figure(features, whole)} in {chunks} {noun}"


def facts(view: JobView) -> list[tuple[str, str]]:
    """Return the known properties of a job as (name, text) pairs."""
    s = view.status
    k = figure(s.get("n_clusters"), whole)
    found = [
        ("data", f"{s.get('data')}{f' ({shape_of(view.started)})' if view.started else ''}"),
        ("model", f"mixture ({s['mixture']}) of {k} components" if "mixture" in s
         else f"{k} clusters by {s.get('algorithm')}"),
        *(
            [("engine", f"{view.chosen.get('name')}: {view.chosen.get('reason')}")]
            if view.chosen
            else []
        ),
        *([("output", s["output"])] if "output" in s else []),
    ]  # fmt: skip
    if isinstance(needs := s.get("needs"), list | tuple) and needs:
        found.append(("waits", f"for the storage options {', '.join(map(str, needs))}"))
    if s.get("note"):
        found.append(("waits", str(s["note"])))
    if view.compiling is not None and not view.has_ended:
        found.append(("now", compiling_text(view.compiling)))
    if "step" in s:
        most = figure(s.get("max_iter"), whole)
        changed = figure(s.get("n_changed"), whole)
        found += [
            ("step", f"{figure(s['step'], whole)} of at most {most}"),
            (view.objective.of_step,
             f"{figure(s.get('cost'), precise)}{_on_sample(s)}, {changed} rows changed cluster"),
            *([("energy", f"{precise(energy)} per row")]
              if is_number(energy := s.get("energy")) else []),
            ("speed", f"{figure(s.get('rows_per_second'))} rows/s; "
             f"{figure(s.get('rows'))} rows processed{_moved(s)}"),
            *([("time", spent)] if (spent := _time_shares(view)) else []),
            ("memory", f"{figure(s.get('state_bytes'), format_bytes)} of row state, "
             f"{figure(s.get('cache_bytes'), format_bytes)} of chunks"),
            *([("repeated", f"{figure(s.get('retries'))} chunks retried, "
             f"{figure(s.get('rebuilt'))} rebuilt, {figure(s.get('evictions'))} evictions")]
             if any(s.get(name) for name in ("retries", "rebuilt", "evictions")) else []),
        ]  # fmt: skip
    result = _mapping(s.get("result"))
    ended_for, value = value_in(result)
    if result.get("error"):
        found.append(("error", f"{result['error']}: {result.get('message')}"))
    elif result.get("digest"):
        found += [
            ("ended", f"{result.get('stop_reason')} after {figure(result.get('n_iter'), whole)} "
             f"steps, {figure(result.get('seconds'), human_seconds)}"),
            (ended_for.words, figure(value, precise)),
            *figures_in(result),
            ("digest", result["digest"]),
        ]  # fmt: skip
    return [(name, printable(text)) for name, text in found]


def _time_shares(view: JobView) -> str:
    """Format the fractions of thread time by kind of work; empty if unknown."""
    known = {kind: spent for kind in KINDS if (spent := view.seconds.get(kind, 0.0)) > 0}
    return ", ".join(f"{kind} {spent / sum(known.values()):.0%}" for kind, spent in known.items())


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _moved(status: Mapping[str, Any]) -> str:
    moved = status.get("bytes")
    return f", {format_bytes(moved)} read or moved" if is_number(moved) and moved else ""


def left_of(view: JobView) -> str:
    """Format the progress of a job; empty if unknown."""
    if view.state in ENDS:
        return ""
    if view.labelled is not None:
        return f"{view.labelled:.0%} of the labels written"
    share = view.share_done()
    if share is None:
        return ""
    return f"{share:.0%}, at most {figure(view.status.get('eta_s'), human_seconds)} left"


def job_row(status: Mapping[str, Any]) -> tuple[str, ...]:
    running = status.get("state") == "running"
    result = status.get("result") or {}
    _, value = value_in(result)
    row = (
        status.get("id"),
        status.get("name") or "",
        status.get("state"),
        figure(status.get("n_clusters"), whole),
        figure(result.get("n_iter", status.get("step")), whole),
        figure(status.get("cost") if value is None else value, lambda v: f"{v:.6g}"),
        figure(status.get("eta_s") if running else None, human_seconds),
    )
    return tuple(printable(item) for item in row)


def card(view: JobView) -> str:
    known = [("state", view.state), ("name", str(view.status.get("name") or "")), *facts(view)]
    known += [("done", left_of(view)), *(("warning", text) for text in view.warnings)]
    texts: dict[str, str] = {}
    for name, text in known:
        if text:
            texts[name] = f"{texts[name]}; {text}" if name in texts else text
    return html_table(view.title, texts)


def card_of_jobs(statuses: Iterable[Mapping[str, Any]], title: str) -> str:
    rows = [JOB_COLUMNS, *map(job_row, statuses)]
    tags = ["th", *["td"] * (len(rows) - 1)]
    lines = "".join(
        f"<tr>{''.join(f'<{tag}>{escape(text)}</{tag}>' for text in row)}</tr>"
        for tag, row in zip(tags, rows, strict=True)
    )
    none = "" if len(rows) > 1 else "<tr><td>no jobs yet</td></tr>"
    return f"<table><caption>{escape(title)}</caption>{lines}{none}</table>"
