"""Rows of Parquet files, read in place from one file, a folder, a pattern or a list of files."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.data.arrow import ArrowColumns, as_ids, first_length, has_missing, kinds_of
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
from largek_dask.data.stores import filesystem, normalize, require
from largek_dask.data.table_files import PARQUET, TableFiles, find_table_files
from largek_dask.errors import DataError, ParameterError

BUFFER_BYTES = 1 << 20
"""Size of reads within a column of a row group, which would be read at once otherwise."""
FOOTER_THREADS = 8
DAMAGED = "the file is damaged or its storage is unreachable: write it again, or try later."


class Piece(NamedTuple):
    """The rows ``begin`` to ``end`` of one row group."""

    file: int
    group: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class _File:
    """What one file contains, by its footer."""

    url: str
    columns: ArrowColumns
    chosen: tuple[str, ...]
    """Names of the columns that hold the features."""
    group_rows: tuple[int, ...]
    stamp: str
    """Size of the file and hash of its footer."""


class ParquetRows(Rows):
    """Rows of Parquet files with the same columns.

    Small row groups are joined and large ones are divided into reading chunks of up to
    ``largek.data.read-chunk-bytes``. Parquet can only be decoded from the beginning of a row group,
    so the chunks of a large group are decoded in one stream, which continues if they are read in
    order. A file whose footer has changed since the rows were opened is refused.

    Parameters
    ----------
    urls : sequence of str
        The files, in order.
    where : str
        Name of the source in messages.
    location : str, optional
        URL of the file, folder or pattern; None for a list of files.
    selection : Selection, optional
        Columns that hold the features.
    ids : str, optional
        Column of ids, which is no feature.
    storage_options : mapping, optional
        Passed to fsspec.
    weight : Column, optional
        Row weights.

    Raises
    ------
    DataError
        A file is missing, damaged or empty, or its columns are not numbers, or differ.
    ParameterError
        A selected column is missing, or several columns of lists could hold the rows.
    """

    def __init__(
        self,
        urls: Sequence[str],
        where: str,
        *,
        location: str | None = None,
        selection: Selection | None = None,
        ids: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        weight: Column | None = None,
    ) -> None:
        require("pyarrow", "parquet", "Parquet files")
        self._where = where
        self._id_column = ids
        self.storage_options = dict(storage_options) if storage_options else None
        if ids is not None:
            selection = without(selection, ids)
        self._files = self._open_files(urls, selection)
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
            location=location,
            weight=weight,
        )

    # --- opening ----------------------------------------------------------------------------------

    def _open_files(self, urls: Sequence[str], selection: Selection | None) -> list[_File]:
        first, compared = self._open_file(urls[0], selection)
        # If columns are selected by name, files may differ in the other columns.
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
                    f"{file.url} has rows of {file.columns.n_features} numbers, and "
                    f"{files[0].url} of {files[0].columns.n_features}; give rows of one length."
                )
        return files

    def _open_file(
        self, url: str, selection: Selection | None, like: tuple[Sequence[str], str] | None = None
    ) -> tuple[_File, list[str]]:
        """Read a footer; return the file and the columns that all files must have.

        ``like`` holds the columns of the first file, and its URL.
        """
        with _as_data_error(url), self._opened(url) as (file, stamp):
            schema, metadata = file.schema_arrow, file.metadata
            names, pandas = schema.names, schema.pandas_metadata
            index = noted_as_index(names, pandas)
            compared = [name for name in names if name not in index]
            if like is not None:
                check_same_columns(*like, compared, url)
            if self._id_column is not None and self._id_column not in names:
                raise ParameterError(
                    f"{url} has no column {self._id_column!r} for ids=. "
                    f"It has {len(names):,} ({listed(names)})."
                )
            places = chosen_columns(names, selection, url, pandas, kinds_of(schema))
            columns = ArrowColumns(
                schema,
                places,
                url,
                missing=lambda asked: _with_missing(file, asked),
                width=lambda place: _list_length(file, names[place], url),
            )
            groups = tuple(metadata.row_group(g).num_rows for g in range(metadata.num_row_groups))
            chosen = tuple(names[place] for place in places)
        return _File(url, columns, chosen, groups, stamp), compared

    @contextmanager
    def _opened(self, url: str) -> Iterator[tuple[Any, str]]:
        """Yield the open file and its stamp: its size, and a hash of its footer."""
        import pyarrow.parquet as pq

        fs, path = filesystem(url, self.storage_options)
        with fs.open(path, "rb") as raw:
            size = raw.seek(0, 2)
            raw.seek(max(0, size - 8))
            length = int.from_bytes(raw.read(4), "little")
            raw.seek(max(0, size - 8 - length))
            footer = hashlib.sha256(raw.read(length)).hexdigest()[:12]
            raw.seek(0)
            yield (
                pq.ParquetFile(raw, buffer_size=BUFFER_BYTES, pre_buffer=False),
                f"{size}-{footer}",
            )

    # --- reading ----------------------------------------------------------------------------------

    def _find_names(self) -> Sequence[str] | None:
        return self._files[0].columns.names

    def describe_source(self, location: str | None) -> str:
        return self._where

    def name_chunk(self, i: int) -> str:
        start, stop = self.chunk_rows(i)
        first, last = self._chunks[i][0], self._chunks[i][-1]
        until = "" if first[:2] == last[:2] else f" to {last.group} of {self._files[last.file].url}"
        return (
            f"chunk {i} (rows {start} to {stop - 1}; row group {first.group} of "
            f"{self._files[first.file].url}{until})"
        )

    def _load(self, i: int, start: int, stop: int) -> NDArray[Any]:
        with reading(self.name_chunk(i), DAMAGED):
            return retry_io(lambda: self._load_once(i, start, stop))

    def _load_once(self, i: int, start: int, stop: int) -> NDArray[Any]:
        pieces = self._chunks[i]
        first = pieces[0]
        group_rows = self._files[first.file].group_rows[first.group]
        if first.end - first.begin < group_rows:
            return self._stream.read(first, group_rows, start, self._blocks)
        out = np.empty((stop - start, self.n_features), self.dtype)
        at = 0
        for file, groups in _by_file(pieces):
            for block in self._read_groups(file, groups, start + at):
                out[at : at + len(block)] = block
                at += len(block)
        return out

    def _blocks(self, piece: Piece, first: int) -> Iterator[NDArray[Any]]:
        """Yield the rows of a whole row group, in blocks of the length of its first piece."""
        return self._read_groups(piece.file, [piece.group], first, piece.end - piece.begin)

    def _read_groups(
        self, number: int, groups: list[int], first: int, batch_rows: int = MAX_CHUNK_ROWS
    ) -> Iterator[NDArray[Any]]:
        file = self._files[number]
        with self._unchanged(file) as opened:
            for batch in opened.iter_batches(
                batch_rows, row_groups=groups, columns=list(file.chosen), use_threads=False
            ):
                columns = [batch.column(name) for name in file.chosen]
                yield file.columns.convert(columns, first, file.url).astype(self.dtype, copy=False)
                first += batch.num_rows

    def read_ids(self, i: int) -> NDArray[Any]:
        if self._id_column is None:
            return super().read_ids(i)
        found = []
        with reading(f"ids of {self.name_chunk(i)}", DAMAGED):
            for number, group, begin, end in self._chunks[i]:
                with self._unchanged(self._files[number]) as opened:
                    table = opened.read_row_group(group, [self._id_column], use_threads=False)
                column = table.column(self._id_column).slice(begin, end - begin)
                found.append(as_ids(column))
        return np.concatenate(found)

    @contextmanager
    def _unchanged(self, file: _File) -> Iterator[Any]:
        """Yield an open file; raise DataError if it has changed since the rows were opened."""
        with self._opened(file.url) as (opened, stamp):
            if stamp != file.stamp:
                raise DataError(f"{file.url} has changed since it was opened: open it again")
            yield opened

    def _stamps(self) -> list[str]:
        return [
            "+".join(dict.fromkeys(self._files[piece.file].stamp for piece in chunk))
            for chunk in self._chunks
        ]


class _GroupStream:
    """Decoder of one large row group, which continues from one chunk of it to the next.

    A copy in another process begins anew.
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
        """Return the rows of a piece that begins at row ``start`` of the whole table.

        ``blocks(piece, first)`` yields the blocks of the whole row group, which begins at row
        ``first`` of the table.
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


def open_parquet(
    source: Any,
    *,
    column: str | None = None,
    selection: Selection | None = None,
    ids: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    weight: Column | None = None,
) -> ParquetRows | None:
    """Open one Parquet file, or a folder, pattern or list of them; None for other sources."""
    several = find_table_files(source, storage_options)
    is_path = isinstance(source, (str, os.PathLike))
    if several is None:
        if not is_path:
            return None
        url = normalize(source)
        if not url.lower().endswith(PARQUET):
            return None
        several = TableFiles(url, url, (url,), PARQUET)
    elif several.ends is not PARQUET:
        return None
    if column is not None:
        if selection:
            raise ParameterError("column= selects a single column: leave out columns and drop.")
        selection = Selection.only(column)
    return ParquetRows(
        several.urls,
        several.where,
        location=several.location or (several.where if is_path else several.urls[0]),
        selection=selection,
        ids=ids,
        storage_options=storage_options,
        weight=weight,
    )


def _divide(files: Sequence[Sequence[int]], most: int) -> list[list[Piece]]:
    """Join consecutive row groups of up to ``most`` rows together, and divide larger groups."""
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


def _by_file(pieces: Sequence[Piece]) -> list[tuple[int, list[int]]]:
    found: dict[int, list[int]] = {}
    for piece in pieces:
        found.setdefault(piece.file, []).append(piece.group)
    return list(found.items())


def _with_missing(file: Any, places: Sequence[int]) -> set[int]:
    """Return the columns with missing values, by statistics or else by reading the columns."""
    names = file.schema_arrow.names
    return {place for place in places if _has_missing(file, names[place])}


def _has_missing(file: Any, name: str) -> bool:
    metadata = file.metadata
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        found = [
            row_group.column(i)
            for i in range(row_group.num_columns)
            if row_group.column(i).path_in_schema.split(".")[0] == name
        ]
        counts = [c.statistics.null_count if c.statistics is not None else None for c in found]
        if any(counts):
            return True
        if None in counts and has_missing(file.read_row_group(group, [name]).column(0)):
            return True
    return False


def _list_length(file: Any, name: str, url: str) -> int:
    if file.metadata.num_rows == 0:
        return 0
    for batch in file.iter_batches(1_024, columns=[name], use_threads=False):
        if (found := first_length(batch.column(0))) is not None:
            if found == 0:
                raise DataError(f"row 0 of column {name!r} of {url} is an empty list.")
            return found
    raise DataError(f"column {name!r} of {url} has no lists; give a column of numbers.")


@contextmanager
def _as_data_error(url: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{url} does not exist: check the address.") from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{url} cannot be read as Parquet: {error}; write it again.") from error
