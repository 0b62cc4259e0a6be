"""What is asked of an algorithm, whichever it is, and what comes after its last step.

A kind of problem declares how rows are labelled and what is known of the model then; the driver
carries it out, group of chunks by group of chunks, into memory or into a store of labels
(``driver.final``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.objective import Objective
from largek_dask.algorithms.selection import TakenRows
from largek_dask.errors import ParameterError
from largek_dask.kernels.exact.numbers import ExactSums

if TYPE_CHECKING:
    from largek_dask.algorithms.base import Passes, TableShape

__all__ = [
    "LABELS",
    "SKIPPED",
    "Final",
    "LabelRows",
    "Labelled",
    "Labelling",
    "Problem",
    "RowValues",
]

SKIPPED = -1
"""Label of a row with NaN or infinity."""


@dataclass(frozen=True, slots=True)
class RowValues:
    """What is found for every row, one number each."""

    name: str
    """What a store of them says that it holds."""
    dtype: str
    skipped: float
    """The value of a row with NaN or infinity."""
    missing: float
    """What a store holds where nothing has been written."""


LABELS = RowValues("labels", "<i4", SKIPPED, -2)


@dataclass(frozen=True, slots=True)
class Labelling:
    """How a model labels rows, and what is added up over them."""

    chunk_fn: Callable[..., NDArray[Any]]
    """``chunk_fn(chunk, sums, *broadcast)`` gives the labels of a chunk's rows and adds to
    ``sums``, by name; importable by name (it travels to workers). Rows that are skipped weigh 0,
    and whatever label it gives them becomes -1."""
    broadcast: tuple[Any, ...]
    """What is sent once to every worker: the model, as the function takes it."""
    sums: Mapping[str, int]
    """The names of the exact sums, and how many each holds."""
    marks: Mapping[str, NDArray[Any]]
    """The arrays by which the model is told from another, whose labels are not gone on with; a
    store of labels that a fit has written notes their hashes."""
    values: RowValues = LABELS
    """What rows are given, if that is anything else than labels."""
    expect: Callable[..., None] | None = None
    """``expect(n_rows, *broadcast)`` before a trial on a few rows: the function then does with them
    as it will do with as many as there are. None: how many there are makes no difference to it."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """What a pass over all rows has found."""

    labels: NDArray[Any] | None
    """(n,) labels, -1 for rows with NaN or infinity (or other values, as the labelling says); None
    if they went to storage or nowhere."""
    sums: Mapping[str, ExactSums]
    """The sums of the labelling, by name."""

    def sum_of(self, name: str) -> float:
        """A sum of one number, rounded once."""
        return self.sums[name].value


LabelRows = Callable[[Labelling], Labelled]
"""Labels all rows in one pass; where the labels go, and whether they are kept, is arranged."""


@dataclass(frozen=True, slots=True)
class Final:
    """A model after the last pass."""

    arrays: Any
    """The arrays of the model; its counts are those of all rows."""
    value: float
    """The value of the objective."""
    labels: NDArray[np.int32] | None
    """(n,) labels; None if they went to storage or nowhere."""
    n_empty: int = 0
    """Clusters without rows that are left."""
    n_distinct: int | None = None
    """How many distinct rows there are where that is fewer than clusters, else None."""


@dataclass(frozen=True, slots=True)
class Problem(ABC):
    """What is asked, whichever algorithm answers: a subclass for each kind, such as k-means.

    Fields that are called like an option of a fit are given that option. An algorithm object as
    a user makes it (``Lloyd()``) holds its own parameters; it runs once it has been given a
    problem: ``dataclasses.replace(algorithm, problem=problem)``.
    """

    objective: ClassVar[Objective]
    """What starts are compared by, what steps show, and what ``tol`` is compared with."""
    inits: ClassVar[tuple[str, ...]] = ("auto",)
    """The names that ``init`` may be."""

    n_clusters: int
    init: str | NDArray[Any] = "auto"
    """How the first model is found: one of ``inits``, or the model itself, (k, d), or the models
    of several starts, (n_init, k, d)."""
    tol: float = field(default=1e-4, kw_only=True)
    """The ``tol`` of the fit, for algorithms that need it in their own decisions."""

    def check(self, table: TableShape) -> None:
        """Raise ``ParameterError`` where it cannot be answered for such a table."""
        if not isinstance(self.init, str) or self.init not in self.inits:
            told = ", ".join(map(repr, self.inits))
            raise ParameterError(f"init must be one of {told}, got {self.init!r}.")

    def passes_to_start(self) -> int:
        """About how many passes the first model takes, for plans."""
        return 1

    @abstractmethod
    def labelling(self, arrays: Any) -> Labelling:
        """How a model with these arrays labels rows.

        Among its sums are that of the objective, by its name, and ``counts``, one a cluster.
        """

    def finish(self, passes: Passes, arrays: Any, label_rows: LabelRows) -> Final:
        """The last pass, or several: labels, the exact objective, what becomes of empty clusters.

        Parameters
        ----------
        passes : Passes
        arrays : ModelArrays
            What the algorithm ended with.
        label_rows : callable
            Labels all rows in one pass; the last one's are kept.
        """
        found = label_rows(self.labelling(arrays))
        counts = found.sums["counts"].values
        return Final(
            replace(arrays, counts=counts),
            found.sum_of(self.objective.name),
            found.labels,
            int(np.count_nonzero(counts == 0)),
        )

    def unsearched(self, rows: TakenRows, shift: NDArray[Any], draws: np.random.Generator) -> Any:
        """The arrays of a model for a fit whose time was over before it had any; None: no way.

        Parameters
        ----------
        rows : TakenRows
            A sample, at least ``n_clusters`` rows that weigh something.
        shift : (d,)
            The origin about which the kernels compute.
        draws : Generator
            What may be drawn from.
        """
        return None

    def complaint(
        self, final: Final, *, had_time: bool, last: Mapping[str, float | None]
    ) -> str | None:
        """What to warn of.

        Parameters
        ----------
        final : Final
        had_time : bool
            Whether there was time for :meth:`finish`.
        last : mapping
            What the last step has told (``Info.extra``).
        """
        return None
