"""Interface of algorithms, and of their access to the data.

An algorithm is ``init`` and ``step`` over explicit state. It reads the data only through
:class:`Passes`, whose ``reduce`` runs a function over every chunk and merges the totals, and knows
no cluster, storage or clock. Loop, checkpoints, progress and stop rules are in
``largek_dask.driver``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import Field, dataclass, field
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.problem import Problem
from largek_dask.algorithms.randomness import (
    ProjectedRows,
    Rng,
    RowSample,
    RowSlice,
    SpacedRows,
    TakenRows,
)
from largek_dask.kernels.exact.statistics import Statistics
from largek_dask.kernels.threads import Threads

__all__ = [
    "Algorithm",
    "Chunk",
    "Footprint",
    "Info",
    "ModelArrays",
    "Passes",
    "PlannedTable",
    "ProjectedRows",
    "Rng",
    "RowSample",
    "RowSlice",
    "RowState",
    "SpacedRows",
    "TableShape",
    "TakenRows",
]

Total = TypeVar("Total")

ChunkFunction = Callable[..., None]
"""``chunk_fn(chunk, total, *broadcast)`` adds the chunk to ``total`` in place."""


@dataclass(frozen=True, slots=True)
class RowState:
    """Values per row that a pass keeps on the worker that owns the chunk.

    They are a cache: any worker can rebuild them. ``chunk.state`` has those of the previous
    generation. If they are missing or of another one, the passes rebuild them: they call the chunk
    function with each broadcast of ``replay`` in turn, from an empty state and without totals, and
    then run the pass itself. For a state that is a function of chunk and model, ``replay`` is the
    previous model, ``((model,),)``; for one that depends on the path, the broadcasts of all passes
    since its last anchor. On the first pass (``replay=()``) ``chunk.state`` is None.
    """

    name: str
    generation: int
    """Counter of the pass that writes the state; it reads that of ``generation - 1``."""
    replay: tuple[tuple[Any, ...], ...] = ()
    rebuild: ChunkFunction | None = None
    """Function to replay with; None: the pass's own chunk function. For a pass that only reads a
    state it is the function that writes it, on scratch totals of ``rebuild_start``."""
    rebuild_start: Callable[[], Any] | None = None
    """Makes the scratch total for ``rebuild``; None: the pass's own ``start``."""
    rebuild_rows: RowSlice | None = None
    """Rows of the replayed broadcasts; None: those of the pass that wrote the previous generation,
    which are unknown if it may have run in another process, as before a resume."""
    retain: bool = False
    """Keep the total between passes: if ``chunk.counted``, the total already holds this chunk as
    its row state describes it, and the function adds differences only. The returned total is
    read-only and valid until the next pass of this name."""


class Chunk(Protocol):
    """One chunk of rows as a chunk function sees it."""

    index: int
    """Position in the chunk table."""
    start: int
    """Global index of the chunk's first row."""
    x: Any
    """(n, d) rows, C-contiguous, read-only, float32 or float64 or a small integer type; or a
    :class:`~largek_dask.kernels.blocks.SparseBlock`, which the kernels take as well."""
    weight: NDArray[np.float64] | None
    """(n,) row weights; None if every row weighs 1. Skipped rows weigh 0."""
    rows: NDArray[np.int64] | None
    """(n,) positions inside the chunk if a ``RowSlice`` was requested, else None."""
    bad: NDArray[np.bool_] | None
    """(n,) rows with NaN or infinity (their ``x`` is replaced by the shift), None if none."""
    state: Mapping[str, NDArray[Any]] | None
    """Row state that the previous generation kept, None on the first pass."""
    counted: bool
    """The running total already holds this chunk as ``state`` describes it."""
    threads: Threads
    """Threads of this chunk: one, unless chunks are shown as one (``joined``)."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def pieces(self, rows: slice) -> Iterator[tuple[slice, Any, NDArray[np.float64] | None]]:
        """Yield ``x`` and ``weight`` of some rows, in pieces that fit a processor's cache.

        A share of a table that lies elsewhere in this process is copied piece by piece; each is
        valid until the next one. If a pass asks for a share of the rows and ``joined``, only this
        method shows the share, and ``x`` and ``weight`` are those of all rows.
        """

    def numbers(self, places: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return (n,) global indices of the rows, or of some rows of ``x``.

        In a subset they are those in the table that it was taken from.
        """

    def locate(self, rows: RowSlice) -> NDArray[np.int64]:
        """Return positions in ``x`` of the rows of a share within the pass's, ascending."""

    def take_state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of ``state``, to be written to and kept; ``state`` is then invalid."""

    def keep(self, **arrays: NDArray[Any]) -> None:
        """Keep these arrays as the chunk's row state of this generation."""


