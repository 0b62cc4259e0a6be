"""Open tables of rows from files, stores and objects in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from largek_dask.data.arrow_files import ArrowFileRows
from largek_dask.data.cf_attributes import refuse_encoded
from largek_dask.data.columns import Selection
from largek_dask.data.csr_rows import CSRRows
from largek_dask.data.frame_rows import FrameRows, is_frame, is_of
from largek_dask.data.group_tables import find_table, open_hdf5
from largek_dask.data.lazy_rows import BlockRows, dask_column, dask_frame_rows, xarray_rows
from largek_dask.data.mapped_files import MappedRows, open_array
from largek_dask.data.memory_rows import ArrayColumn, ArrayRows, SparseRows, array_of
from largek_dask.data.missing_chunks import warn_of_missing
from largek_dask.data.rows import Column, Rows
from largek_dask.data.storage_errors import reading, retry_io
from largek_dask.data.stored_rows import StoredRows
from largek_dask.data.stores import (
    check_complete,
    location_of,
    members_of,
    normalize,
    open_node,
    read_stored,
)
from largek_dask.data.table_files import MAPPED, ONE_FILE, TEXT, check_readable, find_table_files
from largek_dask.data.zarr_rows import ZarrColumn, ZarrRows, own_weights
from largek_dask.errors import DataError, ParameterError, without_causes


@without_causes
def open_rows(
    source: Any,
    *,
    sample_weight: Any = None,
    column: str | None = None,
    ids: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    count_missing: bool = True,
) -> Rows:
    """Open a table of numbers in any supported format, without reading the rows.

    Parameters
    ----------
    source : object
        URL or path of Parquet (``.parquet``), Arrow IPC (``.arrow``, ``.feather``) or plain arrays
        (``.npy``, ``.fvecs``, ``.bvecs``, ``.ivecs``, ``.fbin``, ``.u8bin``, ``.i8bin``): a file, a
        folder, a pattern such as ``"folder/*.parquet"`` or a list of files; or of a Zarr array or
        group (v2 or v3; also a CSR group or a whole store as AnnData writes them); a numpy array,
        list of lists, scipy sparse matrix, zarr.Array or Group, an open h5py File, Group or
        Dataset, dask.array, xarray.DataArray, DataFrame of pandas, polars or dask, pyarrow Table or
        RecordBatch. :class:`Rows` are returned unchanged. Column names are kept.
    sample_weight : array-like, dask array, or URL of a Zarr array or .npy file, optional
        One weight per row; by default the weights of the source (such as a stored coreset), or 1.
    column : str, optional
        Array in a Zarr or HDF5 group, such as ``layers/NAME`` in a store of AnnData, or column of
        a table. Not needed if a table has one column of lists, and otherwise only ids and text.
    ids : str or array-like, optional
        Column of a table that holds the ids of the rows, or one id per row. Ids are not features;
        ``predict`` writes them beside the labels.
    storage_options : mapping, optional
        Passed to fsspec with every URL.
    count_missing : bool
        Warn of chunks that are missing from a Zarr store. Zarr reads missing chunks as fill values,
        and by default does not store chunks of fill values, so only the user knows whether chunks
        were lost. In a store that ``ingest`` wrote, a missing chunk is always an error. A store
        that cannot be listed (HTTP) is not checked.

    Returns
    -------
    Rows

    Raises
    ------
    DataError
        The source is missing, damaged or not a table of numbers.
    IncompleteStoreError
        The store was not written completely.
    MissingDependencyError
        The package for the protocol of the URL is not installed.

    Warns
    -----
    MissingChunksWarning
        Chunks are missing from the store.

    Examples
    --------
    >>> import numpy as np
    >>> rows = open_rows(np.zeros((5, 3), np.float32))
    >>> rows.shape, rows.n_chunks
    ((5, 3), 1)
    """
    weight = _open_weight(sample_weight, storage_options)
    name = ids if isinstance(ids, str) else None
    rows = _open_table(source, column, name, storage_options, weight)
    if rows is None:
        if name is not None:
            raise ParameterError(
                f"ids={name!r} names a column, but the source has no named columns; pass an array "
                "with one id per row."
            )
        rows = _open(source, column, storage_options, weight)
    if ids is not None and name is None:
        rows = rows.with_ids(ids)
    # Rows objects were checked for missing chunks when they were opened.
    if count_missing and isinstance(rows, StoredRows) and not isinstance(source, Rows):
        rows.warn_of_missing()
    if count_missing and isinstance(weight, ZarrColumn):
        weight.warn_of_missing()
    return rows


def _open_table(
    source: Any,
    column: str | None,
    ids: str | None,
    storage_options: Mapping[str, Any] | None,
    weight: Column | None,
) -> Rows | None:
    """Return rows of a DataFrame, an Arrow table or table files; None for other sources."""
    if is_frame(source):
        return FrameRows(source, selection=Selection.only(column), ids=ids, weight=weight)
    files = find_table_files(source, storage_options)
    if files is None:
        return None
    if files.ends is TEXT:
        raise _to_be_ingested(source)
    if files.ends is not MAPPED:
        return ArrowFileRows(files, column, ids=ids, storage_options=storage_options, weight=weight)
    if column is not None:
        raise ParameterError(
            f"column={column!r} cannot be selected because columns of {files.where} have no names; "
            "omit column."
        )
    if ids is not None:
        return None
    return MappedRows(files, storage_options=storage_options, weight=weight)


def _open(
    source: Any,
    column: str | None,
    storage_options: Mapping[str, Any] | None,
    weight: Column | None,
) -> Rows:
    if isinstance(source, (str, os.PathLike)):
        return _open_url(normalize(source), column, storage_options, weight)
    is_dataset = is_of(source, "h5py", "Dataset") and column is None
    if is_dataset or is_of(source, "h5py", "Group"):
        return open_hdf5(source, column, weight=weight)
    if isinstance(source, zarr.Group):
        if weight is None and column is None:
            weight = own_weights(source, str(source.store_path))
        source, _ = find_table(source, column, str(source.store_path))
    elif column is not None:
        raise ParameterError(
            f"column={column!r} selects an array inside a store, but the source is a "
            f"{type(source).__name__}; omit column."
        )
    if isinstance(source, Rows):
        return source if weight is None else source.with_weight(weight)
    if isinstance(source, (zarr.Array, zarr.Group)):
        return _stored_rows(source, location_of(source), weight)
    return _open_object(source, weight)


def _open_object(source: Any, weight: Column | None) -> Rows:
    if is_of(source, "xarray", "DataArray"):
        return xarray_rows(source, weight)
    if is_of(source, "dask", "Array"):
        return BlockRows(source, weight=weight)
    if is_of(source, "dask", "DataFrame"):
        return dask_frame_rows(source, weight=weight)
    table = in_memory(source)
    return SparseRows(table, weight=weight) if is_sparse(table) else ArrayRows(table, weight=weight)


def is_sparse(source: Any) -> bool:
    """Return True if a source is a sparse matrix in memory."""
    # Dask's Delayed objects have every attribute, but their class does not.
    return hasattr(type(source), "tocsr")


def in_memory(source: Any) -> Any:
    """Convert an array-like object to an array; return sparse matrices unchanged."""
    if is_sparse(source):
        return source
    array = source if isinstance(source, np.ma.MaskedArray) else array_of(source)
    if array.ndim == 0 and array.dtype.kind == "O":
        raise DataError(
            f"an object of type {type(source).__name__} cannot be opened as rows; pass an array, a "
            "DataFrame or the URL of a Zarr store. Rows are read repeatedly, so write an iterator "
            "of batches to a store first: largek_dask.ingest(batches, 'rows.zarr')."
        )
    return array


def _open_url(
    url: str, column: str | None, storage_options: Mapping[str, Any] | None, weight: Column | None
) -> Rows:
    if url.lower().endswith(ONE_FILE):
        raise _to_be_ingested(url)
    check_readable(url)
    node = open_node(url, column, storage_options)
    if isinstance(node, zarr.Group):
        if weight is None:
            weight = own_weights(node, url)
        node, column = find_table(node, None, url, column)
    return _stored_rows(node, (url, column, storage_options), weight)


def _stored_rows(node: Any, found: Sequence[Any] | None, weight: Column | None) -> Rows:
    """Return the rows of a Zarr node; ``found`` contains the URL, column and storage options."""
    names = ("location", "column", "storage_options")
    address: dict[str, Any] = {} if found is None else dict(zip(names, found, strict=True))
    kind = CSRRows if isinstance(node, zarr.Group) else ZarrRows
    return kind(node, weight=weight, **address)


def _to_be_ingested(source: str | Sequence[Any]) -> DataError:
    one = isinstance(source, str)
    files = source if one else " ".join(map(str, source[:3])) + (" ..." if len(source) > 3 else "")
    return DataError(
        f"{source if one else 'a list of files'} cannot be read row by row; write it to a "
        f"Zarr store first: largek ingest {files} OUT.zarr (or largek_dask.ingest)."
    )


def _open_weight(sample_weight: Any, storage_options: Mapping[str, Any] | None) -> Column | None:
    if sample_weight is None:
        return None
    if isinstance(sample_weight, (str, os.PathLike)):
        url = normalize(sample_weight)
        if url.lower().endswith(".npy"):
            return ArrayColumn(open_array(url, storage_options))
        return ZarrColumn(open_node(url, None, storage_options), url)
    if isinstance(sample_weight, zarr.Array):
        return ZarrColumn(sample_weight, "(zarr.Array)")
    if is_of(sample_weight, "dask", "Array") or is_of(sample_weight, "dask", "Series"):
        return dask_column(sample_weight)
    refuse_encoded(sample_weight, "sample_weight")
    return ArrayColumn(sample_weight)


def read_integers(
    url: str | os.PathLike[str],
    n_rows: int,
    *,
    what: str,
    storage_options: Mapping[str, Any] | None = None,
) -> NDArray[Any]:
    """Read one integer per row, such as labels, from a Zarr array or ``.npy`` file.

    Error messages name the array as ``what``. Raises DataError if the array is missing or damaged,
    or does not contain one integer per row.
    """
    where = normalize(url)
    named, is_complete = f"{what} {where}", False
    if where.lower().endswith(".npy"):
        array = open_array(where, storage_options)
    else:
        array = open_node(where, None, storage_options)
        is_complete = bool(check_complete(array, where).get("complete"))
        if isinstance(array, zarr.Group):
            raise DataError(
                f"{named} is a Zarr group (it contains {members_of(array)}); pass the path of one "
                f"array, such as {where}/NAME."
            )
    if len(array.shape) != 1:
        raise DataError(f"{named} has shape {tuple(array.shape)}; give one integer per row.")
    if array.shape[0] != n_rows:
        raise DataError(
            f"{named} has {array.shape[0]:,} entries, but the data have {n_rows:,} rows; give one "
            "integer per row."
        )
    refuse_encoded(array, named)
    if array.dtype.kind not in "iu":
        raise DataError(
            f"{named} has dtype {array.dtype}, but integers are required; convert numbers with "
            ".astype(int), or replace class names by integers."
        )
    if isinstance(array, zarr.Array) and not is_complete:
        warn_of_missing(array, named)
    with reading(named):
        return retry_io(lambda: read_stored(array, 0, n_rows, complete=is_complete))
