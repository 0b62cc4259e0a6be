"""What holds of every path that a fit gives, and the optimum of few rows, by trying everything."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.model import PathModel
from tests.helpers.checks import dense, squared_distances


def check_path(km: lk.KMeans, x: Any, weight: Any = None, *, figures: bool = True) -> None:
    """Rules of ``path_``, each compared with plain numpy where there is something to compare.

    Parameters
    ----------
    km : KMeans
        Fitted to its end.
    x : (n, d)
        The rows that it has fitted, all of them good.
    weight : (n,), optional
    figures : bool
        It says of partitions how close they are to a fixed point, and whether halves agree.
    """
    assert isinstance(km.model_, PathModel)
    path, x = km.path_, dense(x)
    weight = np.ones(len(x)) if weight is None else np.asarray(weight, np.float64)
    length = len(path)
    assert 1 <= length <= km.n_clusters
    assert (np.diff(path.inertia) <= 0).all(), "one cluster more costs no more"
    assert path.inertia[-1] == km.inertia_
    np.testing.assert_array_equal(path.centers(length), km.cluster_centers_)
    np.testing.assert_array_equal(
        path.model(length).predict(np.asarray(x, km.cluster_centers_.dtype)), km.labels_
    )
    assert (path.lower_bound <= path.inertia).all()
    assert (path.lower_bound >= 0).all()
    assert (path.gap >= 0).all()
    assert path.stability[0] == 1 or not figures
    scale = float((weight * squared_distances(x, np.average(x, 0, weight)[None])[:, 0]).sum())
    single = km.cluster_centers_.dtype == np.float32
    for size in range(1, length + 1):
        centers = path.centers(size).astype(np.float64)
        assert centers.shape == (size, x.shape[1])
        found = squared_distances(x, centers)
        cost = float((weight * found.min(axis=1)).sum())
        # What is lost of a square of a difference of numbers, and that of the whole extent.
        tolerance = 1e-5 if single else 1e-9
        assert abs(path.inertia[size - 1] - cost) <= tolerance * cost + 1e-12 * scale
        model = path.model(size)
        assert model.counts.sum() == np.float64(weight.sum()) or np.isclose(
            model.counts.sum(), weight.sum(), rtol=1e-6
        )
        record = path.records()[size - 1]
        assert (record["ties"] is not None) == figures
        assert (record["movement"] is not None) == figures


@cache
def groupings(n: int, k: int) -> NDArray[np.int64]:
    """(m, n) labels of all ways to part n rows into at most k clusters."""
    found = []
    for labels in itertools.product(range(k), repeat=n - 1):
        labels = (0, *labels)
        if all(b <= max(labels[:i]) + 1 for i, b in enumerate(labels) if i):
            found.append(labels)
    return np.array(found)


def optimum(x: NDArray[Any], weight: NDArray[np.float64] | None, k: int) -> float:
    """The least objective of any partition of few rows."""
    x = dense(x)
    x = x - x.mean(axis=0)
    weight = np.ones(len(x)) if weight is None else weight
    labels = groupings(len(x), k)
    total = float((weight[:, None] * x**2).sum())
    saved = np.zeros(len(labels))
    for j in range(k):
        inside = (labels == j) * weight
        mass = inside.sum(axis=1)
        sums = inside @ x
        saved += np.divide((sums**2).sum(axis=1), mass, out=np.zeros(len(mass)), where=mass > 0)
    return max(0.0, float(total - saved.max()))
