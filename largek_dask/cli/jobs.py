"""``largek submit | jobs | watch | cancel | logs | result``: jobs that live on a scheduler."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from largek_dask.cli.common import (
    CANCELLED,
    OUT_OF_SIGHT,
    Command,
    emit,
    key_values,
    one_line,
    option_away,
    option_service,
    option_storage,
    service_option,
)
from largek_dask.cli.options import choose_algorithm, fit_options, option_clusters

if TYPE_CHECKING:
    from largek_dask.service.client import Service
    from largek_dask.service.job import Job

__all__ = ["cancel", "jobs", "logs", "result", "service_at", "submit", "watch"]

ASIDE = (
    "data", "resume", "accept_version", "wait", "away", "scheduler", "storage_options", "as_json",
)  # fmt: skip
"""Parameters of `submit` that are no option of a job."""
WORKERS = {"workers_min": "min", "workers_max": "max", "tag": "tags"}
"""Parameters of `submit` that say which workers a job uses."""
CONNECT_SECONDS = 10.0
"""Within so long a scheduler has to answer, or it is away."""
PAUSE_SECONDS = 0.5
ID = re.compile(r"lk-[0-9a-f]+")
"""Ids that a scheduler gives to jobs."""


@click.command(
    cls=Command,
    short_help="Give a job to a cluster's scheduler.",
    example="largek submit s3://bucket/x.zarr -k 1000 --out s3://bucket/run1 "
    "--scheduler tcp://host:8786",
)
@click.argument("data", required=False)
@option_clusters(required=False)
@click.option(
    "--out", metavar="URL", help="A new folder of the job, as scheduler and workers see it."
)
@fit_options
@click.option("--name", help="Shown beside the id.")
@click.option("--workers-min", type=int, metavar="N", help="With fewer workers the job waits.")
@click.option("--workers-max", type=int, metavar="N", help="It never uses more.")
@click.option(
    "--tag",
    multiple=True,
    metavar="NAME",
    help="Only workers with this resource (`dask worker --resources NAME=1`). May be repeated.",
)
@click.option(
    "--resume",
    metavar="ID",
    help="Resume a job that has ended, with other --max-iter, --tol, --max-time or workers if "
    "given; or one that waits for its storage options or its version since the scheduler was "
    "started again.",
)
@click.option(
    "--accept-version",
    is_flag=True,
    help="With --resume: also if another version of largek has computed it; bits may differ then.",
)
@click.option("--wait", is_flag=True, help="Watch the job until it has ended.")
@option_away
@option_service
@option_storage
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    data: str | None,
    resume: str | None,
    accept_version: bool,
    wait: bool,
    away: str,
    scheduler: str,
    storage_options: dict[str, Any] | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Submit a job: cluster DATA (a Zarr or npy URL) into K clusters on a Dask cluster.

    Prints its id. It goes on when this computer is switched off, when workers die, and when the
    scheduler is started again. Values of --storage-option stay in memory; of 'key={"env": "NAME"}'
    only the name is kept, and the value is looked up in the scheduler's environment.
    """
    if resume is None:
        if accept_version:
            raise click.UsageError("give --resume ID with --accept-version")
        order = _new_job(data, storage_options, options)
    else:
        order = _changes(ctx, data)
    with service_at(scheduler, storage_options, away) as service:
        if resume is None:
            job = service.submit(**order)
        else:
            job = _resumed(service, resume, order, storage_options, accept_version)
        if not wait:
            # The id alone, so that a shell can keep it: id=$(largek submit ...).
            click.echo(json.dumps(job.status(), allow_nan=False) if as_json else job.id)
            click.echo(f"Submitted. To see it: {_watching(job.id, scheduler)}", err=True)
            return
        with _job_that_goes_on(ctx, job.id, scheduler):
            if as_json:
                job.wait()
            else:
                job.watch()
        _tell_end(ctx, job.status(), as_json)


