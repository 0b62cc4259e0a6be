"""One case run, and all that is wrong with it."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.errors import DataError, ParameterError, ParameterWarning
from largek_dask.kernels.rows import compute_dtype
from largek_dask.model import PathModel
from tests.algorithms.conftest import bits
from tests.fuzz.cases import ALGORITHMS, MIXTURES, Case
from tests.fuzz.mixtures import faults_of_mixture, may_be_refused
from tests.helpers.checks import (
    dense,
    faults_of_fit,
    faults_of_labels,
    faults_of_means,
    recorded_warnings,
    squared_distances,
    unit_rows,
    watched_passes,
)

WEIGHT_RANGE = 1e15
"""Weights further apart than that may be refused."""

_open_clusters = ExitStack()


def close_cluster() -> None:
    """End the workers, if there are any."""
    _open_clusters.close()


@cache
def cluster() -> Client:
    """Two workers in threads of this process."""
    workers = LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, memory_limit=0, dashboard_address=":0"
    )
    _open_clusters.enter_context(workers)
    return _open_clusters.enter_context(Client(workers, set_as_default=False))


def faults_of(case: Case) -> list[str]:
    """What is wrong with the fit of a case, a line each; nothing if all is right."""
    x, weight = case.rows(), case.weight()
    with _source(case, case.data(x)) as (data, n_chunks):
        client = cluster() if case.source == "workers" else None
        km = _estimator(case, x, client=client, n_threads=2)
        try:
            with watched_passes() as seen, recorded_warnings() as told:
                km.fit(data, sample_weight=weight)
        except (DataError, ParameterError) as error:
            why: Any = out_of_range(x, weight, case)
            if case.algorithm in MIXTURES:
                why = why or may_be_refused(km, x, weight, error)
            return [] if why else [f"refused: {type(error).__name__}: {error}"]
        except Exception as error:
            # Whatever it is, it is what is looked for.
            return [f"raised: {type(error).__name__}: {error}"]
        seen_rows = x
        if case.normalize or case.estimator == "SphericalKMeans":
            seen_rows = unit_rows(x, compute_dtype(x.dtype))
        # Some algorithms have lists that are longer than there are clusters: they say so.
        told = [w for w in told if not issubclass(w.category, ParameterWarning)]
        judge = faults_of_mixture if case.algorithm in MIXTURES else faults_of_fit
        faults = judge(km, seen_rows, weight, told=told)
        if n_chunks is not None and seen[0].n_chunks != n_chunks:
            faults.append(f"chunks: {seen[0].n_chunks} instead of {n_chunks}")
        faults += _faults_of_use(km, data, x, seen_rows, weight)
        if (
            case.algorithm.startswith("lloyd")
            and case.estimator == "KMeans"
            and case.tol == 0
            and km.stop_reason_ == "converged"
            and not told
        ):
            faults += faults_of_means(km, seen_rows, weight)
        again = COMPARISONS.get(case.also)
        if again is not None:
            faults += again(case, km, data, x, weight)
    return faults


@contextmanager
def _source(case: Case, data: Any) -> Iterator[tuple[Any, int | None]]:
    """What is fitted, and in how many chunks it is read, where that is known."""
    with (
        tempfile.TemporaryDirectory() as folder,
        dask.config.set({"largek.data.read-chunk-bytes": 1}),
    ):
        if case.source == "array":
            yield data, None
            return
        chunk_rows = case.n // 4 + 1
        if data.dtype == bool:
            data = data.astype(np.uint8)
        lk.ingest(data, f"{folder}/x.zarr", chunk_rows=chunk_rows, progress=False)
        # Sparse rows are read in chunks of 256 at least.
        yield f"{folder}/x.zarr", None if case.layout == "csr" else -(-case.n // chunk_rows)


def _estimator(case: Case, x: NDArray[Any], **options: Any) -> Any:
    given = {
        "init": case.start(x),
        "tol": case.tol,
        "max_iter": case.max_iter,
        "random_state": case.seed,
    }
    if case.algorithm in MIXTURES:
        given |= {"reg_covar": case.reg_covar, "dither": case.dither}
        return lk.Mixture(case.k, **(MIXTURES[case.algorithm] | given | options))
    given["on_bad_rows"] = "skip" if case.bad else "raise"
    if case.estimator == "MiniBatchKMeans":
        given |= {"batch_size": 200, "normalize": "l2" if case.normalize else None}
        return lk.MiniBatchKMeans(case.k, **(given | options))
    given |= {"algorithm": ALGORITHMS[case.algorithm], "effort": case.effort}
    if case.estimator == "SphericalKMeans":
        return lk.SphericalKMeans(case.k, **(given | options))
    return lk.KMeans(case.k, normalize="l2" if case.normalize else None, **(given | options))


# --- what else is compared ------------------------------------------------------------------------


def _faults_of_use(
    km: Any, data: Any, x: NDArray[Any], rows: NDArray[Any], weight: Any
) -> Iterator[str]:
    """The model gives the labels of the fit, wherever rows lie, and right distances."""
    labels = km.labels_
    if (wrong := km.predict(data) != labels).any():
        yield f"predict: {wrong.sum()} labels are not those of the fit"
    moves = isinstance(data, str) or getattr(km, "dither", False)
    if not moves and (wrong := km.predict(data[::-1])[::-1] != labels).any():
        yield f"predict: {wrong.sum()} labels are not those of the fit if the rows are reversed"
    if isinstance(km, lk.Mixture):
        return
    if isinstance(km.model_, PathModel):
        yield from _faults_of_partitions(km, data, weight)
    few = np.flatnonzero(labels >= 0)[:200]
    centers = km.cluster_centers_
    largest = max(float(np.abs(dense(rows[few])).max()), float(np.abs(centers).max()), 5e-324)
    power = -math.frexp(largest)[1]
    scaled = np.ldexp(dense(rows[few]), power)
    expected = np.sqrt(squared_distances(scaled, np.ldexp(centers.astype(np.float64), power)))
    found = np.ldexp(km.transform(data[few] if hasattr(data, "toarray") else x[few]), power)
    off = np.abs(found - expected)
    # Half of the digits are right everywhere; what is lost are squares too small for the type.
    kind = np.finfo(centers.dtype)
    lost = np.ldexp(math.sqrt(2 * km.n_features_in_ * float(kind.smallest_subnormal)), power)
    allowed = 4 * math.sqrt(kind.eps) * expected + lost
    if not (off <= allowed).all():
        worst = np.unravel_index(np.argmax(off - allowed), off.shape)
        yield f"transform: {found[worst]:.8g} instead of {expected[worst]:.8g}"


def _faults_of_partitions(km: Any, data: Any, weight: Any) -> Iterator[str]:
    """Models of a path have its centres, and rows cost them what the path says."""
    for size in sorted({1, len(km.path_) // 2, len(km.path_)} - {0}):
        model = km.path_.model(size)
        if not np.array_equal(model.centers, km.path_.centers(size)) or len(model.centers) != size:
            yield f"path: other centres of the partition into {size} in its model"
        cost, told = -model.score(data, sample_weight=weight), float(km.path_.inertia[size - 1])
        if not math.isclose(cost, told, rel_tol=1e-9, abs_tol=1e-300):
            yield f"path: {size} clusters cost {cost!r}, the path says {told!r}"


def _faults_of_threads(
    case: Case, km: Any, data: Any, x: NDArray[Any], weight: Any
) -> Iterator[str]:
    with recorded_warnings():
        alone = _estimator(case, x, n_threads=1).fit(data, sample_weight=weight)
    if bits(alone) != bits(km):
        yield "threads: one thread gives other bits than two, or than workers"


def _faults_of_resume(
    case: Case, km: Any, data: Any, x: NDArray[Any], weight: Any
) -> Iterator[str]:
    if km.n_iter_ < 2:
        return
    with tempfile.TemporaryDirectory() as folder, recorded_warnings():
        steps = 1 + case.seed % (km.n_iter_ - 1)
        options = {"checkpoint": f"{folder}/job", "n_threads": 1}
        _estimator(case, x, **options, max_iter=steps).fit(data, sample_weight=weight)
        resumed = _estimator(case, x, **options).fit(data, sample_weight=weight)
    if bits(resumed) != bits(km):
        yield f"resume: other bits after a stop at step {steps} of {km.n_iter_}"


def _faults_of_repeats(
    case: Case, km: lk.KMeans, data: Any, x: NDArray[Any], weight: NDArray[np.float64]
) -> Iterator[str]:
    times = weight.astype(int)
    repeated = np.repeat(x, times, axis=0)
    with recorded_warnings():
        other = _estimator(case, x, n_threads=1).fit(case.data(repeated))
    if not np.array_equal(other.cluster_centers_, km.cluster_centers_):
        yield f"repeats: rows repeated give inertia {other.inertia_!r}, weights {km.inertia_!r}"
    elif not np.array_equal(other.labels_, np.repeat(km.labels_, times)):
        yield "repeats: rows repeated have other labels"
    elif other.inertia_ != km.inertia_:
        yield f"repeats: rows repeated give inertia {other.inertia_!r}, weights {km.inertia_!r}"


def _faults_of_batches(
    case: Case, km: Any, data: Any, x: NDArray[Any], weight: Any
) -> Iterator[str]:
    """Every centre is the mean of the rows that have voted for it, each batch by labels before."""
    rows = x if case.estimator == "KMeans" and not case.normalize else None
    if case.n < 2 * case.k + 2 or case.layout == "csr" or rows is None:
        return
    weights = np.ones(case.n) if weight is None else weight
    km = copy.copy(km)
    km.client = None  # No client can be copied.
    km = copy.deepcopy(km)
    for batch in np.array_split(np.arange(case.n), 3):
        batch = batch[np.isfinite(dense(x[batch])).all(axis=1)]
        if not len(batch) or not weights[batch].any():
            continue
        before, votes = km.cluster_centers_.astype(np.float64), km.model_.counts
        chosen = km.predict(x[batch])
        with recorded_warnings():
            km.partial_fit(x[batch], sample_weight=weights[batch])
        counted = [math.fsum(weights[batch][chosen == j]) for j in range(len(votes))]
        expected = votes + counted
        if not np.allclose(km.model_.counts, expected, rtol=1e-12, atol=0):
            yield f"partial_fit: counts are {np.abs(km.model_.counts - expected).max():.3g} off"
        centers = km.cluster_centers_
        eps, largest = float(np.finfo(centers.dtype).eps), float(np.abs(dense(x[batch])).max())
        for j in np.flatnonzero(expected > votes):
            mine = batch[chosen == j]
            share = weights[mine] / expected[j]
            mean = before[j] * (votes[j] / expected[j]) + share @ dense(x[mine])
            off = np.abs(centers[j] - mean).max()
            # Sums have at least 30 bits of light rows below the largest (FixedPoint.least_weight).
            if not off <= 8 * eps * max(largest, np.abs(before[j]).max()) + 2.0**-30 * largest:
                yield f"partial_fit: centre {j} is {off:.3g} off"
                return
        places = centers.astype(np.float64)
        distances = squared_distances(dense(x[batch]), places)
        yield from faults_of_labels(km.labels_, distances, case.d, centers.dtype)


def _faults_of_other_type(
    case: Case, km: Any, data: Any, x: NDArray[Any], weight: Any
) -> Iterator[str]:
    """Rows of another type than the fit's get the nearest centre, as far as they can be told."""
    if case.layout == "csr" or case.normalize or case.estimator == "SphericalKMeans":
        return
    finite = np.isfinite(dense(x)).all(axis=1)
    rows = dense(x[finite])
    if not len(rows):
        return
    rng = np.random.default_rng([case.seed, 4])
    rows = rows * (1 + 1e-9 * rng.normal(size=rows.shape))
    centers = km.cluster_centers_
    for kind in (np.float64, np.float32, np.int64):
        with np.errstate(over="ignore", invalid="ignore"):
            other = rows.clip(-(2.0**50), 2.0**50).astype(kind)
        asked = other.astype(np.float64)
        if not np.isfinite(asked).all():
            continue
        power = -math.frexp(max(np.abs(asked).max(), np.abs(centers).max(), 5e-324))[1]
        scaled = np.ldexp(asked, power)
        distances = squared_distances(scaled, np.ldexp(centers.astype(np.float64), power))
        # The rows are rounded to the type of the centres.
        eps = float(np.finfo(centers.dtype).eps)
        more = 4 * eps * np.sqrt(np.square(scaled).sum(axis=1))
        labels = km.predict(other)
        found = faults_of_labels(labels, distances, case.d, centers.dtype, more)
        yield from (f"{np.dtype(kind)} rows: {fault}" for fault in found)


