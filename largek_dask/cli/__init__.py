"""The command line: ``largek demo | doctor | ingest | fit | predict | score | plot``.

Command modules import nothing heavy at their top level, so that ``largek --help`` answers at
once; each command imports what it needs when it runs.
"""

from __future__ import annotations

import click

from largek_dask import __version__
from largek_dask.cli.common import Group
from largek_dask.cli.demo import demo
from largek_dask.cli.doctor import doctor
from largek_dask.cli.fit import fit
from largek_dask.cli.ingest import ingest
from largek_dask.cli.plot import plot
from largek_dask.cli.predict import predict, score

__all__ = ["main"]


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 cancelled.",
)
@click.version_option(__version__, "--version", "-V", prog_name="largek")
def main() -> None:
    """Cluster large tables of numbers, here or on a Dask cluster, with the same bits everywhere.

    Begin with `largek demo`.
    """


for command in (demo, doctor, ingest, fit, predict, score, plot):
    main.add_command(command)
