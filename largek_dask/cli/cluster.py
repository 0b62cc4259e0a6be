"""``largek cluster slurm``: run a scheduler and workers as SLURM jobs."""

from __future__ import annotations

import re
from typing import Any

import click

from largek_dask.cli.common import Command, Group, echo, explicit_parameters, options

PLACEHOLDER = "/shared/me/largek"
"""Folder used in the output of ``--print`` without ``--home``."""
SHORTEST = 15 * 60
"""Minimum time limit in seconds; workers end up to nine minutes before the limit."""
COUNT = click.IntRange(min=1)


def size(value: str) -> int:
    """Convert a size such as "64GiB" to MiB; "64G" means the same, as in SLURM."""
    from dask.utils import parse_bytes

    try:
        return int(parse_bytes(re.sub(r"(?i)(?<=[kmgt])$", "iB", value))) >> 20
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def seconds(value: str) -> int:
    from largek_dask.driver.stopping import parse_duration

    time = int(parse_duration(value, "--time"))
    if time < SHORTEST:
        raise click.BadParameter(
            f"a time limit of {value!r} is too short; give at least {SHORTEST} s"
        )
    return time


def folder(value: str) -> str:
    """Check that a path is absolute and valid in scripts and job names."""
    if not re.fullmatch(r"/[\w./+@%:=-]*", value):
        raise click.BadParameter(
            f"{value!r} is not a valid path: give an absolute path of letters, digits "
            "and . _ / + @ : = -"
        )
    return value.rstrip("/") or value


@click.group(cls=Group)
def cluster() -> None:
    """Run a scheduler and its workers on an HPC cluster."""


def _option(name: str, kind: Any, metavar: str, default: str | None, help: str) -> Any:
    return click.option(
        f"--{name}", type=kind, metavar=metavar, default=default, show_default=True, help=help
    )


layout = options(
    _option("workers", COUNT, "N", "16", "Number of workers."),
    _option("cpus", COUNT, "N", "8", "Threads per worker."),
    _option("mem", size, "SIZE", "64G", "Memory per worker."),
    _option("time", seconds, "TIME", "12h",
            "Time limit of SLURM jobs, such as 12h; SLURM then requeues the jobs."),
    _option("partition", str, "P", None, "SLURM partition; by default, the site's default."),
    _option("scheduler-partition", str, "P", None,
            "SLURM partition of the scheduler; by default, that of the workers."),
    _option("scheduler-mem", size, "SIZE", "8G",
            "Memory of the scheduler, which needs 4 GB plus two models per running job."),
    _option("scheduler-cpus", COUNT, "N", "2",
            "Threads of the scheduler, which computes the first steps of a fit."),
    _option("dashboard-address", str, "[HOST]:PORT", "127.0.0.1:0",
            "Address of the dashboard, which has no login; :8787 opens it to everyone."),
    _option("interface", str, "NAME", None, "Network interface of the nodes, such as ib0."),
    click.option("--insecure", is_flag=True,
                 help="Do not use TLS: everyone on the network of the nodes can run code as you."),
    click.option("--sbatch", multiple=True, metavar="OPTION",
                 help="Additional sbatch option, such as --constraint=icelake; may be repeated."),
)  # fmt: skip
"""Options of the SLURM scripts."""


@cluster.command(
    cls=Command,
    example="largek cluster slurm --home /shared/me/largek --workers 16 --cpus 8 --mem 64G "
    "--time 12h --submit",
)
@click.option(
    "--home",
    type=folder,
    metavar="DIR",
    help="Folder for jobs, logs and kernels: an absolute path that all nodes can access.",
)
@click.option("--submit", is_flag=True, help="Write the files into HOME and submit both jobs.")
@click.option("--print", "only_print", is_flag=True, help="Print the files, for editing.")
@click.option(
    "--scale", type=COUNT, metavar="N", help="Submit or cancel workers until there are N."
)
@click.option(
    "--stop",
    is_flag=True,
    help="Cancel scheduler and workers after jobs write checkpoints; --submit resumes the jobs.",
)
@layout
def slurm(
    home: str | None, submit: bool, only_print: bool, scale: int | None, stop: bool, **given: Any
) -> None:
    """Run a scheduler and its workers as SLURM jobs.

    The cluster can run for days: SLURM requeues the scheduler and workers after preemption or at
    the time limit. Clustering jobs then resume from their last checkpoints, with bit-identical
    results.
    """
    from largek_dask.cli.slurm import Slurm, render

    actions = {"submit", "only_print", "scale", "stop"} & set(explicit_parameters())
    if len(actions) != 1:
        raise click.UsageError("give exactly one of --submit, --print, --scale N and --stop")
    if only_print:
        texts = render({"home": home or PLACEHOLDER, **given})
        echo({"files": texts}, [f"### {name}\n{text}" for name, text in texts.items()])
        return
    if home is None:
        raise click.UsageError("give --home DIR, a folder that all nodes can access")
    queue = Slurm(home)
    if submit:
        _submit(queue, {"home": home, **given})
    elif wrong := set(explicit_parameters()) & set(given):
        raise click.UsageError(f"--{min(wrong).replace('_', '-')} requires --submit or --print")
    elif scale is not None:
        before, changed = queue.scale(scale)
        line = f"Worker jobs before: {before}. Submitted or cancelled: {', '.join(changed)}."
        echo({"before": before, "changed": changed}, [line])
    else:
        stopped = queue.stop()
        echo({"cancelled": stopped}, [f"Cancelled: {', '.join(stopped) or 'nothing'}."])


def _submit(queue: Any, files: dict[str, Any]) -> None:
    from largek_dask.cli.slurm import make_certificate

    home = files["home"]
    queue.check_empty()
    if files["insecure"]:
        click.echo(
            "Warning: --insecure disables TLS, and Dask has no passwords. Everyone on the network "
            "of the nodes can run code as you.",
            err=True,
        )
    else:
        make_certificate(home)
    scheduler, workers = queue.submit(files)
    connect = f"{home}/jobs/scheduler.json"
    lines = [
        f"Scheduler: job {scheduler}. Workers: job {workers}, an array of {files['workers']}.",
        f'In Python: lk.connect("{connect}")',
        f"In a shell: export DASK_SCHEDULER_ADDRESS={connect}",
    ]
    echo({"scheduler": scheduler, "workers": workers, "connect": connect}, lines)
