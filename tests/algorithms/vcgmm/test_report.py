"""What is told of a coreset in the end: whether what was learnt from it holds for other rows."""

from __future__ import annotations

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.starts.coresets import draw_coresets
from largek_dask.algorithms.vcgmm import algorithm as vcgmm
from largek_dask.algorithms.vcgmm.report import Met, words_of
from largek_dask.driver.fit import open_passes
from largek_dask.errors import DegenerateDataWarning
from tests.algorithms.conftest import blobs
from tests.helpers import mixtures
from tests.helpers.checks import fit_asked

K = 24


def fitted(x, n, *, kind="diag", events=(), client=None, **asked):
    """The fit of a mixture to a coreset."""
    algorithm = lk.VCGMM(coreset=n, candidates=asked.pop("candidates", 5))
    return fit_asked(
        lk.open_rows(x),
        n_clusters=K,
        mixture=kind,
        algorithm=algorithm,
        labels=False,
        events=events,
        client=client,
        **asked,
    )


@pytest.fixture(scope="module")
def x():
    return blobs(12_000, 6, K, seed=4, spread=1.5)


def drawn(rows, n, seed=0):
    """The coreset that a fit learns from, and the other one."""
    with open_passes(lk.open_rows(rows), n_threads=1) as passes:
        generators = [Rng(seed).generator(0, name) for name in ("coreset", "unseen")]
        return draw_coresets(passes, generators, n)


def log_likelihoods(x, model):
    """Of all rows, over all components."""
    joints = mixtures.log_joints(x, model.means, model.variances, model.log_weights)
    return mixtures.log_sums(joints)


@pytest.mark.parametrize(("n", "kind"), [(200, "iso"), (6_000, "diag")])
def test_as_by_the_oracle(x, n, kind):
    """With all components as candidates F is the log-likelihood."""
    result = fitted(x, n, kind=kind, candidates=K)
    found = log_likelihoods(x, result.arrays)
    coreset, unseen = drawn(x, n)
    seen = coreset.factors * coreset.missing
    others = ~np.isin(unseen.rows, coreset.rows)
    assert others.any()
    rows = unseen.rows[others]
    told = result.report
    assert told["coreset_rows"] == len(coreset.rows)
    assert told["unseen_rows"] == len(rows)
    expected = np.average(found[coreset.rows], weights=seen)
    assert told["coreset_F"] == pytest.approx(expected, rel=1e-5)
    expected = np.average(found[rows], weights=unseen.factors[others])
    assert told["unseen_F"] == pytest.approx(expected, rel=1e-5)


def test_a_small_coreset_overfits_and_a_large_one_does_not(x):
    small, large = (fitted(x, n, kind="iso") for n in (100, 6_000))
    assert "has overfitted" in small.report["words"]
    assert small.report["coreset_F"] > small.report["unseen_F"] + 1
    assert small.report["coreset_energy"] < small.report["unseen_energy"]
    assert "holds for all rows" in large.report["words"]
    everywhere = small.value / len(x)
    gap = small.report["coreset_F"] - everywhere
    assert small.report["unseen_F"] == pytest.approx(everywhere, abs=0.3 * gap)


def test_one_row_far_out_counts_on_neither_side(x):
    far = x.copy()
    far[7] = 1e3
    with pytest.warns(DegenerateDataWarning, match="of 24 components"):
        told = fitted(far, 2_000).report
    without = fitted(x, 2_000).report
    coreset, unseen = drawn(far, 2_000)
    assert 7 in coreset.rows
    assert 7 in unseen.rows
    for name in ("coreset_energy", "unseen_energy"):
        assert told[name] < 10 * without[name]


def test_with_very_many_components_rows_meet_a_list(x, monkeypatch):
    exact = fitted(x, 3_000).report
    monkeypatch.setattr(vcgmm, "NEAREST_COMPONENTS", 1)
    monkeypatch.setattr(vcgmm, "LIST", 8)
    kinds = []
    pass_over = vcgmm.report_of.__globals__["pass_over"]

    def watch(passes, history, pass_, *args, **options):
        kinds.append(pass_.kind)
        return pass_over(passes, history, pass_, *args, **options)

    monkeypatch.setitem(vcgmm.report_of.__globals__, "pass_over", watch)
    algorithm = lk.VCGMM(coreset=3_000, neighbours=8)
    found = fit_asked(
        lk.open_rows(x), n_clusters=K, mixture="diag", algorithm=algorithm, labels=False
    ).report
    assert kinds == ["nearest", "lists"] * 2
    for name in ("coreset_F", "unseen_F"):
        assert found[name] == pytest.approx(exact[name], rel=0.02)


def test_where_it_is_told(x):
    told = []
    result = fitted(x, 500, events=[told.append])
    [event] = [event for event in told if event["event"] == "report"]
    assert {name: event[name] for name in result.report} == result.report
    assert result.provenance["report"] == result.report
    assert told.index(event) > [event["event"] for event in told].index("stopped")


def test_nothing_is_told_without_a_coreset_or_where_somebody_waits(x):
    assert fitted(x, None).report == {}
    early = fitted(x, 500, max_iter=1)
    assert early.history[-1]["extra"]["iteration"] == 0, "no variances are known"
    assert early.report == {}
    steps = []
    ended = fitted(x, 500, callbacks=[lambda snapshot: snapshot.record["extra"]["iteration"] > 1])
    assert ended.stop_reason == "callback"
    assert ended.report
    told = {"callbacks": [lambda snapshot: steps.append(snapshot.record["extra"]["iteration"])]}
    cut = fitted(x, 500, cancelled=lambda: max(steps, default=0) > 1, **told)
    assert cut.stop_reason == "cancelled"
    assert cut.report == {}


def test_nothing_is_told_where_all_rows_were_drawn():
    x = blobs(200, 6, K, seed=1)
    everything = fitted(x, 40_000)
    assert everything.report == {}
    assert "report" not in everything.provenance


def test_the_same_on_workers(x, cluster2, tmp_path):
    out = str(tmp_path / "rows.zarr")
    lk.ingest(x, out, chunk_rows=1_000, progress=False)
    assert fitted(out, 500, client=cluster2).report == fitted(out, 500).report


def test_rows_that_lie_on_means_have_no_energy():
    words = words_of(Met(30, -1.0, 0.0), Met(20, -1.5, 0.25), 3, 2)
    assert "the energy 0, on 20 rows" in words
    assert "-1.5 and 0.25: it has overfitted" in words
