"""KMeans: scikit-learn's face over everything below."""

import json
import re
import shutil

import dask.array
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr
from sklearn.exceptions import NotFittedError

import largek_dask as lk
from largek_dask.errors import (
    CheckpointError,
    DataError,
    DegenerateDataWarning,
    InterruptedFitWarning,
    OutputError,
    ParameterError,
    RecoveryWarning,
)
from tests.helpers.checks import watched_passes
from tests.helpers.covering import every_two, in_turns

pytestmark = pytest.mark.usefixtures("chunks_as_stored")


@pytest.fixture(scope="module")
def blobs():
    """Four well separated clusters of 60 rows, in mixed order."""
    rng = np.random.default_rng(3)
    means = np.array([[0, 0, 0], [9, 0, 0], [0, 9, 0], [0, 0, 9]], float)
    which = rng.permutation(np.repeat(np.arange(4), 60))
    return means[which] + 0.3 * rng.standard_normal((240, 3)), which


def partition(labels):
    """A labelling up to the names of the clusters."""
    return {frozenset(np.flatnonzero(labels == c)) for c in np.unique(labels)}


def fitted(x, k=4, **parameters):
    return lk.KMeans(k, **{"random_state": 0, "init": "k-means++", **parameters}).fit(x)


# --- what a fit gives ---------------------------------------------------------------------------


def test_fit__finds_the_clusters_and_every_attribute(blobs):
    x, which = blobs
    km = fitted(x)
    assert partition(km.labels_) == partition(which)
    assert km.labels_.dtype == np.int32
    assert km.cluster_centers_.shape == (4, 3)
    assert km.n_features_in_ == 3
    assert not hasattr(km, "feature_names_in_")
    np.testing.assert_allclose(km.inertia_, oracles_inertia(x, km.cluster_centers_), rtol=1e-12)
    assert km.stop_reason_ in {"converged", "tol"}
    assert len(km.history_) == km.n_iter_
    assert km.history_[-1]["cost"] == pytest.approx(km.inertia_)
    assert km.model_.digest() == fitted(x).model_.digest()


def oracles_inertia(x, centers, weight=1.0):
    distances = ((x[:, None].astype(float) - centers[None].astype(float)) ** 2).sum(-1)
    return float((weight * distances.min(1)).sum())


