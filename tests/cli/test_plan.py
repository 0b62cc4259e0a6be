"""``largek fit --plan`` beside what is counted in fits; seconds are of a clock that counts."""

from __future__ import annotations

import multiprocessing
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import dask
import numpy as np
import pytest
import zarr

import largek_dask as lk
from benchmarks.synthetic import SyntheticRows
from largek_dask.algorithms.base import Algorithm
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.cli import plan as plans
from largek_dask.cli.plan import Machines, make_plan
from largek_dask.driver.fit import fit
from largek_dask.driver.options import FitOptions
from largek_dask.driver.plan import footprint_of
from largek_dask.kernels.evidence import FAR
from largek_dask.passes import gather
from tests.helpers.checks import shown, watched_passes
from tests.helpers.covering import slow

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
    assert plan["seconds_last"] == pytest.approx(1e-6 * 5_000 * k / 2)
    assert plan["seconds_compute"] == pytest.approx(2 * 5_000 * k * 4 / 2e9)
    # Of hard clusters it is that of k-means; and of more components than a trial has, as many.
    assert plan_of(x, algorithm, k)["seconds_last"] == plan["seconds_compute"]
    monkeypatch.setattr(plans, "PROBE_CENTERS", 5)
    again = plan_of(x, algorithm, k, mixture=kind)
    assert again["seconds_last"] == pytest.approx(plan["seconds_last"])


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
    assert plan["seconds_last"] > 0


@pytest.mark.parametrize(
    ("max_time", "leaves", "words"),
    [
        (None, True, ""),
        ("5s", True, "5 s: 3 s of it for steps"),
        ("1.2s", False, "1.2 s: no room for a step of 1 s beside the last pass; allow more than 3"),
    ],
)
def test_a_time_limit_is_told_beside_the_last_pass(max_time, leaves, words, monkeypatch):
    """That it leaves no step was known once the fit had begun, if at all."""
    n, d, k = 1_000_000, 50, 10
    x = np.broadcast_to(np.zeros(d, np.float32), (n, d))
    monkeypatch.setattr(plans, "ROW_SECONDS", 1e-9)
    monkeypatch.setattr(plans, "flops", lambda *shape: 1e9 / 2)
    monkeypatch.setattr(plans, "read_rate", lambda rows: 1e12)
    plan = plan_of(x, lk.Lloyd(), k, init="random", max_time=max_time)
    assert plan["seconds_pass"] == plan["seconds_last"] == pytest.approx(1.0)
    assert plan["leaves_a_step"] is leaves
    if max_time is None:
        assert (plan["max_time"], plan["seconds_for_steps"]) == (None, None)
        return
    assert plan["seconds_for_steps"] == pytest.approx(plan["max_time"] - 2.0, abs=0.01)
    assert shown(plan)["max_time"].startswith(words)
    # Steps of a search on samples, and of rows that are held, are shorter than a pass.
    short = plan_of(x, lk.Truncated(neighbours=2), 500, max_time=max_time)
    assert short["seconds_of_a_step"] < short["seconds_pass"]


# --- searches for all partitions ------------------------------------------------------------------


@pytest.mark.parametrize("effort", ["fast", "balanced"])
def test_search_for_all_partitions__labellings_are_as_many_as_planned(effort):
    x, k = mixed(12_000, 8, 40), 15
    algorithm = lk.DCDBundle(effort=effort)
    done = lk.KMeans(k, algorithm=algorithm, random_state=0).fit(x).history_[-1]["extra"]
    planned = plan_of(x, algorithm, k)["searches"]
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
    assert plan["rows_step"] == 32_768
    assert plan["seconds_steps"] == pytest.approx(1e-5 * 32_768 * k * plan["searches"])
    # All partitions meet all rows in a pass after it; before it rows are looked at and drawn.
    distances = k * (k + 1) / 2 + 30 * k
    one = n * (2 * d * distances / 2e9 + plans.ROW_SECONDS / 2)
    assert plan["seconds_after"] == pytest.approx(15 * one)
    beside = plan["seconds_before"] + plan["seconds_after"] + plan["seconds_last"]
    assert plan["seconds_most"] == pytest.approx(beside + plan["seconds_steps"])


