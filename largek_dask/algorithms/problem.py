"""Problems: labelling of rows by a model, and the last pass of a fit.

A kind of problem declares how rows are labelled and which sums are taken over them. The driver
labels groups of chunks in turn, into memory or into a store of labels (``driver.final``).
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
    from largek_dask.algorithms.base import Passes, TableShape

SKIPPED = -1
"""Label of a row with NaN or infinity."""


@dataclass(frozen=True, slots=True)
class RowValues:
    """Kind of value that a labelling gives every row."""

    name: str
    """Name of the values in a store of them."""
    dtype: str
    skipped: float
    """The value of a row with NaN or infinity."""
    missing: float
    """Fill value of a store, where nothing has been written."""


LABELS = RowValues("labels", "<i4", SKIPPED, -2)


@dataclass(frozen=True, slots=True)
class Labelling:
    """Labelling of rows by a model, and the sums over them."""

    chunk_fn: Callable[..., NDArray[Any]]
    """``chunk_fn(chunk, sums, *broadcast)`` returns the labels of a chunk's rows and adds to
    ``sums``, by name; importable by name (it travels to workers). Skipped rows weigh 0, and their
    labels become -1."""
    broadcast: tuple[Any, ...]
    """Arguments sent once to every worker: the model, as the function takes it."""
    sums: Mapping[str, int]
    """Names of the exact sums, and the length of each."""
    marks: Mapping[str, NDArray[Any]]
    """Arrays that identify the model. A store of labels records their hashes, so that it is
    continued by the same model only."""
    values: RowValues = LABELS
    """Kind of value of the rows."""
    expect: Callable[..., None] | None = None
    """``expect(n_rows, *broadcast)`` precedes a trial on a few rows, which the function then treats
    as it will treat ``n_rows``. None: it treats any number of rows alike."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """Result of a pass that labels all rows."""

    labels: NDArray[Any] | None
    """(n,) labels, -1 for rows with NaN or infinity (or other values, as the labelling says); None
    if they went to storage or nowhere."""
    sums: Mapping[str, ExactSums]
    """Sums of the labelling, by name."""

    def sum_of(self, name: str) -> float:
        """Return a sum of one number, rounded once."""
        return self.sums[name].value


LabelRows = Callable[[Labelling], Labelled]
"""Function that labels all rows in one pass; its maker decides where the labels go."""


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
    """Number of clusters left without rows."""
    n_distinct: int | None = None
    """Number of distinct rows if there are fewer than clusters, otherwise None."""


@dataclass(frozen=True, slots=True)
class Problem(ABC):
    """Problem that algorithms solve: a subclass per kind, such as k-means.

    Fields named like an option of a fit are set to that option. An algorithm object as a user makes
    it (``Lloyd()``) holds only its own parameters; ``Algorithm.bind`` gives it the problem.
    """

    objective: ClassVar[Objective]
    """Objective, by which starts are compared and which steps show."""
    inits: ClassVar[tuple[str, ...]] = ("auto",)
    """Valid names for ``init``."""

    n_clusters: int
    init: str | NDArray[Any] = "auto"
    """First model: one of ``inits``, or the model itself, (k, d), or the models of several starts,
    (n_init, k, d)."""
    tol: float = field(default=1e-4, kw_only=True)
    """The ``tol`` of the fit, for algorithms that need it in their own decisions."""

    def check(self, table: TableShape) -> None:
        """Raise ``ParameterError`` if it cannot be solved for such a table."""
        if not isinstance(self.init, str) or self.init not in self.inits:
            names = ", ".join(map(repr, self.inits))
            raise ParameterError(f"init must be one of {names}, got {self.init!r}.")

    def passes_to_start(self) -> int:
        """Return the approximate number of passes for the first model, for plans."""
        return 1

    @abstractmethod
    def labelling(self, arrays: Any) -> Labelling:
        """Return the labelling of rows by a model with these arrays.

        Its sums include that of the objective, by its name, and ``counts``, one per cluster.
        """

    def finish(self, passes: Passes, arrays: Any, label_rows: LabelRows) -> Final:
        """Run the last pass, or several: labels, exact objective, and relocation of empty clusters.

        ``arrays`` are the final model of the algorithm. The labels of the last call of
        ``label_rows`` are kept.
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
        """Return model arrays for a fit that ran out of time before its first; None: impossible.

        ``rows`` are a sample, at least ``n_clusters`` of positive weight; ``shift`` (d,) is the
        origin of the kernels.
        """
        return None

    def complaint(
        self, final: Final, *, had_time: bool, last: Mapping[str, float | None]
    ) -> str | None:
        """Return a warning about the final model; None if there is none.

        ``had_time``: there was time for :meth:`finish`. ``last``: figures of the last step
        (``Info.extra``).
        """
        return None


def check_integer(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise ``ParameterError`` for a parameter that is no integer between these."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        allowed = f"at least {least}" if most is None else f"{least} to {most}"
        raise ParameterError(f"{name} must be an integer of {allowed}, got {value!r}.")


def check_number(name: str, value: Any) -> None:
    """Raise ``ParameterError`` for a parameter that is no number of at least 0."""
    if isinstance(value, bool) or not (isinstance(value, Real) and float(value) >= 0):
        raise ParameterError(f"{name} must be a number of at least 0, got {value!r}.")
