"""What tests in several folders check of a fit, by brute force and in double precision."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.data.rows import Rows
from largek_dask.driver import fit as fit_module
from largek_dask.driver.fit import FitResult
from largek_dask.driver.job_view import JobView, Y
from largek_dask.driver.options import OPTIONS, FitOptions
from largek_dask.kernels.tile import DIRECT_FEATURES
from largek_dask.model import PathModel
from largek_dask.passes.base import BasePasses

T = TypeVar("T")


def eventually(reached: Callable[[], T], what: str, seconds: float = 120.0) -> T:
    """What ``reached`` gives once it is true; for what nobody tells: asked again and again."""
    until = time.monotonic() + seconds
    while not (found := reached()):
        assert time.monotonic() < until, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.01)
    return found


def join(thread: threading.Thread, seconds: float = 120.0) -> None:
    """Wait for the end of a thread."""
    thread.join(seconds)
    assert not thread.is_alive(), f"{thread.name} has not ended after {seconds:g} s"


# --- where a fit was computed ---------------------------------------------------------------------


@contextmanager
def watched_passes() -> Iterator[list[BasePasses]]:
    """The passes of every fit inside: how many chunks they had, and who computed them."""
    seen: list[BasePasses] = []
    original = fit_module.open_passes

    @contextmanager
    def open_passes(*arguments: Any, **options: Any) -> Iterator[BasePasses]:
        with original(*arguments, **options) as passes:
            seen.append(passes)
            yield passes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_module, "open_passes", open_passes)
        yield seen


def computing_workers(passes: BasePasses) -> int:
    """How many workers have computed chunks."""
    return sum(report.chunks > 0 for report in passes.by_worker.values())


def fit_asked(rows: Rows, **asked: Any) -> FitResult:
    """``driver.fit.fit``; what is an option of ``FitOptions`` is given beside everything else."""
    options = FitOptions(**{name: asked.pop(name) for name in OPTIONS if name in asked})
    return fit_module.fit(rows, options, **asked)


# --- what a fit promises --------------------------------------------------------------------------


def dense(x: Any) -> NDArray[np.float64]:
    """Rows of any kind as a double precision array."""
    return np.asarray(x.toarray() if sp.issparse(x) else x).astype(np.float64)


def squared_distances(x: NDArray[np.float64], centers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared distances of all rows to all centres, as sums of squared differences."""
    out = np.empty((len(x), len(centers)))
    for j, center in enumerate(centers):
        out[:, j] = np.square(x - center).sum(axis=1)
    return out


def _rescaled(*arrays: NDArray[np.float64]) -> tuple[list[NDArray[np.float64]], int]:
    """The arrays times two to a power that brings them near 1, and the power; that is exact."""
    largest = max(float(np.abs(a).max(initial=0)) for a in arrays)
    power = -math.frexp(largest)[1] if 0 < largest < math.inf else 0
    return [np.ldexp(a, power) for a in arrays], power


def unit_rows(x: Any, dtype: Any) -> NDArray[Any]:
    """Rows of unit length in a type; lengths are sums in the order of the features."""
    rows = dense(x)
    with np.errstate(invalid="ignore", divide="ignore"):
        rows = np.ldexp(rows, -np.frexp(np.abs(rows).max(axis=1, keepdims=True))[1])
        lengths = np.sqrt(np.square(rows).cumsum(axis=1)[:, -1:])
        return np.where(lengths == 0, 0, rows / lengths).astype(dtype)


def distinct_rows(x: Any, weight: Any = None) -> int:
    """How many distinct rows count."""
    rows = dense(x) if weight is None else dense(x)[np.asarray(weight) > 0]
    return len(np.unique(rows, axis=0))


