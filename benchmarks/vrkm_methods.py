"""What is run by `vrkm_runs.py`: the published methods, the table of labels, and their rivals.

Each goes from common starting centres, one step after the other, and says what every step was.
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
from benchmarks.vrkm_svrg import steps_of_svrg

__all__ = [
    "BATCH", "EPOCHS", "ETAS", "GROW", "LLOYD", "METHODS", "MINI", "MOVES", "NMBATCH", "ONE_ROW",
    "ONE_ROW_TEN", "RELAXED", "ROUNDS", "ROUNDS_ONE", "SEARCHED", "SGD", "TABLE", "TABLE_ALL",
    "TRUNCATED", "VRKM", "Method", "Setting", "Step", "from_all_rows", "of_epoch", "of_eta",
    "of_svrg",
]  # fmt: skip

BATCH, MINI, SGD, GROW = "batch KM", "mini-batch KM", "SGD-KM", "growbatch-rho"
VRKM, ONE_ROW, ONE_ROW_TEN = "VRKM", "VRKM++", "VRKM++, 10 K/n"
ROUNDS_ONE, ROUNDS = "VRKM++ in rounds", "VRKM++ in rounds, 10 K/n"
LLOYD, NMBATCH, TRUNCATED = "Lloyd, bounds", "nmbatch", "truncated"
TABLE, TABLE_ALL = "table of labels", "table of labels, all rows"
SEARCHED, MOVES = "truncated's start, then table", "table, then moves"
RELAXED = "truncated's start, then relaxed passes"
EPOCHS = (0.25, 0.5, 1.0, 2.0)
"""Rows of an epoch, as shares of all (figure 6)."""
ETAS = (1, 3, 10, 30, 100)
"""Step sizes in units of K/n (figure 7)."""
SOME_ROWS = 0.25
"""Passes after which centres of small batches are looked at."""
SPLIT_SAMPLE = 64
"""Rows a centre on which moves are tried."""
START_OF_TABLE = ("largek_dask.algorithms.vrkm.labels", "ROWS_A_CENTER")
"""Module and constant: rows a centre with which a table of labels begins."""


class Setting(NamedTuple):
    """What a method is given."""

    passes: Any
    x: Any
    """(n, d) rows, which `passes` are over."""
    centers: NDArray[np.float32]
    """(k, d) common starting centres."""
    seed: int


class Step(NamedTuple):
    """What a step of a method left."""

    passes: float
    """Rows that it has assigned, over those there are."""
    centers: Callable[[], NDArray[Any]]
    """Makes the (k, d) centres after it."""
    ended: bool = False
    cost: float | None = None
    """Energy of the centres that the step met, where that is known."""
    eta: float | None = None
    """Step size, of what has one."""


Steps = Iterator[Step]


@dataclass(frozen=True)
class Method:
    """A way to go from the common starting centres."""

    steps: Callable[[Setting], Steps]
    every: float = 0.0
    """Passes between steps that are looked at; 0: all of them are."""
    samples: bool = True
    """A table of labels begins with few rows."""


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
            eta=info.extra.get("eta"),
        )
        if info.converged:
            return


def plain(make: Callable[[int, int], Any], **about: Any) -> Method:
    """A method of the package, made for n rows and k centres, from the common start."""

    def steps(setting: Setting) -> Steps:
        n, k = setting.passes.n_rows, len(setting.centers)
        return driven(make(n, k), setting)

    return Method(steps, **about)


def svrg(eta: float, scaled: bool) -> Method:
    """Figure 3: without position correction, ``eta`` in units of K/n."""

    def steps(setting: Setting) -> Steps:
        x, start, seed = setting.x, setting.centers, setting.seed
        for centers in steps_of_svrg(x, start, seed, eta * len(start) / len(x), scaled=scaled):
            yield Step(2.0, lambda now=centers: now)  # type: ignore[misc]

    return Method(steps)


def start_of_search(setting: Setting) -> Generator[Step, None, NDArray[Any]]:
    """The start of the truncated search, on samples; the centres that it leads to."""
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


def with_moves(setting: Setting) -> Steps:
    """The table of labels, one round of moves at its end, and the table on all rows again.

    What the moves lead to is kept only where it is lower, as the search does.
    """
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.parts.moves import losses_of_merging
    from largek_dask.algorithms.parts.nested import NestedRows
    from largek_dask.algorithms.parts.splits import held_out_moves
    from largek_dask.kernels.distances import nearest, pack_centers, squared_distances

    passes, n, k = setting.passes, setting.passes.n_rows, len(setting.centers)
    last = None
    for last in driven(lk.VRKM(), setting):
        yield replace_end(last)
    assert last is not None
    centers = last.centers()
    shift = passes.statistics.shift
    packed = pack_centers(centers, shift)
    labels = nearest(setting.x, packed)
    distances = squared_distances(setting.x, packed, labels)
    counts, sse = np.bincount(labels, minlength=k) * 1.0, np.bincount(labels, distances, k)
    sample = NestedRows(passes, Rng(setting.seed)).spaced_sample(n, n, k, SPLIT_SAMPLE)
    losses = losses_of_merging(centers, counts, shift)
    moves = held_out_moves(sample, centers, counts, sse, losses)
    before, moved = float(sse.sum()), moves.apply(centers)
    yield Step(1.0, lambda: centers, ended=not len(moves.split))
    if not len(moves.split):
        return
    passes.begin_run()
    with from_all_rows():
        for step in driven(lk.VRKM(), setting, moved):
            last = step
            yield replace_end(step)
    packed = pack_centers(last.centers(), shift)
    after = float(squared_distances(setting.x, packed, nearest(setting.x, packed)).sum())
    yield Step(1.0, last.centers if after < before else lambda: centers, ended=True)


def replace_end(step: Step) -> Step:
    """The same step, after which something else follows."""
    return step._replace(ended=False)


@contextmanager
def from_all_rows() -> Iterator[None]:
    """A table of labels that takes all rows from the beginning."""
    module = importlib.import_module(START_OF_TABLE[0])
    before = getattr(module, START_OF_TABLE[1])
    setattr(module, START_OF_TABLE[1], 1 << 60)
    try:
        yield
    finally:
        setattr(module, START_OF_TABLE[1], before)


def of_svrg(eta: int, scaled: bool) -> str:
    """Name of a line of figure 3."""
    return f"SVRG, {'v/n' if scaled else '1/v'}, {eta} K/n"


def of_epoch(share: float, eta: int) -> str:
    """Name of a line of figure 6."""
    return f"T = {share:g} n, {eta} K/n"


def of_eta(times: int) -> str:
    """Name of a line of figure 7."""
    return f"{times} K/n"


def snapshot(**asked: Any) -> Callable[[int, int], Any]:
    """The published methods; ``times`` is the step size in units of K/n, and a number."""
    times = asked.pop("times", None)

    def make(n: int, k: int) -> Any:
        eta = {} if times is None else {"eta": times * k / n}
        return lk.VRKM(table="snapshot", **asked, **eta)

    return make


METHODS: dict[str, Method] = {
    BATCH: plain(lambda n, k: lk.Lloyd(bounds=None)),
    # as many rows as its author takes (D. Sculley, Web-scale k-means clustering, WWW 2010)
    MINI: plain(lambda n, k: lk.MiniBatch(batch_rows=1_000), every=SOME_ROWS),
    SGD: plain(lambda n, k: lk.MiniBatch(batch_rows=1), every=SOME_ROWS),
    GROW: plain(lambda n, k: lk.NMBatch.paper()),
    VRKM: plain(snapshot(eta="paper", round_rows=1, plus_plus=False)),
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
    MOVES: Method(with_moves),
}
"""All that is run, by name."""
METHODS |= {of_eta(times): plain(snapshot(times=times)) for times in ETAS}
METHODS |= {
    of_epoch(share, eta): plain(snapshot(epoch=share, times=eta))
    for share in EPOCHS
    for eta in (1, 10)
}
METHODS |= {of_svrg(eta, scaled): svrg(eta, scaled) for eta in (1, 10) for scaled in (False, True)}
