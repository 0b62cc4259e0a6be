"""``largek cluster slurm``: a scheduler and workers as jobs of SLURM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import Command, CommandGroup, Group, emit

if TYPE_CHECKING:
    from largek_dask.cli.slurm import Layout, QueuedJob

__all__ = ["cluster"]

PLACEHOLDER = "/shared/me/largek"
"""What ``--print`` says where no folder is given."""


@click.group(cls=Group, short_help="Run a scheduler and its workers at a SLURM site.")
def cluster() -> None:
    """Run a scheduler with jobs, and its workers, where a site has them run."""


option_home = click.option(
    "--home",
    metavar="DIR",
    help="Folder that all nodes see and you may write; jobs, logs and compiled kernels are kept "
    "there. An absolute path.",
)


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What is asked of SLURM; defaults are those of ``Layout``."""
    positive = click.IntRange(min=1)
    for option in reversed(
        [
            click.option("--workers", type=positive, metavar="N", help="Workers in all.  [16]"),
            click.option("--cpus", type=positive, metavar="N", help="Threads of a worker.  [8]"),
            click.option("--mem", metavar="SIZE", help="Memory of a worker.  [64G]"),
            click.option(
                "--time",
                metavar="TIME",
                help="Limit of each job of SLURM, such as 12h; all are queued again after it.  "
                "[12h]",
            ),
            click.option("--partition", metavar="P", help="Partition; the site's default without."),
            click.option("--scheduler-partition", metavar="P", help="Another for the scheduler."),
            click.option("--account", metavar="A", help="Account that is charged."),
            click.option("--qos", metavar="Q", help="Quality of service."),
            click.option(
                "--workers-per-node", type=positive, metavar="N", help="Workers in one job.  [1]"
            ),
            click.option(
                "--scheduler-mem",
                metavar="SIZE",
                help="Memory of the scheduler: 4 GB, and two models of each job that runs.  [8G]",
            ),
            click.option(
                "--scheduler-cpus",
                type=positive,
                metavar="N",
                help="Threads of the scheduler, which computes the first steps of a fit: `largek "
                "fit --plan` says how long they take.  [2]",
            ),
            click.option(
                "--idle",
                metavar="TIME",
                help="Workers end after so long without a job, and start again with the next one; "
                '"never": they stay.  [20m]',
            ),
            click.option(
                "--dashboard-address",
                metavar="[HOST]:PORT",
                help="Where pages are shown, without a login; :8787 opens them to all who reach "
                "the node.  [127.0.0.1:0]",
            ),
            click.option(
                "--insecure",
                is_flag=True,
                help="Without TLS: whoever has an account on the network of the nodes can run code "
                "as you.",
            ),
            click.option(
                "--interface", metavar="NAME", help="Network interface of the nodes, such as ib0."
            ),
            click.option(
                "--scratch",
                metavar="DIR",
                help="Folder on a node's own disk.  [SLURM_TMPDIR, TMPDIR or /tmp there]",
            ),
            click.option(
                "--setup",
                metavar="LINE",
                help='A line of shell before Python is started, such as "module load python"; for '
                "more there is HOME/site.env.",
            ),
            click.option(
                "--sbatch",
                multiple=True,
                metavar="OPTION",
                help="One more option of sbatch, such as --constraint=icelake; may be repeated.",
            ),
        ]
    ):
        command = option(command)
    return command


@cluster.group(
    cls=CommandGroup,
    invoke_without_command=True,
    short_help="Jobs of SLURM: write them, submit them.",
    example="largek cluster slurm --home /shared/me/largek --workers 16 --cpus 8 --mem 64G "
    "--time 12h --submit",
)
@option_home
@_options
@click.option("--out", metavar="DIR", help="Write the files there, to be looked at and submitted.")
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
    if context.invoked_subcommand is not None:
        if home or out or submit or only_print or any(given.values()):
            raise click.UsageError(f"write options behind {context.invoked_subcommand}")
        return
    if (out is not None) + submit + only_print != 1:
        raise click.UsageError("give one of --submit, --out DIR and --print")
    if home is None and not only_print:
        raise click.UsageError("give --home DIR, a folder that all nodes see")
    layout = _layout(home or PLACEHOLDER, given)
    if only_print:
        _print(layout, as_json)
    elif out is not None:
        _write(layout, out, as_json)
    else:
        _submit(layout, as_json)


def _layout(home: str, given: dict[str, Any]) -> Layout:
    """What the options ask for."""
    from largek_dask.cli.slurm import Layout, mebibytes, seconds

    given = {name: value for name, value in given.items() if value not in (None, (), False)}
    for name in ("mem", "scheduler_mem"):
        if name in given:
            given[name] = mebibytes(given[name], f"--{name.replace('_', '-')}")
    for name in ("time", "idle"):
        if name in given:
            is_none = name == "idle" and given[name] == "never"
            given[name] = None if is_none else seconds(given[name], f"--{name}")
    return Layout(home=home.rstrip("/") or home, **given)


def _print(layout: Layout, as_json: bool) -> None:
    made = layout.rendered()
    if as_json:
        click.echo(json.dumps({"files": made}))
        return
    for name, text in made.items():
        click.echo(f"### {name}\n{text}")


def _write(layout: Layout, out: str, as_json: bool) -> None:
    from largek_dask.cli.slurm import check_home, write

    check_home(layout.home)
    _secure(layout)
    folder = str(Path(out).absolute())
    written = write(layout, folder)
    lines = [
        *(f"Wrote {path}" for path in written),
        f"Submit: mkdir -p {layout.home}/logs && sbatch {folder}/scheduler.sbatch && "
        f"sbatch {folder}/workers.sbatch",
    ]
    _told({"files": written}, lines, as_json)


