"""What drills share: jobs that last, what events tell of their steps, and a table of seconds.

A drill strikes again and again at moments that a seed draws, on processes as a deployment has them
(``rig``), and asks of each strike whether it has happened and what came of it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import largek_dask as lk
from largek_dask.driver.event_log import Tail
from largek_dask.driver.storage import Folder
from tests.faults.cases import Case

T = TypeVar("T")

N_ROWS, CHUNK_ROWS, N_FEATURES = 24_000, 2_000, 64
N_CLUSTERS = 150
"""A model that is sent to the workers by itself, and not along with their tasks."""
SECONDS = 120.0
"""How long anything is waited for that has to come: many times what it takes, on a busy machine."""
TICK = 0.02
ENDS = ("finished", "failed", "cancelled")


def write_curve(folder: Path) -> str:
    """Rows along a bent line, most of them near one end.

    Centres that begin as random rows have a long way to the other one, which Lloyd's algorithm
    takes in very many steps.
    """
    rng = np.random.default_rng(0)
    along = np.sort(rng.random(N_ROWS)) ** 6
    waves = np.arange(1, N_FEATURES + 1)
    x = np.cos(np.pi * along[:, None] * waves / 4) / waves
    data = str(folder / "curve.zarr")
    lk.ingest(x.astype(np.float32), data, chunk_rows=CHUNK_ROWS, progress=False)
    return data


def lasting(data: str, name: str, max_iter: int, n_clusters: int = N_CLUSTERS) -> Case:
    """A job of exactly so many steps."""
    return Case(name, data, lk.Lloyd(), max_iter, n_clusters, init="random")


def until(reached: Callable[[], T], what: str, seconds: float = SECONDS) -> T:
    """What ``reached`` gives once it is true."""
    end = time.monotonic() + seconds
    while not (found := reached()):
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for {what}"
        time.sleep(TICK)
    return found


class Steps:
    """The events of a job, as they come into its folder.

    Parameters
    ----------
    output : Path
        The job's folder.
    """

    def __init__(self, output: Path) -> None:
        self._tail = Tail(Folder(str(output)))
        self.events: list[dict[str, Any]] = []

    def look(self) -> list[dict[str, Any]]:
        """All events so far."""
        # None may have been written yet.
        with contextlib.suppress(FileNotFoundError):
            self.events.extend(self._tail.new())
        return self.events

    def n_iter(self) -> int:
        """The last step so far."""
        return max((int(e["step"]) for e in self.look() if e["event"] == "step"), default=0)

    @property
    def has_ended(self) -> bool:
        """Whether the job has, as far as it is told."""
        return any(event["event"] in ENDS for event in self.look())

    def times(self) -> list[float]:
        """When steps ended (seconds since 1970), and the job."""
        return [time_of(event) for event in self.look() if event["event"] in ("step", *ENDS)]

    def after(self, moment: float) -> float:
        """When the next step after a moment ended; waits for it."""
        return until(lambda: next((at for at in self.times() if at > moment), 0.0), "a step")


def time_of(event: Mapping[str, Any]) -> float:
    """When an event was told, in seconds since 1970."""
    return datetime.fromisoformat(event["time"]).timestamp()


def longest_gap(times: Iterable[float], begin: float, end: float) -> float:
    """The longest time without a step between two moments."""
    inside = [begin, *sorted(at for at in times if begin < at < end), end]
    return max(b - a for a, b in itertools.pairwise(inside))


def load() -> float:
    """Processes that wanted to compute, in the last minute."""
    return os.getloadavg()[0]


@dataclasses.dataclass(frozen=True)
class Strike:
    """One strike, after which all was well."""

    kind: str
    seconds: float
    """How long the job stood still."""
    load: float = dataclasses.field(default_factory=load)


def table(what: str, strikes: Sequence[Strike], command: str) -> str:
    """A markdown table: a line a kind, one for all, and the load that it was measured at."""
    lines = [f"| {what} | strikes | s, median | s, 9 of 10 | s, worst |", "|---|---|---|---|---|"]
    for kind in (*dict.fromkeys(strike.kind for strike in strikes), "all"):
        seconds = [strike.seconds for strike in strikes if kind in (strike.kind, "all")]
        middle, high = np.quantile(seconds, [0.5, 0.9])
        lines.append(
            f"| {kind} | {len(seconds)} | {middle:.2f} | {high:.2f} | {max(seconds):.2f} |"
        )
    loads = [strike.load for strike in strikes]
    return "\n".join(
        [
            *lines,
            "",
            f"Load of the machine, which has {os.cpu_count()} cores: {min(loads):.1f} to "
            f"{max(loads):.1f}. This table was made by `{command}`.",
        ]
    )


def asked(module: str, doc: str | None, n: int) -> argparse.Namespace:
    """What a drill is asked for on the command line."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=doc)
    parser.add_argument("--n", type=int, default=n, help="how many strikes")
    parser.add_argument("--seed", type=int, default=0, help="draws their moments")
    return parser.parse_args()
