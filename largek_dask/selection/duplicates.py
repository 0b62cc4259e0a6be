"""Find near-duplicate rows inside clusters: ``lk.near_duplicates``.

The method is SemDeDup (Abbas et al., "SemDeDup: Data-efficient learning at web-scale through
semantic deduplication", 2023, section 3). It clusters the rows, compares only rows of the same
cluster, and keeps the first row of each group of similar rows. The search within a cluster is exact
(`kernels.dense.earlier`).

Each pass over the table loads the rows of several clusters, up to `GROUP_BYTES`. Larger clusters
are compared in tiles that are read repeatedly.
"""

from __future__ import annotations

import csv
import io
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.data.rows import Rows
from largek_dask.data.sources import open_rows
from largek_dask.data.stores import require
from largek_dask.driver.fit import open_passes
from largek_dask.driver.storage import Folder
from largek_dask.errors import BadRowsError, OutputError, ParameterError, without_causes
from largek_dask.estimators.kmeans import KMeans
from largek_dask.kernels.blocks import rows_at
from largek_dask.kernels.dense.earlier import NONE, OrderedRows, order_rows, search_earlier
from largek_dask.kernels.distances import pack_centers, squared_distances
from largek_dask.kernels.rows import compute_dtype, normalize_rows
from largek_dask.kernels.threads import Threads
from largek_dask.model import CentersModel
from largek_dask.model.predictions import type_of_ids, write_parquet
from largek_dask.passes.base import BasePasses
from largek_dask.passes.gather import fetch
from largek_dask.passes.local import LocalPasses

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["NearDuplicates", "near_duplicates"]

Order = Literal["farthest", "nearest", "id"]

GROUP_BYTES = 512 << 20
"""Maximum size of the rows, including copies, that a process loads at a time; not tuned."""
TASK_ROWS = 1024
"""Number of rows per thread task; each row is compared with all earlier rows."""
ROWS_PER_CLUSTER, MOST_CLUSTERS = 1000, 50_000
"""Default rows per cluster and default maximum number of clusters. Searching clusters of 1000 rows
costs less than the fit. Abbas et al. (2023) use 50,000 clusters for 440 million rows."""
COLUMNS = ("id", "kept", "duplicate_of", "similarity")


@dataclass(frozen=True, eq=False, repr=False)
class NearDuplicates:
    """Result of :func:`near_duplicates`."""

    kept: NDArray[np.bool_]
    """(n,) False for near-duplicates of an earlier row in the same cluster, True for other rows."""
    duplicate_of: NDArray[np.int64]
    """(n,) table index of the most similar earlier row in the cluster; -1 for kept rows."""
    similarity: NDArray[np.float64]
    """(n,) cosine similarity to the most similar earlier row in the cluster, including for kept
    rows; NaN for rows without earlier rows."""
    labels: NDArray[np.int32]
    """(n,) cluster index of each row; -1 for rows that were not compared."""
    model: CentersModel
    """Model that assigned the rows to clusters."""
    threshold: float
    rows: Rows

    @property
    def n_kept(self) -> int:
        return int(np.count_nonzero(self.kept))

    @property
    def ids(self) -> NDArray[Any]:
        """(n,) row ids, which are read from the source; row indices if the source has no ids."""
        return np.concatenate([self.rows.read_ids(i) for i in range(self.rows.n_chunks)])

    def __repr__(self) -> str:
        n = len(self.kept)
        return (
            f"<NearDuplicates: {n - self.n_kept:,} of {n:,} rows, similarity of at least "
            f"{self.threshold:g}, {self.model.n_clusters:,} clusters>"
        )


