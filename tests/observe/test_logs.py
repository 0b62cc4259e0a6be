"""Logs as lines of JSON: what they say, what they leave out, and for which job they are written."""

import gc
import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client

import largek_dask as lk
from largek_dask.context import Working, carried, working, working_for
from largek_dask.errors import ParameterError
from largek_dask.kernels.threads import on_threads
from largek_dask.observe.logs import JsonLine, set_up
from largek_dask.passes.local import LocalPasses
from largek_dask.redaction import hide_in_logs, redactor
from tests.observe.shouting import SECRET, SHOUT

JOB = Working("7f3a", 2)
FIELDS = {"time", "level", "logger", "message", "job_id", "run", "worker"}


def line_of(message, *args, worker=None, error=None):
    record = logging.LogRecord("a.b", logging.WARNING, "", 0, message, args, error)
    return JsonLine(worker).format(record)


def test_a_line_says_who_when_and_for_which_job():
    with working_for(JOB):
        told = json.loads(line_of("%d rows", 3, worker="tcp://10.0.0.7:1"))
    assert set(told) == FIELDS
    assert (told["level"], told["logger"], told["message"]) == ("WARNING", "a.b", "3 rows")
    assert (told["job_id"], told["run"], told["worker"]) == ("7f3a", 2, "tcp://10.0.0.7:1")
    assert told["time"].endswith("+00:00")
    alone = json.loads(line_of("no job"))
    assert alone["job_id"] is alone["run"] is alone["worker"] is None


def test_nothing_in_a_message_ends_a_line_or_steers_a_terminal():
    hostile = "".join(map(chr, [*range(32), 0x7F, *range(0x80, 0xA0), 0x2028, 0x2029, 0x1F600]))
    line = line_of("%s", hostile)
    assert all(" " <= letter <= "~" for letter in line)
    assert json.loads(line)["message"] == hostile


def test_an_error_is_told_with_its_traceback_and_a_broken_message_as_it_is():
    try:
        raise ValueError("here")
    except ValueError:
        told = json.loads(line_of("failed", error=sys.exc_info()))
    assert told["message"].startswith("failed\nTraceback")
    assert told["message"].endswith("ValueError: here")
    assert "cannot be shown" in json.loads(line_of("%d", "no number"))["message"]


def test_secrets_are_left_out_as_long_as_somebody_works_with_them():
    redact = redactor({"token": SECRET})
    hide_in_logs(redact)
    told = json.loads(line_of("the token %s", SECRET))
    assert told["message"] == "the token ***"
    try:
        raise ValueError(SECRET)
    except ValueError:
        assert SECRET not in line_of("failed", error=sys.exc_info())
    del redact
    gc.collect()  # it calls itself, and so holds itself
    assert SECRET in line_of("the token %s", SECRET), "nothing is kept of jobs that are over"


def test_a_job_is_known_on_every_thread_that_works_for_it():
    assert carried(working) is working
    barrier = threading.Barrier(3)

    def who(_):
        barrier.wait(30)
        return threading.get_ident(), working()

    with working_for(JOB):
        found = on_threads(3, who, range(3))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(working).result() is None
            assert pool.submit(carried(working)).result() == JOB
    assert {job for _, job in found} == {JOB}
    threads = {thread for thread, _ in found}
    assert len(threads) == 3
    assert threading.get_ident() in threads, "who asks for threads works too"
    assert working() is None
    barrier.reset()
    assert {job for _, job in on_threads(3, who, range(3))} == {None}


def note(chunk, total):
    total.append((threading.current_thread().name, working()))


def test_a_job_is_known_where_chunks_are_read_and_computed(tmp_path):
    x = np.random.default_rng(0).standard_normal((600, 3))
    with dask.config.set({"largek.data.read-chunk-bytes": 1}):
        lk.ingest(x, tmp_path / "x.zarr", chunk_rows=50, progress=False)
        rows, seen = lk.open_rows(tmp_path / "x.zarr"), []
    assert rows.n_chunks == 12
    read = type(rows).read

    def watched(self, *args, **named):
        seen.append((threading.current_thread().name, working()))
        return read(self, *args, **named)

    with pytest.MonkeyPatch.context() as patch, working_for(JOB):
        patch.setattr(type(rows), "read", watched)
        with LocalPasses(rows, n_threads=2) as passes:
            computed = passes.reduce(note, start=list, combine=lambda a, b: a + b)
    assert len(computed) >= 12
    assert {job for _, job in computed} == {job for _, job in seen} == {JOB}
    assert any(name.startswith("largek-compute") for name, _ in computed)
    assert any(name.startswith("largek-read") for name, _ in seen)


