"""Passes on Dask clusters give what local ones give, whatever happens to the workers."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import threading
import time
from collections import Counter
from functools import partial
from unittest import mock

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
import zarr
from distributed import Status
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import largek_dask.passes.cluster as cluster_module
from largek_dask.algorithms.base import Rng, RowSlice, RowState
from largek_dask.data.rows import Rows
from largek_dask.data.sources import open_rows
from largek_dask.data.storage_errors import trouble
from largek_dask.errors import (
    BadRowsError,
    CancelledFit,
    ClusterError,
    DataError,
    OutputError,
    ParameterError,
    VersionMismatchError,
)
from largek_dask.passes import poison_chunks, waiting
from largek_dask.passes.admission import Workers, _Absence, check_workers
from largek_dask.passes.cluster import ClusterPasses
from largek_dask.passes.local import LocalPasses
from largek_dask.passes.network import Network
from largek_dask.passes.worker import WorkPlugin, WorkSpec, admit, combine_totals, versions
from tests.faults import Killer, barrier_chunk
from tests.helpers.checks import eventually, join
from tests.passes.toys import (
    combine,
    count_chunk,
    integers,
    path_answers,
    path_chunk,
    path_pass,
    read_on_share,
    rows_of,
    size_chunk,
    start,
)

N, CHUNK = 600, 50


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return integers(N)


def write_store(x: np.ndarray, folder) -> str:
    path = str(folder / "x.zarr")
    array = zarr.create_array(path, shape=x.shape, chunks=(CHUNK, x.shape[1]), dtype=x.dtype)
    array[:] = x
    return path


@pytest.fixture(scope="module")
def path(x, tmp_path_factory) -> str:
    return write_store(x, tmp_path_factory.mktemp("rows"))


@pytest.fixture
def rows(path) -> Rows:
    with dask.config.set({"largek.data.read-chunk-bytes": 1}):
        opened = open_rows(path)
    assert opened.n_chunks == N // CHUNK
    return opened


def counted(passes, **options):
    return passes.reduce(count_chunk, start=start, combine=combine, **options).tolist()


# --- the same as local ---------------------------------------------------------------------------


@pytest.mark.parametrize(("n_workers", "retain"), [(1, True), (2, False), (3, True)])
def test_path_dependent_state(n_workers, retain, x, rows, worker_clients):
    with ClusterPasses(rows, worker_clients(n_workers)) as passes:
        for g, answer in enumerate(path_answers(x, 5), start=1):
            total = path_pass(passes, g, retain=retain)
            assert total[0] == answer
            assert total[1] == passes.n_chunks * (g if retain else 1)
            assert passes.last.rebuilt == passes.last.retries == 0
            assert passes.last.workers == n_workers
        # Both generations of every row's number, a total a worker, and all chunks.
        assert passes.last.state_bytes == 16 * N + (32 * n_workers if retain else 0)
        assert passes.total.cache_bytes == passes.last.cache_bytes == rows.nbytes


def test_room_for_row_state_is_that_of_all_workers(rows, cluster2):
    with ClusterPasses(rows, cluster2, memory_limit=1_000) as passes:
        assert passes.state_limit == 2_000
    limits = [info["memory_limit"] for info in cluster2.scheduler_info()["workers"].values()]
    with ClusterPasses(rows, cluster2) as passes:
        assert passes.state_limit == 2 * (min(limits) // 4)


def test_fits_share_the_cores_of_their_driver(rows, cluster2, monkeypatch):
    monkeypatch.setattr(cluster_module, "driver_cpus", lambda: 2)
    gc.collect()
    with ClusterPasses(rows, cluster2) as one:
        assert one.threads.n == 2
        with ClusterPasses(rows, cluster2) as another:
            assert one.threads.n == another.threads.n == 1
        with ClusterPasses(rows, cluster2), ClusterPasses(rows, cluster2):
            assert one.threads.n == 1, "there is one for each, however many there are"
        assert one.threads.n == 2


@pytest.mark.parametrize("retain", [False, True])
def test_without_memory_for_row_state(retain, x, rows, cluster2):
    """Workers ask for the replay, and only then it is sent."""
    with ClusterPasses(rows, cluster2, memory_limit=0) as passes:
        for g, answer in enumerate(path_answers(x, 4), start=1):
            assert path_pass(passes, g, retain=retain)[0] == answer
            assert passes.last.rebuilt == (passes.n_chunks if g > 1 else 0)


def test_one_chunk_a_slice(x, rows, cluster2, quick_slices):
    """A slice that has no time left computes nothing: the share still ends."""
    with (
        dask.config.set({"largek.passes.slice-seconds": 0.002}),
        ClusterPasses(rows, cluster2) as p,
    ):
        for g, answer in enumerate(path_answers(x, 3), start=1):
            assert path_pass(p, g, retain=True)[0] == answer
            assert p.last.chunks == p.n_chunks


def test_statistics_take_and_slices(x, rows, cluster2):
    wanted = np.array([599, 3, 3, 51])
    slices = RowSlice(Rng(3), 1, 3, 7)
    with ClusterPasses(rows, cluster2) as passes, LocalPasses(rows, n_threads=1) as local:
        assert passes.statistics.to_dict() == local.statistics.to_dict()
        np.testing.assert_array_equal(passes.take(wanted).x, x[wanted])
        assert counted(passes, rows=slices) == counted(local, rows=slices)
        assert counted(passes, chunks=[3, 7]) == counted(local, chunks=[3, 7])
        assert counted(passes, chunks=[]) == [0, 0, 0, 0]


def test_chunks_of_one_worker_alone_are_everybodys(x, rows, cluster2):
    """As in groups of labels: neighbours, of whose rows nothing is kept."""
    with ClusterPasses(rows, cluster2) as passes:
        path_pass(passes, 1)
        owner = dict(passes._owner)
        assert passes.n_chunks == 12
        first = [chunk for chunk in range(12) if owner[chunk] == owner[0]]
        assert first == list(range(6))
        for chunks in (first, first[:2], range(6, 12)):
            total = counted(passes, chunks=chunks)
            assert total[:2] == [CHUNK * len(chunks), len(chunks)]
            assert passes.last.workers == 2
        assert passes._owner == owner
        # What is kept of rows is where it was.
        path_pass(passes, 2)
        assert passes.last.rebuilt == 0


@pytest.mark.parametrize("tree_bytes", [0, 40])
def test_totals_stay_on_workers(tree_bytes, x, rows, worker_clients):
    """Above the limit they are combined there, and none changes on the way."""
    with dask.config.set({"largek.passes.tree-bytes": tree_bytes}):
        for n_workers in (1, 2, 3):
            with ClusterPasses(rows, worker_clients(n_workers)) as passes:
                for g, answer in enumerate(path_answers(x, 3), start=1):
                    assert path_pass(passes, g, retain=True)[0] == answer
                assert counted(passes)[:2] == [N, passes.n_chunks]


def left_over(dask_worker):
    """Shares and parked totals that a worker still holds."""
    return [
        len(job.tickets) + len(job.parked)
        for name, plugin in dask_worker.plugins.items()
        if name.startswith("largek")
        for job in plugin.jobs.values()
    ]


def test_parked_totals_of_earlier_passes_are_dropped(rows, cluster2):
    with dask.config.set({"largek.passes.tree-bytes": 0}), ClusterPasses(rows, cluster2) as passes:
        for _ in range(3):
            counted(passes)
        assert all(found == [1] for found in cluster2.run(left_over).values())


def task_groups(dask_scheduler):
    return len(dask_scheduler.extensions["spans"].spans), [
        name for name in dask_scheduler.task_groups if name.startswith("largek")
    ]


@pytest.mark.parametrize("embed_bytes", [0, 1 << 20])
def test_a_pass_leaves_no_group_of_tasks(embed_bytes, rows, cluster2, monkeypatch):
    monkeypatch.setattr(cluster_module, "EMBED_BYTES", embed_bytes)
    # Tests before this one may have left some, such as of passes that were cut off.
    left = cluster2.run_on_scheduler(task_groups)[1]

    def new_groups():
        n_spans, groups = cluster2.run_on_scheduler(task_groups)
        return n_spans, [group for group in groups if group not in left]

    with ClusterPasses(rows, cluster2) as passes:
        counted(passes)
        before, groups = new_groups()
        assert groups == [f"largek_{passes.job}"]
        for _ in range(5):
            counted(passes)
        assert new_groups() == (before, groups)
    eventually(lambda: new_groups() == (before, []), "the last group to go")


def test_totals_are_added_up_few_at_a_time(rows, worker_clients, monkeypatch):
    """Their worker holds all of them at once."""
    monkeypatch.setattr(cluster_module, "FAN_IN", 2)
    submit, added = Network.submit, []

    async def noted(self, function, *args, worker=None):
        if function is combine_totals:
            added.append(len(args) - 1)
        return await submit(self, function, *args, worker=worker)

    monkeypatch.setattr(Network, "submit", noted)
    with (
        dask.config.set({"largek.passes.tree-bytes": 0}),
        ClusterPasses(rows, worker_clients(5)) as passes,
    ):
        assert counted(passes)[0] == N
    assert sum(added) - len(added) == 4, "five totals have become one"
    assert max(added) == 2


def large_chunk(chunk, total, values):
    total[0] += int(values.sum())
    total[1] += len(chunk.x)


@pytest.mark.parametrize("embed_bytes", [0, 1 << 30])
def test_large_broadcast(embed_bytes, rows, cluster2, monkeypatch):
    """Scattered, or embedded in the tasks."""
    monkeypatch.setattr(cluster_module, "EMBED_BYTES", embed_bytes)
    values = np.ones(50_000, np.int64)
    with ClusterPasses(rows, cluster2) as passes:
        for _ in range(2):
            total = passes.reduce(large_chunk, values, start=start, combine=combine)
            assert total[:2].tolist() == [50_000 * passes.n_chunks, N]
            assert passes.last.bytes_moved > 2 * values.nbytes


# --- rows that live in this process --------------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "weighted", "dask", "uneven"])
def test_rows_of_this_process_are_spilled_in_the_same_chunks(kind, x, cluster2, tmp_path):
    if kind == "dask":
        source = open_rows(da.from_array(x, chunks=((100, 1, 499), 2)))
    elif kind == "array":
        source = open_rows(x)
    else:
        weight = np.arange(N) % 3 + 0.5 if kind == "weighted" else None
        source = rows_of(x, [1, 99, 500] if kind == "uneven" else [300, 300], weight)
    with dask.config.set({"largek.passes.spill-folder": str(tmp_path)}):
        with ClusterPasses(source, cluster2) as passes, LocalPasses(source, n_threads=1) as local:
            np.testing.assert_array_equal(passes.rows.chunk_table, source.chunk_table)
            assert passes.statistics.to_dict() == local.statistics.to_dict()
            assert counted(passes) == counted(local)
            assert len(os.listdir(tmp_path)) == 1
        assert os.listdir(tmp_path) == [], "the temporary store is removed"


def test_spill_folder_that_cannot_be_written(x, cluster2, tmp_path):
    (tmp_path / "file").write_text("")
    with (
        dask.config.set({"largek.passes.spill-folder": str(tmp_path / "file")}),
        pytest.raises(OutputError, match="spill-folder"),
    ):
        ClusterPasses(rows_of(x, [N]), cluster2)


# --- what workers can be wrong about -------------------------------------------------------------


def test_relative_path(rows, cluster2):
    rows.location = "x.zarr"
    with pytest.raises(ParameterError, match=r"x\.zarr is a relative path"):
        ClusterPasses(rows, cluster2)


def test_data_that_workers_cannot_open(x, tmp_path, worker_clients):
    rows = open_rows(write_store(x, tmp_path))
    os.rename(tmp_path / "x.zarr", tmp_path / "y.zarr")
    with pytest.raises(
        DataError, match=r"no worker can open .*inproc://\S+ cannot open .*x\.zarr: .*not exist"
    ) as error:
        ClusterPasses(rows, worker_clients(1))
    # A job that has run before waits for it.
    assert trouble(error.value) == "lacking"


def test_data_of_another_shape(x, rows, worker_clients):
    rows.n_rows += 1
    with pytest.raises(DataError, match=r"shape \(600, 2\) instead of \(601, 2\)"):
        ClusterPasses(rows, worker_clients(1))


def told_by_workers(answer):
    """Versions of this process, and what a worker answers instead."""

    def told(dask_worker=None):
        return versions() if dask_worker is None else answer()

    return told


def test_workers_of_other_versions(rows, worker_clients, monkeypatch):
    told = told_by_workers(lambda: {**versions(), "largek_dask": "9.9"})
    monkeypatch.setattr("largek_dask.passes.admission.versions", told)
    with pytest.raises(VersionMismatchError, match=r"inproc://\S+ has largek_dask 9.9 instead of"):
        ClusterPasses(rows, worker_clients(1))


def jobs_known(dask_worker):
    """Jobs that a worker has been told of."""
    return [
        job
        for name, plugin in dask_worker.plugins.items()
        if name.startswith("largek")
        for job in plugin.jobs
    ]


def test_check__leaves_nothing_on_workers(rows, worker_clients):
    client = worker_clients(2)
    check_workers(client, rows, 60.0)
    assert not any(client.run(jobs_known).values())
    with ClusterPasses(rows, client):
        assert sum(map(len, client.run(jobs_known).values())) == 2, "one on each"


def test_check__does_not_wait_for_workers_that_may_come(rows, fresh_cluster):
    client = fresh_cluster(0, processes=False)
    with mock.patch.object(Workers, "ready", None):
        check_workers(client, rows, 60.0)


def test_check__waits_a_moment_for_answers_that_do_not_come(rows, worker_clients, monkeypatch):
    asked = []

    async def never(self, address):
        asked.append(address)
        await asyncio.Future()

    monkeypatch.setattr(Workers, "_answer", never)
    check_workers(worker_clients(1), rows, 0.2)
    assert len(asked) == 1


def test_bad_rows_are_named(x, tmp_path, cluster2):
    x = x.copy()
    x[417, 0] = np.nan
    with (
        dask.config.set({"largek.data.read-chunk-bytes": 1}),
        ClusterPasses(open_rows(write_store(x, tmp_path)), cluster2) as passes,
        pytest.raises(BadRowsError, match=r"row 417 .*chunk 8"),
    ):
        counted(passes)


# --- errors and stopping -------------------------------------------------------------------------


def failing_chunk(chunk, total, folder):
    if chunk.index == 7 and not os.path.exists(os.path.join(folder, "mended")):
        raise ZeroDivisionError(f"chunk {chunk.index}")
    total[0] += 1


def test_errors_come_back_with_their_traceback(rows, cluster2, tmp_path):
    def run():
        return passes.reduce(failing_chunk, str(tmp_path), start=start, combine=combine)

    with ClusterPasses(rows, cluster2) as passes:
        with pytest.raises(ZeroDivisionError, match="chunk 7") as caught:
            run()
        assert "failing_chunk" in [entry.name for entry in caught.traceback]
        (tmp_path / "mended").touch()
        assert run()[0] == passes.n_chunks


@pytest.fixture
def dask_logs():
    """All that Dask logs in this process. (At its debug level that is every message as it is.)"""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage() + str(record.exc_info))
    logger = logging.getLogger("distributed")
    with mock.patch.multiple(logger, handlers=[handler], level=logging.INFO):
        names = [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]
        loggers = [logging.getLogger(name) for name in names]
        before = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.INFO)
        yield lines
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def talkative_chunk(chunk, total):
    raise PermissionError("the key open-sesame opens nothing")


def test_what_a_worker_says_of_an_error_is_logged_by_nobody(rows, worker_clients, dask_logs):
    """A driver's error may hold secrets; they are taken out where it is told."""
    with ClusterPasses(rows, worker_clients(1)) as passes:
        with pytest.raises(PermissionError, match="open-sesame opens nothing"):
            passes.reduce(talkative_chunk, start=start, combine=combine)
        assert counted(passes)[0] == N
    assert dask_logs
    assert "open-sesame" not in str(dask_logs)


