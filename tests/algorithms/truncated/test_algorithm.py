"""Truncated search with moves, on any data."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.truncated import schedule
from largek_dask.algorithms.truncated.schedule import DENSE_CLUSTERS
from largek_dask.errors import ParameterError
from largek_dask.passes.local import LocalPasses
from tests.algorithms.conftest import bits, blobs
from tests.helpers.checks import watched_passes
from tests.helpers.covering import slow

N, D, K = 4_000, 10, 30


@pytest.fixture(scope="module", params=[0, 128], ids=["lists", "all"], autouse=True)
def few(request):
    """Let rows meet lists, or all centres; and search even such small samples in rounds."""
    with pytest.MonkeyPatch.context() as patched:
        # Samples as for many clusters; the best of several starts has tests of its own.
        patched.setattr(schedule, "DENSE_CLUSTERS", request.param)
        patched.setattr(schedule, "RESTARTED_CLUSTERS", 0)
        patched.setattr(schedule, "ROWS_TO_SEARCH", 32)
        patched.setattr(schedule, "START_ROWS", 8)
        patched.setattr(schedule, "FIRST_ROWS", 2)
        yield request.param


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return blobs(N, D, 2 * K, seed=5, spread=2.0)


def fit(data, k=K, *, weight=None, **options):
    given = {"algorithm": lk.Truncated(), "random_state": 3, "tol": 0, "max_iter": 500}
    return lk.KMeans(k, **(given | options)).fit(data, sample_weight=weight)


@pytest.fixture(scope="module")
def clean(x, few):
    return fit(x, n_threads=1)


def brute_force(x, centers):
    x, centers = x.astype(np.float64), centers.astype(np.float64)
    return ((x[:, None, :] - centers[None]) ** 2).sum(axis=2)


def assert_exact(km, x):
    """Labels are the nearest centres, the inertia is their sum of squares."""
    distances = brute_force(x, km.cluster_centers_)
    own = distances[np.arange(len(x)), km.labels_]
    assert np.allclose(own, distances.min(axis=1), rtol=1e-4, atol=1e-4 * distances.mean())
    assert np.isclose(km.inertia_, own.sum(), rtol=1e-6)


# --- what a run is made of ------------------------------------------------------------------------


def test_cost_falls_over_kept_rounds(clean):
    """Within a round it may rise: moves are paid back by the passes after them, or undone."""
    history = [h for h in clean.history_ if h["extra"]["everywhere"]]
    assert sum(h["extra"]["back"] for h in history) > 0, "nothing was undone"
    assert sum(h["extra"]["moves"] for h in history) > 0, "nothing was moved"
    kept = history[0]["cost"]
    rounds = 0
    for h in history[1:]:
        if h["extra"]["opens_round"]:
            rounds += 1
        if h["extra"]["ends_round"] and not h["extra"]["back"]:
            assert h["cost"] <= kept
            kept = h["cost"]
    assert rounds > 3
    assert clean.inertia_ <= history[-1]["cost"] * (1 + 1e-6)


def test_passes_without_moves_never_raise_the_cost(x):
    km = fit(x, algorithm=lk.Truncated(moves=False))
    # Of the centres that rows were labelled by: steps go beyond the means, so theirs may rise.
    costs = [h["cost"] + h["extra"]["by_means"] for h in km.history_ if h["extra"]["everywhere"]]
    assert all(b <= a * (1 + 1e-9) for a, b in itertools.pairwise(costs))
    assert km.stop_reason_ == "converged"


def test_model_and_labels_of_an_unfinished_search(x):
    """Also in the middle of a round, whose moves raise the cost at first."""
    algorithm, rng = lk.Truncated().bind(KMeansProblem(K, tol=0)), Rng(3)
    behind, on_sample, lowest = 0, 0, np.inf
    with LocalPasses(lk.open_rows(x), n_threads=1) as passes:
        state = algorithm.init(passes, rng)
        for _ in range(60):
            state, info = algorithm.step(passes, rng, state)
            if info.converged:
                break
            centers = algorithm.model(state).centers
            if not state.everywhere:
                # Also where a round has just been undone.
                if state.schedule.stage.name in ("round", "search"):
                    on_sample += 1
                    assert_labels_of(algorithm.labels(passes, rng, state), x, centers)
                continue
            cost = brute_force(x, centers).min(axis=1).sum()
            if state.schedule.stage.name == "round":
                assert cost <= lowest * (1 + 1e-6)
                lowest = min(state.schedule.stage.cost_before, state.cost)
            if state.fallback is not None and state.moves is None:
                behind += 1
                own = assert_labels_of(algorithm.labels(passes, rng, state), x, centers)
                assert own <= lowest * (1 + 1e-6)
    assert behind > 0
    assert on_sample > 0


def assert_labels_of(found, x, centers) -> float:
    """Labels, cost and counts agree; returns the cost."""
    labels, cost, counts = found
    own = brute_force(x, centers)[np.arange(len(x)), labels].sum()
    assert np.isclose(cost, own, rtol=1e-5)
    assert (counts == np.bincount(labels, minlength=K)).all()
    return float(own)


def test_rounds_begin_on_a_sample(clean, x):
    """Rounds are limited over all rows only, and where there are to be none there are none."""
    opened = [h for h in clean.history_ if h["extra"]["opens_round"]]
    places = [h["extra"]["everywhere"] for h in opened]
    assert places == sorted(places)
    assert set(places) == {0, 1}
    opened = [
        h for h in fit(x, algorithm=lk.Truncated(rounds=2)).history_ if h["extra"]["opens_round"]
    ]
    assert [h["extra"]["everywhere"] for h in opened].count(1) == 2
    assert len(opened) > 2
    none = fit(x, algorithm=lk.Truncated(rounds=0))
    assert not any(h["extra"]["opens_round"] for h in none.history_)


def test_steps_per_reading(clean):
    history = clean.history_
    for done, h in enumerate(history, 1):
        whole = sum(before["extra"]["everywhere"] for before in history[:done])
        assert h["extra"]["steps_per_reading"] == pytest.approx(done / max(1, whole))


def test_labels_are_exact(clean, x):
    assert_exact(clean, x)
    assert len(np.unique(clean.labels_)) == K


# --- the same bits --------------------------------------------------------------------------------


def stored(x, folder, chunk_rows, n_chunks) -> str:
    """A store of the rows that is read in so many chunks."""
    url = str(folder / "rows.zarr")
    lk.ingest(x, url, chunk_rows=chunk_rows, progress=False)
    assert lk.open_rows(url).n_chunks == n_chunks
    return url


def test_threads(x, clean, monkeypatch):
    # So few rows would not be shared.
    monkeypatch.setattr("largek_dask.algorithms.truncated.passes.LEAST_ROWS", 64)
    monkeypatch.setattr("largek_dask.kernels.threads.SLICE_VALUES", 64)
    monkeypatch.setattr("largek_dask.algorithms.parts.totals.LEAST_COMPARED", 64)
    monkeypatch.setattr("largek_dask.algorithms.parts.totals.LEAST_COUNTED", 64)
    monkeypatch.setattr("largek_dask.algorithms.parts.totals.WORTH_COUNTING", 0)
    monkeypatch.setattr("largek_dask.kernels.bounds.lists._LEAST_SORTED", 64)
    monkeypatch.setattr("largek_dask.kernels.threads.PART_VALUES", 64)
    km = fit(x, n_threads=5)
    assert bits(km) == bits(clean)
    changed = [h["n_changed"] for h in clean.history_]
    assert sum(map(bool, changed)) > 5
    assert [h["n_changed"] for h in km.history_] == changed


def test_row_state_that_does_not_fit_is_rebuilt(x, clean, tmp_path):
    out = stored(x, tmp_path, 500, 8)
    with watched_passes() as seen:
        assert bits(fit(out, memory_limit=N * 6)) == bits(clean)
    assert seen[0].total.rebuilt > 0, "it did fit"


@pytest.mark.parametrize(("from_store", "every"), [(True, False), *slow((False, True))])
def test_resume(from_store, every, x, clean, tmp_path):
    """Also inside rounds, and between a round that was undone and what follows it."""
    data = stored(x, tmp_path, 700, 6) if from_store else x
    undone = [h["step"] for h in clean.history_ if h["extra"]["back"]]
    opened = [h["step"] for h in clean.history_ if h["extra"]["opens_round"]]
    places = [0, 1]
    first = [
        next(s for s in opened if clean.history_[s - 1]["extra"]["everywhere"] == at)
        for at in places
    ]
    steps = {first[0] + 1, first[1] + 1, undone[0], undone[0] + 1}
    if every:
        steps |= {1, 2, 3, 4, *first, first[0] + 2, undone[-1] + 2}
    for steps_done in sorted(steps & set(range(clean.n_iter_))):
        folder = str(tmp_path / f"stop-{steps_done}")
        fit(data, max_iter=steps_done, checkpoint=folder)
        assert bits(fit(data, checkpoint=folder)) == bits(clean)


def test_tol_ends_it_sooner(x, clean):
    km = fit(x, tol=0.5)
    assert km.stop_reason_ == "converged"
    assert km.n_iter_ < clean.n_iter_
    assert km.inertia_ < 1.1 * clean.inertia_


def test_moves_found_last_are_not_carried_out(x):
    """No step comes after it that could undo moves."""
    km = fit(x, algorithm=lk.Truncated(rounds=1))
    ended = [h for h in km.history_ if h["extra"]["ends_round"] and h["extra"]["everywhere"]]
    assert not ended[-1]["extra"]["back"]
    assert km.inertia_ <= ended[-1]["cost"] * (1 + 1e-9)


# --- other starts, parameters and rows ------------------------------------------------------------


@pytest.mark.parametrize("init", ["random", "k-means++", "array"])
def test_other_starts(init, x):
    km = fit(x, init=x[:K] if init == "array" else init)
    assert_exact(km, x)
    assert all(h["extra"]["everywhere"] for h in km.history_)


@pytest.mark.parametrize(
    "algorithm",
    [
        lk.Truncated(neighbours=4),
        lk.Truncated(neighbours=40),
        lk.Truncated(rounds=2),
        lk.Truncated(rounds=0),
    ],
)
def test_parameters(algorithm, x):
    km = fit(x, algorithm=algorithm)
    assert_exact(km, x)
    if algorithm.rounds != "auto":
        rounds = [h for h in km.history_ if h["extra"]["ends_round"] and h["extra"]["everywhere"]]
        assert len(rounds) <= algorithm.rounds


def test_wrong_parameters():
    for wrong in ({"neighbours": 1}, {"neighbours": 2.5}, {"rounds": -1}, {"moves": "yes"}):
        with pytest.raises(ParameterError):
            lk.Truncated(**wrong)


def test_lists_of_sparse_rows_are_refused():
    import scipy.sparse

    rows = scipy.sparse.random(200, 50, 0.1, "csr", np.float32, np.random.default_rng(0))
    with pytest.raises(ParameterError, match="neighbours=4 is not supported for sparse rows"):
        lk.KMeans(9, algorithm=lk.Truncated(neighbours=4)).fit(rows)


def test_moves_of_sparse_rows_in_many_clusters():
    """Rows of 160 groups in 150 clusters: where two share one they are found, by their rows."""
    import scipy.sparse

    r = np.random.default_rng(4)
    k, n = DENSE_CLUSTERS + 22, 9_000
    of = r.integers(k + 10, size=n)
    x = (r.random((n, 400)) < 0.004) * r.random((n, 400))
    x[np.arange(n), of] += 2
    rows = scipy.sparse.csr_matrix(x.astype(np.float32))
    plain, moved = (
        lk.KMeans(k, algorithm=lk.Truncated(moves=moves), random_state=0).fit(rows)
        for moves in (False, True)
    )
    assert {step["extra"]["neighbours"] for step in moved.history_} == {float(k)}
    assert sum(step["extra"]["moves"] for step in moved.history_) > 0
    assert moved.inertia_ < 0.99 * plain.inertia_
    best = lk.KMeans(k, algorithm="lloyd", random_state=0, n_init=3).fit(rows)
    assert moved.inertia_ < best.inertia_
