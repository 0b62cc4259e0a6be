"""Text about a job: facts, rows of tables, and the figures of its events.

Fields that are missing or of another type are shown as a dash. The texts that are returned are
printable: they can neither forge a line nor steer a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from largek_dask.algorithms.objective import value_in
from largek_dask.driver.events import Event, compiling_words, is_number
from largek_dask.driver.formatting import human_bytes, human_count, human_seconds, printable
from largek_dask.driver.job_view import JobView, number_in
from largek_dask.driver.stopping import ENDS

__all__ = [
    "COLORS",
    "JOB_COLUMNS",
    "WORKER_COLUMNS",
    "Show",
    "compiling_told",
    "energy_in",
    "facts",
    "figure",
    "figures_in",
    "job_row",
    "left_of",
    "on_sample",
    "precise",
    "queue_words",
    "shape_of",
    "sparkline",
    "waits_of",
    "whole",
    "worker_rows",
]

Show = Callable[[Event | None], None]
"""Called with every event, and with None where only the status is new."""

NONE = "–"
BLOCKS = "▁▂▃▄▅▆▇█"
COLORS = {
    "unreadable": "red",
    "queued": "yellow",
    "waiting": "magenta",
    "running": "blue",
    "finished": "green",
    "failed": "red",
    "cancelled": "yellow",
}
JOB_COLUMNS = ("job", "name", "state", "k", "algorithm", "step", "objective", "rows/s", "left",
               "submitted", "output")  # fmt: skip
WORKER_COLUMNS = ("worker", "rows/s", "rows", "compute", "read", "wait", "row state", "chunks")


def figure(value: Any, words: Callable[[float], str] = human_count) -> str:
    """A figure in words; a dash if it is none."""
    return words(value) if is_number(value) else NONE


def _model_of(status: Mapping[str, Any]) -> str:
    """What is looked for."""
    k = figure(status.get("n_clusters"), whole)
    if "mixture" in status:
        return f"mixture ({status['mixture']}) of {k} components"
    return f"{k} clusters by {status.get('algorithm')}"


def figures_in(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a result says of its model beside the objective, in words (``Model.fit_figures``)."""
    figures = result.get("figures")
    if not isinstance(figures, Mapping):
        return []
    return [
        (printable(name).replace("_", " "), figure(value, precise))
        for name, value in figures.items()
    ]


def energy_in(event: Event) -> float | None:
    """The energy that a step tells beside the objective of a mixture; None if it does not."""
    return number_in(event.get("extra"), "energy")


def compiling_told(event: Event) -> str:
    """That kernels are compiled, and how long it will take where that is known."""
    left = event.get("left_s")
    return compiling_words(left if is_number(left) else None)


def on_sample(event: Event) -> str:
    """Of which rows the cost of a step is, where it is not of all: it is lower than theirs."""
    sample = event.get("sample")
    return f" on a sample of {whole(sample)} rows" if is_number(sample) else ""


def whole(value: float) -> str:
    """``1234567`` as ``1,234,567``."""
    return f"{value:,.0f}"


def precise(value: float) -> str:
    """A value of the objective, to eight figures."""
    return f"{value:.8g}"


def shape_of(event: Event) -> str:
    """The rows, from the event "started"."""
    rows, features = event.get("n_rows"), event.get("n_features")
    chunks = figure(event.get("n_chunks"), whole)
    noun = "chunk" if chunks == "1" else "chunks"
    return f"{figure(rows, whole)} × {figure(features, whole)} in {chunks} {noun}"


def sparkline(values: list[float], width: int) -> str:
    """Values as blocks, the last of each bin.

    Examples
    --------
    >>> sparkline([9.0, 4.0, 2.0, 1.0, 1.0], 5)
    '█▄▂▁▁'
    """
    if not values:
        return ""
    n = min(width, len(values))
    shown = [values[(i + 1) * len(values) // n - 1] for i in range(n)]
    low, high = min(shown), max(shown)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round((v - low) / (high - low or 1.0) * top)] for v in shown)