def test_what_a_worker_is_told_of_the_data_is_logged_by_nobody(
    rows, worker_clients, dask_logs, monkeypatch
):
    """Dask logs the arguments of a call that raises."""
    client = worker_clients(1)
    with ClusterPasses(rows, client) as passes:
        (worker,) = client.scheduler_info(n_workers=-1)["workers"]
        spec = WorkSpec("another", b"with open-sesame in it", None, 0)
        ask = partial(passes._network.call, admit, spec, (1, 1), worker=worker)
        assert "UnpicklingError" in passes._network.run(ask())
        monkeypatch.setattr(WorkPlugin, "name", "that is not there")
        assert isinstance(passes._network.run(ask()), RuntimeError)
        monkeypatch.undo()
    assert any("admit" in line for line in dask_logs), "it was called"
    assert "open-sesame" not in str(dask_logs)


def waiting_chunk(chunk, total, folder):
    """Says that it is there, and waits until it is told to go on."""
    if chunk.index == 0:
        with open(os.path.join(folder, "here"), "w") as fifo:
            fifo.write("x")
        with open(os.path.join(folder, "go")) as fifo:
            fifo.read()
    total[0] += 1


def test_cancel_does_not_wait_for_the_chunk(x, rows, cluster2, tmp_path):
    """The pass ends while its chunk still hangs; the next pass starts from the same state."""
    for name in ("here", "go"):
        os.mkfifo(tmp_path / name)
    here = os.open(tmp_path / "here", os.O_RDONLY | os.O_NONBLOCK)

    def cancelled():
        try:
            return os.read(here, 1) == b"x"
        except BlockingIOError:
            return False

    with ClusterPasses(rows, cluster2) as passes:
        path_pass(passes, 1, retain=True)
        passes.cancelled = cancelled
        with pytest.raises(CancelledFit):
            passes.reduce(waiting_chunk, str(tmp_path), start=start, combine=combine)
        passes.cancelled = None
        with open(tmp_path / "go", "w") as fifo:
            fifo.write("x")
        os.close(here)
        assert path_pass(passes, 2, retain=True)[0] == path_answers(x, 2)[-1]