class TableShape(Protocol):
    """Size of a table of rows, as ``Rows`` and ``Passes`` give it."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""

    @property
    def n_features(self) -> int:
        """Number of features."""

    @property
    def row_values(self) -> int:
        """Numbers per row in memory: features, or stored values of sparse rows."""

    @property
    def is_sparse(self) -> bool:
        """True if only nonzero numbers are stored; 0 is then the origin of all computing."""


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """Size of a table of rows, and the resources of a fit, before anything is read."""

    n_rows: int
    n_features: int
    row_values: int
    is_sparse: bool
    itemsize: int
    """Bytes per number of held rows."""
    n_threads: int | None = None
    """As in ``Passes``."""
    state_limit: int | None = None
    """As in ``Passes``; None: no limit."""


class Passes(TableShape, Protocol):
    """Access to the data, implemented by ``passes.local`` and ``passes.cluster``."""

    n_threads: int | None
    """Threads that compute a pass; None if that may change (a cluster)."""
    state_limit: int | None
    """Maximum bytes of row state in all processes together; None if unknown."""
    chunk_table: NDArray[np.int64]
    """(n_chunks + 1,) global index of every chunk's first row, and the number of rows."""

    @property
    def threads(self) -> Threads:
        """Threads of the driver's process for work between passes; a stop ends them, too."""

    @property
    def statistics(self) -> Statistics:
        """Mean, extent, weight and grid of the rows; of a subset, those of its whole table."""

    def reduce(
        self,
        chunk_fn: ChunkFunction,
        *broadcast: Any,
        start: Callable[[], Total],
        combine: Callable[[Total, Total], Total],
        state: RowState | None = None,
        rows: RowSlice | None = None,
        chunks: Sequence[int] | None = None,
        joined: bool = False,
    ) -> Any:
        """Run one distributed map-reduce; every chunk counts exactly once.

        Parameters
        ----------
        chunk_fn : callable
            ``chunk_fn(chunk, total, *broadcast) -> None``; importable by name (it travels to
            workers). It adds one chunk to ``total`` in place.
        *broadcast : object
            Sent once to every worker and unpickled there once per pass.
        start : callable
            Makes an empty total; called once per thread.
        combine : callable
            ``combine(a, b)`` adds ``b`` into ``a`` and returns ``a``; exact, so that the order
            does not matter.
        state : RowState, optional
            Row state that this pass reads and writes.
        rows : RowSlice, optional
            Only a share of every chunk's rows.
        chunks : sequence of int, optional
            Only these chunks.
        joined : bool
            ``chunk_fn`` does not depend on where chunks begin and end, and is faster on many rows:
            those that lie in one piece in this process may be shown as one chunk, which has all
            ``chunk.threads``. Rows of weight 0 may hold NaN or infinity in it. A share of them is
            shown by ``chunk.pieces``.

        Raises
        ------
        CancelledFit
            The driver requested a stop, or the time limit has passed, inside this pass.
        """

    def take(self, rows: NDArray[np.int64] | None = None) -> TakenRows:
        """Return rows by global index, in this order, of the compute dtype; None: all rows.

        Rows of a subset are numbered from 0. Nothing is copied if all rows lie in order in one
        piece in this process.
        """

    def subset(
        self,
        rows: RowSlice | RowSample | SpacedRows | ProjectedRows | NDArray[np.int64],
        weights: NDArray[np.float64] | None = None,
        *,
        own_weights: bool = False,
        cuts: Sequence[int] = (),
    ) -> Passes:
        """Return passes over some of the rows, fetched once and held in the driver's process.

        No result depends on whether rows are held, but the order of a subset's rows, unless it is
        given, and its chunks may differ each time it is made.

        The last subset of each kind of ``rows`` is cached and found by equality, until another one
        is requested or it is closed; after a resume it is made again. A slice that begins with the
        rows of the last one takes these over with their row state; its ``rebuild_rows`` name a
        slice that was requested before.

        Parameters
        ----------
        rows : RowSlice, RowSample, SpacedRows, ProjectedRows or (m,) int64
            Distinct global indices stay in their order. Projected rows have their own statistics.
        weights : (m,) float64, optional
            With global indices: factors on the rows' weights.
        own_weights : bool
            These weights are unlike those of the table (real numbers, or larger), so the subset has
            its own statistics of weights and its own grid of sums. Otherwise it takes them from the
            table, like all other statistics.
        cuts : sequence of int
            With a slice: ends of shares, which no chunk crosses.
        """

    def close(self) -> None:
        """Release everything that is kept."""