def _faults_of_scores(
    case: Case, km: Any, data: Any, x: NDArray[Any], weight: Any
) -> Iterator[str]:
    """The simplified silhouette is that of its definition."""
    finite = np.isfinite(dense(x)).all(axis=1)
    used = km.model_.counts > 0
    if case.algorithm in MIXTURES or case.normalize or not finite.all() or used.sum() < 2:
        return
    weights = np.ones(case.n) if weight is None else weight
    rows, centers = dense(x), km.cluster_centers_.astype(np.float64)
    power = -math.frexp(max(np.abs(rows).max(), np.abs(centers).max(), 5e-324))[1]
    distances = np.sqrt(squared_distances(np.ldexp(rows, power), np.ldexp(centers, power)))
    own = km.labels_
    a = distances[np.arange(case.n), own].copy()
    distances[:, ~used] = np.inf
    distances[np.arange(case.n), own] = np.inf
    b = distances.min(axis=1)
    longer = np.maximum(a, b)
    values = np.divide(b - a, longer, out=np.zeros(case.n), where=longer > 0)
    expected = math.fsum(weights * values) / math.fsum(weights)
    given = data if case.source in ("array", "store") else x
    found = lk.scores.silhouette(km.model_, given, sample_weight=weight)
    if not abs(found - expected) <= 1e-6:
        yield f"silhouette: {float(found)!r} instead of {expected!r}"