def test_result__can_be_given_up_at_any_moment(fresh_cluster):
    """Whoever asks Dask for a value and goes would take its answers to all others along."""
    client = fresh_cluster(1, processes=False)

    async def given_up(future, steps):
        asked = asyncio.create_task(waiting.result(future))
        for _ in range(steps):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        return asked.cancelled()

    async def all_moments():
        done = client.submit(abs, -7)
        waits = client.submit(abs, -8, resources={"that no worker has": 1})
        assert await waiting.result(done) == 7
        cancelled = [await given_up(done, steps) for steps in range(12)]
        cancelled += [await given_up(waits, steps) for steps in range(12)]
        assert (done.status, waits.status) == ("finished", "pending")
        # Two who ask at once get one answer of Dask's: the other one still has to get it.
        other = asyncio.create_task(waiting.result(done))
        cancelled.append(await given_up(done, 2))
        return cancelled, await other, await waiting.result(done)

    async def within(seconds):
        return await asyncio.wait_for(all_moments(), seconds)

    cancelled, other, again = client.sync(within, 60.0)
    assert all(cancelled), "each was given up while it waited"
    assert (other, again) == (7, 7)


def test_on_the_clients_own_loop(rows, cluster2):
    async def blocking():
        ClusterPasses(rows, cluster2)

    with pytest.raises(ParameterError, match="event loop"):
        cluster2.sync(blocking)


