"""Write values of all rows to one file: .npy, .csv or .parquet, by its suffix.

Values are first gathered in a Zarr store beside the file, which several workers can write and a
killed run resumes. The file is made from it piece by piece, and appears whole or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import zarr
from numpy.typing import NDArray

from largek_dask.algorithms.problem import LABELS, RowValues
from largek_dask.data.storage_errors import retry_io
from largek_dask.data.stores import read_stored, require
from largek_dask.driver.labels import LabelStore, refuse_taken
from largek_dask.driver.storage import Folder
from largek_dask.errors import ParameterError

__all__ = [
    "LabelFile",
    "open_label_output",
    "stage_of",
    "suffix_of",
]

SUFFIX = re.compile(r"[^/]\.([A-Za-z][A-Za-z0-9]*)$")
"""A suffix begins with a letter; a version or a date in a name is not one."""
ZARR = (None, ".zarr")
STAGE = ".partial.zarr"
"""Suffix of the store in which values are gathered."""
PIECE_ROWS = 1 << 20


def suffix_of(url: str) -> str | None:
    """Return the suffix that determines an output's format; None: a Zarr store.

    Raises ParameterError if it is not allowed.
    """
    found = SUFFIX.search(url)
    suffix = None if found is None else f".{found[1].lower()}"
    if suffix in ZARR:
        return None
    if suffix not in WRITERS:
        raise ParameterError(
            f"{url} ends in {suffix!r}, which is not written here: name it .zarr (or without a "
            "suffix), .npy, .csv or .parquet."
        )
    return suffix


@dataclass(frozen=True, slots=True)
class Table:
    """Values of all rows, read piece by piece."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[NDArray[Any]]]
    """Returns them from the first row to the last."""

    @property
    def column(self) -> str:
        """Name of the column in a CSV or Parquet file."""
        return self.name.removesuffix("s")


def write_npy(file: Any, table: Table) -> None:
    """Write an array for ``numpy.load``."""
    header = {"descr": table.dtype.str, "fortran_order": False, "shape": table.shape}
    np.lib.format.write_array_header_1_0(file, header)
    for piece in table.pieces():
        file.write(np.asarray(piece, table.dtype).tobytes())


def write_csv(file: BinaryIO, table: Table) -> None:
    """Write one column with a header; floats round-trip."""
    file.write(f"{table.column}\n".encode())
    for piece in table.pieces():
        file.write("".join(f"{value!r}\n" for value in piece.tolist()).encode())


def write_parquet(file: BinaryIO, table: Table) -> None:
    """Write one column, one row group per piece."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(table.column, pa.from_numpy_dtype(table.dtype.newbyteorder("=")))])
    with pq.ParquetWriter(file, schema) as writer:
        for piece in table.pieces():
            writer.write_table(pa.table([pa.array(piece)], schema=schema))


WRITERS: Mapping[str, Callable[[BinaryIO, Table], None]] = {
    ".npy": write_npy,
    ".csv": write_csv,
    ".parquet": write_parquet,
}
TEXT_BYTES = {"i": 12, "f": 26}
"""Maximum bytes of a number in a CSV file, by the kind of its type."""


def open_label_output(
    place: str | Folder,
    chunk_table: NDArray[np.int64],
    owner: Mapping[str, Any],
    storage_options: Mapping[str, Any] | None = None,
    values: RowValues = LABELS,
) -> LabelStore:
    """Open the output for one number per row: a Zarr array, or the file that the suffix determines.

    Arguments and errors are those of :class:`~largek_dask.driver.labels.LabelStore`.
    """
    folder = Folder.of(place, storage_options)
    suffix = suffix_of(folder.url)
    if suffix is None:
        return LabelStore(folder, chunk_table, owner, storage_options, values)
    return LabelFile(folder, suffix, chunk_table, owner, values)


def stage_of(place: Folder) -> Folder:
    """Return the store in which values are gathered: beside a file; of a store, itself."""
    if suffix_of(place.url) is None:
        return place
    parent, name = place.parent()
    return parent.sub(name + STAGE)


class LabelFile(LabelStore):
    """Label store that becomes a file of a suffix's format once all values are there."""

    def __init__(
        self,
        place: Folder,
        suffix: str,
        chunk_table: NDArray[np.int64],
        owner: Mapping[str, Any],
        values: RowValues,
    ) -> None:
        if suffix == ".parquet":
            require("pyarrow.parquet", "parquet", ".parquet files")
        self._suffix = suffix
        self._file = place.parent()[1]
        refuse_taken(place)
        super().__init__(stage_of(place), chunk_table, owner, values=values)

    @property
    def _row_bytes(self) -> int:
        dtype = np.dtype(self._values.dtype)
        of_file = TEXT_BYTES[dtype.kind] if self._suffix == ".csv" else dtype.itemsize
        return dtype.itemsize + of_file

    def finish(self, notes: Mapping[str, Any]) -> None:
        """Write the file and remove the store; a file has no place for notes."""
        array = retry_io(lambda: zarr.open_array(self._parent.store(self._name), mode="r"))
        table = _stored(self._values.name, array)
        self._parent.publish(self._file, lambda file: WRITERS[self._suffix](file, table))
        self._parent.remove(self._name)
        self._parent.remove(self._progress)


def _stored(name: str, array: Any) -> Table:

    def pieces() -> Iterator[NDArray[Any]]:
        for start in range(0, array.shape[0], PIECE_ROWS):
            stop = min(start + PIECE_ROWS, array.shape[0])
            yield retry_io(partial(read_stored, array, start, stop, complete=True))

    return Table(name, array.dtype, array.shape, pieces)
