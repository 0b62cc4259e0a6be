"""Store labels in a Zarr array that grows group by group and can be resumed.

While ``labels.zarr`` is incomplete, the file ``labels.zarr.progress.json`` in the same folder
contains the owner of the labels, the number of finished chunks, and exact sums over these chunks. A
file such as ``labels.npy`` is written atomically at the end, from an array
``labels.npy.partial.zarr``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import zarr
from numpy.typing import NDArray

from largek_dask.algorithms.problem import LABELS, RowValues
from largek_dask.data.durable import declare, make_chunk_folder, sync_rows, torn_chunk
from largek_dask.data.storage_errors import retry_io, unanswered, writing
from largek_dask.data.stores import ATTRIBUTE, is_local, read_stored, remote_store, require
from largek_dask.driver.storage import DamagedError, Folder, canonical_json
from largek_dask.errors import OutputError, ParameterError
from largek_dask.fault_injection import at
from largek_dask.kernels.exact.numbers import LIMB, ORIGIN, ExactSums
from largek_dask.version import check_format

FORMAT = 1
GROUP_ROWS = 1 << 22
"""Number of rows per group. A killed run loses at most one group, and the driver may hold one group
in memory."""
GROUP_CHUNKS = 8
"""Minimum number of chunks per thread of a group that workers label without sending the labels to
the driver. With fewer, workers wait for the worker that has one chunk more (not tuned)."""
LABEL_BYTES = 4
PIECE_ROWS = 1 << 20
"""Number of rows per stored chunk if the table's chunks are irregular, and per write to a file."""
SUFFIX = re.compile(r"[^/]\.([A-Za-z][A-Za-z0-9]*)$")
"""Pattern of a file suffix, which begins with a letter, unlike a version or a date in a name."""
TEXT_BYTES = {"i": 12, "f": 26}
"""Maximum bytes of a number in a CSV file, by the kind of the number's dtype."""


def group_chunks(
    chunk_table: NDArray[np.int64], most: int | None = None, least: int = 1
) -> Iterator[range]:
    """Yield ranges of chunks with about ``most`` rows (default ``GROUP_ROWS``) per range.

    Ranges have at least ``least`` chunks.
    """
    most = GROUP_ROWS if most is None else most
    n_chunks, begin = len(chunk_table) - 1, 0
    while begin < n_chunks:
        limit = chunk_table[begin] + most
        end = max(begin + least, int(np.searchsorted(chunk_table, limit, side="right")) - 1)
        end = min(end, n_chunks)
        yield range(begin, end)
        begin = end


def sums_to_json(sums: ExactSums) -> dict[str, Any]:
    values, exponent = sums.integers()
    return {"integers": [f"{value:x}" for value in values], "exponent": exponent}


def sums_from_json(packed: Mapping[str, Any]) -> ExactSums:
    values = [int(text, 16) for text in packed["integers"]]
    sums = ExactSums(len(values))
    limb = (packed["exponent"] + ORIGIN) // LIMB
    while any(values):
        rest = [abs(value) >> LIMB for value in values]
        rest = [-r if value < 0 else r for r, value in zip(rest, values, strict=True)]
        low = [value - (r << LIMB) for r, value in zip(rest, values, strict=True)]
        sums.add_units(limb, np.array(low, np.int64))
        values = rest
        limb += 1
    return sums


def _opened(parent: Folder, name: str) -> zarr.Array[Any] | None:
    """Open the stored array; return None if it is missing or unreadable."""
    try:
        return retry_io(lambda: zarr.open_array(parent.store(name, read_only=True), mode="r"))
    except (OSError, KeyError, ValueError, TypeError) as error:
        if unanswered(error):
            raise
        return None


def are_whole(place: Folder) -> bool:
    """Return whether all labels are stored, marked complete and intact."""
    array = _opened(*place.parent())
    if array is None or torn_chunk(array) is not None:
        return False
    notes = array.attrs.get(ATTRIBUTE)
    return isinstance(notes, Mapping) and notes.get("complete") is True


