"""Parameters as other libraries call them: what to say here instead.

scikit-learn reads an estimator's parameters from the signature of its ``__init__``, so that
there can be no ``**kwargs`` that takes everything; whoever writes a name of another library is
told the name to use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

from largek_dask.errors import UnknownParameterError

__all__ = ["OF_KMEANS", "OF_MIXTURES", "Elsewhere", "knows_other_names", "unknown_parameter"]

P = ParamSpec("P")
T = TypeVar("T")


class Elsewhere(NamedTuple):
    """A parameter that an estimator here does not have."""

    libraries: str
    """Those that do."""
    advice: str
    """A clause that says what to write, or why nothing."""


_SEED = "use random_state="
_CLUSTERS = "use n_clusters="
_THREADS = "use n_threads="
_COLUMNS = "leave it out: the number of columns is that of the rows"
_MEMORY = "leave it out: memory_limit= says how much a process may keep for its rows"
_KERNELS = "leave it out: rows are computed on by processor cores, n_threads= or client= says which"
_TYPES = "leave it out: arrays are numpy's, float32 or float64 as the rows are"
_ALL_ROWS = 'leave it out: every row counts; algorithm="minibatch" takes batches of them'
_DISTANCE = (
    "rows are compared by Euclidean distance; SphericalKMeans compares their directions (cosine)"
)
_EXACT = "leave it out: no distance is kept that has not been asked for"
_ROUNDS = 'leave it out: init="k-means||" makes five rounds of k / 2 candidates'
_BATCH = "use MiniBatchKMeans(batch_size=...), or algorithm=MiniBatch(batch_rows=...)"
_LAST_PASS = "leave it out: labels_ and inertia_ are of one exact pass at the end"

OF_EITHER: Mapping[str, Elsewhere] = {
    "seed": Elsewhere("faiss, Spark", _SEED),
    "niter": Elsewhere("faiss", "use max_iter="),
    "nredo": Elsewhere("faiss", "use n_init="),
    "d": Elsewhere("faiss", _COLUMNS),
    "gpu": Elsewhere("faiss", _KERNELS),
    "n_jobs": Elsewhere("dask-ml, older scikit-learn", _THREADS),
    "handle": Elsewhere("cuML", _KERNELS),
    "convert_dtype": Elsewhere("cuML", _TYPES),
    "maxIter": Elsewhere("Spark", "use max_iter="),
    "sample_weight": Elsewhere("the fit", "give it to fit()"),
}
"""What neither ``KMeans`` nor ``Mixture`` has."""
OF_KMEANS: Mapping[str, Elsewhere] = {
    **OF_EITHER,
    "output_type": Elsewhere("cuML", "use set_output(), as in scikit-learn"),
    "k": Elsewhere("faiss, Spark", _CLUSTERS),
    "n_components": Elsewhere("Mixture", _CLUSTERS),
    "spherical": Elsewhere(
        "faiss", 'use SphericalKMeans; normalize="l2" alone leaves centres that are means'
    ),
    "metric": Elsewhere("other libraries", _DISTANCE),
    "distanceMeasure": Elsewhere("Spark", _DISTANCE),
    "batch_size": Elsewhere("scikit-learn's MiniBatchKMeans", _BATCH),
    "batch_rows": Elsewhere("MiniBatch", _BATCH),
    "max_no_improvement": Elsewhere(
        "scikit-learn's MiniBatchKMeans", "use max_iter= or max_time=, or a callback that ends it"
    ),
    "init_size": Elsewhere(
        "scikit-learn's MiniBatchKMeans",
        "leave it out: first centres are of all rows, of a sample as init says",
    ),
    "reassignment_ratio": Elsewhere("scikit-learn's MiniBatchKMeans", "use empty_clusters="),
    "compute_labels": Elsewhere("scikit-learn's MiniBatchKMeans", _LAST_PASS),
    "precompute_distances": Elsewhere("dask-ml, older scikit-learn", _EXACT),
    "init_max_iter": Elsewhere("dask-ml", _ROUNDS),
    "oversampling_factor": Elsewhere("cuML, dask-ml", _ROUNDS),
    "initMode": Elsewhere("Spark", "use init="),
    "initSteps": Elsewhere("Spark", _ROUNDS),
    "max_samples_per_batch": Elsewhere("cuML", _MEMORY),
    "max_points_per_centroid": Elsewhere("faiss", _ALL_ROWS),
    "min_points_per_centroid": Elsewhere(
        "faiss", "leave it out: a warning names clusters without rows"
    ),
    "int_centroids": Elsewhere("faiss", "round cluster_centers_ yourself"),
    "update_index": Elsewhere("faiss", "leave it out: predict() takes the last centres"),
    "frozen_centroids": Elsewhere(
        "faiss", "use partial_fit() after a fit, which moves centres as rows come"
    ),
    "use_faster_subsampling": Elsewhere("faiss", _ALL_ROWS),
    "decode_block_size": Elsewhere("faiss", _MEMORY),
    "check_input_data_for_NaNs": Elsewhere("faiss", "use on_bad_rows="),
    "early_stop_threshold": Elsewhere("faiss", "use tol="),
    "init_method": Elsewhere("faiss", "use init="),
    "afkmc2_chain_length": Elsewhere(
        "faiss", 'leave it out: init="afk-mc2" makes chains as long as they need to be'
    ),
    "use_super_kmeans": Elsewhere(
        "faiss", 'leave it out: algorithm="auto" is the fastest there is for the rows'
    ),
    "progressive_dim_steps": Elsewhere("faiss", "leave it out: every step takes all columns"),
    "bisecting_strategy": Elsewhere(
        "scikit-learn's BisectingKMeans",
        'use algorithm="dcdbundle", which finds every number of clusters up to n_clusters',
    ),
}
"""What ``KMeans`` does not have, by name."""
OF_MIXTURES: Mapping[str, Elsewhere] = {
    **OF_EITHER,
    "output_type": Elsewhere("cuML", _TYPES),
    "k": Elsewhere("Spark", "use n_components="),
    "n_clusters": Elsewhere("KMeans", "use n_components="),
    "covariance_type": Elsewhere(
        "scikit-learn", 'use covariance=: "isoflex" is its "spherical", and "diag" its "diag"'
    ),
    "init_params": Elsewhere("scikit-learn", "use init="),
    "warm_start": Elsewhere("scikit-learn", "use init=, which takes a fitted Mixture"),
    "verbose_interval": Elsewhere("scikit-learn", "use callbacks="),
    "algorithm": Elsewhere("KMeans", "leave it out: a mixture is found by vc-GMM"),
}
"""What ``Mixture`` does not have, by name."""


def knows_other_names(
    init: Callable[Concatenate[T, P], None],
) -> Callable[Concatenate[T, P], None]:
    """An ``__init__`` with the same signature that tells of names which it does not know.

    The class has a table ``_elsewhere`` of names in other libraries.
    """
    known = inspect.signature(init).parameters
    by_place = [name for name, p in known.items() if p.kind is not p.KEYWORD_ONLY]

    @wraps(init)
    def checked(self: T, *args: P.args, **given: P.kwargs) -> None:
        kind: Any = type(self)
        for name in given:
            if name not in known:
                raise unknown_parameter(kind.__name__, name, list(known)[1:], kind._elsewhere)
        if len(args) >= len(by_place):
            first = by_place[1]
            raise UnknownParameterError(
                f"{kind.__name__} takes {first} alone without its name, and was given "
                f"{len(args)} such arguments: write {kind.__name__}({first}, name=value, ...). "
                "(The number of columns is that of the rows, and is not given.)"
            )
        init(self, *args, **given)

    return cast("Callable[Concatenate[T, P], None]", checked)


def unknown_parameter(
    estimator: str, name: str, known: list[str], elsewhere: Mapping[str, Elsewhere]
) -> UnknownParameterError:
    """The error of a name that an estimator does not know, which says the one to use."""
    told = f"{estimator} has no parameter {name!r}"
    if (other := elsewhere.get(name)) is not None:
        return UnknownParameterError(f"{told} ({other.libraries}): {other.advice}.")
    if near := get_close_matches(name, known, 1, 0.75):
        return UnknownParameterError(f"{told}: use {near[0]}=.")
    return UnknownParameterError(f"{told}; it has {', '.join(known)}.")
