"""What an algorithm is, and what it may ask of the data.

An algorithm is ``init`` and ``step`` over explicit state. It knows no cluster, no storage and no
clock: its only door to the data is :class:`Passes`, whose ``reduce`` runs one function over
every chunk and adds the results up. The loop, checkpoints, progress and stop rules are written
once, in ``largek_dask.driver``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.objective import Objective
from largek_dask.algorithms.problem import Problem
from largek_dask.algorithms.selection import (
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
    """Declares that a pass keeps something per row on whoever owns the chunk.

    What is kept is a cache: any worker can rebuild it. The state of ``generation - 1`` is what
    ``chunk.state`` shows; where it is missing, or of another generation, the passes rebuild it by
    calling the same chunk function with each broadcast of ``replay`` in turn on an empty state
    (totals thrown away), and only then run the pass itself. So a state that is a function of
    (chunk, model) gives the one model before, ``replay=((model,),)``; a state that depends on
    the path gives the broadcasts of all passes since its last anchor. On the first pass
    (``replay=()``) ``chunk.state`` is None.
    """

    name: str
    generation: int
    """Counter of the pass that writes the state; it reads what ``generation - 1`` left."""
    replay: tuple[tuple[Any, ...], ...] = ()
    rebuild: ChunkFunction | None = None
    """What ``replay`` is replayed with; None: the pass's own chunk function. A pass that only
    reads a state names the function that writes it, with a scratch total of its
    own kind (``rebuild_start``)."""
    rebuild_start: Callable[[], Any] | None = None
    """Makes the scratch total for ``rebuild``; None: the pass's own ``start``."""
    rebuild_rows: RowSlice | None = None
    """The rows that the replayed broadcasts were for; None: those of the pass that has written the
    generation before. A pass over a share names them if that pass may have been another process's:
    after a resume nobody else knows."""
    retain: bool = False
    """Keep the total between passes: ``chunk.counted`` then says that the total already holds
    this chunk as its row state describes it, and the function adds differences only. Whoever is
    given such a total must not change it, and has it until the next pass of its name."""


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
    """(n,) row weights; None where every row weighs 1. Rows that are skipped weigh 0."""
    rows: NDArray[np.int64] | None
    """(n,) positions inside the chunk when a ``RowSlice`` was asked for, else None."""
    bad: NDArray[np.bool_] | None
    """(n,) rows with NaN or infinity (their ``x`` is replaced by the shift), None if none."""
    state: Mapping[str, NDArray[Any]] | None
    """Row state that the previous generation kept, None on the first pass."""
    counted: bool
    """The running total already holds this chunk as ``state`` describes it."""
    threads: Threads
    """Those that the chunk has for itself: one, unless chunks are shown as one (``joined``)."""

    def __len__(self) -> int:
        """Rows."""

    def pieces(
        self, rows: slice, *, few: bool = False
    ) -> Iterator[tuple[slice, Any, NDArray[np.float64] | None]]:
        """``x`` and ``weight`` of some of the rows, in pieces that fit a processor's cache.

        A share of a table that lies elsewhere in this process is copied piece by piece: what is
        shown goes with the next piece. Where a pass asks for a share of the rows and ``joined``,
        they are shown here only, and ``x`` and ``weight`` are those of all rows.

        ``few``: most of them are not going to be looked at. Such a share is one piece then, whose
        ``x`` has a length, and copies the rows that it is indexed with.
        """

    def numbers(self, places: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """(n,) global indices of the rows; in a subset, those in the table that it is of.

        Or those of some rows of ``x``.
        """

    def locate(self, rows: RowSlice) -> NDArray[np.int64]:
        """Where in ``x`` the rows of a share are, ascending; one within that of the pass."""

    def take_state(self) -> dict[str, NDArray[Any]]:
        """The arrays of ``state``, to be written to and kept; ``state`` is of no use afterwards."""

    def keep(self, **arrays: NDArray[Any]) -> None:
        """Keep these arrays as the chunk's row state of this generation."""


class TableShape(Protocol):
    """How large a table of rows is; both ``Rows`` and ``Passes`` tell."""

    @property
    def n_rows(self) -> int:
        """Rows."""

    @property
    def n_features(self) -> int:
        """Columns."""

    @property
    def row_values(self) -> int:
        """Numbers that a row takes in memory: its features; of sparse rows what is stored."""

    @property
    def is_sparse(self) -> bool:
        """Whether only numbers other than 0 are stored; 0 is then the origin of all computing."""


class Passes(TableShape, Protocol):
    """The only door to the data. Implemented by ``passes.local`` and ``passes.cluster``."""

    n_threads: int | None
    """Threads that compute a pass; None where that may change (a cluster)."""
    state_limit: int | None
    """Bytes of row state that may be kept by all processes together; None: not known."""
    chunk_table: NDArray[np.int64]
    """(n_chunks + 1,) global index of every chunk's first row, and the number of rows."""

    @property
    def threads(self) -> Threads:
        """Of the driver's process, for work between passes; stopped where passes would be."""

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
        """One distributed map-reduce; every chunk counts exactly once.

        Parameters
        ----------
        chunk_fn : callable
            ``chunk_fn(chunk, total, *broadcast) -> None``; importable by name (it travels to
            workers). It adds one chunk to ``total`` in place.
        *broadcast : object
            Sent once to every worker and unpickled there once a pass.
        start : callable
            Makes an empty total; called once a thread.
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
            ``chunk.threads``. Rows that weigh 0 may hold NaN or infinity in it. A share of them is
            shown by ``chunk.pieces``.

        Raises
        ------
        CancelledFit
            The driver asked for a stop, or the time limit has passed, inside this pass.
        """

    def take(self, rows: NDArray[np.int64] | None = None) -> TakenRows:
        """The rows with these global indices in this order, of the compute dtype; None: all rows.

        A subset's own rows are numbered from 0. Nothing is copied where all rows, in order, lie in
        one piece in this process.
        """

    def subset(
        self,
        rows: RowSlice | RowSample | SpacedRows | ProjectedRows | NDArray[np.int64],
        weights: NDArray[np.float64] | None = None,
        *,
        own_weights: bool = False,
        cuts: Sequence[int] = (),
    ) -> Passes:
        """Passes over some of the rows, which are fetched once and held in the driver's process.

        No bit of a result depends on whether rows are held, but the order of a subset's rows, where
        it is not said, and its chunks may be others every time it is made.

        Of each kind of ``rows`` the last subset stays until another one is asked for, or until it
        is closed; it is found again by equality. A cache: after a resume it is made anew. A slice
        that begins with the rows of the last one takes these over with their row state; its
        ``rebuild_rows`` name a slice that has been asked for before.

        Parameters
        ----------
        rows : RowSlice, RowSample, SpacedRows, ProjectedRows or (m,) int64
            Distinct global indices stay in their order. Of projected rows the statistics are their
            own.
        weights : (m,) float64, optional
            With global indices: what the weight of each row is multiplied by.
        own_weights : bool
            These weights are unlike those of the table (real numbers, or larger): what the
            statistics of the subset say of weights, and the grid of its sums, are its own. Else
            they are the table's, as all the rest is.
        cuts : sequence of int
            With a slice: no chunk holds rows from both sides of such an end of a share.
        """

    def close(self) -> None:
        """Let go of all that is kept."""


@dataclass(frozen=True, slots=True)
class Info:
    """What one step did, for events, history and stop rules."""

    cost: float
    """The objective (of k-means: the weighted sum of squared distances) as this step met it."""
    rows: int
    """Rows assigned in this step (nominal work)."""
    n_changed: int | None = None
    """Rows whose label changed; None where the algorithm does not know."""
    shift: float | None = None
    """Squared movement of the centres divided by the mean variance of the features. ``tol`` is
    compared with it, unless the objective says with which figure of ``extra``."""
    converged: bool = False
    """A fixed point: another step would change nothing."""
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory and passes of a fit; ``driver.plan`` and ``cli.plan`` compute all else from it."""

    row_bytes: int = 0
    """Row state of one generation, in bytes per row, at most."""
    fixed_row_bytes: int = 0
    """Part of ``row_bytes`` that no pass changes; two generations share it."""
    model_copies: int = 2
    """Size of a checkpoint, in models (centres and weights)."""
    held_rows: int | None = None
    """Rows of all steps, held in the driver's process; None if steps read all rows."""
    held_bytes: int = 0
    """Most bytes of rows that the driver's process holds, with their state and copies."""
    passes_before: int = 1
    """Passes over all rows before the first step, without that for statistics."""
    passes_after: int = 0
    """Passes over all rows after the last step, without the last pass."""
    step_reads: int = 1
    """Times that a step reads what does not stay in memory, unless rows are shuffled."""
    steps: int | None = None
    """Usual number of steps; None if it is unknown."""
    searches: int = 0
    """Cost of a search in the driver's process, in calls of ``kernels.descent.label_rows``."""
    distances: float | None = None
    """Cost of a row in a step, in distances; None: those to all centres."""
    full_search: str | None = None
    """How often steps compare rows with all clusters, for people; None if in every step."""


class ModelArrays(Protocol):
    """The numbers of a model, without where they came from: a frozen dataclass of arrays.

    The names of the fields are those under which they are stored and sent; the class says which
    kind of model it is (``model.base.Model.holds``).
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def counts(self) -> NDArray[np.float64]:
        """(k,) weight of the rows of each cluster."""


State = TypeVar("State")


@runtime_checkable
class Algorithm(Protocol[State]):
    """One paper, one file: ``init`` and ``step`` over a frozen dataclass ``State``.

    Implementations inherit from it; they are frozen dataclasses with a field ``problem`` (None
    until a fit sets it). What follows ``model`` is declared only where there is something to say.

    A state holds numpy arrays, numbers, strings, None and tuples of these; the driver writes
    it into checkpoints as it is.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    solves: ClassVar[type[Problem]]
    """The kind of problem that it answers."""
    takes_starts: ClassVar[bool] = True
    """Whether it may be run several times (``n_init``), of which the best is kept."""

    @property
    def problem(self) -> Problem | None:
        """What is asked."""

    def init(self, passes: Passes, rng: Rng) -> State:
        """The state before the first step."""

    def step(self, passes: Passes, rng: Rng, state: State) -> tuple[State, Info]:
        """One step of the loop."""

    def model(self, state: State) -> ModelArrays:
        """The best model that this state stands for."""

    def check(self, table: TableShape) -> None:
        """Raise ``ParameterError`` where it cannot work on such a table; the problem is known."""
        return

    @property
    def objective(self) -> Objective:
        """What is lowered or raised, if steps do not end by the figure of the problem's."""
        return self.solves.objective

    def footprint(
        self, table: TableShape, itemsize: int, n_threads: int | None, budget: int | None
    ) -> Footprint:
        """Estimate memory and passes of a fit; the problem is known.

        Parameters
        ----------
        table : TableShape
        itemsize : int
            Bytes of a number of a row that is held.
        n_threads : int or None
            As of ``Passes``.
        budget : int or None
            Bytes that row state of one generation may take; None: no limit.
        """
        if self.problem is None:
            return Footprint()
        return Footprint(passes_before=self.problem.passes_to_start())

    def report(self, passes: Passes, rng: Rng, state: State) -> Mapping[str, float | str]:
        """What is to be told of ``model(state)`` in the end, beside how it came about.

        Plain figures, and ``words`` for people; nothing where there is nothing to tell.
        """
        return {}

    def unsearched(
        self, rows: TakenRows, shift: NDArray[Any], draws: np.random.Generator
    ) -> ModelArrays | None:
        """A model for a fit whose time was over before it had any (``Problem.unsearched``)."""
        if self.problem is None:
            return None
        found: ModelArrays | None = self.problem.unsearched(rows, shift, draws)
        return found

    def share_of_labels(self, table: TableShape, k: int) -> float | None:
        """How long :meth:`labels` takes at most, as a share of the last pass; None: has none."""
        return None

    def labels(
        self, passes: Passes, rng: Rng, state: State
    ) -> tuple[NDArray[np.int32], float, NDArray[np.float64]] | None:
        """Labels as of ``model(state)``, for a fit that has no time for the last pass.

        None, and never asked for, where :meth:`share_of_labels` says so.

        Returns
        -------
        labels : (n,) int32
            -1 for rows that weigh nothing.
        value : float
            Of the objective, with these labels.
        counts : (k,)
            Weight of the rows of each cluster.
        """
        return None