def test_predict_transform_score(blobs):
    x, _ = blobs
    km = fitted(x)
    new = np.concatenate([x[:20], x[:20] + 0.1])
    distances = np.linalg.norm(new[:, None] - km.cluster_centers_[None], axis=-1)
    np.testing.assert_allclose(km.transform(new), distances, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(km.predict(new), distances.argmin(1))
    np.testing.assert_array_equal(km.predict(x), km.labels_)
    weight = np.linspace(0.1, 3, len(new))
    np.testing.assert_allclose(
        km.score(new, sample_weight=weight), -oracles_inertia(new, km.cluster_centers_, weight)
    )


def test_sample_weight__number_zero_and_repeats(blobs):
    x, _ = blobs
    start = x[:4]
    base = fitted(x, init=start)
    np.testing.assert_array_equal(base.labels_, fitted_weighted(x, 3.0, start).labels_)
    weight = np.random.default_rng(0).integers(0, 3, len(x)).astype(float)
    repeated = np.repeat(np.arange(len(x)), weight.astype(int))
    weighted = fitted_weighted(x, weight, start)
    plain = fitted(x[repeated], init=start)
    np.testing.assert_array_equal(weighted.cluster_centers_, plain.cluster_centers_)
    np.testing.assert_array_equal(weighted.labels_[repeated], plain.labels_)
    assert weighted.inertia_ == plain.inertia_


def fitted_weighted(x, weight, start):
    return lk.KMeans(4, init=start, random_state=0).fit(x, sample_weight=weight)


def test_random_state__kinds(blobs):
    x, _ = blobs
    assert fitted(x, random_state=7).model_.provenance["parameters"]["seed"] == 7
    for make in (np.random.RandomState, np.random.default_rng):
        a, b = (fitted(x, random_state=make(5)).model_.digest() for _ in range(2))
        assert a == b
    state = np.random.RandomState(5)
    seeds = {
        fitted(x, random_state=state).model_.provenance["parameters"]["seed"] for _ in range(3)
    }
    assert len(seeds) == 3
    fitted(x, random_state=None)


@pytest.mark.parametrize("method", ["fit", "fit_predict"])
def test_warnings_point_at_the_line_of_the_user(method, tmp_path, monkeypatch):
    def broken(snapshot):
        raise OSError("disk full")

    monkeypatch.setattr("largek_dask.estimators.base.ProgressLine", lambda: broken)
    km = lk.KMeans(3, random_state=0, verbose=1)
    with pytest.warns((DegenerateDataWarning, RecoveryWarning)) as caught:
        getattr(km, method)(np.repeat(np.eye(2), 5, axis=0))
    assert {w.category for w in caught} == {DegenerateDataWarning, RecoveryWarning}
    assert {w.filename for w in caught} == {__file__}


# --- inputs -------------------------------------------------------------------------------------


def test_inputs_of_any_kind_give_the_same(blobs, tmp_path):
    x = blobs[0].astype(np.float32)
    store = zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(100, 3))
    np.save(tmp_path / "x.npy", x)
    start = x[:4]
    # (The default takes another algorithm for sparse rows.)
    wanted = fitted(x, init=start, algorithm="lloyd")
    frame = pd.DataFrame(x, columns=list("abc"))
    sources = {
        "list": x.tolist(),
        "fortran": np.asfortranarray(x),
        "frame": frame,
        "csr": scipy.sparse.csr_matrix(x),
        "coo": scipy.sparse.coo_matrix(x),
        "zarr": store,
        "url": str(tmp_path / "x.zarr"),
        "path": tmp_path / "x.npy",
        "dask": dask.array.from_array(x, chunks=(77, 3)),
        "rows": lk.open_rows(x),
    }
    several = {"zarr": 3, "url": 3, "dask": 4}
    for name, source in sources.items():
        with watched_passes() as seen:
            km = fitted(source, init=start, algorithm="lloyd")
        assert seen[0].n_chunks == several.get(name, 1), name
        np.testing.assert_array_equal(km.labels_, wanted.labels_, err_msg=name)
        assert km.n_features_in_ == 3
        np.testing.assert_array_equal(km.predict(source), km.labels_, err_msg=name)
        if name != "list":  # which is float64
            np.testing.assert_array_equal(km.cluster_centers_, wanted.cluster_centers_)


# --- bad input ----------------------------------------------------------------------------------

X = np.arange(24.0).reshape(8, 3)


