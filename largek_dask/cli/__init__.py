"""The command line: ``largek demo``, ``fit``, ``submit`` and all other commands.

Imports at the top of command modules are light, so that ``largek --help`` answers at once; each
command imports other modules when it runs.
"""

from __future__ import annotations

import click

from largek_dask.cli import (
    cluster,
    demo,
    doctor,
    elbow,
    export,
    fit,
    ingest,
    jobs,
    predict,
    report,
    warmup,
)
from largek_dask.cli.common import Group
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

    Start with `largek demo`.
    """


main.add_sections(
    {
        "Begin": (demo.demo, doctor.doctor, warmup.warmup),
        "Data": (ingest.ingest, ingest.coreset),
        "Fits": (
            fit.fit,
            predict.predict,
            predict.score,
            report.report,
            export.export,
            elbow.elbow,
        ),
        "Jobs": (
            jobs.submit,
            jobs.jobs,
            jobs.watch,
            jobs.cancel,
            jobs.logs,
            jobs.result,
            jobs.delete,
        ),
        "Cluster": (cluster.cluster,),
    }
)
