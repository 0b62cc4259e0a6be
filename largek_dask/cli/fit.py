"""``largek fit``: cluster a data set into a folder that holds everything about the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import (
    Command,
    connected,
    emit,
    key_values,
    option_scheduler,
    option_source,
    option_storage,
    output,
)
from largek_dask.cli.options import choose_algorithm, fit_options, option_clusters
from largek_dask.driver.formatting import human_bytes, human_seconds

if TYPE_CHECKING:
    from largek_dask.algorithms.objective import Objective
    from largek_dask.data.missing_chunks import Missing
    from largek_dask.data.rows import Rows
    from largek_dask.driver.fit import FitResult
    from largek_dask.driver.options import FitOptions
    from largek_dask.driver.stopping import StepRecord
    from largek_dask.driver.storage import Folder
    from largek_dask.model import Model

__all__ = ["fit"]


@click.command(
    cls=Command,
    short_help="Cluster a data set into K clusters.",
    example="largek fit features.zarr -k 1000 --out run --max-time 30m",
)
@click.argument("data")
@option_clusters(required=True)
@click.option("--out", metavar="DIR", help="Folder of the job: model, labels, checkpoints, events.")
@fit_options
@click.option("--threads", type=click.IntRange(min=1), help="Computing threads.  [all cores]")
@click.option("--force", is_flag=True, help="Begin anew: remove the job that DIR holds.")
@click.option("--plan", is_flag=True, help="Only say what it would take; computes nothing.")
@option_scheduler
@option_source
@option_storage
def fit(
    data: str,
    out: str | None,
    sample_weight: str | None,
    labels: bool,
    threads: int | None,
    force: bool,
    plan: bool,
    scheduler: str | None,
    component: str | None,
    missing: Missing,
    storage_options: dict[str, Any] | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Cluster DATA (a Zarr or npy URL) into K clusters.

    Run again with the same options, it goes on from its last checkpoint; Ctrl-C leaves one.
    """
    from largek_dask.data.sources import open_rows
    from largek_dask.driver.checkpoint import check_place
    from largek_dask.driver.events import ProgressLine
    from largek_dask.driver.options import FitOptions
    from largek_dask.driver.saved import keep_last_checkpoints
    from largek_dask.driver.storage import Folder
    from largek_dask.service.runner import fit_into
    from largek_dask.service.store import JOB_FILES

    if out is None and not plan:
        raise click.UsageError("give --out DIR, or --plan to see what the fit would take")
    given["algorithm"] = choose_algorithm(given)
    # The effort is a parameter of the object now.
    del given["settings"], given["effort"]
    options = FitOptions(**given)
    rows = open_rows(
        data,
        sample_weight=sample_weight,
        component=component,
        storage_options=storage_options,
        missing=missing,
    )
    if plan:
        from largek_dask.cli.plan import machines_of, make_plan, plan_table

        with connected(scheduler, storage_options) as client:
            planned = make_plan(rows, options, machines_of(threads, client))
        emit(planned, as_json, lambda: plan_table(planned))
        return
    assert out is not None
    url, out_options = output(out, data, storage_options)
    folder = Folder(url, out_options)
    if force:
        for name in JOB_FILES:
            folder.remove(name)
    else:
        check_place(folder, "Choose another --out, or --force.")
    with connected(scheduler, storage_options) as client:
        model, result = fit_into(
            folder,
            rows,
            options,
            client=client,
            n_threads=threads,
            labels=labels,
            events=() if as_json else (ProgressLine(),),
        )
    if result.stop_reason != "interrupted":
        keep_last_checkpoints(folder)
    told = what_came_out(folder, rows, options, model, result)
    emit(told, as_json, lambda: summary(told, rows.nbytes, result.objective, model.fit_figures()))
    if result.stop_reason == "interrupted":
        raise KeyboardInterrupt


def what_came_out(
    folder: Folder, rows: Rows, options: FitOptions, model: Model, result: FitResult
) -> dict[str, Any]:
    """What is told of a fit, by name."""
    from largek_dask.service.store import LABELS, MODEL

    return {
        "out": folder.url,
        "model": f"{folder.url}/{MODEL}",
        "labels": f"{folder.url}/{LABELS}" if folder.exists(LABELS) else None,
        "n_rows": rows.n_rows,
        "n_features": rows.n_features,
        "n_clusters": model.n_clusters,
        **({} if options.mixture is None else {"mixture": options.mixture}),
        "n_iter": result.n_iter,
        "stop_reason": result.stop_reason,
        result.objective.name: result.value,
        **model.fit_figures(),
        "seconds": result.seconds,
        "row_state_bytes": kept_for_rows(result.history),
        "readings": readings(result.history, rows.n_rows),
        "digest": model.digest(),
        **({"report": dict(result.report)} if result.report else {}),
    }


def kept_for_rows(history: Sequence[StepRecord]) -> int:
    """Most bytes that a step kept for its rows: labels, and bounds where there were any."""
    kept = (record["rows"] * (record["extra"].get("row_state_bytes") or 0) for record in history)
    return int(max(kept, default=0))


def readings(history: Sequence[StepRecord], n_rows: int) -> float:
    """How often the steps have gone through all rows; those over a sample in memory have not."""
    from largek_dask.driver.history import gaps

    from_table = (
        h["rows"] * gap
        for h, gap in zip(history, gaps(history), strict=True)
        if h["extra"].get("everywhere", 1)
    )
    return sum(from_table) / n_rows


def what_of(told: Mapping[str, Any]) -> str:
    """What the fit has found."""
    return f"{told['mixture']} components" if "mixture" in told else "clusters"


def summary(
    told: dict[str, Any], nbytes: int, objective: Objective, figures: Mapping[str, float]
) -> Any:
    """What came out and what to try next, as a rich table."""
    out = told["out"]
    return key_values(
        {
            "rows": f"{told['n_rows']:,} × {told['n_features']:,} ({human_bytes(nbytes)})",
            what_of(told): f"{told['n_clusters']:,} after {told['n_iter']:,} steps "
            f"({told['stop_reason']})",
            objective.words: f"{told[objective.name]:.10g}",
            **{name.replace("_", " "): f"{figure:.10g}" for name, figure in figures.items()},
            "time": human_seconds(told["seconds"]),
            "steps": f"{told['n_iter']:,} for {told['readings']:.3g} readings of all rows",
            "kept per row": f"{human_bytes(told['row_state_bytes'])} in all, at most",
            "model": told["model"],
            "labels": told["labels"] or "not written",
            "digest": told["digest"],
            **({"report": told["report"]["words"]} if "report" in told else {}),
            "next": f"largek path {out}"
            if "partitions" in figures
            else f"largek plot {out} --out fit.png",
        },
        title="largek fit",
    )