def facts(view: JobView) -> list[tuple[str, str]]:
    """What is known of a job, as names and texts that are safe to print."""
    s = view.status
    found = [
        ("data", f"{s.get('data')}{f' ({shape_of(view.started)})' if view.started else ''}"),
        ("model", _model_of(s)),
        *(
            [("engine", f"{view.chosen.get('name')}: {view.chosen.get('reason')}")]
            if view.chosen
            else []
        ),
        *([("output", s["output"])] if "output" in s else []),
    ]
    if isinstance(needs := s.get("needs"), list | tuple) and needs:
        found.append(("waits", f"for the storage options {', '.join(map(str, needs))}"))
    found += [("waits", text) for text in waits_of(s)]
    if view.compiling is not None and not view.has_ended:
        found.append(("now", compiling_told(view.compiling)))
    if "step" in s:
        most = figure(s.get("max_iter"), whole)
        changed = figure(s.get("n_changed"), whole)
        found += [
            ("step", f"{figure(s['step'], whole)} of at most {most}"),
            (view.objective.of_step,
             f"{figure(s.get('cost'), precise)}{on_sample(s)}, {changed} rows changed cluster"),
            *([("energy", f"{precise(energy)} a row")]
              if is_number(energy := s.get("energy")) else []),
            ("speed", f"{figure(s.get('rows_per_second'))} rows/s; "
             f"{figure(s.get('rows'))} rows seen{_moved(s)}"),
            ("held", f"{figure(s.get('state_bytes'), human_bytes)} of row state, "
             f"{figure(s.get('cache_bytes'), human_bytes)} of chunks"),
            *([("again", f"{figure(s.get('retries'))} chunks handed out again, "
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
    if failure := _mapping(s.get("failure")):
        found.append(("going on", f"failed: {failure.get('error')}: {failure.get('message')}"))
    return [(name, printable(text)) for name, text in found]


def waits_of(status: Mapping[str, Any]) -> list[str]:
    """What a job waits for, in sentences of which none says what another one does."""
    words, note = queue_words(status), str(status.get("note") or "")
    return [text for text in (note if note not in words else "", words) if text]


def queue_words(status: Mapping[str, Any]) -> str:
    """Where a job stands that is queued, and what it waits for; empty of any other."""
    place = _mapping(status.get("queue"))
    n, of = place.get("position"), place.get("of")
    if not (is_number(n) and is_number(of)):
        return ""
    why = f": {place['why']}" if place.get("why") else ""
    return f"number {whole(n)} of {whole(of)} in the queue{why}"


def _mapping(value: object) -> Mapping[str, Any]:
    """What a status tells under a name, where it is a mapping."""
    return value if isinstance(value, Mapping) else {}


def _moved(status: Mapping[str, Any]) -> str:
    """What was read or moved; rows in memory are not."""
    moved = status.get("bytes")
    return f", {human_bytes(moved)} read or moved" if is_number(moved) and moved else ""


def left_of(view: JobView) -> str:
    """How far the job is, in words; empty where nothing can be said."""
    if view.state in ENDS:
        return ""
    if view.labelled is not None:
        return f"{view.labelled:.0%} of the labels written"
    if view.status.get("limited_by") == "convergence":
        return f"step {figure(view.status.get('step'), whole)}, converging"
    share = view.share_done()
    if share is None:
        return ""
    return f"{share:.0%}, at most {figure(view.status.get('eta_s'), human_seconds)} left"


def worker_rows(view: JobView) -> list[tuple[str, ...]]:
    """A row of :data:`WORKER_COLUMNS` for each worker."""
    workers, speeds = _mapping(view.status.get("workers")), view.workers.speeds
    return [
        (
            printable(name),
            figure(speeds.get(name)),
            figure(about.get("rows")),
            *(figure(about.get(kind), human_seconds) for kind in ("compute", "read", "wait")),
            *(figure(about.get(kind), human_bytes) for kind in ("state_bytes", "cache_bytes")),
        )
        for name, about in workers.items()
        if isinstance(about, Mapping)
    ]


def job_row(status: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of :data:`JOB_COLUMNS`."""
    running = status.get("state") == "running"
    result = status.get("result") or {}
    _, value = value_in(result)
    row = (
        status.get("id"),
        status.get("name") or "",
        status.get("state"),
        figure(status.get("n_clusters"), whole),
        status.get("algorithm"),
        figure(result.get("n_iter", status.get("step")), whole),
        figure(status.get("cost") if value is None else value, lambda v: f"{v:.6g}"),
        figure(status.get("rows_per_second") if running else None),
        figure(status.get("eta_s") if running else None, human_seconds),
        str(status.get("created") or "")[:16].replace("T", " "),
        status.get("output"),
    )
    return tuple(printable(item) for item in row)
