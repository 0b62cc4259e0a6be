"""``largek workers``: the workers of a scheduler."""

from __future__ import annotations

from typing import Any

import click

from largek_dask.cli.common import Command, emit, option_service, option_storage
from largek_dask.cli.jobs import service_at

__all__ = ["workers"]

Options = dict[str, Any] | None


@click.command(
    cls=Command,
    short_help="List the workers, or let one go.",
    example="largek workers --scheduler tcp://host:8786",
)
@click.option(
    "--retire",
    "retired",
    multiple=True,
    metavar="ADDR",
    help="Let this worker go, by address or name: others take what it holds. May be repeated.",
)
@option_service
@option_storage
def workers(
    retired: tuple[str, ...], scheduler: str, storage_options: Options, as_json: bool
) -> None:
    """List the workers of a scheduler: tags, version, chunks, memory, and why one is left out.

    Tags are Dask's resources of a worker: dask worker --resources bigmem=1. Chunks are those that
    it has computed for running jobs.
    """
    with service_at(scheduler, storage_options) as service:
        gone = [service.retire(worker) for worker in retired]
        rows = service.workers()
    told: dict[str, Any] = {"workers": rows, "retired": gone}
    emit(told, as_json, lambda: _listing(rows, gone))


def _listing(rows: list[dict[str, Any]], gone: list[str]) -> Any:
    """Workers as a table, and beneath it why some are left out."""
    from rich.console import Group as Lines
    from rich.text import Text

    from largek_dask.driver.formatting import count_of, human_bytes, human_seconds, printable
    from largek_dask.observe.job_text import NONE
    from largek_dask.observe.tables import Column, Fitting

    lines = [Text(f"{address} is retired") for address in gone]
    if not rows:
        return Lines(*lines, Text("no workers"))
    columns = (
        # As --retire takes it.
        Column("worker"),
        Column("name", rank=5, least=8),
        Column("tags", rank=2, least=8),
        Column("version", rank=3),
        Column("threads", rank=6, right=True),
        Column("chunks", rank=4, right=True),
        Column("memory", rank=1, right=True),
        Column("last sign", rank=7, right=True),
        Column("takes part"),
    )
    cells = []
    for row in rows:
        memory = human_bytes(row["memory"])
        if row["memory_limit"]:
            memory += f" of {human_bytes(row['memory_limit'])}"
        cells.append(
            [
                row["address"],
                printable(row["name"]),
                printable(", ".join(f"{name}={n:g}" for name, n in row["tags"].items())) or NONE,
                row["version"] or NONE,
                f"{row['threads']:,}",
                f"{row['chunks']:,}",
                memory,
                f"{human_seconds(row['silent'])} ago",
                "no" if row["why"] else "yes",
            ]
        )
    lines.append(Text(count_of(len(rows), "worker")))
    lines += [Text(f"{row['address']} {printable(row['why'])}") for row in rows if row["why"]]
    return Lines(Fitting(columns, cells), *lines)
