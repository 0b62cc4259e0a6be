"""Models of k-means: each row belongs to its nearest centre."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.algorithms.kmeans import CenterArrays, nearest_center
from largek_dask.algorithms.objective import INERTIA, Objective
from largek_dask.algorithms.problem import Labelling
from largek_dask.driver.final import label_rows
from largek_dask.driver.labels import group_chunks
from largek_dask.driver.plan import beyond_reach, check_output_fits
from largek_dask.errors import ParameterError, without_causes
from largek_dask.kernels.blocks import dense_rows
from largek_dask.kernels.dense.doubts import distances_of_far
from largek_dask.kernels.distances import PackedCenters, scores
from largek_dask.model.base import Model, check_numbers
from largek_dask.model.exemplars import Exemplars, find_exemplars
from largek_dask.model.predictions import PredictionTable, measure_of

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.driver.labels import LabelStore
    from largek_dask.driver.storage import Folder
    from largek_dask.passes.base import BasePasses


class CentersModel(Model):
    """K-means model, with all settings needed to label rows as in the fit.

    Examples
    --------
    >>> import numpy as np
    >>> import largek_dask as lk
    >>> x = np.repeat(np.eye(3, dtype=np.float32), 5, axis=0)
    >>> model = lk.KMeans(3, random_state=0).fit(x).model_
    >>> len(set(model.predict(x)))
    3
    """

    kind: ClassVar[str] = "centers"
    holds: ClassVar[type[Any]] = CenterArrays
    objective: ClassVar[Objective] = INERTIA
    _labels_by_nearest: ClassVar[bool] = True

    arrays: CenterArrays

    @property
    def centers(self) -> NDArray[Any]:
        """(k, d) centres in the coordinates of the (normalised) data."""
        return self.arrays.centers

    @property
    def counts(self) -> NDArray[np.float64]:
        """(k,) total weight of the rows of each cluster."""
        return self.arrays.counts

    @property
    def n_features(self) -> int:
        """Number of columns d."""
        return int(self.arrays.centers.shape[1])

    def _score(self, passes: BasePasses) -> float:
        labelled = label_rows(passes, self._labelling(passes.rows.dtype), labels=False)
        inertia = labelled.sum_of("inertia")
        if not np.isfinite(inertia):
            raise beyond_reach(self.arrays.packed_for(np.float64).centers)
        return -inertia

    def score_figures(self, score: float, n_rows: int) -> dict[str, float]:
        """Return the inertia and the mean squared distance of a row to its centre."""
        return {"inertia": -score, "mean_squared_distance": -score / n_rows}

    @without_causes
    def transform(
        self, rows: Any, *, client: Client | None = None, n_threads: int | None = None
    ) -> NDArray[Any]:
        """Return the distances of every row to every centre.

        Returns
        -------
        ndarray of shape (n, k)
            Distances in the wider of the types of rows and centres: NaN for rows that are skipped,
            and 0 if the square is too small for the type (distances below 1e-22 in float32).

        Raises
        ------
        ParameterError
            The number of columns differs from that of the model.
        NotEnoughMemoryError
            The distances do not fit into memory; raised before computing.
        """
        opened = self._open(rows)
        packed = self.arrays.packed_for(opened.dtype)
        check_output_fits((opened.n_rows, self.n_clusters), packed.dtype.itemsize)
        distances = np.empty((opened.n_rows, self.n_clusters), packed.dtype)
        with self._passes(opened, client, n_threads) as passes:
            for group in group_chunks(opened.chunk_table):
                parts: dict[int, NDArray[Any]] = passes.reduce(
                    _distances_chunk, packed, start=dict, combine=operator.ior, chunks=list(group)
                )
                for i, part in parts.items():
                    distances[opened.chunk_table[i] : opened.chunk_table[i + 1]] = part
        return distances

    @without_causes
    def exemplars(
        self,
        rows: Any,
        n: int = 5,
        *,
        column: str | None = None,
        ids: Any = None,
        client: Client | None = None,
        n_threads: int | None = None,
    ) -> Exemplars:
        """Find the rows nearest to each centre, and the rows of each cluster farthest from it.

        Parameters
        ----------
        rows : anything that ``open_rows`` takes
            (n_rows, d) rows.
        n : int
            Number of nearest and of farthest rows per cluster.
        column, ids : optional
            As in :func:`~largek_dask.open_rows`.
        client, n_threads : optional
            As in ``predict``.

        Returns
        -------
        Exemplars
            ``nearest`` and ``farthest``, each with ``rows`` (indices), ``ids`` and ``distances``
            of shape (k, n). Equal distances are sorted by the index of the row.

        Raises
        ------
        ParameterError
            The number of columns differs from that of the model, or ``n`` is less than 1.
        """
        if n < 1:
            raise ParameterError(f"n={n} must be an integer of at least 1.")
        opened = self._open(rows, column=column, ids=ids)
        with self._passes(opened, client, n_threads) as passes:
            return find_exemplars(passes, *measure_of(self, opened.dtype), n)

    def _label(
        self, passes: BasePasses, out: LabelStore | None
    ) -> tuple[NDArray[np.int32] | None, dict[str, Any]]:
        labelled = label_rows(passes, self._labelling(passes.rows.dtype), out=out)
        return labelled.labels, {"inertia": labelled.sum_of("inertia")}

    def _table(self, out: str | Folder, include: Collection[str], *about: Any) -> PredictionTable:
        if "second" in include and self.n_clusters < 2:
            raise ParameterError("include='second' needs a model of at least two clusters.")
        return PredictionTable(self, out, include, *about)

    def _cluster_centers(self) -> NDArray[Any]:
        return self.arrays.centers

    def _labelling(self, dtype: DTypeLike) -> Labelling:
        return nearest_center(self.arrays, dtype)

    def _check(self) -> None:
        centers, counts, shift = self.arrays.centers, self.arrays.counts, self.arrays.shift
        if centers.ndim != 2 or 0 in centers.shape or centers.dtype not in (np.float32, np.float64):
            raise ValueError(
                f"centres have an invalid shape {centers.shape} or type {centers.dtype}"
            )
        k, d = centers.shape
        check_numbers("centres", centers, (k, d), centers.dtype)
        check_numbers("counts", counts, (k,), least=0)
        check_numbers("a shift", shift, (d,), centers.dtype)

    def _own_facts(self) -> dict[str, str]:
        return {"features": f"{self.n_features:,} ({self.centers.dtype.name})"}


def _distances_chunk(chunk: Chunk, total: dict[int, NDArray[Any]], centers: PackedCenters) -> None:
    distances = np.sqrt(scores(chunk.x, centers))
    far = np.flatnonzero(np.isinf(distances).any(axis=1))
    if len(far):
        with np.errstate(over="ignore"):
            distances[far] = distances_of_far(dense_rows(chunk.x[far]), centers.centers)
    if chunk.bad is not None:
        distances[chunk.bad] = np.nan
    total[chunk.index] = distances