@without_causes
def near_duplicates(
    rows: Any,
    threshold: float = 0.95,
    *,
    model: Any = None,
    n_clusters: int | None = None,
    order: Order = "farthest",
    ids: Any = None,
    column: str | None = None,
    out: str | Folder | None = None,
    client: Client | None = None,
    n_threads: int | None = None,
    random_state: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> NearDuplicates:
    """Find rows that are similar to an earlier row of their cluster (SemDeDup).

    The rows of each cluster are sorted as specified by ``order``. A row is a near-duplicate if its
    cosine similarity to any earlier row is at least the threshold, even if the earlier row is a
    near-duplicate, too. For given clusters, results are bit-identical for any number of threads and
    workers.

    Parameters
    ----------
    rows : anything that ``open_rows`` takes
        (n, d) dense rows.
    threshold : float
        Minimum cosine similarity, above 0 and at most 1. Equal rows have a similarity of exactly 1.
    model : Model or KMeans, optional
        Model with cluster centres, or a KMeans estimator, which is fitted first if necessary. The
        default is ``KMeans(n_clusters, normalize="l2", random_state=random_state)``.
    n_clusters : int, optional
        By default n / 1000, at least 1 and at most 50,000.
    order : "farthest", "nearest" or "id"
        Order of rows in a cluster: by descending or ascending distance to the centre, or as in the
        table. Rows at the same distance are in table order.
    out : str or Folder, optional
        URL of a new ``.parquet`` or ``.csv`` file with the columns "id", "kept", "duplicate_of" (id
        of the most similar earlier row; missing for kept rows) and "similarity".
    ids, column, storage_options, client, n_threads
        As in ``open_rows`` and ``KMeans``; ``storage_options`` are also used for ``out``.

    Returns
    -------
    NearDuplicates

    Raises
    ------
    ParameterError, OutputError
        A parameter is invalid, rows are sparse, or ``out`` exists; raised before computing.
    BadRowsError
        A row contains NaN or infinity, or only zeros. If the model has ``on_bad_rows="skip"``, such
        rows are kept without comparison.

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.01], [0.6, 0.8]])
    >>> found = lk.near_duplicates(x, 0.99, n_clusters=1, order="id")
    >>> found.kept, found.duplicate_of
    (array([ True,  True, False,  True]), array([-1, -1,  0, -1]))
    """
    if isinstance(threshold, bool) or not 0 < threshold <= 1:
        raise ParameterError(
            f"threshold={threshold!r} is not valid; use a number above 0 and at most 1."
        )
    if order not in get_args(Order):
        raise ParameterError(f"order={order!r} is not valid; use 'farthest', 'nearest' or 'id'.")
    place = None if out is None else _check_output(out, storage_options)
    source = open_rows(rows, column=column, ids=ids, storage_options=storage_options)
    how: dict[str, Any] = {"client": client, "n_threads": n_threads}
    if model is None:
        n_clusters = _default_clusters(source.n_rows) if n_clusters is None else n_clusters
        model = KMeans(n_clusters, normalize="l2", random_state=random_state, **how)
    elif n_clusters is not None:
        raise ParameterError("pass either a model or n_clusters, not both.")
    found = _find(source, float(threshold), model, order, how)
    if place is not None:
        _write(found, *place)
    return found


def _find(
    source: Rows, threshold: float, model: Any, order: Order, how: Mapping[str, Any]
) -> NearDuplicates:
    """Label rows by a model, which is fitted first if necessary, and search all clusters."""
    centers = getattr(model, "model_", model)
    to_fit = isinstance(centers, KMeans)
    if not to_fit and not isinstance(centers, CentersModel):
        raise ParameterError(
            f"model={type(model).__name__} has no centres of clusters; pass a KMeans or its model."
        )
    if source.is_sparse:
        raise ParameterError(
            "near_duplicates needs dense rows, but the rows are sparse; reduce their dimension, "
            "e.g. with sklearn.decomposition.TruncatedSVD."
        )
    rows = (source if to_fit else centers._open(source)).with_weight(None)
    with open_passes(rows, on_bad_rows=centers.on_bad_rows, **how) as passes:
        skipped = _find_skipped(passes)
        if to_fit:
            model.fit(passes.rows)
            centers, labels = model.model_, model.labels_.copy()
        else:
            with centers._passes(passes.rows, **how) as own:
                labels = centers._label(own, None)[0]
        labels[skipped] = -1
        search = _Search(order, centers.normalize, GROUP_BYTES)
        nearest, similarity = search.all_rows(passes, labels, centers.centers, how["client"])
    kept = ~(similarity >= threshold)
    nearest[kept] = NONE
    return NearDuplicates(kept, nearest, similarity, labels, centers, threshold, source)


def _default_clusters(n_rows: int) -> int:
    return min(max(1, round(n_rows / ROWS_PER_CLUSTER)), MOST_CLUSTERS)


def _find_skipped(passes: BasePasses) -> NDArray[np.int64]:
    """Return the indices of invalid rows and rows of zeros, or raise BadRowsError."""
    found = passes.reduce(_find_zeros, start=list, combine=operator.iadd)
    skipped = np.sort(np.concatenate([np.empty(0, np.int64), *found]))
    if len(skipped) and passes.on_bad_rows == "raise":
        chunk = int(np.searchsorted(passes.chunk_table, skipped[0], side="right")) - 1
        raise BadRowsError(
            f"row {skipped[0]} holds only zeros ({passes.rows.name_chunk(chunk)}), so it has no "
            f"direction; rows of zeros: {len(skipped):,}. Remove them, or pass a model fitted with "
            "on_bad_rows='skip' to keep them without comparison."
        )
    return skipped


def _find_zeros(chunk: Chunk, total: list[NDArray[np.int64]]) -> None:
    wrong = ~chunk.x.any(axis=1)
    if chunk.bad is not None:
        wrong |= chunk.bad
    total.append(chunk.numbers(np.flatnonzero(wrong)))


# --- search ---------------------------------------------------------------------------------------


class _Cluster(NamedTuple):
    numbers: NDArray[np.int64]
    """(m,) table indices of the rows in the cluster, in ascending order."""
    center: NDArray[Any]


Groups = Iterator[list[_Cluster]]
Found = list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]
"""Row indices, indices of the most similar earlier rows (or `NONE`), and similarities."""


