"""`KMeans` with an algorithm that finds every partition up to its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.algorithms.parts.relocation import Relocation
from largek_dask.errors import DegenerateDataWarning, ParameterError
from largek_dask.model import CentersModel, PathModel
from tests.helpers.paths import PathToy

K = 5
X = np.random.default_rng(4).normal(size=(150, 2))
X[:, 0] += 9 * (np.arange(150) % 3)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "path-toy", PathToy)


@pytest.fixture
def km() -> lk.KMeans:
    return lk.KMeans(K, algorithm="path-toy", random_state=0, n_threads=1).fit(X)


def test_every_partition_is_there_after_a_fit(km: lk.KMeans) -> None:
    assert isinstance(km.model_, PathModel)
    assert len(km.path_) == K
    assert km.path_.inertia[-1] == km.inertia_
    assert (np.diff(km.path_.inertia) < 0).all()
    np.testing.assert_array_equal(km.path_.centers(K), km.cluster_centers_)
    np.testing.assert_array_equal(km.path_.model(K).predict(X), km.labels_)
    np.testing.assert_array_equal(km.path_.model(K).counts, np.bincount(km.labels_))


def test_no_other_algorithm_gives_a_path() -> None:
    km = lk.KMeans(3, algorithm="lloyd", random_state=0)
    with pytest.raises(AttributeError, match="algorithm='partition-path'"):
        km.path_  # noqa: B018
    with pytest.raises(AttributeError, match="algorithm='partition-path'"):
        km.fit(X).path_  # noqa: B018


def test_a_batch_moves_the_centers_of_one_partition(km: lk.KMeans) -> None:
    """What is known of the others, and of this one, is not of the rows that have come."""
    whole = km.model_
    alone = lk.KMeans(K, algorithm="lloyd", random_state=0, n_threads=1).fit(X)
    alone.model_ = whole.path_.model(K)
    km.partial_fit(X[:50])
    alone.partial_fit(X[:50])
    assert type(km.model_) is CentersModel
    assert not hasattr(km, "path_")
    assert km.model_.digest() == alone.model_.digest()
    assert km.model_.counts.sum() == 200
    km.fit(X)
    assert km.model_.digest() == whole.digest()


@pytest.mark.parametrize("effort", ["fast", "best"])
def test_its_effort_is_that_of_the_fit(effort: Any) -> None:
    km = lk.KMeans(3, algorithm="path-toy", effort=effort, random_state=0).fit(X)
    told = km.model_.provenance["parameters"]["algorithm"]
    assert told == {"name": "PathToy", "effort": effort}
    with pytest.raises(ParameterError, match=r"not to PathToy\(effort='balanced'\): use"):
        lk.KMeans(3, algorithm=PathToy(), effort=effort).fit(X)
    with pytest.raises(ParameterError, match="Lloyd has no effort"):
        lk.KMeans(3, algorithm="lloyd", effort=effort).fit(X)


def test_the_path_ends_where_rows_are_distinct_no_more() -> None:
    few = np.repeat(np.eye(3), 4, axis=0)
    words = r"only 3 distinct values: partitions end at 3 clusters, of 7 .* Use fewer"
    with pytest.warns(DegenerateDataWarning, match=words):
        km = lk.KMeans(7, algorithm="path-toy", random_state=0).fit(few)
    assert len(km.path_) == len(km.cluster_centers_) == 3
    assert km.inertia_ == 0
    assert km.transform(few).shape == (12, 3)


def test_a_fit_that_is_stopped_says_up_to_where_partitions_are_there(tmp_path: Path) -> None:
    where = str(tmp_path)
    asked: dict[str, Any] = {"algorithm": "path-toy", "random_state": 0, "checkpoint": where}
    words = "the fit was stopped: partitions end at 3 clusters, of 5 that were asked for"
    with pytest.warns(DegenerateDataWarning, match=words):
        km = lk.KMeans(K, max_iter=2, **asked).fit(X)
    assert km.stop_reason_ == "max_iter"
    assert len(km.path_) == 3
    assert km.path_.inertia[-1] == km.inertia_
    longer = lk.KMeans(K, **asked).fit(X)
    assert len(longer.path_) == K
    assert longer.model_.digest() == lk.KMeans(K, algorithm="path-toy").fit(X).model_.digest()


def test_centers_that_the_last_pass_moves_are_those_of_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An algorithm may end with a centre that has no rows; then it is moved, as any other."""

    class Astray(PathToy):
        def model(self, state: Any) -> Any:
            arrays = super().model(state)
            centers = arrays.centers.copy()
            centers[-1] = 1e6
            path = arrays.path.copy()
            path[-len(centers) :] = centers
            return replace(arrays, centers=centers, path=path)

    moved = []

    def relocated(passes: Any, packed: Any, centers: Any, empty: Any, **_: Any) -> Relocation:
        moved.append(empty.tolist())
        centers = centers.copy()
        centers[empty] = X[0]
        return Relocation(centers, len(empty), None)

    monkeypatch.setattr("largek_dask.algorithms.kmeans.relocate_empty", relocated)
    km = lk.KMeans(3, algorithm=Astray(), random_state=0).fit(X)
    assert moved == [[2]]
    np.testing.assert_array_equal(km.path_.centers(3), km.cluster_centers_)
    np.testing.assert_array_equal(km.cluster_centers_[2], X[0])
    assert km.path_.inertia[-1] == km.inertia_ == pytest.approx(-km.path_.model(3).score(X))
    assert km.path_.records()[2]["movement"] is None
    assert km.path_.records()[1]["movement"] == 0
