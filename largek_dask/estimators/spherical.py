"""Spherical k-means: rows are compared by their directions, and centres are directions."""

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

__all__ = ["SphericalKMeans"]

SEARCH_SHARE = 0.75
"""Share of ``max_time`` for the search; the rest is for steps with unit centres."""
HAS_TIME = ("converged", "tol", "max_iter")
"""Why a search ends after which nobody waits."""


class SphericalKMeans(KMeans):
    """K-means by cosine: centres of unit length, every row with the one of the nearest direction.

    What faiss does with ``spherical=True``; but rows need not have unit length, they are given it.
    The search is that of ``KMeans(normalize="l2")``, whose centres are means and shorter than 1.
    Then steps of spherical k-means follow until no centre turns: every row goes to the centre of
    the largest cosine, every centre to the direction of its rows' sum.

    Parameters
    ----------
    n_clusters : int
        Clusters to form, and centres to find.
    max_iter : int
        Steps at most, those of the search and those that follow it.
    tol : float
        As of :class:`KMeans`, of both.
    max_time : float or str, optional
        As of :class:`KMeans`; a quarter of it is kept for the steps that follow the search.
    algorithm, init, n_init, empty_clusters, on_bad_rows, effort, random_state, client, n_threads, \
memory_limit, checkpoint, verbose, callbacks
        As of :class:`KMeans`. A checkpoint and what is told meanwhile are of the search; a resume
        makes the steps that follow it again, with the same bits.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Of unit length.
    labels_ : ndarray of shape (n_rows,), int32
        Index of the centre with the largest cosine, -1 for skipped rows. A row of zeros has no
        direction and lies at distance 1 of all centres.
    inertia_ : float
        ``Σ w |x / |x| - c|²`` = 2 Σ w (1 - cos): ``score`` is minus that, of the rows it is given,
        and ``transform`` gives the distances √(2 - 2 cos).
    n_iter_ : int
        Steps of the search and those that followed.
    history_ : tuple of dict
        Of the search, whose costs are of means: lower than what unit centres come to.

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
        if model.normalize != "l2" or not np.allclose(lengths, 1, rtol=0, atol=1e-5):
            raise ParameterError(
                f"{cls.__name__}.from_model takes a model of normalised rows with centres of unit "
                "length: use KMeans.from_model."
            )
        return {"n_clusters": model.n_clusters, "on_bad_rows": model.on_bad_rows}

    def _run(self, rows: Rows, options: FitOptions) -> tuple[FitResult, Model]:
        limit = None if options.max_time is None else SEARCH_SHARE * options.stop.seconds
        return super()._run(rows, replace(options, max_time=limit))

    def _finish(self, rows: Rows, options: FitOptions, result: FitResult, model: Model) -> None:
        """Turn the centres of the search until none moves, and label rows by them."""
        began = time.monotonic() - result.seconds
        steps = options.max_iter - result.n_iter if result.stop_reason in HAS_TIME else 0
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
            turning = _Turning(result.arrays, result.stop_reason)
            turning.go(passes, steps, options.tol, began + options.stop.seconds)
            found = _last_pass(passes, turning.arrays, options.empty_clusters)
        assert found.labels is not None
        self.labels_ = found.labels
        provenance = {
            **result.provenance,
            "n_iter": result.n_iter + turning.steps,
            "stop_reason": turning.reason,
            result.objective.name: found.value,
            "unit_centers": {"steps": turning.steps},
        }
        # Also of a model that holds other partitions: what is known of these is of their means.
        kept = {f.name: getattr(model, f.name) for f in fields(Model)}
        model = CentersModel(**{**kept, "arrays": found.arrays, "provenance": provenance})
        super()._finish(rows, options, result, model)

    def _as_kept(self, model: CentersModel) -> CentersModel:
        """Centres of unit length: each stands for its votes in its own direction."""
        centers = _begun(model.centers)
        return replace(model, arrays=replace(model.arrays, centers=centers))


@dataclass
class _Turning:
    """Steps of spherical k-means, and how they end."""

    arrays: CenterArrays
    """Arrays that the search has found, then the same with centres of unit length."""
    reason: StopReason
    """Why the search ended, then why the steps did."""
    steps: int = 0

    def go(self, passes: BasePasses, most: int, tol: float, until: float) -> None:
        """At most so many steps, until no centre turns by more than ``tol`` allows.

        Ends by the moment ``until`` of ``time.monotonic``, with a pass left for the labels.
        """
        self._take(_begun(self.arrays.centers))
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
        """One pass over all rows; why there is no next one, if there is none."""
        before = self.arrays.centers
        k, d = before.shape
        total: BatchTotal = passes.reduce(
            batch_chunk,
            pack_centers(before, self.arrays.shift),
            start=partial(AssignmentTotal, k, d, passes.statistics.grid),
            combine=AssignmentTotal.combine,
        )
        turned = _directions(total.sums.means_float64(before), before)
        self._take(turned)
        self.steps += 1
        if np.array_equal(turned, before):
            return "converged"
        variance = total.squares.value / (passes.statistics.total_weight * d)
        return "tol" if squared_movement(turned, before) <= tol * variance else None

    def _take(self, centers: NDArray[Any]) -> None:
        self.arrays = replace(self.arrays, centers=centers)


def _last_pass(passes: BasePasses, arrays: CenterArrays, empty_clusters: EmptyClusters) -> Final:
    """Labels by the directions that are returned; centres without rows go to far ones."""
    problem = KMeansProblem(len(arrays.centers), empty_clusters="keep")
    for _ in range(1 + len(arrays.centers)):
        found = problem.finish(passes, arrays, partial(label_rows, passes))
        empty = np.flatnonzero(found.arrays.counts == 0)
        if not len(empty) or empty_clusters == "keep":
            break
        # A row of zeros is as near as can be to one that is no centre: it is no place for one.
        centers = np.concatenate([arrays.centers, np.zeros_like(arrays.centers[:1])])
        packed = pack_centers(centers, arrays.shift)
        moved = relocate_empty(passes, packed, centers, empty)[0][:-1]
        if np.array_equal(moved, arrays.centers):
            break
        arrays = replace(arrays, centers=moved)
    return found


def _begun(means: NDArray[Any]) -> NDArray[Any]:
    """(k, d) unit vectors along the means that a search has found.

    The mean of rows of zeros, or of rows that cancel each other, has no direction: its centre turns
    away from all others, and goes from there to where it is needed.
    """
    found = normalize_rows(np.ascontiguousarray(means, np.float64))
    away = normalize_rows(-np.cumsum(found, axis=0)[-1:])[0]
    if not away.any():
        away[0] = 1
    found[~found.any(axis=1)] = away
    return np.ascontiguousarray(found, means.dtype)


def _directions(means: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
    """(k, d) unit vectors along the means, of the type of those before; 0 has none, and stays."""
    found = normalize_rows(np.ascontiguousarray(means, np.float64))
    gone = ~found.any(axis=1)
    found[gone] = before[gone]
    return np.ascontiguousarray(found, before.dtype)
