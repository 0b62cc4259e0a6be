"""What a fit has come to, by its checkpoints alone: no rows are needed, and no workers."""

from __future__ import annotations

import functools
import operator
import re
from dataclasses import dataclass
from typing import Any

from largek_dask.algorithms.auto import Auto
from largek_dask.algorithms.base import ModelArrays
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.driver.checkpoint import Checkpoints, Progress
from largek_dask.driver.run import state_class
from largek_dask.driver.starts import counted_inertia
from largek_dask.driver.stopping import StepRecord
from largek_dask.driver.storage import Folder

__all__ = ["Saved", "best_saved"]

KINDS = {state_class(kind()): kind for kind in ALGORITHMS.values() if kind is not Auto}
"""Algorithms by the class of their state, which a checkpoint names."""
START = re.compile(r"\d{2,}")


@dataclass(frozen=True, slots=True)
class Saved:
    """The last checkpoint of a start."""

    stream: int
    """Which start."""
    arrays: ModelArrays
    n_iter: int
    history: tuple[StepRecord, ...]
    seconds: float
    """Seconds used by all runs up to there."""
    inertia: float | None
    """Over all rows, if the start was run to its end."""


def best_saved(folder: Folder) -> Saved | None:
    """The start that a fit would give if it were stopped now; None without any checkpoint.

    Of those that are known to the end the best, or else the first: as ``Starts.best``.

    Warns
    -----
    RecoveryWarning
        A damaged checkpoint was passed over.
    """
    streams = sorted(int(name) for name in folder.sub("starts").names() if START.fullmatch(name))
    places = [(0, folder), *((n, folder.sub(f"starts/{n:02d}")) for n in streams)]
    found = [saved for stream, place in places if (saved := _saved(stream, place)) is not None]
    counted = [saved for saved in found if saved.inertia is not None]
    if counted:
        return min(counted, key=lambda saved: (saved.inertia, saved.stream))
    return found[0] if found else None


def _saved(stream: int, folder: Folder) -> Saved | None:
    states: Any = functools.reduce(operator.or_, KINDS)
    progress: Progress[Any] | None = Checkpoints(folder, states).latest()
    if progress is None:
        return None
    return Saved(
        stream,
        KINDS[type(progress.state)]().model(progress.state),
        progress.n_iter,
        tuple(progress.records()),
        progress.seconds,
        counted_inertia(folder, progress.n_iter),
    )
