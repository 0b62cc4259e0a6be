"""``largek dedup``: find near-duplicate rows inside clusters."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import click

from largek_dask.cli.common import (
    DataOptions,
    command,
    connected,
    emit,
    option_scheduler,
    option_threads,
    output,
    with_data_options,
)
from largek_dask.cli.options import fit_option, option_clusters


@command("largek dedup embeddings.parquet --ids url --threshold 0.95 --out kept.parquet")
@click.argument("data")
@click.option(
    "--threshold", type=float, default=0.95, show_default=True, help="Minimum cosine similarity."
)
@click.option("--out", required=True, metavar="OUT", help="New .parquet or .csv file.")
@option_clusters(required=False)
@click.option("--model", metavar="MODEL", help="Model with the clusters, or folder of a fit.")
@click.option(
    "--order",
    type=click.Choice(["farthest", "nearest", "id"]),
    default="farthest",
    show_default=True,
    help="Which of several similar rows to keep: the one farthest from the centre, the one nearest "
    "to the centre, or the first one (id).",
)
@click.option("--ids", metavar="NAME", help="Column of ids.  [row numbers]")
@fit_option("seed")
@option_threads
@option_scheduler
@with_data_options
def dedup(
    data: str,
    out: str,
    model: str | None,
    seed: int,
    threads: int | None,
    scheduler: str | None,
    data_options: DataOptions,
    **given: Any,
) -> None:
    """Find near-duplicate rows inside clusters.

    The file OUT has the columns id, kept, duplicate_of (the most similar earlier row) and
    similarity. Without --model, the rows are clustered first, by default into n / 1000 clusters.
    """
    from largek_dask.model import load_model
    from largek_dask.selection.duplicates import near_duplicates

    begun, options = perf_counter(), data_options.storage_options
    loaded = model and load_model(model, storage_options=output(model, data, options)[1])
    with connected(scheduler, options) as client:
        found = near_duplicates(
            data,
            model=loaded,
            out=output(out, data, options)[0],
            client=client,
            n_threads=threads,
            random_state=seed,
            **given,
            **data_options._asdict(),
        )
    n, k = len(found.kept), found.model.n_clusters
    numbers = {"n_rows": n, "n_kept": found.n_kept, "n_removed": n - found.n_kept, "n_clusters": k}
    emit({"out": out, **numbers, "seconds": perf_counter() - begun})
