"""Write labels, ids and distances to one table, or to a dataset partitioned by cluster."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.algorithms.kmeans import exact_distances
from largek_dask.data.rows import Rows
from largek_dask.data.stores import require
from largek_dask.driver.labels import group_chunks
from largek_dask.driver.storage import Folder
from largek_dask.errors import OutputError, ParameterError
from largek_dask.fault_injection import at
from largek_dask.kernels.bounds.pruned import nearest_pruned, nearest_two_pruned
from largek_dask.kernels.distances import PackedCenters, pack_centers, squared_distances

if TYPE_CHECKING:
    from largek_dask.model.centers import CentersModel
    from largek_dask.passes.base import BasePasses

Included = Literal["id", "distance", "second"]
INCLUDED = get_args(Included)
"""Optional columns; "second" adds the second nearest centre and the row's distance to it."""
HELD_BYTES = 128 << 20
"""Approximate size, in bytes, of the tables that are sorted by cluster at a time."""
GROUP_ROWS = 1 << 20
"""Approximate number of rows that are predicted at a time."""


class Predicted(NamedTuple):
    label: NDArray[np.int32]
    distance: NDArray[np.float64]
    second: NDArray[np.int32] | None
    second_distance: NDArray[np.float64] | None


class PredictionTable:
    """Table of predictions; parameters are checked before any prediction is computed.

    Parameters
    ----------
    model : CentersModel
    out : str or Folder
        URL of a ``.parquet`` or ``.csv`` file, or of a new folder with ``partition_by``.
    include : collection of str
        Names in :data:`INCLUDED`.
    partition_by : {"cluster"}, optional
        Write a folder ``cluster=N`` of Parquet files for each cluster.

    Raises
    ------
    ParameterError
        A parameter is not supported.
    OutputError
        ``out`` exists or cannot be written.
    """

    def __init__(
        self,
        model: CentersModel,
        out: str | Folder,
        include: Collection[str],
        partition_by: str | None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if wrong := [name for name in include if name not in INCLUDED]:
            raise ParameterError(
                f"include={wrong[0]!r} is not a known column; use {', '.join(INCLUDED)}."
            )
        if partition_by not in (None, "cluster"):
            raise ParameterError(
                f"partition_by={partition_by!r} is not supported; use None or 'cluster'."
            )
        self._model = model
        place = Folder.of(out, storage_options)
        self._parent, self._name = place.parent()
        self._include, self._is_partitioned = tuple(include), partition_by is not None
        suffix = os.path.splitext(self._name)[1].lower()
        if not self._is_partitioned and suffix not in (".parquet", ".csv"):
            raise ParameterError(
                f"{place.url} cannot contain several columns; write a .parquet or .csv "
                "file, or a folder with partition_by='cluster'."
            )
        require("pyarrow", "parquet", "tables of predictions")
        self._is_text = suffix == ".csv" and not self._is_partitioned
        self._parent.check_writable()
        if self._parent.exists(self._name):
            raise OutputError(f"{place.url} already exists; remove it or choose another output.")

    def write(self, passes: BasePasses, report: Callable[[int], object] | None = None) -> None:
        """Predict all rows and write the table, which only appears once it is complete.

        ``report`` is called after each group of chunks with the number of rows done.
        """
        tables = self._tables(self._model, passes, report)
        with self._parent.appearing(self._name) as temporary:
            if self._is_partitioned:
                _write_folder(self._parent.sub(temporary), tables)
                return
            write = _write_csv if self._is_text else write_parquet
            with self._parent.fs.open(self._parent.path(temporary), "wb") as file:
                write(file, tables)

    def _tables(
        self, model: CentersModel, passes: BasePasses, report: Callable[[int], object] | None
    ) -> Iterator[Any]:
        """Yield one Arrow table per chunk, in order."""
        import pyarrow as pa

        measure, has_second = measure_of(model, passes.rows.dtype), "second" in self._include
        names = ["label"]
        names += ["distance"] if "distance" in self._include else []
        names += ["second", "second_distance"] if has_second else []
        ids = type_of_ids(passes.rows) if "id" in self._include else None
        for group in group_chunks(passes.rows.chunk_table, GROUP_ROWS):
            found: dict[int, Predicted] = passes.reduce(
                _predict_chunk,
                *measure,
                has_second,
                start=dict,
                combine=operator.ior,
                chunks=list(group),
            )
            for i in group:
                columns = {name: getattr(found[i], name) for name in names}
                if ids is not None:
                    own = pa.array(passes.rows.read_ids(i), ids, from_pandas=True)
                    columns = {"id": own, **columns}
                with at("labels"):
                    yield pa.table(columns)
            if report is not None:
                report(int(passes.rows.chunk_table[group.stop]))


def _write_folder(folder: Folder, tables: Iterable[Any]) -> None:
    held: list[Any] = []
    part = 0
    for table in tables:
        held.append(table)
        if sum(one.nbytes for one in held) >= HELD_BYTES:
            _write_part(folder, held, part)
            held, part = [], part + 1
    if held:
        _write_part(folder, held, part)


def _write_part(folder: Folder, tables: Sequence[Any], part: int) -> None:
    """Write one file per cluster; skipped rows are in the folder ``cluster=-1``."""
    import pyarrow as pa

    whole = pa.concat_tables(tables)
    labels = whole.column("label").to_numpy()
    order = np.argsort(labels, kind="stable")
    edges = np.flatnonzero(np.diff(labels[order], prepend=-2, append=np.iinfo(np.int32).max))
    ordered = whole.drop_columns("label").take(pa.array(order))
    for begin, end in pairwise(edges):
        label = int(labels[order[begin]])
        rows = ordered.slice(begin, end - begin)
        cluster = f"{label:05d}" if label >= 0 else label
        if folder.is_local:
            # Folders are synced once, when the whole table is complete.
            os.makedirs(folder.path(f"cluster={cluster}"), exist_ok=True)
        name = f"cluster={cluster}/part-{part:05d}.parquet"
        folder.publish(name, partial(write_parquet, tables=[rows]), is_durable=False)


def _write_csv(file: Any, tables: Iterable[Any]) -> None:
    import pyarrow.csv as csv

    for number, table in enumerate(tables):
        csv.write_csv(table, file, csv.WriteOptions(include_header=number == 0))


def write_parquet(file: Any, tables: Iterable[Any]) -> None:
    import pyarrow.parquet as pq

    writer = None
    try:
        for table in tables:
            if writer is None:
                writer = pq.ParquetWriter(file, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def type_of_ids(rows: Rows) -> Any:
    """Return the Arrow type of the ids, of which those of the first chunks may all be missing."""
    import pyarrow as pa

    chunks = (rows.read_ids(i) for i in range(rows.n_chunks))
    types = (pa.array(ids, from_pandas=True).type for ids in chunks)
    return next((kind for kind in types if not pa.types.is_null(kind)), pa.string())


def _unit_centers(packed: PackedCenters) -> PackedCenters:
    """Scale centres to length 1: half the squared distance is then the cosine distance."""
    centers = packed.centers.astype(np.float64)
    lengths = np.linalg.norm(centers, axis=1, keepdims=True)
    unit = centers / np.where(lengths > 0, lengths, 1.0)
    return pack_centers(unit, np.zeros(unit.shape[1]))


def measure_of(model: CentersModel, dtype: Any) -> tuple[PackedCenters, PackedCenters, bool]:
    """Return centres for labels, centres for distances, and whether distances are cosine."""
    packed = model.arrays.packed_for(dtype)
    is_cosine = model.normalize == "l2"
    return packed, _unit_centers(packed) if is_cosine else packed, is_cosine


def labels_and_distances(
    chunk: Chunk, packed: PackedCenters, measured: PackedCenters, is_cosine: bool
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return each row's label and distance to its centre; -1 and NaN for skipped rows."""
    labels, _ = nearest_pruned(chunk.x, packed)
    distances = exact_distances(chunk.x, packed, labels)
    distances = (
        squared_distances(chunk.x, measured, labels) / 2 if is_cosine else np.sqrt(distances)
    )
    if chunk.bad is not None:
        labels[chunk.bad], distances[chunk.bad] = -1, np.nan
    return labels, distances


def _predict_chunk(
    chunk: Chunk,
    total: dict[int, Predicted],
    packed: PackedCenters,
    measured: PackedCenters,
    is_cosine: bool,
    has_second: bool,
) -> None:
    labels, distances = labels_and_distances(chunk, packed, measured, is_cosine)
    if not has_second:
        total[chunk.index] = Predicted(labels, distances, None, None)
        return
    # Rounding may swap the nearest and the second nearest centre.
    first, _, second, _ = nearest_two_pruned(chunk.x, packed)
    second = np.where(second == labels, first, second)
    others = _distances(chunk, measured, second, is_cosine)
    if chunk.bad is not None:
        second[chunk.bad], others[chunk.bad] = -1, np.nan
    total[chunk.index] = Predicted(labels, distances, second, others)


def _distances(
    chunk: Chunk, centers: PackedCenters, labels: NDArray[np.int32], is_cosine: bool
) -> NDArray[np.float64]:
    squares = squared_distances(chunk.x, centers, labels)
    return squares / 2 if is_cosine else np.sqrt(squares)
