"""Interfaces of algorithms and of data access.

An algorithm is a pair of functions, ``init`` and ``step``, over explicit state. An algorithm reads
the data only through :class:`Passes`, whose ``reduce`` runs a function over every chunk and merges
the totals. No algorithm depends on the cluster, the storage or the clock. The loop, checkpoints,
progress and stop rules are in ``largek_dask.driver``.
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

__all__ = ["ProjectedRows", "Rng", "RowSample", "RowSlice", "SpacedRows", "TakenRows"]

Total = TypeVar("Total")

ChunkFunction = Callable[..., None]
"""``chunk_fn(chunk, total, *broadcast)`` adds the chunk to ``total`` in place."""


@dataclass(frozen=True, slots=True)
class RowState:
    """Values per row that a pass stores on the worker that owns the chunk.

    Row state is a cache that any worker can rebuild. ``chunk.state`` holds the values of the
    previous generation, and is None on the first pass (``replay=()``).

    If the values are missing or belong to another generation, they are rebuilt before the pass: the
    chunk function is called with each broadcast in ``replay``, starting from an empty state, and
    the totals are discarded. If the state depends only on the chunk and the model, ``replay`` is
    the previous model, ``((model,),)``. Otherwise ``replay`` holds the broadcasts of all passes
    since the last anchor.
    """

    name: str
    generation: int
    """Number of the pass that writes this state; the pass reads the state of ``generation - 1``."""
    replay: tuple[tuple[Any, ...], ...] = ()
    rebuild: ChunkFunction | None = None
    """Chunk function that a replay calls; None means the chunk function of the pass. A pass that
    only reads the state must name the function that writes the state."""
    rebuild_start: Callable[[], Any] | None = None
    """Function that makes the temporary total for ``rebuild``; None means ``start`` of the pass."""
    rebuild_rows: RowSlice | None = None
    """Rows that a replay covers. None means the rows of the pass that wrote the previous
    generation, which are unknown if that pass ran in another process, for example before a
    resume."""
    retain: bool = False
    """True to keep the total between passes. If ``chunk.counted``, the total already includes the
    chunk under its row state, and the chunk function adds only differences. The returned total is
    read-only and valid until the next pass of this name."""


class Chunk(Protocol):
    """One chunk of rows, as passed to a chunk function."""

    index: int
    start: int
    """Global index of the chunk's first row."""
    x: Any
    """(n, d) rows: a read-only C-contiguous array of float32, float64 or a small integer type, or a
    :class:`~largek_dask.kernels.blocks.SparseBlock`."""
    weight: NDArray[np.float64] | None
    """(n,) row weights; None if every row weighs 1. Skipped rows weigh 0."""
    rows: NDArray[np.int64] | None
    """(n,) positions within the chunk if a ``RowSlice`` was requested, otherwise None."""
    bad: NDArray[np.bool_] | None
    """(n,) mask of rows with NaN or infinity; None if all rows are finite. In ``x``, the values of
    these rows are replaced by the shift."""
    state: Mapping[str, NDArray[Any]] | None
    """Row state kept by the previous generation; None on the first pass."""
    counted: bool
    """True if the total already includes this chunk under the values in ``state``."""
    threads: Threads
    """Threads for this chunk: several if chunks were joined into one (``joined``), otherwise
    one."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def pieces(self, rows: slice) -> Iterator[tuple[slice, Any, NDArray[np.float64] | None]]:
        """Yield ``x`` and ``weight`` of some rows, in pieces that fit into a processor's cache.

        A piece is valid until the next piece is requested, because its buffer may be reused. In a
        pass with both ``rows`` and ``joined``, this method yields only the requested share, while
        ``x`` and ``weight`` hold all rows.
        """

    def numbers(self, places: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return global indices (n,) of all rows, or of the rows at the given positions in ``x``.

        In a subset, indices refer to the table that the subset was taken from.
        """

    def locate(self, rows: RowSlice) -> NDArray[np.int64]:
        """Return the positions in ``x`` of the rows of a slice, in ascending order."""

    def take_state(self) -> dict[str, NDArray[Any]]:
        """Return the writable arrays of ``state`` for reuse; ``state`` is invalid afterwards."""

    def keep(self, **arrays: NDArray[Any]) -> None:
        """Store these arrays as the chunk's row state of this generation."""


