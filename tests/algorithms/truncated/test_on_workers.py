"""Samples that workers read and search themselves: the same bits as in the driver's process."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import dask
import numpy as np
import pytest
from scipy.sparse import csr_matrix

import largek_dask as lk
from largek_dask.algorithms.base import ProjectedRows, Rng, RowSample, RowState
from largek_dask.algorithms.parts.ascending import Ascending
from largek_dask.algorithms.truncated import schedule
from largek_dask.algorithms.truncated.passes import Pass
from largek_dask.data.sources import open_rows
from largek_dask.errors import CancelledFit
from largek_dask.kernels.projection import Directions
from largek_dask.passes import cluster as cluster_module
from largek_dask.passes import picked_rows
from largek_dask.passes.cluster import ClusterPasses
from largek_dask.passes.picked_rows import PickedRows
from largek_dask.passes.worker import WorkPlugin
from tests.algorithms.conftest import bits, blobs
from tests.algorithms.truncated.test_projected import planted
from tests.faults.barrier import Killer, barrier_chunk
from tests.helpers.checks import dense, eventually, watched_passes
from tests.passes.toys import combine, path_answers, path_chunk, path_pass, start

N, D, K = 12_000, 10, 24


@pytest.fixture(scope="module", autouse=True)
def small_samples():
    """Samples as for many clusters, all of them searched on workers."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(schedule, "RESTARTED_CLUSTERS", 0)
        patched.setattr(schedule, "MOST_MET", 1.0)
        patched.setattr(cluster_module, "WORKER_VALUES", 1)
        patched.setattr(picked_rows, "LEAST_ROWS", 50)
        yield


@pytest.fixture
def searched(monkeypatch):
    """Numbers of rows and workers of each pass that workers run over a sample."""
    seen = []
    run = ClusterPasses._run

    def noted(self, spec, replay, chunks, report):
        total = run(self, spec, replay, chunks, report)
        if isinstance(self.rows, PickedRows):
            seen.append((self.n_rows, report.workers))
        return total

    monkeypatch.setattr(ClusterPasses, "_run", noted)
    return seen


def known_jobs(dask_worker):
    return set(dask_worker.plugins[WorkPlugin.name].jobs)


# --- the same bits --------------------------------------------------------------------------------


def plain():
    return blobs(N, D, 40, seed=11, spread=1.5), {"algorithm": lk.Truncated(neighbours=8)}


def weighted():
    x, how = plain()
    return x, how | {"sample_weight": np.random.default_rng(1).integers(0, 4, N).astype(float)}


def of_type(dtype):
    x, how = plain()
    return (4 * x).astype(dtype), how


def normalized():
    x, _ = plain()
    return x + 5, {"normalize": "l2"}


def with_bad_rows():
    x, how = plain()
    x[::7, 2] = np.nan
    return x, how | {"on_bad_rows": "skip"}


def in_few_directions():
    return planted(N), {"algorithm": lk.Truncated(directions=5), "n_clusters": 60}


def far_out():
    x, how = plain()
    x[:: N // 60] += np.random.default_rng(2).normal(size=(60, D)).astype("f4") * 300
    return x, how


def sparse():
    x, _ = plain()
    return csr_matrix(np.where(x > 0, x, 0)), {"algorithm": lk.Truncated()}


CASES = {
    "plain": plain,
    "sparse": sparse,
    "weighted": weighted,
    "float16": partial(of_type, "f2"),
    "int8": partial(of_type, "i1"),
    "float64": partial(of_type, "f8"),
    "normalized": normalized,
    "bad rows": with_bad_rows,
    "few directions": in_few_directions,
    "far out": far_out,
}


def fit(data, client=None, *, n_clusters=K, sample_weight=None, normalize=None, **how):
    kind = lk.KMeans if normalize is None else lk.SphericalKMeans
    how = {"max_iter": 60, "random_state": 5, "n_threads": 1} | how
    if client is not None:
        how = how | {"client": client, "n_threads": None}
    return kind(n_clusters, **how).fit(data, sample_weight=sample_weight)


@pytest.fixture(scope="module")
def clean():
    return {}


@pytest.mark.parametrize(
    "n_workers", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))]
)
@pytest.mark.parametrize("case", CASES)
def test_same_bits(case, n_workers, clean, searched, worker_clients, tmp_path):
    x, how = CASES[case]()
    lk.ingest(x, str(tmp_path / "x.zarr"), chunk_rows=1_000, progress=False)
    if case not in clean:
        clean[case] = bits(fit(x, **how))
    assert not searched
    client = worker_clients(n_workers)
    with watched_passes() as seen:
        assert bits(fit(str(tmp_path / "x.zarr"), client, **how)) == clean[case]
    n_samples = len({n_rows for n_rows, _ in searched})
    assert n_samples == 1 if case == "sparse" else n_samples > 1
    assert any(workers == n_workers for _, workers in searched)
    assert all(not jobs for jobs in client.run(known_jobs).values())
    assert seen[0].total.passes > len(searched), "they count as passes on workers"


