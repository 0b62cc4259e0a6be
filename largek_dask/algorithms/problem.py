"""Problems that algorithms solve: labelling rows by a model, and the last pass of a fit.

Each kind of problem defines how rows are labelled and which sums over the rows are computed. The
driver labels groups of chunks in turn and writes the labels to memory or to a label store
(``driver.final``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.objective import Objective
from largek_dask.algorithms.randomness import TakenRows
from largek_dask.errors import ParameterError
from largek_dask.kernels.exact.numbers import ExactSums

if TYPE_CHECKING:
    from largek_dask.algorithms.base import Passes, RowState, TableShape

SKIPPED = -1
"""Label of a row with NaN or infinity."""


@dataclass(frozen=True, slots=True)
class RowValues:
    name: str
    dtype: str
    skipped: float
    """Value of a row with NaN or infinity."""
    missing: float
    """Fill value of a store, for rows that have not been written."""


LABELS = RowValues("labels", "<i4", SKIPPED, -2)


@dataclass(frozen=True, slots=True)
class Labelling:
    """Function and sums for labelling rows by a model."""

    chunk_fn: Callable[..., NDArray[Any]]
    """``chunk_fn(chunk, sums, *broadcast)`` returns the labels of the rows of a chunk and adds to
    ``sums``, a mapping by name. Workers must be able to import the function by name. Skipped rows
    have weight 0 and get the label -1."""
    broadcast: tuple[Any, ...]
    """Arguments of ``chunk_fn`` that describe the model; sent once to every worker."""
    sums: Mapping[str, int]
    """Name and length of each exact sum."""
    marks: Mapping[str, NDArray[Any]]
    """Arrays that identify the model. A label store records their hashes, so that only the same
    model can continue labelling."""
    values: RowValues = LABELS
    expect: Callable[..., None] | None = None
    """``expect(n_rows, *broadcast)`` is called before a trial on few rows, so that ``chunk_fn``
    treats them like ``n_rows`` rows. None if the number of rows makes no difference."""
    state: RowState | None = None
    """Row state in which the result of ``chunk_fn`` is kept as "labels"; None: it is not kept."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """Result of a pass that labels all rows."""

    labels: NDArray[Any] | None
    """(n,) labels or other values per row; labels are -1 for rows with NaN or infinity. None if
    labels were written to storage or discarded."""
    sums: Mapping[str, ExactSums]

    def sum_of(self, name: str) -> float:
        return self.sums[name].value


LabelRows = Callable[[Labelling], Labelled]


@dataclass(frozen=True, slots=True)
class Final:
    """Results of the last pass."""

    arrays: Any
    """Arrays of the model, with counts over all rows."""
    value: float
    labels: NDArray[np.int32] | None
    """(n,) labels; None if they were written to storage or discarded."""
    n_empty: int = 0
    n_distinct: int | None = None
    """Number of distinct rows if it is below the number of clusters, otherwise None."""


@dataclass(frozen=True, slots=True)
class Problem(ABC):
    """Base class of problems, with one subclass per kind, such as k-means.

    A field named like a fit option is set to that option. An algorithm object created by a user,
    such as ``Lloyd()``, has only its own parameters; ``Algorithm.bind`` sets the problem.
    """

    objective: ClassVar[Objective]
    """Objective that steps report, also used to rank starts."""
    inits: ClassVar[tuple[str, ...]] = ("auto",)
    """Valid names for ``init``."""

    n_clusters: int
    init: str | NDArray[Any] = "auto"
    """Initial model: one of ``inits``, centres (k, d), or centres of several starts (n_init, k,
    d)."""
    tol: float = field(default=1e-4, kw_only=True)

    def check(self, table: TableShape) -> None:
        """Raise ``ParameterError`` if the problem cannot be solved for such a table."""
        if not isinstance(self.init, str) or self.init not in self.inits:
            names = ", ".join(map(repr, self.inits))
            raise ParameterError(f"init must be one of {names}, got {self.init!r}.")

    def passes_to_start(self) -> int:
        """Return the approximate number of passes needed to find the first model."""
        return 1

    @abstractmethod
    def labelling(self, arrays: Any) -> Labelling:
        """Return the labelling of rows by a model with these arrays.

        The sums include ``counts`` (k,) and the objective under its name.
        """

    def finish(self, passes: Passes, arrays: Any, label_rows: LabelRows) -> Final:
        """Run the last pass or passes: label rows, relocate empty clusters, compute the objective.

        ``arrays`` is the final model. The result has the labels of the last call of ``label_rows``.
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
        """Return model arrays for a fit that ran out of time before its first model.

        ``rows`` is a sample with at least ``n_clusters`` rows of positive weight, and ``shift``
        (d,) is the origin used by the kernels. Return None if no such model exists.
        """
        return None

    def complaint(
        self, final: Final, *, had_time: bool, last: Mapping[str, float | None]
    ) -> str | None:
        """Return a warning about the final model, or None.

        ``had_time`` is True if there was time for :meth:`finish`; ``last`` holds the values of the
        last step (``Info.extra``).
        """
        return None


def check_integer(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise ``ParameterError`` if a parameter is not an integer from ``least`` to ``most``."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        allowed = f"at least {least}" if most is None else f"{least} to {most}"
        raise ParameterError(f"{name} must be an integer of {allowed}, got {value!r}.")


def check_number(name: str, value: Any) -> None:
    """Raise ``ParameterError`` if a parameter is not a number of at least 0."""
    if isinstance(value, bool) or not (isinstance(value, Real) and float(value) >= 0):
        raise ParameterError(f"{name} must be a number of at least 0, got {value!r}.")
