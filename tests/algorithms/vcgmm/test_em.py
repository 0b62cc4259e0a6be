"""vc-GMM is EM, F never falls, and candidates that are lost are found again."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

import largek_dask as lk
from largek_dask.algorithms.starts import afk_mc2
from largek_dask.algorithms.vcgmm import algorithm as vcgmm
from largek_dask.algorithms.vcgmm import passes as em_passes
from largek_dask.errors import DegenerateDataWarning, ParameterWarning
from tests.algorithms.conftest import blobs
from tests.helpers.checks import fit_asked
from tests.helpers.covering import in_turns
from tests.oracles import mixtures as oracles

FALL = {np.dtype("f4"): 2.0**-18, np.dtype("f8"): 1e-12}
"""How much F may fall in a step, as a share of its size."""


def mixture(x, k, kind="iso", *, weight=None, asked=None, **parameters):
    """The fit of a mixture."""
    rows = lk.open_rows(x, sample_weight=weight)
    options = {"tol": 1e-4, "labels": False} | (asked or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)
        return fit_asked(
            rows, n_clusters=k, mixture=kind, algorithm=lk.VCGMM(**parameters), **options
        )


def bounds_of(result):
    """F of each iteration of EM."""
    return [step["cost"] for step in result.history if step["extra"]["iteration"] > 0]


def start_of(x, k, kind, seed=0):
    """Means among the rows, weights, and variances, all unequal."""
    r = np.random.default_rng(seed)
    means = x[r.choice(len(x), k, replace=False)].astype(float)
    weights = r.dirichlet(np.full(k, 5.0))
    shape = (k, x.shape[1]) if kind == "diag" else k
    return means, weights, r.uniform(1.0, 4.0, shape)


# --- it is EM -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "weighted"), [("isoflex", False), ("diag", True)])
def test_with_all_components_it_is_scikit_learns(kind, weighted):
    n_steps = 50
    k, x = 7, blobs(600, 6, 7, seed=3, spread=2.0).astype(float)
    repeats = np.random.default_rng(0).integers(1, 4, len(x)) if weighted else None
    means, weights, variances = start_of(x, k, kind)
    reference = GaussianMixture(
        k, covariance_type="diag" if kind == "diag" else "spherical", tol=0, reg_covar=0,
        max_iter=n_steps, means_init=means, weights_init=weights, precisions_init=1 / variances,
    )  # fmt: skip
    everything = x if repeats is None else np.repeat(x, repeats, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference.fit(everything)
    asked = {"max_iter": n_steps, "tol": 0, "init": means}
    asked |= {"weights_init": weights, "precisions_init": 1 / variances}
    parameters = {"candidates": k, "neighbours": k, "reg_covar": 0, "moves": False}
    result = mixture(x, k, kind, weight=repeats, asked=asked, **parameters)
    found = result.arrays
    assert result.n_iter == n_steps or result.stop_reason == "converged"
    variances = found.variances if kind == "diag" else found.variances[:, 0]
    np.testing.assert_allclose(found.means, reference.means_, rtol=0, atol=1e-6)
    np.testing.assert_allclose(variances, reference.covariances_, rtol=1e-6)
    np.testing.assert_allclose(np.exp(found.log_weights), reference.weights_, atol=1e-6)
    expected = reference.score(everything) * len(everything)
    assert result.value == pytest.approx(expected, rel=1e-6)


def test_iso_is_the_oracles():
    n_steps, k, x = 50, 6, blobs(500, 6, 6, seed=5, spread=2.0).astype(float)
    means = x[:k]
    asked = {"max_iter": n_steps, "tol": 0, "init": means, "precisions_init": np.full(k, 0.5)}
    result = mixture(x, k, asked=asked, candidates=k, neighbours=k, reg_covar=0, moves=False)
    means, variance, bounds = oracles.iso_em(x, means, 2.0, n_steps)
    done = len(bounds_of(result))
    assert done == n_steps or result.stop_reason == "converged"
    np.testing.assert_allclose(result.arrays.means, means, atol=1e-6)
    assert result.arrays.variances[0, 0] == pytest.approx(variance, rel=1e-6)
    np.testing.assert_allclose(bounds_of(result), bounds[:done], rtol=1e-9)


def test_one_candidate_is_a_step_of_lloyds():
    k, x = 9, blobs(800, 6, 9, seed=8, spread=1.0)
    asked = {"max_iter": 1, "init": x[:k], "precisions_init": np.ones(k)}
    result = mixture(x, k, asked=asked, candidates=1, neighbours=k)
    lloyd = lk.KMeans(k, algorithm="lloyd", init=x[:k], max_iter=1, empty_clusters="keep").fit(x)
    np.testing.assert_array_equal(result.arrays.means, lloyd.cluster_centers_)


# --- F --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype", "seed"),
    [
        # Of more than 8 features, without weights, with whole ones and with real ones.
        *itertools.product(["iso", "isoflex", "diag"], ["f4"], [0, 4, 5]),
        ("diag", "f8", 5),
        *in_turns(["iso", "isoflex", "diag"], ["f8"], range(1, 4)),
    ],
)
def test_f_never_falls(kind, dtype, seed):
    r = np.random.default_rng(seed)
    k, d = int(r.integers(20, 90)), int(r.integers(1, 14))
    x = blobs(int(r.integers(4 * k, 2_500)), d, k, seed=seed, spread=r.uniform(0.3, 4))
    x = (x * 10.0 ** r.integers(-3, 4)).astype(dtype)
    weight = None
    if seed % 3:
        weight = r.integers(0, 4, len(x)) if seed % 3 == 1 else r.lognormal(0, 3, len(x))
    parameters = {
        "candidates": int(r.integers(1, 8)),
        "neighbours": int(r.integers(4, 20)),
        "explore": int(r.integers(0, 2)),
        "coreset": int(r.integers(2 * k, 4 * k)) if seed == 4 else None,
        # With moves: test_moves.py
        "moves": False,
    }
    init = ["auto", "random", "two-level"][seed % 3]
    asked = {"max_iter": 60, "tol": 1e-7, "init": init, "seed": seed}
    result = mixture(x, k, kind, weight=weight, asked=asked, **parameters)
    found = np.array(bounds_of(result))
    assert len(found) > 1
    fall = FALL[np.dtype(dtype)] * np.abs(found[1:])
    assert (np.diff(found) >= -fall).all(), np.diff(found)[np.diff(found) < -fall]
    # A lower bound, over few components.
    if parameters["coreset"] is None:
        assert result.value >= found[-1] - 1e-6 * abs(found[-1])


def test_the_unit_of_measurement_does_not_end_it_earlier():
    x = blobs(3_000, 6, 40, seed=1, spread=1.5)
    steps = [
        mixture(x * np.float32(2.0**e), 40, asked={"init": x[:40] * np.float32(2.0**e)}).n_iter
        for e in (-8, 0, 8)
    ]
    assert len(set(steps)) == 1
    assert steps[0] > 5


@pytest.mark.parametrize("kind", ["isoflex", "diag"])
def test_nothing_ends_it_while_variances_settle(kind):
    """A tolerance that any gain is below: the first iteration that may end it does."""
    x = blobs(2_000, 6, 30, seed=2)
    result = mixture(x, 30, kind, asked={"init": x[:30], "tol": 1e9})
    assert len(bounds_of(result)) == vcgmm.SHARED + vcgmm.SETTLING + 1
    shared = mixture(x, 30, kind, asked={"init": x[:30], "max_iter": 1 + vcgmm.SHARED})
    variances = shared.arrays.variances
    assert (variances == variances[0]).all()
    each_feature = {"isoflex": 1, "diag": 6}[kind]
    assert len(np.unique(variances)) == each_feature, "of a feature's own, one for all components"
    assert len(np.unique(shared.arrays.log_weights)) == 1
    assert len(np.unique(result.arrays.variances)) > 20


# --- what a pass keeps of rows --------------------------------------------------------------------


def watched(monkeypatch):
    """The kinds of the passes that are carried out, replays left out."""
    kinds, pass_over = [], vcgmm.pass_over

    def watch(passes, history, pass_, *args, **options):
        kinds.append(pass_.kind)
        return pass_over(passes, history, pass_, *args, **options)

    monkeypatch.setattr(vcgmm, "pass_over", watch)
    return kinds


WAYS = {
    "lists": {},
    "given": {"GIVEN_BYTES": 1 << 30},
    "full": {"GIVEN_BYTES": 0, "KEPT_BYTES": 12_000},
    "cells": {"NEAREST_COMPONENTS": 1, "FULL_EVERY": 1},
}


@pytest.mark.parametrize(("way", "kind"), in_turns(list(WAYS), ["iso", "diag"]))
def test_lost_candidates_are_found_again(way, kind, tmp_path, monkeypatch):
    """Whoever has no room for them repeats the passes, from any anchor, to the same bits.

    Of "lists" the anchor is the first pass, in which rows met the list of their nearest component.
    """
    k, x = 40, blobs(700 if way == "given" else 3_000, 8, 40, seed=6, spread=1.5)
    for name, value in WAYS[way].items():
        monkeypatch.setattr(vcgmm, name, value)
    kinds = watched(monkeypatch)
    asked = {"init": x[:k], "max_iter": 14, "tol": 0}
    # Of moves: test_moves.py
    parameters = {"neighbours": 8, "candidates": 3, "moves": False}
    out = str(tmp_path / "rows.zarr")
    lk.ingest(x, out, chunk_rows=512, progress=False)
    clean = mixture(out, k, kind, asked=asked, **parameters)
    assert kinds[0] == ("cells" if way == "cells" else "nearest")
    found_again = kinds[1:].count("all")
    assert (found_again > 1) == (way == "full"), kinds
    assert kinds.count("lists") > 8
    repeated, search = set(), em_passes._search_lists

    def watch(chunk, pass_, *others):
        if not pass_.counts:
            repeated.add(pass_.kind)
        return search(chunk, pass_, *others)

    monkeypatch.setattr(em_passes, "_search_lists", watch)
    tight = mixture(out, k, kind, asked={**asked, "memory_limit": 4_000}, **parameters)
    first = {"cells"} if way == "cells" else {"nearest"}
    assert repeated == first | {"lists"}
    for name in ("means", "variances", "log_weights"):
        assert np.array_equal(getattr(tight.arrays, name), getattr(clean.arrays, name))


@pytest.mark.parametrize("k", [0xFFFF, 0x10000])
def test_candidates_in_little_room(k):
    candidates = np.array([[0, k - 1, -1], [k - 2, 3, 5], [-1, -1, -1]], np.int32)
    kept = candidates.astype(em_passes.kept_dtype(k))
    assert kept.dtype == (np.uint16 if k <= 0xFFFF else np.int32)
    np.testing.assert_array_equal(em_passes.candidates_of(kept), candidates)


def test_drawn_components_are_no_members(monkeypatch):
    """Whatever is drawn for a row counts once, even if it is one of its candidates."""
    x = blobs(600, 6, 12, seed=1)
    seen = []
    search = em_passes.search_candidates

    def watch(x, order, starts, lists, packed, candidates, squares, **part):
        seen.append(candidates.copy())
        return search(x, order, starts, lists, packed, candidates, squares, **part)

    monkeypatch.setattr(em_passes, "search_candidates", watch)
    # alone: a row that another thread is writing to would be seen half done
    asked = {"init": x[:12], "n_threads": 1}
    mixture(x, 12, asked=asked, neighbours=4, candidates=3, explore=5)
    assert len(seen) > 3
    for members in seen:
        for row in members:
            known = row[row >= 0]
            assert len(set(known.tolist())) == len(known)
    assert (np.concatenate(seen)[:, 3:] >= 0).any()


def test_more_candidates_than_components_are_clipped():
    x = blobs(300, 6, 4, seed=1)
    with pytest.warns(ParameterWarning, match="candidates=9 is changed to 4 and neighbours=20"):
        wide = mixture(x, 4, asked={"init": x[:4]}, candidates=9, neighbours=20)
    fits = mixture(x, 4, asked={"init": x[:4]}, candidates=4, neighbours=4)
    assert np.array_equal(wide.arrays.means, fits.arrays.means)


def test_evaluations_are_counted_apart():
    """Of the coreset and the seeds in the first step, of lists where these are made."""
    x = blobs(3_000, 6, 40, seed=1, spread=1.5)
    result = mixture(x, 40, asked={"init": "afk-mc2"}, coreset=1_000, neighbours=8)
    told, n = [step["extra"] for step in result.history], result.history[0]["rows"]
    assert 0 < n < 1_000
    assert told[0]["evaluations_coreset"] == 3_000
    proposed = 39 * afk_mc2.CHAIN
    assert n + proposed < told[0]["evaluations_seeding"] <= n + proposed * 41
    assert {step["evaluations_lists"] for step in told} == {0, 40 * 40}
    assert told[0]["evaluations_lists"] > 0
    assert all(0 < step["evaluations"] <= 48 * n for step in told)
    assert not any("evaluations_seeding" in step for step in told[1:])
