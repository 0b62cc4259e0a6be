"""``largek delete``: delete jobs that have ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import Command, emit, one_line, option_service, option_storage
from largek_dask.cli.jobs import service_at

if TYPE_CHECKING:
    from largek_dask.service.client import Service
    from largek_dask.service.job import Job

__all__ = ["delete"]


@click.command(
    cls=Command,
    short_help="Delete jobs that have ended.",
    example="largek delete --older-than 30d --state finished --scheduler tcp://host:8786",
)
@click.argument("job_ids", metavar="[ID...]", nargs=-1)
@click.option(
    "--older-than",
    metavar="TIME",
    help="Those that ended before: 30d for 30 days ago, or a date such as 2026-11-25.",
)
@click.option(
    "--state",
    multiple=True,
    type=click.Choice(["finished", "failed", "cancelled"]),
    help="Of these, those that ended like this. May be repeated.",
)
@click.option("--owner", metavar="USER", help="Of these, those that this user submitted.")
@click.option("--outputs", is_flag=True, help="Also their models and labels, which stay otherwise.")
@option_service
@option_storage
def delete(
    job_ids: tuple[str, ...],
    older_than: str | None,
    state: tuple[str, ...],
    owner: str | None,
    outputs: bool,
    scheduler: str,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Delete jobs that have ended: their records, checkpoints and events.

    Prints each job that it deletes. The exit code is 1 if one could not be deleted, such as one
    that runs; one that is gone already is no error.
    """
    from largek_dask.driver.formatting import human_bytes

    if bool(job_ids) == (older_than is not None):
        raise click.UsageError("give ID..., or --older-than TIME")
    if job_ids and (state or owner is not None):
        raise click.UsageError("--state and --owner belong to --older-than")
    rows: list[dict[str, Any]] = []
    with service_at(scheduler, storage_options) as service:
        for job in _chosen(service, job_ids, older_than, state or None, owner):
            row = _deleted(job, outputs)
            rows.append(row)
            if row["error"]:
                click.echo(f"Error: {row['error']}", err=True)
            elif not as_json:
                said = human_bytes(row["bytes"]) if row["deleted"] else "it was gone already"
                click.echo(f"Job {job.id} is deleted: {said}.")
    if as_json:
        emit({"jobs": rows}, True, str)
    elif not rows:
        click.echo("No job is as old as that.")
    if any(row["error"] for row in rows):
        raise click.exceptions.Exit(1)


def _chosen(
    service: Service,
    job_ids: tuple[str, ...],
    older_than: str | None,
    state: tuple[str, ...] | None,
    owner: str | None,
) -> Iterator[Job]:
    from largek_dask.service.job import Job
    from largek_dask.service.store import checked_id

    if older_than is not None:
        yield from service.jobs(older_than=older_than, state=state, owner=owner, limit=None)
    for job_id in job_ids:
        yield Job(service, checked_id(job_id))


def _deleted(job: Job, outputs: bool) -> dict[str, Any]:
    """Delete a job; the outcome, also if that is refused."""
    from largek_dask.errors import LargekError, SchedulerAwayError

    size, error = None, None
    try:
        size = job.delete(outputs=outputs)
    except SchedulerAwayError:
        raise
    except (LargekError, OSError) as refused:
        error = one_line(refused)
    return {"id": job.id, "deleted": size is not None, "bytes": size or 0, "error": error}
