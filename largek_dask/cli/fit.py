"""``largek fit``: cluster a data set, and write all output to one folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import (
    DataOptions,
    command,
    connected,
    emit,
    option_scheduler,
    option_threads,
    output,
    wants_json,
    with_data_options,
)
from largek_dask.cli.options import fit_options, option_clusters, with_algorithm

if TYPE_CHECKING:
    from largek_dask.data.rows import Rows
    from largek_dask.driver.fit import FitResult
    from largek_dask.driver.storage import Folder
    from largek_dask.model import Model


@command("largek fit features.zarr -k 1000 --out run --max-time 30m")
@click.argument("data")
@option_clusters(required=True)
@click.option("--out", metavar="DIR", help="Folder for the model, labels, checkpoints and events.")
@fit_options
@option_threads
@click.option("--force", is_flag=True, help="Start again: remove the previous fit in DIR.")
@click.option("--plan", is_flag=True, help="Only estimate time and memory; do not fit.")
@option_scheduler
@with_data_options
def fit(
    data: str,
    out: str | None,
    sample_weight: str | None,
    labels: bool,
    threads: int | None,
    force: bool,
    plan: bool,
    scheduler: str | None,
    data_options: DataOptions,
    **given: Any,
) -> None:
    """Cluster DATA (a Zarr, Parquet or npy URL) into K clusters.

    Ctrl-C writes a checkpoint. To resume from the last checkpoint, run the same command again.
    """
    from largek_dask.driver.checkpoint import check_output_folder
    from largek_dask.driver.events import ProgressLine
    from largek_dask.driver.options import FitOptions
    from largek_dask.driver.starts import keep_last_checkpoints
    from largek_dask.driver.storage import Folder
    from largek_dask.service.runner import fit_into
    from largek_dask.service.store import JOB_FILES

    if out is None and not plan:
        raise click.UsageError("give --out DIR to fit, or --plan to estimate time and memory")
    options = FitOptions(**with_algorithm(given))
    # Do not count missing chunks for a plan, because rows may be written later.
    rows = data_options.open(data, sample_weight, count_missing=not plan)
    if plan:
        from largek_dask.cli.plan import machines_of, make_plan

        with connected(scheduler, data_options.storage_options) as client:
            emit(make_plan(rows, options, machines_of(threads, client)))
        return
    assert out is not None
    folder = Folder(*output(out, data, data_options.storage_options))
    if force:
        for name in JOB_FILES:
            folder.remove(name)
    else:
        check_output_folder(folder, "Choose another --out, or --force.")
    with connected(scheduler, data_options.storage_options) as client:
        model, result = fit_into(
            folder,
            rows,
            options,
            client=client,
            n_threads=threads,
            labels=labels,
            events=() if wants_json() else (ProgressLine(),),
        )
    if result.stop_reason != "interrupted":
        keep_last_checkpoints(folder)
    payload = _payload(folder, rows, options.mixture, model, result)
    emit(payload, then=f"largek report {folder.url}")
    if result.stop_reason == "interrupted":
        raise KeyboardInterrupt


def _payload(
    folder: Folder, rows: Rows, mixture: str | None, model: Model, result: FitResult
) -> dict[str, Any]:
    from largek_dask.service.store import LABELS, MODEL

    return {
        "out": folder.url,
        "model": f"{folder.url}/{MODEL}",
        "labels": f"{folder.url}/{LABELS}" if folder.exists(LABELS) else None,
        "n_rows": rows.n_rows,
        "n_features": rows.n_features,
        "n_clusters": model.n_clusters,
        **({} if mixture is None else {"mixture": mixture}),
        "n_iter": result.n_iter,
        "stop_reason": result.stop_reason,
        result.objective.name: result.value,
        **model.fit_figures(),
        "seconds": result.seconds,
        "digest": model.digest(),
    }
