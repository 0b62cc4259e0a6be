"""Run a whole fit: the function behind estimators, the command line and the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.auto import Auto, Choice
from largek_dask.algorithms.base import Algorithm, Chunk, Footprint, ModelArrays
from largek_dask.algorithms.objective import Objective
from largek_dask.algorithms.problem import Problem
from largek_dask.data.columns import without_equal_names
from largek_dask.data.derived_rows import (
    DitheredRows,
    Scaling,
    StandardizedRows,
    check_standardizable,
)
from largek_dask.data.rows import Rows
from largek_dask.driver.checkpoint import FitFolder, remove_torn_job
from largek_dask.driver.compile_watch import CompileWatch, compiles_in_parallel, is_worth_it
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.events import Events, Sink
from largek_dask.driver.final import model_hashes
from largek_dask.driver.labels import LabelStore
from largek_dask.driver.options import OPTIONS, FitOptions
from largek_dask.driver.plan import (
    check_memory,
    check_problem,
    check_rows_that_count,
    check_scale,
    footprint_of,
    space_needed,
)
from largek_dask.driver.provenance import identity_of, parameters_of, stop_rules_of, versions
from largek_dask.driver.run import Callback, Clock, never, no_model
from largek_dask.driver.starts import StartResult, Starts, kind_of_problem
from largek_dask.driver.stopping import StepRecord, StopReason
from largek_dask.driver.storage import Folder
from largek_dask.errors import CancelledFit, DataError, DegenerateDataWarning, ParameterError, warn
from largek_dask.kernels.compiling import checked_by
from largek_dask.kernels.exact.squares import FeatureMoments
from largek_dask.kernels.exact.statistics import Statistics
from largek_dask.kernels.rows import compute_dtype
from largek_dask.passes.base import BasePasses, PassOptions
from largek_dask.passes.local import LocalPasses

if TYPE_CHECKING:
    from distributed import Client

ANSWER_SECONDS = 10.0
"""Minimum seconds to wait for workers, even if the time limit is shorter."""


@dataclass(frozen=True, slots=True)
class FitResult:
    arrays: ModelArrays
    labels: NDArray[np.int32] | None
    """(n,) labels, -1 for skipped rows; None if they were not requested in memory."""
    objective: Objective
    value: float | None
    """Exact objective over all rows with the returned model; None if the fit was cancelled."""
    n_iter: int
    history: tuple[StepRecord, ...]
    stop_reason: StopReason
    statistics: Statistics
    n_distinct: int | None
    """Number of distinct rows if it is smaller than the number of clusters, else None."""
    seconds: float
    """Seconds from the first access to the rows until the model was found, including earlier
    runs."""
    provenance: dict[str, Any] = field(default_factory=dict)
    feature_names: tuple[str, ...] | None = None
    scaling: Scaling | None = None


@contextmanager
def open_passes(
    rows: Rows,
    *,
    client: Client | None = None,
    n_threads: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[PassOptions],
) -> Iterator[BasePasses]:
    """Open passes on the client's cluster or, without a client, on threads of this process."""
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
    options: FitOptions,
    *,
    client: Client | None = None,
    n_threads: int | None = None,
    checkpoint: str | Folder | None = None,
    labels: bool | str | Folder = True,
    storage_options: Mapping[str, Any] | None = None,
    events: Sequence[Sink] = (),
    log: bool = True,
    callbacks: Sequence[Callback] = (),
    cancelled: Callable[[], bool] | None = None,
    suspended: Callable[[], bool] | None = None,
) -> FitResult:
    """Cluster rows on a Dask cluster, or on threads of this process if there is no client.

    After Ctrl-C or a time limit, the result of the last complete step is returned.

    Parameters
    ----------
    checkpoint : str or Folder, optional
        Folder to write to, and to resume from if it contains this job.
    labels : bool, str or Folder
        Whether labels are returned, or the URL to which they are written.
    storage_options : mapping, optional
        For ``checkpoint`` and ``labels``.
    events : sequence of callable
        Sinks of events; with ``log`` they are also written to ``events/`` in the checkpoint folder.
    callbacks : sequence of callable
        See ``driver.run``.
    cancelled, suspended : callable, optional
        Called often; a true result stops the fit. ``cancelled`` is checked until the last pass and
        returns the current model; ``suspended`` is checked at any time, for a later resume.

    Raises
    ------
    ParameterError, DataError, BadRowsError, NotEnoughMemoryError, OutputError
        Raised before the first step.
    CheckpointError, DataChangedError
        The folder contains another job, or this job with other data.
    NoModelError
        The fit was stopped before there was a model, or suspended.

    Warns
    -----
    DegenerateDataWarning, RecoveryWarning
        There are fewer distinct rows than clusters; a checkpoint is damaged; a log is not written.
    """
    rows, choice, footprint = prepare_fit(rows, options, n_threads=n_threads, client=client)
    identity, fingerprint = identity_of(options), rows.fingerprint()
    job = store = None
    if checkpoint is not None:
        folder = Folder.of(checkpoint, storage_options)
        job = _open_job(folder, rows, choice.n_init, footprint, identity, fingerprint)
    if not isinstance(labels, bool):
        owner = {"job": identity, "data": fingerprint["content"]}
        store = LabelStore(labels, rows.chunk_table, owner, storage_options)
    out = Events([*events, *([JsonLines(job.folder)] if job is not None and log else [])])
    work = _FitRun(
        rows, options, choice, footprint, identity, fingerprint, job, store, out, bool(labels),
        client, n_threads, callbacks, cancelled or never, suspended or never,
    )  # fmt: skip
    passes, best = work.search()
    return work.finish(passes, best)


