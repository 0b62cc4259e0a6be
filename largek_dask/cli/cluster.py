"""``largek cluster slurm``: run a scheduler and workers as jobs of SLURM."""

from __future__ import annotations

import re
from typing import Any

import click

from largek_dask.cli.common import Command, Group, echo, explicit_parameters, options

PLACEHOLDER = "/shared/me/largek"
"""Folder that ``--print`` shows if there is no ``--home``."""
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
        raise click.BadParameter(f"{value!r} is too short; give at least {SHORTEST} s")
    return time


def folder(value: str) -> str:
    """Return an absolute path that is valid in scripts and in names of jobs."""
    if not re.fullmatch(r"/[\w./+@%:=-]*", value):
        raise click.BadParameter(
            f"{value!r} is not valid: give an absolute path of letters, digits and . _ / + @ : = -"
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
            "Time limit of SLURM's jobs, such as 12h; they are requeued after it."),
    _option("partition", str, "P", None, "Partition; the site's default if not given."),
    _option("scheduler-partition", str, "P", None, "Another partition for the scheduler."),
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
                 help="Further option of sbatch, such as --constraint=icelake; may be repeated."),
)  # fmt: skip
"""Options that determine the content of the files."""


@cluster.command(
    cls=Command,
    example="largek cluster slurm --home /shared/me/largek --workers 16 --cpus 8 --mem 64G "
    "--time 12h --submit",
)
@click.option(
    "--home",
    type=folder,
    metavar="DIR",
    help="Your folder for jobs, logs and kernels, an absolute path that all nodes can access.",
)
@click.option("--submit", is_flag=True, help="Write the files into HOME and submit both jobs.")
@click.option("--print", "only_print", is_flag=True, help="Print the files, so you can edit them.")
@click.option(
    "--scale", type=COUNT, metavar="N", help="Submit or cancel workers until there are N."
)
@click.option(
    "--stop",
    is_flag=True,
    help="Cancel scheduler and workers once jobs have checkpoints; --submit resumes the jobs.",
)
@layout
def slurm(
    home: str | None, submit: bool, only_print: bool, scale: int | None, stop: bool, **given: Any
) -> None:
    """Run a scheduler and its workers as jobs of SLURM.

    They can run for days: SLURM requeues them when they are preempted or reach their time limit,
    and clustering jobs resume from their last checkpoints, with the same results.
    """
    from largek_dask.cli.slurm import Slurm, render

    actions = {"submit", "only_print", "scale", "stop"} & set(explicit_parameters())
    if len(actions) != 1:
        raise click.UsageError("give one of --submit, --print, --scale N and --stop")
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
        raise click.UsageError(f"--{min(wrong).replace('_', '-')} is for --submit or --print")
    elif scale is not None:
        before, changed = queue.scale(scale)
        line = f"Jobs of workers: {before} before; submitted or cancelled: {', '.join(changed)}."
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
            "Warning: --insecure: there is no TLS, and Dask has no passwords. Everyone with an "
            "account on the network of the nodes can run code as you.",
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
