"""Path searches of rows that are few, equal, far away, of any type and weight, or cannot be."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import largek_dask as lk
from largek_dask.algorithms import path_problem
from largek_dask.algorithms.partition_path import algorithm as partition_path
from largek_dask.errors import (
    BadRowsError,
    DegenerateDataWarning,
    NotEnoughMemoryError,
    ParameterError,
)
from largek_dask.passes.base import BasePasses
from tests.algorithms.conftest import blobs
from tests.algorithms.partition_path.rules import check_path, optimum
from tests.helpers.checks import computing_workers, watched_passes
from tests.helpers.covering import in_turns

X = blobs(300, 3, 5, seed=2, spread=3.0)


def fit(x: Any, k: int, *, weight: Any = None, effort: Any = "balanced", **options: Any) -> Any:
    options = {"random_state": 0, "algorithm": lk.PartitionPath(effort=effort)} | options
    return lk.KMeans(k, **options).fit(x, sample_weight=weight)


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of more than 100 rows are large."""
    monkeypatch.setattr(partition_path, "MOST_ROWS", 100)
    monkeypatch.setattr(partition_path, "LEAST_ROWS", 200)
    monkeypatch.setattr(partition_path, "ROWS_A_CLUSTER", 1)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has been read: no pass may begin where a fit is refused."""
    begun: list[str] = []
    original = BasePasses._timed

    def timed(self: BasePasses, spec: Any, *given: Any) -> Any:
        begun.append(spec.chunk_fn.__name__)
        return original(self, spec, *given)

    monkeypatch.setattr(BasePasses, "_timed", timed)
    return begun


# --- refused before anything is read --------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (sp.csr_array(X), {}, "dense rows only.*use algorithm='auto', or make few rows dense"),
        (X, {"init": "k-means++"}, "init must be 'auto'.*Use another algorithm"),
        (X, {"init": X[:4]}, "init must be 'auto'.*Use another algorithm"),
        (X, {"n_init": 2}, "n_init=2: PartitionPath .*n_init=1, and effort='best'"),
        (X[:3], {}, "n_clusters=4 is more than the number of rows"),
    ],
)
def test_refused(x: Any, options: Any, message: str, unread: list[str]) -> None:
    fit(X, 2)
    assert unread, "else nobody looks"
    unread.clear()
    with pytest.raises(ParameterError, match=message):
        fit(x, 4, **options)
    assert not unread


@pytest.mark.parametrize("algorithm", [lk.DCDBundle.paper(), lk.DCDBundle(descent="plain")])
def test_published_methods_refuse_the_same(algorithm: Any, unread: list[str]) -> None:
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (sp.csr_array(X), {}, "dense rows only"),
        (X, {"init": "random"}, "init must be 'auto'"),
        (X, {"n_init": 2}, "n_init=2"),
    ]
    for x, options, message in refused:
        with pytest.raises(ParameterError, match=message):
            fit(x, 4, algorithm=algorithm, **options)
    assert not unread


def test_partitions_that_memory_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, unread: list[str]
) -> None:
    monkeypatch.setattr(path_problem, "available_memory", lambda: 1_000_000)
    x = np.zeros((2_000, 50), np.float32)
    with pytest.raises(NotEnoughMemoryError, match=r"Use at most (\d+) clusters") as told:
        fit(x, 500)
    assert not unread
    fits = int(str(told.value).split("Use at most ")[1].split()[0])
    assert 1 < fits < 500
    x[:] = np.random.default_rng(1).normal(size=x.shape)
    with pytest.raises(NotEnoughMemoryError):
        fit(x, fits + 1)
    assert len(fit(x, fits, effort="fast", max_iter=300).path_) == fits
    with pytest.raises(NotEnoughMemoryError, match=r"more memory.*finds a single partition"):
        fit(np.zeros((5, 10_000), np.float32), 3)


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "effort", "weighted"), in_turns([1, 2], ["fast", "balanced", "best"], [False, True])
)
def test_more_clusters_than_distinct_rows(d: int, effort: str, weighted: bool) -> None:
    r = np.random.default_rng(4)
    x = np.repeat(r.normal(size=(6, d)), 5, axis=0)[r.permutation(30)]
    weight = r.uniform(0.1, 3, 30) if weighted else None
    with pytest.warns(DegenerateDataWarning, match="rows have only 6 distinct values"):
        km = fit(x, 9, effort=effort, weight=weight)
    assert len(km.path_) == 6
    assert km.inertia_ == km.path_.inertia[-1] == 0
    assert (km.path_.inertia[:-1] > 0).all()
    check_path(km, x, weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        km = fit(x, 6, effort=effort, weight=weight)
    assert len(km.path_) == 6
    assert km.inertia_ == 0
    check_path(km, x, weight)


@pytest.mark.parametrize(
    ("d", "algorithm"), [(1, lk.DCDBundle.paper()), (2, lk.DCDBundle(descent="plain"))]
)
def test_published_methods_end_with_the_distinct_rows(d: int, algorithm: Any) -> None:
    r = np.random.default_rng(4)
    x = np.repeat(r.normal(size=(6, d)), 5, axis=0)[r.permutation(30)]
    with pytest.warns(DegenerateDataWarning, match="rows have only 6 distinct values"):
        check_path(fit(x, 9, algorithm=algorithm), x, figures=False)
    for k in (5, 6):
        km = fit(x, k, algorithm=algorithm)
        assert len(km.path_) == k
        assert (km.inertia_ == 0) == (k == 6)
        check_path(km, x, figures=False)
    with pytest.warns(DegenerateDataWarning, match="only 1 distinct value"):
        assert fit(np.ones((30, d)), 3, algorithm=algorithm).inertia_ == 0


@pytest.mark.usefixtures("sampled")
def test_more_clusters_than_distinct_rows_of_a_large_table() -> None:
    x = np.repeat(np.random.default_rng(4).normal(size=(6, 2)), 50, axis=0)
    with pytest.warns(DegenerateDataWarning, match="rows have only 6 distinct values"):
        km = fit(x, 9)
    assert len(km.path_) == 6
    assert km.inertia_ == km.path_.inertia[-1] == 0
    check_path(km, x)


@pytest.mark.parametrize(("d", "way"), [(1, "held"), (3, "large")])
def test_equal_rows(d: int, way: str, request: pytest.FixtureRequest) -> None:
    if way == "large":
        request.getfixturevalue("sampled")
    x = np.full((140, d), 0.1)
    with pytest.warns(DegenerateDataWarning, match="only 1 distinct value"):
        km = fit(x, 4)
    assert len(km.path_) == 1
    assert km.inertia_ == 0
    np.testing.assert_array_equal(km.cluster_centers_, x[:1])
    check_path(km, x)


def test_constant_columns() -> None:
    x = np.hstack([X, np.full((len(X), 2), 7, np.float32)])
    km = fit(x, 6)
    check_path(km, x)
    np.testing.assert_allclose(km.path_.inertia, fit(X, 6).path_.inertia, rtol=1e-6)
    assert (km.cluster_centers_[:, 3:] == 7).all()


def test_nan_rows() -> None:
    x = X.copy()
    x[[3, 200], [0, 2]] = np.nan, np.inf
    with pytest.raises(BadRowsError, match="row 3"):
        fit(x, 4)
    km = fit(x, 4, on_bad_rows="skip")
    good = np.isfinite(x).all(axis=1)
    assert (km.labels_[~good] == -1).all()
    alone = fit(x[good], 4)
    np.testing.assert_array_equal(km.labels_[good], alone.labels_)
    np.testing.assert_array_equal(km.path_.inertia, alone.path_.inertia)


@pytest.mark.usefixtures("sampled")
def test_nan_rows_of_a_large_table() -> None:
    x = X.copy()
    x[[3, 200], [0, 2]] = np.nan, np.inf
    km = fit(x, 4, on_bad_rows="skip")
    good = np.isfinite(x).all(axis=1)
    assert (km.labels_[~good] == -1).all()
    assert km.history_[-1]["extra"]["path_passes"]
    for size in range(1, 5):
        assert -km.path_.model(size).score(x[good]) == km.path_.inertia[size - 1]


def test_weights_of_zero_are_rows_that_are_not_there() -> None:
    weight = (np.arange(len(X)) % 3 > 0).astype(float)
    x = X.copy()
    x[0] = np.nan  # a row that is not there may hold anything
    there = weight > 0
    km, alone = fit(x, 5, weight=weight, on_bad_rows="skip"), fit(X[there], 5)
    np.testing.assert_array_equal(km.path_.inertia, alone.path_.inertia)
    np.testing.assert_array_equal(km.labels_[there], alone.labels_)


@pytest.mark.parametrize(
    ("dtype", "d"), in_turns(["float16", "float32", "float64", "uint8", "int16", "bool"], [1, 3])
)
def test_types(dtype: str, d: int) -> None:
    x = (X[:, :d] > 0 if dtype == "bool" else (X[:, :d] * 8 + 100).clip(0, 255)).astype(dtype)
    k = min(5, len(np.unique(x, axis=0)))
    km = fit(x, k)
    assert len(km.path_) == k > 1
    check_path(km, x)


@pytest.mark.parametrize(("dtype", "d"), [(np.float32, 1), (np.float64, 2)])
def test_far_from_the_origin(dtype: Any, d: int) -> None:
    x = (1e6 + np.random.default_rng(0).choice([-1, 1], (200, d))).astype(dtype)
    x[:, 0] += np.random.default_rng(1).integers(0, 4, 200).astype(dtype) * 8
    km = fit(x, 6)
    check_path(km, x)
    near = fit(x - dtype(1e6), 6)
    # Means are rounded to the type about 1e6, and labels may be others for that.
    np.testing.assert_allclose(
        km.path_.inertia, near.path_.inertia, rtol=0.02 if dtype == np.float32 else 1e-8
    )


@pytest.mark.parametrize(("dtype", "way"), [(np.float32, "large"), (np.float64, "held")])
def test_one_row_far_away(dtype: Any, way: str, request: pytest.FixtureRequest) -> None:
    if way == "large":
        request.getfixturevalue("sampled")
    x = X.astype(dtype)
    x[17] = 1e9
    km = fit(x, 5)
    check_path(km, x)
    assert len(km.path_) == 5
    assert (km.labels_ == km.labels_[17]).sum() == 1
    others = fit(np.delete(x, 17, axis=0), 4)
    # In single precision rows about so far a mean keep few digits.
    if dtype == np.float64:
        np.testing.assert_allclose(km.path_.inertia[-1], others.inertia_, rtol=0.05)


def test_ties() -> None:
    x = np.stack(np.meshgrid(np.arange(8), np.arange(8)), axis=-1).reshape(-1, 2).astype(float)
    km = fit(x, 12, effort="best")
    check_path(km, x)
    assert km.path_.inertia[3] == pytest.approx(64 * 2.5), "four squares of 4 x 4"
    for record in km.path_.records():
        # A row that could go either way lowers the objective by going.
        assert (record["ties"], record["moves"]) == (0, 0)


def test_unit_length() -> None:
    km = fit(X, 5, normalize="l2")
    units = X.astype(np.float64) / np.linalg.norm(X.astype(np.float64), axis=1, keepdims=True)
    found = ((units[:, None] - km.cluster_centers_) ** 2).sum(axis=2)
    np.testing.assert_array_equal(km.labels_, found.argmin(axis=1))
    assert km.path_.inertia[-1] == km.inertia_ == pytest.approx(found.min(axis=1).sum(), rel=1e-5)
    np.testing.assert_array_equal(km.path_.model(5).predict(X), km.labels_)


# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["held", "large"])
def test_weights_of_a_wide_range(way: str, request: pytest.FixtureRequest) -> None:
    if way == "large":
        request.getfixturevalue("sampled")
    weight = 10.0 ** np.random.default_rng(5).uniform(-6, 6, len(X))
    km = fit(X, 6, weight=weight)
    assert len(km.path_) == 6
    check_path(km, X, weight)


@pytest.mark.parametrize("d", [1, 2])
def test_weights_are_rows_repeated(d: int) -> None:
    """Of few rows, of which the optimum is found either way."""
    for seed in range(6):
        r = np.random.default_rng([seed, d])
        x, times = r.normal(size=(7, d)), r.integers(1, 5, 7)
        weighted = fit(x, 3, weight=times.astype(float), effort="best")
        repeated = fit(np.repeat(x, times, axis=0), 3, effort="best")
        np.testing.assert_allclose(weighted.path_.inertia, repeated.path_.inertia, rtol=1e-9)


# --- one dimension --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["random", "weights", "duplicates"])
def test_one_dimension_is_solved(kind: str) -> None:
    for seed in range(15):
        r = np.random.default_rng(seed)
        x = (
            r.integers(0, 6, (8, 1)).astype(float)
            if kind == "duplicates"
            else r.normal(size=(8, 1))
        )
        weight = r.uniform(0.1, 5, 8) if kind == "weights" else None
        k = min(3, len(np.unique(x)))
        km = fit(x, k, weight=weight)
        for size in range(1, k + 1):
            best = optimum(x, weight, size)
            assert km.path_.inertia[size - 1] == pytest.approx(best, rel=1e-12, abs=1e-13)
        assert (km.path_.gap < 1e-11).all()
        assert km.n_iter_ == 1
        check_path(km, x, weight)


def test_one_dimension_of_more_than_can_be_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).normal(size=(400, 1))
    solved = fit(x, 8)
    monkeypatch.setattr(partition_path, "LINE_ROWS", 7)
    searched = fit(x, 8)
    assert searched.n_iter_ > 1
    check_path(searched, x)
    assert (searched.path_.inertia >= solved.path_.inertia * (1 - 1e-12)).all()
    assert (searched.path_.inertia <= solved.path_.inertia * 1.02).all()


# --- wherever rows lie ----------------------------------------------------------------------------


@pytest.mark.usefixtures("chunks_as_stored")
@pytest.mark.parametrize("way", ["large", "line"])
def test_on_a_cluster(
    way: str, tmp_path: Path, worker_clients: Any, request: pytest.FixtureRequest
) -> None:
    if way == "large":
        request.getfixturevalue("sampled")
    x = X[:, :1] if way == "line" else X
    lk.ingest(x, str(tmp_path / "x.zarr"), chunk_rows=32, progress=False)
    expected = fit(x, 4)
    with watched_passes() as seen:
        km = fit(str(tmp_path / "x.zarr"), 4, client=worker_clients(2))
    assert computing_workers(seen[0]) == 2
    assert km.model_.digest() == expected.model_.digest()
    np.testing.assert_array_equal(km.labels_, expected.labels_)
