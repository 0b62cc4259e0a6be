"""VRKM: k-means by variance-reduced steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from largek_dask.algorithms.base import Algorithm, Info, Passes, Rng
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.vrkm.labels import LabelTable, LabelTableState


@dataclass(frozen=True)
class VRKM(Algorithm[LabelTableState]):
    """VRKM."""

    rounds: int = 10
    smoothing: float = 0.5
    problem: KMeansProblem | None = field(default=None, repr=False, kw_only=True)
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    @property
    def _form(self):
        return LabelTable(self.rounds, self.smoothing, problem=self.problem)

    def init(self, passes: Passes, rng: Rng) -> LabelTableState:
        return self._form.init(passes, rng)

    def step(self, passes: Passes, rng: Rng, state: LabelTableState) -> tuple[LabelTableState, Info]:
        return self._form.step(passes, rng, state)

    def model(self, state: LabelTableState) -> CenterArrays:
        return self._form.model(state)
