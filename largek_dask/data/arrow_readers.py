"""Read a Parquet or Arrow IPC file, one row group or record batch at a time."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

BUFFER_BYTES = 1 << 20
"""Read size within a column of a row group. By default, Arrow reads the whole column at once."""
MAGIC = b"ARROW1"
DICTIONARY, RECORDS = 2, 3
"""Codes of message types in Arrow IPC files, as defined in Arrow's Message.fbs."""


class ParquetReader:
    """Read the row groups of an open Parquet file."""

    format, group = "Parquet", "row group"
    is_decoded_whole = True
    """True if a row group must be decoded from its beginning to read its last rows."""
    index = None

    def __init__(self, raw: Any, index: None = None) -> None:
        import pyarrow.parquet as pq

        size = raw.seek(0, 2)
        raw.seek(max(0, size - 8))
        length = int.from_bytes(raw.read(4), "little")
        raw.seek(max(0, size - 8 - length))
        self.stamp = f"{size}-{hashlib.sha256(raw.read(length)).hexdigest()[:12]}"
        """File size and hash of the footer."""
        raw.seek(0)
        self._file = pq.ParquetFile(raw, buffer_size=BUFFER_BYTES, pre_buffer=False)
        self._metadata = self._file.metadata
        self.schema = self._file.schema_arrow
        groups = range(self._metadata.num_row_groups)
        self.group_rows = tuple(self._metadata.row_group(g).num_rows for g in groups)

    def batches(self, groups: Sequence[int], names: Sequence[str], n_rows: int) -> Iterator[Any]:
        """Yield the columns ``names`` of row groups, in batches of ``n_rows`` rows."""
        how = {"row_groups": groups, "columns": list(names), "use_threads": False}
        yield from self._file.iter_batches(n_rows, **how)

    def null_count(self, group: int, name: str) -> int | None:
        """Return the number of missing values in a column of a row group; None if unknown."""
        row_group = self._metadata.row_group(group)
        columns = (row_group.column(i) for i in range(row_group.num_columns))
        # Names may contain dots, so other columns may match, too; they only add missing values.
        found = [c.statistics for c in columns if f"{c.path_in_schema}.".startswith(f"{name}.")]
        counts = [None if one is None else one.null_count for one in found]
        return None if None in counts and not any(counts) else sum(n or 0 for n in counts)


class Index(NamedTuple):
    """Row count of each record batch and, for streams, the batch's position."""

    rows: list[int]
    offsets: list[int]
    is_file: bool
    has_dictionaries: bool


class IPCReader:
    """Read the record batches of an Arrow IPC file (Feather V2) or stream.

    Streams, such as the files of a saved Hugging Face dataset, have no index of record batches. The
    reader creates the index from the headers of all messages.
    """

    format, group = "Arrow IPC", "record batch"
    is_decoded_whole = False
    stamp = None

    def __init__(self, raw: Any, index: Index | None = None) -> None:
        self._raw = raw
        self.index = _read_index(raw) if index is None else index
        self.group_rows = tuple(self.index.rows)
        self.schema = self._open().schema

    def _open(self, places: Sequence[int] = ()) -> Any:
        import pyarrow as pa

        self._raw.seek(0)
        options = pa.ipc.IpcReadOptions(included_fields=list(places), use_threads=False)
        opened = pa.ipc.open_file if self.index.is_file else pa.ipc.open_stream
        return opened(self._raw, options=options)

    def batches(self, groups: Sequence[int], names: Sequence[str], n_rows: int) -> Iterator[Any]:
        """Yield the columns ``names`` of record batches."""
        opened = self._open([self.schema.get_field_index(name) for name in names])
        # Dictionaries precede the batches that use them, and may be replaced later in a stream.
        in_order = self.index.has_dictionaries
        for group in range(max(groups) + 1) if in_order else groups:
            if self.index.is_file:
                batch = opened.get_batch(group)
            else:
                if not in_order:
                    self._raw.seek(self.index.offsets[group])
                batch = opened.read_next_batch()
            if not in_order or group in groups:
                # Arrow does not check offsets of lists and strings when it reads a file.
                batch.validate(full=True)
                yield batch

    def null_count(self, group: int, name: str) -> None:
        return None


def _read_index(raw: Any) -> Index:
    size = raw.seek(0, 2)
    raw.seek(0)
    head = raw.read(len(MAGIC))
    if head.startswith(b"FEA1"):
        raise ValueError(
            "the file is Feather V1; convert it by pandas.read_feather(path).to_feather(path)"
        )
    if head == MAGIC:
        return _index_of_file(raw, size)
    found = Index([], [], False, False)
    at = 0
    while True:
        raw.seek(at)
        mark, length = struct.unpack("<Ii", raw.read(8).ljust(8, b"\xff"))
        if mark != 0xFFFFFFFF or length < 0:
            raise ValueError(f"the file is truncated or damaged at byte {at} of {size}")
        if length == 0:
            return found
        kind, n_rows, n_bytes = _read_message(raw.read(length))
        if kind == RECORDS:
            found.rows.append(n_rows)
            found.offsets.append(at)
        found = found._replace(has_dictionaries=found.has_dictionaries or kind == DICTIONARY)
        at += 8 + length + n_bytes


def _index_of_file(raw: Any, size: int) -> Index:
    raw.seek(size - 10)
    length, magic = struct.unpack("<i6s", raw.read(10))
    if magic != MAGIC or not 0 < length < size - 10:
        raise ValueError(f"the file is truncated: it does not end with {MAGIC.decode()}")
    raw.seek(size - 10 - length)
    footer = raw.read(length)
    position, offset = _field(footer, struct.unpack_from("<I", footer)[0], 3, "<I")
    rows = []
    for block in range(struct.unpack_from("<I", footer, position + offset)[0] if offset else 0):
        at, length = struct.unpack_from("<qi", footer, position + offset + 4 + 24 * block)
        raw.seek(at)
        data = raw.read(length)
        rows.append(_read_message(data[8 if data.startswith(b"\xff" * 4) else 4 :])[1])
    return Index(rows, [], True, False)


def _read_message(data: bytes) -> tuple[int, int, int]:
    """Return the type, number of rows and body length of an Arrow message."""
    root = struct.unpack_from("<I", data)[0]
    kind = _field(data, root, 1, "<B")[1]
    header = sum(_field(data, root, 2, "<I"))
    n_rows = _field(data, header, 0, "<q")[1] if kind == RECORDS else 0
    n_bytes = _field(data, root, 3, "<q")[1]
    if n_rows < 0 or n_bytes < 0:
        raise ValueError("the file contains a damaged message")
    return kind, n_rows, n_bytes


def _field(data: bytes, table: int, number: int, kind: str) -> tuple[int, int]:
    """Return the position and value of a FlatBuffers field; the value is 0 if not stored."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", data, vtable)[0]:
        return table, 0
    offset = struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0]
    return table + offset, struct.unpack_from(kind, data, table + offset)[0] if offset else 0
