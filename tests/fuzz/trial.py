"""One case run, and all that is wrong with it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.errors import DataError, ParameterError, ParameterWarning
from tests.algorithms.conftest import bits
from tests.checks import (
    dense,
    faults_of_fit,
    faults_of_means,
    recorded_warnings,
    squared_distances,
    watched_passes,
)
from tests.fuzz.cases import ALGORITHMS, MIXTURES, Case
from tests.fuzz.mixtures import faults_of_mixture, may_be_refused

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
            why: Any = out_of_range(x, weight, case.layout == "csr")
            if case.algorithm in MIXTURES:
                why = why or may_be_refused(km, x, weight, error)
            return [] if why else [f"refused: {type(error).__name__}: {error}"]
        except Exception as error:
            # Whatever it is, it is what is looked for.
            return [f"raised: {type(error).__name__}: {error}"]
        # Some algorithms have lists that are longer than there are clusters: they say so.
        told = [w for w in told if not issubclass(w.category, ParameterWarning)]
        judge = faults_of_mixture if case.algorithm in MIXTURES else faults_of_fit
        faults = judge(km, x, weight, told=told)
        if n_chunks is not None and seen[0].n_chunks != n_chunks:
            faults.append(f"chunks: {seen[0].n_chunks} instead of {n_chunks}")
        faults += _faults_of_use(km, data, x)
        if (
            case.algorithm.startswith("lloyd")
            and case.tol == 0
            and km.stop_reason_ == "converged"
            and not told
        ):
            faults += faults_of_means(km, x, weight)
        again = {"threads": _faults_of_threads, "resume": _faults_of_resume}.get(case.also)
        if again is not None:
            faults += again(case, km, data, x, weight)
    if case.also == "repeats" and weight is not None:
        faults += _faults_of_repeats(case, km, x, weight)
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
    return lk.KMeans(case.k, algorithm=ALGORITHMS[case.algorithm], **(given | options))


# --- what else is compared ------------------------------------------------------------------------


def _faults_of_use(km: Any, data: Any, x: NDArray[Any]) -> Iterator[str]:
    """The model gives the labels of the fit, wherever rows lie, and right distances."""
    labels = km.labels_
    if (wrong := km.predict(data) != labels).any():
        yield f"predict: {wrong.sum()} labels are not those of the fit"
    moves = isinstance(data, str) or getattr(km, "dither", False)
    if not moves and (wrong := km.predict(data[::-1])[::-1] != labels).any():
        yield f"predict: {wrong.sum()} labels are not those of the fit if the rows are reversed"
    if isinstance(km, lk.Mixture):
        return
    few = x[:200]
    centers = km.cluster_centers_
    largest = max(float(np.abs(dense(few)).max()), float(np.abs(centers).max()), 5e-324)
    power = -math.frexp(largest)[1]
    expected = np.sqrt(
        squared_distances(np.ldexp(dense(few), power), np.ldexp(centers.astype(np.float64), power))
    )
    found = np.ldexp(km.transform(data[:200] if not isinstance(data, str) else few), power)
    off = np.abs(found - expected)
    # Half of the digits are right everywhere; what is lost are squares too small for the type.
    kind = np.finfo(centers.dtype)
    lost = np.ldexp(math.sqrt(2 * km.n_features_in_ * float(kind.smallest_subnormal)), power)
    allowed = 4 * math.sqrt(kind.eps) * expected + lost
    if not (off <= allowed).all():
        worst = np.unravel_index(np.argmax(off - allowed), off.shape)
        yield f"transform: {found[worst]:.8g} instead of {expected[worst]:.8g}"


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
    case: Case, km: lk.KMeans, x: NDArray[Any], weight: NDArray[np.float64]
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


def out_of_range(x: NDArray[Any], weight: Any, is_sparse: bool) -> str | None:
    """Why these rows may be refused: what their squares are no numbers for; None if nothing is."""
    rows = dense(x)
    if weight is not None:
        there = weight[weight > 0]
        if there.max() / there.min() > WEIGHT_RANGE:
            return "weights"
        rows = rows[weight > 0]
    info = np.finfo(np.float64 if x.dtype == np.float64 else np.float32)
    # Sparse rows stay about 0, where the others are about their mean.
    origin = 0.0 if is_sparse else rows[0]
    extent = float(np.abs(rows - origin).max())
    if extent * math.sqrt(rows.shape[1]) > math.sqrt(float(info.max)) / 16:
        return "overflow"
    # Squares of differences much smaller than that are to be normal numbers, too.
    if 0 < extent < 4 * math.sqrt(float(info.tiny) / float(info.eps)):
        return "underflow"
    return None
