"""``largek ingest``: turn what there is into a store that reads fast."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import Command, emit, key_values, option_source, option_storage
from largek_dask.driver.formatting import count_of, human_bytes, human_seconds

if TYPE_CHECKING:
    from largek_dask.data.missing_chunks import Missing

__all__ = ["ingest"]


def _names(_context: click.Context, _option: click.Parameter, value: str | None) -> Any:
    """Names between commas; one with a comma stands in double quotes."""
    return None if value is None else next(csv.reader([value])) or [""]


def _shown(names: Sequence[str] | None, most: int = 8) -> str:
    if names is None:
        return "without names"
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


@click.command(
    cls=Command,
    short_help="Turn npy, npz, CSV, Parquet, HDF5, svmlight into a store that reads fast.",
    example="largek ingest features.npy features.zarr",
)
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.argument("out", metavar="OUT.zarr")
@click.option(
    "--columns",
    metavar="NAME,...",
    callback=_names,
    help="Take these columns, in this order. Where columns have no names they are called by their "
    "numbers, from 0 on.",
)
@click.option("--drop", metavar="NAME,...", callback=_names, help="Leave these columns out.")
@click.option(
    "--header/--no-header",
    default=None,
    help="Whether the first line of CSV files names the columns.  [as it looks]",
)
@click.option("--chunk-rows", type=click.IntRange(min=1), help="Rows of a chunk.  [65,536]")
@click.option("--dtype", metavar="TYPE", help="Store as this type, e.g. float32.")
@click.option("--shuffle", type=int, metavar="SEED", help="Store the rows permuted.")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@option_source
@option_storage
def ingest(
    sources: tuple[str, ...],
    out: str,
    columns: list[str] | None,
    drop: list[str] | None,
    header: bool | None,
    chunk_rows: int | None,
    dtype: str | None,
    shuffle: int | None,
    force: bool,
    component: str | None,
    missing: Missing,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Write SRC (npy, npz, CSV, Parquet, HDF5, svmlight, Zarr) as a Zarr store that reads fast.

    Several SRC, a folder or a pattern are CSV or Parquet files with the same columns. Names of
    columns are kept: models know them, and take their columns by name.
    """
    from largek_dask.data.ingest import ingest as write

    begun = perf_counter()
    rows = write(
        sources[0] if len(sources) == 1 else list(sources),
        out,
        columns=columns,
        drop=drop,
        header=header,
        chunk_rows=chunk_rows,
        dtype=dtype,
        shuffle=shuffle,
        force=force,
        storage_options=storage_options,
        component=component,
        missing=missing,
        progress=not as_json,
    )
    seconds = perf_counter() - begun
    statistics = rows.stored_statistics() or {}
    told = {
        "out": out,
        "n_rows": rows.n_rows,
        "n_features": rows.n_features,
        "columns": rows.feature_names,
        "dtype": str(rows.dtype),
        "n_chunks": rows.n_chunks,
        "n_bad": statistics.get("n_bad", 0),
        "seconds": seconds,
    }
    emit(
        told,
        as_json,
        lambda: key_values(
            {
                "written": out,
                "rows": f"{rows.n_rows:,} × {rows.n_features:,} {rows.dtype}",
                "columns": _shown(rows.feature_names),
                "size": f"{human_bytes(rows.nbytes)} in {count_of(rows.n_chunks, 'chunk')}",
                "bad rows": f"{told['n_bad']:,}",
                "time": human_seconds(seconds),
                "next": f"largek fit {out} -k 256 --out run",
            }
        ),
    )
