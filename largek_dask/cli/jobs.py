"""Commands for jobs on a scheduler."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from largek_dask.cli.common import (
    CANCELLED,
    Decorated,
    Decorator,
    command,
    emit,
    explicit_parameters,
    one_line,
    option_column,
    option_ids,
    option_include,
    option_partition,
    option_storage,
    options,
    table,
    wants_json,
)
from largek_dask.cli.options import fit_options, option_clusters, with_algorithm

if TYPE_CHECKING:
    from largek_dask.service.client import Service
    from largek_dask.service.job import Job

UNREACHABLE = 4
"""Exit code if the scheduler does not answer, although the job may continue."""
WORKERS = {"workers_min": "min", "workers_max": "max", "tag": "tags"}
"""Parameters of `submit` that select workers, with their field names in a job document."""
CONNECT_SECONDS = 10.0
FOLDER_SECONDS = 2.0
"""Interval between reads of a folder's events, in seconds; not tuned."""
ID = re.compile(r"lk-[0-9a-f]+")


# --- the scheduler ----------------------------------------------------------------------------


class Scheduler(NamedTuple):
    address: str
    """Address of the scheduler, or the path or URL of a file that contains the address."""
    storage_options: dict[str, Any] | None
    away: str

    @contextmanager
    def connect(self) -> Iterator[Service]:
        """Connect to the service; Dask's log messages are suppressed."""
        from distributed.utils import silence_logging_cmgr

        from largek_dask.service.client import connect

        if not self.address:
            raise click.UsageError("Missing option '--scheduler'.")
        more: Any = {"away": self.away, "storage_options": self.storage_options}
        with (
            silence_logging_cmgr(logging.CRITICAL),
            connect(self.address, timeout=CONNECT_SECONDS, **more) as service,
        ):
            yield service

    @contextmanager
    def following(self, job_id: str) -> Iterator[None]:
        """Exit on Ctrl-C, or if the scheduler is lost; the job continues."""
        from largek_dask.errors import SchedulerAwayError

        try:
            yield
        except SchedulerAwayError as error:
            click.echo(f"Error: {one_line(error)}", err=True)
            raise click.exceptions.Exit(UNREACHABLE) from None
        except KeyboardInterrupt:
            again = self.watching(job_id)
            click.echo(f"Job {job_id} continues. To watch it again: {again}", err=True)
            raise click.exceptions.Exit(CANCELLED) from None

    def watching(self, job_id: str) -> str:
        return f"largek watch {job_id} --scheduler {self.address}"


def on_scheduler(*, follows: bool = False) -> Decorator:
    """Add ``--scheduler`` and ``--storage-option``, and ``--away`` if the command follows a job.

    The command receives one :class:`Scheduler`, in the parameter ``scheduler``.
    """
    away = click.option(
        "--away",
        metavar="TIME",
        default="15m",
        show_default=True,
        help="Time to wait for an unreachable scheduler, such as 90s; then exit with code 4.",
    )
    address = click.option(
        "--scheduler",
        "address",
        metavar="ADDR",
        required=not follows,
        envvar="DASK_SCHEDULER_ADDRESS",
        show_envvar=True,
        help="Address of the jobs' scheduler, or the scheduler.json in its store.",
    )

    def add(function: Decorated) -> Decorated:
        @wraps(function)
        def with_scheduler(
            address: str, storage_options: Any, away: str = "15m", **given: Any
        ) -> Any:
            return function(scheduler=Scheduler(address, storage_options, away), **given)

        added = (away, address, option_storage) if follows else (address, option_storage)
        return options(*added)(with_scheduler)

    return add


OF_SCHEDULER = {"address", "storage_options", "away"}
"""Names of the parameters that `on_scheduler` adds."""
argument_id = click.argument("job_id", metavar="ID")


# --- submit -----------------------------------------------------------------------------------