def faults_of_fit(
    km: Any, x: Any, weight: Any = None, *, told: Sequence[warnings.WarningMessage] = ()
) -> list[str]:
    """What is wrong with a fit of these rows, a line each; nothing if all is right.

    Parameters
    ----------
    km : KMeans
        Fitted.
    x : array or sparse matrix
        The rows; those with NaN or infinity are to be skipped.
    weight : array, optional
        Their weights.
    told : sequence of warnings.WarningMessage
        What the fit has warned of.
    """
    labels, centers = km.labels_, km.cluster_centers_
    k, n, d = km.n_clusters, x.shape[0], x.shape[1]
    finite = np.isfinite(dense(x)).all(axis=1)
    if not finite.all():
        if not np.array_equal(labels < 0, ~finite):
            return [f"skipped: {(labels < 0).sum()} rows, and {(~finite).sum()} are not finite"]
        x, labels, n = x[finite], labels[finite], int(finite.sum())
        weight = None if weight is None else np.asarray(weight)[finite]
    if isinstance(km.model_, PathModel):  # A path ends with a centre for every distinct row.
        k = min(k, distinct_rows(x, weight))
    if centers.shape != (k, d) or not np.isfinite(centers).all():
        return [f"centres: shape {centers.shape}, finite {np.isfinite(centers).all()}"]
    if labels.shape != (n,) or labels.dtype != np.int32:
        return [f"labels: shape {labels.shape}, {labels.dtype}"]
    if labels.min() < 0 or labels.max() >= k:
        return [f"labels: from {labels.min()} to {labels.max()}"]
    weights = np.ones(n) if weight is None else np.asarray(weight, np.float64)
    (rows, places), power = _rescaled(dense(x), centers.astype(np.float64))
    distances = squared_distances(rows, places)
    return [
        *faults_of_labels(labels, distances, d, centers.dtype),
        *_faults_of_figures(km, labels, rows, places, weights, power),
        *(
            _faults_of_directions(centers)
            if isinstance(km, lk.SphericalKMeans)
            else _faults_of_clusters(km, labels, x, weight, told)
        ),
        *(_faults_of_path(km, k) if isinstance(km.model_, PathModel) else ()),
    ]


def _faults_of_directions(centers: NDArray[Any]) -> Iterator[str]:
    """Centres have unit length; directions that are nearly the same may share one."""
    lengths = np.sqrt(np.square(centers.astype(np.float64)).sum(axis=1))
    if not np.allclose(lengths, 1, rtol=0, atol=8 * np.finfo(centers.dtype).eps):
        yield f"directions: centres of length {lengths.min()!r} to {lengths.max()!r}"


def _faults_of_path(km: Any, k: int) -> Iterator[str]:
    """One cluster more costs no more, and no bound is above what has been reached."""
    path = km.path_
    if len(path) != k or path.inertia[-1] != km.inertia_:
        yield f"path: ends at {len(path)} of {k} clusters with {path.inertia[-1]!r}"
    if (rise := np.diff(path.inertia).max(initial=0.0)) > 0:
        yield f"path: the inertia rises by {rise:.6g}"
    if not ((path.lower_bound >= 0) & (path.lower_bound <= path.inertia)).all():
        yield f"path: bounds {path.lower_bound} of {path.inertia}"


def faults_of_labels(
    labels: NDArray[np.int32],
    distances: NDArray[np.float64],
    d: int,
    dtype: np.dtype[Any],
    more: NDArray[np.float64] | float = 0.0,
) -> Iterator[str]:
    """Labels are the nearest centres, but for the rounding of a sum of squared differences.

    Beyond 8 features sums are compared in double precision, below in the type of the centres. The
    distance of a row to its own centre may be longer by ``more``.
    """
    own = distances[np.arange(len(labels)), labels]
    least = distances.min(axis=1)
    eps = 2.0**-52 if d > DIRECT_FEATURES else float(np.finfo(dtype).eps)
    wrong = own > np.square(np.sqrt(least * (1 + (2 * d + 8) * eps)) + more)
    if wrong.any():
        worst = int(np.argmax(own - least))
        yield (
            f"labels: {wrong.sum()} of {len(labels)} rows are not at their nearest centre, sum of "
            f"d² {own.sum():.6g} instead of {least.sum():.6g}, row {worst}: d² {own[worst]!r} "
            f"instead of {least[worst]!r}"
        )


