"""Steps, the last pass and a model meet few of many centres; what comes out is as with all."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms import incremental, kmeans, lloyd, nmbatch
from largek_dask.algorithms.kmeans import CenterArrays, nearest_center
from largek_dask.algorithms.published import vrkm
from largek_dask.driver.final import label_rows, seconds_of_last_pass
from largek_dask.kernels.bounds import pruned
from largek_dask.passes.local import LocalPasses
from tests.helpers.covering import in_turns

KINDS = ["plain", "weighted", "integer", "away", "far rows", "twice", "not finite"]
WIDTHS = [(12, np.float32), (5, np.float64), (130, np.float32), (40, np.float64)]
"""Numbers of features and types of rows; boxes hold centres of at most 32 features."""


STEPS = {
    "lloyd": lk.Lloyd(),
    "nmbatch": lk.NMBatch(),
    "incremental": lk.IncrementalLloyd(rounds=3),
    "snapshot": lk.VRKM(),
}
SEARCHING = {"lloyd": lloyd, "nmbatch": nmbatch, "incremental": incremental, "snapshot": vrkm}
"""Modules that label rows in the steps of these."""


def counted_in(monkeypatch, module):
    """Pairs of rows and centres, and how many of them were distances computed, call by call."""
    calls = []

    def counted(x, packed):
        labels, n_evaluated = pruned.nearest_pruned(x, packed)
        calls.append((len(x) * packed.n_clusters, n_evaluated))
        return labels, n_evaluated

    monkeypatch.setattr(module, "nearest_pruned", counted)
    return calls


@pytest.fixture
def met(monkeypatch):
    """Of the last pass and of models."""
    return counted_in(monkeypatch, kmeans)


def few(monkeypatch, is_on):
    """Whether few centres are met, of whichever size the tables are."""
    monkeypatch.setattr(pruned, "FEWEST_CENTERS", 200)
    monkeypatch.setattr(pruned, "FEWEST_DIRECT", 200)
    monkeypatch.setattr(pruned, "LEAST_WORK", 0 if is_on else np.inf)
    monkeypatch.setattr(pruned, "LEAST_PASS", 0)
    monkeypatch.setattr(pruned, "_HISTORIES", {})
    monkeypatch.setattr(pruned, "WORTH", np.inf)


def share(calls):
    """The share of the distances that was computed; the calls are forgotten."""
    pairs, evaluated = np.array(calls).sum(axis=0)
    calls.clear()
    return evaluated / pairs


@pytest.mark.parametrize(("kind", "width"), in_turns(KINDS, WIDTHS))
def test_a_fit_ends_and_a_model_predicts_as_with_all_centres(monkeypatch, met, kind, width):
    d, dtype = width
    r = np.random.default_rng(7)
    k, n = 240, 3_000
    places = 100 * r.normal(size=(k, d))
    x = (places[r.integers(k, size=n)] + r.normal(size=(n, d))).astype(dtype)
    # every fourth one has two centres about as near as each other, so guesses are wrong
    x[::4] = (places[r.integers(k, size=n // 4)] + places[r.integers(k, size=n // 4)]) / 2
    init, weight, options = places.astype(dtype), None, {}
    if kind == "weighted":
        weight = r.integers(0, 4, n).astype(float)
    if kind == "integer":
        x = np.rint(x).astype(np.int16)
    if kind == "far rows":
        x[[3, 2_000]] = [[1e6], [-1e6]]
    if kind == "away":
        x = x + dtype(1e5)
        init = init + dtype(1e5)
    if kind == "twice":
        init[k // 2 :] = init[: k // 2]
        options["empty_clusters"] = "keep"
    if kind == "not finite":
        x[[5, 700], [0, 1]] = np.nan, np.inf
        options["on_bad_rows"] = "skip"
    found = []
    for is_on, n_threads, chunk_rows in ((False, 1, 1_000), (True, 1, n), (True, 3, 700)):
        few(monkeypatch, is_on)
        met.clear()
        model = lk.KMeans(
            k, init=init, algorithm=lk.Lloyd(), max_iter=2, n_threads=n_threads, **options
        ).fit(da.from_array(x, chunks=(chunk_rows, d)), sample_weight=weight)
        computed = share(met)
        finite = np.isfinite(np.asarray(x, float)).all(axis=1)
        rows = x[finite]
        if kind == "far rows":  # a centre is out there as well, but none as far as these
            rows = np.concatenate([rows, np.full((2, d), [[1e13], [-1e17]], dtype)])
        predicted, score = model.model_.predict(rows), model.model_.score(rows)
        assert (computed == 1) == (not is_on)
        if is_on:
            # (half of the rows have no centre near them where centres stand twice)
            most = 0.7 if kind != "twice" or d == 12 else 2
            assert computed < most
            assert share(met) < most
        counts = model.model_.counts
        found.append((model.labels_, predicted, counts, model.inertia_, score))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("name", "d"), in_turns(list(STEPS), [12, 5, 130, 40]))
def test_steps_are_those_with_all_centres(monkeypatch, name, d):
    r = np.random.default_rng(11)
    k, n = 240, 6_000
    places = 100 * r.normal(size=(k, d))
    x = (places[r.integers(k, size=n)] + r.normal(size=(n, d))).astype(np.float32)
    weight = r.integers(0, 4, n).astype(float) if d == 5 else None
    met = counted_in(monkeypatch, SEARCHING[name])
    found = []
    for is_on, n_threads in ((False, 1), (True, 1), (True, 3)):
        few(monkeypatch, is_on)
        model = lk.KMeans(
            k, init="random", algorithm=STEPS[name], max_iter=3, n_threads=n_threads,
            random_state=0,
        ).fit(da.from_array(x, chunks=(1_100, d)), sample_weight=weight)  # fmt: skip
        assert met
        computed = share(met)
        assert computed < 0.7 if is_on else computed == 1
        history = [{key: step[key] for key in step if key != "seconds"} for step in model.history_]
        found.append((model.labels_, model.cluster_centers_, model.inertia_, history))
    for other in found[1:]:
        for a, b in zip(found[0][:3], other[:3], strict=True):
            np.testing.assert_array_equal(a, b)
        assert found[0][3] == other[3]


def test_a_trial_does_as_the_whole_pass_will(monkeypatch, met):
    """2,048 rows are few; told how many there are, a trial takes the way that these will."""
    few(monkeypatch, True)
    r = np.random.default_rng(2)
    places = (100 * r.normal(size=(300, 12))).astype(np.float32)
    x = places[r.integers(300, size=5_000)] + r.normal(size=(5_000, 12)).astype(np.float32)
    monkeypatch.setattr(pruned, "LEAST_WORK", 5_000 * 300 * 12)
    arrays = CenterArrays(places, np.zeros(300), places.mean(axis=0))
    with LocalPasses(lk.open_rows(x)) as passes:
        assert seconds_of_last_pass(passes, nearest_center(arrays)) > 0
        assert share(met) < 0.7
        label_rows(passes, nearest_center(arrays))
        assert share(met) < 0.7
