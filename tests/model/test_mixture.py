"""Models that are mixtures: how likely rows are, in memory, out of core and on a cluster."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import zarr
from sklearn.mixture import GaussianMixture

import largek_dask as lk
from largek_dask.algorithms.mixture import MixtureArrays
from largek_dask.driver import labels as label_stores
from largek_dask.errors import (
    BadRowsError,
    DataError,
    ModelFormatError,
    NotEnoughMemoryError,
    OutputError,
    ParameterError,
)
from largek_dask.model import KINDS, CentersModel, MixtureModel, Model, load_model
from largek_dask.model import mixture as module
from largek_dask.service.serialization import message_of_model, model_of
from tests.helpers.covering import in_turns
from tests.oracles import mixtures as oracles

pytestmark = pytest.mark.usefixtures("chunks_as_stored")

K, D, N = 6, 4, 200
RNG = np.random.default_rng(11)
MEANS = (RNG.normal(size=(K, D)) * 3).astype(np.float32)
X = (MEANS[RNG.integers(K, size=N)] + RNG.normal(size=(N, D)) * 1.5).astype(np.float32)
WEIGHT = RNG.integers(0, 4, N).astype(np.float64)
KINDS_OF_COVARIANCE = ["iso", "isoflex", "diag"]


def mixture(kind: str = "diag", *, retired: int | None = None, dtype: Any = np.float32) -> Any:
    rng = np.random.default_rng(len(kind))
    shape = {"iso": (1, 1), "isoflex": (K, 1), "diag": (K, D)}[kind]
    weights = np.full(K, 1 / K) if kind == "iso" else rng.dirichlet(np.full(K, 3.0))
    log_weights = np.log(weights)
    alive = np.ones(K, bool)
    if retired is not None:
        alive[retired], log_weights[retired] = False, -np.inf
    counts = np.arange(1.0, K + 1)
    shift = X.mean(0).astype(dtype)
    variances = rng.uniform(0.5, 4, shape)
    arrays = MixtureArrays(MEANS.astype(dtype), variances, log_weights, alive, counts, shift)
    return MixtureModel(arrays)


def of_sklearn(model: Any) -> GaussianMixture:
    """The same components."""
    arrays = model.arrays
    diagonal = arrays.variances.shape == (K, D)
    found = GaussianMixture(K, covariance_type="diag" if diagonal else "spherical")
    found.weights_ = np.exp(arrays.log_weights)
    found.means_ = arrays.means.astype(np.float64)
    wide = arrays.variances if diagonal else np.broadcast_to(arrays.variances, (K, 1))[:, 0]
    found.covariances_, found.precisions_cholesky_ = wide, 1 / np.sqrt(wide)
    return found


def expected_labels(model: Any, x: Any = X) -> Any:
    return oracles.log_likelihoods(x, model._packed())[0]


@pytest.fixture
def stored(tmp_path: Path) -> str:
    url = str(tmp_path / "x.zarr")
    lk.ingest(X, url, chunk_rows=30, progress=False)
    return url


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_stores, "GROUP_ROWS", 60)
    monkeypatch.setattr(module, "GROUP_ROWS", 60)


# --- what it tells of rows


@pytest.mark.parametrize("kind", KINDS_OF_COVARIANCE)
def test_it_agrees_with_sklearn(kind: str) -> None:
    model = mixture(kind)
    theirs, wide = of_sklearn(model), X.astype(np.float64)
    np.testing.assert_array_equal(model.predict(X), theirs.predict(wide))
    np.testing.assert_allclose(model.score_samples(X), theirs.score_samples(wide), rtol=1e-10)
    np.testing.assert_allclose(model.predict_proba(X), theirs.predict_proba(wide), atol=1e-9)
    assert model.score(X) == pytest.approx(theirs.score(wide), rel=1e-12)
    whole = lk.Mixture.from_model(model)
    if kind != "iso":  # which is not a kind of theirs: more parameters
        assert whole.bic(X) == pytest.approx(theirs.bic(wide), rel=1e-12)
        assert whole.aic(X) == pytest.approx(theirs.aic(wide), rel=1e-12)
    counted = {"iso": K * D + 1, "isoflex": K * D + K + K - 1, "diag": 2 * K * D + K - 1}
    assert model.n_parameters == counted[kind]
    assert model.covariance == kind


def test_it_never_predicts_by_the_nearest_mean() -> None:
    model = mixture("isoflex")
    labels = model.predict(X)
    np.testing.assert_array_equal(labels, expected_labels(model))
    nearest = ((X[:, None] - MEANS) ** 2).sum(-1).argmin(1)
    assert np.count_nonzero(labels != nearest) > 10
    assert not isinstance(model, CentersModel)
    assert not hasattr(model, "centers")
    assert not hasattr(model, "transform")


def test_a_retired_component_has_no_rows() -> None:
    model = mixture("diag", retired=2)
    assert 2 not in model.predict(X)
    assert (model.predict_proba(X)[:, 2] == 0).all()
    assert 2 not in lk.Mixture.from_model(model, random_state=0).sample(500)[1]
    assert model.n_parameters == 2 * (K - 1) * D + K - 2
    assert "retired: 1" in repr(model)


def test_weights_of_rows() -> None:
    model = mixture()
    likelihood = model.score_samples(X)
    mean = (WEIGHT * likelihood).sum() / WEIGHT.sum()
    assert model.score(X, sample_weight=WEIGHT) == pytest.approx(mean, rel=1e-12)
    repeated = np.repeat(X, WEIGHT.astype(int), axis=0)
    assert model.score(X, sample_weight=WEIGHT) == model.score(repeated)
    with pytest.raises(DataError):
        model.score(X, sample_weight=np.zeros(N))


def test_probabilities_are_sparse_with_many_components(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mixture()
    dense = model.predict_proba(X)
    assert isinstance(dense, np.ndarray)
    monkeypatch.setattr(module, "MOST_DENSE", K - 1)
    sparse = model.predict_proba(X)
    assert isinstance(sparse, scipy.sparse.csr_matrix)
    assert sparse.shape == (N, K)
    assert sparse.has_sorted_indices
    assert 0 < sparse.nnz < N * K
    np.testing.assert_array_equal(sparse.toarray() > 0, dense > 2.0**-20)
    np.testing.assert_allclose(sparse.toarray(), dense, atol=K * 2.0**-20)
    np.testing.assert_allclose(sparse.sum(1), 1, rtol=1e-14)
    np.testing.assert_array_equal(model.predict_proba(X, dense=True), dense)


def test_rows_with_nan() -> None:
    x = X.copy()
    x[[3, 77], 1] = np.nan
    model = mixture()
    with pytest.raises(BadRowsError, match="row 3"):
        model.score_samples(x)
    skipping = replace(model, on_bad_rows="skip")
    good = np.isfinite(x).all(1)
    likelihood = skipping.score_samples(x)
    assert np.isnan(likelihood[~good]).all()
    np.testing.assert_array_equal(likelihood[good], model.score_samples(X)[good])
    dense, sparse = (skipping.predict_proba(x, dense=dense) for dense in (True, False))
    assert np.isnan(dense[~good]).all()
    np.testing.assert_array_equal(dense[good], model.predict_proba(X)[good])
    assert np.diff(sparse.indptr)[~good].tolist() == [0, 0]
    whole = model.predict_proba(X, dense=False)
    np.testing.assert_array_equal(sparse[good].toarray(), whole[good].toarray())
    assert skipping.score(x) == model.score(X[good])
    of_model = lk.Mixture.from_model
    assert of_model(skipping).bic(x) == of_model(model).bic(X[good])
    labels = skipping.predict(x)
    assert (labels[~good] == -1).all()


def test_rows_of_unit_length() -> None:
    model = replace(mixture(), normalize="l2")
    lengths = np.linalg.norm(X.astype(np.float64), axis=1, keepdims=True)
    expected = mixture().score_samples((X / lengths).astype(np.float32))
    np.testing.assert_allclose(model.score_samples(X), expected, rtol=1e-5)


def test_rows_that_cannot_be_told_of() -> None:
    model = mixture()
    with pytest.raises(ParameterError, match="support only dense rows"):
        model.predict(scipy.sparse.csr_matrix(X))
    for method in ("predict", "score_samples", "predict_proba", "score"):
        with pytest.raises(ParameterError, match="The rows have 3 features"):
            getattr(model, method)(X[:, :3])


def test_a_table_that_does_not_fit_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mixture()
    monkeypatch.setattr("largek_dask.driver.plan._available", lambda: 8 * N * K - 1)
    with monkeypatch.context() as patch:
        patch.setattr(module, "posteriors", None)
        with pytest.raises(NotEnoughMemoryError, match=r"\(200, 6\)"):
            model.predict_proba(X)
    assert model.predict_proba(X, dense=False).shape == (N, K)


# --- chunk by chunk


@pytest.mark.usefixtures("small_groups")
def test_out_of_core_gives_the_same_bits(stored: str, tmp_path: Path) -> None:
    model = mixture()
    assert lk.open_rows(stored).n_chunks == 7
    likelihood = model.score_samples(stored, n_threads=2)
    np.testing.assert_array_equal(likelihood, model.score_samples(X))
    np.testing.assert_array_equal(model.predict_proba(stored), model.predict_proba(X))
    assert model.score(stored) == model.score(X)
    told = str(tmp_path / "likelihood.zarr")
    assert model.score_samples(stored, out=told, n_threads=2) is None
    array = zarr.open_array(told, mode="r")
    assert array.dtype == np.float64
    np.testing.assert_array_equal(array[...], likelihood)
    notes: Any = array.attrs["largek"]
    assert (notes["kind"], notes["complete"]) == ("log_likelihoods", True)
    assert notes["model"] == model.digest()
    assert notes["log_likelihood"] == pytest.approx(likelihood.sum(), rel=1e-12)
    assert model.predict(stored, out=str(tmp_path / "labels.zarr")) is None
    labels = zarr.open_array(str(tmp_path / "labels.zarr"), mode="r")
    assert labels.dtype == np.int32
    np.testing.assert_array_equal(labels[...], model.predict(X))


@pytest.mark.usefixtures("small_groups")
def test_probabilities_in_a_store_are_read_as_rows(stored: str, tmp_path: Path) -> None:
    model = mixture()
    out = str(tmp_path / "proba.zarr")
    assert model.predict_proba(stored, out=out) is None
    group = zarr.open_group(out, mode="r")
    assert dict(group.attrs)["encoding-type"] == "csr_matrix"
    assert dict(group.attrs)["shape"] == [N, K]
    parts = [np.asarray(group[name]) for name in ("data", "indices", "indptr")]
    found = scipy.sparse.csr_matrix(tuple(parts), shape=(N, K))
    expected = model.predict_proba(X, dense=False)
    np.testing.assert_array_equal(found.toarray(), expected.toarray())
    rows = lk.open_rows(out)
    assert (rows.n_rows, rows.n_features, rows.is_sparse) == (N, K, True)
    with pytest.raises(OutputError, match=r"proba\.zarr already exists; nothing was changed"):
        model.predict_proba(stored, out=out)
    with pytest.raises(ParameterError, match="omit dense or out"):
        model.predict_proba(stored, out=out, dense=True)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("dies_in", [1, 4])
def test_killed_it_goes_on_where_it_was(
    dies_in: int, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = mixture(), str(tmp_path / "likelihood.zarr")
    original, calls = module.log_likelihoods, [0]

    class Killed(BaseException):
        pass

    def dying(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == dies_in:
            raise Killed
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "log_likelihoods", dying)
        with pytest.raises(Killed):
            model.score_samples(stored, out=out, n_threads=1)
    notes: Any = zarr.open_array(out, mode="r").attrs["largek"]
    assert not notes["complete"]
    # Nobody else goes on with it.
    for other in (mixture("iso"), replace(model, arrays=replace(model.arrays, counts=np.ones(K)))):
        with pytest.raises(OutputError, match="unfinished labels of another model"):
            other.score_samples(stored, out=out)
    with pytest.raises(OutputError, match="unfinished labels of another model"):
        model.predict(stored, out=out)
    again = [0]

    def counting(*arguments: Any) -> Any:
        again[0] += 1
        return original(*arguments)

    monkeypatch.setattr(module, "log_likelihoods", counting)
    assert model.score_samples(stored, out=out, n_threads=1) is None
    done_before = (dies_in - 1) // 2 * 2
    assert again[0] == 7 - done_before
    array = zarr.open_array(out, mode="r")
    np.testing.assert_array_equal(array[...], model.score_samples(X))
    told: Any = array.attrs["largek"]
    assert told["log_likelihood"] == pytest.approx(model.score_samples(X).sum(), rel=1e-12)


def test_on_a_cluster(stored: str, tmp_path: Path, worker_clients: Any) -> None:
    model, client = mixture(), worker_clients(2)
    assert lk.open_rows(stored).n_chunks == 7
    likelihood = model.score_samples(stored, client=client)
    np.testing.assert_array_equal(likelihood, model.score_samples(X))
    np.testing.assert_array_equal(model.predict(stored, client=client), model.predict(X))
    sparse = model.predict_proba(stored, client=client, dense=False)
    assert (sparse != model.predict_proba(X, dense=False)).nnz == 0
    assert model.score(stored, client=client) == model.score(X)
    there, here = (lk.Mixture.from_model(model, client=c) for c in (client, None))
    assert there.bic(stored) == here.bic(X)
    assert there.aic(stored) == here.aic(X)
    out = str(tmp_path / "likelihood.zarr")
    model.score_samples(stored, client=client, out=out)
    np.testing.assert_array_equal(zarr.open_array(out, mode="r")[...], likelihood)


# --- rows drawn from it


@pytest.mark.parametrize("kind", KINDS_OF_COVARIANCE)
def test_samples_have_its_moments(kind: str) -> None:
    model = mixture(kind)
    arrays = model.arrays
    mx = lk.Mixture.from_model(model, random_state=3)
    rows, components = mx.sample(60_000)
    assert (rows.dtype, components.dtype, rows.shape) == (np.float32, np.int32, (60_000, D))
    shares = np.bincount(components, minlength=K) / len(rows)
    np.testing.assert_allclose(shares, np.exp(arrays.log_weights), atol=0.01)
    wide = np.broadcast_to(arrays.variances, (K, D))
    for c in range(K):
        own = rows[components == c].astype(np.float64)
        assert len(own) > 500
        off = 5 * np.sqrt(wide[c] / len(own))
        assert (np.abs(own.mean(0) - MEANS[c]) < off).all()
        np.testing.assert_allclose(own.var(0), wide[c], rtol=5 * np.sqrt(2 / len(own)))
    # In random order: any part of them is a sample.
    half = np.bincount(components[:30_000], minlength=K) / 30_000
    np.testing.assert_allclose(half, shares, atol=0.02)
    again = mx.sample(60_000)
    np.testing.assert_array_equal(again[0], rows)
    assert (mx.sample(100, random_state=4)[0] != rows[:100]).any()


# --- saved and loaded


@pytest.mark.parametrize(("kind", "dtype"), in_turns(KINDS_OF_COVARIANCE, [np.float32, np.float64]))
def test_saved_and_loaded(kind: str, dtype: Any, tmp_path: Path) -> None:
    model = mixture(kind, retired=1, dtype=dtype)
    url = str(tmp_path / "m.zarr")
    model.save(url)
    notes = json.loads((tmp_path / "m.zarr" / "zarr.json").read_text())["attributes"]["largek"]
    assert (notes["model_kind"], notes["format"]) == ("mixture", 3)
    assert list(notes["arrays"]) == [f.name for f in fields(MixtureArrays)]
    found = load_model(url)
    assert type(found) is MixtureModel
    assert found.digest() == model.digest() == notes["digest"]
    np.testing.assert_array_equal(found.score_samples(X), model.score_samples(X))
    for part in (f"covariance: {kind}", "clusters: 6", f"features: 4 ({np.dtype(dtype).name})"):
        assert part in repr(found)
    message = message_of_model(model)
    arrays = {name: s.data for name, s in message["arrays"].items()}
    assert model_of({**message, "arrays": arrays}).digest() == model.digest()


def test_every_array_but_the_shift_is_in_the_digest() -> None:
    model = mixture()
    assert KINDS["mixture"] is MixtureModel
    assert type(Model(model.arrays)) is MixtureModel
    for f in fields(MixtureArrays):
        array = getattr(model.arrays, f.name)
        other = ~array if array.dtype == bool else array + 1
        changed = replace(model, arrays=replace(model.arrays, **{f.name: other}))
        assert (changed.digest() == model.digest()) == (f.name == "shift")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"means": np.zeros(4, np.float32)}, "means have an invalid shape"),
    (
        {"means": np.zeros((K, D), np.float16)},
        r"means have an invalid shape \(6, 4\) or type float16",
    ),
    ({"means": np.full((K, D), np.nan, np.float32)}, r"means at \[0, 0\] is nan"),
    ({"variances": np.ones((K, 2))}, "variances of 6 components with 4 features must have shape"),
    ({"variances": np.ones((K, D), np.float32)}, "variances have an invalid type float32"),
    ({"variances": np.zeros((1, 1))}, "variances must be positive"),
    ({"variances": np.full((1, 1), np.inf)}, "variances must be positive and finite"),
    ({"log_weights": np.zeros(K - 1)}, "log_weights have an invalid shape"),
    (
        {"log_weights": np.full(K, np.nan)},
        "a retired component has a weight, or a component in use has no weight",
    ),
    ({"alive": np.ones(K)}, "alive is not a boolean mask"),
    ({"alive": np.zeros(K, bool)}, "alive is not a boolean mask"),
    (
        {"alive": np.arange(K) > 0},
        "a retired component has a weight, or a component in use has no weight",
    ),
    ({"counts": np.ones((K, 1))}, "counts has an invalid shape"),
    ({"shift": np.zeros(D)}, "a shift has an invalid shape"),
    ({"counts": np.array([1.0, np.nan, 1, 1, 1, 1])}, r"counts at \[1\] is nan"),
    ({"counts": -np.ones(K)}, r"counts at \[0\] is -1.0, .* at least 0"),
    ({"variances": np.full((K, D), np.nan)}, "variances must be positive"),
    ({"variances": np.full((1, 1), 1e-310)}, "inverse variances at"),
    ({"log_weights": np.full(K, -np.log(K - 1))}, "weights sum to 1.2 instead of 1"),
    ({"log_weights": np.full(K, -np.log(K + 1))}, "weights sum to 0.857142857 instead of 1"),
    (
        {"log_weights": np.full(K, np.inf)},
        "a retired component has a weight, or a component in use has no weight",
    ),
]


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model, place = mixture(), str(tmp_path / "m.zarr")
    for wrong, message in WRONG:
        damaged = replace(model, arrays=replace(model.arrays, **wrong))
        damaged.save(place, overwrite=True)
        with pytest.raises(ModelFormatError, match=f"is damaged: .*{message}"):
            load_model(place)


def test_one_flipped_bit_is_found(tmp_path: Path) -> None:
    mixture().save(str(tmp_path / "m.zarr"))
    [chunk] = [p for p in (tmp_path / "m.zarr" / "variances").rglob("*") if "c" in p.parts[-3:]][
        -1:
    ]
    raw = bytearray(chunk.read_bytes())
    raw[3] ^= 1
    chunk.write_bytes(raw)
    with pytest.raises(ModelFormatError, match="damaged"):
        load_model(str(tmp_path / "m.zarr"))


def test_models_of_centres_load_as_before() -> None:
    old = Path(__file__).parents[1] / "data_files" / "model-v1.zarr"
    assert type(load_model(str(old))) is CentersModel
