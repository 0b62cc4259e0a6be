"""``largek fit --plan`` beside what is counted in fits."""

from __future__ import annotations

import multiprocessing
import tracemalloc
from concurrent.futures import ProcessPoolExecutor

import dask
import numpy as np
import pytest
import zarr

import largek_dask as lk
from benchmarks.synthetic import SyntheticRows
from largek_dask.algorithms.base import Algorithm
from largek_dask.cli.plan import Machines, make_plan
from largek_dask.driver.fit import fit
from largek_dask.driver.options import FitOptions
from largek_dask.passes import gather
from tests.helpers.checks import watched_passes
from tests.helpers.covering import slow

TWO = Machines(1, 2, 1 << 34, True)


def mixed(n, d, k):
    """Rows of overlapping Gaussians."""
    rows = SyntheticRows("mixture", n, d, n_components=k, seed=3)
    return np.concatenate([rows.read(i) for i in range(rows.n_chunks)])[:n]


def plan_of(x, algorithm, k, **options):
    return make_plan(lk.open_rows(x), FitOptions(n_clusters=k, algorithm=algorithm, **options), TWO)


# --- searches for all partitions ------------------------------------------------------------------


@pytest.mark.parametrize("effort", ["fast", "balanced"])
def test_search_for_all_partitions__labellings_are_as_many_as_planned(effort):
    x, k = mixed(12_000, 8, 40), 15
    algorithm = lk.PartitionPath(effort=effort)
    done = lk.KMeans(k, algorithm=algorithm, random_state=0).fit(x).history_[-1]["extra"]
    planned = plan_of(x, algorithm, k)["searches"]
    assert planned / 3 < done["evaluations"] < 3 * planned


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
    check_row_state(stored, algorithm, k, most, least)


def check_row_state(stored, algorithm, k, most, least):
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
        *slow(
            (lk.MiniBatch(batch_rows=1), 2, 1.0, 3),
            (lk.Truncated(), 2, 0.2, 30),
            (lk.NMBatch(), 1, 1.0, 12),
            (lk.IncrementalLloyd(), 2, 1.0, 12),
            (lk.VRKM(round_rows=1), 2, 1.0, 3),
            (lk.PartitionPath(effort="fast"), 2, 1.0, 60),
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


@pytest.mark.parametrize(
    ("algorithm", "n", "k", "computes"),
    [
        (lk.Lloyd(), 50_000, 4, None),
        (lk.Truncated(), 50_000, 500, "the first steps, on samples"),
        (lk.PartitionPath(), 5_000, 4, "the whole search"),
    ],
)
def test_plan__says_what_the_scheduler_computes_and_what_that_takes(algorithm, n, k, computes):
    x = np.random.default_rng(0).standard_normal((n, 4))
    options = FitOptions(n_clusters=k, algorithm=algorithm)
    for is_local in (True, False):
        plan = make_plan(lk.open_rows(x), options, Machines(2, 2, 1 << 34, is_local))
        assert plan["driver"] == computes
        parts = ("model", "held", "state")
        assert plan["memory_driver"] == sum(plan[f"memory_{part}"] for part in parts)


def test_plan__of_a_search_on_a_worker():
    rows = lk.open_rows(np.random.default_rng(0).standard_normal((50_000, 4)))
    options = FitOptions(n_clusters=4, algorithm=lk.PartitionPath())
    local, there = (make_plan(rows, options, Machines(2, 2, 1 << 34, at)) for at in (True, False))
    assert (local["driver"], there["driver"]) == ("the whole search", None)
    own = there["memory_model"] + there["memory_reading"] + there["memory_row_state"]
    assert there["memory"] == own + there["memory_held"] > own
    assert local["memory_held"] == there["memory_held"]


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
