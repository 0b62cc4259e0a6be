"""Run the processes of `benchmarks.large`: memory, events of jobs, and kills.

A scheduler with a store and two workers with one thread each run in separate processes, started by
`dask scheduler` and `dask worker`, and are restarted when they end (`tests.faults.rig`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks.common import peak_bytes
from benchmarks.curves import Energies
from largek_dask.errors import LargekError
from tests.faults.moments import Moment
from tests.faults.rig import QUICK, Rig

Record = dict[str, Any]

N_WORKERS = 2
LIMIT = 4_000_000_000
"""Memory limit of a worker, in bytes."""
SEED = 11
N_FEATURES = 32
HELD_ROWS = 100_000
"""Number of rows outside the store, over which energies are computed."""
DENSE_SHARE = 0.01
"""Fraction of the rows from which the time of a dense pass is extrapolated."""
CHECKPOINT_SECONDS = 5.0
"""Seconds between two reads of the centres of a job."""
PAUSE = 0.5
"""Seconds between two samples of the memory of processes."""
WARM = (40_960, 300)
"""Numbers of rows and Gaussians of the first, small job."""
SCHEDULER = "scheduler"


# --- rows -----------------------------------------------------------------------------------------


def stored(folder: Path, n: int, n_components: int, chunk_rows: int | None = None) -> str:
    """Return the path of a store of n rows, which is written if it does not exist."""
    from benchmarks.synthetic import SyntheticRows

    path = folder / f"{n}x{N_FEATURES}-{n_components}.zarr"
    with contextlib.suppress(LargekError, FileNotFoundError):
        if path.exists() and lk.open_rows(str(path)).shape == (n, N_FEATURES):
            return str(path)
    begun = time.perf_counter()
    made = SyntheticRows("mixture", n, N_FEATURES, n_components=n_components, seed=SEED)
    lk.ingest(made, path, chunk_rows=chunk_rows, progress=False, force=True)
    print(f"{path}: written in {time.perf_counter() - begun:.0f} s", flush=True)
    return str(path)


def held_rows(n: int, n_components: int) -> NDArray[np.float32]:
    """Return rows that follow the n rows of the store."""
    from benchmarks.synthetic import BLOCK_ROWS, SyntheticRows

    wanted = min(HELD_ROWS, max(BLOCK_ROWS, n // 10))
    # The store may contain a part of its last block.
    first, blocks = -(-n // BLOCK_ROWS), -(-wanted // BLOCK_ROWS)
    rows = SyntheticRows(
        "mixture", (first + blocks) * BLOCK_ROWS, N_FEATURES, n_components=n_components, seed=SEED
    )
    return np.concatenate([rows.read(first + i) for i in range(blocks)])[:wanted]


# --- processes ------------------------------------------------------------------------------------


def load() -> float:
    """Return the load average of the last minute."""
    return float(psutil.getloadavg()[0])


@contextlib.contextmanager
def deployment(folder: Path) -> Iterator[Rig]:
    """Start a scheduler and workers with the timeouts of a deployment."""
    settings = {**dict.fromkeys(QUICK), "LARGEK__CHECKPOINTS__SECONDS": CHECKPOINT_SECONDS}
    with Rig(folder, N_WORKERS, memory_limit=str(LIMIT), **settings) as rig:
        yield rig


def processes(rig: Rig) -> dict[str, int]:
    """Return process ids by name, without processes that are being restarted."""
    found = {SCHEDULER: rig.scheduler.pid}
    for number, worker in enumerate(rig.workers, 1):
        with contextlib.suppress(psutil.Error):
            several = psutil.Process(worker.pid), *psutil.Process(worker.pid).children(True)
            found |= {f"worker {number}": one.pid for one in several if _computes(one)}
    return found


def _computes(process: psutil.Process) -> bool:
    """Return whether a process is a worker: a nanny's child, or a worker without a nanny."""
    command = " ".join(process.cmdline())
    return "spawn_main" in command or "--no-nanny" in command


