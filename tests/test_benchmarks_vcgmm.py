"""What the benchmark of mixtures computes from what it measures; no test here depends on speed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from benchmarks import vcgmm_runs, vcgmm_scale, vcgmm_tables
from benchmarks.vcgmm_runs import Mix, Traced


def mixture(shape, k=7, d=3, seed=0):
    r = np.random.default_rng(seed)
    weights = r.dirichlet(np.ones(k))
    return Mix(
        (100 + r.normal(size=(k, d))).astype(np.float32), r.uniform(0.1, 2, shape), np.log(weights)
    )


@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (7, 3)])
def test_scores_are_those_of_scipy(shape):
    mix = mixture(shape)
    x = (100 + 2 * np.random.default_rng(1).normal(size=(50, 3))).astype(np.float32)
    variances = np.broadcast_to(mix.variances, (7, 3))
    joints = np.array(
        [
            weight + multivariate_normal(mean.astype(float), np.diag(variance)).logpdf(x)
            for mean, variance, weight in zip(mix.means, variances, mix.log_weights, strict=True)
        ]
    ).T
    squares = ((x[:, None].astype(float) - mix.means.astype(float)) ** 2).sum(axis=2)
    found = vcgmm_runs.scores(x, mix)
    assert found.log_likelihood == pytest.approx(logsumexp(joints, axis=1).mean(), rel=1e-7)
    assert found.energy == pytest.approx(squares.min(axis=1).mean(), rel=1e-6)
    np.testing.assert_array_equal(found.labels, joints.argmax(axis=1))


def test_a_retired_component_is_no_rows_nearest():
    mix = mixture((1, 1))
    logs = mix.log_weights.copy()
    logs[2] = -np.inf
    found = vcgmm_runs.scores(mix.means[2:3], mix._replace(log_weights=logs))
    squares = ((mix.means - mix.means[2]).astype(float) ** 2).sum(axis=1)
    assert found.energy == pytest.approx(np.sort(squares)[1], rel=1e-6)
    assert np.isfinite(found.log_likelihood)
    assert found.labels[0] != 2


@pytest.mark.parametrize("kind", ["isoflex", "diag"])
def test_planted_rows_are_around_their_components(kind):
    x, of = vcgmm_runs.planted(20_000, 3, 4, kind, 5)
    spreads = np.array([x[of == c].std(axis=0) for c in range(3)])
    ratio = (spreads.max(axis=1) / spreads.min(axis=1)).min()
    assert (ratio < 1.2) if kind == "isoflex" else (ratio > 1.2)
    again, _ = vcgmm_runs.planted(20_000, 3, 4, kind, 5)
    np.testing.assert_array_equal(x, again)


def test_a_run_is_told_by_its_start_and_its_iterations():
    said = [
        {"F": f, "iteration": i, "distances": 10.0, "init": 0.1}
        for f, i in ((-9.0, 0), (-8.0, 0), (-7.0, 1), (-6.5, 2))
    ]
    found = Traced([1.0, 2.0, 2.5, 3.0], [mixture((1, 1))] * 4, said)
    told = vcgmm_runs.told_of(found)
    assert (told["seconds"], told["seconds_of_start"], told["iterations"]) == (3.0, 2.0, 2)
    assert told["an_iteration"] == 0.5
    assert told["F_by_iteration"] == [-7.0, -6.5]
    assert (told["distances"], told["distances_of_em"]) == (40.0, 20.0)


def test_one_hot_parameters_are_those_of_the_nearest_rows(tmp_path):
    x = np.array([[0, 0], [0, 2], [10, 0], [12, 0]], np.float32)
    vcgmm_runs.save_one_hot(x, np.array([[0, 1], [11, 0]], np.float32), str(tmp_path / "a.npz"))
    known = np.load(tmp_path / "a.npz")
    np.testing.assert_array_equal(known["weights"], [0.5, 0.5])
    np.testing.assert_allclose(known["variances"], [[0, 1], [1, 0]], atol=1e-4)


def test_a_mixture_of_scikit_learn_notes_what_it_was_after_every_step(tmp_path):
    x, _ = vcgmm_runs.planted(3_000, 4, 3, "diag", 1)
    np.save(tmp_path / "x.npy", x)
    told = vcgmm_runs.run_scikit_learn(
        str(tmp_path / "x.npy"), 4, "diag", most=6, tol=0.0, curve=True
    )
    assert told["iterations"] == 6
    assert told["curve"]["log_likelihood"][-1] == pytest.approx(told["log_likelihood"])
    assert told["log_likelihood"] >= told["F"] - 1e-6
    assert all(np.diff(told["curve"]["seconds"]) >= 0)


def fit(seconds=1.0, energy=75.0, f=-102.8, **more):
    about = {"seconds_of_start": 0.5, "seconds_of_init": 0.1, "iterations": 3, "distances": 10.0}
    return about | {"seconds": seconds, "energy": energy, "F": f, "log_likelihood": f} | more


def result(**parts):
    return {"cpu": "a machine", "seeds": 1, **parts}


def test_what_misses_its_aim_is_bold():
    own = fit(1.0, 75.3, seconds_of_last_pass=0.4)
    found = {
        "all rows": [own],
        "coreset": [fit(1.0, 76.5, -100.0)],
        "others": {"unit": fit(20.0, 75.7), "authors, all rows": fit(9.0, 75.6)},
    }
    told = vcgmm_tables.sets_table(result(sets={"A": found})).splitlines()
    assert told[2] == (
        "| A, all rows | 1.00 (0.50) | 3 | 20.0 (≥ 15) | -102.800 (≥ -102.83) | -102.800 "
        "| **75.300** (≤ 75.25) | 9.00: 75.600 | 9.0 (≥ 8) |"
    )
    assert "| A, coreset | 1.00 (0.50) | 3 | **20.0** (≥ 25) | -100.000 |" in told[3]
    assert told[3].endswith("| 76.500 (≤ 77) | – | – |")
    assert "take 0.4 s on A more" in told[-1]


def test_the_slope_is_that_of_the_logarithms():
    records = [
        {
            "k": k,
            "two-level": [fit(an_iteration=0.01 * k**0.5, distances_of_em=10.0)],
            "k-means": fit(),
            "afk-mc2": fit(),
        }
        for k in (1_000, 4_000)
    ]
    assert vcgmm_tables.slope_of(records, "two-level") == pytest.approx(0.5)
    told = vcgmm_tables.sublinear_table(result(n=10, d=2, records=records))
    assert "Slope, both logarithmic: **0.50** (≤ 0.3)" in told
    assert "| 1,000 | 0.316 | 0.3 | 0.10: -102.800 | 0.50: -102.800 | 0.10: -102.800 | 1 |" in told
    assert "| **1** (≥ 50) |" in told


def test_coresets_and_prices_have_a_line_each():
    found = {"n": 9, "k": 3, "rows": 5, "coreset": [fit()], "uniform": [fit(2.0, 74.0)]}
    told = vcgmm_tables.coresets_table(result(sets={"A": found}))
    line = "| A: 9, 3 | 5 | 75 | **74** | **-102.8** | **-102.8** | -102.8 | -102.8 | 1.00 |"
    assert line in told
    own = fit(0.7, seconds_of_last_pass=0.1)
    record = {"name": "A", "k": 100, "auto": fit(3.0), "iso": own, "diag": own}
    told = vcgmm_tables.price_table(result(records=[record]))
    assert "| A, 100 | 3.00 | 0.50 + 0.20 (3) | **1.40** (≤ 1.3) | 0.10 |" in told


def test_the_papers_table_is_relative_to_its_first_line():
    turn = {
        "k-means++, Lloyd": fit(4.0, 100.0, distances=1e6),
        "vc-GMM 4, 5": fit(1.0, 110.0, distances=1e5, nmi=0.5),
    }
    told = vcgmm_tables.table4_table(result(sets={"a": {"n": 9, "d": 2, "k": 3, "turns": [turn]}}))
    line = "| vc-GMM 4, 5 | +10.00 ± 0.00 % | 4.0x | 10.0x | 3 | 10 % | 0.500 | -102.800 |"
    assert line in told


def test_planted_mixtures_have_a_line_a_kind_and_size():
    pair = {"ours": fit(an_iteration=0.02, median_iteration=0.01, peak_mb=100.0)}
    pair["ours, 5 candidates"] = fit(an_iteration=0.02, median_iteration=0.015, peak_mb=90.0)
    pair["scikit-learn"] = fit(an_iteration=0.3, peak_mb=2_900.0)
    planted = {"kind": "diag", "k": 500, "seed": 0, "floor": 1e-6}
    planted["ours"] = fit(1.0, ari=0.8, least_variance=0.1)
    planted["scikit-learn"] = fit(16.0, ari=0.81, least_variance=1e-6)
    told = vcgmm_tables.sklearn_table(result(an_iteration=pair, planted=[planted]))
    assert "| 0.010 s (mean 0.020), 100 MB | 0.300 s, 2,900 MB | 30.0 (≥ 25) |" in told
    assert "| 0.015 s (mean 0.020), 90 MB | 0.300 s, 2,900 MB | **20.0** (≥ 25) |" in told
    assert "| planted, diag, 500 | 1.00 s, 3 | 16.00 s, 3 | 16.0 (≥ 15) |" in told
    assert "| 0.800, 0.810 | 0, 1 |" in told


def curves():
    curve = {"seconds": [0.1, 1.0], "F": [-105.0, -103.0], "energy": [80.0, 75.0]}
    return curve | {"log_likelihood": [-105.0, -103.0]}


def test_pictures_of_mixtures_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    own = fit(curve=curves())
    others = {"unit": fit(20.0), "authors, coreset": fit()}
    found = {"all rows": [own], "coreset": [own], "others": others}
    vcgmm_tables.draw_sets(result(sets={"A": found}), tmp_path)
    vcgmm_tables.draw_when(result(runs={"100": {"Mixture(iso)": own, "nmbatch": own}}), tmp_path)
    for name in ("vcgmm-A", "vcgmm-when-100"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000


def test_ends_of_curves_and_parts_have_a_line_each():
    runs = {"100": {"Mixture(iso)": fit(curve=curves())}}
    told = vcgmm_tables.when_table(result(runs=runs, learnt={"100": 5_000}))
    assert "| 100 | Mixture(iso) | 1.00 | -103.000 | 75.000 |" in told
    cases = {"A": {"as it is": [fit()]}, "diag": {"as it is": [fit(ari=0.5)]}}
    told = vcgmm_tables.parts_table(result(cases=cases))
    line = "| as it is | 1.00 s, -102.800, energy 75.000 | 1.00 s, -102.800, ARI 0.500 |"
    assert line in told


def test_scale_table():
    phases = dict.fromkeys(("coreset", "search", "iterations", "labels"), (10.0, 15.0))
    job = {
        "seconds": 40.0, "phases": phases, "n_iter": 12, "value": -50.0,
        "peaks": {"client": 0.3, "worker 7": 0.5, "worker 8": 0.25},
    }  # fmt: skip
    densities = {"phases": {"densities": (60.0, 90.0)}, "peaks": {"client": 0.4, "worker 9": 0.7}}
    found = result(
        rows=100, load="", reading={"raw": 4e9, "coreset": 3e9}, job=job, densities=densities,
        killed={**job, "seconds": 55.0, "peaks": {"scheduler 3": 0.6}},
    )  # fmt: skip
    told = vcgmm_scale.table(found)
    assert "| densities of all rows | 60 | 60% | 90 |" in told
    assert "| together | 100 | | 150 |" in told
    assert "client 0.40, worker 0.70, scheduler 0.60 | ≤ 1.5 |" in told
    assert "of 4.0 GB/s raw | 0.75 | ≥ 0.7 |" in told
    assert "| 55, same model and labels |" in told
    assert "log-likelihood -0.5000 a row" in told
    missed = {"reading": {"raw": 4e9, "coreset": 1e9}}
    assert "| **0.25** | ≥ 0.7 |" in vcgmm_scale.table({**found, **missed})


@pytest.mark.skipif(not Path("/proc").exists(), reason="the most memory is told by Linux")
def test_processes_are_found_and_their_peaks():
    found = vcgmm_scale.peaks()
    assert 0.01 < found["client"] < 100
