"""VRKM and VRKM++: k-means by variance-reduced steps.

Y. Zhao, Y. Ming, X. Liu, E. Zhu, K. Zhao, J. Yin, Large-scale k-means clustering via variance
reduction, Neurocomputing 307 (2018). Its algorithms, which look a row's label up in a snapshot, are
:mod:`~.snapshot`; the form to use, which keeps the latest label of each row, is :mod:`~.labels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal

from largek_dask.algorithms.base import Algorithm, Footprint, Info, Passes, Rng, TableShape
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.vrkm.labels import LabelTable, LabelTableState
from largek_dask.algorithms.vrkm.snapshot import SnapshotState, SnapshotVRKM
from largek_dask.errors import ParameterError

__all__ = ["VRKM"]

OF_LABELS = ("rounds", "smoothing")
OF_SNAPSHOT = ("eta", "round_rows", "epoch", "plus_plus")
"""Parameters of each of the tables."""


@dataclass(frozen=True)
class VRKM(Algorithm[LabelTableState | SnapshotState]):
    """k-means by variance-reduced steps; a step is an epoch.

    With ``table="labels"``, an epoch labels every row once, in rounds, and moves all centres after
    each, by an estimate for all rows from recent rounds. There is no step size. It begins with
    samples, and ends where Lloyd's algorithm stands still, after a fraction of its
    passes. A store that was not shuffled and does not fit in memory is read once per round. A table
    of up to 2^25 numbers is held once more, round by round.

    ``table="snapshot"`` is the published VRKM++ (Algorithm 4) and VRKM (Algorithm 3), in rounds of
    rows that share their centres; :meth:`paper` takes one row after the other.

    Parameters
    ----------
    table : {"labels", "snapshot"}
        Source of a row's previous label: its own latest visit, or a scan of all rows that begins
        the epoch. The parameters that follow belong to one of them.
    rounds : int
        Of "labels": rounds of an epoch (R), each over as many rows. Fewer if k times d is large:
        the centres of an epoch's rounds are kept. 1 is Lloyd's algorithm.
    smoothing : float
        Of "labels": share of the latest round in the expected change of the other rows (β), in
        (0, 1].
    eta : float, "auto" or "paper"
        Of "snapshot": learning rate of a row. "paper" is K / n, "auto" ten times that but at most
        0.02. Any but "paper" is halved, and the epoch taken back, where the objective has risen.
    round_rows : int or "auto"
        Of "snapshot": rows that share their centres; "auto" is the hundredth part of all. With 1,
        rows are drawn one after the other as published, and have to fit into the memory of the
        driver's process (2^27 values).
    epoch : float
        Of "snapshot": rows of an epoch's inner loop, as a share of all rows (T / n), in whole
        rounds.
    plus_plus : bool
        Of "snapshot": VRKM++. False is VRKM, which adds the batch gradient of the snapshot to every
        step; that is only rounding (equation 9), and takes a second scan.

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.repeat(np.eye(3, dtype=np.float32), 50, axis=0)
    >>> km = lk.KMeans(3, algorithm=lk.VRKM(), random_state=0).fit(x)
    >>> float(km.inertia_)
    0.0
    """

    table: Literal["labels", "snapshot"] = "labels"
    rounds: int = 10
    smoothing: float = 0.5
    eta: float | Literal["auto", "paper"] = "auto"
    round_rows: int | Literal["auto"] = "auto"
    epoch: float = 1.0
    plus_plus: bool = True
    problem: KMeansProblem | None = field(default=None, repr=False, kw_only=True)
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    def __post_init__(self) -> None:
        if self.table not in ("labels", "snapshot"):
            raise ParameterError(f"table must be 'labels' or 'snapshot', got {self.table!r}.")
        others = OF_SNAPSHOT if self.table == "labels" else OF_LABELS
        for option in fields(self):
            given = getattr(self, option.name)
            if option.name in others and option.default is not MISSING and given != option.default:
                own = "snapshot" if self.table == "labels" else "labels"
                why = (
                    "a table of labels has no step size and no scan"
                    if own == "snapshot"
                    else "a snapshot is not smoothed, and its rounds are of round_rows rows"
                )
                raise ParameterError(
                    f"{option.name}={given!r} belongs to table={own!r}, and table is "
                    f"{self.table!r}: {why}."
                )
        # Each form checks its own parameters.
        self._form  # noqa: B018

    @classmethod
    def paper(cls) -> VRKM:
        """Return the published VRKM++: one row after the other, with the learning rate K / n."""
        return cls(table="snapshot", eta="paper", round_rows=1)

    @property
    def _form(self) -> Algorithm[Any]:
        if self.table == "labels":
            return LabelTable(self.rounds, self.smoothing, problem=self.problem)
        return SnapshotVRKM(
            self.eta, self.round_rows, self.epoch, self.plus_plus, problem=self.problem
        )

    def init(self, passes: Passes, rng: Rng) -> LabelTableState | SnapshotState:
        """Return the state at the starting centres."""
        state: LabelTableState | SnapshotState = self._form.init(passes, rng)
        return state

    def step(
        self, passes: Passes, rng: Rng, state: LabelTableState | SnapshotState
    ) -> tuple[LabelTableState | SnapshotState, Info]:
        """Run one epoch."""
        return self._form.step(passes, rng, state)

    def model(self, state: LabelTableState | SnapshotState) -> CenterArrays:
        """Return the centres that rows would meet next, of the form that the state belongs to."""
        form: Algorithm[Any] = SnapshotVRKM() if isinstance(state, SnapshotState) else LabelTable()
        arrays = form.model(state)
        assert isinstance(arrays, CenterArrays)
        return arrays

    def check(self, table: TableShape) -> None:
        """Raise an error if the form cannot handle such a table."""
        self._form.check(table)

    def footprint(
        self, table: TableShape, itemsize: int, n_threads: int | None, budget: int | None
    ) -> Footprint:
        """Return that of the form."""
        return self._form.footprint(table, itemsize, n_threads, budget)

    def report(
        self, passes: Passes, rng: Rng, state: LabelTableState | SnapshotState
    ) -> Mapping[str, float | str]:
        """Return the report of the form."""
        return self._form.report(passes, rng, state)