class Watch(threading.Thread):
    """Thread that samples memory and CPU seconds of the processes of a deployment.

    Attributes
    ----------
    samples : dict
        By process name: tuples of seconds (``time.time``), memory in bytes, and CPU seconds so far,
        including those of earlier processes with this name.
    peaks : dict
        Peak memory in bytes, by process name.
    """

    def __init__(self, rig: Rig, pause: float = PAUSE) -> None:
        super().__init__(name="watch")
        self._rig, self._pause, self._over = rig, pause, threading.Event()
        self._used: dict[str, dict[int, float]] = {}
        self._known: dict[str, psutil.Process] = {}
        self.samples: dict[str, list[tuple[float, int, float]]] = {}
        self.peaks: dict[str, int] = {}

    def __enter__(self) -> Watch:
        self.look()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        """Sample until the thread is stopped."""
        while not self._over.wait(self._pause):
            self.look()

    def look(self) -> None:
        """Take one sample."""
        for name, process in self._processes().items():
            # A process may have ended in the meantime.
            with contextlib.suppress(psutil.Error, OSError, IndexError):
                spent, memory = process.cpu_times(), process.memory_info()
                peak = peak_bytes(process.pid)
                used = self._used.setdefault(name, {})
                used[process.pid] = spent.user + spent.system
                known = self.samples.setdefault(name, [])
                known.append((time.time(), memory.rss, sum(used.values())))
                # The current memory is more accurate than the recorded peak.
                self.peaks[name] = max(self.peaks.get(name, 0), peak, memory.rss)

    def _processes(self) -> dict[str, psutil.Process]:
        """Return the running processes; search for them only if one has changed."""
        known = self._known
        if len(known) <= len(self._rig.workers) or not all(p.is_running() for p in known.values()):
            known.clear()
            for name, pid in processes(self._rig).items():
                with contextlib.suppress(psutil.Error):
                    known[name] = psutil.Process(pid)
        return known

    def cpu_between(self, name: str, begin: float, end: float) -> float:
        """Return the CPU seconds of a process between two times."""
        times, _, used = zip(*self.samples[name], strict=True)
        first, last = np.interp([begin, end], times, used)
        return float(last - first)

    def memory(self, begin: float, most: int = 200) -> dict[str, list[list[float]]]:
        """Return seconds since a time and bytes by process, for at most ``most`` samples."""
        found = {}
        for name, several in self.samples.items():
            later = [(at - begin, held) for at, held, _ in several if at >= begin]
            step = max(1, len(later) // most)
            found[name] = [[round(at, 1), held] for at, held in later[::step]]
        return found


# --- one dense pass -------------------------------------------------------------------------------


def dense_share(
    store: str, start: int, stop: int, centers: NDArray[np.float32], shift: NDArray[np.float32]
) -> tuple[float, float, NDArray[np.int32]]:
    """Measure our dense kernel on some rows on a worker: wall and CPU seconds, and labels."""
    import zarr

    from largek_dask.kernels.distances import nearest, pack_centers

    x = zarr.open_array(store, mode="r")[start:stop]
    # Compile and load code.
    nearest(x[:64], pack_centers(centers[:8], shift))
    begun, used = time.perf_counter(), time.thread_time()
    labels = nearest(x, pack_centers(centers, shift))
    return time.perf_counter() - begun, time.thread_time() - used, labels


def measure_dense(
    service: lk.Service, store: str, n: int, centers: NDArray[Any], shift: NDArray[Any]
) -> tuple[Record, dict[int, NDArray[np.int32]]]:
    """Extrapolate a dense pass over all rows and centres from some rows on each worker.

    Returns
    -------
    Wall seconds of the slower worker and CPU seconds of both workers for all rows, and the computed
    labels by the index of their first row.
    """
    addresses = sorted(service.client.scheduler_info()["workers"])
    each = max(1, round(DENSE_SHARE * n / len(addresses)))
    starts = [i * (n // len(addresses)) for i in range(len(addresses))]
    asked = [
        service.client.submit(
            dense_share, store, start, start + each, centers, shift, workers=[address], pure=False
        )
        for start, address in zip(starts, addresses, strict=True)
    ]
    done = service.client.gather(asked)
    scale = n / (each * len(addresses))
    seconds = scale * max(wall for wall, _, _ in done)
    cpu = scale * sum(cpu for _, cpu, _ in done)
    labels = {start: found for start, (_, _, found) in zip(starts, done, strict=True)}
    return {"seconds": seconds, "cpu": cpu, "rows": each * len(addresses)}, labels


# --- a job ----------------------------------------------------------------------------------------


@dataclass
class Struck:
    """Kill a worker and the scheduler in the middle of a job.

    Parameters
    ----------
    rig : Rig
    n_iter : int
        Number of steps of the job.
    first_whole : int
        First step of the job that processes all rows; several such steps follow.
    """

    rig: Rig
    n_iter: int
    first_whole: int

    def __post_init__(self) -> None:
        # Kill in a pass over all rows, and between later passes.
        self._gate = Moment("before", "step", nth=self.first_whole)
        self._worker = Moment("before", "chunk", "worker")
        half = max(1, (self.n_iter - self.first_whole) // 2)
        self._scheduler = Moment("before", "step", nth=half)
        self._first = self.rig.meet(self._gate)
        self._thread = threading.Thread(target=self._strike, name="strikes")
        self._error: BaseException | None = None

    def start(self) -> None:
        """Start after the job has been submitted."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the kills, and raise their errors."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _strike(self) -> None:
        try:
            self._first.wait(3_600)
            worker, scheduler = (self.rig.meet(m) for m in (self._worker, self._scheduler))
            self._first.release()
            os.kill(worker.wait(3_600), signal.SIGKILL)
            worker.release()
            assert scheduler.wait(3_600) == self.rig.scheduler.pid
            self.rig.scheduler.kill()
            scheduler.release()
        except BaseException as error:
            self._error = error


def follow(
    rig: Rig,
    service: lk.Service,
    watch: Watch,
    store: str,
    output: Path,
    held: NDArray[np.float32] | None,
    struck: Struck | None = None,
    **options: Any,
) -> Record:
    """Submit a job and follow it to its end; with held-out rows, also compute energies."""
    from largek_dask.driver.event_log import JsonLines
    from largek_dask.driver.storage import Folder

    begun = time.time()
    job = service.submit(store, output=str(output), seed=0, **options)
    if struck is not None:
        struck.start()
    seen = (event["event"] == "checkpoint" for event in job.events())
    met = [_centers_now(output) for is_written in seen if is_written and held is not None]
    ended = time.time()
    if struck is not None:
        struck.join()
    state = job.status()["state"]
    if state != "finished":
        raise RuntimeError(f"job {job.id} is {state}: {job.status().get('result')}\n{rig.logs()}")
    model = lk.load_model(str(output / "model.zarr"))
    # The file also has steps that follow each other too fast to be sent.
    events = list(JsonLines.read(Folder(str(output))))
    n_iter = model.provenance["n_iter"]
    record: Record = {
        "seconds": ended - begun, "reason": model.provenance["stop_reason"], "n_iter": n_iter,
        "digest": model.digest(), "peaks": dict(watch.peaks),
        "phases": phases_of(events, begun, ended, watch), "memory": watch.memory(begun),
    }  # fmt: skip
    whole = [e["step"] for e in events if e["event"] == "step" and e["sample"] is None]
    record["first_whole"] = whole[0] if whole else None
    if held is not None:
        record["energy"] = Energies(held, [centers_of(model.arrays)])[0]
        met = [one for one in met if one is not None] + [(n_iter, centers_of(model.arrays))]
        record["curve"] = curve_of(events, begun, held, dict(met), watch)
    return record


def _centers_now(output: Path) -> tuple[int, NDArray[np.float32]] | None:
    """Return steps and centres of a job's last checkpoint, or None if none can be read."""
    from largek_dask.driver.starts import best_saved
    from largek_dask.driver.storage import Folder

    # An old checkpoint may be removed while it is read.
    with contextlib.suppress(OSError, LargekError):
        saved = best_saved(Folder(str(output)))
        if saved is not None:
            return saved.n_iter, centers_of(saved.arrays)
    return None


def centers_of(arrays: Any) -> NDArray[np.float32]:
    return np.array(arrays.centers, np.float32)


def curve_of(
    events: list[Record],
    begun: float,
    held: NDArray[np.float32],
    met: dict[int, NDArray[np.float32]],
    watch: Watch,
) -> list[list[float]]:
    """Return seconds since submission, held-out energies and CPU seconds of some steps."""
    at = {e["step"]: _time_of(e) for e in events if e["event"] == "step"}
    steps = sorted(step for step in met if step in at)
    energies = Energies(held, [met[step] for step in steps])
    spent = [sum(watch.cpu_between(name, begun, at[step]) for name in watch.samples)
             for step in steps]  # fmt: skip
    return [
        [round(at[step] - begun, 2), energies[i], round(spent[i], 2)]
        for i, step in enumerate(steps)
    ]


def phases_of(events: list[Record], begun: float, ended: float, watch: Watch) -> list[Record]:
    """Return the phases of a job: wall seconds, and CPU seconds of each process.

    ``start`` lasts until the first step, ``samples`` is the search over rows in the driver's
    memory, ``rows`` the passes over all rows, ``thrown away`` a step that a limit interrupted, and
    ``last pass`` everything after it: labels, sums and the model.
    """
    phases: list[Record] = []

    def add(name: str, until: float, step: Record | None = None) -> None:
        if not phases or phases[-1]["name"] != name:
            since = phases[-1]["end"] if phases else begun
            phases.append({"name": name, "begin": since, "steps": 0, "bytes": 0, "driver": 0.0})
        now = phases[-1]
        now["end"] = max(until, now["begin"])
        if step is not None:
            now["steps"] += 1
            now["bytes"] += step["bytes"]
            now["driver"] += step["seconds"]["driver"]

    for event in events:
        kind, at = event["event"], _time_of(event)
        if kind == "started":
            add("start" if not phases else "again", at)
        elif kind == "step":
            add("rows" if event["sample"] is None else "samples", at, event)
        elif kind == "stopped":
            add("thrown away", at)
    add("last pass", ended)
    for phase in phases:
        phase["cpu"] = {
            name: round(watch.cpu_between(name, phase["begin"], phase["end"]), 2)
            for name in watch.samples
        }
        phase["seconds"] = round(phase["end"] - phase["begin"], 2)
        phase["begin"] = round(phase["begin"] - begun, 2)
        del phase["end"]
    return phases


def _time_of(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def warm_up(service: lk.Service, folder: Path, ask: Callable[..., Any], **options: Any) -> None:
    """Run a small job first, so that code is compiled and loaded."""
    rows = stored(folder, *WARM)
    job = ask(service, rows, output=str(folder / f"warm-{time.time_ns()}"), **options)
    if job.wait(600) != "finished":
        print(job.status().get("result"), file=sys.stderr)
        raise RuntimeError(f"the first, small job {job.id} has not come to its end")
