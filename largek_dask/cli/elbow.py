"""``largek elbow``: how many clusters there are, by one run for the whole curve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import Command, connected, emit, option_scheduler, option_storage
from largek_dask.cli.path import shown

if TYPE_CHECKING:
    from largek_dask.estimators.elbow import ElbowCurve

__all__ = ["elbow"]


@click.command(
    cls=Command,
    short_help="How many clusters there are: the whole curve in one run.",
    example="largek elbow rows.zarr -k 500 --out elbow.png",
)
@click.argument("data")
@click.option(
    "-k",
    "--k-max",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    metavar="K",
    help="Largest number of clusters to look at.",
)
@click.option(
    "--sample",
    metavar="N|all",
    callback=lambda _ctx, _option, value: rows_of(value),
    help="Rows to search, or 'all' to count all of them in the end.  [as many as K needs]",
)
@click.option("--out", metavar="PNG", help="Draw the curve there.")
@click.option("--force", is_flag=True, help="Replace the picture if it exists.")
@click.option("--sample-weight", metavar="URL", help="Weights of the rows, one number each.")
@click.option("--normalize", type=click.Choice(["l2"]), help="Give every row unit length.")
@click.option(
    "--on-bad-rows",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="What becomes of rows with NaN or infinity.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="S")
@click.option("--max-time", metavar="TIME", help="Seconds, or a time such as 90s or 30m.")
@click.option("--threads", type=click.IntRange(min=1), help="Computing threads.  [all cores]")
@option_scheduler
@option_storage
def elbow(
    data: str,
    k_max: int,
    sample: int | str,
    out: str | None,
    force: bool,
    sample_weight: str | None,
    normalize: Any,
    on_bad_rows: Any,
    seed: int,
    max_time: str | None,
    threads: int | None,
    scheduler: str | None,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Tell how many clusters DATA has, if that is clear, and draw the curve.

    Of each number of clusters the inertia (of a sample with its standard error); how far two halves
    of the rows agree, as adjusted Rand index; and the inertia over the least that one Gaussian of
    the same spectrum could have. Up to 50,000 rows and 100 clusters every number is looked at, else
    up to 16, then 24, 32, 48, ..., and closely where the curve bends.
    """
    from pathlib import Path

    from largek_dask.errors import OutputError
    from largek_dask.estimators.elbow import suggest_k

    path = None if out is None else Path(out)
    if path is not None and path.exists() and not force:
        raise OutputError(f"{path} exists: choose another --out, or --force")
    with connected(scheduler, storage_options) as client:
        found = suggest_k(
            data,
            k_max,
            sample=sample,  # type: ignore[arg-type]  # (as `rows_of` gives it)
            sample_weight=sample_weight,
            storage_options=storage_options,
            normalize=normalize,
            on_bad_rows=on_bad_rows,
            random_state=seed,
            client=client,
            n_threads=threads,
            max_time=max_time,
            verbose=not as_json,
        )
    if path is not None:
        try:
            found.plot().savefig(path)
        except (OSError, ValueError) as error:
            raise OutputError(
                f"{path} cannot be written: {error}; choose another --out."
            ) from error
    told = {"data": data, "out": None if path is None else str(path), **told_of(found)}
    emit(told, as_json, lambda: tables(told))


def rows_of(value: str | None) -> int | str:
    """``--sample`` as `suggest_k` takes it."""
    if value is None or value == "all":
        return "auto" if value is None else value
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number of rows nor 'all'") from None


def told_of(found: ElbowCurve) -> dict[str, Any]:
    """A curve and what is decided by it, as JSON."""
    return {
        "k": found.k,
        "range": found.range,
        "halves": found.halves,
        "runner_up": found.runner_up,
        "clear": found.clear,
        "words": found.words,
        "votes": dict(found.votes),
        "agreeing": list(found.agreeing),
        "method": found.method,
        "n_rows": found.n_rows,
        "n_searched": found.n_searched,
        "partitions": found.records(),
    }


def tables(told: Mapping[str, Any]) -> Any:
    """Partitions as a rich table, and what is decided below it."""
    from rich.console import Group

    from largek_dask.observe.tables import Column, Fitting

    names = ("clusters", "inertia", "± standard error", "halves agree", "of a Gaussian's")
    ranks = (0, 0, 2, 1, 3)
    columns = [Column(name, rank, right=True) for name, rank in zip(names, ranks, strict=True)]
    rows = [
        (
            f"{record['n_clusters']:,}",
            f"{record['inertia']:.7g}",
            "exact" if record["standard_error"] == 0 else f"{record['standard_error']:.2g}",
            shown(record["stability"], ".3f"),
            shown(record["gaussian"], ".3f"),
        )
        for record in told["partitions"]
    ]
    table = Fitting(columns, rows, title="largek elbow", gap=1)
    votes = ", ".join(f"{rule} {shown(k, ',')}" for rule, k in told["votes"].items())
    agree = "" if told["k"] is None else f" ({len(told['agreeing'])} of {len(told['votes'])} agree)"
    lines = [told["words"], f"By the curve alone: {votes}{agree}."]
    if told["n_searched"] < told["n_rows"]:
        lines.append(f"Found on {told['n_searched']:,} of {told['n_rows']:,} rows.")
    return Group(table, *lines)
