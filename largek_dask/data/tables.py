"""Streams of rows for ``ingest``: CSV, Parquet, HDF5, svmlight, all that ``open_rows`` takes."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.csr_rows import CSRRows, is_sparse_group
from largek_dask.data.memory_rows import SlicedRows
from largek_dask.data.missing import Missing
from largek_dask.data.rows import Rows, native_dtype
from largek_dask.data.sources import open_rows
from largek_dask.data.stores import filesystem, is_local, normalize
from largek_dask.data.svmlight import SVMLIGHT, SvmlightTable
from largek_dask.errors import DataError, MissingDependencyError, ParameterError

__all__ = ["Table", "open_table"]

BLOCK_BYTES = 32 << 20
"""Bytes of one block that a stream gives, about."""

CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".txt")
PARQUET = (".parquet", ".pq")
HDF5 = (".h5", ".hdf5", ".h5ad", ".he5")


class Table(Protocol):
    """Rows as a stream, read once from the first to the last."""

    where: str
    """What messages call the source."""
    location: str | None
    """URL or path, None for something in this process."""
    n_features: int
    dtype: np.dtype[Any]
    n_rows: int | None
    """Number of rows; None where only reading tells."""
    is_sparse: bool

    def blocks(self) -> Iterator[Any]:
        """Blocks of (n, d) rows in order; of sparse rows a ``SparseBlock`` each."""


def open_table(
    source: Any,
    component: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    missing: Missing = "warn",
) -> Table:
    """Open a source for one sequential read; only its head is read here.

    Raises
    ------
    DataError
        Not there, or not a table of numbers (the text column is named).
    MissingDependencyError
        The package that reads the format is not installed.
    """
    if isinstance(source, (str, os.PathLike)):
        url = normalize(source)
        name = url.lower()
        known = name.endswith(CSV + PARQUET + HDF5 + SVMLIGHT)
        if known and is_local(url) and not os.path.exists(url):
            raise DataError(f"{url} does not exist.")
        if name.endswith(CSV):
            if component is not None:
                raise ParameterError("component does not apply to a CSV file.")
            return CSVTable(url, storage_options)
        if name.endswith(SVMLIGHT):
            return SvmlightTable(url, storage_options)
        if name.endswith(PARQUET):
            return ParquetTable(url, component, storage_options)
        if name.endswith(HDF5):
            return RowsTable(_open_hdf5(url, component, storage_options))
    rows = open_rows(source, component=component, storage_options=storage_options, missing=missing)
    if rows.weight is not None and rows is not source:
        raise DataError(
            f"the rows of {rows.location or source} have weights, which would be lost: fit it as "
            "it is, or pass component= the array of the rows for these alone."
        )
    return RowsTable(rows)


class RowsTable:
    """A stream over :class:`Rows`, one block a chunk."""

    def __init__(self, rows: Rows) -> None:
        self.where = rows.describe_source(rows.location)
        self.location = rows.location
        self.n_features = rows.n_features
        self.dtype = rows.dtype
        self.n_rows: int | None = rows.n_rows
        self.is_sparse = rows.is_sparse
        self._rows = rows

    def blocks(self) -> Iterator[Any]:
        """The chunks in order."""
        for i in range(self._rows.n_chunks):
            yield self._rows.read(i)


class CSVTable:
    """A stream over a CSV file, read by pandas; numbers are float64.

    A first line that is all numbers is a row, any other is a header. The separator is the one
    of comma, semicolon and tab that the first line holds most of.
    """

    is_sparse = False

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        self._pandas = _need("pandas", "parquet", "CSV files")
        self.where = url
        self.location: str | None = url
        self.dtype = np.dtype(np.float64)
        self.n_rows: int | None = None
        self._options: dict[str, Any] = {"skipinitialspace": True}
        if not is_local(url):
            filesystem(url, storage_options)
            self._options["storage_options"] = dict(storage_options or {})
        first = self._read(nrows=1, header=None, sep="\x01", dtype=str)
        line = str(first.iloc[0, 0])
        self._options["sep"] = max(",;\t", key=line.count)
        head = self._read(nrows=1, header=None)
        numeric = all(kind.kind in "biuf" for kind in head.dtypes)
        self._options["header"] = None if numeric else "infer"
        self.n_features = len(head.columns)

    def _read(self, **options: Any) -> Any:
        errors = self._pandas.errors
        try:
            return self._pandas.read_csv(self.where, **(self._options | options))
        except errors.EmptyDataError as error:
            raise DataError(f"{self.where} has no rows.") from error
        except (errors.ParserError, UnicodeDecodeError) as error:
            raise DataError(f"{self.where} is not a table: {error}") from error
        except OSError as error:
            raise DataError(f"{self.where} cannot be read: {error}") from error

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Blocks of about 32 MB as parsed."""
        size = max(1_000, BLOCK_BYTES // (8 * self.n_features))
        row = 0
        with self._read(chunksize=size) as reader:
            while True:
                try:
                    frame = next(reader)
                except StopIteration:
                    return
                except (self._pandas.errors.ParserError, UnicodeDecodeError) as error:
                    raise DataError(f"{self.where} is damaged: {error}") from error
                if frame.empty:
                    continue
                self._refuse_text(frame, row)
                row += len(frame)
                yield np.ascontiguousarray(frame.to_numpy(dtype=np.float64))

    def _refuse_text(self, frame: Any, row: int) -> None:
        for name in frame.columns:
            column = frame[name]
            if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
                continue
            text = self._pandas.to_numeric(column, errors="coerce").isna() & column.notna()
            at = int(np.argmax(text.to_numpy()))
            raise DataError(
                f"column {name!r} of {self.where} holds text ({column.iloc[at]!r} in data row "
                f"{row + at}); drop the column or encode it as numbers."
            )


class ParquetTable:
    """A stream over a Parquet file, or a folder of them, one record batch at a time.

    All columns side by side, or with ``component`` one column only; a column of fixed-size
    lists (embeddings) gives one feature an element.
    """

    is_sparse = False

    def __init__(
        self, url: str, component: str | None, storage_options: Mapping[str, Any] | None
    ) -> None:
        _need("pyarrow", "parquet", "Parquet files")
        import pyarrow as pa
        import pyarrow.dataset as dataset

        self.where = url
        self.location: str | None = url
        fs, path = filesystem(url, storage_options)
        try:
            self._dataset = dataset.dataset(path, filesystem=fs, format="parquet")
            schema = self._dataset.schema
            self.n_rows: int | None = int(self._dataset.count_rows())
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{url} cannot be read as Parquet: {error}") from error
        self._names = schema.names if component is None else [component]
        types = []
        self._widths = []
        for name in self._names:
            if name not in schema.names:
                raise DataError(f"{url} has no column {name!r}, only {', '.join(schema.names)}.")
            kind = schema.field(name).type
            width = 1
            if pa.types.is_fixed_size_list(kind):
                kind, width = kind.value_type, kind.list_size
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not (
                pa.types.is_boolean(kind)
            ):
                raise DataError(
                    f"column {name!r} of {url} has type {kind}, not numbers; "
                    "drop it or encode it as numbers."
                )
            types.append(np.dtype(kind.to_pandas_dtype()))
            self._widths.append(width)
        if not types:
            raise DataError(f"{url} has no columns.")
        self.dtype = native_dtype(np.result_type(*types))
        self.n_features = sum(self._widths)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """One block a record batch."""
        import pyarrow as pa

        size = max(1_000, BLOCK_BYTES // (self.dtype.itemsize * self.n_features))
        try:
            for batch in self._dataset.to_batches(columns=self._names, batch_size=size):
                if batch.num_rows:
                    yield self._values(batch)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.where} is damaged: {error}") from error

    def _values(self, batch: Any) -> NDArray[Any]:
        out = np.empty((batch.num_rows, self.n_features), self.dtype)
        at = 0
        for name, width, column in zip(self._names, self._widths, batch.columns, strict=True):
            values = column.flatten() if hasattr(column.type, "list_size") else column
            if (column.null_count or values.null_count) and self.dtype.kind != "f":
                raise DataError(
                    f"column {name!r} of {self.where} has missing values, which integers cannot "
                    "hold; fill them, or write the column as floats."
                )
            if column.null_count and width > 1:
                raise DataError(f"column {name!r} of {self.where} has missing lists; fill them.")
            numbers = values.to_numpy(zero_copy_only=False)
            out[:, at : at + width] = numbers.reshape(-1, width)
            at += width
        return out


def _open_hdf5(url: str, component: str | None, storage_options: Mapping[str, Any] | None) -> Rows:
    """Rows of a dataset in an HDF5 file, or of a sparse group in one (AnnData's ``.h5ad``)."""
    h5py = _need("h5py", "hdf5", "HDF5 files")
    try:
        if is_local(url):
            file = h5py.File(url, "r")
        else:
            fs, path = filesystem(url, storage_options)
            file = h5py.File(fs.open(path, "rb"), "r")
    except OSError as error:
        raise DataError(f"{url} cannot be read as HDF5: {error}") from error
    if component is None:
        component = _only_table(h5py, file, url)
    if component not in file:
        raise DataError(f"{url} has no dataset named {component!r}.")
    node = file[component]
    if isinstance(node, h5py.Group):
        if not is_sparse_group(node):
            raise DataError(f"{component!r} of {url} is a group; name a dataset inside it.")
        return CSRRows(node, location=url, component=component)
    return SlicedRows(node, location=url)


def _only_table(h5py: Any, file: Any, url: str) -> str:
    if "X" in file:
        return "X"
    tables: list[str] = []

    def note(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and node.ndim == 2:
            tables.append(name)

    file.visititems(note)
    if len(tables) != 1:
        names = ", ".join(tables) or "none"
        raise DataError(
            f"{url} holds {len(tables)} two-dimensional datasets ({names}); pass component= one."
        )
    return tables[0]


def _need(package: str, extra: str, what: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingDependencyError(
            f"{what} need {package}, which is not installed: pip install 'largek_dask[{extra}]'"
        ) from error
