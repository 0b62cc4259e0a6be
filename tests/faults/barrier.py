"""A barrier inside a chunk function, behind which a test may kill a worker."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from largek_dask.algorithms.base import Algorithm
from largek_dask.algorithms.kmeans import KMeansProblem


def barrier_chunk(folder: str, inner: Any, chunk: Any, total: Any, *broadcast: Any) -> None:
    """Run ``inner``; the first process to come here reports its pid and waits to be killed."""
    try:
        os.close(os.open(os.path.join(folder, "met"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        pass
    else:
        # Both block until somebody is at the other end: no polling, no sleeping.
        with open(os.path.join(folder, "pid"), "w") as fifo:
            fifo.write(str(os.getpid()))
        with open(os.path.join(folder, "go")) as fifo:
            fifo.read()
    inner(chunk, total, *broadcast)


class BarrierPasses:
    """Passes whose chunk functions meet a barrier."""

    def __init__(self, passes: Any, folder: str) -> None:
        self._passes, self._folder = passes, folder
        self.keeps_rows = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._passes, name)

    def reduce(self, chunk_fn: Any, *broadcast: Any, **options: Any) -> Any:
        chunk_fn = partial(barrier_chunk, self._folder, chunk_fn)
        self.keeps_rows |= options.get("state") is not None
        return self._passes.reduce(chunk_fn, *broadcast, **options)


@dataclasses.dataclass(frozen=True)
class WithBarrier(Algorithm[Any, Any]):
    """An algorithm whose step ``at_step`` meets a barrier in the first chunk that is touched.

    Step 0 is ``init``.
    """

    inner: Any
    folder: str
    at_step: int = 3
    solves = KMeansProblem

    def _algorithm(self) -> Any:
        return self.inner.bind(self.problem)

    def init(self, passes: Any, rng: Any) -> Any:
        if self.at_step:
            return self._algorithm().init(passes, rng)
        return self._behind_barrier(passes, lambda door: self._algorithm().init(door, rng))

    def step(self, passes: Any, rng: Any, state: Any) -> Any:
        if state.step + 1 != self.at_step:
            return self._algorithm().step(passes, rng, state)
        return self._behind_barrier(passes, lambda door: self._algorithm().step(door, rng, state))

    def _behind_barrier(self, passes: Any, do: Callable[[Any], Any]) -> Any:
        before = (passes.total.retries, passes.total.rebuilt)
        door = BarrierPasses(passes, self.folder)
        result = do(door)
        after = (passes.total.retries, passes.total.rebuilt)
        spent = dict(zip(("retries", "rebuilt"), np.subtract(after, before), strict=True))
        spent["keeps_rows"] = door.keeps_rows
        Path(self.folder, "spent.json").write_text(json.dumps(spent, default=int))
        return result

    def spent(self) -> dict[str, int]:
        """Retries and rebuilt row states of the step with the barrier; whether it has any state."""
        return json.loads(Path(self.folder, "spent.json").read_text())

    def model(self, state: Any) -> Any:
        return self._algorithm().model(state)


class Killer(threading.Thread):
    """Waits at the barrier's other end and kills whoever arrives, in the middle of its pass."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="killer", daemon=True)
        self.folder = folder
        self.killed: int | None = None
        for name in ("pid", "go"):
            os.mkfifo(folder / name)

    def run(self) -> None:
        with open(self.folder / "pid") as fifo:
            pid = int(fifo.read())
        os.kill(pid, signal.SIGKILL)
        self.killed = pid
