"""Store labels in a Zarr array that grows group by group and can be resumed.

While it is incomplete, ``labels.zarr.progress.json`` lies beside ``labels.zarr``: the owner of the
labels, the number of chunks done, and the exact sums over them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from largek_dask.algorithms.problem import LABELS, RowValues
from largek_dask.data.durable import declare, make_chunk_folder, sync_rows, torn_chunk
from largek_dask.data.storage_errors import retry_io, unanswered, writing
from largek_dask.data.stores import ATTRIBUTE, is_local, remote_store
from largek_dask.driver.storage import DamagedError, Folder, canonical_json
from largek_dask.errors import OutputError
from largek_dask.fault_injection import at
from largek_dask.kernels.exact.numbers import LIMB, ORIGIN, ExactSums
from largek_dask.version import check_format

__all__ = [
    "LABEL_BYTES",
    "LabelStore",
    "LabelWriter",
    "are_whole",
    "group_chunks",
    "refuse_taken",
    "sums_from_json",
    "sums_to_json",
]

FORMAT = 1
GROUP_ROWS = 1 << 22
"""Rows per group: what a killed run may lose, and what the driver may hold at once."""
LABEL_BYTES = 4
PIECE_ROWS = 1 << 20
"""Rows of a stored piece if the chunk table is not regular."""


def group_chunks(chunk_table: NDArray[np.int64], most: int | None = None) -> Iterator[range]:
    """Yield ranges of at least one chunk and about ``most`` (``GROUP_ROWS``) rows each."""
    most = GROUP_ROWS if most is None else most
    n_chunks, begin = len(chunk_table) - 1, 0
    while begin < n_chunks:
        limit = chunk_table[begin] + most
        end = max(begin + 1, int(np.searchsorted(chunk_table, limit, side="right")) - 1)
        yield range(begin, end)
        begin = end


def sums_to_json(sums: ExactSums) -> dict[str, Any]:
    """Encode exact sums."""
    values, exponent = sums.integers()
    return {"integers": [f"{value:x}" for value in values], "exponent": exponent}


def sums_from_json(packed: Mapping[str, Any]) -> ExactSums:
    """Decode exact sums."""
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
    """Return the stored array; None if it is missing or unreadable."""
    try:
        return retry_io(lambda: zarr.open_array(parent.store(name, read_only=True), mode="r"))
    except (OSError, KeyError, ValueError, TypeError) as error:
        if unanswered(error):
            raise
        return None


def are_whole(place: Folder) -> bool:
    """Return whether labels of all rows are there, declared complete, and none are torn."""
    array = _opened(*place.parent())
    if array is None or torn_chunk(array) is not None:
        return False
    notes = array.attrs.get(ATTRIBUTE)
    return isinstance(notes, Mapping) and notes.get("complete") is True


def refuse_taken(place: Folder) -> None:
    """Raise OutputError if the output exists."""
    if place.exists():
        raise OutputError(
            f"{place.url} exists already; nothing was changed. Remove it or choose another output."
        )


@dataclass(frozen=True, slots=True)
class LabelWriter:
    """Write labels where they are computed; sent to workers."""

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, start: int, labels: NDArray[Any]) -> None:
        """Write the labels of the rows from ``start`` on, or raise OutputError."""
        what = f"{self.url} (labels of rows {start} to {start + len(labels) - 1})"
        with writing(what), at("labels"):
            retry_io(lambda: self._write(start, labels))

    def _write(self, start: int, labels: NDArray[Any]) -> None:
        store: Any = self.url
        if not is_local(self.url):
            store = remote_store(self.url, self.storage_options, read_only=False)
        _write_rows(store, start, labels)


def _write_rows(store: Any, start: int, labels: NDArray[Any]) -> None:
    """Write labels of the rows from ``start`` on, durably."""
    array = zarr.open_array(store, mode="r+")
    array[start : start + len(labels)] = labels
    sync_rows(array, start, start + len(labels))


class LabelStore:
    """Zarr array of one number per row, such as its label.

    ``owner`` is JSON that identifies model and data: unfinished labels of the same owner are
    resumed. Raises OutputError if anything else is there, or it cannot be written.
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
        self.url = place.url
        self.n_rows = int(chunk_table[-1])
        self._chunk_table = chunk_table
        self._owner = json.loads(canonical_json(owner))
        self._progress = f"{self._name}.progress.json"
        self._options = place.storage_options
        lengths = np.diff(chunk_table)
        regular = bool((lengths[:-1] == lengths[0]).all()) and lengths[-1] <= lengths[0]
        self._piece = int(lengths[0]) if regular else min(PIECE_ROWS, self.n_rows)
        # Workers write only if no two chunks share a stored piece.
        reachable = not self.url.startswith("memory://")
        self.writer = LabelWriter(self.url, self._options) if regular and reachable else None
        self._model = ""
        self._parent.check_writable()
        self._check_free()

    def _check_free(self) -> None:
        if self._unfinished() is not None:
            return
        refuse_taken(self._parent.sub(self._name))
        what = f"{self._values.name.replace('_', ' ')} of {self.n_rows:,} rows"
        self._parent.check_space(self._row_bytes * self.n_rows, what)

    @property
    def _row_bytes(self) -> int:
        return np.dtype(self._values.dtype).itemsize

    def _unfinished(self) -> dict[str, Any] | None:
        """Return the record of an unfinished run of the same owner; None without one."""
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
                f"{self.url} holds unfinished labels of another model or other data; remove it "
                f"and {self._progress}, or choose another output."
            )
        return record  # type: ignore[no-any-return]

    def begin(self, model: str) -> tuple[int, dict[str, ExactSums]]:
        """Return the number of chunks done and the sums over them; create the array if none are.

        ``model`` is its hash; only labels of the same model are resumed.
        """
        record = self._unfinished()
        self._model = model
        goes_on = record is not None and record["done"] > 0 and record["centers"] == model
        if record is not None and goes_on and self._are_there(record["done"]):
            sums = {name: sums_from_json(packed) for name, packed in record["sums"].items()}
            return record["done"], sums
        # The record comes first: an array without one would be refused.
        self.record(0, {})
        with writing(self.url):
            retry_io(self._make)
        return 0, {}

    def _are_there(self, done: int) -> bool:
        """Return whether the labels of these chunks are intact."""
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

    def write(self, start: int, labels: NDArray[Any]) -> None:
        """Write labels from this process."""
        with at("labels"):
            retry_io(lambda: _write_rows(self._parent.store(self._name), start, labels))

    def record(self, done: int, sums: Mapping[str, ExactSums]) -> None:
        """Record that the first ``done`` chunks are written, and the sums over them."""
        packed = {name: sums_to_json(value) for name, value in sums.items()}
        record = {
            "format": FORMAT,
            "owner": self._owner,
            # Named when centres were the only kind of model.
            "centers": self._model,
            "done": done,
            "sums": packed,
        }
        self._parent.publish(self._progress, json.dumps(record).encode())

    def finish(self, notes: Mapping[str, Any]) -> None:
        """Declare the labels complete, or raise OutputError."""
        state = {**self._state(complete=True), **notes}
        with writing(self.url):
            array = retry_io(lambda: zarr.open_array(self._parent.store(self._name), mode="r+"))
            retry_io(lambda: declare(array, {ATTRIBUTE: state}))
            self._parent.remove(self._progress)
