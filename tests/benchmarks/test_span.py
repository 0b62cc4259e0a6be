"""Predictions for many threads and workers from a fit on one thread."""

from __future__ import annotations

import pytest

import largek_dask as lk
from benchmarks import span
from benchmarks.common import read_result
from benchmarks.sets import mixture
from benchmarks.span_trace import STAGES, recorded
from largek_dask.data.sources import open_rows
from largek_dask.kernels import threads

K = 150
"""Number of clusters, with which rows are compared with lists of centres."""


def test_makespan_of_threads_that_take_the_next_part():
    assert span.makespan([3, 1, 1, 1, 2], [0]) == 8
    assert span.makespan([3, 1, 1, 1, 2], [0, 0]) == 5
    assert span.makespan([2, 1, 1, 1, 3], [0, 0]) == 5
    assert span.makespan([3, 1, 1, 1, 2], [0] * 5) == 3
    # The second thread begins late, and the third too late for any part.
    assert span.makespan([2, 2, 2], [0, 1, 9]) == 4


def test_figures_of_many_workers_are_met_and_extrapolated():
    many = read_result("many")["measured"]
    figures = {n: span.of_many(many, "tasks", n) for n in (1, 2, 16, 64, 256)}
    for n in (1, 16, 64):
        one = many[str(n)]["tasks"]
        assert figures[n] == pytest.approx(one["driver"] + one["scheduler"] + one["most"])
    assert figures[256] / figures[64] == pytest.approx(figures[64] / figures[16])


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    x, before = mixture(10_000, 8, 2 * K), (threads.on_threads, threads._share)
    store = str(tmp_path_factory.mktemp("span") / "rows.zarr")
    lk.ingest(x, store, progress=False)
    about = {
        "bytes_per_second": 1e10,
        "hand_over": {str(n): 1e-5 * n for n in span.THREADS},
        "join": span.join(),
    }
    found = {
        str(n): span.on_many_threads(recorded(open_rows(x), K, n), n, about) for n in (2, 16, 64)
    }
    stored = recorded(open_rows(store), K, 1, driver=4)
    assert (threads.on_threads, threads._share) == before
    workers = span.on_workers(stored, read_result("many")["measured"], about, copies=10)
    held_out = {"1": 2.0, "2": 1.0}
    return {
        "set": "tiny", "n": len(x), "d": 8, "k": K, "threads": found, "workers": workers,
        "two threads": held_out, "two workers": held_out, "about": about,
    }  # fmt: skip


def test_a_fit_on_one_thread_gives_the_parts_of_many(record):
    for figures in record["threads"].values():
        serial, shared = (sum(figures[name].values()) for name in ("serial", "shared"))
        assert serial + shared == pytest.approx(figures["work"])
        assert serial < figures["chain"] <= figures["seconds"] + 1e-9
        assert figures["shared"]["pass"] > 0
        assert set(figures["serial"]) == set(STAGES)
    workers = record["workers"]
    assert workers["n_passes"] > 10
    assert workers["driver"]["lists"] > 0
    assert workers["on"]["1"]["chunks"] + workers["on"]["1"]["driver"] == pytest.approx(
        workers["work"]
    )


def test_tables(record):
    result = {"cpu": "a processor", "machine": record["about"], "records": [record]}
    for make in (span.of_threads, span.of_stages, span.of_workers, span.of_driver):
        assert "\n| tiny |" in make(result)
    lines = span.of_held_out(result).splitlines()
    assert [line.split(" | ")[1] for line in lines[2:]] == ["two threads", "two workers"]