@command(
    "largek submit s3://bucket/x.zarr -k 1000 --out s3://bucket/run1 --scheduler tcp://host:8786"
)
@click.argument("data", required=False)
@option_clusters(required=False)
@click.option(
    "--out",
    "output",
    metavar="URL",
    help="New folder for the output, which scheduler and workers can access.",
)
@fit_options
@option_column
@option_ids
@option_include("Also write predictions.parquet, with labels and these columns")
@option_partition
@click.option("--name", help="Name to show in addition to the id.")
@click.option("--workers-min", type=int, metavar="N", help="Minimum number of workers.")
@click.option("--workers-max", type=int, metavar="N", help="Maximum number of workers.")
@click.option(
    "--tag",
    multiple=True,
    metavar="NAME",
    help="Use only workers with this resource (`dask worker --resources NAME=1`). May be repeated.",
)
@click.option(
    "--resume",
    metavar="ID",
    help="Resume a job that has ended, optionally with other --max-iter, --tol, --max-time or "
    "workers, or a job that waits for storage options.",
)
@click.option(
    "--accept-version",
    is_flag=True,
    help="With --resume: continue a job of another version; results may then differ slightly.",
)
@click.option("--wait", is_flag=True, help="Watch the job until it has ended.")
@on_scheduler(follows=True)
def submit(
    data: str | None,
    resume: str | None,
    accept_version: bool,
    wait: bool,
    scheduler: Scheduler,
    **given: Any,
) -> None:
    """Submit a job to a cluster's scheduler.

    The job clusters DATA (a Zarr, Parquet or npy URL) into K clusters. The command prints the id of
    the job. The job continues if this computer is switched off, if workers die, and after a restart
    of the scheduler. Values of --storage-option are kept in memory only; for 'key={"env": "NAME"}'
    the scheduler reads its environment variable NAME.
    """
    if resume is not None:
        order = _changes()
    elif accept_version:
        raise click.UsageError("--accept-version requires --resume ID")
    else:
        order = _new_job(data, given)
        order |= {"data": data, "storage_options": scheduler.storage_options}
    with scheduler.connect() as service:
        if resume is None:
            job = service.submit(**order)
        else:
            job = _resume(service, resume, order, scheduler.storage_options, accept_version)
        if not wait:
            # Print only the id to stdout, so that a shell can store it: id=$(largek submit ...).
            click.echo(json.dumps(job.status(), allow_nan=False) if wants_json() else job.id)
            click.echo(f"Submitted. To watch it: {scheduler.watching(job.id)}", err=True)
            return
        with scheduler.following(job.id):
            if wants_json():
                job.wait()
            else:
                job.watch()
        _end(job.status())


def _new_job(data: str | None, given: dict[str, Any]) -> dict[str, Any]:
    needed = {"DATA": data, "-k K": given["n_clusters"], "--out": given["output"]}
    if absent := [name for name, value in needed.items() if value is None]:
        raise click.UsageError(f"give {absent[0]}, or --resume ID to resume a job")
    return _with_workers(with_algorithm(given))


def _with_workers(given: Mapping[str, Any]) -> dict[str, Any]:
    asked = {name: given.get(option) for option, name in WORKERS.items()}
    workers = {name: value for name, value in asked.items() if value not in (None, ())}
    order = {name: value for name, value in given.items() if name not in WORKERS}
    return order | {"workers": workers} if workers else order


def _changes() -> dict[str, Any]:
    """Return the parameters to change with ``--resume``; the service checks them."""
    aside = OF_SCHEDULER | {"resume", "accept_version", "wait"}
    return _with_workers(
        {name: value for name, value in explicit_parameters().items() if name not in aside}
    )


def _resume(
    service: Service,
    job_id: str,
    changes: dict[str, Any],
    storage_options: dict[str, Any] | None,
    accept_version: bool,
) -> Job:
    """Resume a job, or supply the storage options that it waits for."""
    from largek_dask.errors import ParameterError

    job = service.job(job_id)
    if not (needs := job.status()["needs"]):
        more: Any = {"storage_options": storage_options, "accept_version": accept_version}
        return service.submit(resume=job, **more, **changes)
    if changes:
        raise ParameterError(
            f"job {job_id} waits for the storage options {', '.join(needs)}: give these with "
            "--storage-option, and no other option"
        )
    if needs := job.supply(storage_options or {}):
        raise ParameterError(
            f"job {job_id} still waits for the storage options {', '.join(needs)}: give all "
            "of these with --storage-option"
        )
    return job