def with_text_column():
    return pd.DataFrame({"a": [1.0] * 8, "name": ["x"] * 8})


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (with_text_column(), "a column that is not numbers: 'name' "),
        (np.array([["a", "b"]] * 8), "real numbers are required: text; encode it as numbers"),
        (np.array([[{}, 1.0]] * 8, object), "argument must be a string or a real number"),
        (X + 1j, "[Cc]omplex"),
        (X[:0], "0 sample"),
        (X[0], "2D array|dimensions"),
        (lk.open_rows, "array"),
        (np.where(X == 7, np.nan, X), "row 2 holds NaN or infinity .chunk 0"),
        ("/no/such/store.zarr", "does not exist"),
    ],
    ids=["text column", "text", "objects", "complex", "empty", "one row", "function", "nan", "url"],
)
def test_bad_data(x, message):
    with pytest.raises((ValueError, TypeError), match=message):
        lk.KMeans(2, random_state=0).fit(x)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (-np.ones(8), "sample_weight of row 0 is -1.0"),
        (np.where(np.arange(8) == 3, np.nan, 1.0), "sample_weight of row 3 is nan"),
        (np.zeros(8), "all sample weights are zero"),
        (np.ones(7), "sample_weight has 7 values, but .* 8 rows"),
        (np.ones((8, 2)), "one number per row"),
        (np.array(["a"] * 8), "sample_weight has dtype <U1"),
    ],
    ids=["negative", "nan", "zero", "length", "shape", "text"],
)
def test_bad_weights(weight, message):
    with pytest.raises(DataError, match=message):
        lk.KMeans(2, random_state=0).fit(X, sample_weight=weight)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_clusters": 9}, "n_clusters=9 is more than the number of rows .n_samples=8."),
        ({"n_clusters": 0}, "n_clusters must be an integer of at least 1, got 0"),
        ({"n_clusters": 2.0}, "n_clusters must be an integer"),
        ({"n_clusters": True}, "n_clusters must be an integer"),
        ({"n_init": 0}, "n_init must be an integer"),
        ({"max_iter": 0}, "max_iter must be an integer of at least 1, got 0"),
        ({"tol": -1.0}, "tol must be .*at least 0"),
        ({"tol": float("nan")}, "tol must be .*at least 0"),
        ({"max_time": "soon"}, "max_time must be seconds or a text"),
        (
            {"algorithm": "elkan!"},
            "algorithm must be one of 'auto', 'dcd-bundle', 'incremental', 'lloyd', 'minibatch', "
            ".*'vc-gmm', 'vc-gmm-paper', 'vrkm', got",
        ),
        ({"algorithm": lk.Lloyd}, "or an object such as Lloyd"),
        ({"algorithm": 3}, "algorithm must be one of"),
        ({"init": "k-means+++"}, "init must be one of 'auto', 'random', 'two-level', 'k-m"),
        ({"init": X[:3]}, r"init has shape \(3, 3\)"),
        ({"init": X[:2, :2]}, r"init has shape \(2, 2\)"),
        ({"init": X[:2] * np.nan}, "init: centre 0 holds NaN"),
        ({"empty_clusters": "drop"}, "empty_clusters must be one of 'relocate', 'keep'"),
        ({"on_bad_rows": "ignore"}, "on_bad_rows must be one of 'raise', 'skip'"),
        ({"normalize": "l1"}, "normalize must be one of None, 'l2'"),
        ({"effort": None}, "effort must be one of 'fast'"),
        ({"client": "tcp://here"}, "client must be a distributed.Client"),
        ({"n_threads": 0}, "n_threads must be an integer"),
        ({"memory_limit": "much"}, "memory_limit must be bytes or a text"),
        ({"memory_limit": 0}, "memory_limit must be bytes or a text"),
        ({"verbose": -1}, "verbose must be an integer"),
        ({"callbacks": [3]}, "callbacks must be a list of callables"),
        ({"checkpoint": 3}, "checkpoint must be a URL or path"),
    ],
)
def test_bad_parameters(parameters, message):
    km = lk.KMeans(**{"n_clusters": 2, "random_state": 0, **parameters})
    with pytest.raises(ParameterError, match=message):
        km.fit(X)


def test_predict__wrong_width_and_unfitted():
    with pytest.raises(NotFittedError):
        lk.KMeans().predict(X)
    km = lk.KMeans(2, random_state=0).fit(X)
    for wrong in (X[:, :2], lk.open_rows(np.ascontiguousarray(X[:, :2]))):
        for method in (km.predict, km.transform, km.score):
            with pytest.raises(ValueError, match="X has 2 features, but KMeans is expecting 3"):
                method(wrong)


# --- while it runs ------------------------------------------------------------------------------


def test_interrupt__gives_the_model_so_far(blobs):
    x, _ = blobs

    def interrupt(snapshot):
        if snapshot.record["step"] == 2:
            raise KeyboardInterrupt

    km = lk.KMeans(4, init=x[:4], random_state=0, tol=0, callbacks=[interrupt])
    with pytest.warns(InterruptedFitWarning, match="after 2 steps"):
        assert km.fit(x) is km
    assert km.stop_reason_ == "interrupted"
    assert km.n_iter_ == 2
    np.testing.assert_array_equal(km.predict(x), km.labels_)


def test_checkpoint__resumes_to_the_same_bits(blobs, tmp_path):
    x, _ = blobs
    whole = lk.KMeans(4, init=x[:4], random_state=0, tol=0).fit(x)
    assert whole.n_iter_ > 2
    place = tmp_path / "job"
    short = lk.KMeans(4, init=x[:4], random_state=0, tol=0, max_iter=2, checkpoint=place).fit(x)
    assert short.n_iter_ == 2
    resumed = lk.KMeans(4, init=x[:4], random_state=0, tol=0, checkpoint=str(place)).fit(x)
    assert resumed.n_iter_ == whole.n_iter_
    assert resumed.model_.digest() == whole.model_.digest()