class TableShape(Protocol):
    """Protocol for the size of a table, implemented by ``Rows`` and ``Passes``."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""

    @property
    def n_features(self) -> int:
        """Number of features."""

    @property
    def row_values(self) -> int:
        """Number of values per row in memory; for sparse rows, the number of stored values."""

    @property
    def is_sparse(self) -> bool:
        """True if only nonzero values are stored; sparse rows are never shifted."""


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """Size of a table and resources of a fit, known before any row is read."""

    n_rows: int
    n_features: int
    row_values: int
    is_sparse: bool
    itemsize: int
    """Bytes per value of rows held in memory."""
    n_threads: int | None = None
    state_limit: int | None = None


class Passes(TableShape, Protocol):
    """Access to the data, implemented by ``passes.local`` and ``passes.cluster``."""

    n_threads: int | None
    """Number of threads that compute a pass; None on a cluster, where the number may change."""
    state_limit: int | None
    """Maximum bytes of row state in all processes together; None if unknown."""
    chunk_table: NDArray[np.int64]
    """(n_chunks + 1,) global index of the first row of each chunk, followed by the number of
    rows."""

    @property
    def places(self) -> NDArray[np.int64] | None:
        """(n,) positions among the rows of :meth:`take`, in the order in which passes visit them.

        None if the orders are equal. Only passes with row state over a ``RowSample`` that allows
        ``any_order`` have another order: workers visit its rows in the order of the table.
        """

    @property
    def threads(self) -> Threads:
        """Threads of the driver's process for work between passes; a stop interrupts them."""

    @property
    def statistics(self) -> Statistics:
        """Statistics of the rows; a subset has the statistics of the full table."""

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
        """Run one distributed map-reduce; every chunk is counted exactly once.

        Parameters
        ----------
        chunk_fn : callable
            ``chunk_fn(chunk, total, *broadcast) -> None`` adds one chunk to ``total`` in place. It
            must be importable by name on the workers.
        *broadcast : object
            Sent once to every worker and unpickled there once per pass.
        start : callable
            Function that makes an empty total; called once per thread.
        combine : callable
            ``combine(a, b)`` adds ``b`` to ``a`` and returns ``a``. It must be exact, so that the
            order does not matter.
        state : RowState, optional
            Row state that this pass reads and writes.
        rows : RowSlice, optional
            Share of every chunk's rows to process; by default all rows.
        chunks : sequence of int, optional
            Chunks to process; by default all chunks.
        joined : bool
            True if ``chunk_fn`` does not depend on chunk boundaries and is faster on many rows.
            Chunks that are contiguous in this process's memory may then be passed as one chunk with
            several ``chunk.threads``. In it, rows of weight 0 may hold NaN or infinity, and the
            share ``rows`` must be read by ``chunk.pieces``.

        Raises
        ------
        CancelledFit
            The driver requested a stop, or the time limit passed, during this pass.
        """

    def take(self, rows: NDArray[np.int64] | None = None) -> TakenRows:
        """Return rows by global index, in the given order and the compute dtype; None: all rows.

        In a subset, rows are numbered from 0. Nothing is copied if this process already holds all
        rows, in order, in one array.
        """

    def subset(
        self,
        rows: RowSlice | RowSample | SpacedRows | ProjectedRows | NDArray[np.int64],
        weights: NDArray[np.float64] | None = None,
        *,
        own_weights: bool = False,
        cuts: Sequence[int] = (),
    ) -> Passes:
        """Return passes over some rows, which are read once and held in the driver's process.

        On a cluster, workers also read the rows of a large sample, and run its passes with row
        state (see :attr:`places`).

        Unless ``rows`` gives an order, the order of the rows and the chunks may differ each time
        the same subset is made.

        The last subset of each kind of ``rows`` is cached until a different subset is requested or
        the cached subset is closed. After a resume, rows are read again. A slice that extends the
        previous slice reuses the rows and row state of that slice; ``rebuild_rows`` must then be a
        slice that was requested before.

        Parameters
        ----------
        rows : RowSlice, RowSample, SpacedRows, ProjectedRows or (m,) int64
            Selection of rows. Global indices must be distinct, and keep their order. Projected rows
            have their own statistics.
        weights : (m,) float64, optional
            With global indices: factors on the rows' weights.
        own_weights : bool
            True if these weights are unlike those of the table (real numbers, or larger): the
            subset then has its own statistics of weights and its own grid of sums. Otherwise it
            takes them from the table, like all other statistics.
        cuts : sequence of int
            With a slice: ends of shares, which become chunk boundaries.
        """

    def compute(self, function: Callable[..., Any], *given: Any, distances: int) -> Any:
        """Return ``function(x, weight, threads, *given)`` for all rows, which are as in ``take``.

        On a cluster, a worker computes it for a subset, of which it keeps a copy, if ``distances``
        is large. The function must be importable by name on the workers.

        Parameters
        ----------
        distances : int
            Number of distances in one labelling of the rows: rows times clusters. The function is
            expected to take as long as many labellings.
        """

    def close(self) -> None:
        """Release cached rows and row state."""