# --- what is kept per row -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "k", "most", "least"),
    [
        (lk.Lloyd(), 100, 8, 1.0),
        # Which rows are in the batch is kept until all are.
        (lk.NMBatch(gather=0), 100, 25, 0.6),
        (lk.Truncated(), 300, 60, 1.0),
        # Candidates from before moves are kept while these are tried.
        (lk.VCGMM(covariance="diag"), 60, 30, 0.6),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else "",
)
def test_what_is_kept_of_rows__is_of_two_generations(stored, algorithm, k, most, least):
    """One was planned: 16 B a row of the truncated search, of which a store of rows has 32."""
    told, mixture = [], getattr(algorithm, "covariance", None)
    init = "auto" if mixture or k == 300 else "random"
    options = FitOptions(
        n_clusters=k, algorithm=algorithm, mixture=mixture, init=init, max_iter=most, tol=0.0
    )
    with dask.config.set(SMALL_CHUNKS):
        rows = lk.open_rows(stored)
        fit(rows, options, n_threads=1, labels=False, events=[told.append])
        plan = make_plan(rows, options, Machines(1, 1, 1 << 34, True))
        # That of samples is in the driver's part.
        held = max(event["state_bytes"] for event in told if event["event"] == "step")
    totals = plan["memory_model"]
    assert plan["row_bytes"] * rows.n_rows < held
    assert least * plan["memory_row_state"] < held < plan["memory_row_state"] + totals


# --- what the driver holds ------------------------------------------------------------------------


