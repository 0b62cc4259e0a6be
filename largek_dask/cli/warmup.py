"""``largek warmup``: compile beforehand what usual fits need."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from largek_dask.cli.common import (
    Command,
    connected,
    emit,
    key_values,
    option_scheduler,
    option_storage,
)

__all__ = ["warmup"]


@click.command(
    cls=Command,
    short_help="Compile beforehand what usual fits need, here or on all workers.",
    example="largek warmup --scheduler tcp://127.0.0.1:8786",
)
@option_scheduler
@click.option(
    "--clusters",
    "n_clusters",
    type=click.IntRange(min=1),
    metavar="K",
    help="The most clusters that fits are going to have: from 1,536 on, some more kernels.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes that compile at the same time on a machine.  [all cores, at most 4]",
)
@option_storage
def warmup(
    scheduler: str | None,
    n_clusters: int | None,
    processes: int | None,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Compile beforehand what usual fits need: in an image, or when a cluster starts.

    Without it the first fit of every kind compiles for some seconds. The second time there is
    nothing to do.
    """
    from largek_dask.estimators.warmup import warmup as warm

    def say(text: str) -> None:
        if not as_json:
            click.echo(text, err=True)

    with connected(scheduler, storage_options) as client:
        machines = warm(client, n_clusters=n_clusters, n_processes=processes, told=say)
    told = {
        "machines": [asdict(machine) for machine in machines],
        "kernels": sum(machine.kernels for machine in machines),
        "seconds": max(machine.seconds for machine in machines),
    }
    emit(
        told,
        as_json,
        lambda: key_values(
            {f"{m.host} ({m.folder})": m.words().partition(": ")[2] for m in machines},
            title="largek warmup",
        ),
    )