@dataclass(frozen=True, slots=True)
class _Search:
    """Search clusters for the most similar earlier row of each row."""

    order: Order
    normalize: Literal["l2"] | None
    """Normalisation of rows before distances to the centre are computed."""
    most_bytes: int

    def all_rows(
        self,
        passes: BasePasses,
        labels: NDArray[np.int32],
        centers: NDArray[Any],
        client: Client | None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return, for each row of the table, the most similar earlier row and its similarity."""
        nearest, similarity = np.full(len(labels), NONE, np.int64), np.full(len(labels), np.nan)
        groups = self._groups(passes.rows, labels, centers)
        here = map(partial(self.run, passes), groups)
        for found in here if client is None else self._on_workers(client, passes, groups):
            for numbers, own, similar in found:
                nearest[numbers] = own
                similarity[numbers] = np.where(own == NONE, np.nan, similar)
        return nearest, similarity

    def _groups(self, rows: Rows, labels: NDArray[np.int32], centers: NDArray[Any]) -> Groups:
        """Yield groups of clusters of up to `most_bytes`; larger clusters form their own groups."""
        by_cluster = np.argsort(labels, kind="stable")
        ends = np.cumsum(np.bincount(labels + 1, minlength=len(centers) + 1))
        most, group, held = self._most_rows(rows), list[_Cluster](), 0
        for center, begin, end in zip(centers, ends[:-1], ends[1:], strict=True):
            if end - begin < 2:
                continue
            if group and held + end - begin > most:
                yield group
                group, held = [], 0
            group.append(_Cluster(by_cluster[begin:end], center))
            held += end - begin
        if group:
            yield group

    def _most_rows(self, rows: Rows) -> int:
        # Each row is stored as loaded, in cluster order, and normalised in float32.
        row_bytes = rows.n_features * (2 * compute_dtype(rows.dtype).itemsize + 4)
        return max(2, self.most_bytes // row_bytes)

    def _on_workers(self, client: Client, passes: BasePasses, groups: Groups) -> Iterator[Found]:
        """Search one group per worker at a time, and yield results as they are completed."""
        from distributed import as_completed

        addresses: dict[str, str] = {}
        done = as_completed(loop=client.loop)

        def submit(address: str) -> None:
            if (group := next(groups, None)) is not None:
                where: dict[str, Any] = {"workers": [address], "allow_other_workers": True}
                future = client.submit(_run_group, self, passes.rows, group, pure=False, **where)
                addresses[future.key] = address
                done.add(future)

        for address in passes.workers:
            submit(address)
        for future in done:
            submit(addresses.pop(future.key))
            yield future.result()
            passes.raise_if_stopped()

    def run(self, passes: BasePasses, group: Sequence[_Cluster]) -> Found:
        """Search a group of clusters on the threads of this process."""
        most = self._most_rows(passes.rows)
        if len(group) == 1 and len(group[0].numbers) > most:
            return list(self._in_tiles(passes, group[0], max(1, most // 2)))
        x = _gather(passes, np.concatenate([cluster.numbers for cluster in group]))
        edges = np.cumsum([0, *(len(cluster.numbers) for cluster in group)])

        def prepare(i: int) -> OrderedRows:
            cluster, own = group[i], x[edges[i] : edges[i + 1]]
            places = self._places(self._distances(own, cluster.center))
            return order_rows(rows_at(own, places), cluster.numbers[places])

        ordered = passes.threads.map(prepare, range(len(group)))
        _compare(passes.threads, [(rows, rows, 0) for rows in ordered])
        return [(rows.numbers, rows.found, rows.similarity) for rows in ordered]

    def _in_tiles(self, passes: BasePasses, cluster: _Cluster, most: int) -> Iterator[Any]:
        """Search a large cluster; at most two tiles of ``most`` rows are in memory at a time."""
        numbers, begins = cluster.numbers, range(0, len(cluster.numbers), most)
        distances = np.zeros(len(numbers))
        if self.order != "id":
            for at in begins:
                own = _gather(passes, numbers[at : at + most])
                distances[at : at + most] = self._distances(own, cluster.center)
        numbers = numbers[self._places(distances)]

        def tile(at: int) -> OrderedRows:
            own = numbers[at : at + most]
            return order_rows(_gather(passes, own), own)

        for at in begins:
            rows = tile(at)
            for other in range(0, at + 1, most):
                others = rows if other == at else tile(other)
                _compare(passes.threads, [(rows, others, at - other)])
            yield rows.numbers, rows.found, rows.similarity

    def _distances(self, x: NDArray[Any], center: NDArray[Any]) -> NDArray[np.float64]:
        """Return squared distances to the centre, or zeros if the order is "id"."""
        if self.order == "id":
            return np.zeros(len(x))
        x = normalize_rows(x) if self.normalize == "l2" else x
        center = center.astype(np.result_type(center, x))
        packed = pack_centers(center[None], np.zeros_like(center))
        return squared_distances(x, packed, np.zeros(len(x), np.int32))

    def _places(self, distances: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the indices that sort the rows of a cluster by `order`."""
        return np.argsort(-distances if self.order == "farthest" else distances, kind="stable")


def _run_group(search: _Search, rows: Rows, group: Sequence[_Cluster]) -> Found:
    """Search a group of clusters on all threads of a Dask worker."""
    from distributed import get_worker

    threads = get_worker().state.nthreads
    with LocalPasses(rows, n_threads=threads, on_bad_rows="skip") as passes:
        return search.run(passes, group)


def _compare(threads: Threads, pairs: Sequence[tuple[OrderedRows, OrderedRows, int]]) -> None:
    """Compare each row i of the first table with the first ``i + offset`` rows of the second."""
    tasks = [
        partial(search_earlier, rows, others, offset, begin, begin + TASK_ROWS)
        for rows, others, offset in pairs
        for begin in range(0, len(rows.numbers), TASK_ROWS)
    ]
    threads.map(lambda task: task(), tasks)


def _gather(passes: BasePasses, numbers: NDArray[np.int64]) -> NDArray[Any]:
    """Load the rows with the given table indices, in the given order."""
    whole = passes.rows.in_memory()
    if whole is not None:
        found: NDArray[Any] = rows_at(whole, numbers)
        return found.astype(compute_dtype(found.dtype), copy=False)
    return fetch(passes, numbers, compute_dtype(passes.rows.dtype)).x  # type: ignore[no-any-return]


# --- output ---------------------------------------------------------------------------------------


def _check_output(
    out: str | Folder, storage_options: Mapping[str, Any] | None
) -> tuple[Folder, str]:
    """Return the folder and name of the output file; raise an error if it cannot be written."""
    place = Folder.of(out, storage_options)
    folder, name = place.parent()
    if not name.lower().endswith((".parquet", ".csv")):
        raise ParameterError(f"out={place.url} must be the name of a .parquet or .csv file.")
    if name.lower().endswith(".parquet"):
        require("pyarrow.parquet", "parquet", ".parquet files")
    if folder.exists(name):
        raise OutputError(
            f"{place.url} already exists; nothing was changed. Remove it or choose another output."
        )
    folder.check_writable()
    return folder, name


def _write(found: NearDuplicates, folder: Folder, name: str) -> None:
    write: Any = _write_csv
    if not name.lower().endswith(".csv"):
        write = partial(_write_parquet, kind=type_of_ids(found.rows))
    folder.publish(name, lambda file: write(file, _parts(found)))


Part = tuple[NDArray[Any], NDArray[np.bool_], NDArray[Any], NDArray[np.float64]]


def _parts(found: NearDuplicates) -> Iterator[Part]:
    """Yield `COLUMNS` chunk by chunk; values of "duplicate_of" are arbitrary for kept rows."""
    rows = found.rows
    targets = np.unique(found.duplicate_of[~found.kept])
    names = []
    for i in range(rows.n_chunks):
        start, stop = rows.chunk_rows(i)
        begin, end = np.searchsorted(targets, [start, stop])
        if i == 0 or begin < end:
            names.append(rows.read_ids(i)[targets[begin:end] - start])
    names_of = np.concatenate(names)
    for i in range(rows.n_chunks):
        at, ids = slice(*rows.chunk_rows(i)), rows.read_ids(i)
        duplicates, places = ids.copy(), np.flatnonzero(~found.kept[at])
        duplicates = duplicates.astype(np.result_type(duplicates, names_of), copy=False)
        duplicates[places] = names_of[np.searchsorted(targets, found.duplicate_of[at][places])]
        yield ids, found.kept[at], duplicates, found.similarity[at]


def _write_csv(file: BinaryIO, parts: Iterator[Part]) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for part in parts:
        for own, kept, other, similarity in zip(*(p.tolist() for p in part), strict=True):
            similar = "" if similarity != similarity else repr(similarity)
            writer.writerow((own, str(kept).lower(), "" if kept else other, similar))
    text.detach()


def _write_parquet(file: BinaryIO, parts: Iterator[Part], kind: Any) -> None:
    import pyarrow as pa

    def tables() -> Iterator[Any]:
        for ids, kept, duplicates, similarity in parts:
            other = pa.array(duplicates, kind, mask=kept, from_pandas=True)
            similar = pa.array(similarity, from_pandas=True)
            columns = [pa.array(ids, kind, from_pandas=True), pa.array(kept), other, similar]
            yield pa.table(columns, COLUMNS)

    write_parquet(file, tables())
