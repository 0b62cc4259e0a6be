"""Dask clusters for tests. Workers in processes where they are killed, in threads elsewhere.

Tests press Ctrl-C on themselves; a shell that started them in the background would have it ignored.
"""

from __future__ import annotations

import gc
import logging
import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from functools import cache
from multiprocessing import forkserver
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster, scheduler
from distributed.utils import get_mp_context
from hypothesis import settings

# Its defaults have to be there before any is set for a while: leaving takes all of them away.
import largek_dask.config  # noqa: F401
import tests.helpers.connections  # closes connections that Tornado drops
import tests.helpers.memory_files  # noqa: F401  (what memory:// is from here on)
from largek_dask.driver import compile_watch
from largek_dask.driver import fit as fit_module
from tests.helpers.object_store import ObjectStore

# Before any test module is imported: a first example may have to compile a kernel.
# CI takes the time to look at more of them.
settings.register_profile("quick", deadline=None, max_examples=30)
settings.register_profile("CI", deadline=None, max_examples=100)
settings.load_profile("CI" if os.environ.get("CI") == "true" else "quick")

# Workers in threads have the memory of this process: Dask would pause them for what tests before
# them have left, and what they are asked to do would wait for ever.
dask.config.set({f"distributed.worker.memory.{at}": False for at in ("target", "spill", "pause")})

# What Dask's schedulers and workers do all the time is for pages that nobody looks at here: samples
# of the stacks of all threads every 10 ms, ticks of loops every 20 ms, counters of the machine and
# heartbeats every 500 ms. Clusters that wait for the next test, as most do most of the time, would
# take a third of a core.
dask.config.set(
    {
        "distributed.worker.profile.enabled": False,
        "distributed.worker.memory.terminate": False,
        "distributed.admin.tick.interval": "1s",
        "distributed.admin.system-monitor.disk": False,
        "distributed.admin.system-monitor.interval": "5s",
        "distributed.client.scheduler-info-interval": "10s",
    }
)
scheduler.heartbeat_interval = lambda n_workers: 3.0


def pytest_xdist_auto_num_workers() -> int:
    """Start more workers than cores: a third of the time of most tests is waiting."""
    return min(8, max(2, (os.cpu_count() or 1) * 3 // 2))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module of slow tests for the default tier, which may lack what it needs."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return "\npytestmark = pytest.mark.slow\n" in collection_path.read_text() or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection while tests are collected, which took half of that time.

    Tests stay until the end: later collections do not look at them either.
    """
    # Each slice of an array of Dask's leaves collection as it was when that module was loaded.
    import dask.array  # noqa: F401

    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest file: one process has it, and others would wait for its end."""
    items.sort(key=lambda item: item.path.name != "test_contract.py")


ClusterMaker = Callable[..., Client]

signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def fork_workers() -> None:
    """Have Dask fork workers, from now on, from a process that has loaded what they need.

    Each takes a few tenths of a second then, instead of 3 s; Dask's own tests do so. Rigs and
    whatever is started from the command line have new processes, as a deployment has.
    """
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    get_mp_context()  # which has a list of its own, once
    multiprocessing.set_forkserver_preload(["distributed", "largek_dask.passes.worker"])
    forkserver.ensure_running()


def make_client(stack: ExitStack, n_workers: int, processes: bool, **options) -> Client:
    """A client of a new cluster whose workers have one thread each; closed with the stack."""
    if processes:
        fork_workers()
    cluster = stack.enter_context(
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=processes,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
            **options,
        )
    )
    return stack.enter_context(Client(cluster, set_as_default=False))


@pytest.fixture
def caplog(caplog):
    """Pytest's, which hears: a cluster that was silenced before may have left its handler so."""
    caplog.handler.setLevel(logging.NOTSET)
    return caplog


@pytest.fixture(scope="session")
def cluster2() -> Iterator[Client]:
    """Two worker processes of one thread each. Leave them as they are."""
    with ExitStack() as stack:
        yield make_client(stack, 2, processes=True)


@pytest.fixture(scope="session")
def worker_clients(cluster2) -> Iterator[ClusterMaker]:
    """``worker_clients(n)``: a cluster of n workers that the whole session shares."""
    with ExitStack() as stack:
        clients = {2: cluster2}

        def client_of(n_workers: int) -> Client:
            if n_workers not in clients:
                clients[n_workers] = make_client(stack, n_workers, processes=False)
            return clients[n_workers]

        yield client_of


@pytest.fixture
def fresh_cluster() -> Iterator[ClusterMaker]:
    """``fresh_cluster(n_workers=2, processes=True)``: a cluster to break."""
    with ExitStack() as stack:

        def fresh(n_workers: int, processes: bool = True, **options) -> Client:
            return make_client(stack, n_workers, processes, **options)

        yield fresh


@pytest.fixture(scope="session")
def object_store(tmp_path_factory) -> Iterator[ObjectStore]:
    """A server of S3 that the whole session shares: tests take buckets of their own."""
    store = ObjectStore(tmp_path_factory.mktemp("objects"))
    store.start()
    yield store
    store.close()


@pytest.fixture(autouse=True)
def impatient_stores() -> Iterator[None]:
    """Stores of tests that fail do so for good, or are back at once."""
    with dask.config.set({"largek.stores.pause-seconds": 0.0, "largek.stores.patience-seconds": 0}):
        yield


@pytest.fixture(autouse=True)
def told_of_no_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of a fit do not hang on what is in the kernel cache; what is about them sets this."""
    monkeypatch.setattr(compile_watch, "SILENT_SECONDS", math.inf)
    monkeypatch.setattr(compile_watch, "NOTICE_SECONDS", math.inf)


@pytest.fixture(autouse=True)
def compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile in one process, as tests keep all cores busy.

    Only ``driver/test_parallel_compile.py`` undoes it; documents and notebooks are run without it.
    """
    monkeypatch.setattr(fit_module, "is_worth_it", lambda *given: False)


@pytest.fixture(scope="module")
def chunks_as_stored() -> Iterator[None]:
    """Stored chunks are read one by one: small ones would be read together, as a single chunk."""
    with dask.config.set({"largek.data.read-chunk-bytes": 1}):
        yield


@pytest.fixture
def quick_slices() -> Iterator[None]:
    """Tasks give their thread back after every chunk."""
    with dask.config.set({"largek.passes.slice-seconds": 0.0}):
        yield
