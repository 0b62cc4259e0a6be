"""``largek warmup``: compile kernels in advance."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from largek_dask.cli.common import command, connected, emit, option_scheduler, option_storage


@command("largek warmup --scheduler tcp://127.0.0.1:8786")
@option_scheduler
@click.option(
    "--clusters",
    "n_clusters",
    type=click.IntRange(min=1),
    metavar="K",
    help="Maximum number of clusters in later fits; 1,536 or more need additional kernels.",
)
@option_storage
def warmup(
    scheduler: str | None, n_clusters: int | None, storage_options: dict[str, Any] | None
) -> None:
    """Compile common kernels in advance, locally or on all workers.

    Run this command when you build an image or start a cluster: otherwise, the first fit of each
    kind spends some seconds compiling. Compiled kernels are cached, so later calls return quickly.
    """
    from largek_dask.estimators.warmup import warmup as warm

    with connected(scheduler, storage_options) as client:
        machines = warm(client, n_clusters=n_clusters)
    payload = {
        "machines": [asdict(machine) for machine in machines],
        "kernels": sum(machine.kernels for machine in machines),
        "seconds": max(machine.seconds for machine in machines),
    }
    shown = {f"{m.host} ({m.folder})": m.words().partition(": ")[2] for m in machines}
    emit(payload, lambda: shown)