@dataclass(frozen=True, slots=True)
class Info:
    """Record of one step, used for events, the history and the stop rules."""

    cost: float
    """Objective before this step's update (k-means: the weighted sum of squared distances)."""
    rows: int
    n_changed: int | None = None
    """Number of rows whose label changed; None if unknown."""
    shift: float | None = None
    """Squared movement of the centres divided by the mean variance of the features. This value is
    compared with ``tol`` unless ``Algorithm.change`` names a key of ``extra``."""
    converged: bool = False
    """True at a fixed point, where another step would change nothing."""
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Estimated memory and number of passes of a fit."""

    row_bytes: int = 0
    """Maximum size of the row state of one generation, in bytes per row."""
    fixed_row_bytes: int = 0
    """Part of ``row_bytes`` that does not change between passes, so two generations share it."""
    model_copies: int = 2
    """Size of a checkpoint, as a multiple of the size of a model (centres and weights)."""
    held_rows: int | None = None
    """Number of rows held in the driver's process for all steps; None if steps read all rows."""
    held_bytes: int = 0
    """Maximum memory in bytes for rows, copies and row state in the driver's process."""
    passes_before: int = 1
    """Passes over all rows before the first step, not counting the pass for statistics."""
    passes_after: int = 0
    """Passes over all rows after the last step, not counting the final labelling pass."""
    step_reads: int = 1
    """Number of times a step reads rows that are not in memory, if the store is not shuffled."""
    steps: int | None = None
    """Usual number of steps; None if unknown."""
    searches: int = 0
    """Cost of a search of the held rows in one process, as a number of calls of
    ``kernels.descent.label_rows``."""
    distances: float | None = None
    """Cost of a step in distance computations per row; None means one distance per centre."""
    full_search: str | None = None
    """Display text that says when steps compare rows with all clusters; None means in every
    step."""
    label_share: float | None = None
    """Maximum cost of ``Algorithm.labels`` relative to the final labelling pass; None if the
    algorithm does not implement it."""


class ModelArrays(Protocol):
    """Frozen dataclass with the arrays of a model, without provenance.

    Each array is stored under the name of its field, and the class identifies the kind of model
    (``model.base.Model.holds``).
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def counts(self) -> NDArray[np.float64]:
        """(k,) total weight of the rows of each cluster."""


State = TypeVar("State")
Asked = TypeVar("Asked", bound=Problem)


class Algorithm(ABC, Generic[State, Asked]):
    """Base class of algorithms, whose ``init`` and ``step`` work on a frozen dataclass ``State``.

    A subclass is a frozen dataclass whose fields are the parameters of the algorithm. :meth:`bind`
    sets the problem to solve. Only ``init``, ``step`` and ``model`` must be implemented.

    A state may contain numpy arrays, numbers, strings, None, and tuples of these. The driver writes
    the state to checkpoints unchanged.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    solves: ClassVar[type[Problem]]
    takes_starts: ClassVar[bool] = True
    """True if the algorithm may be run several times (``n_init``) to keep the best result."""
    change: ClassVar[str] = "shift"
    """Name of the value that is compared with ``tol``: "shift" for ``Info.shift``, or a key of
    ``Info.extra``."""
    problem: Asked
    """Problem to solve; set by :meth:`bind`, not a parameter."""

    def bind(self, problem: Asked) -> Self:
        """Return a copy that solves this problem.

        Raises
        ------
        ParameterError
            The parameters do not suit the problem.
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
            The algorithm cannot handle such a table.
        """
        return Footprint(passes_before=self.problem.passes_to_start())

    def labels(
        self, passes: Passes, rng: Rng, state: State
    ) -> tuple[NDArray[np.int32], float, NDArray[np.float64]]:
        """Label rows by ``model(state)`` when there is no time for the last pass.

        Called only if ``Footprint.label_share`` is a number.

        Returns
        -------
        labels : (n,) int32
            -1 for rows of weight 0.
        value : float
            Objective with these labels.
        counts : (k,)
            Total weight of the rows of each cluster.
        """
        raise NotImplementedError