@dataclass(frozen=True, slots=True)
class LabelWriter:
    """Writer of labels, which is sent to the workers that compute labels."""

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, start: int, labels: NDArray[Any]) -> None:
        """Write labels of consecutive rows, beginning with row ``start``, or raise OutputError."""
        what = f"{self.url} (labels of rows {start} to {start + len(labels) - 1})"
        with writing(what), at("labels"):
            retry_io(lambda: self._write(start, labels))

    def _write(self, start: int, labels: NDArray[Any]) -> None:
        store: Any = self.url
        if not is_local(self.url):
            store = remote_store(self.url, self.storage_options, read_only=False)
        array = zarr.open_array(store, mode="r+")
        array[start : start + len(labels)] = labels
        sync_rows(array, start, start + len(labels))


def _pieces(array: Any) -> Iterator[NDArray[Any]]:
    for start in range(0, array.shape[0], PIECE_ROWS):
        stop = min(start + PIECE_ROWS, array.shape[0])
        yield retry_io(partial(read_stored, array, start, stop, complete=True))


def _write_npy(file: Any, array: Any, column: str) -> None:
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(file, header)
    for piece in _pieces(array):
        file.write(np.asarray(piece, array.dtype).tobytes())


def _write_csv(file: BinaryIO, array: Any, column: str) -> None:
    file.write(f"{column}\n".encode())
    for piece in _pieces(array):
        # Floats round-trip.
        file.write("".join(f"{value!r}\n" for value in piece.tolist()).encode())


def _write_parquet(file: BinaryIO, array: Any, column: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(column, pa.from_numpy_dtype(array.dtype.newbyteorder("=")))])
    with pq.ParquetWriter(file, schema) as writer:
        for piece in _pieces(array):
            writer.write_table(pa.table([pa.array(piece)], schema=schema))


