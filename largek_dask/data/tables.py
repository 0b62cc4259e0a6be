"""Streams of rows for ``ingest``, from table files and all sources that ``open_rows`` accepts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.arrow_files import ArrowFileRows
from largek_dask.data.columns import (
    Selection,
    check_same_columns,
    chosen_columns,
    is_index_name,
    not_numbers,
)
from largek_dask.data.derived_rows import ColumnRows
from largek_dask.data.frame_rows import FrameRows, is_frame, is_of
from largek_dask.data.group_tables import open_hdf5
from largek_dask.data.lazy_rows import dask_frame_rows
from largek_dask.data.rows import Rows, native_dtype
from largek_dask.data.sources import open_rows
from largek_dask.data.stores import filesystem, is_local, normalize, require
from largek_dask.data.svmlight import SvmlightTable
from largek_dask.data.table_files import HDF5, MAPPED, ONE_FILE, TEXT, TableFiles, find_table_files
from largek_dask.data.text_files import READING, find_layout, open_text
from largek_dask.errors import DataError, LargekError, ParameterError

HEAD_ROWS = 1_000
"""Number of rows at the start of a CSV file that determine its columns."""
BLOCK_BYTES = 32 << 20
"""Approximate size in bytes of a block of a stream."""


class RowStream(Protocol):
    """Stream of rows, read once from the first to the last."""

    where: str
    location: str | None
    """URL or path; None if only this process can open the data."""
    n_features: int
    names: tuple[str, ...] | None
    """Names of the features; None if the features have no names."""
    dtype: np.dtype[Any]
    n_rows: int | None
    """Number of rows; None if unknown before reading."""
    n_bytes: int
    """Size of the text to parse, if the number of rows is unknown."""
    is_sparse: bool

    def blocks(self) -> Iterator[Any]:
        """Yield blocks of (n, d) rows in order; sparse rows as ``SparseBlock``."""


def open_table(
    source: Any,
    column: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    selection: Selection | None = None,
    header: bool | None = None,
) -> RowStream:
    """Open a source for sequential reading, and read only the beginning of the source.

    Raises DataError if the source is not a table of numbers, and ParameterError if it lacks a
    selected column. Warns (DataWarning) if an index is dropped.
    """
    files = find_table_files(source, storage_options)
    is_path = isinstance(source, (str, os.PathLike))
    url = normalize(source) if is_path else ""
    ends = TEXT if files is None and url.lower().endswith(TEXT) else files and files.ends
    if header is not None and ends is not TEXT:
        raise ParameterError(
            f"header={header} applies only to CSV files; leave it out for other sources."
        )
    if isinstance(source, Iterator):
        return BatchesTable(source, column, selection)
    if files is not None and ends is TEXT:
        _refuse_column(column, files.where)
        return _open_files(files, storage_options, selection, header)
    if files is not None and ends is not MAPPED:
        rows: Rows = ArrowFileRows(files, column, selection, storage_options=storage_options)
        return RowsTable(rows)
    if url.lower().endswith(ONE_FILE):
        if not url.lower().endswith(HDF5):
            _refuse_column(column, url)
            return _open_file(url, storage_options, selection, header)
        return _with_columns(_open_hdf5(url, column, storage_options), selection)
    if is_frame(source):
        return RowsTable(FrameRows(source, selection=selection or Selection.only(column)))
    if column is None and is_of(source, "dask", "DataFrame"):
        return RowsTable(dask_frame_rows(source, selection=selection))
    rows = open_rows(source, column=column, storage_options=storage_options)
    if rows.weight is not None and rows is not source:
        raise DataError(
            f"the rows of {rows.location or source} have weights, which ingest does not write; fit "
            "the store directly, or set column to the array of rows to write the rows without "
            "weights."
        )
    return _with_columns(rows, selection)


def _open_file(
    url: str,
    storage_options: Mapping[str, Any] | None,
    selection: Selection | None,
    header: bool | None,
    like: CSVTable | None = None,
) -> CSVTable | SvmlightTable:
    _check_exists(url)
    if url.lower().endswith(TEXT):
        return CSVTable(url, storage_options, selection, like, header)
    if selection:
        raise ParameterError(
            f"columns and drop do not apply to {url}, because columns of svmlight files have no "
            "names."
        )
    return SvmlightTable(url, storage_options)


def _refuse_column(column: str | None, where: str) -> None:
    if column is not None:
        raise ParameterError(
            f"column= does not apply to text such as {where}: select columns with columns= "
            "(--columns)."
        )


def _open_files(
    files: TableFiles,
    storage_options: Mapping[str, Any] | None,
    selection: Selection | None,
    header: bool | None,
) -> FilesTable:
    first = _open_file(files.urls[0], storage_options, selection, header)
    assert isinstance(first, CSVTable)
    # If columns are selected by name, files may differ in the other columns.
    like = None if selection and selection.columns else first
    chosen = Selection(tuple(first.chosen))
    others = [_open_file(url, storage_options, chosen, header, like) for url in files.urls[1:]]
    return FilesTable(files.where, files.location, [first, *others])


def _check_exists(url: str) -> None:
    if is_local(url) and not os.path.exists(url):
        raise DataError(f"{url} does not exist: check the address.")


class RowsTable:
    """Stream of the chunks of :class:`Rows`, one block per chunk."""

    n_bytes = 0

    def __init__(self, rows: Rows) -> None:
        self.where = rows.describe_source(rows.location)
        self.location = rows.location
        self.n_features = rows.n_features
        self.names = rows.feature_names
        self.dtype = rows.dtype
        self.n_rows: int | None = rows.n_rows
        self.is_sparse = rows.is_sparse
        self._rows = rows

    def blocks(self) -> Iterator[Any]:
        for i in range(self._rows.n_chunks):
            yield self._rows.read(i)


class BatchesTable:
    """Stream of the batches of an iterator, which have the columns of the first non-empty batch."""

    where, n_bytes = "the iterator", 0
    location: str | None = None
    n_rows: int | None = None

    def __init__(
        self, batches: Iterator[Any], column: str | None, selection: Selection | None
    ) -> None:
        self._batches, self._how = enumerate(batches), (column, None, selection)
        found = next(self._tables(), None)
        if found is None:
            raise DataError(f"{self.where} has no rows; give batches of rows.")
        self._first, first = found, found[1]
        self.n_features, self.names, self.dtype = first.n_features, first.names, first.dtype
        self.is_sparse = first.is_sparse

    def _tables(self) -> Iterator[tuple[str, RowStream]]:
        for number, batch in self._batches:
            what = f"batch {number} of {self.where}"
            if not hasattr(batch, "__len__") and not hasattr(type(batch), "tocsr"):
                raise DataError(
                    f"{what} is a {type(batch).__name__}; give arrays of shape (rows, columns), "
                    "DataFrames or Arrow batches."
                )
            if (batch.shape[0] if hasattr(batch, "shape") else len(batch)) == 0:
                continue
            try:
                yield what, open_table(batch, *self._how)
            except DataError as error:
                raise DataError(f"{what}: {error}") from error

    def blocks(self) -> Iterator[Any]:
        like = (self.n_features, self.names, self.is_sparse)
        for what, table in chain([self._first], self._tables()):
            same = (table.n_features, table.names, table.is_sparse) == like
            if not (same and np.can_cast(table.dtype, self.dtype)):
                raise DataError(
                    f"{what} has {table.n_features} columns of {table.dtype}, and the first has "
                    f"{self.n_features} of {self.dtype}; give batches with the same names, order "
                    "and type of columns."
                )
            yield from (block.astype(self.dtype, copy=False) for block in table.blocks())


def _with_columns(rows: Rows, selection: Selection | None) -> RowsTable:
    if selection:
        names = rows.feature_names or list(map(str, range(rows.n_features)))
        places = selection.places(names, rows.describe_source(rows.location))
        rows = ColumnRows(rows, places)
    return RowsTable(rows)


class CSVTable:
    """Stream of the rows of a text file of numbers (float64), read by pandas.

    If the file has no header, or a header that only numbers the columns, the columns have no names
    and are numbered from 0. See ``data.text_files`` for the layout.
    """

    is_sparse = False

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None,
        selection: Selection | None = None,
        like: CSVTable | None = None,
        header: bool | None = None,
    ) -> None:
        self._pandas = require("pandas", "parquet", "CSV files")
        self.where = url
        self.location: str | None = url
        self.dtype = np.dtype(np.float64)
        self.n_rows: int | None = None
        self._fs, self._path = filesystem(url, storage_options)
        self.n_bytes = int(self._fs.size(self._path) or 0)
        with self._opened() as text:
            layout = find_layout(text, url, header)
        self._options: dict[str, Any] = {
            "skipinitialspace": True,
            "sep": layout.separator,
            "decimal": layout.decimal,
            "skiprows": layout.skip,
            "header": 0 if layout.has_header else None,
        }
        if tuple(map(int, self._pandas.__version__.split(".")[:2])) < (3, 1):
            # Later pandas versions always use this precision and do not have the option.
            self._options["float_precision"] = "round_trip"
        head = self._read(nrows=HEAD_ROWS)
        self.all_columns = self.compared = tuple(map(str, head.columns))
        if like is not None:
            check_same_columns(like.compared, like.where, self.compared, url)
        places = chosen_columns(self.all_columns, selection, url)
        self._columns = [head.columns[place] for place in places]
        self.chosen = tuple(map(str, self._columns))
        """Names of the selected columns in the file."""
        kept = [name for name in self.all_columns if not is_index_name(name)]
        is_numbered = kept == list(map(str, range(len(kept))))
        self.names = None if is_numbered else self.chosen
        self.n_features = len(places)
        self._refuse_text(head[self._columns], 0)

    @contextmanager
    def _opened(self) -> Iterator[TextIO]:
        try:
            with open_text(self._fs, self._path, self.where) as text:
                yield text
        except LargekError:
            raise
        except self._pandas.errors.EmptyDataError as error:
            raise DataError(f"{self.where} has no rows; pass a table of numbers.") from error
        except self._pandas.errors.ParserError as error:
            raise DataError(
                f"{self.where} is not a table: {error}; give all rows the same number of fields."
            ) from error
        except READING as error:
            raise DataError(
                f"{self.where} cannot be read: {error}; check that it is complete and readable."
            ) from error

    def _read(self, **options: Any) -> Any:
        with self._opened() as text:
            return self._pandas.read_csv(text, **(self._options | options))

    def blocks(self) -> Iterator[NDArray[Any]]:
        size = max(1_000, BLOCK_BYTES // (8 * self.n_features))
        row = 0
        options = {"chunksize": size, "usecols": self._columns, **self._options}
        with self._opened() as text, self._pandas.read_csv(text, **options) as reader:
            for frame in reader:
                if frame.empty:
                    continue
                frame = frame[self._columns]
                self._refuse_text(frame, row)
                row += len(frame)
                yield np.ascontiguousarray(frame.to_numpy(dtype=np.float64))

    def _refuse_text(self, frame: Any, row: int) -> None:
        wrong = {}
        for name in frame.columns:
            column = frame[name]
            if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
                continue
            text = self._pandas.to_numeric(column, errors="coerce").isna() & column.notna()
            at = int(np.argmax(text.to_numpy()))
            value = column.iloc[at]
            wrong[str(name)] = f"({value!r} in data row {row + at})"
        if wrong:
            raise not_numbers(self.where, wrong)


class FilesTable:
    """Stream of the rows of several open files with the same columns, one file after the other.

    ``location`` is the folder that contains the files, if the source is a folder.
    """

    is_sparse = False

    def __init__(self, where: str, location: str | None, tables: Sequence[RowStream]) -> None:
        self.where, self.location = where, location
        first = tables[0]
        self.n_features, self.names = first.n_features, first.names
        self.dtype = native_dtype(np.result_type(*(table.dtype for table in tables)))
        known = [table.n_rows for table in tables if table.n_rows is not None]
        self.n_rows: int | None = sum(known) if len(known) == len(tables) else None
        self.n_bytes = sum(table.n_bytes for table in tables)
        self._tables = tables

    def blocks(self) -> Iterator[NDArray[Any]]:
        for table in self._tables:
            for block in table.blocks():
                yield block.astype(self.dtype, copy=False)


def _open_hdf5(url: str, column: str | None, storage_options: Mapping[str, Any] | None) -> Rows:
    _check_exists(url)
    h5py = require("h5py", "hdf5", "HDF5 files")
    try:
        if is_local(url):
            file = h5py.File(url, "r")
        else:
            fs, path = filesystem(url, storage_options)
            file = h5py.File(fs.open(path, "rb"), "r")
    except OSError as error:
        raise DataError(
            f"{url} cannot be read as HDF5: {error}; write it again. If it is classic netCDF "
            "(netCDF-3), which is not HDF5, pass xarray.open_dataset(path)[NAME]."
        ) from error
    return open_hdf5(file, column, location=url)