@pytest.fixture
def as_before():
    """The log of this process stays as it is."""
    root, own = logging.getLogger(), logging.getLogger("largek_dask")
    kept = [(handler, handler.formatter) for handler in root.handlers]
    handlers, level = root.handlers[:], own.level
    yield
    root.handlers[:] = handlers
    for handler, formatter in kept:
        handler.setFormatter(formatter)
    own.setLevel(level)
    logging.captureWarnings(False)


def test_setting_up(as_before, capsys):
    with pytest.raises(ParameterError, match="plain, json"):
        set_up("yaml")
    root = logging.getLogger()
    root.handlers[:] = []
    set_up("plain")
    assert root.handlers == []
    set_up("json", "tcp://w")
    set_up("json", "tcp://w")
    assert len(root.handlers) == 1
    logging.getLogger("largek_dask.anything").info("said")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("and warned of", UserWarning, stacklevel=1)
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["message"], first["worker"]) == ("said", "tcp://w")
    assert second["logger"] == "py.warnings"
    assert "and warned of" in second["message"]


@pytest.mark.slow
def test_processes_of_dask_write_nothing_but_json(tmp_path):
    """Scheduler and worker as they are started by hand, with a job that says too much."""
    x = np.random.default_rng(0).standard_normal((600, 3))
    lk.ingest(x, tmp_path / "x.zarr", chunk_rows=50, progress=False)
    found_at = str(tmp_path / "scheduler.json")
    logs = {name: tmp_path / f"{name}.log" for name in ("scheduler", "worker")}
    commands = {
        "scheduler": [
            "--host", "127.0.0.1", "--port", "0", "--scheduler-file", found_at,
            "--preload", "tests.observe.shouting",
            "--preload", "largek_dask.service.preload",
            "--largek-store", str(tmp_path / "store"), "--largek-log", "json",
        ],
        "worker": ["--scheduler-file", found_at, "--no-nanny", "--nthreads", "2",
                   "--preload", "tests.observe.shouting"],
    }  # fmt: skip
    with ExitStack() as stack:
        for name, arguments in commands.items():
            log = stack.enter_context(open(logs[name], "wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", name, *arguments, "--dashboard-address", ":0"],
                stdout=log, stderr=log,
                env={**os.environ, "DASK_LARGEK__DATA__READ_CHUNK_BYTES": "1",
                     "PYTHONPATH": str(Path(__file__).parents[2])},
            )  # fmt: skip
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
        client = stack.enter_context(
            Client(scheduler_file=found_at, timeout=120, set_as_default=False)
        )
        client.wait_for_workers(1, timeout=120)
        job = lk.connect(client).submit(
            str(tmp_path / "x.zarr"), n_clusters=5, output=str(tmp_path / "out"), max_iter=3,
            storage_options={"token": SECRET},
        )  # fmt: skip
        job.result("120s")
    for name, point in (("scheduler", "step"), ("worker", "chunk")):
        lines = logs[name].read_text().splitlines()
        # What Dask says before any of this package is asked is as Dask has it.
        begin = next(i for i, line in enumerate(lines) if line.startswith("{"))
        told = [json.loads(line) for line in lines[begin:]]
        shouts = [line for line in told if line["logger"] == "somebody.elses"]
        assert shouts
        assert {line["job_id"] for line in shouts} == {job.id}
        assert {line["run"] for line in shouts} == {1}
        expected = SHOUT.replace(SECRET, "***")
        assert {line["message"] for line in shouts} == {f"{expected} at {point}"}
        assert {line["worker"] is None for line in told} == {name == "scheduler"}
        assert SECRET not in logs[name].read_text().split("{", 1)[1]
