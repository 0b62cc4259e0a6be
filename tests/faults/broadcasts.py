"""Workers that are killed while 8 MB are on their way to them, with Dask's own timeouts.

A connection that Dask has been refused it asks for again and again, by default for 30 s. So what
waits for one worker that is gone takes far longer here than anything else does.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client

import largek_dask as lk
from largek_dask import fault_injection
from largek_dask.passes.cluster import ClusterPasses
from tests.faults.catalogue import Fault, KillNanny, KillWorker
from tests.faults.moments import Moment
from tests.faults.rig import WAITS, Rig
from tests.passes.toys import combine, start

N_VALUES = 1_000_000
N_ROWS, CHUNK_ROWS = 600, 50
MOST_SECONDS = 5.0
"""Seconds from a death to the end of the pass, at most."""


def _land(values: np.ndarray) -> Landing:
    with fault_injection.at("receive"):
        return Landing(values)


class Landing:
    """Values that a process comes to the point "receive" with when it unpacks them."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.nbytes = values.nbytes

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _land, (self.values,)


def landed_chunk(chunk: Any, total: np.ndarray, landing: Landing) -> None:
    """Rows, chunks, and the sum of what was broadcast."""
    total[:3] += [len(chunk.x), 1, landing.values.sum()]


class TermThenKill(Fault):
    """A worker's machine is taken away: SIGTERM, and kill -9 right after it."""

    def inject(self, rig: Rig, pid: int) -> None:
        worker = rig.worker_of(pid)
        worker.send(signal.SIGTERM)
        os.kill(pid, signal.SIGTERM)
        worker.kill()


STRIKES = tuple(
    itertools.product(
        (KillWorker, KillNanny, TermThenKill),
        # The worker that has the broadcast first, and one that has it from there.
        (("before", 1), ("before", 2), ("after", 1), ("after", 2)),
        # The client of a service, and that of a user.
        (True, False),
    )
)


class _Passes(threading.Thread):
    """One pass with a large broadcast, and when it was over."""

    def __init__(self, passes: ClusterPasses, values: np.ndarray) -> None:
        super().__init__(name="passes")
        self._passes, self._values = passes, values
        self.total: Any = None
        self.over = 0.0

    def run(self) -> None:
        self.total = self._passes.reduce(
            landed_chunk, Landing(self._values), start=start, combine=combine
        )
        self.over = time.monotonic()


def patient_rig(folder: Path) -> Rig:
    """Three workers, and waits as they are by default."""
    return Rig(folder, n_workers=3, **WAITS)


def killed_in_broadcasts(
    rig: Rig, folder: Path, n_kills: int, most: float = MOST_SECONDS
) -> list[float]:
    """Seconds from each of the deaths to the end of the pass."""
    folder.mkdir()
    x = np.random.default_rng(0).integers(0, 9, (N_ROWS, 2)).astype(np.float32)
    data = str(folder / "rows.zarr")
    lk.ingest(x, data, chunk_rows=CHUNK_ROWS, progress=False)
    with dask.config.set({"largek.data.read-chunk-bytes": 1}):
        rows = lk.open_rows(data)
    n_chunks = N_ROWS // CHUNK_ROWS
    assert rows.n_chunks == n_chunks
    found = []
    strikes = itertools.islice(itertools.cycle(STRIKES), n_kills)
    for number, (kind, (when, nth), direct) in enumerate(strikes):
        with (
            rig.connected(),
            Client(rig.address, set_as_default=False, direct_to_workers=direct) as client,
            ClusterPasses(rows, client, deadline=time.monotonic() + 120) as passes,
        ):
            meetings = [rig.meet(Moment(when, "receive", "worker", from_step=0))]
            values = np.full(N_VALUES, number)
            thread = _Passes(passes, values)
            thread.start()
            try:
                pid = meetings[0].wait()
                if nth == 2:
                    # Whoever has it first goes on: the next one gets it from there.
                    meetings.append(rig.meet(Moment(when, "receive", "worker", from_step=0)))
                    meetings[0].release()
                    first, pid = pid, meetings[1].wait()
                    assert first != pid
                kind().inject(rig, pid)
                struck = time.monotonic()
            finally:
                for meeting in meetings:
                    meeting.release()
                thread.join()
            assert thread.total[:3].tolist() == [N_ROWS, n_chunks, n_chunks * number * N_VALUES]
        found.append(thread.over - struck)
        about = f"{kind.__name__} {when} {nth} {'direct' if direct else 'by scheduler'}"
        print(f"{number:3d} {about}: {found[-1]:.2f} s", flush=True)
        assert found[-1] <= most, (about, found)
    return found
