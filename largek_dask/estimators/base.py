"""Base class of the estimators: checks parameters, and opens inputs of any kind as rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from largek_dask.data.columns import all_differences
from largek_dask.data.frame_rows import is_frame, is_of
from largek_dask.data.rows import Rows, is_added_type, refuse_masked
from largek_dask.data.sources import in_memory, is_sparse, open_rows
from largek_dask.data.table_files import is_paths
from largek_dask.driver.checkpoint import check_output_folder, description_in
from largek_dask.driver.events import ProgressLine
from largek_dask.driver.fit import FitResult, fit
from largek_dask.driver.options import FitOptions, check_integer, is_integer
from largek_dask.driver.stopping import StepRecord
from largek_dask.driver.storage import Folder
from largek_dask.errors import (
    DataWarning,
    InterruptedFitWarning,
    ParameterError,
    warn,
    without_causes,
)
from largek_dask.model.base import Model

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.driver.run import Snapshot

LAZY_PACKAGES = ("zarr", "dask", "dask_expr", "xarray", "polars", "pyarrow", "h5py", "anndata")
"""Packages whose arrays and tables are read in chunks and never converted as a whole."""


def draw_seed(random_state: Any) -> int:
    """Return a seed from None, an integer, a ``RandomState`` or a ``Generator``.

    An integer is returned unchanged, so that it appears in a model's provenance. From a generator,
    one number is drawn.

    Raises
    ------
    ParameterError
        ``random_state`` is none of these.
    """
    if is_integer(random_state):
        if random_state < 0:
            raise ParameterError(f"random_state must not be negative, got {random_state!r}.")
        return int(random_state)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise ParameterError(f"random_state: {error}") from error


class Source(TypedDict, total=False):
    """Options of ``open_rows`` for stores and files."""

    column: str | None
    """Name of the array, if the source contains several arrays."""
    storage_options: Mapping[str, Any] | None
    """Options of fsspec for all URLs."""


class RowsEstimator:
    """Mixin of estimators whose ``X`` may be anything that ``open_rows`` accepts."""

    _model_kind: ClassVar[type[Model]]

    random_state: Any
    client: Client | None
    n_threads: int | None
    checkpoint: str | os.PathLike[str] | None
    verbose: int | bool
    callbacks: Sequence[Callable[[Snapshot], object]]

    n_features_in_: int
    feature_names_in_: NDArray[Any]
    labels_: NDArray[np.int32]
    model_: Any
    n_iter_: int
    history_: tuple[StepRecord, ...]
    stop_reason_: str

    @without_causes
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, **source: Unpack[Source]
    ) -> Self:
        """Find the clusters, or the mixture's components, of ``X``.

        Parameters
        ----------
        X : array-like, sparse matrix, DataFrame, URL, zarr.Array, dask.array.Array or Rows
            Numbers of shape (n_rows, n_features); mixtures require dense rows. Data that are not in
            memory yet are read in chunks and never loaded as a whole.
        y : ignored
        sample_weight : array-like of shape (n_rows,), number or URL, optional
            A row of weight 2 counts as two rows; a row of weight 0 is ignored.
        **source : column, storage_options
            Options for opening ``X``, see :func:`~largek_dask.open_rows`. All methods that take
            rows accept them.

        Returns
        -------
        self
            After Ctrl-C, the estimator has the best model so far, and a warning is given.

        Raises
        ------
        ParameterError
            A parameter is invalid, or does not fit the data.
        DataError
            ``X`` or ``sample_weight`` is not a table of finite numbers, or all rows of a mixture
            are equal.

        Warns
        -----
        DegenerateDataWarning
            There are fewer distinct rows than clusters, or components were retired.
        InterruptedFitWarning
            The fit was interrupted.
        """
        options = self._check_parameters()
        rows = self._open(X, sample_weight, reset=True, **source)
        options = self._prepare_options(options, X, self._seed())
        self._finish(rows, options, *self._run(rows, options))
        if self.stop_reason_ == "interrupted":
            warn(
                f"The fit was interrupted after {self.n_iter_} steps and keeps its best model.",
                InterruptedFitWarning,
            )
        return self

    def fit_predict(
        self, X: Any, y: Any = None, sample_weight: Any = None, **source: Unpack[Source]
    ) -> NDArray[np.int32]:
        """Fit the estimator, and return ``labels_``."""
        return self.fit(X, sample_weight=sample_weight, **source).labels_

    @without_causes
    def predict(self, X: Any, *, out: str | None = None, **source: Unpack[Source]) -> Any:
        """Return, for every row, the index of the nearest centre or most probable component.

        Parameters
        ----------
        X : as for ``fit``
        out : str, optional
            Write the labels to this URL in chunks instead of returning them: a new Zarr array, or
            an ``.npy``, ``.csv`` or ``.parquet`` file.

        Returns
        -------
        int32 array of shape (n_rows,), or None
            -1 for skipped rows.

        Raises
        ------
        NotFittedError
            The estimator is not fitted.
        ParameterError
            The number of columns or their names differ from those in fit.
        """
        return self._model().predict(self._open(X, reset=False, **source), out=out, **self._where())

    @without_causes
    def score(
        self, X: Any, y: Any = None, sample_weight: Any = None, **source: Unpack[Source]
    ) -> float:
        """Return the negative weighted sum of squared distances to the nearest centres.

        For a mixture, return the mean log-likelihood per row, in nats.
        """
        model: Model = self._model()
        return model.score(self._open(X, sample_weight, reset=False, **source), **self._where())

    def _model(self) -> Any:
        check_is_fitted(self)
        return self.model_

    def _where(self) -> dict[str, Any]:
        return {"client": self.client, "n_threads": self.n_threads}

    def _check_parameters(self) -> FitOptions:
        """Return the options of a fit without its seed, or raise ParameterError."""
        raise NotImplementedError

    def _prepare_options(self, options: FitOptions, X: Any, seed: int) -> FitOptions:
        """Return the options with the seed and with all values that depend on ``X``."""
        return replace(options, seed=seed)

    def _finish(self, rows: Rows, options: FitOptions, result: FitResult, model: Model) -> None:
        self._restore(model)
        self._keep(model)

    def _seed(self) -> int:
        """Return the seed; without a ``random_state``, use the seed of the checkpoint if it exists.

        Raises
        ------
        OutputError
            The folder does not hold a fit.
        """
        if self.checkpoint is None:
            return draw_seed(self.random_state)
        folder = Folder(self.checkpoint)
        check_output_folder(folder, "Give another folder as checkpoint.")
        before = description_in(folder) if self.random_state is None else None
        return draw_seed(self.random_state if before is None else before["job"]["seed"])

    def _run(self, rows: Rows, options: FitOptions) -> tuple[FitResult, Model]:
        result = fit(
            rows,
            options,
            client=self.client,
            n_threads=self.n_threads,
            checkpoint=None if self.checkpoint is None else os.fspath(self.checkpoint),
            events=(ProgressLine(),) if self.verbose else (),
            callbacks=self.callbacks,
        )
        model: Model = Model.of(result)
        # Only a cancelled job returns no labels.
        assert result.labels is not None
        self.labels_ = result.labels
        return result, model

    @classmethod
    def from_model(cls, model: Model, **parameters: Any) -> Self:
        """Return a fitted estimator for a loaded model or the result of a job.

        The estimator has no ``labels_``; use ``predict``.

        Parameters
        ----------
        model : CentersModel, or MixtureModel for ``Mixture``
            For example ``load_model(url)`` or ``job.result()``.
        **parameters
            Parameters of the estimator that the model does not determine, such as ``client``. The
            parameters of the fit are in ``model.provenance["parameters"]``.

        Raises
        ------
        ParameterError
            The model is of another kind than this estimator fits.

        Examples
        --------
        >>> import numpy as np, largek_dask as lk
        >>> x = np.repeat(np.eye(3), 10, axis=0)
        >>> model = lk.KMeans(3, random_state=0).fit(x).model_
        >>> km = lk.KMeans.from_model(model)
        >>> km.predict(x[:1]) == model.predict(x[:1]), km.n_clusters
        (array([ True]), 3)
        """
        if not isinstance(model, cls._model_kind):
            raise ParameterError(
                f"{cls.__name__}.from_model needs a {cls._model_kind.__name__}, such as "
                f"load_model(url) or job.result(), got {type(model).__name__}."
            )
        made = cls(**{**cls._parameters_of(model), **parameters})
        made._restore(model)
        made._keep(model)
        return made

    @classmethod
    def _parameters_of(cls, model: Any) -> dict[str, Any]:
        """Return the parameters of the estimator that a model determines."""
        raise NotImplementedError

    def _keep(self, model: Any) -> None:
        """Set ``model_`` and the attributes derived from it."""
        raise NotImplementedError

    def _restore(self, model: Model) -> None:
        self.n_features_in_ = model.n_features
        if model.feature_names is not None:
            self.feature_names_in_ = np.array(model.feature_names, dtype=object)
        self.history_ = model.history
        for name in ("n_iter", "stop_reason", model.objective.name):
            if name in model.provenance:
                setattr(self, f"{name}_", model.provenance[name])

    def _check_environment(self) -> None:
        if not isinstance(self.verbose, (bool, np.bool_)):
            check_integer("verbose", self.verbose, 0)
        if self.n_threads is not None:
            check_integer("n_threads", self.n_threads, 1)
        if self.client is not None and not hasattr(self.client, "scheduler_info"):
            raise ParameterError(f"client must be a distributed.Client, got {self.client!r}.")
        if not isinstance(self.checkpoint, (str, os.PathLike, type(None))):
            raise ParameterError(f"checkpoint must be a URL or path, got {self.checkpoint!r}.")
        if not isinstance(self.callbacks, (list, tuple)) or not all(map(callable, self.callbacks)):
            raise ParameterError(f"callbacks must be a list of callables, got {self.callbacks!r}.")

    def _open(
        self,
        X: Any,
        sample_weight: Any = None,
        /,
        *,
        reset: bool,
        column: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Rows:
        """Open ``X`` as rows and check its columns against the columns of the fit.

        Arrays in memory are checked by scikit-learn, except for NaN, which the first pass checks.
        Lazy data are opened but not read. Column names follow scikit-learn's rules for any kind of
        data. With ``reset``, the columns are stored for a new fit.
        """
        # scikit-learn's checks ignore masks.
        refuse_masked(X)
        is_held = not (is_lazy(X) or is_frame(X) or is_paths(X))
        X = in_memory(X) if is_held else X
        is_checked = is_held and is_for_sklearn(X)
        if is_checked:
            X = validate_data(
                self, X, reset=reset, accept_sparse="csr", dtype="numeric", ensure_all_finite=False
            )
        rows = open_rows(X, column=column, storage_options=storage_options)
        if is_of(X, "pandas", "DataFrame") and rows.n_features == len(X.columns):
            is_checked = True
            # open_rows converts X in chunks, and its errors name columns that are not numeric.
            validate_data(self, X, reset=reset, skip_check_array=True)
        if sample_weight is not None:
            if isinstance(sample_weight, Real):
                sample_weight = np.full(rows.n_rows, float(sample_weight))
            rows = open_rows(rows, sample_weight=sample_weight, storage_options=storage_options)
        if not is_checked:
            self._check_columns(rows, reset)
        if rows.feature_names is None and hasattr(self, "feature_names_in_"):
            # A warning has already said that the names cannot be compared.
            rows = rows.with_names(tuple(self.feature_names_in_))
        return rows

    def _check_columns(self, rows: Rows, reset: bool) -> None:
        names: tuple[str, ...] | None = rows.feature_names
        name = type(self).__name__
        if reset:
            self.n_features_in_ = rows.n_features
            if names is not None:
                self.feature_names_in_ = np.asarray(names, object)
            elif hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
            return
        fitted = tuple(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None
        if names is not None and fitted is not None and names != fitted:
            raise ParameterError(
                "The feature names should match those that were passed during fit. "
                + (
                    all_differences(fitted, names)
                    or "They must be in the same order as they were in fit."
                )
            )
        if rows.n_features != self.n_features_in_:
            raise ParameterError(
                f"X has {rows.n_features} features, but {name} is expecting "
                f"{self.n_features_in_} features as input."
            )
        if names is not None and fitted is None:
            warn(f"X has feature names, but {name} was fitted without feature names", DataWarning)
        if names is None and fitted is not None:
            warn(
                f"X does not have valid feature names, but {name} was fitted with feature names",
                DataWarning,
            )


def is_lazy(X: Any) -> bool:
    """Return True if ``X`` refers to data that are not in memory, such as a URL or a lazy array."""
    if isinstance(X, (str, os.PathLike, Rows)):
        return True
    return any(base.__module__.partition(".")[0] in LAZY_PACKAGES for base in type(X).__mro__[:-1])


def is_for_sklearn(X: Any) -> bool:
    """Return True if scikit-learn can check ``X``; otherwise ``open_rows`` has clearer errors."""
    own = X.dtype.kind in "biufO" and not is_added_type(X.dtype)
    return own and (is_sparse(X) or X.ndim in (1, 2))