def test_lists_and_indices_are_broadcast_in_few_bytes(worker_clients, tmp_path, monkeypatch):
    sizes = {"listed": set(), "wanted": set()}
    of_pass, of_indices = Pass.__getstate__, Ascending.__getstate__

    def listed(self):
        state = of_pass(self)
        if state["listed"] is not None:
            sizes["listed"].add((state["listed"].itemsize, self.listed.itemsize))
        return state

    def wanted(self):
        steps = of_indices(self)
        sizes["wanted"].add((steps.itemsize, self.values.itemsize, len(steps) > K))
        return steps

    monkeypatch.setattr(Pass, "__getstate__", listed)
    monkeypatch.setattr(Ascending, "__getstate__", wanted)
    x, how = plain()
    here = bits(fit(x, **how))
    assert not any(sizes.values())
    lk.ingest(x, str(tmp_path / "x.zarr"), chunk_rows=1_000, progress=False)
    assert bits(fit(str(tmp_path / "x.zarr"), worker_clients(2), **how)) == here
    assert sizes == {"listed": {(1, 4)}, "wanted": {(1, 8, True)}}


# --- the rows -------------------------------------------------------------------------------------


@pytest.fixture
def rows(tmp_path):
    x, weight = blobs(3_000, 6, 5, seed=3), np.arange(3_000) % 3.0
    lk.ingest(x, str(tmp_path / "x.zarr"), chunk_rows=300, progress=False)
    opened = open_rows(str(tmp_path / "x.zarr"), sample_weight=weight)
    assert opened.n_chunks == 10
    return opened


ASKED = {
    "sample": RowSample(Rng(0), "some", 900, any_order=True),
    "ascending": RowSample(Rng(0), "some", 900, ascending=True),
    "indices": np.arange(5, 2_900, 3),
    "projected": ProjectedRows(Directions.of(np.eye(6, dtype="f4")[:2], np.ones(6, "f4"))),
}


@pytest.mark.parametrize("normalize", [None, "l2"])
@pytest.mark.parametrize("kind", ASKED)
def test_workers_pick_the_rows_that_the_driver_holds(kind, normalize, rows, worker_clients):
    with ClusterPasses(rows, worker_clients(2), normalize=normalize) as passes:
        held = passes.subset(ASKED[kind])
        there, (x, weight, numbers) = held._on_workers, held.take()
        order = np.arange(len(x)) if there.places is None else there.places
        assert (there.places is None) == (kind != "sample")
        assert (np.diff(numbers[order]) > 0).all()
        picked = there.rows
        assert 1 < picked.n_chunks <= rows.n_chunks
        read = [picked.read(i) for i in range(picked.n_chunks)]
        np.testing.assert_array_equal(np.concatenate(read), dense(x)[order])
        weights = np.concatenate([picked.read_weight(i) for i in range(picked.n_chunks)])
        np.testing.assert_array_equal(weights, weight[order])
        assert picked.name_chunk(0) == rows.name_chunk(0)


@pytest.mark.parametrize("asked", [RowSample(Rng(0), "some", 900), np.arange(900)[::-1]])
def test_rows_in_another_order_stay_with_the_driver_unless_allowed(asked, rows, worker_clients):
    with ClusterPasses(rows, worker_clients(2)) as passes:
        assert passes.subset(asked)._on_workers is None


