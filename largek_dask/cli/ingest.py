"""``largek ingest`` and ``largek coreset``: write data sets as Zarr stores."""

from __future__ import annotations

import csv
from time import perf_counter
from typing import Any

import click

from largek_dask.cli.common import (
    DataOptions,
    command,
    connected,
    emit,
    option_force,
    option_scheduler,
    option_weight,
    output,
    wants_json,
    with_data_options,
)


def _names(_context: click.Context, _option: click.Parameter, value: str | None) -> Any:
    """Split names at commas; a name that contains a comma must be in double quotes."""
    return None if value is None else next(csv.reader([value])) or [""]


@command("largek ingest features.npy features.zarr")
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.argument("out", metavar="OUT.zarr")
@click.option(
    "--columns",
    metavar="NAME,...",
    callback=_names,
    help="Use only these columns, in this order; unnamed columns are numbered from 0.",
)
@click.option("--drop", metavar="NAME,...", callback=_names, help="Exclude these columns.")
@click.option(
    "--header/--no-header",
    default=None,
    help="Whether the first line of CSV files contains column names.  [default: detected]",
)
@click.option("--chunk-rows", type=click.IntRange(min=1), help="Rows per chunk.  [default: 65,536]")
@click.option("--dtype", metavar="TYPE", help="Data type of the store, e.g. float32.")
@click.option("--shuffle", type=int, metavar="SEED", help="Store the rows in random order.")
@option_force
@with_data_options
def ingest(sources: tuple[str, ...], out: str, data_options: DataOptions, **asked: Any) -> None:
    """Convert CSV, Parquet, npy, HDF5 or svmlight to a Zarr store.

    SRC may also be a Zarr array. If SRC is several files, a folder or a pattern, all files must be
    CSV or Parquet and have the same columns. Column names are stored, and models select columns by
    name.
    """
    from largek_dask.data.ingest import ingest as write

    begun = perf_counter()
    data = sources[0] if len(sources) == 1 else list(sources)
    rows = write(data, out, progress=not wants_json(), **asked, **data_options._asdict())
    payload = {
        "out": out,
        "n_rows": rows.n_rows,
        "n_features": rows.n_features,
        "columns": rows.feature_names,
        "dtype": str(rows.dtype),
        "bytes": rows.nbytes,
        "n_chunks": rows.n_chunks,
        "n_bad": (rows.stored_statistics() or {}).get("n_bad", 0),
        "seconds": perf_counter() - begun,
    }
    emit(payload, then=f"largek fit {out} -k 256 --out run")


@command("largek coreset rows.zarr coreset.zarr --rows 65536 --seed 0")
@click.argument("data")
@click.argument("out", metavar="OUT.zarr")
@click.option(
    "--rows",
    "n",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="Number of rows to draw.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="S")
@click.option("--uniform", is_flag=True, help="Draw all rows in proportion to weight only.")
@option_weight
@option_force
@option_scheduler
@with_data_options
def coreset(
    data: str,
    out: str,
    n: int,
    seed: int,
    uniform: bool,
    sample_weight: str | None,
    force: bool,
    scheduler: str | None,
    data_options: DataOptions,
) -> None:
    """Draw a small weighted sample that represents all rows.

    Weighted sums over the sample approximate sums over all rows of DATA (a lightweight coreset).
    Half of the rows are drawn in proportion to their weight, and half in proportion to weight times
    squared distance to the mean. All commands use the weights stored in OUT.
    """
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.starts.coresets import draw_coreset
    from largek_dask.data.store_writer import check_output, write_weighted_rows
    from largek_dask.driver.fit import open_passes
    from largek_dask.errors import DataError

    begun = perf_counter()
    rows = data_options.open(data, sample_weight)
    if rows.is_sparse:
        raise DataError(f"{data} has sparse rows; a coreset can only be drawn from dense rows.")
    url, storage_options = output(out, data, data_options.storage_options)
    # Check the output before reading all rows.
    check_output(url, storage_options, force=force)
    with (
        connected(scheduler, data_options.storage_options) as client,
        open_passes(rows, client=client) as passes,
    ):
        drawn = draw_coreset(passes, Rng(seed), n, uniform=uniform)
        x, weight, _ = passes.take(drawn.rows)
        statistics = passes.statistics
    weights = drawn.factors if weight is None else weight * drawn.factors
    notes = {"kind": "coreset", "n_draws": n, "seed": seed, "uniform": uniform}
    names = rows.feature_names
    more: Any = {"feature_names": names, "storage_options": storage_options, "force": force}
    write_weighted_rows(url, x, weights, drawn.rows, notes, **more)
    total, of = float(weights.sum()), statistics.total_weight
    payload = {
        "out": out,
        **notes,
        "n_rows": len(x),
        "n_features": rows.n_features,
        "dtype": str(x.dtype),
        "n_rows_of_data": statistics.n_rows,
        "weight": total,
        "weight_of_data": of,
        "as_good_as": float(total**2 / (weights**2).sum()),
        "seconds": perf_counter() - begun,
    }
    emit(payload, then=f"largek fit {out} -k 256 --out run")
