"""Labels as an anchor: they replace the passes of many rounds, in a history of limited size."""

from __future__ import annotations

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.truncated import schedule, search
from largek_dask.algorithms.truncated.schedule import MOST_PASSES
from largek_dask.data.sources import open_rows
from largek_dask.passes.local import LocalPasses
from tests.algorithms.conftest import bits
from tests.algorithms.truncated.test_projected import D, N, planted

K = 140
MOST = 6
"""Passes after which an anchor is due before a round."""


def fit(data, weight=None, **options):
    given = {"algorithm": lk.Truncated(directions=0), "random_state": 3, "max_iter": 90}
    return lk.KMeans(K, **(given | options)).fit(data, sample_weight=weight)


@pytest.fixture(scope="module")
def x():
    return planted()


@pytest.fixture(autouse=True)
def short_history(monkeypatch):
    monkeypatch.setattr(schedule, "HISTORY_VALUES", MOST * K * D)


@pytest.fixture
def anchored(monkeypatch):
    """Numbers of rows whose labels have become an anchor."""
    found, real = [], search.given_labels

    def spied(centers, shift, labels, generation):
        found.append(len(labels))
        return real(centers, shift, labels, generation)

    monkeypatch.setattr(search, "given_labels", spied)
    return found


_clean = {}


@pytest.fixture
def clean(x):
    if not _clean:
        _clean[0] = fit(x, n_threads=1)
    return _clean[0]


def test_the_history_stays_short_and_the_cost_low(x, anchored, monkeypatch):
    algorithm = lk.Truncated(directions=0).bind(KMeansProblem(K, "auto"))
    rng, costs, shares = Rng(3), [], []
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        state = algorithm.init(passes, rng)
        while state.schedule.stage.name != "end":
            n_before = len(anchored)
            state, info = algorithm.step(passes, rng, state)
            assert len(state.history) <= MOST + MOST_PASSES + 2
            if len(anchored) > n_before:
                assert len(state.history) == 2
                # The labels after the last pass, and their distances, were known.
                assert info.cost <= costs[-1]
                shares.append(info.n_changed / N)
            costs.append(info.cost)
    assert len(anchored) > 3
    assert set(anchored) == {N}
    assert max(shares) < 0.2
    own = fit(x, max_iter=1000).inertia_
    monkeypatch.undo()
    assert own < 1.01 * fit(x, max_iter=1000).inertia_


def test_threads_chunks_and_lost_row_state(x, clean, anchored, tmp_path):
    url = str(tmp_path / "rows.zarr")
    lk.ingest(x, url, chunk_rows=250, progress=False)
    for data, options in ((x, {"n_threads": 3}), (url, {}), (url, {"memory_limit": 1})):
        anchored.clear()
        assert bits(fit(data, **options)) == bits(clean)
        assert len(anchored) > 2


def test_weighted_rows(x, anchored, tmp_path):
    """Rows of weight 0 have no label, in an anchor either."""
    weight = np.random.default_rng(2).integers(0, 4, N).astype(float)
    url = str(tmp_path / "rows.zarr")
    lk.ingest(x, url, chunk_rows=250, progress=False)
    km = fit(x, weight)
    assert len(anchored) > 2
    assert km.model_.counts.sum() == weight.sum()
    assert bits(fit(url, weight, n_threads=2, memory_limit=1)) == bits(km)


def test_on_workers(x, clean, anchored, cluster2, tmp_path):
    url = str(tmp_path / "rows.zarr")
    lk.ingest(x, url, chunk_rows=250, progress=False)
    assert bits(fit(url, client=cluster2)) == bits(clean)
    assert len(anchored) > 2


@pytest.mark.parametrize("after", [-1, 0, 1])
def test_resumed(x, clean, tmp_path, after, monkeypatch):
    seen, real = [], search.given_labels

    def spied(centers, shift, labels, generation):
        seen.append(generation)
        return real(centers, shift, labels, generation)

    monkeypatch.setattr(search, "given_labels", spied)
    steps = []
    fit(x, callbacks=[lambda s: steps.append(len(seen))])
    first = steps.index(1)
    folder = str(tmp_path / "checkpoints")
    assert fit(x, max_iter=first + 1 + after, checkpoint=folder).n_iter_ == first + 1 + after
    assert bits(fit(x, checkpoint=folder)) == bits(clean)
