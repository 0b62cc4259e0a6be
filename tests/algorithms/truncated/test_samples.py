"""A truncated search from its first sample to all rows: the same bits wherever it runs."""

from __future__ import annotations

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.base import Rng, RowSample
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.truncated import schedule
from largek_dask.algorithms.truncated.schedule import MOST_MET, RESTARTED_CLUSTERS
from largek_dask.algorithms.truncated.state import next_pass
from largek_dask.passes.local import LocalPasses
from tests.algorithms.conftest import bits, blobs
from tests.helpers.checks import computing_workers, watched_passes

N, D, K = 12_000, 10, 24

ALGORITHMS = {"all": lk.Truncated(), "lists": lk.Truncated(neighbours=8)}
every_kind = pytest.mark.parametrize("kind", ALGORITHMS)


@pytest.fixture(scope="module", autouse=True)
def no_restarts():
    """Samples as for many clusters; what is otherwise with few of them has tests of its own."""
    with pytest.MonkeyPatch.context() as patched:
        # Cells of so few centres leave hardly any out.
        patched.setattr(schedule, "RESTARTED_CLUSTERS", 0)
        patched.setattr(schedule, "MOST_MET", 1.0)
        yield


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return blobs(N, D, 40, seed=11, spread=1.5)


@pytest.fixture(scope="module")
def url(x, tmp_path_factory) -> str:
    out = tmp_path_factory.mktemp("samples") / "rows.zarr"
    lk.ingest(x, str(out), chunk_rows=1_000, progress=False)
    assert lk.open_rows(str(out)).n_chunks == 12
    return str(out)


def fit(data, kind, *, n_workers=0, **options):
    """A fit; at least ``n_workers`` workers have computed chunks of it."""
    options = {"max_iter": 60, "tol": 0, "random_state": 5} | options
    with watched_passes() as seen:
        km = lk.KMeans(K, algorithm=ALGORITHMS[kind], **options).fit(data)
    assert computing_workers(seen[0]) >= n_workers
    return km


@pytest.fixture(scope="module")
def clean(url):
    return {kind: fit(url, kind, n_threads=1) for kind in ALGORITHMS}


@every_kind
def test_the_search_covers_samples_and_all_rows(kind, clean):
    """The tests below depend on it."""
    opened = [h for h in clean[kind].history_ if h["extra"]["opens_round"]]
    assert {h["extra"]["everywhere"] for h in opened} == {0.0, 1.0}
    sizes = [h["rows"] for h in clean[kind].history_]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 4


@every_kind
def test_growing_does_not_harm_the_model(kind, x):
    """Centres that were found on a sample are not moved by rows that are roughly labelled."""
    algorithm = ALGORITHMS[kind].bind(KMeansProblem(K, tol=0))
    with LocalPasses(lk.open_rows(x)) as passes:
        state, energies, models = algorithm.init(passes, Rng(5)), [], []
        while not state.everywhere:
            before = state
            state, _ = algorithm.step(passes, Rng(5), state)
        for known in (before, state):
            models.append(algorithm.model(known).centers)
            centers = models[-1].astype(np.float64)
            energies.append(((x[:, None] - centers) ** 2).sum(axis=2).min(axis=1).sum())
    assert energies[1] <= energies[0] * (1 + 1e-9)
    assert (models[0] == models[1]).all() == (kind == "lists"), "all centres were met at once"


@every_kind
def test_workers(kind, url, clean, worker_clients):
    km = fit(url, kind, client=worker_clients(3), n_workers=3)
    assert bits(km) == bits(clean[kind])


@pytest.mark.parametrize(("n", "ascending"), [(1, False), (4, True), (9, False), (40, True)])
def test_a_sample_has_at_least_half_the_requested_rows(n, ascending):
    """Of 10 rows of 10,000 that count, in one place."""
    x = np.arange(10_000, dtype=np.float32)[:, None]
    weight = np.zeros(10_000)
    weight[4_000:4_010] = 2.5
    for seed in range(12):
        with LocalPasses(lk.open_rows(x, sample_weight=weight), n_threads=1) as passes:
            sample = passes.subset(RowSample(Rng(seed), "test", n, ascending=ascending))
            found, own, rows = sample.take()
            assert min(n, 10) // 2 <= len(rows) <= max(n, 10)
            assert set(rows) <= set(range(4_000, 4_010))
            np.testing.assert_array_equal(found[:, 0], rows)
            if len(rows):
                np.testing.assert_array_equal(own, 2.5)
            assert not ascending or (np.diff(rows) > 0).all()
            again = passes.subset(RowSample(Rng(seed), "test", n, ascending=ascending))
            assert again is sample


@pytest.mark.parametrize("is_noise", [False, True])
def test_rows_meet_all_centres_if_cells_exclude_few(is_noise, monkeypatch):
    monkeypatch.setattr(schedule, "RESTARTED_CLUSTERS", RESTARTED_CLUSTERS)
    monkeypatch.setattr(schedule, "MOST_MET", MOST_MET)
    k, n = 150, 20_000
    x = blobs(n, 64, k, seed=3, spread=0.2)
    if is_noise:
        x = np.random.default_rng(3).normal(size=(n, 192)).astype(np.float32)
    km = lk.KMeans(k, algorithm="truncated", max_iter=20, random_state=0, n_threads=1).fit(x)
    steps = [(step["rows"], step["extra"]["distances"]) for step in km.history_]
    assert steps[0][0] < n
    assert (steps[0][1] > MOST_MET) is is_noise, "the first pass is led by coarse cells"
    everywhere = next(share for rows, share in steps if rows == n)
    assert (everywhere == 1) is is_noise


def test_labels_of_a_start_are_not_in_the_history(x):
    """They cannot be replayed, so an anchor must follow."""
    search, rng = ALGORITHMS["lists"].bind(KMeansProblem(K)), Rng(5)
    with LocalPasses(lk.open_rows(x), n_threads=1) as passes:
        state = search.init(passes, rng)
        while state.schedule.task.kind != "start":
            state, _ = search.step(passes, rng, state)
        after, info = search.step(passes, rng, state)
        assert info.n_changed < info.rows < N, "the pass begins with the labels of the start"
        assert after.history == History(1, ())
        assert next_pass(passes, after).is_anchor
        then, _ = search.step(passes, rng, after)
        assert len(then.history) == 1