@contextmanager
def service_at(
    scheduler: str,
    storage_options: Mapping[str, Any] | None = None,
    away: str = "15m",
    *,
    waits: bool = False,
) -> Iterator[Service]:
    """The service at this address. What Dask logs of it is left out: errors say what matters.

    Parameters
    ----------
    scheduler : str
        Address, or the path or URL of a file that says it.
    storage_options : mapping, optional
        For that file.
    away : str
        How long a scheduler may be away.
    waits : bool
        Whether that is so from the beginning on: for who follows a job, and does not only ask. At
        an address there may never have been a scheduler; a file says that there was one.
    """
    from distributed.utils import silence_logging_cmgr

    with (
        silence_logging_cmgr(logging.CRITICAL),
        _connect(scheduler, storage_options, away, waits) as service,
    ):
        yield service


def _connect(
    scheduler: str, storage_options: Mapping[str, Any] | None, away: str, waits: bool
) -> Service:
    """Return the service; report once that it is waited for."""
    from largek_dask.driver.stopping import parse_duration
    from largek_dask.errors import SchedulerAwayError
    from largek_dask.retry import retry
    from largek_dask.service.client import connect
    from largek_dask.service.scheduler_file import is_file

    waits = waits and is_file(scheduler)
    seconds = parse_duration(away, "away")

    def report(error: Exception, _: float) -> None:
        why = one_line(error).rstrip(".")
        click.echo(f"{why}. Waiting for it, at most {away} (--away).", err=True)

    return retry(
        lambda: connect(
            scheduler, timeout=CONNECT_SECONDS, away=away, storage_options=storage_options
        ),
        lambda error: seconds if waits and isinstance(error, SchedulerAwayError) else None,
        pause=PAUSE_SECONDS,
        report=report,
    )


