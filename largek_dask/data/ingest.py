"""Convert any table to a Zarr store that can be read at the speed of the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.data.columns import Selection
from largek_dask.data.rows import Rows, native_dtype
from largek_dask.data.shuffle import BUCKET_BYTES, MAX_BUCKETS, n_buckets_for, shuffled
from largek_dask.data.sources import open_rows
from largek_dask.data.store_writer import CSRWriter, StoreWriter, check_output, unfinished
from largek_dask.data.stores import is_local
from largek_dask.data.tables import RowStream, open_table
from largek_dask.errors import OutputError, ParameterError, without_causes
from largek_dask.kernels.blocks import dense_rows
from largek_dask.kernels.exact.statistics import RowScan
from largek_dask.kernels.rows import compute_dtype
from largek_dask.version import __version__

MAX_CHUNK_BYTES = 64 << 20
INNER_ROWS = 4_096
INNER_BYTES = 1 << 20
"""Maximum size in bytes of an inner chunk, which is the smallest readable part of a shard."""
GROUPED = 16
"""A large shard has a multiple of this number of inner chunks, so that groups of inner chunks
divide a shard evenly."""
SCAN_VALUES = 1 << 18
SPARSE_PIECE_BYTES = 32 << 20


@without_causes
def ingest(
    source: Any,
    out: str | os.PathLike[str],
    *,
    chunk_rows: int | None = None,
    dtype: Any = None,
    shuffle: int | None = None,
    progress: bool = True,
    force: bool = False,
    column: str | None = None,
    columns: str | Iterable[str] | None = None,
    drop: str | Iterable[str] | None = None,
    header: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Rows:
    """Convert a table to a Zarr store that is optimised for clustering.

    The store is a Zarr v3 array with chunks of full rows, checksums, column names, and statistics,
    which save a scan of the rows in each fit. The store cannot be opened before it is complete, and
    is removed if the call fails. Sparse rows are stored as a CSR group, as in AnnData, or as dense
    rows if ``shuffle`` is given.

    Parameters
    ----------
    source : object
        CSV, HDF5 or svmlight file; CSV files with the same columns, given as a folder, a pattern
        or a list of paths; an iterator of batches (arrays, DataFrames, Arrow batches); or anything
        that :func:`~largek_dask.open_rows` accepts.
    out : str or path
        URL or path of the new store.
    chunk_rows : int, optional
        Number of rows per chunk; for sparse rows, number of rows that are read together. By default
        65,536, or fewer if a chunk would exceed 64 MB.
    dtype : numpy dtype, optional
        Type of the stored numbers; by default the type of the source (float64 for CSV files). With
        float32, fits take about half as long.
    shuffle : int, optional
        Seed of a random permutation of the rows, so that any range of rows is a random sample.
        Needs temporary disk space of the size of the data, and memory of 1/256 of it (or 64 MB).
    progress : bool
        Show a progress bar on stderr.
    force : bool
        Replace an existing Zarr store at ``out``.
    column : str, optional
        Array, dataset or column inside the source.
    columns, drop : str or sequence of str, optional
        Names of the columns to keep, in this order, or to drop; numbers if columns have no names.
    header : bool, optional
        True if the first line of a CSV file names the columns; by default, this is detected.
    storage_options : mapping, optional
        Passed to fsspec for the source and the output.

    Returns
    -------
    Rows
        Rows of the new store. Row weights are not part of a store; keep them separately.

    Raises
    ------
    OutputError
        ``out`` exists or cannot be written; checked before reading.
    DataError, ParameterError, MissingDependencyError
        The source is damaged or not a table of numbers, or a column or a package is missing.

    Warns
    -----
    DataWarning
        An index that pandas wrote to Parquet is dropped.
    """
    target = check_output(out, storage_options, force=force)
    for name, value, least in (("shuffle", shuffle, 0), ("chunk_rows", chunk_rows, 1)):
        if value is not None and value < least:
            raise ParameterError(f"{name}={value} must be an integer of at least {least}.")
    chosen = Selection.of(columns, drop)
    table = open_table(source, column, storage_options, chosen, header)
    _refuse_own_source(table.location, target)
    kind = _stored_dtype(table.dtype, dtype)
    with _progress_bar(progress) as bar:
        _write(table, target, kind, chunk_rows, shuffle, storage_options, bar)
    return open_rows(target, storage_options=storage_options)


def _write(
    table: RowStream,
    target: str,
    kind: np.dtype[Any],
    chunk_rows: int | None,
    shuffle: int | None,
    storage_options: Mapping[str, Any] | None,
    bar: Any,
) -> None:
    """Write rows and their statistics; sparse rows become a CSR group unless they are shuffled."""
    is_sparse = table.is_sparse and shuffle is None
    writer: CSRWriter | StoreWriter
    shape: dict[str, Any] = {"n_features": table.n_features, "dtype": kind}
    notes: dict[str, Any]
    if is_sparse:
        writer = CSRWriter(target, storage_options=storage_options, **shape)
        notes = {"chunk_rows": chunk_rows}
    else:
        writer = _dense_writer(table, target, chunk_rows, shuffle, storage_options, shape)
        notes = {"shuffle": shuffle}
    # Statistics of sparse rows are computed in the dtype in which the rows will be read.
    computed = compute_dtype(kind) if is_sparse else kind
    scan = RowScan(table.n_features, computed)
    with unfinished(target, storage_options):
        blocks = table.blocks() if is_sparse else _dense_blocks(table, kind)
        blocks = (_convert(block, kind) for block in blocks)
        if shuffle is not None:
            blocks = shuffled(
                _counted(blocks, bar, "shuffling", table.n_rows),
                seed=int(shuffle),
                n_buckets=n_buckets_for(_bytes_of(table, kind)),
                folder=os.path.dirname(target) if is_local(target) else None,
            )
        block: Any
        for block in _counted(blocks, bar, "writing", table.n_rows):
            _scan(scan, block.astype(computed, copy=False), writer.n_written)
            writer.append(block)
        if table.names is not None:
            notes["feature_names"] = list(table.names)
        statistics = scan.finish().to_dict()
        writer.finish({"version": __version__, "statistics": statistics, **notes})


def _dense_writer(
    table: RowStream,
    target: str,
    chunk_rows: int | None,
    shuffle: int | None,
    storage_options: Mapping[str, Any] | None,
    shape: dict[str, Any],
) -> StoreWriter:
    row_bytes = table.n_features * shape["dtype"].itemsize
    inner_rows = None
    if shuffle is not None:
        # Round down to a power of two.
        fitting = max(1, INNER_BYTES // row_bytes)
        inner_rows = min(INNER_ROWS, 1 << (fitting.bit_length() - 1))
    chunk_rows = _choose_chunk_rows(chunk_rows, row_bytes, table.n_rows, inner_rows)
    return StoreWriter(
        target,
        n_rows=table.n_rows,
        chunk_rows=chunk_rows,
        inner_rows=None if inner_rows is None else min(inner_rows, chunk_rows),
        storage_options=storage_options,
        **shape,
    )


def _dense_blocks(table: RowStream, dtype: np.dtype[Any]) -> Iterator[Any]:
    """Yield the table's blocks as dense arrays; sparse blocks are converted in pieces."""
    if not table.is_sparse:
        yield from table.blocks()
        return
    step = max(1, SPARSE_PIECE_BYTES // (table.n_features * dtype.itemsize))
    for block in table.blocks():
        for begin in range(0, len(block), step):
            yield dense_rows(block[begin : begin + step])


def _refuse_own_source(source: str | None, target: str) -> None:
    """Raise an error if the output is the source, contains the source or is inside the source."""
    if source is not None and (
        f"{source}/".startswith(f"{target}/") or f"{target}/".startswith(f"{source}/")
    ):
        raise OutputError(
            f"the output {target} would overwrite its source {source}; choose another output."
        )


def _stored_dtype(source: np.dtype[Any], wanted: Any) -> np.dtype[Any]:
    if wanted is None:
        return source
    try:
        kind = native_dtype(wanted, "dtype")
    except TypeError as error:
        raise ParameterError(
            f"dtype={wanted!r} is not a numpy dtype: use float32 or float64."
        ) from error
    if not np.can_cast(source, kind, "same_kind"):
        raise ParameterError(
            f"dtype={kind} cannot represent {source}, the dtype of the source; use float32 or "
            "float64."
        )
    return kind


def _choose_chunk_rows(
    wanted: int | None, row_bytes: int, n_rows: int | None, inner_rows: int | None
) -> int:
    if wanted is None:
        fitting = max(1, MAX_CHUNK_BYTES // row_bytes)
        wanted = min(int(config.get("data.ingest-chunk-rows")), fitting)
        if n_rows:
            # Use chunks of equal size, so that workers get equal parts.
            even = -(-n_rows // -(-n_rows // wanted))
            wanted = min(wanted, -(-even // INNER_ROWS) * INNER_ROWS)
    if n_rows is not None:
        wanted = min(wanted, max(1, n_rows))
    if inner_rows is not None and wanted > inner_rows:
        wanted -= wanted % (inner_rows * (GROUPED if wanted >= inner_rows * GROUPED else 1))
    return wanted


def _convert(block: Any, dtype: np.dtype[Any]) -> Any:
    # float64 values too large for float32 become inf, and their rows count as bad rows.
    with np.errstate(over="ignore"):
        return block.astype(dtype, copy=False)


def _scan(scan: RowScan, block: Any, start: int) -> None:
    # Scan in pieces, because temporary arrays are several times as large as a dense block.
    is_dense = isinstance(block, np.ndarray)
    step = max(1, SCAN_VALUES // block.shape[1] if is_dense else len(block))
    for begin in range(0, len(block), step):
        scan.add(block[begin : begin + step], start_row=start + begin)


def _bytes_of(table: RowStream, dtype: np.dtype[Any]) -> int:
    """Return the number of bytes of the rows, estimated by the size of the text for CSV files."""
    if table.n_rows is None:
        # The size of an iterator is unknown: use all buckets.
        return table.n_bytes or BUCKET_BYTES * MAX_BUCKETS
    return table.n_rows * table.n_features * dtype.itemsize


def _progress_bar(show: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    return Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not show,
    )


def _counted(
    blocks: Iterator[NDArray[Any]], bar: Any, what: str, total: int | None
) -> Iterator[NDArray[Any]]:
    task = bar.add_task(what, total=total, start=False)

    def count() -> Iterator[NDArray[Any]]:
        bar.start_task(task)
        for block in blocks:
            yield block
            bar.advance(task, len(block))

    return count()