def test_few_rows_stay_with_the_driver_and_so_do_rows_without_room(
    rows, worker_clients, monkeypatch
):
    asked = np.arange(900)
    with ClusterPasses(rows, worker_clients(2)) as passes:
        with dask.config.set({"largek.passes.cache-bytes": 900 * 6 * 4 - 1}):
            assert passes.subset(asked)._on_workers is None
        monkeypatch.setattr(cluster_module, "WORKER_VALUES", 901 * 6)
        assert passes.subset(asked[1:])._on_workers is None
        monkeypatch.setattr(cluster_module, "WORKER_VALUES", 900 * 6)
        assert passes.subset(asked)._on_workers is not None


# --- memory, deaths, stops ------------------------------------------------------------------------


def several(x):
    return path_answers(x.astype(np.int64), 4)


@pytest.mark.parametrize("memory_limit", [None, 0])
def test_row_state_on_workers(memory_limit, rows, worker_clients):
    client = worker_clients(2)
    with ClusterPasses(rows, client, memory_limit=memory_limit) as passes:
        held, cores = passes.subset(ASKED["sample"]), passes.threads.n
        answers = several(held.take().x)
        before, own = passes.total.passes, passes.subset_seconds
        for g, answer in enumerate(answers, start=1):
            assert path_pass(held, g)[0] == answer
            assert (held.last.rebuilt > 0) == (g > 1 and memory_limit == 0)
            assert held.last.workers == 2
            assert passes.threads.n == cores, "a fit shares no cores with itself"
        assert passes.total.passes == before + len(answers)
        assert passes.subset_seconds == own
        assert {len(jobs) for jobs in client.run(known_jobs).values()} == {2}
        held.close()
        assert {len(jobs) for jobs in client.run(known_jobs).values()} == {1}
        assert path_pass(passes.subset(ASKED["sample"]), 1)[0] == answers[0]
    assert {len(jobs) for jobs in client.run(known_jobs).values()} == {0}


def test_worker_killed_in_a_pass_over_a_sample(rows, fresh_cluster, tmp_path):
    client = fresh_cluster(2)
    pids = set(client.run(os.getpid).values())
    killer = Killer(tmp_path)
    killer.start()
    with ClusterPasses(rows, client) as passes:
        held = passes.subset(ASKED["sample"])
        answers = []
        for g in range(1, 5):
            function = partial(barrier_chunk, str(tmp_path), path_chunk) if g == 3 else path_chunk
            answers.append(path_pass(held, g, function, retain=True)[0])
            if g == 3:
                assert killer.killed in pids, "the pass was in flight"
                assert held.last.rebuilt > 0
                assert held.last.retries > 0
        assert answers == several(held.take().x)


def test_workers_that_search_a_sample_are_those_of_the_fit(rows, worker_clients):
    """Messages of its passes are messages of the fit, which knows what each worker has done."""
    said = []
    with ClusterPasses(rows, worker_clients(2), log=lambda *about: said.append(about)) as passes:
        held = passes.subset(ASKED["sample"])
        path_pass(held, 1)
        assert len(passes.by_worker) == 2
        assert all(report.chunks > 0 for report in passes.by_worker.values())
        held._on_workers._say("waiting", "for one")
        assert said == [("waiting", "for one")]
        assert held._on_workers._network.group == passes._network.group, "Dask shows one job"


def waiting_chunk(chunk, total, place):
    """Wait until the test lets the chunk go on."""
    (Path(place) / f"begun {chunk.index}").touch()
    eventually((Path(place) / "go on").exists, "the end of the test")


@pytest.mark.parametrize("way", ["cancel", "time limit"])
def test_stop_in_a_pass_over_a_sample(way, rows, worker_clients, tmp_path):
    def is_in_flight():
        return any(tmp_path.glob("begun *"))

    with ClusterPasses(rows, worker_clients(2)) as passes:
        held = passes.subset(ASKED["sample"])
        path_pass(held, 1)
        if way == "cancel":
            passes.cancelled = is_in_flight
        else:
            passes.deadline = time.monotonic() + 1
        state = RowState("path", 2, ((1,),))
        try:
            with pytest.raises(CancelledFit):
                held.reduce(waiting_chunk, str(tmp_path), start=start, combine=combine, state=state)
            assert is_in_flight(), "the driver answers although chunks have not ended"
        finally:
            (tmp_path / "go on").touch()