def _open_job(
    folder: Folder,
    rows: Rows,
    n_init: int,
    footprint: Footprint,
    identity: dict[str, Any],
    fingerprint: dict[str, Any],
) -> FitFolder:
    """Open the checkpoint folder; for a new job, check the free disk space."""
    folder.check_writable()
    remove_torn_job(folder)
    # Column names are not part of the fingerprint, because they may change between two runs.
    data = {**fingerprint, "feature_names": rows.feature_names}
    job = FitFolder(folder, identity, data, versions())
    if job.is_new:
        k = identity["n_clusters"]
        needed = space_needed(rows, k, footprint, n_init=n_init, labels=False)
        folder.check_space(needed, "checkpoints")
    return job


@dataclass(frozen=True, slots=True)
class _FitRun:
    """A fit with validated options and open outputs."""

    rows: Rows
    options: FitOptions
    choice: Choice
    footprint: Footprint
    identity: dict[str, Any]
    fingerprint: dict[str, Any]
    job: FitFolder | None
    store: LabelStore | None
    events: Events
    labels: bool
    """Whether labels are requested, in memory or in the store."""
    client: Client | None
    n_threads: int | None
    callbacks: Sequence[Callback]
    cancelled: Callable[[], bool]
    suspended: Callable[[], bool]

    @property
    def problem(self) -> Problem:
        problem: Problem = self.choice.algorithm.problem
        return problem

    def search(self) -> tuple[BasePasses, StartResult]:
        """Return the best start, and the passes that computed it."""
        stop, asked, suspended = self.options.stop, self.cancelled, self.suspended
        clock = Clock(0.0, stop)
        k, rows = self.options.n_clusters, self.rows
        is_helped = self.client is None and is_worth_it(rows, self.choice.algorithm, self.n_threads)
        watch = CompileWatch(self.events, k, is_helped=is_helped)
        helper = (
            compiles_in_parallel(compute_dtype(rows.dtype), rows.n_features, k)
            if is_helped
            else nullcontext()
        )
        try:
            # Check for a cancel from the beginning, as the cluster may have no workers yet.
            def is_late() -> bool:
                return clock.is_over() and clock.seconds() > ANSWER_SECONDS

            with helper, self._open_passes(lambda: asked() or is_late()) as passes:
                passes.cancelled = lambda: watch.report() or suspended()
                passes.is_given_up = asked
                self._check(passes.statistics)
                if self.job is not None:
                    self.job.begin(passes.statistics, _scaling_of(passes))
                folder = None if self.job is None else self.job.folder
                starts = Starts(
                    passes, self.choice.algorithm, self.options, folder, self.events,
                    self.cancelled, self.callbacks, self.labels, self.store, watch,
                    self.footprint.label_share,
                )  # fmt: skip
                if isinstance(self.options.make_algorithm(), Auto):
                    engine = parameters_of(self.choice.algorithm)
                    n_init, reason = self.choice.n_init, self.choice.reason
                    self.events.emit("chosen", **engine, starts=n_init, reason=reason)
                with checked_by(passes.raise_if_stopped):
                    return passes, starts.best(self.choice.n_init, clock.seconds())
        except CancelledFit as cut:
            # Later cancels are handled in the step loop, where there is a model to return.
            raise no_model(clock, stop) from cut
        except KeyboardInterrupt:
            # Suppress the long traceback, which would not help users.
            raise KeyboardInterrupt("The fit was stopped before there was a model.") from None
        finally:
            self.events.close()

    @contextmanager
    def _open_passes(self, cancelled: Callable[[], bool]) -> Iterator[BasePasses]:
        options, job, emit = self.options, self.job, self.events.emit
        shared: dict[str, Any] = {
            "client": self.client,
            "n_threads": self.n_threads,
            "memory_limit": options.memory_bytes,
            "on_bad_rows": options.on_bad_rows,
            "log": lambda kind, text, **about: emit("warning", topic=kind, message=text, **about),
            "on_event": emit if self.events else None,
        }
        rows = self.rows
        if options.scale is not None:
            scaling = None if job is None else job.scaling()
            if scaling is None:
                stopped = lambda: cancelled() or self.suspended()  # noqa: E731
                with open_passes(rows, cancelled=stopped, **shared) as passes:
                    passes.is_given_up = self.cancelled
                    scaling = find_scaling(passes)
            rows = StandardizedRows(rows, scaling)
        with open_passes(
            rows,
            normalize=options.normalize,
            statistics=None if job is None else job.statistics(),
            cancelled=cancelled,
            **shared,
        ) as passes:
            yield passes

    def _check(self, statistics: Statistics) -> None:
        k = self.options.n_clusters
        check_rows_that_count(k, statistics)
        check_scale(statistics)
        if statistics.grid.wide:
            check_memory(k, self.rows, self.n_threads, self.client, wide=True)

    def finish(self, passes: BasePasses, best: StartResult) -> FitResult:
        """Mark stored labels as complete, and return the result of the fit."""
        final, store = best.final, self.store
        if final is not None:
            had_time = best.reason != "max_time_without_last_pass"
            history = best.run.history
            last = history[-1]["extra"] if history else {}
            complaint = self.problem.complaint(final, had_time=had_time, last=last)
            if complaint is not None:
                warn(complaint, DegenerateDataWarning)
        arrays = best.run.arrays if final is None else final.arrays
        if store is not None and final is not None:
            marks = model_hashes(self.problem.labelling(arrays))
            passes.retry(lambda: store.finish(marks))
        return FitResult(
            arrays=arrays,
            labels=None if final is None else final.labels,
            objective=self.problem.objective,
            value=best.value,
            n_iter=best.run.n_iter,
            history=best.run.history,
            stop_reason=best.reason,
            statistics=passes.statistics,
            n_distinct=None if final is None else final.n_distinct,
            seconds=best.seconds,
            provenance=self._provenance(best),
            feature_names=self.rows.feature_names,
            scaling=_scaling_of(passes),
        )

    def _provenance(self, best: StartResult) -> dict[str, Any]:
        data = {key: value for key, value in self.fingerprint.items() if key != "stamps"}
        before = {} if self.job is None else self.job.begun_with
        return {
            "parameters": self.identity,
            "engine": parameters_of(self.choice.algorithm),
            "stop": stop_rules_of(self.options),
            "data": data,
            "versions": versions(),
            # Bit-identical results are guaranteed only within one version of the package.
            **({"begun_with": before, "same_bits": False} if before else {}),
            "n_iter": best.run.n_iter,
            "stop_reason": best.reason,
            self.problem.objective.name: best.value,
            "start": best.stream,
            "seconds": best.seconds,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def find_scaling(passes: BasePasses) -> Scaling:
    """Return the weighted mean and standard deviation of each feature, from one pass.

    Raises DataError, which names the feature, if a variance overflows.
    """
    moments: FeatureMoments = passes.reduce(
        _add_moments, start=partial(FeatureMoments, passes.n_features), combine=FeatureMoments.merge
    )
    mean, variance, size = moments.finish()
    wrong = np.flatnonzero(np.isnan(variance))
    if len(wrong):
        at, names = int(wrong[0]), passes.rows.feature_names
        raise DataError(
            f"scale='standard': the variance of column {at if names is None else names[at]} "
            f"overflows float64, as its values reach {size[at]:.3g}; divide this column, or the "
            "sample weights, by a constant."
        )
    return Scaling(mean, np.sqrt(np.where(variance > 0, variance, 1.0)))


def _add_moments(chunk: Chunk, total: FeatureMoments) -> None:
    total.add(chunk.x, chunk.weight)


def _scaling_of(passes: BasePasses) -> Scaling | None:
    return passes.rows.scaling if isinstance(passes.rows, StandardizedRows) else None


def prepare_fit(
    rows: Rows, options: FitOptions, *, n_threads: int | None, client: Client | None
) -> tuple[Rows, Choice, Footprint]:
    """Return the table, the algorithm and the memory footprint of a fit, without reading rows.

    Raises ParameterError or NotEnoughMemoryError if these rows cannot be fitted.
    """
    rows = without_equal_names(rows)
    if options.dither is not None:
        rows = DitheredRows(rows, options.seed)
    if options.scale is not None:
        check_standardizable(rows)
    choice = choose_algorithm(rows, options)
    problem = problem_of(choice.algorithm, options)
    check_problem(rows, problem, n_threads=n_threads, client=client)
    algorithm = choice.algorithm.bind(problem)
    return rows, choice._replace(algorithm=algorithm), footprint_of(rows, algorithm)


def choose_algorithm(rows: Rows, options: FitOptions) -> Choice:
    """Return the algorithm and the number of starts; for "auto", both depend on the rows."""
    algorithm, n_init = options.make_algorithm(), options.n_init
    if not isinstance(algorithm, Auto):
        if not algorithm.takes_starts and n_init > 1:
            raise ParameterError(
                f"n_init={n_init}: {type(algorithm).__name__} runs several starts itself. Use "
                "n_init=1, and effort='best' if the algorithm has this parameter."
            )
        return Choice(algorithm, n_init, "")
    choice = algorithm.choose(rows, options.n_clusters, options.init)
    # With given initial centres, all starts would be identical.
    least = choice.n_init if isinstance(options.init, str) else 1
    return choice._replace(n_init=max(n_init, least))


def problem_of(algorithm: Algorithm[Any, Any], options: FitOptions) -> Problem:
    """Return the problem; each field is set from the option of the same name."""
    kind = kind_of_problem(algorithm, options.mixture)
    asked = [f.name for f in fields(kind) if f.name in OPTIONS]
    return kind(**{name: getattr(options, name) for name in asked})