def _new_job(
    data: str | None, storage_options: dict[str, Any] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of ``Service.submit`` for a new job."""
    order = dict(options)
    order["output"] = order.pop("out")
    for value, name in ((data, "DATA"), (order["n_clusters"], "-k K"), (order["output"], "--out")):
        if value is None:
            raise click.UsageError(f"give {name}, or --resume ID to go on with a job")
    order["workers"] = _workers(order)
    for name in WORKERS:
        del order[name]
    order["algorithm"] = choose_algorithm(order)
    del order["settings"], order["effort"]
    return {"data": data, "storage_options": storage_options, **order}


def _workers(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Which workers a job is to use, of the options that say so; None: all."""
    asked = {name: given.get(option) for option, name in WORKERS.items()}
    return {name: value for name, value in asked.items() if value not in (None, ())} or None


def _given(ctx: click.Context) -> dict[str, Any]:
    """The parameters of a command that were typed."""
    typed = ParameterSource.COMMANDLINE
    return {
        name: value for name, value in ctx.params.items() if ctx.get_parameter_source(name) is typed
    }


def _changes(ctx: click.Context, data: str | None) -> dict[str, Any]:
    """What was given with ``--resume``."""
    from largek_dask.service.jobs import CHANGEABLE

    given = {name: value for name, value in _given(ctx).items() if name not in ASIDE}
    if (workers := _workers(given)) is not None:
        given = {name: value for name, value in given.items() if name not in WORKERS}
        given["workers"] = workers
    wrong = sorted(set(given) - set(CHANGEABLE))
    if wrong or data is not None:
        what = "DATA" if data is not None else f"--{wrong[0].replace('_', '-')}"
        known = ", ".join("--" + name.replace("_", "-") for name in _changeable())
        raise click.UsageError(
            f"{what} belongs to a new job; with --resume only {known} can be given"
        )
    return given


def _changeable() -> list[str]:
    """Parameters of `submit` that may be given when a job is gone on with."""
    from largek_dask.service.jobs import CHANGEABLE

    return [name for name in CHANGEABLE if name != "workers"] + list(WORKERS)


def _resumed(
    service: Service,
    job_id: str,
    changes: dict[str, Any],
    options: dict[str, Any] | None,
    accept_version: bool,
) -> Job:
    """Resume a job, or supply the storage options that it waits for."""
    from largek_dask.errors import ParameterError

    job = service.job(job_id)
    if not (needs := job.status()["needs"]):
        return service.submit(
            resume=job, storage_options=options, accept_version=accept_version, **changes
        )
    if changes:
        raise ParameterError(
            f"job {job_id} has not ended yet, it waits for {', '.join(needs)}: give these by "
            "--storage-option, and nothing else"
        )
    if needs := job.supply(options or {}):
        raise ParameterError(
            f"job {job_id} still waits for --storage-option {', '.join(needs)}: give each of them"
        )
    return job


def _watching(job_id: str, scheduler: str) -> str:
    """The command that shows a job."""
    return f"largek watch {job_id} --scheduler {scheduler}"


def _filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say which jobs are listed."""
    for option in reversed(
        (
            click.option("--all", "every", is_flag=True, help="All of them."),
            click.option("--mine", is_flag=True, help="Those that this user has submitted."),
            click.option("--state", multiple=True, metavar="STATE", help="May be repeated."),
            click.option("--owner", metavar="USER", help="Who submitted them."),
            click.option("--name", metavar="GLOB", help="A pattern for the name: 'night*'."),
            click.option(
                "--since", metavar="TIME", help="Submitted since: 2026-11-25, or 30d for 30 days."
            ),
            click.option(
                "--limit", type=int, default=100, show_default=True, help="The newest N of these."
            ),
        )
    ):
        command = option(command)
    return command


@click.command(
    cls=Command,
    short_help="List the jobs of a scheduler.",
    example="largek jobs --mine --state finished --since 7d --scheduler tcp://host:8786",
)
@_filters
@option_service
@option_storage
@click.pass_context
def jobs(
    ctx: click.Context,
    /,
    every: bool,
    mine: bool,
    scheduler: str,
    storage_options: dict[str, Any] | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """List jobs: those that have not ended and the last 20, or those that are asked for.

    With any option but --scheduler, --storage-option and --json these are asked for. Beneath them
    is how many there are by state.
    """
    query = {name: value for name, value in asked.items() if value not in (None, ())}
    if mine:
        if "owner" in query:
            raise click.UsageError("give --mine or --owner, not both")
        from largek_dask.service.client import this_user

        query["owner"] = this_user()
    given = set(_given(ctx))
    is_filtered = bool(given - {"scheduler", "storage_options", "as_json"})
    if every:
        if "limit" in given:
            raise click.UsageError("give --all or --limit, not both")
        query["limit"] = None
    with service_at(scheduler, storage_options) as service:
        if is_filtered:
            found = service.jobs(**query)
            rows, counts = found.rows, found.counts
        else:
            rows, counts = service.overview()
        store = service.store
    told = {"store": store, "jobs": rows, "counts": counts}
    is_narrowed = bool(set(query) - {"limit"})
    emit(told, as_json, lambda: _listing(rows, counts, store, is_narrowed))


def _listing(
    rows: list[dict[str, Any]],
    counts: Mapping[str, int],
    store: str,
    is_narrowed: bool = False,
) -> Any:
    from rich.console import Group as Lines
    from rich.text import Text

    if not rows:
        is_empty = not (counts or is_narrowed)
        none = f"no jobs in {store}" if is_empty else f"none of the jobs in {store} is as asked for"
        return Text(none)
    told = ", ".join(f"{count:,} {state}" for state, count in counts.items())
    lines = [Text(f"{told} · {len(rows):,} shown")]
    return Lines(_table(rows), *lines)


def _table(statuses: list[dict[str, Any]]) -> Any:
    from largek_dask.observe.job_text import COLORS, JOB_COLUMNS, job_row
    from largek_dask.observe.tables import Column, Fitting

    columns = (
        Column("job"),
        Column("name", rank=2, least=8),
        Column("state"),
        Column("k", rank=6, right=True),
        Column("algorithm", rank=8),
        Column("step", rank=3, right=True),
        Column("objective", rank=5, right=True),
        Column("rows/s", rank=7, right=True),
        Column("left", rank=4, right=True),
        Column("submitted", rank=9),
        Column("output", rank=1, least=20),
    )
    assert tuple(column.name for column in columns) == JOB_COLUMNS
    rows = [job_row(status) for status in statuses]
    states = (row[JOB_COLUMNS.index("state")] for row in rows)
    return Fitting(columns, rows, styles=[{"state": COLORS.get(state, "")} for state in states])


@click.command(
    cls=Command,
    short_help="Show a job or a fit until it has ended.",
    example="largek watch lk-3f9c0d21ab --scheduler tcp://host:8786",
    json_help="Print one JSON object a line: the events of the job.",
)
@click.argument("job_id", metavar="ID_OR_FOLDER")
@option_away
@service_option(required=False)
@option_storage
@click.pass_context
def watch(
    ctx: click.Context,
    job_id: str,
    away: str,
    scheduler: str | None,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Show a job: its events so far, then those that follow, until it has ended.

    A folder (--out of largek fit or submit, checkpoint= of an estimator), at any URL that fsspec
    knows, is followed without a scheduler; `./` before a folder's name tells it from an ID.

    Ctrl-C ends the watching; the job goes on. The exit code is the job's: 0 finished, 1 failed, 3
    cancelled; or 4: lost sight of it.
    """
    if ID.fullmatch(job_id) is None:
        _exit_like(ctx, _watch_folder(job_id, storage_options, as_json))
        return
    if scheduler is None:
        raise click.UsageError("give --scheduler ADDR, or the folder of the job instead of its ID")
    with (
        _job_that_goes_on(ctx, job_id, scheduler),
        service_at(scheduler, storage_options, away, waits=True) as service,
    ):
        job = service.job(job_id)
        if as_json:
            for event in job.events():
                click.echo(json.dumps(event, allow_nan=False))
        else:
            job.watch()
        _exit_like(ctx, job.status())


def _watch_folder(
    url: str, storage_options: dict[str, Any] | None, as_json: bool
) -> Mapping[str, Any]:
    """Show the fit in a folder until it has ended; return its status."""
    from largek_dask.driver.storage import Folder
    from largek_dask.service.fit_folder import FitFolder, follow
    from largek_dask.service.terminal import terminal

    fit = FitFolder(Folder(url, storage_options))
    if as_json:
        for event in follow(fit):
            if event is not None:
                click.echo(json.dumps(event, allow_nan=False))
    else:
        with terminal(fit.view) as show:
            for event in follow(fit):
                show(event)
    return fit.view.status


@contextmanager
def _job_that_goes_on(ctx: click.Context, job_id: str, scheduler: str) -> Iterator[None]:
    """Whatever ends the watching and not the job says so: Ctrl-C, a scheduler out of sight."""
    from largek_dask.errors import SchedulerAwayError

    try:
        yield
    except SchedulerAwayError as error:
        click.echo(f"Error: {one_line(error)}", err=True)
        ctx.exit(OUT_OF_SIGHT)
    except KeyboardInterrupt:
        seen_by = _watching(job_id, scheduler)
        click.echo(f"Job {job_id} goes on. To see it again: {seen_by}", err=True)
        ctx.exit(CANCELLED)


def _exit_like(ctx: click.Context, status: Mapping[str, Any]) -> None:
    """End this command as the job has ended."""
    from largek_dask.service.serialization import error_of

    failed = status["result"] if status["state"] == "failed" else status.get("failure")
    if failed:
        raise error_of(failed["error"], failed["message"], failed["traceback"])
    if status["state"] == "cancelled":
        click.echo("Cancelled.", err=True)
        ctx.exit(CANCELLED)


@click.command(
    cls=Command,
    short_help="End a job; its best model so far stays.",
    example="largek cancel lk-3f9c0d21ab --scheduler tcp://host:8786",
)
@click.argument("job_id", metavar="ID")
@option_service
@option_storage
def cancel(
    job_id: str, scheduler: str, storage_options: dict[str, Any] | None, as_json: bool
) -> None:
    """Ask a job to end; its best model so far stays. It may be gone on with by submit --resume."""
    from largek_dask.driver.stopping import ENDS

    with service_at(scheduler, storage_options) as service:
        job = service.job(job_id)
        before = job.state
        job.cancel()
        now = job.state
    told = {"id": job_id, "before": before, "state": now}
    if before in ENDS:
        said = f"had {before} already" if before == "finished" else f"was {before} already"
    else:
        said = "is cancelled" if now == "cancelled" else f"was {before}; it is asked to end"
    emit(told, as_json, lambda: f"Job {job_id} {said}.")


@click.command(
    cls=Command,
    short_help="Print what a job has told so far.",
    example="largek logs lk-3f9c0d21ab --scheduler tcp://host:8786",
    json_help="Print one JSON object a line: the events of the job.",
)
@click.argument("job_id", metavar="ID")
@option_service
@option_storage
def logs(
    job_id: str, scheduler: str, storage_options: dict[str, Any] | None, as_json: bool
) -> None:
    """Print the events of a job so far, one a line: when (UTC), what kind, what it says.

    Below warnings and errors, indented, is where they come from: the traceback, and the last
    warnings in the log of the process, also of a worker that has died.
    """
    with service_at(scheduler, storage_options) as service:
        job = service.job(job_id)
        if as_json:
            for event in job.events(follow=False):
                click.echo(json.dumps(event, allow_nan=False))
        else:
            for line in job.logs():
                click.echo(line)


@click.command(
    cls=Command,
    short_help="Wait for a job and get its model.",
    example="largek result lk-3f9c0d21ab --out model.zarr --scheduler tcp://host:8786",
)
@click.argument("job_id", metavar="ID")
@click.option("--out", metavar="MODEL.zarr", help="Also save the model there.")
@click.option("--timeout", metavar="TIME", help="Wait at most so long, such as 90s.")
@click.option(
    "--so-far",
    is_flag=True,
    help="The best model that there is now, of a job that runs or was cancelled.",
)
@option_away
@option_service
@option_storage
@click.pass_context
def result(
    ctx: click.Context,
    job_id: str,
    out: str | None,
    timeout: str | None,
    so_far: bool,
    away: str,
    scheduler: str,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Wait until a job has ended and say how; --out saves its model here."""
    with (
        _job_that_goes_on(ctx, job_id, scheduler),
        service_at(scheduler, storage_options, away, waits=True) as service,
    ):
        job, model = service.job(job_id), None
        if so_far:
            model = job.model()
            told = {
                "id": job_id,
                "state": job.state,
                "n_clusters": model.n_clusters,
                "n_iter": model.provenance.get("n_iter"),
                "digest": model.digest(),
            }
        else:
            job.wait(timeout)
            told = job.status()
            if out is not None and told["state"] == "finished":
                model = job.model()
        if out is not None and model is not None:
            model.save(out, storage_options=storage_options)
            told["saved"] = out
    if so_far:
        emit(told, as_json, lambda: key_values({k: str(v) for k, v in told.items()}))
        return
    _tell_end(ctx, told, as_json, is_model_enough=True)


def _tell_end(
    ctx: click.Context, status: Mapping[str, Any], as_json: bool, is_model_enough: bool = False
) -> None:
    """Say how a job has ended, and end this command alike.

    Where going on with a job has failed, its earlier model stands: enough for who asks for that.
    """
    if as_json or status["state"] == "finished":
        emit(status, as_json, lambda: key_values(_summary(status), title="largek result"))
    failure = status.get("failure")
    if failure and status["state"] == "finished" and is_model_enough:
        why = f"{failure['error']}: {failure['message']}"
        click.echo(f"Going on with it failed, its earlier model stands: {why}", err=True)
        return
    _exit_like(ctx, status)


def _summary(status: Mapping[str, Any]) -> dict[str, str]:
    from largek_dask.algorithms.objective import value_in
    from largek_dask.cli.fit import what_of
    from largek_dask.driver.formatting import human_seconds
    from largek_dask.observe.job_text import figure, figures_in, precise
    from largek_dask.service.store import LABELS, MODEL

    objective, value = value_in(status["result"])
    ended, out = status["result"], str(status["output"]).rstrip("/")
    return {
        "job": status["id"],
        what_of(status): f"{status['n_clusters']:,} after {ended['n_iter']:,} steps "
        f"({ended['stop_reason']})",
        objective.words: figure(value, precise),
        **dict(figures_in(ended)),
        "time": figure(ended["seconds"], human_seconds),
        "model": f"{out}/{MODEL}",
        "labels": f"{out}/{LABELS}" if ended["labels"] else "not written",
        "digest": str(ended["digest"]),
        **({"saved": status["saved"]} if "saved" in status else {}),
    }
