"""Which workers there are, what they have, why one is left out; and one is let go."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace

import dask
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.errors import ClusterError, ParameterError
from largek_dask.passes import admission
from largek_dask.passes.admission import Workers, told_of
from largek_dask.passes.worker import versions
from largek_dask.service.worker_admin import Crew
from tests.conftest import make_client
from tests.helpers.checks import eventually

A, B = "tcp://10.0.0.1:4000", "tcp://10.0.0.11:4000"


def worker(address=A, status="running", seen=99.0, **other):
    about = {"name": address[-9:-5], "resources": {"bigmem": 1}, "nthreads": 2,
             "server_id": address, "metrics": {"memory": 10}, "memory_limit": 100}  # fmt: skip
    state = SimpleNamespace(name=status)
    return SimpleNamespace(address=address, status=state, last_seen=seen, **{**about, **other})


def job(name="lk-1", said=""):
    return SimpleNamespace(record=SimpleNamespace(id=name), about_workers=said)


def rows_of(workers, answers, jobs=()):
    """Rows of workers that answer so, and how often they were asked."""
    asked = []

    class Client:
        def sync(self, _function, _client, addresses):
            asked.append(addresses)
            return [answers[address] for address in addresses]

    there = SimpleNamespace(workers={w.address: w for w in workers})
    crew = Crew(there, lambda: list(jobs), Client, None, lambda: 100.0)
    rows = {row["address"]: row for row in crew.rows()}
    assert {row["address"] for row in crew.rows()} == set(rows)
    return rows, asked


def test_rows__what_is_known_of_each():
    rows, asked = rows_of([worker(), worker(B)], {A: versions(), B: versions()}, [job()])
    assert rows[A] == {
        "address": A, "name": A[-9:-5], "tags": {"bigmem": 1.0},
        "version": lk.__version__, "threads": 2, "status": "running", "memory": 10,
        "memory_limit": 100, "silent": 1.0, "why": None,
    }  # fmt: skip
    assert asked == [[A, B]], "versions do not change while a worker runs"


def test_rows__why_one_is_left_out():
    without = "3 workers go on without: "
    for given, answer, said, why in (
        ({"status": "paused"}, versions(), "", "is paused by Dask for want of memory"),
        ({"status": "closing_gracefully"}, versions(), "", "is being retired"),
        ({"seen": -1.0}, versions(), "", "has not been heard of for 101 s"),
        ({}, {**versions(), "numba": "0.1"}, "", "has numba 0.1 instead of"),
        ({}, ImportError("no largek_dask"), "", "cannot import this version of largek_dask"),
        ({}, TimeoutError(), "", "does not answer (TimeoutError)"),
        ({}, versions(), f"{without}{A} cannot open /x: gone; {B} has not been heard of for 70 s",
         "cannot open /x: gone (job lk-1)"),
        ({}, versions(), f"{without}{B} cannot open /x", None),
    ):  # fmt: skip
        rows, _ = rows_of([worker(**given)], {A: answer}, [job(said=said)])
        found = rows[A]["why"]
        assert found is None if why is None else found.startswith(why)


def test_rows__who_does_not_answer_is_asked_again():
    _, asked = rows_of([worker(), worker(B)], {A: versions(), B: TimeoutError()})
    assert asked == [[A, B], [B]]


def test_told_of__what_workers_say_of_each_other():
    """The texts are made by the class that looks after workers, of any errors."""
    said = []
    workers = object.__new__(Workers)
    workers._say = lambda kind, text: said.append(text)
    workers._told = (True, frozenset())
    absence = admission._Absence
    workers._absent = {
        A: absence("data", "cannot open s3://x: Error: it; and more: a"),
        B: absence("silent", "has not answered for 70 s"),
    }
    for n_ready in (0, 2):
        workers._tell(n_ready)
        assert told_of(said[-1], A) == "cannot open s3://x: Error: it; and more: a"
        assert told_of(said[-1], B) == "has not answered for 70 s"
        assert told_of(said[-1], A[:-1]) is None
    assert told_of("", A) is None


def test_workers__of_a_cluster_and_one_is_retired(tmp_path):
    quick = {"largek.service.beat-seconds": 0.05, "largek.service.patience-seconds": 1.0}
    x = np.random.default_rng(0).standard_normal((600, 4)).astype(np.float32)
    lk.ingest(x, str(tmp_path / "x.zarr"), chunk_rows=100, progress=False)
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({**quick, "largek.data.read-chunk-bytes": 1}))
        client = make_client(stack, 2, processes=False, resources={"bigmem": 1})
        service = lk.connect(client, store=str(tmp_path / "store"))
        job = service.submit(
            str(tmp_path / "x.zarr"), n_clusters=5, output=str(tmp_path / "out"),
            algorithm=lk.MiniBatch(batch_rows=64), tol=0.0, max_iter=10**6,
        )  # fmt: skip
        eventually(lambda: job.status().get("step", 0) >= 2, "it takes steps")
        rows = service.workers()
        assert len(rows) == 2
        for row in rows:
            assert row["tags"] == {"bigmem": 1.0}
            assert (row["version"], row["why"]) == (lk.__version__, None)
            assert row["silent"] < 60
        with pytest.raises(ParameterError, match="there is no worker 'nobody'"):
            service.retire("nobody")
        gone = rows[0]["address"]
        assert service.retire(rows[0]["name"]) == gone
        left = eventually(
            lambda: [row for row in service.workers() if row["status"] == "running"], "the other"
        )
        assert [row["address"] for row in left] == [rows[1]["address"]]
        step = job.status()["step"]
        eventually(lambda: job.status().get("step", 0) > step, "the job goes on")
        job.cancel()
        job.wait("60s")


def test_retire__one_that_does_not_go():
    async def stays(**_):
        return {}

    async def asked():
        there = SimpleNamespace(workers={A: worker()}, retire_workers=stays)
        crew = Crew(there, list, lambda: None, asyncio.get_running_loop())
        await asyncio.to_thread(crew.retire, A)

    with pytest.raises(ClusterError, match=r"cannot be retired now: .* Start another worker"):
        asyncio.run(asked())
