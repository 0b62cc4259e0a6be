"""``largek coreset``: a few weighted rows that stand for all."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import (
    Command,
    connected,
    emit,
    key_values,
    option_scheduler,
    option_source,
    option_storage,
    output,
)
from largek_dask.driver.formatting import human_bytes, human_seconds

if TYPE_CHECKING:
    from largek_dask.data.missing_chunks import Missing

__all__ = ["coreset"]


@click.command(
    cls=Command,
    short_help="Draw a few weighted rows that stand for all.",
    example="largek coreset rows.zarr coreset.zarr --rows 65536 --seed 0",
)
@click.argument("data")
@click.argument("out", metavar="OUT.zarr")
@click.option(
    "--rows", "n", type=click.IntRange(min=1), required=True, metavar="N", help="Rows to draw."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="S")
@click.option("--uniform", is_flag=True, help="Draw by weight alone: a plain sample.")
@click.option("--sample-weight", metavar="URL", help="Weights of the rows, one number each.")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@option_scheduler
@option_source
@option_storage
def coreset(
    data: str,
    out: str,
    n: int,
    seed: int,
    uniform: bool,
    sample_weight: str | None,
    force: bool,
    scheduler: str | None,
    component: str | None,
    missing: Missing,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Write N rows of DATA with weights such that sums over them are about those over all rows.

    Half are drawn by weight, half by weight times squared distance to the mean (a lightweight
    coreset). All commands read OUT with its weights.
    """
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.parts.coresets import draw_coreset
    from largek_dask.data.sources import open_rows
    from largek_dask.data.store_writer import refuse_existing, refuse_file, write_weighted_rows
    from largek_dask.driver.fit import open_passes
    from largek_dask.errors import DataError

    begun = perf_counter()
    rows = open_rows(
        data,
        sample_weight=sample_weight,
        component=component,
        storage_options=storage_options,
        missing=missing,
    )
    if rows.is_sparse:
        raise DataError(f"{data} holds sparse rows, and a coreset is written of dense rows only.")
    url, out_options = output(out, data, storage_options)
    # Before all rows are read.
    refuse_file(url)
    refuse_existing(url, out_options, force=force)
    with (
        connected(scheduler, storage_options) as client,
        open_passes(rows, client=client) as passes,
    ):
        drawn = draw_coreset(passes, Rng(seed), n, uniform=uniform)
        x, weight, _ = passes.take(drawn.rows)
        statistics = passes.statistics
    weights = drawn.factors if weight is None else weight * drawn.factors
    notes = {"kind": "coreset", "n_draws": n, "seed": seed, "uniform": uniform}
    write_weighted_rows(
        url,
        x,
        weights,
        drawn.rows,
        notes,
        feature_names=rows.feature_names,
        storage_options=out_options,
        force=force,
    )
    seconds = perf_counter() - begun
    told = {
        "out": out,
        **notes,
        "n_rows": len(x),
        "n_features": rows.n_features,
        "dtype": str(x.dtype),
        "n_rows_of_data": statistics.n_rows,
        "weight": float(weights.sum()),
        "weight_of_data": statistics.total_weight,
        "as_good_as": float(weights.sum() ** 2 / (weights**2).sum()),
        "seconds": seconds,
    }
    emit(told, as_json, lambda: key_values(_shown(told, x.nbytes)))


def _shown(told: dict[str, Any], n_bytes: int) -> dict[str, str]:
    how = "weight" if told["uniform"] else "weight and distance to the mean"
    weight, of = told["weight"], told["weight_of_data"]
    return {
        "written": told["out"],
        "rows": f"{told['n_rows']:,} × {told['n_features']:,} {told['dtype']}, "
        f"{human_bytes(n_bytes)}",
        "drawn": f"{told['n_draws']:,} of {told['n_rows_of_data']:,} by {how}, "
        f"{told['n_draws'] - told['n_rows']:,} of them again",
        "weight": f"{weight:.6g}, of all rows {of:.6g} ({100 * (weight / of - 1):+.2f} %)",
        "as good as": f"{told['as_good_as']:,.0f} rows of equal weight",
        "time": human_seconds(told["seconds"]),
        "next": f"largek fit {told['out']} -k 256 --out run",
    }