def test_closed_passes_are_forgotten(rows, cluster2):
    with ClusterPasses(rows, cluster2) as passes:
        counted(passes)
        assert all(passes.job in found for found in cluster2.run(jobs_known).values())
    assert all(passes.job not in found for found in cluster2.run(jobs_known).values())


def test_a_worker_that_forgot_the_job_is_told_again(x, rows, cluster2):
    from largek_dask.passes.worker import drop_job

    with ClusterPasses(rows, cluster2) as passes:
        answers = [path_pass(passes, g, retain=True)[0] for g in (1, 2)]
        cluster2.run(drop_job, passes.job)
        answers.append(path_pass(passes, 3, retain=True)[0])
        assert passes.last.rebuilt == passes.n_chunks
        assert answers == path_answers(x, 3)


# --- workers that die, come and go ---------------------------------------------------------------


@pytest.mark.parametrize(("retain", "tree_bytes"), [(False, 64 << 20), (True, 0)])
def test_killed_worker(retain, tree_bytes, x, rows, fresh_cluster, tmp_path):
    """kill -9 inside a pass, behind a barrier in the chunk function."""
    client = fresh_cluster(2)
    pids = set(client.run(os.getpid).values())
    killer = Killer(tmp_path)
    killer.start()
    told = []
    with (
        dask.config.set({"largek.passes.tree-bytes": tree_bytes}),
        ClusterPasses(rows, client, on_event=lambda _, **event: told.append(event)) as passes,
    ):
        before = passes._workers.seen
        answers = []
        for g in range(1, 5):
            function = partial(barrier_chunk, str(tmp_path), path_chunk) if g == 3 else path_chunk
            answers.append(path_pass(passes, g, function, retain=retain)[0])
            if g == 3:
                assert killer.killed in pids, "the pass was in flight"
                assert 0 < passes.last.rebuilt < passes.n_chunks
                assert passes.last.retries > 0
        assert answers == path_answers(x, 4)
    [gone] = [event for event in told if event.get("change") == "left"]
    assert gone["address"] in before
    assert gone["chunks"] == N // CHUNK // 2, "what it had, though Dask has moved it on"


