"""Few rows that carry the cost: the default algorithm finds them, wherever it runs."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import largek_dask as lk
from benchmarks.far import LOWEST, MADE
from benchmarks.sets import data_folder
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.randomness import numbers_of
from largek_dask.algorithms.truncated import far, search
from largek_dask.algorithms.truncated.far import PrioritySample, draw_rows
from largek_dask.passes.local import LocalPasses
from tests.algorithms.conftest import bits
from tests.helpers.checks import computing_workers, watched_passes
from tests.helpers.covering import in_turns

MOST = 1.05
"""Times the lowest value known that a fit may end at."""
BEST = {
    "student": {10: 4.07205e06, 20: 3.19094e06},
    "spikes": {10: 4.01716e06, 20: 2.15341e06},
    "one": {10: 2.21071e06, 20: 343960},
    "lognormal": {10: 8.3117e06, 20: 3.88073e06},
    "unequal": {10: 1.0196e07, 20: 9.0407e06},
    "groups": {10: 2.14438e07, 20: 225063},
}
"""The best of 50 (k = 10) and 20 greedy k-means++ fits by scikit-learn."""
FEW = {
    "eeg": {2: 784509934e3, 4: 223605499, 6: 84258434.9, 8: 57131136.2},
    "shuttle": {3: 1085415250, 5: 724479099, 7: 433839875, 8: 370712735},
}
"""Lowest values known of still fewer clusters."""


@cache
def made(name: str) -> np.ndarray:
    return MADE[name](np.random.default_rng(len(name))).astype(np.float32)


@pytest.mark.parametrize(("k", "name"), in_turns([10, 20], list(MADE)))
def test_every_seed_ends_near_the_lowest_known_cost(name, k):
    for seed in range(2):
        assert lk.KMeans(k, random_state=seed).fit(made(name)).inertia_ < MOST * BEST[name][k]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eeg", "shuttle"])
def test_public_sets(name):
    file = data_folder() / f"{name}.npz"
    if not file.exists():
        pytest.skip(f"no such file: {file} (LARGEK_DATA)")
    x = np.load(file)["X"]
    for k, lowest in (LOWEST[name] | FEW[name]).items():
        for seed in range(2):
            assert lk.KMeans(k, random_state=seed).fit(x).inertia_ < MOST * lowest


# --- the same bits --------------------------------------------------------------------------------

N, K = 12_000, 12


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    r = np.random.default_rng(1)
    x = r.standard_normal((N, 5))
    far = r.choice(N, 30, replace=False)
    x[far] += 500 * r.standard_normal((10, 5))[np.arange(30) % 10]
    return x.astype(np.float32)


@pytest.fixture(scope="module")
def weight() -> np.ndarray:
    return np.random.default_rng(2).integers(0, 4, N).astype(np.float64)


@pytest.fixture(scope="module")
def url(x, tmp_path_factory) -> str:
    out = tmp_path_factory.mktemp("far") / "rows.zarr"
    lk.ingest(x, str(out), chunk_rows=1_000, progress=False)
    assert lk.open_rows(str(out)).n_chunks == 12
    return str(out)


def fit(data, **options):
    options = {"max_iter": 80, "random_state": 4} | options
    return lk.KMeans(K, algorithm=lk.Truncated(), **options).fit(data)


@pytest.fixture(scope="module")
def clean(x):
    return fit(x, n_threads=1)


def test_the_search_restarts_on_drawn_rows(x):
    """The tests below depend on it."""
    algorithm = lk.Truncated().bind(KMeansProblem(K))
    with LocalPasses(lk.open_rows(x)) as passes:
        state, seen = algorithm.init(passes, Rng(4)), []
        while state.schedule.stage.name != "end":
            before = state
            state, _ = algorithm.step(passes, Rng(4), state)
            seen.append((before.everywhere, state.far is not None, state.schedule.task.restarts))
        assert (False, True, True) in seen
        away = np.flatnonzero((x.astype(float) ** 2).sum(axis=1) > 1e3)
        assert len(away) > 20
        drawn = state.far
        assert np.isin(away, drawn.rows).all(), "all of them are drawn"
        assert (drawn.shares[np.isin(drawn.rows, away)] == 1).all()
        assert drawn.shares.sum() == pytest.approx(N, rel=0.1)
        assert (np.diff(drawn.rows) > 0).all()


def test_workers(url, clean, worker_clients):
    with watched_passes() as seen:
        km = fit(url, client=worker_clients(2))
    assert computing_workers(seen[0]) >= 2
    assert bits(km) == bits(clean)


def test_resume(url, clean, tmp_path):
    """At and after the step that draws rows, and in the search over all rows."""
    sizes = [h["rows"] for h in clean.history_]
    anew = sizes.index(N) + 1
    assert sizes[anew] < N, "a sample comes after all rows"
    for step in (anew, anew + 1, len(sizes) - 2):
        folder = str(tmp_path / f"stop-{step}")
        fit(url, max_iter=step, checkpoint=folder)
        assert bits(fit(url, checkpoint=folder)) == bits(clean)


def test_rows_of_weight_zero_are_never_drawn(x, weight):
    algorithm = lk.Truncated().bind(KMeansProblem(K))
    with LocalPasses(lk.open_rows(x, sample_weight=weight)) as passes:
        state = algorithm.init(passes, Rng(0))
        while state.far is None:
            assert state.schedule.stage.name != "end"
            state, _ = algorithm.step(passes, Rng(0), state)
        own = weight[state.far.rows]
    assert (own > 0).all()
    assert (state.far.shares * own).sum() == pytest.approx(weight.sum(), rel=0.1)


def test_far_rows_do_not_matter_where_there_are_none(monkeypatch):
    x = np.random.default_rng(0).standard_normal((20_000, 8)).astype(np.float32)
    known = bits(fit(x))
    monkeypatch.setattr(search, "FAR_DISTANCE", 1e30)
    assert bits(fit(x)) == known


# --- parts ----------------------------------------------------------------------------------------


def test_pseudorandom_numbers_are_those_of_the_paper():
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    wanted = [((number >> 11) + 1) / 2**53 for number in published]
    assert numbers_of(np.arange(3), 0).tolist() == wanted


@pytest.mark.parametrize("n_parts", [1, 7, 300])
def test_drawn_rows_do_not_depend_on_chunks(n_parts):
    r = np.random.default_rng(0)
    rows, chances = r.permutation(2_000), r.pareto(1, 2_000)
    keys = np.round(numbers_of(rows, 1), 2) / chances  # some are equal
    keys[5] = keys[77] = np.sort(keys)[49]
    totals = []
    for part in np.array_split(np.arange(2_000), n_parts):
        totals.append(PrioritySample(50))
        totals[-1].add(rows[part], keys[part], chances[part])
    whole = totals[-1]
    for other in totals[:-1]:
        whole = PrioritySample.combine(whole, other)
    wanted = np.lexsort((rows, keys))[:50]
    assert sorted(whole.rows.tolist()) == sorted(rows[wanted].tolist())
    assert len(whole.keys) == len(whole.chances) == 50
    assert whole.nbytes == 50 * 24


def test_sums_over_drawn_rows_are_unbiased(x):
    """In the mean over seeds, of any function of the rows (here: of far ones, and of all)."""
    algorithm = lk.Truncated().bind(KMeansProblem(K))
    with LocalPasses(lk.open_rows(x)) as passes:
        state = algorithm.init(passes, Rng(0))
        while state.far is None:
            state, _ = algorithm.step(passes, Rng(0), state)
        counts, squares = state.counts, (x.astype(float) ** 2).sum(axis=1)
        found = []
        for seed in range(20):
            drawn = draw_rows(passes, Rng(seed), state.history, counts, 1.0)
            assert len(drawn.rows) == far.LEAST
            found.append([drawn.shares.sum(), (drawn.shares * squares[drawn.rows]).sum()])
    assert np.mean(found, axis=0) == pytest.approx([N, squares.sum()], rel=0.02)
