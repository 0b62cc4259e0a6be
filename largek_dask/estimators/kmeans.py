"""K-means with scikit-learn's face, on anything from an array to a cluster's worth of Zarr."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.base import ClassNamePrefixFeaturesOutMixin as FeatureNamesOut
from sklearn.utils.validation import check_array

from largek_dask.algorithms.base import Algorithm
from largek_dask.algorithms.kmeans import KMeansProblem, nearest_center
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.names import algorithm_of
from largek_dask.driver.final import label_rows
from largek_dask.driver.options import OPTIONS, FitOptions, is_integer
from largek_dask.errors import ParameterError, without_causes
from largek_dask.estimators.base import RowsEstimator, Source, draw_seed, is_lazy
from largek_dask.estimators.online import first_model, vote
from largek_dask.model import CentersModel, PathModel
from largek_dask.passes.local import LocalPasses

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.driver.run import Snapshot
    from largek_dask.model.path import Path

__all__ = ["KMeans"]

SKLEARN_STARTS = 10
"""Starts of scikit-learn's ``n_init="auto"`` where first centres are drawn without a look at the
others."""


class KMeans(RowsEstimator, FeatureNamesOut, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """K-means clustering of rows in memory, on disk, in an object store or on a Dask cluster.

    The same data, seed and versions give the same bits, whatever the number of threads and
    workers.

    Parameters
    ----------
    n_clusters : int
        Clusters to form, and centres to find.
    algorithm : str or object
        How the clusters are found: "auto", "dcd-bundle", "incremental", "lloyd", "minibatch",
        "nmbatch", "nmbatch-paper", "partition-path", "truncated", "vc-gmm", "vc-gmm-paper" or
        "vrkm". Or an object with parameters, such as ``MiniBatch(batch_rows=50_000)``. "auto" is
        the fastest way there is to any inertia, and ends lower than the others: truncated search
        with moves, or what suits sparse rows.
        "partition-path" finds every partition into up to ``n_clusters`` clusters (``path_``), near
        the lowest there is. "lloyd" is exact k-means, and so are "elkan" and "full", its
        names in scikit-learn and dask-ml. "vc-gmm" gives the means of a mixture of
        Gaussians; ``Mixture`` has the mixture itself.
    init : str, array or callable
        How the first centres are chosen: "random", "two-level", "k-means++", "greedy-k-means++",
        "k-means||", "afk-mc2", or "auto", one of these by the number of clusters. Or the
        (n_clusters, n_features) centres themselves, or those of several starts, (n_init,
        n_clusters, n_features). "auto" is k-means++ up to 100 clusters and random rows above;
        Truncated and NMBatch find their own, on a sample. cuML's "scalable-k-means++" is
        "k-means||". A function is called as scikit-learn does, ``init(X, n_clusters,
        random_state=RandomState)``, once a start: with an array or CSR matrix where the rows are in
        memory, neither centred nor normalised, else with what ``fit`` was given.
    n_init : int or "auto"
        Starts with different first centres, at least; the best one is kept.
        ``algorithm="auto"`` may take more where they cost little. "auto": 10 of "lloyd" where
        ``init`` is "random" or a function, as scikit-learn's, else 1: other algorithms move centres
        that a bad start has left in the wrong place, or make starts of their own.
    max_iter : int
        Steps of one start at most. Every step assigns rows once: all of them, or those of the
        batch or sample whose turn it is. ``n_iter_`` counts them.
    tol : float
        Stop when the squared movement of the centres is at most this share of the mean variance of
        the features. 0: when no label changes. Truncated goes on by moves where centres have come
        to rest, and ends when five rounds of them have lowered the cost by shares of less than
        ``tol / 50``, or not at all.
    max_time : float or str, optional
        Stop after so many seconds, or a time such as "90s", "30m" or "6h"; the time of runs before
        a resume, of the last pass and of compiling kernels counts. There is always a model then,
        see ``stop_reason_``.
    empty_clusters : {"relocate", "keep"}
        What becomes of a centre without rows: it moves to the rows farthest from theirs, or stays.
    on_bad_rows : {"raise", "skip"}
        What becomes of rows with NaN or infinity; skipped ones get the label -1.
    normalize : {None, "l2"}
        "l2": every row is given unit length; part of the model. Centres are means of such rows,
        which are shorter: ``SphericalKMeans`` has centres of unit length.
    effort : {"fast", "balanced", "best"}
        How long the algorithms "auto" and "partition-path" look for a lower inertia; an algorithm
        object says its own.
    random_state : int, RandomState, Generator or None
        Source of the one seed of the fit. Same data, seed and versions give the same bits.
    client : distributed.Client, optional
        Compute on that cluster; None: threads of this process.
    n_threads : int, optional
        Computing threads of this process; None: one a core.
    memory_limit : int or str, optional
        Most that a process keeps for its rows from step to step (labels, bounds): bytes, or a size
        such as "2GiB". It changes speed only.
    checkpoint : str or path, optional
        Folder (any fsspec URL) to write checkpoints to, and to resume from if it holds this very
        job: same data, parameters and seed (with ``random_state=None`` the one that is kept
        there); the stop rules may differ. Any other folder that is not empty is refused.
    verbose : int or bool
        1 or True: a line of progress on standard error; in a notebook a card.
    callbacks : sequence of callable
        Each is called with a ``Snapshot`` after every step; a true result stops the fit.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
    labels_ : ndarray of shape (n_rows,), int32
        Index of each row's nearest centre, -1 for skipped rows.
    inertia_ : float
        Σ w d² of the fitted rows to their nearest of ``cluster_centers_``.
    n_iter_ : int
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the columns, where the rows of the fit had such.
    history_ : tuple of dict
        One entry a step: ``step cost rows seconds n_changed shift converged extra``.
    stop_reason_ : str
        "converged", "tol", "max_iter", "max_time", "max_time_without_last_pass" (then ``labels_``
        and ``inertia_`` are those of a search that did not look at all centres),
        "max_time_without_search" (before there were any centres: they are rows of a sample, or the
        ``init`` that was given), "callback", "cancelled" or "interrupted".
    model_ : CentersModel
        What ``save`` writes.
    path_ : Path
        After ``algorithm="partition-path"`` or "dcd-bundle" only: every partition into 1 to
        ``n_clusters`` clusters, or to as many as there are distinct rows, with ``inertia``,
        ``lower_bound``, ``centers(l)``, ``model(l)``, ``records()`` and ``suggest_k()``.

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.array([[1, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, 0]], float)
    >>> km = lk.KMeans(2, random_state=0).fit(x)
    >>> km.predict([[0, 0], [12, 3]]) == km.labels_[[0, 3]]
    array([ True,  True])
    >>> sorted(km.cluster_centers_.tolist())
    [[1.0, 2.0], [10.0, 2.0]]
    """

    cluster_centers_: NDArray[Any]
    inertia_: float
    model_: CentersModel
    _model_kind = CentersModel

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
        normalize: Literal["l2"] | None = None,
        effort: Literal["fast", "balanced", "best"] = "balanced",
        random_state: Any = None,
        client: Client | None = None,
        n_threads: int | None = None,
        memory_limit: int | str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        verbose: int | bool = 0,
        callbacks: Sequence[Callable[[Snapshot], object]] = (),
    ) -> None:
        self.n_clusters = n_clusters
        self.algorithm = algorithm
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.max_time = max_time
        self.empty_clusters = empty_clusters
        self.on_bad_rows = on_bad_rows
        self.normalize = normalize
        self.effort = effort
        self.random_state = random_state
        self.client = client
        self.n_threads = n_threads
        self.memory_limit = memory_limit
        self.checkpoint = checkpoint
        self.verbose = verbose
        self.callbacks = callbacks

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        """Columns of ``transform``: scikit-learn's names for them ask for it."""
        return len(self.cluster_centers_)

    @property
    def path_(self) -> Path:
        """Every partition that the fit has found, if its algorithm looks for all of them.

        Raises
        ------
        AttributeError
            It does not, or ``partial_fit`` has moved the centres since.
        """
        model = getattr(self, "model_", None)
        if not isinstance(model, PathModel):
            raise AttributeError(
                f"{type(self).__name__} has no path_ but after a fit with "
                "algorithm='partition-path', which finds the partitions into all smaller numbers "
                "of clusters as well."
            )
        return model.path_

    @classmethod
    def _parameters_of(cls, model: Any) -> dict[str, Any]:
        names = ("n_clusters", "normalize", "on_bad_rows")
        return {name: getattr(model, name) for name in names}

    def fit_transform(
        self, X: Any, y: Any = None, sample_weight: Any = None, **source: Unpack[Source]
    ) -> Any:
        """``fit``, then ``transform`` of the same rows."""
        return self.fit(X, sample_weight=sample_weight, **source).transform(X, **source)

    @without_causes
    def transform(self, X: Any, **source: Unpack[Source]) -> Any:
        """Distance of every row to every centre, (n_rows, n_clusters)."""
        model: CentersModel = self._model()
        return model.transform(self._open(X, reset=False, **source), **self._where())

    @without_causes
    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, **source: Unpack[Source]
    ) -> Self:
        """Let a batch of rows vote for their nearest centres, as mini-batch k-means does.

        Whatever ``algorithm`` says: every centre is the mean of all rows that ever voted for
        it. The first call chooses the first centres among its rows; after a ``fit`` its
        clusters go on with the weight they have, and there is no ``path_`` any more. Computed on
        threads of this process.

        Parameters
        ----------
        X : as for ``fit``
            One batch.
        y : ignored
        sample_weight : as for ``fit``

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            The first batch has fewer rows than there are clusters, or a later one other columns.
        """
        options = self._check_parameters()
        first = not hasattr(self, "model_")
        rows = self._open(X, sample_weight, reset=first, **source)
        with LocalPasses(
            rows,
            n_threads=self.n_threads,
            normalize=self.normalize,
            on_bad_rows=self.on_bad_rows,
        ) as passes:
            if first:
                seed = draw_seed(self.random_state)
                begun = self._begun(replace(options, n_init=1), X, seed)
                first_centers = first_model(passes, begun.n_clusters, begun.init, seed)
                model = self._as_kept(first_centers)
            else:
                model = self.model_
            model = self._as_kept(vote(passes, model))
            found = label_rows(passes, nearest_center(model.arrays, rows.dtype))
        self._keep(model)
        assert found.labels is not None
        self.labels_, self.inertia_ = found.labels, found.sum_of("inertia")
        self.n_iter_ = model.provenance["n_iter"]
        return self

    def _as_kept(self, model: CentersModel) -> CentersModel:
        """The model before or after a batch has voted, with centres of the kind that is kept."""
        return model

    def _keep(self, model: CentersModel) -> None:
        self.model_ = model
        self.cluster_centers_ = model.centers

    def _check_parameters(self) -> FitOptions:
        """The options of a fit, without seed and a function's centres; wrong ones are refused."""
        mine = (name for name, option in OPTIONS.items() if option.part != "mixture")
        asked = {name: getattr(self, name) for name in mine if name != "seed"}
        asked["n_init"] = self._n_init()
        options = FitOptions(**asked)
        solves = options.make_algorithm().solves
        if not issubclass(solves, KMeansProblem):
            raise ParameterError(
                f"algorithm must be one for k-means, and {self.algorithm!r} answers a "
                f"{solves.__name__}."
            )
        self._check_surroundings()
        return options

    def _n_init(self) -> Any:
        """Return the number of starts."""
        if not isinstance(self.n_init, str) or self.n_init != "auto":
            if not is_integer(self.n_init):
                raise ParameterError(
                    f"n_init must be an integer of at least 1, or 'auto', got {self.n_init!r}."
                )
            return self.n_init
        is_drawn = callable(self.init) or (isinstance(self.init, str) and self.init == "random")
        is_exact = isinstance(algorithm_of(self.algorithm, self.effort), Lloyd)
        return SKLEARN_STARTS if is_drawn and is_exact else 1

    def _begun(self, options: FitOptions, X: Any, seed: int) -> FitOptions:
        """The options with their seed, and with the centres that a function gives for ``X``."""
        if not callable(self.init):
            return replace(options, seed=seed)
        given = X
        if not is_lazy(X):
            given = check_array(
                X, accept_sparse="csr", ensure_all_finite=False, estimator=self, input_name="X"
            )
        source = np.random.RandomState(seed)
        starts: list[NDArray[Any]] = []
        for _ in range(options.n_init):
            found = np.asarray(self.init(given, options.n_clusters, random_state=source))
            if found.dtype.kind not in "iuf":
                width = f"({options.n_clusters}, {self.n_features_in_})"
                raise ParameterError(f"init must give {width} numbers, and has given {found!r}.")
            if starts and found.shape != starts[0].shape:
                raise ParameterError(
                    f"init has given centres of shape {starts[0].shape}, then of {found.shape}: "
                    "they must be the same."
                )
            starts.append(found)
        init = starts[0] if len(starts) == 1 else np.stack(starts)
        return replace(options, seed=seed, init=init)
