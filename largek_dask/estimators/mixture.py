"""Estimator of Gaussian mixtures with very many components, with the interface of scikit-learn."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils.validation import check_is_fitted

from largek_dask.algorithms.choices import Covariance
from largek_dask.algorithms.mixture import MixtureArrays
from largek_dask.algorithms.vcgmm import VCGMM
from largek_dask.driver.options import FitOptions, check_integer
from largek_dask.driver.plan import check_output_fits
from largek_dask.errors import ParameterError, without_causes
from largek_dask.estimators.base import RowsEstimator, Source, draw_seed
from largek_dask.kernels.exact.transcendental import exp, log
from largek_dask.model import MixtureModel, Model

if TYPE_CHECKING:
    from distributed import Client
    from sklearn.mixture import GaussianMixture

    from largek_dask.data.rows import Rows
    from largek_dask.driver.fit import FitResult
    from largek_dask.driver.run import Snapshot


class Mixture(RowsEstimator, DensityMixin, BaseEstimator):  # type: ignore[misc]
    """Gaussian mixture with very many components, for data of any size.

    The algorithm is vc-GMM, truncated variational EM: the cost per iteration grows far more slowly
    than the number of components, and no (rows, components) array is ever in memory. The same data,
    seed and versions give bit-identical results for any number of threads and workers.

    Parameters
    ----------
    n_components : int
        Number of Gaussians.
    covariance : {"iso", "isoflex", "diag"}
        "iso": equal weights and one variance for all components. "isoflex": a weight and a variance
        per component. "diag": a weight per component and a variance per component and feature.
        "iso" and "isoflex" use the same variance for all features, so features of different units
        should be scaled (see ``scale``). "diag" needs no scaling, but the means found by
        ``init="k-means"`` follow the features with the largest variances.
    init : {"k-means", "two-level", "afk-mc2", "random", "auto"} or array
        Method for the initial components. "k-means" and "auto": the clusters of a truncated search
        with moves. An array of shape (n_components, n_features) contains the means themselves, such
        as ``cluster_centers_`` of ``KMeans``; with ``weights_init`` and ``precisions_init``, it
        continues another mixture.
    weights_init : array of shape (n_components,), optional
        Initial weights; not for "iso", where weights are equal.
    precisions_init : array, optional
        Initial inverse variances, of shape (n_components,), or (n_components, n_features) for
        "diag".
    candidates : int or "auto"
        Number of components among which the posterior of a row is distributed, 1 to 32. Larger
        numbers are slower, and raise the likelihood if components overlap. "auto" is 16 for
        "isoflex", otherwise 5.
    neighbours : int or "auto"
        Number of components near its best one with which a row is compared in an iteration.
    explore : int
        Number of additional random components with which a row is compared.
    coreset : int, optional
        Approximate number of weighted rows to learn from; all rows if it is None or at least the
        number of rows.
    reg_covar : float
        Smallest variance of a component, as a fraction of the variance of the rows (per feature for
        "diag", otherwise averaged over features). It is a lower limit and never added to a
        variance, unlike scikit-learn's absolute ``reg_covar``. The resolution of sums is a lower
        limit in any case: at most 1e-12 of the variance for float64 rows, and 1e-7 for 10^8 float32
        rows within four standard deviations of the mean. For a constant feature this limit is the
        square of the rounding error of its value.
    least_variance : float
        Smallest variance of a component in the units of the rows; the larger of both limits holds.
    moves : bool
        Whether components of "isoflex" and "diag" that collapse onto single rows, or contribute
        little, are moved to where the likelihood would increase most.
    n_init : int
        Number of starts with different initial components; the result of highest likelihood is
        kept.
    max_iter : int
        Maximum number of steps per start, counting both the search for initial means and the
        iterations of EM.
    tol : float
        Stop when an iteration raises F (see Notes) by less than ``tol / 2`` nats per row and
        feature. This corresponds to a relative change of the variances by about ``tol``.
    dither : bool
        Whether uniform noise in [0, 1) is added to rows of integers, such as images, which have no
        density otherwise. It is part of the model.
    max_time, on_bad_rows, normalize, scale, random_state, client, n_threads, memory_limit, \
