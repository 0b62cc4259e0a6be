"""The command line: ``largek demo``, ``fit``, ``submit`` and all other commands.

Command modules import only light modules at the top, so that ``largek --help`` starts fast;
commands import other modules when they run.
"""

from __future__ import annotations

import click

from largek_dask.cli import (
    cluster,
    dedup,
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
    """Cluster large tables of numbers, locally or on a Dask cluster, with bit-identical results.

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
            dedup.dedup,
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
