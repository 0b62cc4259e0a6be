"""Models that contain the partitions into 1 to k clusters, with measures of their quality."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.kmeans import CenterArrays
from largek_dask.algorithms.path_arrays import FIGURES, PathArrays, centers_in, rows_of_path
from largek_dask.driver.options import is_integer
from largek_dask.errors import ParameterError
from largek_dask.model.base import check_numbers
from largek_dask.model.centers import CentersModel
from largek_dask.model.suggest_k import Curve, SuggestedK, spectrum_of, suggest_from

COUNTS = ("ties", "moves")
"""Names of the values that are counts of rows."""


class Path:
    """Partitions of a fit into 1 to k clusters, returned by :attr:`PathModel.path_`.

    Examples
    --------
    >>> import numpy as np
    >>> from largek_dask.algorithms.path_arrays import PathArrays
    >>> from largek_dask.model import PathModel
    >>> centers = np.array([[2.0], [1.0], [3.5]])
    >>> counts, inertia = np.array([4.0, 3.0, 1.0]), np.array([5.0, 2.0])
    >>> figures = np.zeros((2, 4)), np.array([1.0, 0.9])
    >>> arrays = PathArrays(
    ...     centers[1:], counts[1:], np.zeros(1), centers, counts, inertia, inertia / 2, *figures
    ... )
    >>> path = PathModel(arrays).path_
    >>> len(path), path.centers(1).tolist(), path.model(2).n_clusters
    (2, [[2.0]], 2)
    >>> path.records()[1]["movement"]
    0.0
    """

    def __init__(self, model: PathModel) -> None:
        self._model = model

    @property
    def inertia(self) -> NDArray[np.float64]:
        """(k,) exact sums of ``w ||x - c||^2`` over all rows, for 1 to k clusters."""
        return self._model.arrays.inertia

    @property
    def lower_bound(self) -> NDArray[np.float64]:
        """(k,) lower bounds of the inertia of any partition into 1, 2, ... k clusters."""
        return self._model.arrays.lower_bound

    @property
    def gap(self) -> NDArray[np.float64]:
        """(k,) upper bounds of the fraction by which each inertia can be reduced."""
        saved = np.maximum(self.inertia - self.lower_bound, 0)
        return np.divide(saved, self.inertia, out=np.zeros_like(saved), where=self.inertia > 0)

    @property
    def stability(self) -> NDArray[np.float64]:
        """(k,) adjusted Rand index between partitions of two halves of a sample; NaN if unknown."""
        return self._model.arrays.stability

    def centers(self, n_clusters: int) -> NDArray[Any]:
        """(l, d) centres of the partition into l clusters.

        Raises
        ------
        ParameterError
            There is no such partition.
        """
        self._check(n_clusters)
        return centers_in(self._model.arrays.path, n_clusters)

    def model(self, n_clusters: int) -> CentersModel:
        """Return the partition into l clusters as a separate model.

        Raises
        ------
        ParameterError
            There is no such partition.
        """
        whole, arrays = self._model, self._model.arrays
        centers = self.centers(n_clusters)
        counts = centers_in(arrays.counts_of_path, n_clusters)
        provenance = {
            **whole.provenance,
            whole.objective.name: float(self.inertia[n_clusters - 1]),
            "partition": {"n_clusters": int(n_clusters), "of": whole.digest()},
        }
        return CentersModel(
            CenterArrays(centers, counts, arrays.shift),
            whole.normalize,
            whole.on_bad_rows,
            provenance=provenance,
            feature_names=whole.feature_names,
            scaling=whole.scaling,
        )

    def suggest_k(self) -> SuggestedK:
        """Suggest a number of clusters, if one stands out: see ``largek_dask.model.suggest_k``."""
        d, weight = self._model.n_features, float(np.cumsum(self._model.counts)[-1])
        sizes, spectrum = np.arange(1, len(self) + 1), spectrum_of(self.lower_bound, d)
        return suggest_from(Curve(sizes, self.inertia, weight, d, spectrum), self.stability)

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per partition, with None for unknown values.

        ``inertia``, ``lower_bound``, ``gap`` and ``stability`` are the values of the attributes.
        Four more values measure how close a partition is to a fixed point. ``movement`` is the
        largest distance of a centre to the mean of its rows. ``ties`` is the number of rows with
        two nearest centres. ``moves`` is the number of rows whose move to another cluster would
        lower the objective. ``swap`` is the smallest change of the objective if any examined row
        replaces a centre; it is negative if such a swap lowers the objective.
        """
        columns = (
            np.arange(1, len(self) + 1), self.inertia, self.lower_bound, self.gap,
            *self._model.arrays.stationarity.T, self.stability,
        )  # fmt: skip
        names = ("n_clusters", "inertia", "lower_bound", "gap", *FIGURES, "stability")
        return records_of(names, columns)

    def _check(self, n_clusters: int) -> None:
        if not is_integer(n_clusters) or not 1 <= n_clusters <= len(self):
            raise ParameterError(
                f"the path has no partition into n_clusters={n_clusters!r} clusters; use an "
                f"integer from 1 to {len(self)}."
            )

    def __len__(self) -> int:
        return len(self._model.arrays.inertia)

    def __repr__(self) -> str:
        least, most = self.inertia[-1], self.inertia[0]
        return (
            f"<Path of the partitions into 1 to {len(self)} clusters, inertia {most:.6g} to "
            f"{least:.6g}>"
        )


