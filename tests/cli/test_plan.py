"""``largek fit --plan`` beside what is counted in fits; seconds are of a clock that counts."""

from __future__ import annotations

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.cli import plan as plans
from largek_dask.cli.plan import Machines, make_plan
from largek_dask.data.synthetic import SyntheticRows
from largek_dask.driver.options import FitOptions
from largek_dask.kernels.evidence import FAR

TWO = Machines(1, 2, 1 << 34, True)


def mixed(n, d, k):
    """Rows of overlapping Gaussians."""
    rows = SyntheticRows("mixture", n, d, n_components=k, seed=3)
    return np.concatenate([rows.read(i) for i in range(rows.n_chunks)])[:n]


def plan_of(x, algorithm, k, **options):
    return make_plan(lk.open_rows(x), FitOptions(n_clusters=k, algorithm=algorithm, **options), TWO)


# --- the last pass --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["iso", "isoflex", "diag"])
def test_last_pass_of_a_mixture_is_tried(kind, monkeypatch):
    """It was planned as one of k-means, of which it takes several times as much."""
    from largek_dask.algorithms import mixture

    spent, find = [0.0], mixture.evidence

    def slow(x, packed):
        spent[0] += 1e-6 * len(x) * len(packed.means)
        return find(x, packed)

    monkeypatch.setattr("largek_dask.algorithms.mixture.evidence", slow)
    monkeypatch.setattr("time.perf_counter", lambda: spent[0])
    monkeypatch.setattr(plans, "flops", lambda *shape: 1e9)
    x, k = mixed(5_000, 4, 30), 20
    algorithm = lk.VCGMM(covariance=kind)
    plan = plan_of(x, algorithm, k, mixture=kind)
    assert plan.seconds_last == pytest.approx(1e-6 * 5_000 * k / 2)
    assert plan.seconds_compute == pytest.approx(2 * 5_000 * k * 4 / 2e9)
    # Of hard clusters it is that of k-means; and of more components than a trial has, as many.
    assert plan_of(x, algorithm, k).seconds_last == plan.seconds_compute
    monkeypatch.setattr(plans, "PROBE_CENTERS", 5)
    assert plan_of(x, algorithm, k, mixture=kind).seconds_last == pytest.approx(plan.seconds_last)


@pytest.mark.parametrize(("d", "k"), [(4, 40), (32, 100)])
def test_example_of_a_mixture_is_like_one_that_was_fitted(d, k):
    """Rows are near about as many components, which is what the last pass hangs on."""
    from largek_dask.algorithms.mixture import MixtureProblem

    x = mixed(12_000, d, k + k // 2)
    x, met = x[:10_000], x[10_000:]
    fitted = lk.Mixture(k, covariance="iso", max_iter=15, random_state=0).fit(x).model_.arrays
    shift = x.mean(axis=0)
    example = MixtureProblem(k, mixture="iso").example(x[:4_000], shift)

    def near(arrays):
        squares = ((met[:, None].astype(float) - arrays.means) ** 2).sum(axis=2)
        joints = -squares / (2 * arrays.variances[0, 0])
        return np.mean((joints > joints.max(axis=1, keepdims=True) - FAR).sum(axis=1))

    assert 0.4 * near(fitted) < near(example) < 1.6 * near(fitted)
    assert 2 < near(fitted) < k


@pytest.mark.parametrize("x", [np.zeros((50, 3), "f4"), np.full((50, 3), np.nan, "f4")])
def test_plan__of_rows_that_no_trial_can_be_made_on(x):
    plan = plan_of(x, lk.VCGMM(), 4, mixture="iso")
    assert plan.seconds_last > 0


# --- searches for all partitions ------------------------------------------------------------------


@pytest.mark.parametrize("effort", ["fast", "balanced"])
def test_search_for_all_partitions__labellings_are_as_many_as_planned(effort):
    x, k = mixed(12_000, 8, 40), 15
    algorithm = lk.DCDBundle(effort=effort)
    done = lk.KMeans(k, algorithm=algorithm, random_state=0).fit(x).history_[-1]["extra"]
    planned = plan_of(x, algorithm, k).searches
    assert planned / 3 < done["evaluations"] < 3 * planned


def test_search_for_all_partitions__takes_its_own_labellings(monkeypatch):
    """They were planned as those of the kernel of Lloyd's algorithm, a fifth of that."""
    spent = [0.0]
    from largek_dask.kernels import descent

    find = descent.label_rows

    def slow(rows, centers):
        spent[0] += 1e-5 * len(rows) * len(centers)
        return find(rows, centers)

    monkeypatch.setattr("largek_dask.kernels.descent.label_rows", slow)
    monkeypatch.setattr("time.perf_counter", lambda: spent[0])
    monkeypatch.setattr(plans, "flops", lambda *shape: 1e9)
    monkeypatch.setattr(plans, "read_rate", lambda rows: 1e12)
    n, d, k = 200_000, 32, 25
    x = np.broadcast_to(np.zeros(d, np.float32), (n, d))
    plan = plan_of(x, lk.DCDBundle(), k)
    assert plan.rows_step == 32_768
    assert plan.seconds_steps == pytest.approx(1e-5 * 32_768 * k * plan.searches)
    # All partitions meet all rows in a pass after it; before it rows are looked at and drawn.
    distances = k * (k + 1) / 2 + 30 * k
    one = n * (2 * d * distances / 2e9 + plans.ROW_SECONDS / 2)
    assert plan.seconds_after == pytest.approx(15 * one)
    beside = plan.seconds_before + plan.seconds_after + plan.seconds_last
    assert plan.seconds_most == pytest.approx(beside + plan.seconds_steps)