@pytest.mark.parametrize("kind", [lk.KMeans, lk.SphericalKMeans, lk.Mixture])
def test_checkpoint__without_a_seed_goes_on_with_the_one_it_has_drawn(kind, tmp_path):
    x = np.random.default_rng(0).random((2_000, 6))  # from wherever it begins, one step is not all
    place, asked = tmp_path / "job", {"init": "random", "tol": 0}
    if kind is not lk.Mixture:
        asked["algorithm"] = "lloyd"
    first = kind(4, **asked, max_iter=1, checkpoint=place).fit(x)
    seed = first.model_.provenance["parameters"]["seed"]
    assert json.loads((place / "job.json").read_text())["job"]["seed"] == seed
    again = kind(4, **asked, checkpoint=place).fit(x)
    assert again.n_iter_ > first.n_iter_
    assert again.model_.provenance["parameters"]["seed"] == seed
    assert again.random_state is None
    whole = kind(4, **asked, random_state=seed).fit(x)
    assert again.model_.digest() == whole.model_.digest()
    # Elsewhere another one is drawn.
    other = kind(4, **asked, max_iter=1, checkpoint=tmp_path / "other").fit(x)
    assert other.model_.provenance["parameters"]["seed"] != seed
    with pytest.raises(CheckpointError, match=f"its seed is {seed}, not {seed + 1}"):
        kind(4, **asked, random_state=seed + 1, checkpoint=place).fit(x)


