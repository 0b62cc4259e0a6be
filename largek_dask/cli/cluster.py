"""``largek cluster``: a scheduler and workers as jobs of SLURM, and certificates for TLS."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from largek_dask.cli.common import Command, CommandGroup, Group, emit

if TYPE_CHECKING:
    from largek_dask.cli.slurm import Layout, QueuedJob

__all__ = ["cluster"]

PLACEHOLDER = "/shared/me/largek"
"""Folder in the output of ``--print`` without ``--home``."""
SHORTEST = 15 * 60
"""Seconds; workers end up to nine minutes before the time limit."""
LEAST_MEMORY = 1024
"""MiB of a worker, and of the scheduler."""
MIB = {"": 1, "M": 1, "G": 1 << 10, "T": 1 << 20}


def matching(pattern: str, hint: str) -> Callable[[str], str]:
    """Return a type of options: text that matches a pattern."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise click.BadParameter(f"{value!r}: {hint}")
        return value

    return check


def size(value: str) -> int:
    """Return MiB of a size as SLURM writes it, such as "64G" or "500M"."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MGT]?)(?:i?B)?", value, re.IGNORECASE)
    if not found:
        raise click.BadParameter(f"{value!r} is no size; use 64G or 500M")
    mib = int(float(found[1]) * MIB[found[2].upper()])
    if mib < LEAST_MEMORY:
        raise click.BadParameter(f"{value!r} is {mib} MiB; give at least 1G")
    return mib


def seconds(value: str, least: int = SHORTEST) -> int:
    """Return seconds of a time such as "12h", or "1-12:00:00" as SLURM writes it."""
    from dask.utils import parse_timedelta

    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", value)
    try:
        if found:
            days, hours, minutes, rest = (int(part or 0) for part in found.groups())
            time = ((days * 24 + hours) * 60 + minutes) * 60 + rest
        else:
            time = int(parse_timedelta(re.sub(r"(?<=[\d ])min$", "m", value)))
    except (ValueError, KeyError, OverflowError):
        raise click.BadParameter(f"{value!r} is no time; use 12h or 1-12:00:00") from None
    if time < least:
        raise click.BadParameter(f"{value!r} is too short; give at least {least} s")
    return time


def idle(value: str) -> int | None:
    """Return seconds, or None for "never"."""
    return None if value == "never" else seconds(value, least=1)


NAME = matching(r"[\w./+@%:,=-]+", "use letters, digits and . _ / + @ : , = - only")
FOLDER = matching(
    r"/[\w./+@%:=-]*", "give an absolute path of letters, digits and . _ / + @ : = - only"
)
ADDRESS = matching(
    r"([\w.-]+|\[[\da-fA-F:]+\])?:\d{1,5}",
    "give a port to open it on all interfaces, such as :8787, or 127.0.0.1:8787",
)
# Jobs are found, and requeued, by these.
OWN = r"--(job-name|array|no-requeue|dependency|signal)\b|-[Jad]"
SBATCH = matching(
    rf"(?!{OWN})-[^\n]+",
    "give one option of sbatch, such as --constraint=icelake; those that name, repeat or signal "
    "a job are set already, and --out DIR writes files that you can change",
)
HOST = matching(
    r"[A-Za-z0-9]([A-Za-z0-9.:_-]|,[A-Za-z0-9])*",
    "use HOST[,NAME...], of letters, digits and . : _ - only",
)


@click.group(cls=Group, short_help="Run a scheduler and its workers at a SLURM site.")
def cluster() -> None:
    """Run a scheduler with jobs, and its workers, on machines of a site."""


def _home(*, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--home",
        type=FOLDER,
        metavar="DIR",
        required=required,
        callback=lambda _context, _option, value: value and (value.rstrip("/") or value),
        help="Folder of yours that all nodes see, for jobs, logs and compiled kernels. An absolute "
        "path.",
    )


def _layout_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of ``Layout``."""
    count = click.IntRange(min=1)
    options: list[tuple[str, Any, str, str | None, str]] = [
        ("workers", count, "N", "16", "Workers in all."),
        ("cpus", count, "N", "8", "Threads of a worker."),
        ("mem", size, "SIZE", "64G", "Memory of a worker."),
        ("time", seconds, "TIME", "12h",
         "Limit of each job of SLURM, such as 12h; all are queued again after it."),
        ("partition", NAME, "P", None, "Partition; by default that of the site."),
        ("scheduler-partition", NAME, "P", None, "Another partition for the scheduler."),
        ("account", NAME, "A", None, "Account that is charged."),
        ("qos", NAME, "Q", None, "Quality of service."),
        ("workers-per-node", count, "N", "1", "Workers in one job."),
        ("scheduler-mem", size, "SIZE", "8G",
         "Memory of the scheduler: 4 GB, and two models of each job that runs."),
        ("scheduler-cpus", count, "N", "2",
         "Threads of the scheduler, which computes the first steps of a fit: `largek fit --plan` "
         "says how long they take."),
        ("idle", idle, "TIME", "20m",
         'Workers end after this time without a job, and start again with the next one; "never": '
         "they stay."),
        ("dashboard-address", ADDRESS, "[HOST]:PORT", "127.0.0.1:0",
         "Address of the dashboard, which has no login; :8787 opens it to all who reach the node."),
        ("interface", NAME, "NAME", None, "Network interface of the nodes, such as ib0."),
        ("scratch", FOLDER, "DIR", None,
         "Folder on a node's own disk.  [default: SLURM_TMPDIR, TMPDIR or /tmp there]"),
        ("setup", None, "LINE", None,
         'A line of shell before Python is started, such as "module load python"; for more there '
         "is HOME/site.env."),
    ]  # fmt: skip
    added = [
        click.option(
            f"--{name}", type=kind, metavar=metavar, default=default, show_default=True, help=text
        )
        for name, kind, metavar, default, text in options
    ]
    added += [
        click.option(
            "--insecure",
            is_flag=True,
            help="Without TLS: whoever has an account on the network of the nodes can run code as "
            "you.",
        ),
        click.option(
            "--sbatch",
            type=SBATCH,
            multiple=True,
            metavar="OPTION",
            help="One more option of sbatch, such as --constraint=icelake; may be repeated.",
        ),
    ]
    for option in reversed(added):
        command = option(command)
    return command


