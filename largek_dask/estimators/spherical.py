"""Spherical k-means: k-means by cosine similarity, with centres of unit length."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Algorithm
from largek_dask.algorithms.choices import EmptyClusters
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.minibatch import BatchTotal, batch_chunk
from largek_dask.algorithms.parts.relocation import relocate_empty
from largek_dask.algorithms.parts.totals import AssignmentTotal
from largek_dask.algorithms.problem import Final
from largek_dask.driver.final import label_rows
from largek_dask.driver.fit import open_passes
from largek_dask.driver.stopping import StopReason
from largek_dask.errors import ParameterError
from largek_dask.estimators.kmeans import KMeans
from largek_dask.kernels.distances import pack_centers
from largek_dask.kernels.exact.movement import squared_movement
from largek_dask.kernels.rows import normalize_rows
from largek_dask.model import CentersModel, Model

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.data.rows import Rows
    from largek_dask.driver.fit import FitResult
    from largek_dask.driver.options import FitOptions
    from largek_dask.driver.run import Snapshot
    from largek_dask.passes.base import BasePasses

SEARCH_SHARE = 0.75
"""Fraction of ``max_time`` for the search; the rest is for steps with unit centres."""
SEARCHED = ("converged", "tol", "max_iter")
"""Stop reasons of the search after which steps with unit centres are made."""


class SphericalKMeans(KMeans):
    """K-means by cosine similarity, with centres of unit length.

    Equivalent to faiss with ``spherical=True``. Rows are scaled to unit length, and the search is
    that of ``KMeans(normalize="l2")``, whose centres are means and shorter than 1. Then steps of
    spherical k-means run until the centres stay the same: each row is assigned to the centre with
    the largest cosine, and each centre becomes the normalised sum of its rows.

    Parameters
    ----------
    n_clusters : int
        Number of clusters to form and of centres to find.
    max_iter : int
        Maximum number of steps, in the search and after it together.
    tol : float
        See :class:`KMeans`; used in the search and after it.
    max_time : float or str, optional
        See :class:`KMeans`; a quarter of it is reserved for the steps after the search.
    algorithm, init, n_init, empty_clusters, on_bad_rows, effort, random_state, client, n_threads, \
memory_limit, checkpoint, verbose, callbacks
        See :class:`KMeans`. Checkpoints, progress and callbacks cover the search; a resumed fit
        repeats the steps after it, with the same result.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Centres of unit length.
    labels_ : ndarray of shape (n_rows,), int32
        Index of the centre of largest cosine, -1 for skipped rows. A row of zeros has distance 1
        to every centre.
    inertia_ : float
        ``Σ w |x / |x| - c|²`` = 2 Σ w (1 - cos). ``score`` is its negative for the given rows, and
        ``transform`` returns the distances √(2 - 2 cos).
    n_iter_ : int
        Number of steps, in the search and after it together.
    history_ : tuple of dict
        Steps of the search. Their costs are relative to means, and lower than with unit centres.

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.array([[1.0, 0.0], [9.0, 1.0], [0.0, 2.0], [0.1, 5.0]])
    >>> km = lk.SphericalKMeans(2, random_state=0).fit(x)
    >>> km.labels_[0] == km.labels_[1], km.labels_[2] == km.labels_[3]
    (np.True_, np.True_)
    >>> np.linalg.norm(km.cluster_centers_, axis=1).round(12)
    array([1., 1.])
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        algorithm: str | Algorithm[Any, Any] = "auto",
        init: str | NDArray[Any] | Callable[..., Any] = "auto",
        n_init: int | Literal["auto"] = 1,
        max_iter: int = 300,
        tol: float = 1e-4,
        max_time: float | str | None = None,
        empty_clusters: Literal["relocate", "keep"] = "relocate",
        on_bad_rows: Literal["raise", "skip"] = "raise",
        effort: Literal["fast", "balanced", "best"] = "balanced",
        random_state: Any = None,
        client: Client | None = None,
        n_threads: int | None = None,
        memory_limit: int | str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        verbose: int | bool = 0,
        callbacks: Sequence[Callable[[Snapshot], object]] = (),
    ) -> None:
        parameters = dict(locals(), normalize="l2")
        del parameters["self"], parameters["__class__"]
        super().__init__(**parameters)

    @classmethod
    def _parameters_of(cls, model: Any) -> dict[str, Any]:
        lengths = np.sqrt(np.square(model.centers.astype(np.float64)).sum(axis=1))
        scaled = model.normalize != "l2" or model.scaling is not None
        if scaled or not np.allclose(lengths, 1, rtol=0, atol=1e-5):
            raise ParameterError(
                f"{cls.__name__}.from_model needs a model of normalised rows whose centres have "
                "unit length; for other models, use KMeans.from_model."
            )
        return {"n_clusters": model.n_clusters, "on_bad_rows": model.on_bad_rows}

    def _run(self, rows: Rows, options: FitOptions) -> tuple[FitResult, Model]:
        limit = None if options.max_time is None else SEARCH_SHARE * options.stop.seconds
        return super()._run(rows, replace(options, max_time=limit))

    def _finish(self, rows: Rows, options: FitOptions, result: FitResult, model: Model) -> None:
        """Run spherical k-means from the centres of the search, and label the rows."""
        began = time.monotonic() - result.seconds
        steps = options.max_iter - result.n_iter if result.stop_reason in SEARCHED else 0
        with open_passes(
            rows,
            client=self.client,
            n_threads=self.n_threads,
            memory_limit=options.memory_bytes,
            normalize="l2",
            on_bad_rows=options.on_bad_rows,
            statistics=result.statistics,
        ) as passes:
            assert isinstance(result.arrays, CenterArrays), "k-means gives centres"
            spherical = _UnitSteps(result.arrays, result.stop_reason)
            spherical.run(passes, steps, options.tol, began + options.stop.seconds)
            found = _last_pass(passes, spherical.arrays, options.empty_clusters)
        assert found.labels is not None
        self.labels_ = found.labels
        provenance = {
            **result.provenance,
            "n_iter": result.n_iter + spherical.steps,
            "stop_reason": spherical.reason,
            result.objective.name: found.value,
            "unit_centers": {"steps": spherical.steps},
        }
        # Drop the partitions of a path, because their centres are means.
        kept = {f.name: getattr(model, f.name) for f in fields(Model)}
        model = CentersModel(**{**kept, "arrays": found.arrays, "provenance": provenance})
        super()._finish(rows, options, result, model)

    def _constrain(self, model: CentersModel) -> CentersModel:
        """Scale the centres of ``partial_fit`` to unit length."""
        centers = _unit_centers(model.centers)
        return replace(model, arrays=replace(model.arrays, centers=centers))