checkpoint, verbose, callbacks
        See :class:`KMeans`. With ``scale``, means and variances are standardised, and densities are
        those of standardised rows; only ``sample`` returns rows in the units of ``X``.

    Attributes
    ----------
    weights_ : ndarray of shape (n_components,)
        0 for a retired component.
    means_ : ndarray of shape (n_components, n_features)
    covariances_, precisions_ : ndarray
        Variances and their inverses, in the shapes of scikit-learn's "diag", (n_components,
        n_features), or "spherical", (n_components,).
    lower_bound_ : float
        F per unit of weight in the last iteration, a lower bound of the mean log-likelihood of the
        training rows. If there was no iteration, the mean log-likelihood itself.
    log_likelihood_ : float
        Weighted sum of the log-likelihoods of the fitted rows, over all components.
    labels_ : ndarray of shape (n_rows,), int32
        Index of the most probable component of each row, -1 for skipped rows.
    converged_ : bool
        Whether ``tol`` was reached.
    n_iter_ : int
        Number of steps, as counted by ``max_iter``.
    n_features_in_, feature_names_in_
        See :class:`KMeans`.
    history_ : tuple of dict
        One entry per step: ``step cost rows seconds n_changed shift converged extra``. ``cost`` is
        F; ``extra["lower_bound"]`` is F and ``extra["energy"]`` the mean squared distance, both per
        row. The two may rank models differently; the algorithm follows F.
    stop_reason_ : str
        "converged", "tol", "max_iter", "max_time", "callback", "cancelled" or "interrupted";
        "max_time_without_search" if time ran out before the search, and the means are rows of a
        sample.
    model_ : MixtureModel
        The fitted model, with ``save``.

    Notes
    -----
    Every iteration increases F = Σ w log Σ π N(x; μ, σ²), where the inner sum runs over the
    candidates of a row (Hirschberger et al., section 2, equation 4). Posteriors are truncated to
    the candidates (equation 3); the M-step is equation 6. A component replaces a candidate of lower
    joint density (proposition 1, equation 7) and is searched for near the best one (section 3). The
    inner sum of ``log_likelihood_`` runs over all components (equation 2). DESIGN.md lists the
    differences from the paper.

    J. Lücke, D. Forster, k-means as a variational EM approximation of Gaussian mixture models,
    Pattern Recognition Letters 125, 2019. F. Hirschberger, D. Forster, J. Lücke, A variational EM
    acceleration for efficient clustering at very large scales, IEEE TPAMI 44(12), 2022.

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> rng = np.random.default_rng(0)
    >>> x = np.concatenate([rng.normal(0, 1, (500, 2)), rng.normal(20, 3, (500, 2))])
    >>> mixture = lk.Mixture(2, covariance="isoflex", random_state=0).fit(x)
    >>> np.sort(np.sqrt(mixture.covariances_)).round(0)
    array([1., 3.])
    >>> bool(mixture.score_samples([[50.0, 0.0]]) < mixture.score_samples(x).min())
    True
    """

    weights_: NDArray[np.float64]
    means_: NDArray[Any]
    covariances_: NDArray[np.float64]
    precisions_: NDArray[np.float64]
    lower_bound_: float
    log_likelihood_: float
    converged_: bool
    model_: MixtureModel
    _model_kind = MixtureModel

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance: Covariance = "iso",
        init: str | NDArray[Any] = "k-means",
        weights_init: NDArray[Any] | None = None,
        precisions_init: NDArray[Any] | None = None,
        candidates: int | Literal["auto"] = "auto",
        neighbours: int | Literal["auto"] = "auto",
        explore: int = 0,
        coreset: int | None = None,
        reg_covar: float = 1e-6,
        least_variance: float = 0.0,
        moves: bool = True,
        n_init: int = 1,
        max_iter: int = 300,
        tol: float = 1e-4,
        max_time: float | str | None = None,
        on_bad_rows: Literal["raise", "skip"] = "raise",
        normalize: Literal["l2"] | None = None,
        scale: Literal["standard"] | None = None,
        dither: bool = False,
        random_state: Any = None,
        client: Client | None = None,
        n_threads: int | None = None,
        memory_limit: int | str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        verbose: int | bool = 0,
        callbacks: Sequence[Callable[[Snapshot], object]] = (),
    ) -> None:
        self.n_components = n_components
        self.covariance = covariance
        self.init = init
        self.weights_init = weights_init
        self.precisions_init = precisions_init
        self.candidates = candidates
        self.neighbours = neighbours
        self.explore = explore
        self.coreset = coreset
        self.reg_covar = reg_covar
        self.least_variance = least_variance
        self.moves = moves
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.max_time = max_time
        self.on_bad_rows = on_bad_rows
        self.normalize = normalize
        self.scale = scale
        self.dither = dither
        self.random_state = random_state
        self.client = client
        self.n_threads = n_threads
        self.memory_limit = memory_limit
        self.checkpoint = checkpoint
        self.verbose = verbose
        self.callbacks = callbacks

    # --- fitting ----------------------------------------------------------------------------------

    def _run(self, rows: Rows, options: FitOptions) -> tuple[FitResult, Model]:
        try:
            return super()._run(rows, options)
        except ParameterError as error:
            message = str(error).replace("n_clusters", "n_components")
            raise type(error)(message) from error

    @classmethod
    def _parameters_of(cls, model: Any) -> dict[str, Any]:
        asked = model.provenance.get("parameters", {})
        return {
            "n_components": model.n_clusters,
            "covariance": asked.get("mixture", _covariance_of(model.arrays)),
            "dither": asked.get("dither") is not None,
            "normalize": model.normalize,
            "scale": None if model.scaling is None else "standard",
            "on_bad_rows": model.on_bad_rows,
        }

    def _keep(self, model: MixtureModel) -> None:
        arrays = model.arrays
        self.model_ = model
        self.means_ = arrays.means
        self.weights_ = exp(arrays.log_weights)
        self.covariances_ = _variances(arrays, self.covariance)
        self.precisions_ = 1 / self.covariances_
        # A model that was not made by a fit has no objective.
        value = model.provenance.get(model.objective.name)
        if value is not None:
            # Without any step, the objective is used as the bound.
            self.lower_bound_ = value / float(np.cumsum(arrays.counts)[-1])
        if model.history:
            bound = model.history[-1]["extra"]["lower_bound"]
            assert bound is not None
            self.lower_bound_ = bound
        self.converged_ = model.provenance.get("stop_reason") in ("converged", "tol")

    # --- using the mixture ------------------------------------------------------------------------

    @without_causes
    def predict_proba(
        self, X: Any, *, dense: bool | None = None, out: str | None = None, **source: Unpack[Source]
    ) -> Any:
        """Return the posterior probabilities of the components for every row.

        Parameters
        ----------
        X : as for ``fit``
        dense : bool, optional
            Whether to return a dense array, or a sparse one of the probabilities above 2^-20,
            scaled to sum to 1 per row; None for dense up to 1,000 components.
        out : str, optional
            Write the probabilities in chunks to a new Zarr group at this URL, as CSR in AnnData's
            layout, instead of returning them.

        Returns
        -------
        array or scipy.sparse.csr_matrix of shape (n_rows, n_components), or None
        """
        rows = self._open(X, reset=False, **source)
        return self._model().predict_proba(rows, dense=dense, out=out, **self._where())

    @without_causes
    def score_samples(self, X: Any, *, out: str | None = None, **source: Unpack[Source]) -> Any:
        """Return the exact log-likelihood of every row; outliers have low values.

        Outliers that form their own component may have high values: see ``model_.counts``.

        Parameters
        ----------
        X : as for ``fit``
        out : str, optional
            Write the values to this URL in chunks instead of returning them: a new Zarr array, or
            an ``.npy``, ``.csv`` or ``.parquet`` file.

        Returns
        -------
        float64 array of shape (n_rows,), or None
            NaN for skipped rows.
        """
        return self._model().score_samples(
            self._open(X, reset=False, **source), out=out, **self._where()
        )

    def bic(self, X: Any, **source: Unpack[Source]) -> float:
        """Return the Bayesian information criterion on ``X``; lower is better."""
        total, weight = self._log_likelihood(X, source)
        return float(self.model_.n_parameters * log(np.array([weight]))[0] - 2 * total)

    def aic(self, X: Any, **source: Unpack[Source]) -> float:
        """Return the Akaike information criterion on ``X``; lower is better."""
        return 2 * self.model_.n_parameters - 2 * self._log_likelihood(X, source)[0]

    def _log_likelihood(self, X: Any, source: Source) -> tuple[float, float]:
        model: MixtureModel = self._model()
        rows = model._open(self._open(X, reset=False, **source))
        with model._passes(rows, self.client, self.n_threads) as passes:
            return model._log_likelihood(passes)

    @without_causes
    def sample(
        self, n_samples: int = 1, random_state: Any = None
    ) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Draw rows from the mixture.

        Parameters
        ----------
        n_samples : int
        random_state : int, RandomState, Generator or None
            None to use the ``random_state`` of the estimator.

        Returns
        -------
        rows : array (n_samples, n_features)
            Rows in random order, in the compute dtype of fits.
        components : int32 array (n_samples,)
            Index of the component that each row was drawn from.
        """
        arrays = self._model().arrays
        check_integer("n_samples", n_samples, 1)
        check_output_fits((n_samples, 2 * self.n_features_in_), 8)
        seed = draw_seed(self.random_state if random_state is None else random_state)
        rng = np.random.default_rng(seed)
        mass = np.cumsum(exp(arrays.log_weights - arrays.log_weights.max()))
        places = np.searchsorted(mass, rng.random(n_samples) * mass[-1], side="right")
        # Because of rounding, the index may be beyond the last component with a positive weight.
        components = np.minimum(places, np.searchsorted(mass, mass[-1])).astype(np.int32)
        rows = rng.standard_normal((n_samples, self.n_features_in_))
        rows *= np.sqrt(np.broadcast_to(arrays.variances, arrays.means.shape))[components]
        rows += arrays.means[components]
        if self.model_.scaling is not None:
            rows = self.model_.scaling.restore(rows)
        return rows.astype(arrays.means.dtype), components

    def to_sklearn(self) -> GaussianMixture:
        """Return a fitted ``sklearn.mixture.GaussianMixture`` with the same components.

        For float64 rows, the values of ``score_samples`` agree to 1e-5. scikit-learn squares
        float32 rows in float32, which loses digits if values are large compared with the variances;
        convert such rows to float64. scikit-learn neither normalises, dithers nor scales:
        with ``normalize="l2"``, pass rows of unit length; with ``scale``, pass standardised rows.
        """
        from sklearn.mixture import GaussianMixture

        check_is_fitted(self)
        kind = "diag" if self.covariance == "diag" else "spherical"
        found = GaussianMixture(self.n_components, covariance_type=kind)
        found.weights_ = self.weights_ / self.weights_.sum()
        found.means_ = self.means_.astype(np.float64)
        found.covariances_ = self.covariances_.copy()
        found.precisions_ = self.precisions_.copy()
        found.precisions_cholesky_ = np.sqrt(self.precisions_)
        found.lower_bound_ = self.lower_bound_
        found.lower_bounds_ = [self.lower_bound_]
        found.converged_ = self.converged_
        found.n_iter_ = self.n_iter_
        found.n_features_in_ = self.n_features_in_
        if hasattr(self, "feature_names_in_"):
            found.feature_names_in_ = self.feature_names_in_
        return found

    # --- parameters -------------------------------------------------------------------------------

    def _check_parameters(self) -> FitOptions:
        check_integer("n_components", self.n_components, 1)
        if not isinstance(self.dither, (bool, np.bool_)):
            raise ParameterError(f"dither must be True or False, got {self.dither!r}.")
        algorithm = VCGMM(
            candidates=self.candidates,
            neighbours=self.neighbours,
            explore=self.explore,
            covariance=self.covariance,
            coreset=self.coreset,
            reg_covar=self.reg_covar,
            least_variance=self.least_variance,
            moves=self.moves,
        )
        self._check_environment()
        return FitOptions(
            n_clusters=self.n_components,
            algorithm=algorithm,
            mixture=self.covariance,
            init=self.init,
            weights_init=self.weights_init,
            precisions_init=self.precisions_init,
            n_init=self.n_init,
            max_iter=self.max_iter,
            tol=self.tol,
            max_time=self.max_time,
            on_bad_rows=self.on_bad_rows,
            normalize=self.normalize,
            scale=self.scale,
            dither="uniform" if self.dither else None,
            memory_limit=self.memory_limit,
        )


def _covariance_of(arrays: MixtureArrays) -> Covariance:
    """Return the covariance type that corresponds to the shape of the variances."""
    if arrays.variances.shape[1] > 1:
        return "diag"
    return "iso" if len(arrays.variances) == 1 else "isoflex"


def _variances(arrays: MixtureArrays, covariance: Covariance) -> NDArray[np.float64]:
    """Return the (k, d) variances for "diag", and otherwise the (k,) means of the variances."""
    k, d = arrays.means.shape
    variances = arrays.variances
    if covariance == "diag":
        return np.broadcast_to(variances, (k, d)).copy()
    each = np.cumsum(variances, axis=1)[:, -1] / variances.shape[1]
    return np.broadcast_to(each, (k,)).copy()