@cluster.group(
    cls=CommandGroup,
    invoke_without_command=True,
    short_help="Jobs of SLURM: write them, submit them.",
    example="largek cluster slurm --home /shared/me/largek --workers 16 --cpus 8 --mem 64G "
    "--time 12h --submit",
)
@_home(required=False)
@_layout_options
@click.option("--out", metavar="DIR", help="Write the files there, to be changed and submitted.")
@click.option("--submit", is_flag=True, help="Write the files into HOME and submit both jobs.")
@click.option("--print", "only_print", is_flag=True, help="Print the files.")
@click.pass_context
def slurm(
    context: click.Context,
    /,
    home: str | None,
    out: str | None,
    submit: bool,
    only_print: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Have SLURM run a scheduler with jobs and its workers, for days, whatever is preempted.

    Both are queued again by SLURM when they are preempted or reach their time limit; jobs go on
    from their last checkpoints, with the same bits.
    """
    from largek_dask.cli.slurm import Layout

    if context.invoked_subcommand is not None:
        defaults = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
        if any(context.get_parameter_source(name) not in defaults for name in context.params):
            raise click.UsageError(f"write options behind {context.invoked_subcommand}")
        return
    if (out is not None) + submit + only_print != 1:
        raise click.UsageError("give one of --submit, --out DIR and --print")
    if home is None and not only_print:
        raise click.UsageError("give --home DIR, a folder that all nodes see")
    if given["workers"] % given["workers_per_node"]:
        raise click.UsageError("--workers has to be a multiple of --workers-per-node")
    layout = Layout(home=home or PLACEHOLDER, **given)
    if only_print:
        files = layout.render()
        lines = [f"### {name}\n{text}" for name, text in files.items()]
        _echo({"files": files}, lines, as_json)
    elif out is not None:
        _write(layout, out, as_json)
    else:
        _submit(layout, as_json)


def _write(layout: Layout, out: str, as_json: bool) -> None:
    from largek_dask.cli.slurm import check_home

    check_home(layout.home)
    folder = NAME(str(Path(out).absolute()))
    _secure(layout)
    written = layout.write(folder)
    lines = [
        *(f"Wrote {path}" for path in written),
        f"Submit: mkdir -p {layout.home}/logs && sbatch {folder}/scheduler.sbatch && "
        f"sbatch {folder}/workers.sbatch",
    ]
    _echo({"files": written}, lines, as_json)


def _submit(layout: Layout, as_json: bool) -> None:
    from largek_dask.cli.slurm import Slurm, check_home, preemption_warning

    check_home(layout.home)
    slurm = Slurm(layout.home)
    slurm.check_empty()
    _secure(layout)
    if not layout.scheduler_partition and (warning := preemption_warning(layout.partition)):
        click.echo(f"Warning: {warning}.", err=True)
    scheduler, workers = slurm.submit(layout)
    connect = f"{layout.home}/jobs/scheduler.json"
    lines = [
        f"Scheduler: job {scheduler}. Workers: job {workers}, an array of {layout.tasks}.",
        f'In Python: lk.connect("{connect}")',
        f"In a shell: export DASK_SCHEDULER_ADDRESS={connect}",
    ]
    _echo({"scheduler": scheduler, "workers": workers, "connect": connect}, lines, as_json)


def _secure(layout: Layout) -> None:
    """Provide certificates, or warn that there are none."""
    from largek_dask.cli.certificates import provide

    if layout.insecure:
        message: str | None = (
            "Warning: --insecure: no TLS, and Dask asks for no password. Whoever has an account "
            "on the network of the nodes can run code as you"
        )
    else:
        message = provide(layout.home)
    if message:
        click.echo(f"{message}.", err=True)


def _echo(payload: dict[str, Any], lines: list[str], as_json: bool) -> None:
    """Print JSON, or lines to be copied, which no terminal may wrap."""
    click.echo(json.dumps(payload) if as_json else "\n".join(lines))


@slurm.command(
    cls=Command,
    short_help="List the jobs in SLURM, and show where the scheduler is.",
    example="largek cluster slurm status --home /shared/me/largek",
)
@_home(required=True)
def status(home: str, as_json: bool) -> None:
    """List the jobs of a folder in SLURM, and show where its scheduler is."""
    from largek_dask.cli.slurm import Slurm, table

    jobs = Slurm(home).jobs()
    where = _where(home)
    tunnel = _tunnel(where["dashboard"], jobs)
    address = where["scheduler"]
    notes = [f"Scheduler: {address} since {where['since']}" if address else str(where["why"])]
    payload = {"jobs": [vars(job) for job in jobs], **where, "tunnel": tunnel}
    emit(payload, as_json, lambda: table(jobs, notes))
    if where["dashboard"] is not None and not as_json:
        # To be copied, so no terminal may wrap it.
        first = f"{tunnel}   # then open " if tunnel else ""
        click.echo(f"Dashboard: {first}{where['dashboard']}")


def _where(home: str) -> dict[str, Any]:
    """Return what the scheduler file says, or why it says nothing."""
    from largek_dask.errors import LargekError
    from largek_dask.service.scheduler_file import Finder

    finder = Finder(f"{home}/jobs/scheduler.json")
    found = dict.fromkeys(("scheduler", "since", "dashboard", "why"))
    try:
        address = finder.find()
    except LargekError as error:
        return found | {"why": str(error)}
    assert finder.found is not None
    since = f"{finder.found.started.astimezone():%Y-%m-%d %H:%M}"
    return found | {"scheduler": address, "since": since, "dashboard": finder.found.dashboard}


def _tunnel(dashboard: str | None, jobs: list[QueuedJob]) -> str | None:
    """Return the ssh command that forwards a dashboard on loopback; None if none is needed."""
    from urllib.parse import urlsplit

    page = urlsplit(dashboard or "")
    node = next((job.nodes for job in jobs if job.is_scheduler and job.state == "RUNNING"), None)
    if page.hostname not in ("127.0.0.1", "localhost", "::1") or page.port is None or not node:
        return None
    return f"ssh -N -L {page.port}:{page.hostname}:{page.port} {node}"


@slurm.command(
    cls=Command,
    short_help="Cancel the scheduler and all workers.",
    example="largek cluster slurm stop --home /shared/me/largek",
)
@_home(required=True)
def stop(home: str, as_json: bool) -> None:
    """Cancel the scheduler, wait for the checkpoints of its jobs, and cancel its workers.

    Jobs resume after the next --submit.
    """
    from largek_dask.cli.slurm import Slurm

    stopped = Slurm(home).stop()
    line = f"Cancelled: {', '.join(stopped)}." if stopped else "SLURM has no jobs of this folder."
    emit({"cancelled": stopped}, as_json, lambda: line)


@slurm.command(
    cls=Command,
    short_help="Change the number of workers.",
    example="largek cluster slurm scale 32 --home /shared/me/largek",
)
@click.argument("workers", metavar="[N]", required=False, type=click.IntRange(min=1))
@_home(required=True)
def scale(workers: int | None, home: str, as_json: bool) -> None:
    """Submit more workers, or cancel the newest, until there are N in all.

    Without N, restore the last number: some may have ended for lack of a job.
    """
    from largek_dask.cli.slurm import Slurm

    slurm = Slurm(home)
    before, changed = slurm.scale(workers)
    after = sum(not job.is_scheduler for job in slurm.jobs())
    line = f"Jobs of workers: {before} before, {after} now."
    emit({"before": before, "after": after, "changed": changed}, as_json, lambda: line)


@cluster.command(
    cls=Command,
    short_help="Make certificates for TLS, of one authority.",
    example="largek cluster certificates scheduler,10.0.0.1 node1,10.0.0.11 alice",
)
@click.argument("hosts", metavar="HOST[,NAME...]...", nargs=-1, required=True, type=HOST)
@click.option("--out", default="tls", show_default=True, metavar="DIR", help="Folder to write.")
@click.option(
    "--at",
    type=FOLDER,
    default="/etc/largek/tls",
    show_default=True,
    metavar="PATH",
    help="Folder on each host that its files will be copied to; DASK_CONFIG names it to Dask.",
)
@click.option(
    "--days", type=click.IntRange(1, 99_999), default=365, show_default=True, help="Validity."
)
@click.option("--renew", is_flag=True, help="Replace certificates; the authority stays.")
def certificates(
    hosts: tuple[str, ...], out: str, at: str, days: int, renew: bool, as_json: bool
) -> None:
    """Make an authority, once, and a folder for each HOST with the files to copy there.

    NAMEs are further names and addresses of that host. A HOST may be a person, too. The authority,
    ca.pem and ca.key in DIR, is valid for ten years; its key stays here.
    """
    from largek_dask.cli.certificates import make

    lines = make(Path(out), [host.split(",") for host in hosts], at, days, renew)
    folders = [str(Path(out, host.partition(",")[0])) for host in hosts]
    _echo({"authority": str(Path(out, "ca.pem")), "folders": folders}, lines, as_json)