@pytest.mark.parametrize(
    ("kind", "there"),
    in_turns([lk.KMeans, lk.Mixture], ["report.docx", "model.zarr", "claims", "events", "results"]),
)
def test_checkpoint__writes_into_no_folder_of_others(kind, there, blobs, tmp_path):
    x, _ = blobs
    if there == "report.docx":
        (tmp_path / there).write_text("mine")
    else:
        (tmp_path / there).mkdir()
        (tmp_path / there / "mine.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutputError, match=rf"contains no job .*'{there}'.*; nothing was"):
        kind(4, checkpoint=tmp_path).fit(x)
    assert sorted(tmp_path.rglob("*")) == before


def test_checkpoint__an_empty_folder_and_one_that_was_killed_early_are_free(blobs, tmp_path):
    x, _ = blobs
    assert fitted(x, checkpoint=tmp_path).n_iter_ > 0
    early = tmp_path / "early"
    shutil.copytree(tmp_path / "events", early / "events")
    assert (early / "events" / "000001.jsonl").exists()
    assert fitted(x, checkpoint=early).n_iter_ > 0
    assert (early / "job.json").exists()


# --- partial_fit --------------------------------------------------------------------------------


def test_partial_fit__centres_are_means_of_all_votes(blobs):
    x, _ = blobs
    start = x[:4].copy()
    km = lk.KMeans(4, init=start, random_state=0)
    centers, votes = start.copy(), np.zeros(4)
    weight = np.random.default_rng(1).random(len(x))
    for begin in range(0, 240, 80):
        batch, w = x[begin : begin + 80], weight[begin : begin + 80]
        assert km.partial_fit(batch, sample_weight=w) is km
        labels = ((batch[:, None] - centers[None]) ** 2).sum(-1).argmin(1)
        for c in range(4):
            own = labels == c
            if own.any():
                added = w[own].sum()
                mean = (w[own, None] * batch[own]).sum(0) / added
                votes[c] += added
                centers[c] += added / votes[c] * (mean - centers[c])
    np.testing.assert_allclose(km.cluster_centers_, centers, rtol=1e-9)
    np.testing.assert_allclose(km.model_.counts, votes, rtol=1e-9)
    assert km.n_iter_ == 3
    assert len(km.labels_) == 80
    np.testing.assert_array_equal(km.predict(x[160:]), km.labels_)


def test_partial_fit__goes_on_after_fit(blobs):
    x, _ = blobs
    km = fitted(x)
    before, n_iter = km.cluster_centers_.copy(), km.n_iter_
    km.partial_fit(x)
    # every row votes again for the cluster it belongs to: the means stay where they are
    np.testing.assert_allclose(km.cluster_centers_, before, atol=1e-9)
    assert km.model_.counts.sum() == 480
    assert km.n_iter_ == n_iter + 1


def test_partial_fit__needs_enough_rows_at_first():
    with pytest.raises(ParameterError, match="n_samples=8 should be >= n_clusters=9"):
        lk.KMeans(9, random_state=0).partial_fit(X)
    with pytest.raises(ValueError, match="X has 2 features, but KMeans is expecting 3"):
        lk.KMeans(2, random_state=0).partial_fit(X).partial_fit(X[:, :2])


def test_partial_fit__normalizes_and_skips(blobs):
    x, _ = blobs
    km = lk.KMeans(2, random_state=0, normalize="l2", on_bad_rows="skip", init=np.eye(3)[:2])
    damaged = np.concatenate([x * 1000, [[np.nan, 0, 0]]])
    km.partial_fit(damaged)
    assert km.labels_[-1] == -1
    assert np.linalg.norm(km.cluster_centers_, axis=1).max() <= 1 + 1e-9


@pytest.mark.parametrize(
    ("partial", "kind", "size", "d"),
    every_two(
        [False, True], ["dense", "sparse"], [("f4", 1e-24), ("f4", 1e-18), ("f8", 1e-170)], [3, 16]
    ),
)
def test_rows_too_near_for_squares_are_refused_with_what_helps(d, size, kind, partial):
    dtype, scale = size
    rng = np.random.default_rng(0)
    groups = 8.0 * np.arange(10)[rng.integers(10, size=400)]
    x = (scale * (groups[:, None] + rng.random((400, d)))).astype(dtype)
    rows = scipy.sparse.csr_matrix(x) if kind == "sparse" else x
    km = lk.KMeans(10, random_state=0)
    with pytest.raises(DataError, match="underflow") as refused:
        (km.partial_fit if partial else km.fit)(rows)
    # sparse rows stay about 0
    origin, named = (0, "0") if kind == "sparse" else (x.mean(axis=0), "the mean of its column")
    assert f" of {named}, so " in str(refused.value)
    factor = 2.0 ** int(re.search(r"multiply the data by 2.0\*\*(\d+),", str(refused.value))[1])
    assert 0.5 <= np.abs(x - origin).max() * factor < 1
    scaled = (x * factor).astype(dtype)  # a power of two: exact
    km.fit(scaled)
    own = [set(km.labels_[groups == group]) for group in np.unique(groups)]
    assert len(set.union(*own)) == sum(map(len, own)) == 10
    model = km.model_
    # with centres that are all right, rows that are nearly equal are no mistake
    near = (km.cluster_centers_[3] + x).astype(dtype)
    assert (model.predict(near) == 3).all()
    np.testing.assert_array_equal(model.transform(near[:1]).argmin(), 3)
    assert np.isfinite(model.score(near))


@pytest.mark.parametrize(
    ("d", "dtype", "sparse"), every_two([3, 9, 64], ["f4", "f8"], [False, True])
)
def test_transform_is_right_to_the_rounding_of_each_distance(d, dtype, sparse):
    rng = np.random.default_rng(1)
    middles = rng.uniform(-10, 10, (20, d))
    x = (middles[rng.integers(20, size=500)] + 1e-3 * rng.normal(size=(500, d))).astype(dtype)
    km = lk.KMeans(40, init=x[:40], max_iter=1, random_state=0).fit(x)
    rows = np.concatenate([x[:60], km.cluster_centers_])
    given = scipy.sparse.csr_matrix(rows) if sparse else rows
    found = km.transform(given)
    wide, centers = rows.astype("f8"), km.cluster_centers_.astype("f8")
    exact = np.sqrt(((wide[:, None] - centers[None]) ** 2).sum(axis=2))
    np.testing.assert_allclose(found, exact, rtol=5 * (d + 4) * np.finfo(dtype).eps, atol=0)
    assert (np.diagonal(found[60:]) == 0).all()
