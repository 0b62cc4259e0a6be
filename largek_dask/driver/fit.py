"""A fit put together from its parts: what estimators, the command line and the service share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.auto import Auto, Choice
from largek_dask.algorithms.base import Algorithm, KMeansProblem, ModelArrays
from largek_dask.data.rows import Rows
from largek_dask.driver.checkpoint import Job
from largek_dask.driver.event_log import open_sinks
from largek_dask.driver.events import Events, Sink
from largek_dask.driver.labels import LabelStore
from largek_dask.driver.plan import (
    check_memory,
    check_problem,
    check_rows_that_count,
    check_scale,
    space_needed,
)
from largek_dask.driver.provenance import describe, versions
from largek_dask.driver.run import Callback, Clock, no_model
from largek_dask.driver.space import check_space
from largek_dask.driver.starts import Outcome, Starts
from largek_dask.driver.stopping import StepRecord, StopReason, StopRules
from largek_dask.driver.storage import Folder, sha256_of
from largek_dask.errors import CancelledFit, DegenerateDataWarning, warn
from largek_dask.kernels.exact.statistics import Statistics
from largek_dask.passes.base import BasePasses, PassOptions
from largek_dask.passes.local import LocalPasses

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["FitResult", "chosen", "fit", "open_passes"]


@dataclass(frozen=True, slots=True)
class FitResult:
    """What a fit gives."""

    arrays: ModelArrays
    labels: NDArray[np.int32] | None
    """(n,) labels, -1 for rows that were skipped; None if they were not asked for in memory."""
    inertia: float | None
    """Sum of ``w ||x - c||^2`` over the rows with the returned centres; None after a cancel."""
    n_iter: int
    history: tuple[StepRecord, ...]
    stop_reason: StopReason
    statistics: Statistics
    n_distinct: int | None
    """How many distinct rows there are where that is fewer than clusters, else None."""
    seconds: float
    """Time used, earlier runs included, the last pass not."""
    provenance: dict[str, Any] = field(default_factory=dict)


@contextmanager
def open_passes(
    rows: Rows,
    *,
    client: Client | None = None,
    n_threads: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[PassOptions],
) -> Iterator[BasePasses]:
    """Passes on the client's cluster, or on threads of this process without one."""
    if client is None:
        passes: BasePasses = LocalPasses(
            rows, n_threads=n_threads, memory_limit=memory_limit, **options
        )
    else:
        from largek_dask.passes.cluster import ClusterPasses

        passes = ClusterPasses(rows, client, memory_limit=memory_limit, **options)
    with passes:
        yield passes


