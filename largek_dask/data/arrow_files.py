"""Read rows from Parquet and Arrow IPC files, without copying them to a store."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.data.arrow import ArrowColumns, as_ids, first_length, has_missing, kinds_of
from largek_dask.data.arrow_readers import IPCReader, ParquetReader
from largek_dask.data.columns import (
    Selection,
    check_same_columns,
    chosen_columns,
    listed,
    noted_as_index,
    without,
)
from largek_dask.data.rows import MAX_CHUNK_ROWS, Column, Rows, native_dtype, table_from_lengths
from largek_dask.data.storage_errors import reading, retry_io
from largek_dask.data.stores import file_stamp, filesystem, is_local, require
from largek_dask.data.table_files import ARROW, TableFiles
from largek_dask.errors import DataError, LargekError, ParameterError

FOOTER_THREADS = 8
Reader = ParquetReader | IPCReader
DAMAGED = "the file is damaged or its storage is unreachable: write it again, or try later."


class Piece(NamedTuple):
    """Range of rows in one row group of a Parquet file or one record batch of an Arrow file."""

    file: int
    group: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class _File:
    url: str
    reader: type[Reader]
    index: Any
    """Positions of record batches; None for Parquet files."""
    columns: ArrowColumns
    chosen: tuple[str, ...]
    """Names of the columns that hold the features."""
    group_rows: tuple[int, ...]
    stamp: str
    """String that changes whenever the file is rewritten."""


class ArrowFileRows(Rows):
    """Rows of Parquet or Arrow IPC files with the same columns.

    Small row groups are merged, and large row groups are split, into chunks of up to
    ``largek.data.read-chunk-bytes``. Parquet row groups can only be decoded from their beginning.
    Chunks of a large row group are therefore read from one stream, which continues from chunk to
    chunk if they are read in order. Raises DataError if a file has changed since it was opened.

    Features are read from one ``column`` or from the columns of ``selection``; the column ``ids``
    is not a feature. Raises DataError if a file is missing, damaged or empty, if columns are not
    numeric, or if files have different columns. Raises ParameterError if a column does not exist,
    or if several columns of lists could contain the features.
    """

    def __init__(
        self,
        files: TableFiles,
        column: str | None = None,
        selection: Selection | None = None,
        *,
        ids: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        weight: Column | None = None,
    ) -> None:
        require("pyarrow", "parquet", "Parquet and Arrow files")
        if column is not None:
            if selection:
                raise ParameterError(
                    "column= selects a single column; do not pass columns or drop as well."
                )
            selection = Selection.only(column)
        self._where = files.where
        self._id_column = ids
        self.storage_options = dict(storage_options) if storage_options else None
        if ids is not None:
            selection = without(selection, ids)
        self._files = self._open_files(files.urls, selection)
        first = self._files[0].columns
        dtype = native_dtype(np.result_type(*(file.columns.dtype for file in self._files)))
        row_bytes = max(1, first.n_features * dtype.itemsize)
        budget = int(config.get("data.read-chunk-bytes"))
        most = max(1, min(budget // row_bytes, MAX_CHUNK_ROWS))
        self._chunks = _divide([file.group_rows for file in self._files], most)
        self._stream = _GroupStream()
        super().__init__(
            n_features=first.n_features,
            dtype=dtype,
            chunk_table=table_from_lengths(
                [sum(piece.end - piece.begin for piece in chunk) for chunk in self._chunks]
            ),
            location=files.location or files.urls[0],
            weight=weight,
        )

    # --- opening ----------------------------------------------------------------------------------

    def _open_files(self, urls: Sequence[str], selection: Selection | None) -> list[_File]:
        first, compared = self._open_file(urls[0], selection)
        # If columns are selected by name, the other columns of the files may differ.
        like = None if selection and selection.columns else (compared, urls[0])
        chosen = Selection(first.chosen)

        def open_other(url: str) -> _File:
            return self._open_file(url, chosen, like)[0]

        with ThreadPoolExecutor(FOOTER_THREADS) as pool:
            files = [first, *pool.map(open_other, urls[1:])]
        files = [file for file in files if sum(file.group_rows)] or [first]
        for file in files:
            if file.columns.n_features != files[0].columns.n_features:
                raise DataError(
                    f"{file.url} has rows of {file.columns.n_features} numbers, but rows of "
                    f"{files[0].url} have {files[0].columns.n_features}; all rows must have the "
                    "same length."
                )
        return files

    def _open_file(
        self, url: str, selection: Selection | None, like: tuple[Sequence[str], str] | None = None
    ) -> tuple[_File, list[str]]:
        """Read the metadata of a file; return the file and the columns to compare between files.

        ``like`` contains the columns and the URL of the first file.
        """
        kind = _reader_of(url)
        with _as_data_error(url, kind.format), self._opened(url, kind) as (file, stamp):
            schema = file.schema
            names, pandas = schema.names, schema.pandas_metadata
            index = noted_as_index(names, pandas)
            compared = [name for name in names if name not in index]
            if like is not None:
                check_same_columns(*like, compared, url)
            if self._id_column is not None and self._id_column not in names:
                raise ParameterError(
                    f"{url} has no column {self._id_column!r} to use as ids; "
                    f"its columns ({len(names):,}) are {listed(names)}."
                )
            places = chosen_columns(names, selection, url, pandas, kinds_of(schema))
            columns = ArrowColumns(
                schema,
                places,
                url,
                missing=lambda asked: {one for one in asked if _has_missing(file, names[one])},
                width=lambda place: _list_length(file, names[place], url),
            )
            chosen = tuple(names[place] for place in places)
        return _File(url, kind, file.index, columns, chosen, file.group_rows, stamp), compared

    @contextmanager
    def _opened(self, url: str, kind: type[Reader], index: Any = None) -> Iterator[tuple[Any, str]]:
        import pyarrow as pa

        fs, path = filesystem(url, self.storage_options)
        is_mapped = kind is IPCReader and is_local(url)
        with pa.memory_map(url) if is_mapped else fs.open(path, "rb") as raw:
            reader = kind(raw, index)
            yield reader, reader.stamp or file_stamp(url, self.storage_options)

    # --- reading ----------------------------------------------------------------------------------

    def _find_names(self) -> Sequence[str] | None:
        return self._files[0].columns.names

    def describe_source(self, location: str | None) -> str:
        return self._where

    def name_chunk(self, i: int) -> str:
        start, stop = self.chunk_rows(i)
        first, last = self._chunks[i][0], self._chunks[i][-1]
        file = self._files[first.file]
        group, where = f"{file.reader.group} {first.group}", f"of {file.url}"
        if first.file != last.file:
            where += f" to {last.group} of {self._files[last.file].url}"
        elif first.group != last.group:
            group += f" to {last.group}"
        return f"chunk {i} (rows {start} to {stop - 1}; {group} {where})"

    def _load(self, i: int, start: int, stop: int) -> NDArray[Any]:
        with reading(self.name_chunk(i), DAMAGED):
            return retry_io(lambda: self._load_once(i, start, stop))

    def _load_once(self, i: int, start: int, stop: int) -> NDArray[Any]:
        pieces = self._chunks[i]
        first = pieces[0]
        file = self._files[first.file]
        group_rows = file.group_rows[first.group]
        if first.end - first.begin < group_rows and file.reader.is_decoded_whole:
            return self._stream.read(first, group_rows, start, self._blocks)
        out = np.empty((stop - start, self.n_features), self.dtype)
        at = 0
        for _, inside in groupby(pieces, lambda piece: piece.file):
            for block in self._read_pieces(list(inside), start + at):
                out[at : at + len(block)] = block
                at += len(block)
        if at < len(out):
            raise ValueError(f"the file lacks {len(out) - at} rows")
        return out

    def _blocks(self, piece: Piece, first: int) -> Iterator[NDArray[Any]]:
        """Yield all rows of a row group, in blocks as long as ``piece``."""
        whole = Piece(*piece[:2], 0, self._files[piece.file].group_rows[piece.group])
        return self._read_pieces([whole], first, piece.end - piece.begin)

    def _read_pieces(
        self, pieces: Sequence[Piece], first: int, batch_rows: int = MAX_CHUNK_ROWS
    ) -> Iterator[NDArray[Any]]:
        file = self._files[pieces[0].file]
        for batch in self._batches(pieces, file.chosen, batch_rows):
            columns = [batch.column(name) for name in file.chosen]
            yield file.columns.convert(columns, first, file.url).astype(self.dtype, copy=False)
            first += batch.num_rows

    def _batches(
        self, pieces: Sequence[Piece], names: Sequence[str], batch_rows: int = MAX_CHUNK_ROWS
    ) -> Iterator[Any]:
        """Yield batches of the columns ``names`` from part of a row group or from whole groups.

        Raises DataError if the file has changed since the rows were opened.
        """
        file = self._files[pieces[0].file]
        with self._opened(file.url, file.reader, file.index) as (opened, stamp):
            if stamp != file.stamp:
                raise DataError(f"{file.url} has changed since it was opened; open it again.")
            skip, left = pieces[0].begin, sum(piece.end - piece.begin for piece in pieces)
            for batch in opened.batches([piece.group for piece in pieces], names, batch_rows):
                part = batch.slice(min(skip, len(batch)), left)
                skip, left = max(0, skip - len(batch)), left - len(part)
                yield part
                if not left:
                    break

    def read_ids(self, i: int) -> NDArray[Any]:
        if self._id_column is None:
            return super().read_ids(i)
        with reading(f"ids of {self.name_chunk(i)}", DAMAGED):
            found = [
                as_ids(batch.column(self._id_column))
                for _, pieces in groupby(self._chunks[i], lambda piece: piece.file)
                for batch in self._batches(list(pieces), [self._id_column])
            ]
        return np.concatenate(found)

    def _stamps(self) -> list[str]:
        return [
            "+".join(dict.fromkeys(self._files[piece.file].stamp for piece in chunk))
            for chunk in self._chunks
        ]


class _GroupStream:
    """Decode a large row group chunk by chunk, without starting again for each chunk.

    The position in the stream is not pickled.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: Iterator[NDArray[Any]] | None = None
        self._next = Piece(-1, -1, 0, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return _GroupStream, ()

    def read(
        self,
        piece: Piece,
        group_rows: int,
        start: int,
        blocks: Callable[[Piece, int], Iterator[NDArray[Any]]],
    ) -> NDArray[Any]:
        """Return the rows of a piece, which starts at row ``start`` of the table.

        The iterator ``blocks(piece, first)`` yields all rows of the piece's row group, which
        starts at row ``first`` of the table.
        """
        with self._lock:
            here = self._next
            if self._blocks is None or piece[:2] != here[:2] or piece.begin < here.begin:
                self._blocks = blocks(piece, start - piece.begin)
                here = Piece(piece.file, piece.group, 0, 0)
            parts = []
            begin = here.begin
            try:
                while begin < piece.end:
                    block = next(self._blocks)
                    if begin + len(block) > piece.begin:
                        parts.append(block[max(0, piece.begin - begin) : piece.end - begin])
                    begin += len(block)
            except BaseException:
                self._blocks = None
                raise
            self._next = Piece(piece.file, piece.group, begin, begin)
            if begin == group_rows:
                self._blocks = None
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _reader_of(url: str) -> type[Reader]:
    return IPCReader if url.lower().endswith(ARROW) else ParquetReader


def _divide(files: Sequence[Sequence[int]], most: int) -> list[list[Piece]]:
    """Merge small row groups and split large ones, into chunks of at most ``most`` rows."""
    chunks: list[list[Piece]] = []
    joined = most
    for number, groups in enumerate(files):
        for group, n in enumerate(groups):
            if n > most:
                edges = [*range(0, n, most), n]
                chunks += [[Piece(number, group, begin, end)] for begin, end in pairwise(edges)]
                joined = most
            elif n and joined + n <= most:
                chunks[-1].append(Piece(number, group, 0, n))
                joined += n
            elif n:
                chunks.append([Piece(number, group, 0, n)])
                joined = n
    return chunks


def _has_missing(file: Reader, name: str) -> bool:
    """Return True if values of a column are missing; read the column if statistics are absent."""
    counts = [file.null_count(group, name) for group in range(len(file.group_rows))]
    unknown = [group for group, count in enumerate(counts) if count is None]
    return any(counts) or any(
        has_missing(batch.column(name))
        for batch in (file.batches(unknown, [name], MAX_CHUNK_ROWS) if unknown else ())
    )


def _list_length(file: Reader, name: str, url: str) -> int:
    if not sum(file.group_rows):
        return 0
    for batch in file.batches(range(len(file.group_rows)), [name], 1_024):
        if (found := first_length(batch.column(name))) is not None:
            if found == 0:
                raise DataError(
                    f"row 0 of column {name!r} of {url} is an empty list; lists must not be empty."
                )
            return found
    raise DataError(f"column {name!r} of {url} has no lists; pass a column of numbers or of lists.")


@contextmanager
def _as_data_error(url: str, kind: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{url} does not exist; check the address.") from error
    except (OSError, ValueError, struct.error, pa.ArrowException) as error:
        if isinstance(error, LargekError):
            raise
        raise DataError(
            f"{url} cannot be read as {kind} ({error}); write the file again."
        ) from error