def test_a_share_reads_the_same_state_after_a_worker_was_killed(x, rows, fresh_cluster, tmp_path):
    """What it had written for all rows is written for all rows again."""
    client = fresh_cluster(2)
    with ClusterPasses(rows, client) as passes:
        path_pass(passes, 1)
        whole = read_on_share(passes, x, N // 50).tolist()
        assert passes.last.rebuilt == 0
        assert whole[:2] == [N // 50, N]
        killer = Killer(tmp_path)
        killer.start()
        function = partial(barrier_chunk, str(tmp_path), size_chunk)
        assert read_on_share(passes, x, N // 50, function).tolist() == whole
        assert killer.killed, "the pass was in flight"
        assert passes.last.rebuilt > 0


@pytest.mark.parametrize("embed_bytes", [0, pytest.param(1 << 30, marks=pytest.mark.slow)])
def test_only_worker_killed(embed_bytes, rows, fresh_cluster, tmp_path, monkeypatch):
    """With it goes the broadcast, which has to be sent again to its successor.

    A task that carries it lies at the scheduler, which gives it to nobody that comes later.
    """
    monkeypatch.setattr(cluster_module, "EMBED_BYTES", embed_bytes)
    values = np.ones(50_000, np.int64)
    client = fresh_cluster(1)
    killer = Killer(tmp_path)
    killer.start()
    with ClusterPasses(rows, client) as passes:
        function = partial(barrier_chunk, str(tmp_path), large_chunk)
        total = passes.reduce(function, values, start=start, combine=combine)
        assert killer.killed
        assert total[:2].tolist() == [50_000 * passes.n_chunks, N]
        assert passes.last.retries > 0


def test_worker_that_loses_a_parked_total(x, rows, fresh_cluster, monkeypatch):
    """It dies between its share and the tree: what it had is computed again."""
    client = fresh_cluster(2)
    tree = ClusterPasses._tree
    killed = []

    async def kill_first(self, current):
        if not killed:
            outcome = current.outcomes[0][0]
            pids = await client.run(os.getpid, workers=[outcome.worker])
            killed.append(pids[outcome.worker])
            os.kill(killed[0], signal.SIGKILL)
        return await tree(self, current)

    monkeypatch.setattr(ClusterPasses, "_tree", kill_first)
    with dask.config.set({"largek.passes.tree-bytes": 0}), ClusterPasses(rows, client) as passes:
        assert counted(passes)[0] == N
        assert passes.last.retries > 0
        assert killed


def test_worker_joins(x, rows, fresh_cluster):
    client = fresh_cluster(1, processes=False)
    told = []
    with ClusterPasses(
        rows, client, memory_limit=10**6, on_event=lambda kind, **event: told.append((kind, event))
    ) as passes:
        answers = [path_pass(passes, g, retain=True)[0] for g in (1, 2)]
        assert (told, passes.n_workers) == ([], 1), "who was there is no news"
        [first] = passes._workers.seen
        assert passes.last.workers == 1
        assert passes.state_limit == 10**6
        client.cluster.scale(2)
        client.wait_for_workers(2)
        # A pass waits for an answer of a new one for a moment only.
        passes._network.run(passes._workers.ready(wait_for=None))
        answers.append(path_pass(passes, 3, retain=True)[0])
        assert passes.last.workers == 2
        assert passes.state_limit == 2 * 10**6
        assert passes.last.rebuilt == passes.n_chunks // 2
        answers.append(path_pass(passes, 4, retain=True)[0])
        assert passes.last.rebuilt == 0
        assert answers == path_answers(x, 4)
        [new] = passes._workers.seen - {first}
        half = passes.n_chunks // 2
        assert told == [("worker", {"address": new, "change": "joined", "chunks": half})]
        assert passes.n_workers == 2
        client.retire_workers([new])
        assert path_pass(passes, 5, retain=True)[0] == path_answers(x, 5)[-1]
        assert told[1:] == [("worker", {"address": new, "change": "left", "chunks": half})]
        assert passes.left == {new}


def test_waits_for_workers(x, rows, fresh_cluster):
    """No workers: it says so once, goes on when one comes; a deadline still counts."""
    client = fresh_cluster(0, processes=False)
    with pytest.raises(CancelledFit, match="time limit"):
        ClusterPasses(rows, client, deadline=time.monotonic())
    said = []

    def hire(kind, message):
        said.append(kind)
        if kind == "waiting":
            client.loop.add_callback(client.cluster.scale, 1)

    client.cluster.scale(1)
    client.wait_for_workers(1)
    with ClusterPasses(rows, client) as passes:
        passes.log(hire)
        client.cluster.scale(0)
        eventually(lambda: not client.nthreads(), "the workers to leave")
        assert counted(passes)[0] == N
        assert said == ["waiting", "workers"]


def set_status(status, dask_worker):
    dask_worker.status = Status[status]


def pause(client, *addresses):
    """Pause workers, and wait until the scheduler knows."""
    client.run(set_status, "paused", workers=list(addresses))
    eventually(
        lambda: all(
            client.scheduler_info(n_workers=-1)["workers"][address]["status"] == "paused"
            for address in addresses
        ),
        "the scheduler to know that workers are paused",
    )


def test_paused_workers(x, rows, fresh_cluster):
    """One is left out, two are waited for; a deadline still counts."""
    said = []
    # Dask resumes a worker with enough memory, unless it does not look.
    with dask.config.set({"distributed.worker.memory.pause": False}):
        client = fresh_cluster(2, processes=False)

    def resume(kind, message):
        said.append((kind, message))
        if kind == "waiting":
            # The one of them that the pass before did without: another worker than then.
            client.loop.add_callback(client.run, set_status, "running", workers=[one])

    one, other = client.scheduler_info()["workers"]
    with ClusterPasses(rows, client, log=resume) as passes:
        assert path_pass(passes, 1, retain=True)[0] == path_answers(x, 1)[-1]
        pause(client, one)
        assert path_pass(passes, 2, retain=True)[0] == path_answers(x, 2)[-1]
        assert passes.last.workers == 1
        assert [kind for kind, _ in said] == ["workers"]
        assert f"{one} is paused" in said.pop()[1]
        pause(client, other)
        assert path_pass(passes, 3, retain=True)[0] == path_answers(x, 3)[-1]
        assert [kind for kind, _ in said] == ["waiting", "workers"]
        assert all(f"{address} is paused" in said[0][1] for address in (one, other))
        pause(client, one, other)
        with pytest.raises(CancelledFit, match="time limit"):
            ClusterPasses(rows, client, deadline=time.monotonic())


async def told_to_leave(workers, address):
    """Wait until it is known that a worker takes no tasks."""
    async with asyncio.timeout(120.0):
        while address in await workers.ready():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("status", "found"),
    [("closing_gracefully", "before the totals are added up"), ("paused", "while they are")],
)
def test_what_a_worker_that_leaves_has_computed_is_taken(status, found, x, rows, fresh_cluster):
    """Its total waits on it to be added up, and it takes no task any more."""
    with dask.config.set({"distributed.worker.memory.pause": False}):
        client = fresh_cluster(2, processes=False)
    one = min(client.scheduler_info(n_workers=-1)["workers"])
    tree, left = ClusterPasses._tree, []

    async def leave_before(self, current):
        if not left:
            left.append(one)
            assert {outcome.worker for outcome, _ in current.outcomes if outcome.parked} > {one}
            await client.run(set_status, status, workers=[one], asynchronous=True)
            await told_to_leave(self._workers, one)
            if found == "while they are":
                raise waiting.Lost(ClusterError(f"{one} does not answer"), left=True)
        return await tree(self, current)

    with (
        mock.patch.object(ClusterPasses, "_tree", leave_before),
        dask.config.set({"largek.passes.tree-bytes": 0}),
        ClusterPasses(rows, client) as passes,
    ):
        answers = [path_pass(passes, 1, retain=True)[0]]
        assert left
        assert passes.last.retries == 0
        assert passes.last.workers == 2
        answers.append(path_pass(passes, 2, retain=True)[0])
        assert passes.last.workers == 1, "it gets no new chunks"
        assert answers == path_answers(x, 2)


@pytest.mark.parametrize("answer", [None, RuntimeError("it is closing")])
def test_what_a_worker_that_leaves_does_not_give_is_computed_again(
    answer, x, rows, fresh_cluster, monkeypatch
):
    with dask.config.set({"distributed.worker.memory.pause": False}):
        client = fresh_cluster(2, processes=False)
    one = min(client.scheduler_info(n_workers=-1)["workers"])
    tree, call, left, asked = ClusterPasses._tree, Network.call, [], []

    def refuse(job, share, dask_worker=None):
        return answer

    def listen(self, function, *arguments, **options):
        if function is refuse:
            asked.append(options["worker"])
        return call(self, function, *arguments, **options)

    async def leave(self, current):
        if not left:
            left.extend(chunks for outcome, chunks in current.outcomes if outcome.worker == one)
            await client.run(set_status, "paused", workers=[one], asynchronous=True)
            await told_to_leave(self._workers, one)
        return await tree(self, current)

    monkeypatch.setattr("largek_dask.passes.cluster.take_total", refuse)
    monkeypatch.setattr(Network, "call", listen)
    monkeypatch.setattr(ClusterPasses, "_tree", leave)
    with dask.config.set({"largek.passes.tree-bytes": 0}), ClusterPasses(rows, client) as passes:
        assert path_pass(passes, 1, retain=True)[0] == path_answers(x, 1)[-1]
        assert set(asked) == {one}
        assert passes.last.retries == sum(map(len, left)) > 0


def test_a_worker_that_is_retired_in_a_slice(x, rows, fresh_cluster, tmp_path):
    """Dask takes its task away at once: it is computed anew, each chunk counted once."""
    client = fresh_cluster(2)
    addresses = {pid: address for address, pid in client.run(os.getpid).items()}
    for name in ("pid", "go"):
        os.mkfifo(tmp_path / name)
    retired = []

    def retire():
        with open(tmp_path / "pid") as fifo:
            address = addresses[int(fifo.read())]
        retired.extend(client.retire_workers([address]))
        with open(tmp_path / "go", "w"):
            pass

    retiring = threading.Thread(target=retire, daemon=True)
    retiring.start()
    with ClusterPasses(rows, client) as passes:
        answers = []
        for g in range(1, 5):
            function = partial(barrier_chunk, str(tmp_path), path_chunk) if g == 3 else path_chunk
            answers.append(path_pass(passes, g, function, retain=True)[0])
            if g == 3:
                assert retired, "in the middle of its slice"
                assert passes.last.retries > 0
                assert 0 < passes.last.rebuilt < passes.n_chunks
        assert answers == path_answers(x, 4)
        assert passes.last.workers == 1
    retiring.join(60.0)
    assert not retiring.is_alive()


def test_the_rest_of_a_share_goes_to_all_others(x, rows, fresh_cluster, quick_slices):
    """Of a worker that takes no tasks any more between two slices."""
    with dask.config.set({"distributed.worker.memory.pause": False}):
        client = fresh_cluster(3, processes=False)
    one = min(client.scheduler_info(n_workers=-1)["workers"])
    real, left = waiting.result, []

    async def leave_after(future):
        outcome = await real(future)
        if not left and outcome.worker == one:
            left.append(outcome.finished)
            await client.run(set_status, "closing_gracefully", workers=[one], asynchronous=True)
            await told_to_leave(passes._workers, one)
        return outcome

    with mock.patch.object(waiting, "result", leave_after), ClusterPasses(rows, client) as passes:
        assert path_pass(passes, 1)[0] == path_answers(x, 1)[-1]
        assert left == [False], "in the middle of its share"
        assert passes.last.retries == passes.n_chunks // 3
        assert passes.last.workers == 2
        assert sorted(Counter(passes._owner.values()).values()) == [passes.n_chunks // 2] * 2


def test_a_silent_worker_loses_its_share(rows, fresh_cluster, tmp_path, monkeypatch):
    """Its task never answers; what it had is computed by the other."""
    client = fresh_cluster(2)
    pids = {pid: address for address, pid in client.run(os.getpid).items()}
    silent = []
    for name in ("pid", "go"):
        os.mkfifo(tmp_path / name)
    look = Workers._look

    def look_past(self, found):
        present = look(self, found)
        if silent:
            self._absent[silent[0]] = _Absence("silent", "says nothing")
            present.pop(silent[0], None)
        return present

    def fall_silent():
        with open(tmp_path / "pid") as fifo:
            silent.append(pids[int(fifo.read())])

    monkeypatch.setattr(Workers, "_look", look_past)
    monkeypatch.setattr(waiting, "WATCH_SECONDS", 0.05)
    barrier = threading.Thread(target=fall_silent)
    barrier.start()
    said = []
    with ClusterPasses(
        rows,
        client,
        log=lambda kind, text, **about: said.append((kind, text)),
        deadline=time.monotonic() + 60,  # to fail, not to hang
    ) as passes:
        function = partial(barrier_chunk, str(tmp_path), count_chunk)
        total = passes.reduce(function, start=start, combine=combine)
        join(barrier)
        assert total[:2].tolist() == [N, passes.n_chunks]
        assert passes.last.retries == passes.n_chunks // 2
        assert passes.last.workers == 1
        assert ("workers", f"1 worker continues without: {silent[0]} says nothing") in said
        with open(tmp_path / "go", "w") as fifo:
            fifo.write("x")


def test_a_result_that_is_asked_of_a_worker_that_has_gone_is_given_up(
    rows, fresh_cluster, monkeypatch
):
    """A done task's value goes with its worker, and whoever asks for it would ask for long."""
    client = fresh_cluster(2)
    pids = client.run(os.getpid)
    monkeypatch.setattr(waiting, "WATCH_SECONDS", 0.05)
    real, asked = distributed.client.retry_operation, []

    async def asks_for_ever(question, **options):
        if asked or "keys" not in options:
            return await real(question, **options)
        # The results of both workers may be asked for at once.
        key = next(iter(options["keys"]))
        # None where it has just been told to be done: the other one will be asked.
        for address in (await client.scheduler.who_has(keys=[key]))[key]:
            asked.append(address)
            os.kill(pids[address], signal.SIGKILL)
            await asyncio.Future()
        return await real(question, **options)

    monkeypatch.setattr(distributed.client, "retry_operation", asks_for_ever)
    deadline = time.monotonic() + 240  # to fail, not to hang
    with ClusterPasses(rows, client, deadline=deadline) as passes:
        assert counted(passes)[:2] == [N, passes.n_chunks]
        assert passes.last.retries == passes.n_chunks // 2
        assert asked[0] not in client.scheduler_info(n_workers=-1)["workers"]


def test_a_broadcast_to_a_silent_worker_is_given_up(rows, worker_clients, monkeypatch):
    """What a large payload waits for may never come."""
    values = np.ones(50_000, np.int64)
    monkeypatch.setattr(cluster_module, "EMBED_BYTES", 0)
    monkeypatch.setattr(waiting, "WATCH_SECONDS", 0.0)
    real, lost = Network.scatter, []

    async def never(self, value, worker):
        if not lost:
            lost.append(worker)
            await asyncio.Future()
        return await real(self, value, worker)

    def is_lost(self, address, since):
        return lost.count(address) == 1 and not lost.append(address)

    monkeypatch.setattr(Network, "scatter", never)
    monkeypatch.setattr(Workers, "is_lost", is_lost)
    deadline = time.monotonic() + 240  # to fail, not to hang
    with ClusterPasses(rows, worker_clients(1), deadline=deadline) as passes:
        total = passes.reduce(large_chunk, values, start=start, combine=combine)
        assert total[:2].tolist() == [50_000 * passes.n_chunks, N]
        assert passes.last.retries == passes.n_chunks
        assert len(lost) == 2


def deadly_chunk(chunk, total):
    if chunk.index == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    total[0] += 1


def test_chunk_that_kills_every_worker_is_named(rows, fresh_cluster):
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        client = fresh_cluster(2)
        with (
            ClusterPasses(rows, client) as passes,
            pytest.raises(ClusterError, match=re.escape("chunk 5 (rows 250 to 299)")),
        ):
            passes.reduce(deadly_chunk, start=start, combine=combine)


def dying(monkeypatch, n_deaths, company):
    """Workers die under the first shares, each of which was on some together with ``company``."""
    real, died, asked = waiting.result, [], []

    async def killed(future):
        if len(died) < n_deaths:
            died.append(future.key)
            last = mock.Mock(address="tcp://somewhere")
            raise waiting.Lost(KilledWorker(future.key, last, 3))
        return await real(future)

    async def deaths(self, task):
        assert task == died[-1]
        asked.append(task)
        return [{task, *others} for others in company]

    monkeypatch.setattr(waiting, "result", killed)
    monkeypatch.setattr(Network, "deaths", deaths)
    monkeypatch.setattr(cluster_module, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(poison_chunks, "ALONE_SECONDS", 0.0)
    return died, asked


def test_a_chunk_whose_workers_died_under_others_too_is_not_blamed(rows, cluster2, monkeypatch):
    """Another job's chunk may have killed them; one share of each of two workers, then alone."""
    died, asked = dying(monkeypatch, 4, [{"somebodys-sum"}, {"somebodys-sum", ("sum", 2)}])
    with ClusterPasses(rows, cluster2) as passes:
        assert counted(passes)[0] == N
    assert len(died) == 4
    assert len(asked) == 2, "two were of single chunks"


def test_a_chunk_that_has_killed_alone_is_blamed_at_once(rows, cluster2, monkeypatch):
    died, _ = dying(monkeypatch, 99, [{"largek_0-7"}, set()])
    with (
        ClusterPasses(rows, cluster2) as passes,
        pytest.raises(ClusterError, match="killed every worker"),
    ):
        counted(passes)
    assert len(died) == 3, "both shares, and then one chunk"


def test_a_chunk_that_kills_in_whatever_company_is_blamed_in_the_end(rows, cluster2, monkeypatch):
    died, _ = dying(monkeypatch, 99, [{"largek_0-7"}])
    with (
        ClusterPasses(rows, cluster2) as passes,
        pytest.raises(ClusterError, match="killed every worker"),
    ):
        counted(passes)
    assert len(died) == 3 + poison_chunks.FORGIVEN


def test_the_tasks_of_a_worker_that_has_died_are_known(fresh_cluster, tmp_path):
    client = fresh_cluster(1)
    network = Network(client, "me")
    os.mkfifo(tmp_path / "pid")

    def running():
        with open(tmp_path / "pid", "w") as fifo:
            fifo.write(str(os.getpid()))
        threading.Event().wait()

    first, second = (network.run(network.submit(task)) for task in (running, os.getpid))
    with open(tmp_path / "pid") as fifo:
        pid = int(fifo.read())
    # The other one waits behind it for the only thread, once the scheduler has come to it.
    eventually(
        lambda: (
            {first.key, second.key} <= {key for on in client.processing().values() for key in on}
        ),
        "both tasks to be handed out",
    )
    assert network.run(network.deaths(first.key)) == []
    os.kill(pid, signal.SIGKILL)
    with open(tmp_path / "pid") as fifo:
        assert int(fifo.read()) != pid, "it runs again, on the worker that came instead"
    assert network.run(network.deaths(first.key)) == [{first.key, second.key}]
    assert network.run(network.deaths(second.key)) == [{first.key, second.key}]
    client.cancel([first, second])


def test_retries_are_bounded(rows, cluster2, monkeypatch):
    """A cluster that cancels everything is given up, naming a chunk."""

    async def cancelled(future):
        raise waiting.Lost(FutureCancelledError("key", "test"))

    monkeypatch.setattr(waiting, "result", cancelled)
    monkeypatch.setattr(cluster_module, "BACKOFF_SECONDS", 0.0)
    said = []
    with ClusterPasses(rows, cluster2) as passes:
        passes.log(lambda kind, message, **about: said.append(kind))
        with pytest.raises(ClusterError, match=r"chunk \d+ .*failed 6 times"):
            counted(passes)
    assert set(said) == {"retry"}


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(faults=st.lists(st.booleans(), max_size=12), retain=st.booleans(), tree=st.booleans())
def test_lost_answers_are_counted_once(faults, retain, tree, x, rows, worker_clients):
    """Any answer may be lost after its work was done: no row counts or advances twice."""
    real = waiting.result
    left = list(faults)

    async def lossy(future):
        answer = await real(future)
        if left and left.pop():
            raise waiting.Lost(RuntimeError("lost on purpose"))
        return answer

    with (
        mock.patch.object(waiting, "result", lossy),
        mock.patch.object(cluster_module, "BACKOFF_SECONDS", 0.0),
        dask.config.set(
            {"largek.passes.chunk-retries": 20, "largek.passes.tree-bytes": 0 if tree else 1 << 26}
        ),
        ClusterPasses(rows, worker_clients(3)) as passes,
    ):
        answers = [path_pass(passes, g, retain=retain)[0] for g in range(1, 5)]
        assert answers == path_answers(x, 4)
        assert counted(passes)[0] == N


def test_two_jobs_on_one_cluster(x, rows, cluster2):
    """Interleaved passes of two jobs share the workers and nothing else."""
    with ClusterPasses(rows, cluster2) as one, ClusterPasses(rows, cluster2) as two:
        for g in (1, 2, 3):
            assert path_pass(one, g, retain=True)[0] == path_answers(x, g)[-1]
            state = RowState("path", g, tuple((10 * f,) for f in range(1, g)), retain=True)
            total = two.reduce(path_chunk, 10 * g, start=start, combine=combine, state=state)
            assert one.last.rebuilt == two.last.rebuilt == 0
        assert total[0] != path_answers(x, 3)[-1]
