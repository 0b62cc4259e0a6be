"""Rows far from 0, and rows that the type of a model's centres does not hold."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.errors import BadRowsError, DataError
from largek_dask.model import load_model
from tests.helpers.covering import in_turns, slow
from tests.helpers.paths import path_model

pytestmark = pytest.mark.usefixtures("chunks_as_stored")

K = 20
ALGORITHMS = ["auto", "lloyd", "minibatch", "nmbatch", "truncated", "incremental"]
# Its kernels take longest to compile.
PATHS = pytest.param("partition-path", marks=pytest.mark.slow)


def utm(n: int = 3_000, d: int = 2) -> NDArray[np.float32]:
    """Coordinates in metres: clusters half a metre wide, in a square of two kilometres."""
    rng = np.random.default_rng(d)
    places = np.resize([5.6e5, 5.4e6, 300.0], d) + rng.uniform(-1000, 1000, (K, d))
    return (places[rng.integers(K, size=n)] + 0.5 * rng.normal(size=(n, d))).astype(np.float32)


X = utm()


def squares(x: NDArray[Any], centers: NDArray[Any]) -> NDArray[np.float64]:
    """(n, k) squared distances, as exact as float64 is."""
    found: NDArray[np.float64] = ((x[:, None].astype("f8") - centers.astype("f8")) ** 2).sum(-1)
    return found


def assert_consistent(km: Any, x: NDArray[Any], weight: Any = 1.0) -> None:
    """Labels, inertia, model and what is predicted are all of the same stored centres."""
    found = squares(x, km.cluster_centers_)
    np.testing.assert_array_equal(km.labels_, found.argmin(1))
    assert km.inertia_ == pytest.approx((weight * found.min(1)).sum(), rel=1e-9)
    np.testing.assert_array_equal(km.predict(x), km.labels_)
    assert km.model_.score(x, sample_weight=weight + np.zeros(len(x))) == -km.inertia_
    np.testing.assert_allclose(km.transform(x), np.sqrt(found), rtol=1e-9)
    assert km.model_.centers is km.cluster_centers_


# --- rows far from 0


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, PATHS])
def test_centres_of_rows_far_from_0_are_those_of_the_same_rows_in_float64(
    algorithm: str, tmp_path: Path
) -> None:
    assert (X.dtype, X.astype("f8").mean(0)[1] > 2**10 * X.std(0)[1]) == (np.float32, True)
    k = 5 if algorithm == "partition-path" else K
    found = lk.KMeans(k, algorithm=algorithm, random_state=0, max_iter=30).fit(X)
    assert found.cluster_centers_.dtype == np.float64
    wide = lk.KMeans(k, algorithm=algorithm, random_state=0, max_iter=30).fit(X.astype("f8"))
    assert found.model_.digest() == wide.model_.digest()
    assert found.inertia_ == wide.inertia_
    assert_consistent(found, X)
    rounded = found.cluster_centers_.astype("f4")
    assert not np.array_equal(rounded, found.cluster_centers_), "float32 would lose digits"
    found.model_.save(tmp_path / "m.zarr")
    loaded = load_model(tmp_path / "m.zarr")
    assert loaded.digest() == found.model_.digest()
    np.testing.assert_array_equal(loaded.predict(X), found.labels_)


@pytest.mark.parametrize(("d", "weighted"), [(3, True), (12, False)])
def test_rows_far_from_0_in_a_store(d: int, weighted: bool, tmp_path: Path) -> None:
    x = utm(d=d)
    weight = np.random.default_rng(0).integers(0, 4, len(x)).astype("f8") if weighted else None
    lk.ingest(x, tmp_path / "x.zarr", chunk_rows=700, progress=False)
    rows = lk.open_rows(tmp_path / "x.zarr")
    assert (rows.n_chunks, rows.dtype, rows.stored_statistics()["dtype"]) == (5, "f4", "float64")
    km = lk.KMeans(K, algorithm="lloyd", random_state=0, tol=0).fit(rows, sample_weight=weight)
    assert km.cluster_centers_.dtype == np.float64
    assert_consistent(km, x, 1.0 if weight is None else weight)
    for label in range(K):
        own = km.labels_ == label
        mean = np.average(
            x[own].astype("f8"), axis=0, weights=None if weight is None else weight[own]
        )
        np.testing.assert_allclose(km.cluster_centers_[label], mean, atol=1e-6)


def test_a_fit_of_rows_far_from_0_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    options: dict[str, Any] = {"algorithm": "lloyd", "init": X[:K], "random_state": 0, "tol": 0}
    whole = lk.KMeans(K, **options).fit(X)
    assert whole.n_iter_ > 3
    lk.KMeans(K, max_iter=2, checkpoint=tmp_path / "job", **options).fit(X)
    again = lk.KMeans(K, checkpoint=tmp_path / "job", **options).fit(X)
    assert again.model_.digest() == whole.model_.digest()


def test_centres_that_are_given_in_float64_are_begun_with() -> None:
    init = X[:K].astype("f8") + 0.01
    assert not np.array_equal(init.astype("f4"), init)
    seen: list[NDArray[Any]] = []
    km = lk.KMeans(K, algorithm="lloyd", init=init, max_iter=1, empty_clusters="keep")
    km.set_params(callbacks=[lambda snapshot: seen.append(snapshot.model().centers)]).fit(X)
    labels = squares(X, init).argmin(1)
    for label in np.unique(labels):
        mean = X[labels == label].astype("f8").mean(0)
        np.testing.assert_allclose(seen[0][label], mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("covariance", ["diag", *slow("iso")])
def test_means_of_a_mixture_of_rows_far_from_0(covariance: str) -> None:
    found, wide = (
        lk.Mixture(4, covariance=covariance, random_state=0, max_iter=10).fit(x)
        for x in (X, X.astype("f8"))
    )
    assert found.means_.dtype == np.float64
    assert found.model_.digest() == wide.model_.digest()
    np.testing.assert_array_equal(found.score_samples(X), wide.score_samples(X))


def test_partial_fit_of_rows_far_from_0() -> None:
    found, wide = (
        lk.MiniBatchKMeans(K, random_state=0).partial_fit(x[:1500]).partial_fit(x[1500:])
        for x in (X, X.astype("f8"))
    )
    assert found.cluster_centers_.dtype == np.float64
    assert found.model_.digest() == wide.model_.digest()


def far_by(factor: float, spread: float = 1.0) -> NDArray[np.float32]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2_000, 3)) * [100.0, spread, 1.0]
    x[:, 1:] += factor * spread, 5.0
    return x.astype(np.float32)


def with_column(values: Any) -> NDArray[np.float32]:
    x = far_by(0)
    x[:, 1] = values
    return x


ONE_OFF = np.arange(2_000) != 1_000
NEAR = {
    "ordinary": far_by(0),
    "below": far_by(2.0**9),
    "below, small": far_by(2.0**9, 2.0**-20),
    "a constant": with_column(1e9),
    "a constant that float32 rounds": with_column(0.1),
    "nearly always 1": with_column(ONE_OFF),
    "one row far out": with_column(np.where(ONE_OFF, np.arange(2_000) % 7, 1e8)),
    "sorted in groups": with_column(np.repeat([0.0, 1e6, 2e6, 3e6], 500)),
    "nothing but 0": np.zeros((50, 3), np.float32),
}
FAR = {
    "above": far_by(2.0**11),
    "above, small": far_by(2.0**11, 2.0**-20),
    "below 0": far_by(-(2.0**12)),
    "few rows": far_by(2.0**14)[:5],
    "some rows at 0": with_column(np.where(np.arange(2_000) % 50, 5e6 + np.arange(2_000) % 9, 0.0)),
    "integers": np.random.default_rng(0).integers(30_000, 30_004, (500, 2)).astype(np.int16),
}


def test_the_type_of_centres_is_that_of_the_rows_unless_they_are_far_from_0() -> None:
    for name, x in {**NEAR, **FAR}.items():
        k = 2 if x.any() else 1
        for rows in (x, np.concatenate([x[::-1], x[:7]])):
            km = lk.KMeans(k, algorithm="lloyd", random_state=0, max_iter=2).fit(rows)
            expected = np.float64 if name in FAR else np.float32
            assert km.cluster_centers_.dtype == expected, name


# --- rows of a wider type than the model


@pytest.fixture(scope="module")
def narrow() -> dict[str, Any]:
    """Models of float32 rows about two points 2 apart, by kind."""
    x = np.repeat(np.array([[0.0], [2.0]], np.float32), 50, axis=0)
    x[::2] += np.float32(0.25)
    x[1::2] -= np.float32(0.25)
    found = {
        "centers": lk.KMeans(2, algorithm="lloyd", random_state=0).fit(x).model_,
        "path": path_model(x, 2),
        "mixture": lk.Mixture(2, random_state=0, max_iter=50).fit(x).model_,
    }
    assert {model._cluster_centers().dtype for model in found.values()} == {np.dtype("f4")}
    return found


@pytest.mark.parametrize("kind", ["centers", "path", "mixture"])
def test_digits_that_float32_lacks_decide(kind: str, narrow: dict[str, Any]) -> None:
    model = narrow[kind]
    low, high = np.sort(model._cluster_centers().astype("f8")[:, 0])
    middle, step = (low + high) / 2, 1e-9
    rows = np.array([[middle - step], [middle + step]])
    assert np.unique(rows.astype("f4")).size == 1
    expected = [int(np.argmin(np.abs(model._cluster_centers()[:, 0] - c))) for c in (low, high)]
    assert model.predict(rows).tolist() == expected
    if kind == "mixture":
        assert np.ptp(model.score_samples(rows + 0.1)) > 0
        assert model.predict_proba(rows).argmax(1).tolist() == expected
        return
    found = squares(rows, model.centers)
    assert model.score(rows) == pytest.approx(-found.min(1).sum(), rel=1e-14)
    np.testing.assert_allclose(model.transform(rows), np.sqrt(found), rtol=1e-14)
    assert model.transform(rows.astype("f4")).dtype == np.float32


@pytest.mark.parametrize("exponent", [24, 40])
def test_integers_beyond_float32(exponent: int) -> None:
    big = 2**exponent
    x = np.repeat(np.array([[0], [big]], np.float32), 20, axis=0)
    model = lk.KMeans(2, algorithm="lloyd", random_state=0).fit(x).model_
    rows = np.array([[big // 2 - 1], [big // 2 + 1]], np.int64)
    assert exponent == 24 or np.unique(rows.astype("f4")).size == 1
    np.testing.assert_array_equal(model.centers[model.predict(rows), 0], [0, big])


@pytest.mark.parametrize(
    ("scale", "dtype"), in_turns([1e12, 1e20, 1e60, 1e160, 1e300], ["f4", "f8"])
)
def test_rows_much_farther_than_centres_are_told_apart(dtype: str, scale: float) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(300, 9)) + 3).astype(dtype)
    km = lk.KMeans(4, algorithm="lloyd", random_state=0).fit(x)
    rows = scale * rng.normal(size=(50, 9))
    assert len(set(km.predict(rows).tolist())) > 1
    # |x|² is the same for all centres.
    centers = km.cluster_centers_.astype("f8")
    products = (rows / scale) @ centers.T - (centers**2).sum(1) / (2 * scale)
    np.testing.assert_array_equal(km.predict(rows), products.argmax(1))
    lengths = scale * np.sqrt(((rows / scale) ** 2).sum(1))
    np.testing.assert_allclose(km.transform(rows), np.repeat(lengths[:, None], 4, 1), rtol=1e-9)
    if scale < 1e150:
        assert km.score(rows) == pytest.approx(-(lengths**2).sum(), rel=1e-9)
    else:
        with pytest.raises(DataError, match=r"too far .* float64"):
            km.score(rows)


def test_distances_whose_squares_overflow_are_distances() -> None:
    x = np.random.default_rng(0).normal(size=(300, 9)).astype("f4")
    km = lk.KMeans(4, algorithm="lloyd", random_state=0).fit(x)
    found = km.transform(np.full((1, 9), 1e20, "f4"))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, 3e20, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e20, 1e80, 1e150])
def test_densities_of_rows_beyond_float32(scale: float) -> None:
    x = np.random.default_rng(0).normal(size=(200, 3)).astype("f4")
    model = lk.Mixture(2, random_state=0).fit(x).model_
    rows = np.full((2, 3), scale)
    expected = -1.5 * scale**2 / float(model.arrays.variances[0, 0])
    np.testing.assert_allclose(model.score_samples(rows), expected, rtol=1e-9)
    assert model.score(rows) == pytest.approx(expected, rel=1e-9)
    assert np.isfinite(model.predict_proba(rows)).all()


@pytest.mark.parametrize("scale", [1e9, 1e20, 1e160])
def test_components_of_rows_much_farther_than_they_are_from_each_other(scale: float) -> None:
    rng = np.random.default_rng(0)
    centers = 5 * rng.normal(size=(3, 3))
    x = (rng.normal(size=(300, 3)) + centers[rng.integers(3, size=300)]).astype("f4")
    model = lk.Mixture(3, covariance="iso", random_state=0, max_iter=20).fit(x).model_
    rows = rng.normal(size=(40, 3)) * scale
    means, weights = model.means.astype("f8"), model.arrays.log_weights
    variance = model.arrays.variances[0, 0]
    # |x|² is the same for all components.
    products = rows / scale @ means.T + (variance * weights - (means**2).sum(1) / 2) / scale
    expected = products.argmax(1)
    assert len(set(expected.tolist())) == 3
    np.testing.assert_array_equal(model.predict(rows), expected)
    np.testing.assert_array_equal(model.predict_proba(rows), np.eye(3)[expected])
    sparse = model.predict_proba(rows, dense=False)
    np.testing.assert_array_equal(sparse.toarray(), np.eye(3)[expected])


def test_a_mean_density_that_overflows_is_refused() -> None:
    x = np.random.default_rng(0).normal(size=(200, 3)).astype("f4")
    model = lk.Mixture(2, random_state=0).fit(x).model_
    rows = np.zeros((4, 3))
    rows[2:] = 1e200
    with pytest.raises(DataError, match="too far"):
        model.score(rows)


# --- batches


@pytest.fixture
def fed() -> lk.KMeans:
    x = np.random.default_rng(0).normal(size=(100, 4)).astype("f4")
    return lk.KMeans(3, random_state=0).partial_fit(x)


def batch(value: float, dtype: str = "f8", rows: Any = slice(None)) -> NDArray[Any]:
    x = np.random.default_rng(1).normal(size=(10, 4)).astype(dtype)
    x[rows, 1] = value
    return x


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (np.full((10, 4), 1e300), DataError, r"too far from the centres.* float64"),
        (batch(-1e200), DataError, "too far from the centres"),
        (batch(1e200, rows=[7]), DataError, "overflow float64"),
        (np.full((10, 4), 1e25, "f4"), DataError, "too far .* float32"),
        (batch(np.nan, rows=[3]), BadRowsError, "row 3 holds NaN or infinity"),
        (batch(np.inf, "f4", [3]), BadRowsError, "row 3 holds NaN or infinity"),
    ],
    ids=range(6),
)
def test_a_batch_too_far_out_changes_nothing(
    x: NDArray[Any], error: Any, message: str, fed: lk.KMeans
) -> None:
    before = copy.deepcopy(vars(fed))
    with pytest.raises(error, match=message):
        fed.partial_fit(x)
    assert fed.model_.digest() == before["model_"].digest()
    assert (fed.n_iter_, fed.inertia_) == (before["n_iter_"], before["inertia_"])
    np.testing.assert_array_equal(fed.labels_, before["labels_"])
    np.testing.assert_array_equal(fed.cluster_centers_, before["cluster_centers_"], strict=True)


@pytest.mark.parametrize("scale", [1.0, 1e60])
def test_a_batch_of_float64_makes_centres_of_float64(scale: float, fed: lk.KMeans) -> None:
    before, counts = fed.cluster_centers_.astype("f8"), fed.model_.counts
    assert fed.cluster_centers_.dtype == np.float32
    x = scale * batch(3.0)
    votes = squares(x / scale, before / scale).argmin(1)
    fed.partial_fit(x)
    assert fed.cluster_centers_.dtype == np.float64
    for label in range(3):
        own = x[votes == label]
        mean = (before[label] * counts[label] + own.sum(0)) / (counts[label] + len(own))
        np.testing.assert_allclose(fed.cluster_centers_[label], mean, rtol=1e-9)
    assert_consistent(fed, x)


def test_batches_of_float32_leave_float32(fed: lk.KMeans) -> None:
    fed.partial_fit(batch(3.0, "f4"))
    assert fed.n_iter_ == 2
    assert fed.cluster_centers_.dtype == np.float32