WRITERS: Mapping[str, Callable[[Any, Any, str], None]] = {
    ".npy": _write_npy,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
"""Functions that write a file of one column, by the suffix of the file."""


def _suffix_of(url: str) -> str | None:
    """Return the supported suffix of a file; None for a Zarr store."""
    found = SUFFIX.search(url)
    suffix = None if found is None else f".{found[1].lower()}"
    if suffix not in (None, ".zarr", *WRITERS):
        raise ParameterError(
            f"{url} ends in {suffix!r}, which is not supported: use .zarr (or no suffix), .npy, "
            ".csv or .parquet."
        )
    if suffix == ".parquet":
        require("pyarrow.parquet", "parquet", ".parquet files")
    return None if suffix == ".zarr" else suffix


class LabelStore:
    """Zarr array or file with one number per row, such as a label.

    ``owner`` is JSON text that identifies the model and the data; unfinished labels of the same
    owner are resumed. Raises OutputError if ``place`` contains other files or cannot be written,
    and ParameterError if the suffix is not supported.
    """

    def __init__(
        self,
        place: str | Folder,
        chunk_table: NDArray[np.int64],
        owner: Mapping[str, Any],
        storage_options: Mapping[str, Any] | None = None,
        values: RowValues = LABELS,
    ) -> None:
        self._values = values
        place = Folder.of(place, storage_options)
        self._parent, self._name = place.parent()
        self._file, self._suffix = self._name, _suffix_of(place.url)
        if self._suffix is not None:
            self._name += ".partial.zarr"
        self.url = self._parent.sub(self._name).url
        self.n_rows = int(chunk_table[-1])
        self._chunk_table = chunk_table
        self._owner = json.loads(canonical_json(owner))
        self._progress = f"{self._name}.progress.json"
        lengths = np.diff(chunk_table)
        regular = bool((lengths[:-1] == lengths[0]).all()) and lengths[-1] <= lengths[0]
        self._piece = int(lengths[0]) if regular else min(PIECE_ROWS, self.n_rows)
        # Workers may write only if no two chunks of rows share a stored chunk.
        reachable = not self.url.startswith("memory://")
        self.local_writer = LabelWriter(self.url, place.storage_options)
        self.writer = self.local_writer if regular and reachable else None
        self._model = ""
        self._parent.check_writable()
        self._check_free()

    def _check_free(self) -> None:
        is_unfinished = self._unfinished() is not None
        for name in {self._file, self._name} - ({self._name} if is_unfinished else set()):
            if self._parent.exists(name):
                raise OutputError(
                    f"{self._parent.url}/{name} already exists; nothing was changed. Remove it or "
                    "choose another output."
                )
        if not is_unfinished:
            what = f"{self._values.name.replace('_', ' ')} of {self.n_rows:,} rows"
            dtype = np.dtype(self._values.dtype)
            of_file = TEXT_BYTES[dtype.kind] if self._suffix == ".csv" else dtype.itemsize
            row_bytes = dtype.itemsize + (of_file if self._suffix else 0)
            self._parent.check_space(row_bytes * self.n_rows, what)

    def _unfinished(self) -> dict[str, Any] | None:
        """Return the record of an unfinished run with the same owner, or None."""
        try:
            record = json.loads(self._parent.read(self._progress))
            check_format(record, f"{self.url}.progress.json", OutputError, FORMAT)
            owner = record["owner"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, DamagedError) as error:
            raise OutputError(
                f"{self.url}.progress.json cannot be read: {error!r}; remove it and {self.url}, "
                "or choose another output."
            ) from error
        if owner != self._owner:
            raise OutputError(
                f"{self.url} has unfinished labels of another model or of other data; remove it "
                f"and {self._progress}, or choose another output."
            )
        return record  # type: ignore[no-any-return]

    def begin(self, model: str) -> tuple[int, dict[str, ExactSums]]:
        """Return the number of finished chunks and their sums; create the array if needed.

        ``model`` is a hash of the model; labelling resumes only if the stored hash is equal.
        """
        record = self._unfinished()
        self._model = model
        if (
            record is not None
            and record["done"] > 0
            and record["centers"] == model
            and self._are_there(record["done"])
        ):
            sums = {name: sums_from_json(packed) for name, packed in record["sums"].items()}
            return record["done"], sums
        # Write the record first, because an array without a record would be refused.
        self.record(0, {})
        with writing(self.url):
            retry_io(self._make)
        return 0, {}

    def _are_there(self, done: int) -> bool:
        """Return whether the stored labels of the first ``done`` chunks are intact."""
        array = _opened(self._parent, self._name)
        return (
            array is not None
            and array.shape == (self.n_rows,)
            and array.dtype == np.dtype(self._values.dtype)
            and torn_chunk(array, int(self._chunk_table[done])) is None
        )

    def _make(self) -> None:
        self._parent.remove(self._name)
        array = zarr.create_array(
            self._parent.store(self._name),
            shape=(self.n_rows,),
            dtype=self._values.dtype,
            chunks=(max(1, self._piece),),
            compressors=None,
            fill_value=self._values.missing,
            attributes={ATTRIBUTE: self._state(complete=False)},
            config={"write_empty_chunks": True},
        )
        make_chunk_folder(array)

    def _state(self, *, complete: bool) -> dict[str, Any]:
        return {"format": FORMAT, "kind": self._values.name, "complete": complete}

    def record(self, done: int, sums: Mapping[str, ExactSums]) -> None:
        """Record the sums over the first ``done`` chunks, whose labels have been written."""
        packed = {name: sums_to_json(value) for name, value in sums.items()}
        record = {
            "format": FORMAT,
            "owner": self._owner,
            # The key is "centers" because all models formerly had centres.
            "centers": self._model,
            "done": done,
            "sums": packed,
        }
        self._parent.publish(self._progress, json.dumps(record).encode())

    def finish(self, notes: Mapping[str, Any]) -> None:
        """Mark the labels complete and store ``notes``, or write the final file without ``notes``.

        Raises OutputError.
        """
        with writing(self.url):
            array = retry_io(lambda: zarr.open_array(self._parent.store(self._name), mode="r+"))
            if (write := WRITERS.get(self._suffix or "")) is None:
                state = {**self._state(complete=True), **notes}
                retry_io(lambda: declare(array, {ATTRIBUTE: state}))
        if write is not None:
            column = self._values.name.removesuffix("s")
            self._parent.publish(self._file, lambda file: write(file, array, column))
            self._parent.remove(self._name)
        self._parent.remove(self._progress)
