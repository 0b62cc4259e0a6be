"""``largek warmup``: compile in advance."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from largek_dask.cli.common import (
    command,
    connected,
    emit,
    option_scheduler,
    option_storage,
)

__all__ = ["warmup"]


@command("largek warmup --scheduler tcp://127.0.0.1:8786")
@option_scheduler
@click.option(
    "--clusters",
    "n_clusters",
    type=click.IntRange(min=1),
    metavar="K",
    help="The most clusters that fits will have: more kernels from 1,536 on.",
)
@option_storage
def warmup(
    scheduler: str | None,
    n_clusters: int | None,
    storage_options: dict[str, Any] | None,
) -> None:
    """Compile in advance what usual fits need, here or on all workers.

    Use it in an image, or when a cluster starts: otherwise the first fit of every kind compiles for
    some seconds. The second time there is nothing to do.
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