def _faults_of_suggestion(
    case: Case, km: Any, data: Any, x: NDArray[Any], weight: Any
) -> Iterator[str]:
    """More clusters never cost more, and what is named lies on the curve."""
    with recorded_warnings():
        try:
            found = lk.suggest_k(
                data,
                min(8, case.n),
                sample_weight=weight,
                normalize="l2" if case.normalize else None,
                on_bad_rows="skip" if case.bad else "raise",
                random_state=case.seed,
                n_threads=2,
            )
        except (DataError, ParameterError) as error:
            yield f"suggest_k: refused: {error}"
            return
    if np.diff(found.inertia).max(initial=0.0) > 0:
        yield f"suggest_k: the objective rises: {found.inertia.tolist()}"
    if found.k is not None and not found.range[0] <= found.k <= found.range[1]:
        yield f"suggest_k: {found.k} lies outside of {found.range}"
    last = int(found.n_clusters[-1])
    model = found.model(last)
    cost = -model.score(data, sample_weight=weight)
    if found.n_searched == found.n_rows and not math.isclose(
        cost, float(found.inertia[-1]), rel_tol=1e-9, abs_tol=1e-300
    ):
        yield f"suggest_k: {last} clusters cost {cost!r}, the curve says {found.inertia[-1]!r}"


