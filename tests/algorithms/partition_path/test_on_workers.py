"""Searches of partitions that a worker runs: the same bits as in the driver's process."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from distributed import Client, LocalCluster

import largek_dask as lk
from largek_dask.algorithms.base import Rng, RowSample
from largek_dask.algorithms.partition_path import algorithm as partition_path
from largek_dask.algorithms.partition_path.stages import PathSearch
from largek_dask.data.sources import open_rows
from largek_dask.errors import CancelledFit
from largek_dask.passes import subset
from largek_dask.passes.cluster import ClusterPasses
from largek_dask.passes.local import LocalPasses
from largek_dask.passes.picked_rows import PickedRows
from largek_dask.passes.subset import compute_held
from largek_dask.passes.worker import WorkPlugin
from tests.algorithms.conftest import bits, blobs
from tests.faults.barrier import Killer, barrier_chunk
from tests.helpers.checks import eventually

N, D, K = 1_500, 4, 6


@pytest.fixture(autouse=True)
def large_searches(monkeypatch):
    """Searches as of many rows and clusters; of more than 1,000 rows, 400 are searched."""
    monkeypatch.setattr(subset, "WORKER_DISTANCES", 1)
    monkeypatch.setattr(partition_path, "MOST_ROWS", 1_000)
    monkeypatch.setattr(partition_path, "LEAST_ROWS", 400)
    monkeypatch.setattr(partition_path, "ROWS_A_CLUSTER", 1)


@pytest.fixture
def searched(monkeypatch):
    """Reports of the passes in which a worker searches; ``change`` may replace such a pass."""
    reports, run = [], ClusterPasses._run

    def noted(self, spec, replay, chunks, report):
        if spec.chunk_fn is compute_held:
            assert isinstance(self.rows, PickedRows)
            assert self.n_rows == 1
            reports.append(report)
            spec = noted.change(spec, len(reports))
        return run(self, spec, replay, chunks, report)

    noted.change = lambda spec, number: spec
    monkeypatch.setattr(ClusterPasses, "_run", noted)
    noted.reports = reports
    return noted


def known_jobs(dask_worker):
    return len(dask_worker.plugins[WorkPlugin.name].jobs)


def sampled():
    return blobs(N, D, 8, seed=11, spread=1.5), {}


def whole():
    return sampled()[0][:900], {}


def weighted():
    weight = np.random.default_rng(1).integers(0, 4, N).astype(float)
    return sampled()[0], {"sample_weight": weight}


def double():
    return sampled()[0].astype("f8"), {"sample_weight": np.linspace(0.5, 2, N)}


def with_bad_rows():
    x = sampled()[0].copy()
    x[::7, 2] = np.nan
    assert np.isnan(x[0]).any(), "the row whose chunk the search is called for"
    return x, {"on_bad_rows": "skip"}


def far_out():
    x = sampled()[0].copy()
    x[700:703] += 5_000
    return x, {}


CASES = {
    "sampled": sampled,
    "whole": whole,
    "weighted": weighted,
    "double": double,
    "bad rows": with_bad_rows,
    "far out": far_out,
}


def fit(data, client=None, *, effort="balanced", sample_weight=None, **how):
    how = {"random_state": 5, "client": client, "n_threads": None if client else 1} | how
    km = lk.KMeans(K, algorithm=lk.PartitionPath(effort), **how)
    return km.fit(data, sample_weight=sample_weight)


@pytest.mark.parametrize(
    "n_workers", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))]
)
@pytest.mark.parametrize("case", CASES)
def test_same_bits(case, n_workers, searched, worker_clients, tmp_path, monkeypatch):
    x, how = CASES[case]()
    store = str(tmp_path / "x.zarr")
    lk.ingest(x, store, chunk_rows=200, progress=False)
    effort = "best" if case in ("sampled", "whole") else "balanced"
    expected = fit(x, effort=effort, **how)
    assert not searched.reports
    client = worker_clients(n_workers)
    if n_workers == 2:  # workers that are other processes
        monkeypatch.setattr(PathSearch, "run", None)
    found = fit(store, client, effort=effort, **how)
    assert bits(found) == bits(expected)
    n_pieces = sum("evaluations" in step["extra"] for step in found.history_)
    assert len(searched.reports) > n_pieces / 2 > 10
    assert {report.workers for report in searched.reports} == {1}
    n_sent = sum(report.rebuilt for report in searched.reports)
    assert n_sent == 1, "the worker keeps the rows"
    assert set(client.run(known_jobs).values()) == {0}


def test_a_small_search_stays_with_the_driver(searched, worker_clients, tmp_path, monkeypatch):
    store = str(tmp_path / "x.zarr")
    lk.ingest(sampled()[0], store, chunk_rows=200, progress=False)
    monkeypatch.setattr(subset, "WORKER_DISTANCES", 1 << 18)
    expected = bits(fit(store, worker_clients(2)))
    assert not searched.reports
    assert bits(fit(sampled()[0])) == expected


def test_a_worker_is_killed_in_its_search(searched, fresh_cluster, tmp_path):
    x = sampled()[0]
    store = str(tmp_path / "x.zarr")
    lk.ingest(x, store, chunk_rows=200, progress=False)
    client = fresh_cluster(2)
    pids = set(client.run(os.getpid).values())
    killer = Killer(tmp_path)
    killer.start()

    def change(spec, number):
        if number != 4:
            return spec
        return replace(spec, chunk_fn=partial(barrier_chunk, str(tmp_path), spec.chunk_fn))

    searched.change = change
    found = fit(store, client)
    assert killer.killed in pids, "the search was in flight"
    assert bits(found) == bits(fit(x))
    assert searched.reports[3].retries > 0
    # Another worker had to get the rows.
    assert [report.rebuilt for report in searched.reports[:4]] == [1, 0, 0, 1]


# --- the function and its rows --------------------------------------------------------------------


def totals(x, weight, threads, factor):
    return os.getpid(), factor * x.sum(), None if weight is None else weight.sum(), threads.n


def endless(x, weight, threads, folder):
    """Wait for a stop, as between two partitions of a search."""
    (folder / "begun").touch()
    try:
        eventually(threads.check, "a stop")
    finally:
        (folder / "ended").touch()


@pytest.fixture
def rows(tmp_path):
    lk.ingest(sampled()[0], str(tmp_path / "x.zarr"), chunk_rows=200, progress=False)
    return open_rows(str(tmp_path / "x.zarr"), sample_weight=np.arange(N) % 3.0)


ASKED = RowSample(Rng(0), "some", 900)


@pytest.mark.parametrize("memory_limit", [None, 0])
def test_compute(memory_limit, rows, cluster2, searched):
    pids = set(cluster2.run(os.getpid).values())
    with LocalPasses(rows, n_threads=2) as passes:
        expected = passes.subset(ASKED).compute(totals, 3, distances=1)
        assert expected[::3] == (os.getpid(), 2)
    with ClusterPasses(rows, cluster2, memory_limit=memory_limit) as passes:
        held, before = passes.subset(ASKED), passes.total.passes
        for _ in range(2):
            pid, *found, n_threads = held.compute(totals, 3, distances=1)
            assert pid in pids
            assert (found, n_threads) == ([*expected[1:3]], 1)
        rebuilt = [report.rebuilt for report in searched.reports]
        assert rebuilt == ([1, 0] if memory_limit is None else [1, 1])
        assert passes.total.passes == before + 2, "they count as passes on workers"
        assert set(cluster2.run(known_jobs).values()) == {2}
        held.close()
        assert set(cluster2.run(known_jobs).values()) == {1}
        assert passes.compute(totals, 1, distances=1)[0] == os.getpid()


def test_a_search_has_all_threads_of_its_worker(rows):
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=3, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
        ClusterPasses(rows, client) as passes,
    ):
        held = passes.subset(ASKED)
        assert held.compute(totals, 3, distances=1)[-1] == 3
        assert held._one_worker.last.rebuilt == 1, "a worker computed it"


def test_a_stop_ends_a_search_on_its_worker(rows, worker_clients, tmp_path):
    with ClusterPasses(rows, worker_clients(2)) as passes:
        held = passes.subset(ASKED)
        held.compute(totals, 1, distances=1)
        passes.cancelled = (tmp_path / "begun").exists
        with pytest.raises(CancelledFit):
            held.compute(endless, tmp_path, distances=1)
        assert not (tmp_path / "ended").exists()
        held.close()
        eventually((tmp_path / "ended").exists, "the end of the search")
