"""vc-GMM as published against its equations row by row, and on workers."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.mixture import MixtureProblem
from largek_dask.algorithms.randomness import draws_of
from largek_dask.algorithms.starts import rows_in_place
from largek_dask.algorithms.starts.afk_mc2 import afk_mc2_start
from largek_dask.algorithms.starts.coresets import draw_coreset
from largek_dask.algorithms.vcgmm import VCGMM
from largek_dask.data.sources import open_rows
from largek_dask.errors import DegenerateDataWarning, ParameterError
from largek_dask.passes.base import BasePasses
from largek_dask.passes.local import LocalPasses
from tests.algorithms.conftest import bits, blobs
from tests.helpers.checks import computing_workers, watched_passes
from tests.oracles import published as oracle
from tests.passes.toys import rows_of

SEED, K = 4, 14
SIZES = [300, 1, 0, 299, 300]


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    out = str(tmp_path_factory.mktemp("vcgmm") / "rows.zarr")
    lk.ingest(blobs(6_000, 8, 25, seed=3, spread=1.5), out, chunk_rows=500, progress=False)
    return out


def steps(rows, algorithm, init, n_steps, *, fresh=False, k=K):
    """First state, and state and figures of each step; ``fresh``: K_n are lost before each."""
    algorithm = algorithm.bind(MixtureProblem(k, init))
    passes = LocalPasses(rows, n_threads=1)
    state = first = algorithm.init(passes, Rng(SEED))
    out = []
    for _ in range(n_steps):
        if fresh:
            passes.close()
            passes = LocalPasses(rows, n_threads=1)
        state, info = algorithm.step(passes, Rng(SEED), state)
        out.append((state, info))
    passes.close()
    return first, out


def table(kind):
    """Rows in float64, and weights."""
    x = blobs(900, 5, 20, seed=2, spread=1.2).astype(float)
    weight = None
    if kind == "weighted":
        weight = np.random.default_rng(1).lognormal(0, 1, len(x))
    if kind == "repeated":
        x = x[np.random.default_rng(2).integers(0, 300, len(x))]
    return x, weight


@pytest.mark.parametrize("kind", ["plain", "weighted", "repeated"])
@pytest.mark.parametrize(
    ("coreset", "explore", "e_steps", "neighbours"), [(None, 0, 0, None), ("auto", 1, 2, 6)]
)
def test_is_the_papers(kind, coreset, explore, e_steps, neighbours):
    """K_n, g_c, σ² of equation 8 from the first K_n, then equations 3, 4, 6 and the distances."""
    x, weight = table(kind)
    algorithm = VCGMM.paper(
        candidates=4, coreset=coreset, explore=explore, initial_e_steps=e_steps,
        neighbours=neighbours, epsilon=0.0,
    )  # fmt: skip
    first, found = steps(rows_of(x, SIZES, weight), algorithm, "auto", 8)
    numbers, gamma = np.arange(len(x)), np.ones(len(x)) if weight is None else weight
    if coreset:
        drawn = first.coreset
        with LocalPasses(rows_of(x, SIZES, weight)) as passes:
            expected = draw_coreset(passes, Rng(SEED), 16 * K, independent=True)
        np.testing.assert_array_equal(drawn.rows, expected.rows)
        numbers, gamma = drawn.rows, drawn.factors * gamma[drawn.rows]
    y, mu, g = x[numbers], first.mu, first.g
    assert g.shape == (K, neighbours or 4)
    assert all(len(set(own)) == len(own) and own[0] == c for c, own in enumerate(g.tolist()))
    assert len(np.unique(mu, axis=0)) == K
    assert all((row == y).all(axis=1).any() for row in mu), "seeds are rows of the coreset"
    generation, sets, sigma2 = 0, None, None

    def search():
        nonlocal sets, g, generation
        key = int(Rng(SEED).generator(generation, "components").integers(1 << 62))
        if sets is None:
            sets = draws_of(numbers, key, 4, K).tolist()
        more = draws_of(numbers, key + 4, explore, K).tolist() if explore else [[]] * len(y)
        sets, g, met, nearest = oracle.e_step(y, mu, sigma2, g, sets, more, 4)
        generation += 1
        return met, nearest

    for t, (state, info) in enumerate(found):
        met = 0
        for _ in range(1 if t else 1 + e_steps):
            more, nearest = search()
            met += more
        if t == 0:
            sigma2 = (gamma * nearest).sum() / (gamma.sum() * 5)
            generation += 1
        F, mu, sigma2 = oracle.m_step(y, gamma, mu, sigma2, sets)
        np.testing.assert_array_equal(state.g, g)
        np.testing.assert_allclose(state.mu, mu, rtol=1e-9, atol=1e-9)
        assert state.sigma2 == pytest.approx(sigma2, rel=1e-9)
        assert (info.cost, info.rows) == (pytest.approx(F, rel=1e-9), len(y))
        # Posteriors of the first K_n are of distances that are computed again.
        assert info.extra["evaluations"] == met + (0 if t else 4 * len(y))
    assert np.diff([info.cost for _, info in found]).min() >= 0
    assert ("evaluations_start" in found[0][1].extra) > ("evaluations_start" in info.extra)


def test_draws_and_chains_are_those_asked_for():
    x, _ = table("plain")
    rows = open_rows(x)
    algorithm = VCGMM.paper(coreset=100, chain=3, independent=False)
    first, _ = steps(rows, algorithm, "auto", 0)
    with LocalPasses(rows) as passes:
        drawn = draw_coreset(passes, Rng(SEED), 100)
        held = passes.subset(drawn.rows, drawn.factors, own_weights=True)
        mu, _ = afk_mc2_start(held, Rng(SEED), K, 3)
    np.testing.assert_array_equal(first.coreset.rows, drawn.rows)
    np.testing.assert_array_equal(first.mu, mu)


@pytest.mark.parametrize("kind", ["plain", "weighted"])
@pytest.mark.parametrize("coreset", [None, "auto"])
@pytest.mark.parametrize("in_place", [False, True])
def test_no_bit_depends_on_places_or_losses(kind, coreset, in_place, monkeypatch):
    """Coresets held or on workers, K_n kept or made again, from the start or a checkpoint."""
    x, weight = table(kind)
    algorithm = VCGMM.paper(coreset=coreset, explore=1)
    rows = rows_of(x, SIZES, weight)
    _, expected = steps(rows, algorithm, x[:K], 7)
    # K_n of few rows take less room than models, of others that is never so.
    kept = [len(state.history) for state, _ in expected]
    assert (max(kept) < 7) == (coreset == "auto")
    if in_place:
        monkeypatch.setattr(rows_in_place, "HELD_VALUES", 0)
    for fresh in (False, True):
        _, found = steps(rows, algorithm, x[:K], 7, fresh=fresh)
        for (a, i), (b, j) in zip(found, expected, strict=True):
            assert a.mu.tobytes() == b.mu.tobytes()
            assert (a.sigma2, a.F, i.cost) == (b.sigma2, b.F, j.cost)
            np.testing.assert_array_equal(a.g, b.g)


@pytest.mark.parametrize("coreset", [None, "auto"])
def test_workers_share_e_steps_and_m_steps(url, coreset, worker_clients, monkeypatch):
    """The same bits as here; rows stay where they are, and each worker reads its own."""
    asked = {
        "algorithm": VCGMM.paper(candidates=3, coreset=coreset), "random_state": 1, "max_iter": 6
    }  # fmt: skip
    alone = lk.KMeans(30, **asked).fit(url)
    monkeypatch.setattr(rows_in_place, "HELD_VALUES", 0)
    monkeypatch.setattr(BasePasses, "subset", None)
    read: list[dict[str, int]] = []

    def note(snapshot):
        read.append({name: report.rows for name, report in seen[0].by_worker.items()})

    with watched_passes() as seen:
        found = lk.KMeans(30, client=worker_clients(2), callbacks=[note], **asked).fit(url)
    assert bits(found) == bits(alone)
    assert computing_workers(seen[0]) == len(read[0]) == 2
    for name in read[0]:
        assert set(np.diff([counts[name] for counts in read]).tolist()) == {3_000}


def test_goes_on_from_a_checkpoint(url, tmp_path):
    asked = {"algorithm": VCGMM.paper(candidates=3), "random_state": 1}
    whole = lk.KMeans(30, **asked).fit(url)
    assert whole.stop_reason_ == "converged"
    folder = str(tmp_path / "job")
    lk.KMeans(30, max_iter=4, checkpoint=folder, **asked).fit(url)
    assert bits(lk.KMeans(30, checkpoint=folder, **asked).fit(url)) == bits(whole)
    F = [step["extra"]["lower_bound"] for step in whole.history_]
    assert abs(F[-1] - F[-2]) < 1e-4 * abs(F[-1])
    assert abs(F[-2] - F[-3]) >= 1e-4 * abs(F[-2])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"candidates": 33}, "candidates must be an integer of 1 to 32, got 33"),
        ({"neighbours": 0}, "neighbours must be an integer of at least 1, got 0"),
        ({"coreset": "all"}, "coreset must be an integer of at least 1, got 'all'"),
        ({"chain": 0}, "chain must be an integer of at least 1, got 0"),
        ({"initial_e_steps": -1}, "initial_e_steps must be an integer of at least 0, got -1"),
    ],
)
def test_wrong_parameters_are_refused(given, message):
    with pytest.raises(ParameterError, match=message):
        VCGMM.paper(**given)


def test_sparse_rows_and_other_covariances_are_refused():
    with pytest.raises(ParameterError, match="requires dense rows"):
        lk.KMeans(2, algorithm=VCGMM.paper()).fit(scipy.sparse.eye_array(5, format="csr"))
    with pytest.raises(ParameterError, match="for a mixture"):
        lk.algorithms.names.algorithm_of_mixture(VCGMM.paper(), "diag")


def test_rows_of_one_value_come_to_an_end():
    km = lk.KMeans(3, algorithm=VCGMM.paper(coreset=None), random_state=0)
    with pytest.warns(DegenerateDataWarning, match="empty"):
        km.fit(np.ones((50, 2)))
    assert km.inertia_ == 0
