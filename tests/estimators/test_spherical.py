"""SphericalKMeans: k-means by cosine, as faiss has it."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse

import largek_dask as lk
from largek_dask.errors import InterruptedFitWarning
from tests.helpers.checks import recorded_warnings, watched_passes
from tests.helpers.covering import in_turns, slow

pytestmark = pytest.mark.usefixtures("chunks_as_stored")
K = 6


def directions(n=900, d=5, k=K, seed=0, noise=0.3):
    """Rows about k directions, of lengths between 1 and 30."""
    rng = np.random.default_rng(seed)
    along = rng.normal(size=(k, d))
    x = along[rng.integers(k, size=n)] + noise * rng.normal(size=(n, d))
    return x * rng.uniform(1, 30, size=(n, 1))


def unit(x):
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)


def spherical_k_means(x, centers, weight, steps=300):
    """Plain spherical k-means: cosines, sums, their directions."""
    u = unit(np.asarray(x, np.float64))
    for _ in range(steps):
        labels = (u @ centers.T).argmax(1)
        sums = np.zeros_like(centers)
        np.add.at(sums, labels, weight[:, None] * u)
        turned = np.where(sums.any(1, keepdims=True), unit(sums), centers)
        if np.allclose(turned, centers, rtol=0, atol=1e-12):
            break
        centers = turned
    cosines = u @ centers.T
    return centers, cosines.argmax(1), 2 * float(weight @ (1 - cosines.max(1)))


def faults_of_spherical(km, x, weight=None):
    """What is wrong with a fit by cosine, against plain sums in float64."""
    given, x = x, np.asarray(x.toarray() if scipy.sparse.issparse(x) else x, np.float64)
    weight = np.ones(len(x)) if weight is None else weight
    eps = 30 * np.finfo(km.cluster_centers_.dtype).eps
    u, c = unit(x), km.cluster_centers_.astype(np.float64)
    cosines, found = u @ c.T, []
    if abs(np.linalg.norm(c, axis=1) - 1).max() > eps:
        found.append("centres are not unit")
    if (cosines.max(1) - cosines[np.arange(len(x)), km.labels_]).max() > eps:
        found.append("a row is not with its nearest direction")
    if not np.isclose(km.inertia_, weight @ ((u - c[km.labels_]) ** 2).sum(1), rtol=1e-5):
        found.append(f"inertia {km.inertia_}")
    if not np.isclose(km.score(given, sample_weight=weight), -km.inertia_, rtol=1e-12):
        found.append("score is not minus the inertia")
    if not (km.predict(given) == km.labels_).all():
        found.append("predict differs from labels_")
    if not np.allclose(km.transform(given), np.sqrt(((u[:, None] - c) ** 2).sum(-1)), atol=1e-3):
        found.append("transform")
    return found


# --- SphericalKMeans ----------------------------------------------------------------------------


def test_ends_where_plain_spherical_k_means_stands_still():
    x = directions(noise=0.8)
    weight = np.random.default_rng(1).uniform(0, 3, len(x))
    km = lk.SphericalKMeans(K, random_state=0, tol=0).fit(x, sample_weight=weight)
    assert km.stop_reason_ == "converged"
    assert faults_of_spherical(km, x, weight) == []
    searched = lk.KMeans(K, random_state=0, tol=0, normalize="l2").fit(x, sample_weight=weight)
    assert np.linalg.norm(searched.cluster_centers_, axis=1).max() < 0.999
    begun = unit(searched.cluster_centers_)
    centers, labels, inertia = spherical_k_means(x, begun, weight)
    assert abs(centers - begun).max() > 1e-4  # there were steps to be made
    assert km.n_iter_ > searched.n_iter_
    np.testing.assert_allclose(km.cluster_centers_, centers, atol=1e-9)
    np.testing.assert_array_equal(km.labels_, labels)
    assert km.inertia_ == pytest.approx(inertia, rel=1e-12)
    u = unit(x)
    before = 2 * float(weight @ (1 - (u @ begun.T).max(1)))
    assert km.inertia_ < before


@pytest.mark.parametrize(
    ("kind", "k"),
    in_turns(["float32", "float64", "integers", "sparse", "repeated", "far"], [300, 9, 1])
    + slow(*product(["float32", "float64", "integers", "sparse", "repeated", "far"], [2, 8, 101])),
)
def test_rows_of_every_kind(kind, k):
    x = directions()
    if kind == "sparse":
        x = scipy.sparse.csr_matrix(np.where(np.abs(x) > 5, x, 0).astype(np.float32))
    elif kind == "integers":
        x = (9 * x).astype(np.int16)
    elif kind == "repeated":
        x = np.repeat(x[:450], 2, axis=0)
    elif kind == "far":
        x[::100] *= 1e12
    else:
        x = x.astype(kind)
    weight = np.random.default_rng(3).choice([0.0, 0.5, 1.0, 3.0], x.shape[0])
    km = lk.SphericalKMeans(k, random_state=0, max_iter=30)
    with recorded_warnings() as told:
        km.fit(x, sample_weight=weight)
    assert faults_of_spherical(km, x, weight) == []
    assert told == []
    assert (km.model_.counts > 0).all()
    assert kind != "sparse" or (x.getnnz(axis=1) == 0).any()


def test_a_row_of_zeros_has_no_direction():
    x = directions()
    x[7] = 0
    km = lk.SphericalKMeans(K, random_state=0).fit(x)
    assert faults_of_spherical(km, x) == []
    np.testing.assert_allclose(km.transform(x[7:8]), 1, rtol=1e-6)


def test_opposite_rows_cancel_and_a_centre_stays():
    km = lk.SphericalKMeans(1, init=np.array([[0.0, 2.0]])).fit([[1.0, 0.0], [-3.0, 0.0]])
    np.testing.assert_array_equal(np.linalg.norm(km.cluster_centers_, axis=1), [1.0])
    assert km.inertia_ == pytest.approx(4.0)


def test_several_chunks_workers_and_stores_give_the_same_bits(tmp_path, worker_clients):
    x = directions().astype(np.float32)
    wanted = lk.SphericalKMeans(K, random_state=0).fit(x)
    url = str(tmp_path / "x.zarr")
    lk.ingest(x, url, chunk_rows=200, progress=False)
    with watched_passes() as seen:
        stored = lk.SphericalKMeans(K, random_state=0, n_threads=1).fit(url)
    assert seen[0].n_chunks == 5
    there = lk.SphericalKMeans(K, random_state=0, client=worker_clients(2)).fit(url)
    for km in (stored, there):
        assert km.model_.digest() == wanted.model_.digest()
        np.testing.assert_array_equal(km.labels_, wanted.labels_)
        assert (km.inertia_, km.n_iter_) == (wanted.inertia_, wanted.n_iter_)


def test_steps_are_counted_and_limited():
    x = directions(noise=0.8)
    whole = lk.SphericalKMeans(K, random_state=0, tol=0).fit(x)
    turns = whole.model_.provenance["unit_centers"]["steps"]
    assert turns > 1
    assert whole.n_iter_ == len(whole.history_) + turns
    short = lk.SphericalKMeans(K, random_state=0, tol=0, max_iter=whole.n_iter_ - 1).fit(x)
    assert (short.n_iter_, short.stop_reason_) == (whole.n_iter_ - 1, "max_iter")
    assert faults_of_spherical(short, x) == []
    one = lk.SphericalKMeans(K, random_state=0, init=x[:K], algorithm="lloyd", max_iter=1).fit(x)
    assert (one.n_iter_, one.model_.provenance["unit_centers"]) == (1, {"steps": 0})
    assert faults_of_spherical(one, x) == []
    loose = lk.SphericalKMeans(K, random_state=0, tol=0.5).fit(x)
    assert loose.stop_reason_ == "tol"


def test_ends_with_its_time(monkeypatch):
    x = directions(noise=0.8)
    km = lk.SphericalKMeans(K, random_state=0, tol=0, max_time="1h").fit(x)
    assert km.model_.provenance["stop"]["max_time"] == 2_700  # three quarters are the search's
    whole = km.model_.provenance["unit_centers"]["steps"]
    assert whole > 1
    clock = iter(range(0, 10**9, 1_000))
    monkeypatch.setattr(
        "largek_dask.estimators.spherical.time", SimpleNamespace(monotonic=lambda: next(clock))
    )
    km = lk.SphericalKMeans(K, random_state=0, tol=0, max_time="1h").fit(x)
    assert km.stop_reason_ == "max_time"
    assert 0 < km.model_.provenance["unit_centers"]["steps"] < whole
    assert faults_of_spherical(km, x) == []


def test_an_interruption_gives_the_directions_so_far(monkeypatch):
    from largek_dask.estimators import spherical

    calls = []

    def interrupted(sums, before):
        calls.append(before)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return directions_of(sums, before)

    directions_of = spherical._directions
    monkeypatch.setattr(spherical, "_directions", interrupted)
    x = directions(noise=0.8)
    with pytest.warns(InterruptedFitWarning):
        km = lk.SphericalKMeans(K, random_state=0, tol=0).fit(x)
    assert km.stop_reason_ == "interrupted"
    assert km.model_.provenance["unit_centers"] == {"steps": 1}
    assert faults_of_spherical(km, x) == []


def test_goes_on_from_a_checkpoint(tmp_path):
    x, asked = directions(noise=0.8), {"random_state": 0, "tol": 0, "init": directions()[:K]}
    whole = lk.SphericalKMeans(K, **asked).fit(x)
    place = tmp_path / "run"
    short = lk.SphericalKMeans(K, **asked, max_iter=2, checkpoint=place).fit(x)
    assert short.n_iter_ == 2
    again = lk.SphericalKMeans(K, **asked, checkpoint=place).fit(x)
    assert again.model_.digest() == whole.model_.digest()
    assert again.n_iter_ == whole.n_iter_


def test_partial_fit_turns_centres():
    x, start = directions(), directions()[:K]
    km = lk.SphericalKMeans(K, init=start)
    centers, votes = unit(start), np.zeros(K)
    for begin in range(0, 900, 300):
        batch = unit(x[begin : begin + 300])
        labels = (batch @ centers.T).argmax(1)
        sums = votes[:, None] * centers
        np.add.at(sums, labels, batch)
        votes += np.bincount(labels, minlength=K)
        centers = unit(sums)
        km.partial_fit(x[begin : begin + 300])
        np.testing.assert_allclose(km.cluster_centers_, centers, atol=1e-9)
        assert (km.predict(x[:50]) == (unit(x[:50]) @ centers.T).argmax(1)).all()
    np.testing.assert_array_equal(km.model_.counts, votes)


def test_what_is_fixed_is_no_parameter():
    with pytest.raises(TypeError, match="unexpected keyword"):
        lk.SphericalKMeans(normalize=None)