# --- jobs -------------------------------------------------------------------------------------


@command("largek jobs --state finished --scheduler tcp://host:8786")
@click.option(
    "--state", multiple=True, metavar="STATE", help="List only jobs in this state; may be repeated."
)
@click.option(
    "--limit", type=int, default=100, show_default=True, help="Maximum number of jobs to list."
)
@on_scheduler()
def jobs(scheduler: Scheduler, state: tuple[str, ...], limit: int) -> None:
    """List jobs of a scheduler.

    By default, the newest 100 jobs are listed.
    """
    from largek_dask.plots.job_text import JOB_COLUMNS, job_row

    with scheduler.connect() as service:
        found, store = service.jobs(state=state or None, limit=limit), service.store
    note = f"{len(found):,} of the jobs in {store}" if found else f"no jobs in {store}"
    right = ("k", "step", "objective", "left")
    payload = {"store": store, "jobs": found.rows}
    emit(payload, lambda: table(JOB_COLUMNS, map(job_row, found.rows), [note], right))


@command(
    "largek watch lk-3f9c0d21ab --scheduler tcp://host:8786",
    json_help="Print the events of the job, one JSON object per line.",
)
@click.argument("job_id", metavar="ID|FOLDER")
@on_scheduler(follows=True)
def watch(job_id: str, scheduler: Scheduler) -> None:
    """Watch a job until it has ended.

    The command prints all events so far and then new events. For a FOLDER, the events are read from
    this output folder of a fit or job, without a scheduler.

    Ctrl-C ends this command but not the job. The exit code is 0 for a finished job, 1 for a failed
    job, 3 for a cancelled job, and 4 if the scheduler does not answer.
    """
    if ID.fullmatch(job_id) is None:
        _watch_folder(job_id, scheduler.storage_options)
        return
    with scheduler.following(job_id), scheduler.connect() as service:
        job = service.job(job_id)
        if wants_json():
            _print_events(job.events())
        else:
            job.watch()
        _exit_like(job.status())


def _watch_folder(url: str, storage_options: dict[str, Any] | None) -> None:
    """Print the events of a fit from its folder until the fit has ended."""
    from largek_dask.driver.event_log import Tail
    from largek_dask.driver.job_view import JobView
    from largek_dask.driver.storage import Folder
    from largek_dask.errors import DataError
    from largek_dask.service.job import EventPrinter

    tail, view = Tail(Folder(url, storage_options)), JobView()
    lines = EventPrinter(view)
    while True:
        try:
            for event in tail.new():
                view.update(event)
                if wants_json():
                    _print_events([event])
                else:
                    lines(event)
        except FileNotFoundError as error:
            raise DataError(f"{error} Give the folder of a fit, or the ID of a job.") from None
        if view.has_ended:
            return
        time.sleep(FOLDER_SECONDS)


def _print_events(events: Iterable[Mapping[str, Any]]) -> None:
    for event in events:
        click.echo(json.dumps(event, allow_nan=False))


@command("largek cancel lk-3f9c0d21ab --scheduler tcp://host:8786")
@argument_id
@on_scheduler()
def cancel(job_id: str, scheduler: Scheduler) -> None:
    """Cancel a job, and keep its best model so far.

    To resume the job, use submit --resume.
    """
    with scheduler.connect() as service:
        job = service.job(job_id)
        before = job.state
        job.cancel()
        now = job.state
    emit({"id": job_id, "before": before, "state": now})


@command(
    "largek logs lk-3f9c0d21ab --scheduler tcp://host:8786",
    json_help="Print the events of the job, one JSON object per line.",
)
@argument_id
@on_scheduler()
def logs(job_id: str, scheduler: Scheduler) -> None:
    """Print all events of a job so far.

    Each line shows the time (UTC), kind and message of an event. A warning or error is followed by
    its traceback and by the last warnings that the affected process logged, even if the process is
    a dead worker.
    """
    with scheduler.connect() as service:
        job = service.job(job_id)
        if wants_json():
            _print_events(job.events(follow=False))
        else:
            for line in job.logs():
                click.echo(line)


