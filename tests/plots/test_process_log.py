"""Log lines of a process name their job, and events of jobs have the last ones of each process."""

import gc
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client

import largek_dask as lk
from largek_dask.context import carried, current_job, working_for
from largek_dask.kernels.threads import on_threads
from largek_dask.passes.local import LocalPasses
from largek_dask.redaction import Redactor, hide_in_logs
from largek_dask.service.process_log import JobFilter, LastWarnings, last_warnings, unwatch, watch
from tests.plots.shouting import SECRET, SHOUT

JOB = "lk-7f3a"


def shown(message, *args, error=None):
    """A line as a handler with the filter prints it."""
    record = logging.LogRecord("a.b", logging.WARNING, "", 0, message, args, error)
    assert JobFilter().filter(record)
    assert JobFilter().filter(record), "once more, as for a second handler"
    return logging.Formatter("%(levelname)s %(message)s").format(record)


def test_a_line_names_the_job_of_its_thread():
    assert shown("%d rows", 3) == "WARNING 3 rows"
    with working_for(JOB):
        assert shown("%d rows", 3) == f"WARNING [{JOB}] 3 rows"
        assert shown("100 %") == f"WARNING [{JOB}] 100 %"


def test_a_message_that_does_not_fit_its_arguments_raises_nothing():
    with working_for(JOB):
        assert "many" in shown("%d rows", "many")


def test_lines_of_jobs_have_no_secrets_as_long_as_somebody_works_with_them():
    redact = Redactor({"token": SECRET})
    hide_in_logs(redact)
    with working_for(JOB):
        assert shown("the token %s", SECRET) == f"WARNING [{JOB}] the token ***"
        try:
            raise ValueError(SECRET)
        except ValueError:
            told = shown("failed", error=sys.exc_info())
        assert SECRET not in told
        assert told.endswith("ValueError: ***")
        del redact
        gc.collect()
        assert SECRET in shown("the token %s", SECRET), "nothing is kept of jobs that are over"


def test_a_job_is_known_on_every_thread_that_works_for_it():
    assert carried(current_job) is current_job
    barrier = threading.Barrier(3)

    def who(_):
        barrier.wait(30)
        return threading.get_ident(), current_job()

    with working_for(JOB):
        found = on_threads(3, who, range(3))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(current_job).result() is None
            assert pool.submit(carried(current_job)).result() == JOB
    assert {job for _, job in found} == {JOB}
    threads = {thread for thread, _ in found}
    assert len(threads) == 3
    assert threading.get_ident() in threads, "who asks for threads works too"
    assert current_job() is None
    barrier.reset()
    assert {job for _, job in on_threads(3, who, range(3))} == {None}


def note(chunk, total):
    total.append((threading.current_thread().name, current_job()))


def test_a_job_is_known_where_chunks_are_read_and_computed(tmp_path):
    x = np.random.default_rng(0).standard_normal((600, 3))
    with dask.config.set({"largek.data.read-chunk-bytes": 1}):
        lk.ingest(x, tmp_path / "x.zarr", chunk_rows=50, progress=False)
        rows, seen = lk.open_rows(tmp_path / "x.zarr"), []
    assert rows.n_chunks == 12
    read = type(rows).read

    def watched(self, *args, **named):
        seen.append((threading.current_thread().name, current_job()))
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
def watched():
    """A node of Dask whose log is watched, as far as that matters."""

    class Node:
        _deque_handler = logging.Handler()

    node, root = Node(), logging.getLogger()
    before, node.lines = root.handlers[:], []
    node._deque_handler.emit = lambda record: node.lines.append(record.getMessage())
    watch(node)
    yield node
    unwatch(node)
    root.handlers[:] = before


@pytest.mark.parametrize("name", ["some.library", "largek_dask.passes", "distributed.worker"])
def test_the_last_warnings_of_this_process(watched, name):
    logger = logging.getLogger(name)
    for n in range(60):
        logger.info("quiet")
        with working_for(JOB):
            logger.warning("a word of %d", n)
    try:
        raise ValueError("inner")
    except ValueError:
        logger.exception("x" * 10_000)
    lines = last_warnings()
    assert len(lines) == 50
    assert all(f"WARNING {name}: [{JOB}] a word of {n}" in lines[n - 11] for n in range(11, 60))
    assert max(map(len, lines)) == 400


