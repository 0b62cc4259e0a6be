"""``largek cluster``: a scheduler and workers as jobs of SLURM, and certificates for TLS."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from largek_dask.cli.common import Command, Group, echo, emit, options, typed

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


def seconds(value: str) -> int:
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
    if time < SHORTEST:
        raise click.BadParameter(f"{value!r} is too short; give at least {SHORTEST} s")
    return time


def last_or_number(value: str) -> int:
    """Return a number of workers, or 0 for "last"."""
    return 0 if value == "last" else int(COUNT(value))


COUNT = click.IntRange(min=1)
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
    "a job are set already",
)
HOST = matching(
    r"[A-Za-z0-9]([A-Za-z0-9.:_-]|,[A-Za-z0-9])*",
    "use HOST[,NAME...], of letters, digits and . : _ - only",
)


@click.group(cls=Group)
def cluster() -> None:
    """Run a scheduler and its workers at a site."""


def _option(name: str, kind: Any, metavar: str, default: str | None, help: str) -> Any:
    return click.option(
        f"--{name}", type=kind, metavar=metavar, default=default, show_default=True, help=help
    )


layout = options(
    _option("workers", COUNT, "N", "16", "Workers in all."),
    _option("cpus", COUNT, "N", "8", "Threads of a worker."),
    _option("mem", size, "SIZE", "64G", "Memory of a worker."),
    _option("time", seconds, "TIME", "12h",
            "Limit of each job of SLURM, such as 12h; all are queued again after it."),
    _option("partition", NAME, "P", None, "Partition; by default that of the site."),
    _option("scheduler-partition", NAME, "P", None, "Another partition for the scheduler."),
    _option("scheduler-mem", size, "SIZE", "8G",
            "Memory of the scheduler: 4 GB, and two models of each job that runs."),
    _option("scheduler-cpus", COUNT, "N", "2",
            "Threads of the scheduler, which computes the first steps of a fit."),
    _option("dashboard-address", ADDRESS, "[HOST]:PORT", "127.0.0.1:0",
            "Address of the dashboard, which has no login; :8787 opens it to everybody."),
    _option("interface", NAME, "NAME", None, "Network interface of the nodes, such as ib0."),
    click.option("--insecure", is_flag=True,
                 help="Without TLS: everybody on the network of the nodes can run code as you."),
    click.option("--sbatch", type=SBATCH, multiple=True, metavar="OPTION",
                 help="One more option of sbatch, such as --constraint=icelake; may be repeated."),
)  # fmt: skip
"""Options of the files."""


@cluster.command(
    cls=Command,
    example="largek cluster slurm --home /shared/me/largek --workers 16 --cpus 8 --mem 64G "
    "--time 12h --submit",
)
@click.option(
    "--home",
    type=FOLDER,
    metavar="DIR",
    callback=lambda _context, _option, value: value and (value.rstrip("/") or value),
    help="Folder of yours that all nodes see, for jobs, logs and kernels: an absolute path.",
)
@click.option("--submit", is_flag=True, help="Write the files into HOME and submit both jobs.")
@click.option("--print", "only_print", is_flag=True, help="Print the files, to be changed by you.")
@click.option(
    "--scale",
    type=last_or_number,
    is_flag=False,
    flag_value="last",
    metavar="[N]",
    help="Submit or cancel workers until there are N in all; by default as many as last time.",
)
@click.option(
    "--stop",
    is_flag=True,
    help="Cancel scheduler and workers once jobs have checkpoints; --submit resumes them.",
)
@layout
def slurm(
    home: str | None,
    submit: bool,
    only_print: bool,
    scale: int | None,
    stop: bool,
    **given: Any,
) -> None:
    """Have SLURM run a scheduler with jobs and its workers.

    They run for days, whatever is preempted: SLURM queues both again when they are preempted or
    reach their time limit, and jobs go on from their last checkpoints, with the same bits.

    Given only --home, it lists the jobs of that folder in SLURM, and shows where its scheduler is.
    """
    from largek_dask.cli.slurm import Slurm, render

    actions = {"submit", "only_print", "scale", "stop"} & set(typed())
    if len(actions) > 1:
        raise click.UsageError("give one of --submit, --print, --scale [N] and --stop")
    if home is None and not only_print:
        raise click.UsageError("give --home DIR, a folder that all nodes see")
    if not actions & {"submit", "only_print"} and (wrong := set(typed()) & set(given)):
        name = min(wrong).replace("_", "-")
        raise click.UsageError(f"--{name} is for --submit or --print")
    files = {"home": home or PLACEHOLDER, **given}
    if only_print:
        texts = render(files)
        echo({"files": texts}, [f"### {name}\n{text}" for name, text in texts.items()])
        return
    assert home is not None
    if submit:
        _submit(files)
    elif scale is not None:
        queue = Slurm(home)
        before, changed = queue.scale(scale)
        after = sum(not job.is_scheduler for job in queue.jobs())
        line = f"Jobs of workers: {before} before, {after} now."
        echo({"before": before, "after": after, "changed": changed}, [line])
    elif stop:
        stopped = Slurm(home).stop()
        line = (
            f"Cancelled: {', '.join(stopped)}." if stopped else "SLURM has no jobs of this folder."
        )
        echo({"cancelled": stopped}, [line])
    else:
        _show(home)


def _submit(files: dict[str, Any]) -> None:
    from largek_dask.cli.slurm import Slurm, check_home

    home = files["home"]
    check_home(home)
    slurm = Slurm(home)
    slurm.check_empty()
    _secure(files)
    scheduler, workers = slurm.submit(files)
    connect = f"{home}/jobs/scheduler.json"
    lines = [
        f"Scheduler: job {scheduler}. Workers: job {workers}, an array of {files['workers']}.",
        f'In Python: lk.connect("{connect}")',
        f"In a shell: export DASK_SCHEDULER_ADDRESS={connect}",
    ]
    echo({"scheduler": scheduler, "workers": workers, "connect": connect}, lines)


def _secure(files: dict[str, Any]) -> None:
    """Provide certificates, or warn that there are none."""
    from largek_dask.cli.certificates import provide

    message: str | None = (
        "Warning: --insecure: no TLS, and Dask asks for no password. Everybody with an account on "
        "the network of the nodes can run code as you"
    )
    if not files["insecure"]:
        message = provide(files["home"])
    if message:
        click.echo(f"{message}.", err=True)


def _show(home: str) -> None:
    """List the jobs of a folder, and show where its scheduler is."""
    from largek_dask.cli.slurm import Slurm, queue_table
    from largek_dask.errors import LargekError
    from largek_dask.service.scheduler_file import Finder

    jobs, finder = Slurm(home).jobs(), Finder(f"{home}/jobs/scheduler.json")
    where: dict[str, Any] = dict.fromkeys(("scheduler", "since", "dashboard", "why"))
    try:
        where["scheduler"] = finder.find()
    except LargekError as error:
        notes = [str(error)]
        where["why"] = notes[0]
    else:
        where["since"] = finder.found.get("started")
        where["dashboard"] = finder.found.get("dashboard")
        notes = [f"Scheduler: {where['scheduler']} since {where['since']}",
                 f"Dashboard: {where['dashboard'] or 'none'}"]  # fmt: skip
    emit({"jobs": [vars(job) for job in jobs], **where}, lambda: queue_table(jobs, notes))


@cluster.command(
    cls=Command,
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
def certificates(hosts: tuple[str, ...], out: str, at: str, days: int, renew: bool) -> None:
    """Make certificates for TLS, of one authority.

    Makes the authority, once, and a folder for each HOST with the files to copy there. NAMEs are
    further names and addresses of that host. A HOST may be a person, too. The authority, ca.pem and
    ca.key in DIR, is valid for ten years; its key stays here.
    """
    from largek_dask.cli.certificates import make

    lines = make(Path(out), [host.split(",") for host in hosts], at, days, renew)
    folders = [str(Path(out, host.partition(",")[0])) for host in hosts]
    echo({"authority": str(Path(out, "ca.pem")), "folders": folders}, lines)
