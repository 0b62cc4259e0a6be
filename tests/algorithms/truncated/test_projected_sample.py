"""Search in few directions, if only a sample of the projected rows can be held."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.truncated import projected
from largek_dask.algorithms.truncated.projected import ProjectedSearch
from largek_dask.data.sources import open_rows
from largek_dask.passes.local import LocalPasses
from tests.algorithms.conftest import bits
from tests.algorithms.truncated.test_projected import FEW, D, fit, planted, widths
from tests.helpers.covering import in_turns

N = 12_000
DENSE, LISTS = 60, 140
"""Clusters: rows meet all centres of the first search, and lists of the other."""
HELD = {DENSE: 7_800, LISTS: 9_000}
"""Rows that are searched in ``FEW`` directions."""


@pytest.fixture(scope="module")
def x():
    return planted(N)


@pytest.fixture(params=[DENSE, LISTS])
def k(request, monkeypatch):
    monkeypatch.setattr(projected, "MOST_VALUES", HELD[request.param] * FEW)
    return request.param


_clean = {}


@pytest.fixture
def clean(x, k):
    if k not in _clean:
        _clean[k] = fit(x, k, n_threads=1)
    return _clean[k]


def brute(x, centers):
    return np.concatenate(
        [
            ((part[:, None].astype("f8") - centers[None]) ** 2).sum(axis=2).min(axis=1)
            for part in np.array_split(x, 20)
        ]
    )


def test_the_search_ends_on_all_rows(x, k, clean):
    assert widths(clean) == [FEW, 0], "not in more directions, on fewer rows"
    searched = {}
    for step in clean.history_:
        rows = searched.setdefault(int(step["extra"]["features"]), [0])
        rows.append(step["rows"])
        if step["extra"]["features"] < D:
            assert step["extra"]["everywhere"] == 0
    assert max(searched[FEW]) == HELD[k]
    assert max(searched[D]) == N
    assert clean.history_[-1]["converged"]
    assert clean.inertia_ == pytest.approx(brute(x, clean.cluster_centers_).sum(), rel=1e-6)
    assert clean.inertia_ < 1.01 * fit(x, k, directions=0).inertia_


@pytest.mark.parametrize("k", [DENSE], indirect=True)
def test_cost_at_the_beginning_of_a_round(x, k, monkeypatch):
    seen, real = [], ProjectedSearch._with_means

    def spied(self, passes, view, state):
        after = real(self, passes, view, state)
        seen.append((after.step, after.centers, after.counts, after.cost, after.n_rows))
        return after

    monkeypatch.setattr(ProjectedSearch, "_with_means", spied)
    km = fit(x, k)
    costs = {step["step"]: step["cost"] for step in km.history_}
    sampled = [each for each in seen if each[-1]]
    assert len(sampled) > 2
    for step, centers, counts, cost, n_rows in sampled:
        assert n_rows == HELD[k]
        assert counts.sum() == pytest.approx(N)
        assert costs[step] == pytest.approx(cost)
        # Labelled in few directions, and with means of these rows, which are nearer to them.
        assert 0.95 < cost / brute(x, centers).sum() < 1.6


def test_rounds_over_a_sample_end_when_all_rows_gain_more(x, k):
    algorithm = lk.Truncated(directions=FEW).bind(KMeansProblem(k, "auto"))
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        state = algorithm.init(passes, Rng(0))
    n, cost = 3_000, 1e6
    held = replace(state, n_rows=n, scale=N / n, cost_outside=0.4 * cost, variance_outside=0.1)
    unseen = cost * k * (1 / n - 1 / N)
    least = projected.LEAST_GAIN * (held.variance_outside * held.cost_outside + unseen)
    for gained, ends in ((0.99 * least, True), (1.01 * least, False)):
        before, after = replace(held, round_cost=cost + gained), replace(held, cost=cost)
        assert projected._is_done(before, after) == ends
        before, after = (replace(of, n_rows=0, scale=1.0) for of in (before, after))
        assert not projected._is_done(before, after)


def test_too_few_rows_per_cluster(x, monkeypatch):
    monkeypatch.setattr(projected, "MOST_VALUES", FEW * 64 * DENSE)
    assert widths(fit(x, DENSE, max_iter=2)) == [FEW]
    assert widths(fit(x, DENSE + 1, max_iter=2)) == [0]


@pytest.mark.parametrize("steps", [1, 25])
def test_stopped_among_projected_rows(x, k, steps):
    weight = np.random.default_rng(2).integers(0, 4, N).astype(float)
    km = fit(x, k, weight=weight, max_iter=steps)
    assert widths(km)[0] == FEW
    assert km.model_.counts.sum() == pytest.approx(weight.sum())
    cost = weight @ brute(x, km.cluster_centers_)
    assert km.inertia_ == pytest.approx(cost, rel=1e-6)
    # That is of rows as they are labelled in few directions.
    assert 0.9 < km.history_[-1]["cost"] / cost < 1.6


def test_threads(x, k, clean):
    assert bits(fit(x, k, n_threads=5)) == bits(clean)


@pytest.mark.parametrize("k", [DENSE], indirect=True)
def test_chunks(x, k, clean, tmp_path):
    url = str(tmp_path / "rows.zarr")
    lk.ingest(x, url, chunk_rows=97, progress=False)
    assert bits(fit(url, k)) == bits(clean)


@pytest.mark.parametrize("k", [LISTS], indirect=True)
def test_on_workers(x, k, clean, cluster2, tmp_path):
    url = str(tmp_path / "rows.zarr")
    lk.ingest(x, url, chunk_rows=1_000, progress=False)
    assert bits(fit(url, k, client=cluster2)) == bits(clean)


@pytest.mark.parametrize(
    ("at", "k"), in_turns(["first", "narrow", "all features"], [LISTS, DENSE]), indirect=["k"]
)
def test_resumed(x, k, clean, tmp_path, at):
    narrow = [int(h["extra"]["features"]) % D for h in clean.history_]
    whole = narrow.index(0)
    step = {"first": 2, "narrow": whole - 2, "all features": whole + 2}[at]

    def die(snapshot):
        if snapshot.record["step"] == step:
            raise OSError("gone")

    folder = str(tmp_path / "checkpoints")
    with pytest.raises(OSError, match="gone"):
        fit(x, k, checkpoint=folder, callbacks=[die])
    again = fit(x, k, checkpoint=folder)
    assert again.history_[0]["step"] == 1
    assert bits(again) == bits(clean)


def test_few_far_rows_that_a_sample_may_miss(monkeypatch):
    """All rows are searched, in all features: a sample had cost 10^4 times as much and more."""
    monkeypatch.setattr(projected, "MOST_VALUES", HELD[DENSE] * FEW)
    x = planted(N)
    assert widths(fit(x, DENSE, max_iter=1)) == [FEW]
    x[:20] *= 1e4
    km = fit(x, DENSE, max_iter=40)
    assert widths(km) == [0]
    assert km.inertia_ < 1.05 * fit(x, DENSE, directions=0, max_iter=40).inertia_
