"""The command line: ``largek demo``, ``fit``, ``submit`` and all others.

Command modules import nothing heavy at their top level, so that ``largek --help`` answers at
once; each command imports what it needs when it runs.
"""

from __future__ import annotations

import click

from largek_dask.cli.cluster import cluster as cluster_command
from largek_dask.cli.common import Group
from largek_dask.cli.coreset import coreset as coreset_command
from largek_dask.cli.crew import workers as workers_command
from largek_dask.cli.delete import delete as delete_command
from largek_dask.cli.demo import demo as demo_command
from largek_dask.cli.doctor import doctor as doctor_command
from largek_dask.cli.elbow import elbow as elbow_command
from largek_dask.cli.fit import fit as fit_command
from largek_dask.cli.ingest import ingest as ingest_command
from largek_dask.cli.jobs import cancel as cancel_command
from largek_dask.cli.jobs import jobs as jobs_command
from largek_dask.cli.jobs import logs as logs_command
from largek_dask.cli.jobs import result as result_command
from largek_dask.cli.jobs import submit as submit_command
from largek_dask.cli.jobs import watch as watch_command
from largek_dask.cli.path import path as path_command
from largek_dask.cli.plot import plot as plot_command
from largek_dask.cli.predict import predict as predict_command
from largek_dask.cli.predict import score as score_command
from largek_dask.cli.report import report as report_command
from largek_dask.cli.warmup import warmup as warmup_command
from largek_dask.version import __version__

__all__ = ["main"]


@click.group(
    "largek",
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 cancelled.",
)
@click.version_option(__version__, "--version", "-V", prog_name="largek")
def main() -> None:
    """Cluster large tables of numbers, here or on a Dask cluster, with the same bits everywhere.

    Begin with `largek demo`.
    """


main.add_sections(
    {
        "Begin": (demo_command, doctor_command, warmup_command),
        "Data": (ingest_command, coreset_command),
        "Fits": (
            fit_command,
            predict_command,
            score_command,
            plot_command,
            report_command,
            path_command,
            elbow_command,
        ),
        "Jobs": (
            submit_command,
            jobs_command,
            watch_command,
            cancel_command,
            logs_command,
            result_command,
            delete_command,
        ),
        "Cluster": (workers_command, cluster_command),
    }
)