def fit(
    rows: Rows,
    *,
    algorithm: Algorithm[Any] | Auto,
    n_clusters: int,
    seed: int,
    init: str | NDArray[Any] = "auto",
    n_init: int = 1,
    stop: StopRules | None = None,
    empty_clusters: Literal["relocate", "keep"] = "relocate",
    normalize: Literal["l2"] | None = None,
    on_bad_rows: Literal["raise", "skip"] = "raise",
    client: Client | None = None,
    n_threads: int | None = None,
    memory_limit: int | None = None,
    checkpoint: str | Folder | None = None,
    labels: bool | str | Folder = True,
    storage_options: Mapping[str, Any] | None = None,
    events: Sequence[Sink | str] = (),
    log: bool = True,
    callbacks: Sequence[Callback] = (),
    cancelled: Callable[[], bool] | None = None,
) -> FitResult:
    """Cluster rows.

    Parameters
    ----------
    rows : Rows
    algorithm : Algorithm or Auto
        An object with its parameters (``Lloyd()``); it is given its problem here. ``Auto`` chooses
        one by the shape of the rows.
    n_clusters : int
        At most the number of rows.
    seed : int
        Same data, seed and versions give the same bits.
    init : str or ndarray of shape (n_clusters, d)
        See ``algorithms.seeding``.
    n_init : int
        Starts, of which the one of least inertia is kept; at least so many, with ``Auto``.
    stop : StopRules
        ``max_time`` is that of all starts together, the last pass included.
    empty_clusters : "relocate" or "keep"
    normalize : "l2" or None
        "l2": rows are scaled to unit length.
    on_bad_rows : "raise" or "skip"
        What becomes of rows with NaN or infinity.
    client : distributed.Client, optional
        Its cluster; None: threads of this process.
    n_threads, memory_limit : int, optional
        Threads, and bytes of row state a process.
    checkpoint : str or Folder, optional
        Folder to write to, and to resume from if it holds this very job.
    labels : bool, str or Folder
        Whether every row's label comes back; a URL: they are written there.
    storage_options : mapping, optional
        For ``checkpoint`` and ``labels``.
    events : sequence of callable or str
        Sinks of events, or URLs of folders for them.
    log : bool
        Whether they go to ``events/`` in the checkpoint folder as well.
    callbacks : sequence of callable
        See ``driver.run``.
    cancelled : callable, optional
        Asked all the time whether to stop.

    Returns
    -------
    FitResult
        After Ctrl-C (``stop_reason == "interrupted"``) and after a time limit that of the last
        complete step.

    Raises
    ------
    ParameterError, DataError, BadRowsError, NotEnoughMemoryError
        What is asked cannot be done; found before the first step.
    OutputError
        A folder cannot be written or an output exists; found before the first step.
    CheckpointError, DataChangedError
        The folder holds another job, or this one with other data.
    NoModelError
        The time limit or a cancel came before there were any centres.

    Warns
    -----
    DegenerateDataWarning
        There are fewer distinct rows than clusters.
    RecoveryWarning
        A damaged checkpoint was passed over, or a log could not be written.
    """
    stop = StopRules() if stop is None else stop
    problem = KMeansProblem(n_clusters, init, empty_clusters, stop.tol)
    check_problem(rows, problem, n_init=n_init, seed=seed, n_threads=n_threads, client=client)
    identity = {
        "algorithm": _parameters(algorithm),
        "n_clusters": int(n_clusters),
        "init": describe(init),
        "n_init": int(n_init),
        "seed": int(seed),
        "empty_clusters": empty_clusters,
        "normalize": normalize,
        "on_bad_rows": on_bad_rows,
    }
    choice = chosen(algorithm, rows, n_clusters, init, n_init)
    fingerprint = rows.fingerprint()
    folder = Folder.of(checkpoint, storage_options) if checkpoint is not None else None
    job = None
    if folder is not None:
        folder.check_writable()
        job = Job(folder, identity, fingerprint, versions())
        if job.is_new:
            needed = space_needed(
                rows, n_clusters, choice.algorithm, n_init=choice.n_init, labels=False
            )
            check_space(folder, needed, "checkpoints")
    out = None
    if not isinstance(labels, bool):
        owner = {"job": identity, "data": fingerprint["content"]}
        out = LabelStore(labels, rows.chunk_table, owner, storage_options)
    teller = Events(open_sinks(events, folder if log else None))
    clock = Clock(0.0, stop)
    asked = cancelled or (lambda: False)
    passes = open_passes(
        rows,
        client=client,
        n_threads=n_threads,
        memory_limit=memory_limit,
        normalize=normalize,
        on_bad_rows=on_bad_rows,
        statistics=job.statistics() if job else None,
        # Heard from the first moment on: workers may have to be waited for.
        cancelled=lambda: asked() or clock.is_over(),
        log=lambda kind, text: teller.emit("warning", topic=kind, message=text),
    )
    try:
        with passes as opened:
            statistics = opened.statistics
            opened.cancelled = None
            opened.is_given_up = asked
            check_rows_that_count(n_clusters, statistics)
            check_scale(statistics)
            if statistics.grid.wide:
                # Before the rows were read this was not known.
                check_memory(n_clusters, rows, n_threads, client, wide=True)
            if job is not None:
                job.begin(statistics)
            starts = Starts(
                passes=opened,
                algorithm=_given(choice.algorithm, problem),
                problem=problem,
                seed=seed,
                stop=stop,
                folder=folder,
                events=teller,
                cancelled=cancelled,
                callbacks=callbacks,
                labels=bool(labels),
                out=out,
            )
            if isinstance(algorithm, Auto):
                engine = _parameters(choice.algorithm)
                teller.emit("chosen", **engine, starts=choice.n_init, reason=choice.reason)
            best = starts.best(choice.n_init, clock.seconds())
    except CancelledFit as cut:
        # Later ones are taken by the loop, which then has a model to return.
        raise no_model(clock, stop) from cut
    finally:
        teller.close()
    _warn_of_empty(best, n_clusters, empty_clusters)
    arrays = best.run.arrays if best.final is None else best.final.arrays
    provenance = {
        "parameters": identity,
        "engine": _parameters(choice.algorithm),
        "stop": {"max_iter": stop.max_iter, "tol": stop.tol, "max_time": stop.max_time},
        "data": {key: value for key, value in fingerprint.items() if key != "stamps"},
        "versions": versions(),
        "n_iter": best.run.n_iter,
        "stop_reason": best.reason,
        "inertia": best.inertia,
        "start": best.stream,
        "seconds": best.run.seconds,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if out is not None and best.final is not None:
        centers = sha256_of(arrays.centers)
        opened.outlast(lambda: out.finish({"centers": centers}))
    return FitResult(
        arrays=arrays,
        labels=None if best.final is None else best.final.assignment.labels,
        inertia=best.inertia,
        n_iter=best.run.n_iter,
        history=best.run.history,
        stop_reason=best.reason,
        statistics=statistics,
        n_distinct=None if best.final is None else best.final.n_distinct,
        seconds=best.run.seconds,
        provenance=provenance,
    )


def chosen(algorithm: Any, rows: Rows, n_clusters: int, init: Any, n_init: int) -> Choice:
    """What is run."""
    if not isinstance(algorithm, Auto):
        return Choice(algorithm, n_init, "")
    choice = algorithm.choose(rows, n_clusters)
    # From the same centres every start is the same.
    least = choice.n_init if isinstance(init, str) else 1
    return choice._replace(n_init=max(n_init, least))


def _given(algorithm: Any, problem: KMeansProblem | None) -> Algorithm[Any]:
    """The algorithm with its problem set."""
    return replace(algorithm, problem=problem)  # type: ignore[no-any-return]


def _parameters(algorithm: Any) -> dict[str, Any]:
    """Name and parameters of an algorithm as JSON."""
    described: dict[str, Any] = describe(_given(algorithm, None))
    described.pop("problem")
    return described


def _warn_of_empty(best: Outcome, n_clusters: int, empty_clusters: str) -> None:
    """Say why clusters are empty, unless they were meant to stay so."""
    if best.final is None or not best.final.n_empty or empty_clusters == "keep":
        return
    final = best.final
    if final.n_distinct is not None:
        why = f"the rows have only {final.n_distinct} distinct values. Ask for fewer clusters"
    elif best.reason == "max_time_without_last_pass":
        why = "there was no time to move their centres. Give the fit more time"
    else:
        why = "moving their centres to far rows kept emptying others. Ask for fewer clusters"
    warn(
        f"{final.n_empty} of {n_clusters} clusters are empty: {why}.",
        DegenerateDataWarning,
    )