class PathModel(CentersModel):
    """K-means model that also contains all partitions into fewer clusters."""

    kind: ClassVar[str] = "path"
    holds: ClassVar[type[Any]] = PathArrays

    arrays: PathArrays

    @property
    def path_(self) -> Path:
        """All partitions, including the partition of the model itself."""
        return Path(self)

    def fit_figures(self) -> dict[str, float]:
        return {"partitions": float(self.n_clusters)}

    def _check(self) -> None:
        arrays = self.arrays
        k = len(arrays.centers)
        n = rows_of_path(k)
        expected = (n, *arrays.centers.shape[1:]), arrays.centers.dtype
        if not k or (arrays.path.shape, arrays.path.dtype) != expected:
            raise ValueError(
                f"the path has an invalid shape {arrays.path.shape} or type {arrays.path.dtype}"
            )
        super()._check()
        if not np.isfinite(arrays.path).all():
            raise ValueError("the path contains NaN or infinity")
        check_numbers("counts_of_path", arrays.counts_of_path, (n,), least=0)
        # The inertia is infinite if a search was stopped before this partition.
        check_numbers("inertia", _without(np.inf, arrays.inertia), (k,), least=0)
        check_numbers("lower_bound", arrays.lower_bound, (k,))
        for name, shape in (("stationarity", (k, len(FIGURES))), ("stability", (k,))):
            check_numbers(name, _without(np.nan, getattr(arrays, name)), shape)
        for whole, last in (("path", "centers"), ("counts_of_path", "counts")):
            if not np.array_equal(centers_in(getattr(arrays, whole), k), getattr(arrays, last)):
                raise ValueError(f"{last} differ from the last rows of {whole}")

    def _own_facts(self) -> dict[str, str]:
        return {**super()._own_facts(), "partitions": f"into 1 to {self.n_clusters:,} clusters"}


def records_of(names: Sequence[str], columns: Sequence[NDArray[Any]]) -> list[dict[str, Any]]:
    """Return one dictionary per row, with None instead of NaN."""
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [
        {
            name: None if isnan(value) else int(value) if name in COUNTS else value
            for name, value in zip(names, row, strict=True)
        }
        for row in rows
    ]


def _without(unknown: float, figures: NDArray[Any]) -> NDArray[Any]:
    known = figures.copy()
    known[np.isnan(known) if np.isnan(unknown) else known == unknown] = 0
    return known
