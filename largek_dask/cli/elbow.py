"""``largek elbow``: suggest a number of clusters."""

from __future__ import annotations

from typing import Any

import click

from largek_dask.cli.common import (
    command,
    connected,
    emit,
    new_file,
    option_force,
    option_scheduler,
    option_storage,
    option_threads,
    option_weight,
    table,
    wants_json,
)
from largek_dask.cli.options import fit_option


def _sample(_ctx: click.Context, _option: click.Parameter, value: str | None) -> int | str:
    if value is None or value == "all":
        return value or "auto"
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not valid: give a row count or 'all'") from None


@command("largek elbow rows.zarr -k 500 --out elbow.png")
@click.argument("data")
@click.option(
    "-k",
    "--k-max",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    metavar="K",
    help="Maximum number of clusters to try.",
)
@click.option(
    "--sample",
    metavar="N|all",
    callback=_sample,
    help="Number of sampled rows, or 'all' to also evaluate all rows.  [default: enough for K]",
)
@click.option("--out", metavar="PNG", help="Write a chart of the curve to this file.")
@option_force
@option_weight
@fit_option("normalize")
@fit_option("on_bad_rows")
@fit_option("seed")
@fit_option("max_time")
@option_threads
@option_scheduler
@option_storage
def elbow(
    data: str,
    k_max: int,
    out: str | None,
    force: bool,
    seed: int,
    threads: int | None,
    scheduler: str | None,
    storage_options: dict[str, Any] | None,
    **asked: Any,
) -> None:
    """Suggest a number of clusters.

    For each number of clusters, the table lists the inertia, the inertia relative to the lower
    bound for a Gaussian with the same covariance spectrum, and the agreement (adjusted Rand index)
    of two models fitted to separate halves of the rows. Every number is tried for up to 50,000 rows
    and 100 clusters, and otherwise a selection of numbers.
    """
    from largek_dask.selection.elbow import suggest_k

    path = None if out is None else new_file(out, force)
    with connected(scheduler, storage_options) as client:
        curve = suggest_k(
            data,
            k_max,
            storage_options=storage_options,
            client=client,
            random_state=seed,
            n_threads=threads,
            verbose=not wants_json(),
            **asked,
        )
    if path is not None:
        curve.plot().savefig(path)
    names = ("k", "range", "halves", "runner_up", "clear", "words", "method", "n_rows")
    payload: dict[str, Any] = {"data": data, "out": path and str(path)}
    payload |= {name: getattr(curve, name) for name in (*names, "n_searched")}
    payload["partitions"] = curve.records()
    emit(payload, lambda: _table(payload))


def _table(payload: dict[str, Any]) -> Any:
    partitions, notes = payload["partitions"], [payload["words"]]
    if payload["n_searched"] < payload["n_rows"]:
        notes.append(f"Searched {payload['n_searched']:,} of {payload['n_rows']:,} rows.")
    columns = [name.removeprefix("n_").replace("_", " ") for name in partitions[0]]
    rows = [
        ["-" if v is None else f"{v:,}" if isinstance(v, int) else f"{v:.6g}" for v in one.values()]
        for one in partitions
    ]
    return table(columns, rows, notes, columns)
