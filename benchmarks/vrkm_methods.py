"""Methods of `vrkm.py`: variance-reduced k-means in several forms, and its rivals.

Each goes from common starting centres, one step after the other, and describes every step.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk

BATCH, ONE_ROW, ONE_ROW_TEN = "batch KM", "VRKM++", "VRKM++, 10 K/n"
ROUNDS_ONE, ROUNDS = "VRKM++ in rounds", "VRKM++ in rounds, 10 K/n"
LLOYD, NMBATCH, TRUNCATED = "Lloyd, bounds", "nmbatch", "truncated"
TABLE, TABLE_ALL = "table of labels", "table of labels, all rows"
SEARCHED = "truncated's start, then table"
RELAXED = "truncated's start, then relaxed passes"
START_OF_TABLE = ("largek_dask.algorithms.vrkm.labels", "ROWS_A_CENTER")
"""Module and constant: rows a centre with which a table of labels begins."""


class Setting(NamedTuple):
    """Input of a method."""

    passes: Any
    x: Any
    """(n, d) rows, which `passes` are over."""
    centers: NDArray[np.float32]
    """(k, d) common starting centres."""
    seed: int


class Step(NamedTuple):
    """Result of a step."""

    passes: float
    """Rows that it has assigned, over all rows."""
    centers: Callable[[], NDArray[Any]]
    """Makes the (k, d) centres after it."""
    ended: bool = False
    cost: float | None = None
    """Energy of the centres before the step, if it is known."""


Steps = Iterator[Step]


@dataclass(frozen=True)
class Method:
    """A way to go from the common starting centres."""

    steps: Callable[[Setting], Steps]
    samples: bool = True
    """Whether a table of labels begins with few rows."""


def driven(algorithm: Any, setting: Setting, init: Any = None) -> Steps:
    """Steps of one of the package's algorithms."""
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem

    passes, rng, n = setting.passes, Rng(setting.seed), setting.passes.n_rows
    init = setting.centers if init is None else init
    problem = KMeansProblem(len(setting.centers), init)
    algorithm = replace(algorithm, problem=problem)
    state = algorithm.init(passes, rng)
    while True:
        state, info = algorithm.step(passes, rng, state)
        last = state

        def centers(last: Any = last) -> NDArray[Any]:
            found: NDArray[Any] = algorithm.model(last).centers
            return found

        exact = isinstance(algorithm, (lk.Lloyd, lk.NMBatch)) and info.rows == n
        yield Step(
            passes=info.rows / n,
            centers=centers,
            ended=info.converged,
            cost=info.cost / n if exact else None,
        )
        if info.converged:
            return


def plain(make: Callable[[int, int], Any], *, samples: bool = True) -> Method:
    """A method of the package, made for n rows and k centres, from the common start."""

    def steps(setting: Setting) -> Steps:
        n, k = setting.passes.n_rows, len(setting.centers)
        return driven(make(n, k), setting)

    return Method(steps, samples)


def start_of_search(setting: Setting) -> Generator[Step, None, NDArray[Any]]:
    """Start of the truncated search, on samples; returns the centres that it leads to."""
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem

    passes, rng, n = setting.passes, Rng(setting.seed), setting.passes.n_rows
    search: Any = replace(lk.Truncated(), problem=KMeansProblem(len(setting.centers), "auto"))
    state: Any = search.init(passes, rng)
    while not state.schedule.task.everywhere:
        state, info = search.step(passes, rng, state)
        found = search.model(state).centers
        yield Step(info.rows / n, lambda now=found: now)  # type: ignore[misc]
        if info.converged:
            break
    passes.begin_run()
    centers: NDArray[Any] = search.model(state).centers
    return centers


def searched(setting: Setting) -> Steps:
    """The start of the truncated search on samples, then the table of labels on all rows."""
    centers = yield from start_of_search(setting)
    yield from driven(lk.VRKM(), setting, centers)


def relaxed(setting: Setting) -> Steps:
    """The same start, then passes whose centres go as far beyond the means as the search's do.

    All centres are looked at, as by the table: what is compared is how far a pass leads.
    """
    from largek_dask.algorithms.truncated.state import BEYOND

    centers = yield from start_of_search(setting)
    while True:
        found = next(driven(lk.Lloyd(bounds=None), setting, centers)).centers()
        yield Step(1.0, lambda now=found: now)  # type: ignore[misc]
        centers = found + np.asarray(BEYOND, found.dtype) * (found - centers)


@contextmanager
def from_all_rows() -> Iterator[None]:
    """Let a table of labels take all rows from the beginning."""
    module = importlib.import_module(START_OF_TABLE[0])
    before = getattr(module, START_OF_TABLE[1])
    setattr(module, START_OF_TABLE[1], 1 << 60)
    try:
        yield
    finally:
        setattr(module, START_OF_TABLE[1], before)


def snapshot(**asked: Any) -> Callable[[int, int], Any]:
    """The published methods."""
    return lambda n, k: lk.VRKM(table="snapshot", **asked)


METHODS: dict[str, Method] = {
    BATCH: plain(lambda n, k: lk.Lloyd(bounds=None)),
    ONE_ROW: plain(lambda n, k: lk.VRKM.paper()),
    ONE_ROW_TEN: plain(snapshot(round_rows=1)),
    ROUNDS_ONE: plain(snapshot(eta="paper")),
    ROUNDS: plain(snapshot()),
    LLOYD: plain(lambda n, k: lk.Lloyd()),
    NMBATCH: plain(lambda n, k: lk.NMBatch()),
    TRUNCATED: Method(lambda setting: driven(lk.Truncated(), setting, "auto")),
    TABLE: plain(lambda n, k: lk.VRKM()),
    TABLE_ALL: plain(lambda n, k: lk.VRKM(), samples=False),
    SEARCHED: Method(searched, samples=False),
    RELAXED: Method(relaxed),
}
"""All methods by name."""