@dataclass
class _UnitSteps:
    arrays: CenterArrays
    """Result of the search, later replaced by the result with centres of unit length."""
    reason: StopReason
    """Stop reason of the search, later replaced by the stop reason of the steps."""
    steps: int = 0

    def run(self, passes: BasePasses, most: int, tol: float, until: float) -> None:
        """Run up to ``most`` steps, or until the centres move by at most ``tol``.

        The run stops early enough to complete a last pass before ``until`` (a ``time.monotonic()``
        value).
        """
        self._set_centers(_unit_centers(self.arrays.centers))
        begun = time.monotonic()
        while self.steps < most:
            try:
                reason = self._step(passes, tol)
            except KeyboardInterrupt:
                reason = "interrupted"
            now = time.monotonic()
            if reason is None and now + 2 * (now - begun) > until:
                reason = "max_time"
            self.reason, begun = reason or "max_iter", now
            if reason is not None:
                return

    def _step(self, passes: BasePasses, tol: float) -> StopReason | None:
        """Make one pass over all rows; return the stop reason, or None to continue."""
        before = self.arrays.centers
        k, d = before.shape
        total: BatchTotal = passes.reduce(
            batch_chunk,
            pack_centers(before, self.arrays.shift),
            start=partial(AssignmentTotal, k, d, passes.statistics.grid),
            combine=AssignmentTotal.combine,
        )
        centers = _directions(total.sums.means_float64(before), before)
        self._set_centers(centers)
        self.steps += 1
        if np.array_equal(centers, before):
            return "converged"
        variance = total.squares.value / (passes.statistics.total_weight * d)
        return "tol" if squared_movement(centers, before) <= tol * variance else None

    def _set_centers(self, centers: NDArray[Any]) -> None:
        self.arrays = replace(self.arrays, centers=centers)


def _last_pass(passes: BasePasses, arrays: CenterArrays, empty_clusters: EmptyClusters) -> Final:
    """Label rows by the final centres; relocate empty clusters if requested."""
    problem = KMeansProblem(len(arrays.centers), empty_clusters="keep")
    for _ in range(1 + len(arrays.centers)):
        found = problem.finish(passes, arrays, partial(label_rows, passes))
        empty = np.flatnonzero(found.arrays.counts == 0)
        if not len(empty) or empty_clusters == "keep":
            break
        # With an extra centre at 0, no centre is relocated to a row of zeros.
        centers = np.concatenate([arrays.centers, np.zeros_like(arrays.centers[:1])])
        packed = pack_centers(centers, arrays.shift)
        moved = relocate_empty(passes, packed, centers, empty)[0][:-1]
        if np.array_equal(moved, arrays.centers):
            break
        arrays = replace(arrays, centers=moved)
    return found


def _unit_centers(means: NDArray[Any]) -> NDArray[Any]:
    """Return the (k, d) means of a search, scaled to unit length.

    A mean of 0 has no direction, so its centre is set opposite to the sum of the other centres.
    """
    found = normalize_rows(np.ascontiguousarray(means, np.float64))
    away = normalize_rows(-np.cumsum(found, axis=0)[-1:])[0]
    if not away.any():
        away[0] = 1
    found[~found.any(axis=1)] = away
    return np.ascontiguousarray(found, means.dtype)


def _directions(means: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
    """Return the (k, d) means scaled to unit length; a centre whose mean is 0 does not move."""
    found = normalize_rows(np.ascontiguousarray(means, np.float64))
    zero = ~found.any(axis=1)
    found[zero] = before[zero]
    return np.ascontiguousarray(found, before.dtype)
