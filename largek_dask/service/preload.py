"""``dask scheduler --preload largek_dask.service.preload``: jobs live on this scheduler."""

from __future__ import annotations

from typing import Any

import click

from largek_dask.service.plugin import JobsPlugin

__all__ = ["dask_setup"]


@click.command()
@click.option(
    "--largek-store",
    metavar="URL",
    help="Folder where jobs are kept, so that a restarted scheduler goes on with them.",
)
def dask_setup(scheduler: Any, largek_store: str | None) -> None:
    """Called by Dask with the scheduler that is starting."""
    scheduler.add_plugin(JobsPlugin(largek_store))
