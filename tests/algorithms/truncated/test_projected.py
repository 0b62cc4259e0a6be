"""Search in few directions first: stages, costs, and rebuilt row state."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.base import ProjectedRows, Rng, RowSample
from largek_dask.algorithms.parts.directions import (
    LeftOut,
    left_out,
    lost_nearness,
    principal_directions,
    with_random_directions,
)
from largek_dask.algorithms.truncated import projected
from largek_dask.algorithms.truncated.projected import ProjectedSearch
from largek_dask.data.sources import open_rows
from largek_dask.errors import ParameterError
from largek_dask.kernels.projection import Directions, project
from largek_dask.passes import gather
from largek_dask.passes.local import LocalPasses
from tests.algorithms.conftest import bits

N, D, K = 3_000, 40, 60
RANK = 8
FEW = 5
"""Directions to begin with; twice as many hold all that there is but noise."""


def planted(n=N, d=D, dtype="f4", noise=0.2, seed=0):
    """Overlapping clusters in a few directions, and a little noise in all others."""
    r = np.random.default_rng(seed)
    inside = 3.0 * r.normal(size=(40, RANK))[r.integers(40, size=n)] + r.normal(size=(n, RANK))
    basis = np.linalg.qr(r.normal(size=(d, RANK)))[0].T
    x = 20 * (inside @ basis + noise * r.normal(size=(n, d)))
    return x.astype(dtype)


def fit(data, k=K, *, directions=FEW, weight=None, **options):
    algorithm = lk.Truncated(directions=directions)
    given = {"algorithm": algorithm, "random_state": 3, "max_iter": 1000}
    return lk.KMeans(k, **(given | options)).fit(data, sample_weight=weight)


def widths(km):
    """Directions of each step, one after the other; 0: all features."""
    d = km.cluster_centers_.shape[1]
    seen = [int(h["extra"]["features"]) % d for h in km.history_]
    return [a for a, b in pairwise([*seen, None]) if a != b]


@pytest.fixture(scope="module")
def x():
    return planted()


@pytest.fixture(scope="module")
def clean(x):
    return fit(x, n_threads=1)


# --- directions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "weighted"), [("f4", True), ("f8", False), ("i2", True)])
def test_directions_are_the_principal_ones(dtype, weighted):
    x = planted(dtype=dtype)
    weight = np.random.default_rng(1).integers(1, 5, N).astype(float) if weighted else None
    origin = np.average(x, axis=0, weights=weight).astype("f8" if dtype == "f8" else "f4")
    found = principal_directions(x, weight, origin, Rng(0), RANK)
    away = x - origin.astype("f8")
    scatter = np.cov(away.T, aweights=weight, ddof=0)
    values = np.linalg.eigvalsh(scatter)[::-1]
    least = values[RANK:].sum() / values.sum()
    assert 0 < least < 0.5
    assert left_out(x, weight, found).share == pytest.approx(least, rel=0.02)
    own = np.eye(RANK)
    assert np.abs(found.vectors @ found.vectors.T - own).max() < 1e-5


def test_left_out():
    x = planted()
    origin = x.mean(axis=0)
    whole = Directions.of(np.eye(D, dtype="f4"), origin)
    assert left_out(x, None, whole).share < 1e-6
    weight = np.random.default_rng(1).random(N)
    half = Directions.of(np.eye(D, dtype="f4")[: D // 2], origin)
    away = weight[:, None] * (x - origin).astype("f8") ** 2
    outside, found = away[:, D // 2 :].sum(), left_out(x, weight, half)
    assert found.share == pytest.approx(outside / away.sum())
    assert found.of_a_row == pytest.approx(outside / weight.sum())
    plain = ((x - origin).astype("f8")[:, D // 2 :] ** 2).sum(axis=1)
    assert left_out(x, None, half).of_a_row == pytest.approx(plain.mean())
    assert left_out(np.tile(origin, (5, 1)), None, half) == LeftOut(0.0, 0.0)


def test_fewer_directions_than_asked_for():
    x = np.outer(np.arange(50.0), np.ones(6)).astype("f4")
    assert principal_directions(x, None, x.mean(axis=0), Rng(0), 1) is not None
    assert principal_directions(x, None, x.mean(axis=0), Rng(0), 2) is None


def test_random_directions_keep_lengths():
    x = np.random.default_rng(0).normal(size=(400, D)).astype("f4")
    origin = np.zeros(D, "f4")
    known = Directions.of(np.eye(FEW, D, dtype="f4"), origin)
    found = with_random_directions(known, FEW + 10, Rng(0))
    scaled = np.diag([1.0] * FEW + [(D - FEW) / 10] * 10)
    assert np.abs(found.vectors @ found.vectors.T - scaled).max() < 1e-5
    assert (found.vectors[:FEW] == known.vectors).all()
    ratio = (project(x, found) ** 2).sum() / (x**2).sum()
    assert ratio == pytest.approx(1, abs=0.1)
    assert with_random_directions(known, D, Rng(0)) is not None
    assert with_random_directions(known, D + 1, Rng(0)) is None


def test_lost_nearness():
    """Rows are near each other in eight features; all others are noise."""
    r = np.random.default_rng(0)
    groups = 10 * r.normal(size=(50, 8))
    x = np.hstack([groups[r.integers(50, size=900)], r.normal(size=(900, 8))]).astype("f4")
    axes, origin = np.eye(16, dtype="f4"), np.zeros(16, "f4")
    rows, others = x[:300], x[300:]

    def lost(which):
        return lost_nearness(rows, others, Directions.of(axes[which], origin), 2)

    assert lost(slice(None)) == 0
    assert 0 < lost(slice(8)) < 0.05
    assert lost(slice(8, 16)) > 0.9
    same = np.ones((20, 3), "f4")
    assert lost_nearness(same, same, Directions.of(np.eye(2, 3, dtype="f4"), same[0]), 1) == 1


# --- rows as they are seen ------------------------------------------------------------------------


@pytest.mark.parametrize(("n_threads", "chunk_rows"), [(1, None), (3, 37)])
def test_projected_rows(tmp_path, n_threads, chunk_rows, monkeypatch):
    looked = []

    def seen_in(x, directions):
        looked.append(len(directions.vectors))
        return project(x, directions)

    x = planted(200)
    x[7] = np.nan
    weight = np.arange(200) % 4 / 2.0
    directions = Directions.of(np.eye(3, D, dtype="f4"), x[0])
    data = x
    if chunk_rows is not None:
        data = str(tmp_path / "rows.zarr")
        lk.ingest(x, data, chunk_rows=chunk_rows, progress=False)
    rows = open_rows(data, sample_weight=weight)
    with LocalPasses(rows, n_threads=n_threads, on_bad_rows="skip") as passes:
        view = passes.subset(ProjectedRows(directions))
        there = np.flatnonzero((weight > 0) & np.isfinite(x[:, 0]))
        seen, own, numbers = view.take()
        assert len(there) < 150
        assert (numbers == there).all()
        assert (own == weight[there]).all()
        assert seen.tobytes() == project(x[there], directions).tobytes()
        assert view.n_features == 3
        assert view.statistics.total_weight == weight[there].sum()
        mean = np.average(seen, axis=0, weights=own)
        assert np.allclose(view.statistics.mean, mean, rtol=1e-6, atol=1e-6)
        assert passes.subset(ProjectedRows(Directions.of(np.eye(3, D, dtype="f4"), x[0]))) is view
        # What is known of the first directions is not found again.
        monkeypatch.setattr(gather, "project", seen_in)
        five = Directions.of(np.eye(5, D, dtype="f4"), x[0])
        wider = passes.subset(ProjectedRows(five))
        assert set(looked) == {2}
        assert wider.take().x.tobytes() == project(x[there], five).tobytes()
        passes.subset(ProjectedRows(Directions.of(np.eye(4, D, dtype="f4"), x[0])))
        assert set(looked) == {2, 4}


@pytest.mark.parametrize("chunk_rows", [None, 37])
def test_projected_rows_of_a_sample(tmp_path, chunk_rows):
    x = planted(200)
    x[7] = np.nan
    weight = np.arange(200) % 4 / 2.0
    three = Directions.of(np.eye(3, D, dtype="f4"), x[0])
    data = x
    if chunk_rows is not None:
        data = str(tmp_path / "rows.zarr")
        lk.ingest(x, data, chunk_rows=chunk_rows, progress=False)
    with LocalPasses(open_rows(data, sample_weight=weight), on_bad_rows="skip") as passes:
        sample = RowSample(Rng(0), "some", 60)
        view = passes.subset(ProjectedRows(three, sample))
        seen, own, numbers = view.take()
        assert 40 < len(numbers) < 80
        assert (np.diff(numbers) > 0).all()
        assert (weight[numbers] > 0).all()
        assert 7 not in numbers
        assert (own == weight[numbers]).all()
        assert seen.tobytes() == project(x[numbers], three).tobytes()
        assert view.statistics.total_weight == own.sum()
        assert passes.subset(ProjectedRows(three, sample)) is view
        # What is known of other rows is of no use.
        four = Directions.of(np.eye(4, D, dtype="f4"), x[0])
        fewer = passes.subset(ProjectedRows(four, RowSample(Rng(0), "some", 30)))
        seen, _, numbers = fewer.take()
        assert 15 < len(numbers) < 45
        assert seen.tobytes() == project(x[numbers], four).tobytes()
        assert len(passes.subset(ProjectedRows(four)).take().rows) > 140


# --- the way --------------------------------------------------------------------------------------


def test_the_search_ends_in_all_features(x, clean):
    assert widths(clean) == [FEW, 2 * FEW, 0]
    assert clean.history_[-1]["converged"]
    brute = ((x[:, None].astype("f8") - clean.cluster_centers_[None]) ** 2).sum(axis=2)
    assert (brute[np.arange(N), clean.labels_] <= brute.min(axis=1) * (1 + 1e-6)).all()
    assert clean.inertia_ == pytest.approx(brute.min(axis=1).sum(), rel=1e-6)
    assert clean.inertia_ < 1.02 * fit(x, directions=0).inertia_


def test_searches_that_begin_in_all_features(x):
    for more in (
        {"init": "k-means++"},
        {"directions": D},
        {"directions": D + 1},
        {"directions": 0},
    ):
        assert widths(fit(x, **more)) == [0]


def test_wrong_directions():
    for wrong in (-1, 1.5, True, "few"):
        with pytest.raises(ParameterError, match="directions must be an integer"):
            lk.Truncated(directions=wrong)


def test_directions_that_do_not_separate_rows_are_left():
    """Most of what rows cost lies outside: it goes on in all features after the first look."""
    r = np.random.default_rng(0)
    wide = 1000 * r.integers(2, size=(N, 3))
    groups = r.normal(size=(K, D - 3))[r.integers(K, size=N)] + 0.1 * r.normal(size=(N, D - 3))
    x = np.hstack([wide, 40 * groups]).astype("f4")
    km = fit(x)
    assert widths(km) == [FEW, 0]
    few = [h["extra"] for h in km.history_ if h["extra"]["features"] == FEW]
    assert not any(step["ends_round"] for step in few if step["everywhere"])
    assert km.inertia_ < 1.01 * fit(x, directions=0).inertia_


def test_auto_directions(monkeypatch):
    monkeypatch.setattr(projected, "LEAST_VALUES", 1)
    rich = planted(d=200)
    assert widths(fit(rich, directions="auto"))[0] == 32
    assert widths(fit(planted(d=127), directions="auto")) == [0]
    flat = np.random.default_rng(0).normal(size=(N, 200)).astype("f4")
    assert widths(fit(flat, directions="auto", max_iter=5)) == [0]
    monkeypatch.undo()
    assert widths(fit(rich, directions="auto", max_iter=5)) == [0]


def words(n=N, d=800, topics=1_000):
    """Counts of words, of which every topic has its own; no few directions hold the variance."""
    r = np.random.default_rng(0)
    own = r.integers(d, size=(topics, 8))
    x = np.zeros((n, d), "f4")
    for row, of in zip(x, own[r.integers(topics, size=n)], strict=True):
        row[r.choice(of, 6)] += 1
        row[r.integers(d)] += 1
    return x


def fit_words(data, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(projected, "LEAST_VALUES", 1)
        return fit(data, directions="auto", **options)


@pytest.fixture(scope="module")
def by_words():
    return fit_words(words(), n_threads=1)


def test_random_directions(by_words):
    x, m = words(), 800 // 6
    origin = x.mean(axis=0)
    principal = principal_directions(x, None, origin, Rng(0), 32)
    mixed = with_random_directions(principal, m, Rng(0))
    lost, lost_mixed = (lost_nearness(x[:500], x[500:], one) for one in (principal, mixed))
    assert lost_mixed < 0.5 * lost
    assert widths(by_words) == [m, 0]
    costs = [step["cost"] for step in by_words.history_]
    first = firsts(by_words)[0]
    # The cost in these directions is about the cost in all features.
    assert costs[first] == pytest.approx(costs[first - 1], rel=0.1)
    brute = ((x[:, None] - by_words.cluster_centers_[None]) ** 2).sum(axis=2).min(axis=1).sum()
    assert by_words.inertia_ == pytest.approx(brute, rel=1e-5)
    assert by_words.inertia_ < 1.02 * fit(x, directions=0).inertia_


def test_random_directions_with_threads_and_chunks(by_words, tmp_path):
    x, url = words(), str(tmp_path / "rows.zarr")
    lk.ingest(x, url, chunk_rows=250, progress=False)
    assert bits(fit_words(x, n_threads=3)) == bits(by_words)
    assert bits(fit_words(url, memory_limit=1)) == bits(by_words)


def test_random_directions_on_workers(by_words, cluster2, tmp_path):
    url = str(tmp_path / "rows.zarr")
    lk.ingest(words(), url, chunk_rows=250, progress=False)
    assert bits(fit_words(url, client=cluster2)) == bits(by_words)


@pytest.mark.parametrize("n", [80, 999, 1_500])
def test_random_directions_of_few_rows(n):
    """With fewer than 1,000 rows, a sample does not show which directions are good."""
    x = words(n)
    km = fit_words(x, k=20)
    assert widths(km) == ([0] if n < 1_000 else [133, 0])
    assert km.inertia_ < 1.05 * fit(x, 20, directions=0).inertia_


@pytest.mark.parametrize("last", [1, 4, 12])
def test_stopped_and_resumed_in_random_directions(by_words, tmp_path, last):
    x, folder = words(), str(tmp_path / "checkpoints")
    part = fit_words(x, max_iter=last, checkpoint=folder)
    assert widths(part) == [800 // 6]
    # The centres of the first models lie in the span of the directions.
    brute = ((x[:, None] - part.cluster_centers_[None]) ** 2).sum(axis=2).min(axis=1).sum()
    assert part.inertia_ == pytest.approx(brute, rel=1e-5)
    assert part.inertia_ < ((x - x.mean(axis=0)) ** 2).sum()
    assert part.history_[-1]["cost"] == pytest.approx(part.inertia_, rel=0.2)
    assert bits(fit_words(x, checkpoint=folder)) == bits(by_words)


def test_cost_at_the_beginning_of_a_round(x, monkeypatch):
    """Before it, costs are those in the directions and what lies outside as of the last round."""
    seen = []
    real = ProjectedSearch._with_means

    def spied(self, passes, view, state):
        after = real(self, passes, view, state)
        seen.append((after.step, after.centers, after.cost))
        return after

    monkeypatch.setattr(ProjectedSearch, "_with_means", spied)
    km = fit(x)
    assert len(seen) > 5
    costs = {h["step"]: h["cost"] for h in km.history_}
    wide = {h["step"] for h in km.history_ if h["extra"]["features"] == 2 * FEW}
    assert {step for step, *_ in seen} & wide
    for step, centers, cost in seen:
        nearest = ((x[:, None].astype("f8") - centers[None]) ** 2).sum(axis=2).min(axis=1).sum()
        # labelled by distances in few directions
        assert nearest <= cost * (1 + 1e-6)
        assert cost < (1.1 if step in wide else 1.6) * nearest
        assert costs[step] == pytest.approx(cost, rel=1e-9)


def test_stopped_among_projected_rows(x):
    """The model is one of all features, with exact labels."""
    for steps in (1, 3, 20):
        km = fit(x, max_iter=steps)
        assert widths(km) in ([FEW], [FEW, 2 * FEW])
        assert km.cluster_centers_.shape == (K, D)
        brute = ((x[:, None].astype("f8") - km.cluster_centers_[None]) ** 2).sum(axis=2)
        assert km.inertia_ == pytest.approx(brute.min(axis=1).sum(), rel=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_stopped_before_the_first_round_over_all_rows(x, weighted):
    """The model is that of the search so far, with centres in the directions."""
    weight = np.random.default_rng(2).integers(1, 5, N) if weighted else None
    by_steps = [fit(x, max_iter=steps, weight=weight) for steps in (1, 2, 3)]
    for km in by_steps:
        for step in km.history_:
            assert (step["extra"]["everywhere"], step["extra"]["features"]) == (0, FEW)
        centers = km.cluster_centers_ - km.cluster_centers_.mean(axis=0)
        assert np.linalg.matrix_rank(centers, tol=1e-4 * np.abs(centers).max()) == FEW
        assert 0.85 < km.inertia_ / km.history_[-1]["cost"] < 1.05
        assert km.model_.counts.sum() == (N if weight is None else weight.sum())
    costs = [km.inertia_ for km in by_steps]
    # The last of these steps ends the search on the sample, and the next one labels all rows.
    assert costs[0] > costs[1] >= costs[2]
    after = fit(x, max_iter=4, weight=weight)
    assert after.history_[-1]["extra"]["everywhere"] == 1
    assert after.inertia_ < costs[2]


# --- the first model ------------------------------------------------------------------------------

MANY = 14_000
"""Rows of which the first sample is a small part."""


@pytest.fixture(scope="module")
def many():
    return planted(MANY)


def first_steps(data, n=4, **options):
    """Steps before and after all rows are projected."""
    return fit(data, max_iter=n, **options)


@pytest.fixture(scope="module")
def begun(many):
    return first_steps(many, n_threads=1)


def test_each_row_is_projected_once(many, monkeypatch):
    looked = []

    def watched(x, directions, *n_threads):
        looked.append(len(x))
        return project(x, directions, *n_threads)

    monkeypatch.setattr(gather, "project", watched)
    km = fit(many, max_iter=1)
    assert km.history_[0]["rows"] <= MANY / 3
    assert sum(looked) == MANY
    assert km.model_.counts.sum() == MANY


@pytest.mark.parametrize("at", [1, 3])
def test_resumed_among_first_models(many, begun, tmp_path, at):
    folder = str(tmp_path / "checkpoints")
    assert first_steps(many, at, checkpoint=folder).n_iter_ == at
    assert bits(first_steps(many, checkpoint=folder)) == bits(begun)


def test_first_models_of_weighted_rows(many):
    """Rows of weight 0 are not among them, and costs are those of all weights."""
    weight = np.random.default_rng(0).integers(0, 3, MANY).astype(float)
    dirty = many.copy()
    dirty[weight == 0] = np.nan
    for steps in (1, 2, 4):
        km = first_steps(dirty, steps, weight=weight)
        assert km.model_.counts.sum() == weight.sum()
        assert km.inertia_ == pytest.approx(km.history_[-1]["cost"], rel=0.2)


# --- what is lost ---------------------------------------------------------------------------------


def test_lost_labels_are_counted_again(x, clean, tmp_path):
    """Rows that have kept their cluster are left out of the means of a round, if it is known."""
    url = str(tmp_path / "rows.zarr")
    lk.ingest(x, url, chunk_rows=250, progress=False)
    lost, reduce = [], LocalPasses.reduce

    def watched(self, chunk_fn, *args, **options):
        total = reduce(self, chunk_fn, *args, **options)
        if chunk_fn is projected.count_chunk and options["state"] is not None:
            lost.append(self.last.rebuilt)
        return total

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalPasses, "reduce", watched)
        assert bits(fit(url)) == bits(clean)
        assert len(lost) > 5
        assert not any(lost)
        lost.clear()
        assert bits(fit(url, memory_limit=1)) == bits(clean)
        assert all(lost[1:])


@pytest.mark.parametrize("dtype", ["f8", "u1"])
def test_other_dtypes(dtype):
    x = planted(dtype="f8")
    x = (x - x.min()) / (x.max() - x.min()) * 250
    km = fit(x.astype(dtype))
    assert widths(km) == [FEW, 2 * FEW, 0]
    assert km.inertia_ < 1.03 * fit(x.astype(dtype), directions=0).inertia_


@pytest.mark.parametrize("k", [1, 33, N])
def test_any_number_of_clusters(x, k):
    km = fit(x, k, max_iter=60)
    assert np.isfinite(km.inertia_)
    assert km.cluster_centers_.shape == (k, D)


# --- labels that are kept in more directions ------------------------------------------------------

LISTED = 140


def fit_with_lists(data, **options):
    """Rows only meet the centres near that of their label, so it matters which label they have."""
    return fit(data, LISTED, algorithm=lk.Truncated(neighbours=8, directions=FEW), **options)


@pytest.fixture(scope="module")
def listed(x):
    return fit_with_lists(x, n_threads=1)


def firsts(km):
    """Numbers of the first steps in more directions and in all features."""
    features = [h["extra"]["features"] for h in km.history_]
    return [i for i, (a, b) in enumerate(pairwise(features), 1) if a != b]


def test_rows_keep_their_labels_in_more_directions(x, listed):
    assert widths(listed) == [FEW, 2 * FEW, 0]
    for i in firsts(listed):
        before, step = listed.history_[i - 1], listed.history_[i]
        assert step["extra"]["neighbours"] < LISTED
        # Up to the distances, which few directions had left out.
        assert step["n_changed"] < 0.5 * N
        assert step["cost"] <= before["cost"]
    assert listed.inertia_ < 1.02 * fit(x, LISTED, directions=0).inertia_


def test_labels_are_kept_if_too_few_rows_fit_in_more_directions(x, monkeypatch):
    """A search of all rows does not continue on a sample, which would raise the cost."""
    monkeypatch.setattr(projected, "MOST_VALUES", 2 * FEW * N - 1)
    monkeypatch.setattr(projected, "LEAST_ROWS", 1)
    km = fit_with_lists(x)
    assert widths(km) == [FEW, 0]
    [first] = firsts(km)
    before, step = km.history_[first - 1], km.history_[first]
    assert step["cost"] <= before["cost"]
    assert step["n_changed"] < 0.5 * N


@pytest.mark.parametrize("weighted", [False, True])
def test_kept_labels_do_not_raise_the_cost(x, weighted):
    """In all features a row can only move to a nearer centre, whatever its weight."""
    weight = np.random.default_rng(2).integers(0, 4, N) if weighted else None
    km = fit_with_lists(x, weight=weight)
    costs = [step["cost"] for step in km.history_]
    first = firsts(km)[-1]
    assert km.history_[first]["extra"]["features"] == D
    assert costs[first] <= costs[first - 1]
    assert km.model_.counts.sum() == (N if weight is None else weight.sum())


def test_kept_labels_of_an_undone_round(x, monkeypatch):
    """Rows keep the labels from before the round, which has raised the cost."""
    monkeypatch.setattr(projected, "LEAST_GAIN", -np.inf)
    n_undone = 0
    for seed in range(4):
        history = fit_with_lists(x, random_state=seed).history_
        first = [h["extra"]["features"] for h in history].index(D)
        if history[first - 1]["extra"]["back"]:
            n_undone += 1
            begun = max(i for i in range(first) if history[i]["extra"]["opens_round"])
            assert history[first]["cost"] <= history[begun - 1]["cost"] < history[begun]["cost"]
    assert n_undone, "a round is undone in the last step in few directions"


@pytest.mark.parametrize("after", [-1, 0, 1, 2])
@pytest.mark.parametrize("which", [0, 1])
def test_kept_labels_after_a_resume(x, listed, tmp_path, which, after):
    folder, last = str(tmp_path / "checkpoints"), firsts(listed)[which] + after
    assert fit_with_lists(x, max_iter=last, checkpoint=folder).n_iter_ == last
    assert bits(fit_with_lists(x, checkpoint=folder)) == bits(listed)


def test_kept_labels_with_threads_chunks_and_lost_row_state(x, listed, tmp_path):
    url = str(tmp_path / "rows.zarr")
    lk.ingest(x, url, chunk_rows=250, progress=False)
    assert bits(fit_with_lists(x, n_threads=3)) == bits(listed)
    assert bits(fit_with_lists(url)) == bits(listed)
    assert bits(fit_with_lists(url, memory_limit=1)) == bits(listed)


def test_kept_labels_on_workers(x, listed, cluster2, tmp_path):
    url = str(tmp_path / "rows.zarr")
    lk.ingest(x, url, chunk_rows=250, progress=False)
    assert bits(fit_with_lists(url, client=cluster2)) == bits(listed)