SMALL_CHUNKS = {"largek.passes.cache-bytes": 0, "largek.data.read-chunk-bytes": 1 << 18}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Rows whose chunks are small beside them."""
    url = str(tmp_path_factory.mktemp("rows") / "rows.zarr")
    lk.ingest(mixed(80_000, 32, 60), url, chunk_rows=2_000, progress=False)
    return url


@pytest.mark.parametrize(
    ("algorithm", "threads", "least", "most"),
    [
        (lk.NMBatch(gather=20_000), 2, 0.25, 12),
        (lk.MiniBatch(batch_rows=1), 2, 1.0, 3),
        (lk.Truncated(), 2, 0.2, 30),
        *slow(
            (lk.NMBatch(), 1, 1.0, 12),
            (lk.NMBatch.paper(rho=1.0), 1, 1.0, 30),
            (lk.VRKM(), 2, 1.0, 12),
            (lk.VRKM(table="snapshot", round_rows=1), 2, 1.0, 3),
            (lk.DCDBundle(effort="fast"), 2, 1.0, 60),
            (lk.VCGMM(coreset=40_000), 2, 0.5, 12),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else "",
)  # fmt: skip
def test_what_the_driver_holds_is_in_the_plan(stored, algorithm, threads, least, most):
    """Rows that it gathers, with copies and state: all that a fit takes beside chunks."""
    # In a process of its own: what threads that other tests have left allocate would be counted.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        plan, held, n_bytes = pool.submit(
            planned_and_held, stored, algorithm, threads, most
        ).result()
    assert plan["memory_held"] >= least * n_bytes
    assert 0.5 * plan["memory"] < held < 1.2 * plan["memory"]


def planned_and_held(url, algorithm, threads, most):
    """The plan of a fit, the most that it holds, and the bytes of its rows."""
    # What is not filled of blocks takes no memory, but is counted: one of each share of rows, in
    # as many totals as the moment has threads take.
    gather.BLOCK_BYTES = 1 << 13
    mixture = "iso" if isinstance(algorithm, lk.VCGMM) else None
    options = FitOptions(n_clusters=40, algorithm=algorithm, mixture=mixture, max_iter=most, seed=0)
    with dask.config.set(SMALL_CHUNKS):
        rows = lk.open_rows(url)
        # What is loaded and compiled once is no part of it.
        fit(rows, options, n_threads=threads, labels=False)
        tracemalloc.start()
        try:
            fit(rows, options, n_threads=threads, labels=False)
            held = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        return make_plan(rows, options, Machines(1, threads, 1 << 34, True)), held, rows.nbytes


def test_what_the_driver_holds__on_a_cluster_less_is_gathered(stored, tmp_path):
    """As steps over many rows are shared out; and no row state of workers is planned for it."""
    one_by_one = FitOptions(n_clusters=40, algorithm=lk.MiniBatch(batch_rows=1))
    plan = make_plan(lk.open_rows(stored), one_by_one, Machines(2, 2, 1 << 34, False))
    assert plan["memory_row_state"] == 0
    assert plan["memory_held"] >= 80_000 * 32 * 4
    n, url = 1_000_000, str(tmp_path / "empty.zarr")
    zarr.create_array(url, shape=(n, 32), chunks=(65_536, 32), dtype="float32")
    many = lk.open_rows(url, count_missing=False)
    for algorithm, gathered, init in ((lk.NMBatch(), 62_500, "auto"), (lk.VRKM(), 0, "random")):
        options = FitOptions(n_clusters=1_000, algorithm=algorithm, init=init)
        here, there = (
            make_plan(many, options, Machines(1, 1, 1 << 34, is_local))["memory_held"]
            for is_local in (True, False)
        )
        asked = replace(algorithm, problem=KMeansProblem(1_000, init))
        own = 2 * footprint_of(many, asked).row_bytes + 16 + 32 * 4
        spaced = 64_000 * (32 * 4 + 16) if gathered else 0
        assert here == n * own + spaced
        assert there == gathered * own + spaced
    # Centres are drawn from rows that have come, lie in one piece, and are put in order.
    options = FitOptions(n_clusters=1_000, algorithm=lk.VRKM())
    plan = make_plan(many, options, Machines(2, 2, 1 << 34, False))
    assert plan["memory_held"] == n * (3 * 32 * 4 + 16)
    # What a checkpoint takes the driver has, too; of a cluster it is not in workers.
    assert plan["memory_state"] == 15 * 1_000 * (32 * 4 + 8)
    here = make_plan(many, options, Machines(1, 1, 1 << 34, True))
    parts = ("model", "reading", "row_state", "held", "state")
    assert here["memory"] == sum(here[f"memory_{part}"] for part in parts)


@pytest.mark.parametrize(
    ("algorithm", "k", "computes"),
    [
        (lk.Lloyd(), 4, None),
        (lk.Truncated(), 500, "the first steps, on samples"),
        (lk.DCDBundle(), 4, "the whole search"),
    ],
)
def test_plan__says_what_the_scheduler_computes_and_what_that_takes(algorithm, k, computes):
    x = np.random.default_rng(0).standard_normal((50_000, 4))
    options = FitOptions(n_clusters=k, algorithm=algorithm)
    for is_local in (True, False):
        plan = make_plan(lk.open_rows(x), options, Machines(2, 2, 1 << 34, is_local))
        assert plan["driver"] == computes
        parts = ("model", "held", "state")
        assert plan["memory_driver"] == sum(plan[f"memory_{part}"] for part in parts)
        lines = shown(plan)
        assert ("scheduler" in lines) == (computes is not None)
        if computes is not None:
            assert computes in lines["scheduler"]
            assert lines["scheduler"].startswith("on a cluster it computes") == is_local


@pytest.mark.usefixtures("chunks_as_stored")
@pytest.mark.parametrize("n_init", [1, 3])
def test_passes_of_all_starts_are_counted(tmp_path, n_init):
    url = str(tmp_path / "rows.zarr")
    # Not by ingest, which would store the statistics.
    zarr.create_array(url, data=mixed(2_000, 10, 9), chunks=(300, 10))
    asked = {"n_clusters": 9, "algorithm": lk.Lloyd(), "init": "random", "n_init": n_init}
    plan = make_plan(
        lk.open_rows(url), FitOptions(**asked, max_iter=3), Machines(1, 1, 1 << 34, True)
    )
    with watched_passes() as seen:
        lk.KMeans(**asked, max_iter=3, tol=0, random_state=0).fit(url)
    assert [passes.total.passes for passes in seen] == [plan["passes_most"]]
    assert plan["passes_most"] == 1 + n_init * 5, "statistics once, all else for each start"