# --- results ----------------------------------------------------------------------------------


@command("largek result lk-3f9c0d21ab --scheduler tcp://host:8786")
@argument_id
@on_scheduler(follows=True)
def result(job_id: str, scheduler: Scheduler) -> None:
    """Wait for a job and print its result.

    The model and labels are in the output folder of the job.
    """
    with scheduler.following(job_id), scheduler.connect() as service:
        job = service.job(job_id)
        job.wait()
        status = job.status()
    _end(status)


def _end(status: Mapping[str, Any]) -> None:
    """Print the result of a job; exit if the job did not finish."""
    if wants_json() or status["state"] == "finished":
        emit(status, lambda: result_words(status))
    _exit_like(status)


def _exit_like(status: Mapping[str, Any]) -> None:
    """Exit with an error code if the job has failed or was cancelled."""
    from largek_dask.service.serialization import error_of

    if status["state"] == "failed":
        failed = status["result"]
        raise error_of(failed["error"], failed["message"], failed["traceback"])
    if status["state"] == "cancelled":
        click.echo("Cancelled.", err=True)
        raise click.exceptions.Exit(CANCELLED)


def result_words(status: Mapping[str, Any]) -> dict[str, str]:
    """Return the result of a finished job: display texts by name."""
    from largek_dask.driver.job_view import JobView
    from largek_dask.plots.job_text import facts
    from largek_dask.service.store import LABELS, MODEL, PREDICTIONS

    known, out = facts(JobView(status)), str(status["output"]).rstrip("/")
    names = [name for name, _ in known]
    return {
        "job": status["id"],
        "found": dict(known)["model"],
        **dict(known[names.index("ended") :]),
        "model": f"{out}/{MODEL}",
        "labels": f"{out}/{LABELS}" if status["result"]["labels"] else "not written",
        **({"predictions": f"{out}/{PREDICTIONS}"} if status["result"].get("predictions") else {}),
    }


@command("largek delete --older-than 30d --state finished --scheduler tcp://host:8786")
@click.argument("job_ids", metavar="[ID...]", nargs=-1)
@click.option(
    "--older-than",
    metavar="TIME",
    help="Delete jobs that ended at least TIME ago, such as 12h or 30d.",
)
@click.option(
    "--state",
    multiple=True,
    type=click.Choice(["finished", "failed", "cancelled"]),
    help="Delete only jobs in this state; may be repeated.",
)
@click.option("--outputs", is_flag=True, help="Also delete models, labels and predictions.")
@on_scheduler()
def delete(
    job_ids: tuple[str, ...],
    older_than: str | None,
    state: tuple[str, ...],
    outputs: bool,
    scheduler: Scheduler,
) -> None:
    """Delete jobs that have ended.

    The command deletes records, checkpoints and events. Deletion stops at the first job that cannot
    be deleted, for example a running job. A job that is already deleted causes no error.
    """
    from largek_dask.service.job import Job
    from largek_dask.service.store import checked_id

    if bool(job_ids) == (older_than is not None):
        raise click.UsageError("give either job IDs or --older-than TIME")
    if job_ids and state:
        raise click.UsageError("--state requires --older-than")
    with scheduler.connect() as service:
        if older_than is None:
            found: Iterable[Job] = (Job(service, checked_id(name)) for name in job_ids)
        else:
            found = service.jobs(older_than=older_than, state=state or None, limit=None)
        rows: list[dict[str, Any]] = []
        try:
            for job in found:
                is_deleted = job.delete(outputs=outputs)
                rows.append({"id": job.id, "deleted": is_deleted})
        except Exception:
            # Print the completed deletions before the error.
            if rows and not wants_json():
                emit({"jobs": rows}, lambda: _deletions(rows))
            raise
    emit({"jobs": rows}, lambda: _deletions(rows))


def _deletions(rows: list[dict[str, Any]]) -> Any:
    cells = [(row["id"], "deleted" if row["deleted"] else "already deleted") for row in rows]
    return table(("job", ""), cells)
