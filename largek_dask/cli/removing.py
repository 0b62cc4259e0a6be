"""``largek keep | delete | gc``: what becomes of jobs that have ended."""

from __future__ import annotations

from typing import Any

import click

from largek_dask.cli.common import Command, emit, option_service, option_storage
from largek_dask.cli.jobs import service_at

__all__ = ["delete", "gc", "keep"]

Options = dict[str, Any] | None

argument_ids = click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
option_outputs = click.option(
    "--outputs", is_flag=True, help="Also models and labels, which stay otherwise."
)


@click.command(
    cls=Command,
    short_help="Have a job stay, whatever its age.",
    example="largek keep lk-3f9c0d21ab --scheduler tcp://host:8786",
)
@argument_ids
@click.option("--undo", is_flag=True, help="They need not stay any longer.")
@option_service
@option_storage
def keep(
    job_ids: tuple[str, ...],
    undo: bool,
    scheduler: str,
    storage_options: Options,
    as_json: bool,
) -> None:
    """Have jobs stay: neither largek delete, nor gc, nor their age removes them."""
    said = "need not stay any longer" if undo else "stays"
    with service_at(scheduler, storage_options) as service:
        for job_id in job_ids:
            service.job(job_id).keep(not undo)
            if not as_json:
                click.echo(f"Job {job_id} {said}.")
    if as_json:
        emit({"jobs": [{"id": job_id, "kept": not undo} for job_id in job_ids]}, True, str)


@click.command(
    cls=Command,
    short_help="Remove jobs that have ended.",
    example="largek delete lk-3f9c0d21ab --scheduler tcp://host:8786",
)
@argument_ids
@option_outputs
@option_service
@option_storage
def delete(
    job_ids: tuple[str, ...],
    outputs: bool,
    scheduler: str,
    storage_options: Options,
    as_json: bool,
) -> None:
    """Remove jobs that have ended: their records, checkpoints and events.

    One that is gone already is no error: what was cut off may be asked for again.
    """
    from largek_dask.driver.words import human_bytes
    from largek_dask.service.job import Job
    from largek_dask.service.store import checked_id

    removed: list[dict[str, Any]] = []
    with service_at(scheduler, storage_options) as service:
        for job_id in job_ids:
            size = Job(service, checked_id(job_id)).delete(outputs=outputs)
            told = {"id": job_id, "removed": size is not None, "bytes": size or 0}
            removed.append(told)
            if not as_json:
                said = "is gone" if size is None else f"is removed: {human_bytes(size)}"
                click.echo(f"Job {job_id} {said}.")
    if as_json:
        emit({"jobs": removed}, True, str)


@click.command(
    cls=Command,
    short_help="Remove jobs that have ended long ago.",
    example="largek gc --older-than 30d --keep-last 20 --dry-run --scheduler tcp://host:8786",
)
@click.option(
    "--older-than",
    metavar="TIME",
    required=True,
    help="Since when they have ended: 30d for 30 days, or a date such as 2026-11-25.",
)
@click.option("--state", multiple=True, metavar="STATE", help="How they ended; may be repeated.")
@click.option("--owner", metavar="USER", help="Who submitted them.")
@click.option(
    "--keep-last", type=click.IntRange(0), default=0, show_default=True, metavar="N",
    help="Of these jobs the last N stay, whatever their age.",
)  # fmt: skip
@option_outputs
@click.option("--dry-run", is_flag=True, help="Only print them.")
@option_service
@option_storage
def gc(
    older_than: str,
    state: tuple[str, ...],
    owner: str | None,
    keep_last: int,
    outputs: bool,
    dry_run: bool,
    scheduler: str,
    storage_options: Options,
    as_json: bool,
) -> None:
    """Remove jobs that have ended long ago: their records, checkpoints and events.

    None that is kept. Prints each with the bytes of what is removed; the exit code is 1 where one
    could not be.
    """
    with service_at(scheduler, storage_options) as service:
        rows = service.gc(
            older_than,
            state=state or None,
            owner=owner,
            keep_last=keep_last,
            outputs=outputs,
            dry_run=dry_run,
        )
    told = {"jobs": rows, "bytes": sum(row["bytes"] for row in rows), "dry_run": dry_run}
    emit(told, as_json, lambda: _listing(rows, dry_run))
    if any(row["why"] for row in rows):
        raise click.exceptions.Exit(1)


def _listing(rows: list[dict[str, Any]], dry_run: bool) -> Any:
    """Jobs that are removed, or would be, with their bytes, and the sum."""
    from rich.console import Group as Lines
    from rich.text import Text

    from largek_dask.driver.words import count_of, human_bytes, printable
    from largek_dask.observe.showing import NONE
    from largek_dask.observe.tables import Column, Fitting

    if not rows:
        return Text("no job is as old as that")
    columns = (
        Column("job"),
        Column("name", rank=2, least=8),
        Column("state", rank=4),
        Column("owner", rank=3, least=8),
        Column("ended", rank=1),
        Column("bytes", right=True),
    )
    cells = [
        [
            row["id"],
            printable(row["name"] or NONE),
            row["state"],
            printable(row["owner"]),
            row["ended"][:16].replace("T", " "),
            human_bytes(row["bytes"]),
        ]
        for row in rows
    ]
    left = [row for row in rows if row["why"]]
    done = human_bytes(sum(row["bytes"] for row in rows))
    said = "would be removed" if dry_run else "removed"
    count = count_of(len(rows) - len(left), "job")
    lines = [Text(f"{count}, {done} {said}")]
    lines += [Text(f"{row['id']} stays: {printable(row['why'])}") for row in left]
    return Lines(Fitting(columns, cells), *lines)
