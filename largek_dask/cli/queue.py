"""``largek pause | resume | priority``: the turn of jobs that have not ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import Command, emit, option_service, option_storage
from largek_dask.cli.jobs import service_at

if TYPE_CHECKING:
    from largek_dask.service.job import Job

__all__ = ["pause", "priority", "resume"]

Options = dict[str, Any] | None

argument_ids = click.argument("job_ids", metavar="ID...", nargs=-1, required=True)


def _told(changed: Iterable[dict[str, Any]], as_json: bool) -> None:
    """What has become of jobs, a line each as soon as it is done: the next one may fail."""
    jobs = []
    for job in changed:
        jobs.append(job)
        if not as_json:
            click.echo(f"Job {job['id']} was {job['before']}; it is {job['state']} now.")
    if as_json:
        emit({"jobs": jobs}, True, str)


@click.command(
    cls=Command,
    short_help="Hold a job, with all that it has found.",
    example="largek pause lk-3f9c0d21ab --scheduler tcp://host:8786",
)
@argument_ids
@click.option("--timeout", metavar="TIME", help="Wait at most so long for each, such as 90s.")
@option_service
@option_storage
def pause(
    job_ids: tuple[str, ...],
    timeout: str | None,
    scheduler: str,
    storage_options: Options,
    as_json: bool,
) -> None:
    """Hold jobs until largek resume, and wait until they have ended what they are doing.

    One that runs writes a checkpoint and gives back its place and the memory of workers. The time
    until it goes on does not count in --max-time.
    """

    def paused(job: Job) -> dict[str, Any]:
        return {"id": job.id, "before": job.state, "state": job.pause(timeout)}

    with service_at(scheduler, storage_options) as service:
        _told((paused(service.job(job_id)) for job_id in job_ids), as_json)


@click.command(
    cls=Command,
    short_help="Let a job that is paused go on.",
    example="largek resume lk-3f9c0d21ab --scheduler tcp://host:8786",
)
@click.argument("job_ids", metavar="[ID...]", nargs=-1)
@click.option(
    "--accept-version",
    is_flag=True,
    help="Also go on with what another version of largek has computed: bits may be others then.",
)
@click.option("--waiting", is_flag=True, help="All that wait for --accept-version.")
@option_service
@option_storage
def resume(
    job_ids: tuple[str, ...],
    accept_version: bool,
    waiting: bool,
    scheduler: str,
    storage_options: Options,
    as_json: bool,
) -> None:
    """Let jobs that are paused go on, before others of their priority.

    Their models have the same bits as without a pause. (To go on with one that has ended:
    largek submit --resume ID.)
    """
    if bool(job_ids) == waiting:
        raise click.UsageError("give ID..., or --waiting for all that wait for their version")
    if waiting and not accept_version:
        raise click.UsageError("--waiting is for jobs of another version: add --accept-version")

    def resumed(job: Job) -> dict[str, Any]:
        before = job.state
        job.resume(accept_version=accept_version)
        return {"id": job.id, "before": before, "state": job.state}

    with service_at(scheduler, storage_options) as service:
        if waiting:
            job_ids = tuple(
                status["id"]
                for status in service.statuses()
                if status["state"] == "waiting"
                and status["reason"] == "version"
                and status["versions"][-1:] != [service.version]
            )
        _told((resumed(service.job(job_id)) for job_id in job_ids), as_json)


@click.command(
    cls=Command,
    short_help="Change the priority of a job that does not run.",
    example="largek priority lk-3f9c0d21ab 10 --scheduler tcp://host:8786",
)
@click.argument("job_id", metavar="ID")
@click.argument("priority", metavar="N", type=int)
@option_service
@option_storage
def priority(
    job_id: str, priority: int, scheduler: str, storage_options: Options, as_json: bool
) -> None:
    """Set the priority of a job that does not run to N; jobs of a higher one begin sooner.

    Write `--` before a negative N, as in: largek priority ID -- -5.
    """
    with service_at(scheduler, storage_options) as service:
        job = service.job(job_id)
        job.set_priority(priority)
        status = job.status()
    told = {name: status[name] for name in ("id", "state", "priority", "queue")}
    place = told["queue"]
    words = f"it is {status['state']}: {place['why']}" if place else "it is held"
    if place and place["position"] is not None:
        words = f"it is number {place['position']} of {place['of']}"
    emit(told, as_json, lambda: f"Job {job_id} has priority {priority}; {words}.")
