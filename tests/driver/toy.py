"""A small algorithm and the smallest possible passes, to drive the driver with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Algorithm, Info, Passes, Rng
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.data.rows import Rows, table_from_lengths
from largek_dask.errors import CancelledFit
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.passes.telemetry import PassReport


class ToyPasses:
    """Whole-number rows in a list of chunks, one after the other in this thread."""

    def __init__(self, x: NDArray[Any], n_chunks: int = 4) -> None:
        self.pieces = np.array_split(x, n_chunks)
        self.n_rows, self.n_features = x.shape
        self.n_chunks = n_chunks
        self.statistics: Any = None
        self.cancelled: Callable[[], bool] | None = None
        self.total = PassReport()
        self.subset_seconds = 0.0
        self.by_worker: dict[str, PassReport] = {}
        self.left: set[str] = set()
        self.n_workers = 0
        self.workers = ()
        self.chunks_done = 0
        self.after_chunk: Callable[[int], None] = lambda n: None

    def raise_if_stopped(self) -> None:
        if self.cancelled is not None and self.cancelled():
            raise CancelledFit("toy")

    def retry(self, ask: Callable[[], Any]) -> Any:
        return ask()

    def reduce(
        self,
        chunk_fn: Any,
        *broadcast: Any,
        start: Any,
        combine: Any,
        chunks: Sequence[int] | None = None,
        **_: Any,
    ) -> Any:
        total = start()
        for i in range(self.n_chunks) if chunks is None else chunks:
            self.raise_if_stopped()
            chunk = SimpleNamespace(index=i, x=self.pieces[i], weight=None)
            chunk_fn(chunk, total, *broadcast)
            self.total.bytes_read += self.pieces[i].nbytes
            self.chunks_done += 1
            self.after_chunk(self.chunks_done)
        return total


class Total:
    """Sums of whole numbers, and an exact cost: no order of chunks shows."""

    def __init__(self, k: int, d: int) -> None:
        self.sums = np.zeros((k, d))
        self.counts = np.zeros(k)
        self.cost = ExactSums(1)

    @staticmethod
    def combine(a: Total, b: Total) -> Total:
        a.sums += b.sums
        a.counts += b.counts
        a.cost.merge(b.cost)
        return a


def add_chunk(chunk: Any, total: Total, centers: NDArray[Any]) -> None:
    x = chunk.x.astype(np.float64)
    weight = np.ones(len(x)) if chunk.weight is None else chunk.weight
    distances = ((x[:, None] - centers) ** 2).sum(-1)
    labels = distances.argmin(1)
    np.add.at(total.sums, labels, x * weight[:, None])
    np.add.at(total.counts, labels, weight)
    total.cost.add(distances.min(1), weight)


@dataclass(frozen=True, slots=True)
class Inner:
    drawn: NDArray[np.int16]
    name: str


@dataclass(frozen=True, slots=True)
class ToyState:
    step: int
    centers: NDArray[np.float64]
    path: tuple[float, ...]
    inner: Inner | None


@dataclass(frozen=True)
class Toy(Algorithm[ToyState, KMeansProblem]):
    """Lloyd with a little noise that depends on the step, and a state of every kind of value."""

    noise: float = 0.1
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    problem = KMeansProblem(3)

    def init(self, passes: Passes, rng: Rng) -> ToyState:
        generator = rng.generator(0, "init")
        extent = passes.reduce(_extent, start=_Extent, combine=_Extent.combine)
        scale = np.float64(extent.largest)
        centers = generator.uniform(-scale, scale, (self.problem.n_clusters, passes.n_features))
        return ToyState(0, centers, (), None)

    def step(self, passes: Passes, rng: Rng, state: ToyState) -> tuple[ToyState, Info]:
        k, d = state.centers.shape
        total = passes.reduce(
            add_chunk, state.centers, start=partial(Total, k, d), combine=Total.combine
        )
        cost = float(total.cost.values[0])
        generator = rng.generator(state.step, "noise")
        counts = np.maximum(total.counts, 1)[:, None]
        noise = self.noise * generator.standard_normal((k, d)) / (state.step + 1) ** 3
        centers = np.where(total.counts[:, None] > 0, total.sums / counts, state.centers) + noise
        shift = float(((centers - state.centers) ** 2).sum())
        inner = Inner(generator.integers(0, 99, 4).astype(np.int16), f"step {state.step}")
        new = ToyState(state.step + 1, centers, (*state.path, cost), inner)
        return new, Info(cost, passes.n_rows, None, shift, shift == 0.0, {"k": float(k)})

    def model(self, state: ToyState) -> CenterArrays:
        k, d = state.centers.shape
        return CenterArrays(state.centers, np.zeros(k), np.zeros(d))


class _Extent:
    largest = 0.0

    @staticmethod
    def combine(a: _Extent, b: _Extent) -> _Extent:
        a.largest = max(a.largest, b.largest)
        return a


def _extent(chunk: Any, total: _Extent) -> None:
    total.largest = max(total.largest, float(np.abs(chunk.x).max()))


def toy_rows(n: int = 60, d: int = 2) -> NDArray[np.float64]:
    generator = np.random.default_rng(5)
    return np.round(generator.normal(0, 20, (n, d)))


class CutRows(Rows):
    """An array read in chunks of these lengths."""

    def __init__(self, x: NDArray[Any], lengths: Sequence[int]) -> None:
        self._x = x
        super().__init__(
            n_features=x.shape[1], dtype=x.dtype, chunk_table=table_from_lengths(lengths)
        )

    def _load(self, i: int, start: int, stop: int) -> NDArray[Any]:
        return self._x[start:stop]
