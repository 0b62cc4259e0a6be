"""Read the result of a fit from its checkpoints, without rows or workers."""

from __future__ import annotations

import functools
import operator
import re
from dataclasses import dataclass, replace
from typing import Any, get_args

from largek_dask.algorithms.auto import Auto
from largek_dask.algorithms.base import Algorithm, ModelArrays
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.algorithms.objective import Objective
from largek_dask.driver.checkpoint import Checkpoints, Progress, description_in
from largek_dask.driver.fit import kind_of_problem
from largek_dask.driver.run import state_class
from largek_dask.driver.starts import counted_value
from largek_dask.driver.stopping import StepRecord
from largek_dask.driver.storage import Folder
from largek_dask.errors import LostJobError, RecoveryWarning, warn

__all__ = ["Saved", "best_saved", "keep_last_checkpoints"]

START = re.compile(r"\d{2,}")


@dataclass(frozen=True, slots=True)
class Saved:
    """Last checkpoint of a start."""

    stream: int
    arrays: ModelArrays
    n_iter: int
    history: tuple[StepRecord, ...]
    seconds: float
    """Used up to there, by all runs."""
    objective: Objective
    value: float | None
    """The objective over all rows; None unless the start has ended."""


def best_saved(folder: Folder) -> Saved | None:
    """Return the start that a fit would return if it were stopped now; None without a checkpoint.

    It is the best of the starts that have ended, or else the first, as in ``Starts.best``.
    Damaged checkpoints are skipped with a RecoveryWarning.
    """
    about = description_in(folder)
    mixture = None if about is None else about["job"].get("mixture")
    best: Saved | None = None
    for stream, place in _starts_in(folder):
        saved = _saved(stream, place, mixture)
        if saved is None:
            continue
        if best is None or saved.objective.is_better(saved.value, best.value):
            best = saved
    return best


def keep_last_checkpoints(folder: Folder) -> None:
    """Remove all checkpoints but the last intact one of each start, from which to resume.

    Raises LostJobError if another scheduler has the job. Other failures do no harm, and warn.
    """
    try:
        for _, place in _starts_in(folder):
            Checkpoints(place, _any_state()).keep_last()
    except LostJobError:
        raise
    except Exception as error:  # drivers raise errors of their own kinds
        warn(f"Old checkpoints in {folder.url} are not removed: {error}", RecoveryWarning)


def _starts_in(folder: Folder) -> list[tuple[int, Folder]]:
    """Return the numbers and folders of the starts."""
    streams = sorted(int(name) for name in folder.sub("starts").names() if START.fullmatch(name))
    return [(0, folder), *((n, folder.sub(f"starts/{n:02d}")) for n in streams)]


def _any_state() -> Any:
    """Return the union of the state classes of all algorithms."""
    return functools.reduce(operator.or_, _algorithms())


def _algorithms() -> dict[type[Any], Algorithm[Any]]:
    """Return algorithms by the class of their states."""
    made = (kind() for kind in ALGORITHMS.values() if kind is not Auto)
    states = ((state_class(algorithm), algorithm) for algorithm in made)
    return {kind: algorithm for state, algorithm in states for kind in get_args(state) or (state,)}


def _saved(stream: int, folder: Folder, mixture: str | None) -> Saved | None:
    progress: Progress[Any] | None = Checkpoints(folder, _any_state()).latest()
    if progress is None:
        return None
    algorithm = _algorithms()[type(progress.state)]
    # The objective may depend on the problem.
    kind = kind_of_problem(algorithm, mixture)
    algorithm = replace(algorithm, problem=kind(n_clusters=1))
    objective = algorithm.objective
    return Saved(
        stream,
        algorithm.model(progress.state),
        progress.n_iter,
        tuple(progress.records(objective)),
        progress.seconds,
        objective,
        counted_value(folder, progress.n_iter, objective),
    )
