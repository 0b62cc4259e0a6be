"""Mini-batch k-means with the class name that scikit-learn uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from largek_dask.algorithms.minibatch import MiniBatch
from largek_dask.errors import ParameterError
from largek_dask.estimators.kmeans import KMeans

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.data.rows import Rows
    from largek_dask.driver.fit import FitResult
    from largek_dask.driver.options import FitOptions
    from largek_dask.driver.run import Snapshot
    from largek_dask.model import Model


class MiniBatchKMeans(KMeans):
    """Mini-batch k-means (Sculley 2010), same as ``KMeans(algorithm=MiniBatch(batch_rows=...))``.

    Each centre is the mean of all rows that were ever assigned to it. ``KMeans`` with its defaults
    reaches a lower inertia, usually in less time.

    Parameters
    ----------
    n_clusters : int
        Number of clusters to form and of centres to find.
    batch_size : int or "auto"
        Number of rows per batch; "auto" is ten per cluster and at least 4,096.
    max_iter : int
        Number of passes over all rows, as in scikit-learn. Only ``max_time`` and callbacks end the
        fit earlier, because running means do not converge.
    init, n_init, tol, max_time, empty_clusters, on_bad_rows, normalize, scale, random_state, \
client, n_threads, memory_limit, checkpoint, verbose, callbacks
        See :class:`KMeans`; a step is one batch.

    Attributes
    ----------
    n_iter_ : int
        Number of passes over all rows, including a partial last one; after ``partial_fit``, the
        number of calls.
    history_ : tuple of dict
        One entry per batch. For the other attributes see :class:`KMeans`.

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.repeat(np.eye(3), 100, axis=0)
    >>> km = lk.MiniBatchKMeans(3, batch_size=50, init="k-means++", random_state=0)
    >>> len(set(km.fit_predict(x))), km.n_iter_
    (3, 10)
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        batch_size: int | Literal["auto"] = "auto",
        init: str | NDArray[Any] | Callable[..., Any] = "auto",
        n_init: int | Literal["auto"] = 1,
        max_iter: int = 10,
        tol: float = 1e-4,
        max_time: float | str | None = None,
        empty_clusters: Literal["relocate", "keep"] = "relocate",
        on_bad_rows: Literal["raise", "skip"] = "raise",
        normalize: Literal["l2"] | None = None,
        scale: Literal["standard"] | None = None,
        random_state: Any = None,
        client: Client | None = None,
        n_threads: int | None = None,
        memory_limit: int | str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        verbose: int | bool = 0,
        callbacks: Sequence[Callable[[Snapshot], object]] = (),
    ) -> None:
        parameters = dict(locals(), algorithm="minibatch")
        del parameters["self"], parameters["__class__"], parameters["batch_size"]
        super().__init__(**parameters)
        self.batch_size = batch_size

    def _check_parameters(self) -> FitOptions:
        try:
            algorithm = MiniBatch(batch_rows=self.batch_size)
        except ParameterError as error:
            raise ParameterError(str(error).replace("batch_rows", "batch_size")) from error
        return replace(super()._check_parameters(), algorithm=algorithm)

    def _run(self, rows: Rows, options: FitOptions) -> tuple[FitResult, Model]:
        batches = MiniBatch(self.batch_size).batches(rows.n_rows, options.n_clusters)
        result, model = super()._run(rows, replace(options, max_iter=options.max_iter * batches))
        n_iter = -(-result.n_iter // batches)
        return result, replace(model, provenance={**model.provenance, "n_iter": n_iter})
