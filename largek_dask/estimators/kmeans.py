"""K-means estimator with the interface of scikit-learn."""

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
from largek_dask.estimators.online import initial_model, update
from largek_dask.model import CentersModel, PathModel
from largek_dask.passes.local import LocalPasses

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.driver.run import Snapshot
    from largek_dask.model.path import Path

SKLEARN_STARTS = 10
"""Number of starts of scikit-learn's ``n_init="auto"`` with independently drawn centres."""


class KMeans(RowsEstimator, FeatureNamesOut, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """K-means clustering of rows in memory, on disk, in an object store or on a Dask cluster.

    The same data, seed and versions give bit-identical results for any number of threads and
    workers.

    Parameters
    ----------
    n_clusters : int
        Number of clusters to form and of centres to find.
    algorithm : str or object
        "auto", "dcd-bundle", "incremental", "lloyd", "minibatch", "nmbatch", "nmbatch-paper",
        "partition-path", "truncated", "vc-gmm", "vc-gmm-paper" or "vrkm"; or an object with
        parameters, such as ``MiniBatch(batch_rows=50_000)``. "auto" reaches any inertia fastest and
        ends lower than the others: it searches with few candidates per row and moves centres, or
        uses an algorithm for sparse rows. "partition-path" finds a partition for every number of
        clusters up to ``n_clusters`` (``path_``), close to the lowest inertia known. "lloyd" is
        exact k-means; "elkan" and "full", its names in scikit-learn and dask-ml, are accepted.
        "vc-gmm" returns the means of a mixture of Gaussians; ``Mixture`` returns the mixture.
    init : str, array or callable
        Method for the initial centres: "random", "two-level", "k-means++", "greedy-k-means++",
        "k-means||", "afk-mc2" or "auto"; or the centres themselves, of shape (n_clusters,
        n_features), or (n_init, n_clusters, n_features) for several starts. "auto" uses k-means++
        for up to 100 clusters and random rows above; Truncated and NMBatch find initial centres on
        a sample. cuML's "scalable-k-means++" is "k-means||". A function is called once per start,
        as in scikit-learn: ``init(X, n_clusters, random_state=RandomState)``, with an array or CSR
        matrix if the rows are in memory, neither centred nor normalised, otherwise with the
        argument of ``fit``.
    n_init : int or "auto"
        Minimum number of starts with different initial centres; the best one is kept.
        ``algorithm="auto"`` makes more where they cost little. "auto" is 10 for "lloyd" if ``init``
        is "random" or a function, as in scikit-learn, otherwise 1: the other algorithms move badly
        placed centres or make starts of their own.
    max_iter : int
        Maximum number of steps per start. A step assigns once all rows, or the rows of the current
        batch or sample. ``n_iter_`` counts steps.
    tol : float
        Stop when the squared movement of the centres is at most this fraction of the mean variance
        of the features; 0 to stop when no label changes. Truncated then moves centres, and stops
        when five rounds of moves each lower the cost by less than the fraction ``tol / 50``.
    max_time : float or str, optional
        Time limit in seconds, or a string such as "90s", "30m" or "6h". It includes earlier runs of
        a resumed fit, the last pass and the compilation of kernels. The fit always returns a model;
        see ``stop_reason_``.
    empty_clusters : {"relocate", "keep"}
        Whether a centre without rows is moved to the rows farthest from their centres, or kept.
    on_bad_rows : {"raise", "skip"}
        Whether rows with NaN or infinity raise an error, or are skipped and labelled -1.
    normalize : {None, "l2"}
        "l2" scales every row to unit length, also in ``predict``. Centres are means of scaled rows
        and shorter than 1; use ``SphericalKMeans`` for centres of unit length.
    scale : {None, "standard"}
        "standard" subtracts from every feature its weighted mean and divides it by its standard
        deviation (a constant feature: by 1), as ``make_pipeline(StandardScaler(), KMeans())``;
        dense rows only. Methods take rows as they are; centres, ``init``, distances and
        ``inertia_`` are standardised. With ``normalize``, rows are standardised first.
    effort : {"fast", "balanced", "best"}
        How long "auto" and "partition-path" search for a lower inertia. Ignored if ``algorithm`` is
        an object.
    random_state : int, RandomState, Generator or None
        Seed of the fit, or generator from which the seed is drawn.
    client : distributed.Client, optional
        Cluster to compute on; None for threads of this process.
    n_threads : int, optional
        Number of threads of this process; None for one per core.
    memory_limit : int or str, optional
        Maximum memory per process for data kept per row between steps (labels, bounds), in bytes or
        as a string such as "2GiB". Affects speed only.
    checkpoint : str or path, optional
        Folder (a path or fsspec URL) for checkpoints. The fit resumes if the folder holds a
        checkpoint of the same data, parameters and seed (with ``random_state=None``, the seed
        stored there); stopping criteria may differ. Any other non-empty folder is refused.
    verbose : int or bool
        1 or True shows progress: a line on standard error, or a card in a notebook.
    callbacks : sequence of callable
        Functions called with a ``Snapshot`` after every step; the fit stops if one returns a true
        value.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
    labels_ : ndarray of shape (n_rows,), int32
        Index of the nearest centre of each row, -1 for skipped rows.
    inertia_ : float
        Weighted sum of squared distances of the fitted rows to their nearest centre.
    n_iter_ : int
        Number of steps.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)
        Column names, if the fitted rows had any.
    history_ : tuple of dict
        One entry per step: ``step cost rows seconds n_changed shift converged extra``.
    stop_reason_ : str
        "converged", "tol", "max_iter", "max_time", "callback", "cancelled" or "interrupted";
        "max_time_without_last_pass" if ``labels_`` and ``inertia_`` come from a search that did not
        compare rows with all centres; "max_time_without_search" if time ran out before the search,
        and the centres are rows of a sample or the given ``init``.
    model_ : CentersModel
        The fitted model, with ``save``. With ``scale``, ``model_.scaling`` has the ``mean`` and
        ``scale`` of each feature; ``model_.scaling.restore(cluster_centers_)`` returns the centres
        in the units of ``X``.
    path_ : Path
        Only after "partition-path" and "dcd-bundle": the partitions into 1 to ``n_clusters``
        clusters (at most the number of distinct rows), with ``inertia``, ``lower_bound``,
        ``centers(l)``, ``model(l)``, ``records()`` and ``suggest_k()``.

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
        scale: Literal["standard"] | None = None,
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
        self.scale = scale
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
        """Number of columns that ``transform`` returns, as scikit-learn expects."""
        return len(self.cluster_centers_)

    @property
    def path_(self) -> Path:
        """Partitions into 1 to ``n_clusters`` clusters.

        Raises
        ------
        AttributeError
            The algorithm finds one partition only, or ``partial_fit`` has moved the centres.
        """
        model = getattr(self, "model_", None)
        if not isinstance(model, PathModel):
            raise AttributeError(
                f"{type(self).__name__} has no path_: fit it with algorithm='partition-path', "
                "which finds a partition for every number of clusters up to n_clusters."
            )
        return model.path_

    @classmethod
    def _parameters_of(cls, model: Any) -> dict[str, Any]:
        names = ("n_clusters", "normalize", "on_bad_rows")
        scaled = {} if model.scaling is None else {"scale": "standard"}
        return {name: getattr(model, name) for name in names} | scaled

    def fit_transform(
        self, X: Any, y: Any = None, sample_weight: Any = None, **source: Unpack[Source]
    ) -> Any:
        """Fit the estimator, and return the distances of the same rows to the centres."""
        return self.fit(X, sample_weight=sample_weight, **source).transform(X, **source)

    @without_causes
    def transform(self, X: Any, **source: Unpack[Source]) -> Any:
        """Return the distance of every row to every centre, of shape (n_rows, n_clusters)."""
        model: CentersModel = self._model()
        return model.transform(self._open(X, reset=False, **source), **self._where())

    @without_causes
    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, **source: Unpack[Source]
    ) -> Self:
        """Update the centres with a batch of rows, as mini-batch k-means does.

        Regardless of ``algorithm``, each centre is the mean of all rows ever assigned to it. The
        first call chooses initial centres among the rows of the batch. After ``fit``, clusters keep
        their weights, and ``path_`` is removed. The computation uses threads of this process.

        Parameters
        ----------
        X : as for ``fit``
            One batch of rows.
        y : ignored
        sample_weight : as for ``fit``

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            The first batch has fewer rows than clusters, or a later batch has other columns; or
            the estimator has a ``scale``.
        """
        options = self._check_parameters()
        first = not hasattr(self, "model_")
        if self.scale is not None or (not first and self.model_.scaling is not None):
            raise ParameterError(
                f"partial_fit cannot be used with scale={self.scale!r} or a standardised model, as "
                "one batch does not show the means and variances of all rows: use fit, or "
                "standardise the batches before, e.g. with sklearn's StandardScaler.partial_fit."
            )
        rows = self._open(X, sample_weight, reset=first, **source)
        with LocalPasses(
            rows, n_threads=self.n_threads, normalize=self.normalize, on_bad_rows=self.on_bad_rows
        ) as passes:
            if first:
                seed = draw_seed(self.random_state)
                prepared = self._prepare_options(replace(options, n_init=1), X, seed)
                started = initial_model(passes, prepared.n_clusters, prepared.init, seed)
                model = self._constrain(started)
            else:
                model = self.model_
            model = self._constrain(update(passes, model))
            found = label_rows(passes, nearest_center(model.arrays, rows.dtype))
        self._keep(model)
        assert found.labels is not None
        self.labels_, self.inertia_ = found.labels, found.sum_of("inertia")
        self.n_iter_ = model.provenance["n_iter"]
        return self

    def _constrain(self, model: CentersModel) -> CentersModel:
        """Constrain the centres of ``partial_fit``; a hook for subclasses."""
        return model

    def _keep(self, model: CentersModel) -> None:
        self.model_ = model
        self.cluster_centers_ = model.centers

    def _check_parameters(self) -> FitOptions:
        names = (name for name, option in OPTIONS.items() if option.part != "mixture")
        values = {name: getattr(self, name) for name in names if name != "seed"}
        options = FitOptions(**{**values, "n_init": self._n_init()})
        solves = options.make_algorithm().solves
        if not issubclass(solves, KMeansProblem):
            raise ParameterError(
                f"algorithm must be a k-means algorithm; {self.algorithm!r} solves a "
                f"{solves.__name__}."
            )
        self._check_environment()
        return options

    def _n_init(self) -> Any:
        if not isinstance(self.n_init, str) or self.n_init != "auto":
            if not is_integer(self.n_init):
                raise ParameterError(
                    f"n_init must be a positive integer or 'auto', got {self.n_init!r}."
                )
            return self.n_init
        is_drawn = callable(self.init) or (isinstance(self.init, str) and self.init == "random")
        is_exact = isinstance(algorithm_of(self.algorithm, self.effort), Lloyd)
        return SKLEARN_STARTS if is_drawn and is_exact else 1

    def _prepare_options(self, options: FitOptions, X: Any, seed: int) -> FitOptions:
        """Return the options with the seed and, if ``init`` is a function, its centres."""
        if not callable(self.init):
            return replace(options, seed=seed)
        if self.scale is not None:
            raise ParameterError(
                "init is a function, which would see rows that are not standardised; with scale, "
                "give the name of a method, or an array of standardised centres."
            )
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
                raise ParameterError(
                    f"init must return an array of numbers of shape {width}, got {found!r}."
                )
            if starts and found.shape != starts[0].shape:
                raise ParameterError(
                    "init must return centres of the same shape for each start, got "
                    f"{starts[0].shape}, then {found.shape}."
                )
            starts.append(found)
        init = starts[0] if len(starts) == 1 else np.stack(starts)
        return replace(options, seed=seed, init=init)
