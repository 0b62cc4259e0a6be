"""``largek path``: every partition of a fit, and what is certain of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import Command, emit, model_in, option_storage

if TYPE_CHECKING:
    from largek_dask.model.path import Path

__all__ = ["path"]

CERTAIN = 1e-3
"""The gap below which a bound is said to be one that a partition has reached."""


@click.command(
    cls=Command,
    short_help="List every partition of a fit, its bounds, and suggest one.",
    example="largek path run --json",
)
@click.argument("model_url", metavar="MODEL")
@option_storage
def path(model_url: str, storage_options: dict[str, Any] | None, as_json: bool) -> None:
    """List the partitions into 1 to K clusters of MODEL: a job's folder, or its model.zarr.

    Of each the inertia, a lower bound and the gap between them; rows that tie between two centres,
    rows that would do better elsewhere, the best swap of a centre that was looked at; and how
    stable it is, as adjusted Rand index between halves of a sample. A gap says how much better
    another partition could be at most: where it is large, the bound is weak or the partition bad.

    MODEL has these after a fit with --algorithm dcdbundle.
    """
    from largek_dask.driver.storage import Folder
    from largek_dask.errors import ParameterError
    from largek_dask.model import PathModel, load_model

    found = model_in(Folder(model_url, storage_options)) or model_url
    model = load_model(found, storage_options=storage_options)
    if not isinstance(model, PathModel):
        raise ParameterError(
            f"{found} holds one partition, not a path of them: fit with --algorithm dcdbundle"
        )
    partitions = model.path_
    told = {
        "model": found,
        "n_clusters": len(partitions),
        "partitions": partitions.records(),
        "suggestion": suggestion_of(partitions),
    }
    emit(told, as_json, lambda: tables(told))


def tables(told: Mapping[str, Any]) -> Any:
    """Partitions as a rich table, and what is suggested below it."""
    from rich.console import Group

    from largek_dask.observe.tables import Column, Fitting

    names = ("clusters", "inertia", "lower bound", "gap", "ties", "moves", "swap", "stability")
    ranks = (0, 0, 1, 2, 4, 5, 6, 3)
    columns = [Column(name, rank, right=True) for name, rank in zip(names, ranks, strict=True)]
    rows = [
        (
            f"{record['n_clusters']:,}",
            f"{record['inertia']:.7g}",
            f"{record['lower_bound']:.5g}",
            f"{record['gap']:.2%}",
            *(shown(record[name], ",") for name in ("ties", "moves")),
            shown(record["swap"], ".3g"),
            shown(record["stability"], ".3f"),
        )
        for record in told["partitions"]
    ]
    # Close together: with large numbers all of them just fit 80 columns.
    table = Fitting(columns, rows, title="largek path", gap=1)
    suggestion = told["suggestion"]
    votes = ", ".join(f"{rule} {shown(k, ',')}" for rule, k in suggestion["votes"].items())
    lines = [certainty(told["partitions"]), suggestion["words"]]
    return Group(table, *filter(None, lines), f"By the curve alone: {votes}.")


def suggestion_of(partitions: Path) -> dict[str, Any]:
    """How many clusters there are, as JSON."""
    found = partitions.suggest_k()
    names = ("k", "runner_up", "clear", "words")
    return {**{name: getattr(found, name) for name in names}, "votes": dict(found.votes)}


def shown(value: float | None, form: str) -> str:
    """A figure, or a dash where it is not known."""
    return "-" if value is None else format(value, form)


def certainty(partitions: Sequence[Mapping[str, Any]]) -> str:
    """Which partitions a bound shows to be the best ones, up to a thousandth; "" if none."""
    certain = [str(found["n_clusters"]) for found in partitions if found["gap"] < CERTAIN]
    if not certain:
        return ""
    return f"No partition is better by {CERTAIN:.1%} or more for: {', '.join(certain)} clusters."