def test_dasks_log_of_a_node_has_lines_of_all_libraries(watched):
    with working_for(JOB):
        logging.getLogger("some.library").warning("seen")
    unwatch(watched)
    logging.getLogger("some.library").warning("not seen")
    assert watched.lines == [f"[{JOB}] seen"]


def test_python_prints_what_nobody_else_does(monkeypatch):
    """A handler that prints nothing must not keep Python from doing so."""
    printed = []

    class Last(logging.Handler):
        def emit(self, record):
            printed.append(record.getMessage())

    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(logging, "lastResort", Last(logging.WARNING))
    node = object()
    watch(node)
    logging.getLogger("nobody.listens").warning("seen")
    unwatch(node)
    logging.getLogger("nobody.listens").warning("still")
    assert printed == ["seen", "still"]


def test_the_last_warnings_of_a_worker_are_few_and_nothing_else(watched):
    events = [(0.0, ["tcp://w:1", "x" * 1_000])] * 100
    odd = [(0.0, event) for event in (None, {"odd": "message"}, ["tcp://w:1"], ["tcp://v:1", 7])]
    watched.get_events = lambda topic: (*events, *odd)
    assert [len(line) for line in last_warnings("tcp://w:1")] == [400] * 50
    assert last_warnings("tcp://v:1") == ["7"]
    assert last_warnings("tcp://w:0") == []


def test_a_flood_of_warnings_is_few_events(monkeypatch):
    timers, sent = [], []

    class Timer:
        def __init__(self, seconds, function):
            self.end, self.start = function, lambda: timers.append(self)

    class Node:
        address, batched_stream = "tcp://w:1", None

        def log_event(self, topic, event):
            sent.append(event)

    monkeypatch.setattr(threading, "Timer", Timer)
    handler, logger = LastWarnings(), logging.getLogger("flooding")
    handler.nodes = [Node()]
    logger.addHandler(handler)
    monkeypatch.setattr(logger, "propagate", False)
    for n in range(10_000):
        logger.warning("drop %d", n)
    assert len(timers) == 1
    assert len(sent) == 10
    timers.pop().end()
    assert len(sent) == 11
    logger.warning("another")
    logger.removeHandler(handler)
    told = [line.partition("flooding: ")[2] for event in sent for line in event[1:]]
    numbers = (*range(10), *range(9_950, 10_000))
    assert told == [*(f"drop {n}" for n in numbers), "another"]


@pytest.mark.slow
def test_processes_of_dask_name_the_job_in_its_lines(tmp_path):
    """Scheduler and worker as they are started by hand, with a job that says too much."""
    x = np.random.default_rng(0).standard_normal((600, 3))
    lk.ingest(x, tmp_path / "x.zarr", chunk_rows=50, progress=False)
    found_at = str(tmp_path / "scheduler.json")
    logs = {name: tmp_path / f"{name}.log" for name in ("scheduler", "worker")}
    commands = {
        "scheduler": [
            "--host", "127.0.0.1", "--port", "0", "--scheduler-file", found_at,
            "--preload", "tests.plots.shouting",
            "--preload", "largek_dask.service.preload",
            "--largek-store", str(tmp_path / "store"),
        ],
        "worker": ["--scheduler-file", found_at, "--no-nanny", "--nthreads", "2",
                   "--preload", "tests.plots.shouting"],
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
        seen = client.get_worker_logs()
    for name, point in (("scheduler", "step"), ("worker", "chunk")):
        text = logs[name].read_text()
        assert f"[{job.id}] {SHOUT.replace(SECRET, '***')} at {point}" in text
        assert SECRET not in text
    (lines,) = seen.values()
    assert any(f"[{job.id}] " in line for _, line in lines)