def _faults_of_figures(
    km: Any,
    labels: NDArray[np.int32],
    rows: NDArray[np.float64],
    places: NDArray[np.float64],
    weights: NDArray[np.float64],
    power: int,
) -> Iterator[str]:
    """``inertia_`` and the counts are those of the labels, added up without rounding."""
    n, d = rows.shape
    own = np.square(rows - places[labels]).sum(axis=1)
    # Doubles with the exponent of the data's squares, which may lie outside of theirs.
    expected = math.fsum(weights * own)
    found = math.ldexp(km.inertia_, 2 * power)
    rounding = (d + 8) * 2.0**-52
    if not abs(found - expected) <= rounding * expected + n * 5e-324:
        yield f"inertia: {found!r} instead of {expected!r}, both times 2**{-2 * power}"
    counts = km.model_.counts
    expected_counts = [math.fsum(weights[labels == j]) for j in range(len(places))]
    if not np.allclose(counts, expected_counts, rtol=1e-12, atol=0):
        yield f"counts: {np.abs(counts - expected_counts).max():.3g} off"


def _faults_of_clusters(
    km: Any, labels: NDArray[np.int32], x: Any, weight: Any, told: Sequence[warnings.WarningMessage]
) -> Iterator[str]:
    """As many clusters are used as rows allow; whoever asks for more is told their number."""
    k, distinct = km.n_clusters, distinct_rows(x, weight)
    there = np.ones(x.shape[0], bool) if weight is None else np.asarray(weight) > 0
    used = len(np.unique(labels[there]))
    if used != min(k, distinct):
        yield f"clusters: {used} of {k} are used, and there are {distinct} distinct rows"
    right = f"{k - distinct} of {k} clusters are empty: the rows have only {distinct} distinct"
    if isinstance(km.model_, PathModel):
        right = f"the rows have only {distinct} distinct values: partitions end at {distinct} clus"
    for warning in told:
        if k <= distinct or right not in str(warning.message):
            yield f"warning: {warning.category.__name__}: {str(warning.message)[:200]}"
    if k > distinct and not told:
        yield f"warning: none of {k} clusters for {distinct} distinct rows"


def faults_of_means(km: Any, x: Any, weight: Any = None) -> list[str]:
    """Whether the centres are the means of their rows, as they are once Lloyd has converged."""
    rows, labels = dense(x), km.labels_
    weights = np.ones(len(rows)) if weight is None else np.asarray(weight, np.float64)
    largest, longest = np.abs(rows - rows.mean(axis=0)).max(), np.abs(rows).max()
    eps = np.finfo(km.cluster_centers_.dtype).eps
    counted = weights[weights > 0]
    # Sums know some 35 bits of a row below the largest one; of rows much lighter than others as
    # many as are promised (FixedPoint.least_weight).
    light = {4: 24, 8: 30}[km.cluster_centers_.itemsize]
    known = 30 if counted.max() < 2.0**16 * counted.min() else light
    worst, faults = 1.0, []
    for j, center in enumerate(km.cluster_centers_.astype(np.float64)):
        mine = (labels == j) & (weights > 0)
        if not mine.any():
            continue
        share = weights[mine] / math.fsum(weights[mine])
        mean = [math.fsum(share * column) for column in rows[mine].T]
        off = np.abs(center - mean)
        # The centre is rounded to its type; sums of sparse rows, which are about 0, have 50 bits.
        allowed = 2 * eps * np.abs(mean) + 2.0**-known * largest + 2.0**-48 * longest
        if (ratio := float((off / np.maximum(allowed, 5e-324)).max())) > worst:
            worst = ratio
            faults = [f"means: centre {j} is {off.max():.3g} off, rows reach to {largest:.3g}"]
    return faults


@contextmanager
def recorded_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """All warnings inside, and none raised."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield told


def costs_of(view: JobView) -> list[float]:
    """The objective after the steps over all rows, or over samples before there are any."""
    on_all = [series for line, series in view.costs.items() if not line.on_sample]
    found = [series.points()[:, Y].tolist() for series in on_all or view.costs.values()]
    return [cost for costs in found for cost in costs]