@dataclass(frozen=True, slots=True)
class Info:
    """Record of one step, for events, history and stop rules."""

    cost: float
    """Objective before this step's move (of k-means: weighted sum of squared distances)."""
    rows: int
    """Rows assigned in this step (nominal work)."""
    n_changed: int | None = None
    """Rows whose label changed; None if unknown."""
    shift: float | None = None
    """Squared movement of the centres divided by the mean variance of the features. ``tol`` is
    compared with it, unless ``Algorithm.change`` names a figure of ``extra``."""
    converged: bool = False
    """A fixed point: another step would change nothing."""
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory and passes of a fit, from which ``driver.plan`` and ``cli.plan`` compute the rest."""

    row_bytes: int = 0
    """Maximum row state of one generation, in bytes per row."""
    fixed_row_bytes: int = 0
    """Part of ``row_bytes`` that no pass changes; two generations share it."""
    model_copies: int = 2
    """Size of a checkpoint, in models (centres and weights)."""
    held_rows: int | None = None
    """Rows of all steps, held in the driver's process; None if steps read all rows."""
    held_bytes: int = 0
    """Maximum bytes of rows in the driver's process, with their state and copies."""
    passes_before: int = 1
    """Passes over all rows before the first step, except that for statistics."""
    passes_after: int = 0
    """Passes over all rows after the last step, except the last pass."""
    step_reads: int = 1
    """Reads per step of rows that do not stay in memory, unless rows are shuffled."""
    steps: int | None = None
    """Usual number of steps; None if it is unknown."""
    searches: int = 0
    """Cost of a search in the driver's process, in calls of ``kernels.descent.label_rows``."""
    distances: float | None = None
    """Cost of a row in a step, in distances; None: one per centre."""
    full_search: str | None = None
    """Text on when steps compare rows with all clusters, for display; None: in every step."""
    label_share: float | None = None
    """Maximum cost of ``Algorithm.labels``, in last passes; None: it has none."""


class ModelArrays(Protocol):
    """Arrays of a model, without provenance: a frozen dataclass.

    Field names are those under which arrays are stored and sent; the class determines the kind of
    model (``model.base.Model.holds``).
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def counts(self) -> NDArray[np.float64]:
        """(k,) weight of the rows of each cluster."""


State = TypeVar("State")
Asked = TypeVar("Asked", bound=Problem)


class Algorithm(ABC, Generic[State, Asked]):
    """One paper, one file: ``init`` and ``step`` over a frozen dataclass ``State``.

    A subclass is a frozen dataclass of the paper's parameters; :meth:`bind` gives it the problem
    (``Asked``) that the methods below solve. Members after ``model`` have defaults.

    A state holds numpy arrays, numbers, strings, None and tuples of these; the driver writes
    it into checkpoints as it is.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    solves: ClassVar[type[Problem]]
    """Kind of problem that it solves."""
    takes_starts: ClassVar[bool] = True
    """True if it may be run several times (``n_init``), keeping the best."""
    change: ClassVar[str] = "shift"
    """Figure of a step that ``tol`` is compared with: ``Info.shift``, or this key of ``extra``."""
    problem: Asked
    """Problem to solve; set by :meth:`bind`, and no parameter."""

    def bind(self, problem: Asked) -> Self:
        """Return a copy that solves this problem.

        Raises
        ------
        ParameterError
            Parameters do not suit the problem.
        """
        bound = copy(self)
        object.__setattr__(bound, "problem", problem)
        return bound

    @abstractmethod
    def init(self, passes: Passes, rng: Rng) -> State:
        """Return the state before the first step."""

    @abstractmethod
    def step(self, passes: Passes, rng: Rng, state: State) -> tuple[State, Info]:
        """Run one step of the loop."""

    @abstractmethod
    def model(self, state: State) -> ModelArrays:
        """Return the best model of this state."""

    def footprint(self, table: PlannedTable) -> Footprint:
        """Estimate memory and passes of a fit.

        Raises
        ------
        ParameterError
            It cannot handle such a table.
        """
        return Footprint(passes_before=self.problem.passes_to_start())

    def labels(
        self, passes: Passes, rng: Rng, state: State
    ) -> tuple[NDArray[np.int32], float, NDArray[np.float64]]:
        """Label rows by ``model(state)`` for a fit without time for the last pass.

        Called only if ``Footprint.label_share`` is a number.

        Returns
        -------
        labels : (n,) int32
            -1 for rows of weight 0.
        value : float
            Objective with these labels.
        counts : (k,)
            Weight of the rows of each cluster.
        """
        raise NotImplementedError