COMPARISONS: dict[str, Callable[..., Iterator[str]]] = {
    "threads": _faults_of_threads,
    "resume": _faults_of_resume,
    "repeats": _faults_of_repeats,
    "batches": _faults_of_batches,
    "other type": _faults_of_other_type,
    "scores": _faults_of_scores,
    "suggest k": _faults_of_suggestion,
}
"""What is compared besides the fit, by the case's ``also``."""


def out_of_range(x: NDArray[Any], weight: Any, case: Case) -> str | None:
    """Why these rows may be refused: what their squares are no numbers for; None if nothing is."""
    rows = dense(x)
    there = np.isfinite(rows).all(axis=1)
    rows, weight = rows[there], None if weight is None else weight[there]
    if case.k > len(rows):
        return "few rows"
    if weight is not None:
        there = weight[weight > 0]
        if there.max() / there.min() > WEIGHT_RANGE:
            return "weights"
        rows = rows[weight > 0]
    if case.normalize or case.estimator == "SphericalKMeans":
        return None
    info = np.finfo(np.float64 if x.dtype == np.float64 else np.float32)
    # Sparse rows stay about 0, where the others are about their mean.
    origin = 0.0 if case.layout == "csr" else rows[0]
    extent = float(np.abs(rows - origin).max())
    if extent * math.sqrt(rows.shape[1]) > math.sqrt(float(info.max)) / 16:
        return "overflow"
    # Squares of differences much smaller than that are to be normal numbers, too.
    if 0 < extent < 4 * math.sqrt(float(info.tiny) / float(info.eps)):
        return "underflow"
    return None