def _submit(layout: Layout, as_json: bool) -> None:
    from largek_dask.cli.slurm import Slurm, check_home, preempted

    check_home(layout.home)
    slurm = Slurm(layout.home)
    slurm.check_empty()
    _secure(layout)
    advice = None if layout.scheduler_partition else preempted(layout.partition)
    if advice is not None:
        click.echo(f"Warning: {advice}.", err=True)
    scheduler, workers = slurm.submit(layout)
    connect = f"{layout.home}/jobs/scheduler.json"
    lines = [
        f"Scheduler: job {scheduler}. Workers: job {workers}, an array of {layout.tasks}.",
        f'In Python: lk.connect("{connect}")',
        f"In a shell: export DASK_SCHEDULER_ADDRESS={connect}",
    ]
    told = {"scheduler": scheduler, "workers": workers, "connect": connect}
    _told(told, lines, as_json)


def _secure(layout: Layout) -> None:
    """See to certificates, or say what it means to have none."""
    from largek_dask.cli.certificates import provide

    if layout.insecure:
        said: str | None = (
            "Warning: --insecure: no TLS, and Dask asks for no password. Whoever has an account "
            "on the network of the nodes can run code as you"
        )
    else:
        said = provide(layout.home)
    if said:
        click.echo(f"{said}.", err=True)


def _told(told: dict[str, Any], lines: list[str], as_json: bool) -> None:
    """Print lines that are copied, so that no terminal may break them; or JSON."""
    click.echo(json.dumps(told) if as_json else "\n".join(lines))


def _home(home: str | None) -> str:
    from largek_dask.errors import ParameterError

    if home is None:
        raise click.UsageError("give --home DIR, as you did to --submit")
    if not home.startswith("/"):
        raise ParameterError(f"--home is {home!r}: give an absolute path, as you did to --submit")
    return home.rstrip("/") or home


@slurm.command(
    cls=Command,
    short_help="Jobs of SLURM that there are, and where the scheduler is.",
    example="largek cluster slurm status --home /shared/me/largek",
)
@option_home
def status(home: str | None, as_json: bool) -> None:
    """List what SLURM has of a folder, and say where its scheduler is."""
    from largek_dask.cli.slurm import Slurm, table

    home = _home(home)
    jobs = Slurm(home).jobs()
    where = _where(home)
    told = {"jobs": [vars(job) for job in jobs], **where, "tunnel": _tunnel(where, jobs)}
    address = where["scheduler"]
    notes = [f"Scheduler: {address} since {where['since']}" if address else str(where["why"])]
    emit(told, as_json, lambda: table(jobs, notes))
    if where["dashboard"] is not None and not as_json:
        # To be copied, so that no terminal may break it.
        first = f"{told['tunnel']}   # then open " if told["tunnel"] else ""
        click.echo(f"Dashboard: {first}{where['dashboard']}")


def _where(home: str) -> dict[str, Any]:
    """What the file in the store says, or why it says nothing."""
    from largek_dask.errors import LargekError
    from largek_dask.service.scheduler_file import Finder

    finder = Finder(f"{home}/jobs/scheduler.json")
    told = dict.fromkeys(("scheduler", "since", "dashboard", "why"))
    try:
        address = finder.find()
    except LargekError as error:
        return told | {"why": str(error)}
    assert finder.found is not None
    since = f"{finder.found.started.astimezone():%Y-%m-%d %H:%M}"
    return told | {"scheduler": address, "since": since, "dashboard": finder.found.dashboard}


def _tunnel(where: dict[str, Any], jobs: list[QueuedJob]) -> str | None:
    """The line of ssh that brings a dashboard on loopback here; None where none is needed."""
    from urllib.parse import urlsplit

    page = urlsplit(where["dashboard"] or "")
    node = next((job.nodes for job in jobs if job.is_scheduler and job.state == "RUNNING"), None)
    if page.hostname not in ("127.0.0.1", "localhost", "::1") or page.port is None or not node:
        return None
    return f"ssh -N -L {page.port}:{page.hostname}:{page.port} {node}"


@slurm.command(
    cls=Command,
    short_help="Cancel the scheduler and all workers.",
    example="largek cluster slurm stop --home /shared/me/largek",
)
@option_home
def stop(home: str | None, as_json: bool) -> None:
    """Cancel the scheduler, which has jobs write their last checkpoints, and then its workers.

    With --submit they go on.
    """
    from largek_dask.cli.slurm import Slurm

    stopped = Slurm(_home(home)).stop()
    line = f"Cancelled: {', '.join(stopped)}." if stopped else "SLURM has no jobs of this folder."
    emit({"cancelled": stopped}, as_json, lambda: line)


@slurm.command(
    cls=Command,
    short_help="Have another number of workers.",
    example="largek cluster slurm scale 32 --home /shared/me/largek",
)
@click.argument("workers", metavar="[N]", required=False, type=click.IntRange(min=1))
@option_home
def scale(workers: int | None, home: str | None, as_json: bool) -> None:
    """Submit more workers, or cancel the newest, until there are N in all.

    Without N as many as were asked for last: some may have ended, as there was no job.
    """
    from largek_dask.cli.slurm import Slurm

    slurm = Slurm(_home(home))
    before, changed = slurm.scale(workers)
    after = sum(not job.is_scheduler for job in slurm.jobs())
    line = f"Jobs of workers: {before} before, {after} now."
    emit({"before": before, "after": after, "changed": changed}, as_json, lambda: line)
