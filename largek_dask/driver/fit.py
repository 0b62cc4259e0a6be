"""A fit put together from its parts: what estimators, the command line and the service share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.auto import Auto, Choice
from largek_dask.algorithms.base import Algorithm, ModelArrays
from largek_dask.algorithms.mixture import MixtureProblem
from largek_dask.algorithms.objective import Objective
from largek_dask.algorithms.problem import Problem
from largek_dask.data.columns import without_equal_names
from largek_dask.data.derived_rows import DitheredRows
from largek_dask.data.rows import Rows
from largek_dask.driver.compile_watch import CompileWatch
from largek_dask.driver.events import Sink
from largek_dask.driver.final import marks_of
from largek_dask.driver.options import OPTIONS, FitOptions
from largek_dask.driver.outputs import Outputs
from largek_dask.driver.parallel_compile import compiles_in_parallel, is_worth_it
from largek_dask.driver.plan import (
    check_memory,
    check_problem,
    check_rows_that_count,
    check_scale,
)
from largek_dask.driver.provenance import parameters_of, stop_rules_of, versions
from largek_dask.driver.run import Callback, Clock, no_model
from largek_dask.driver.starts import StartResult, Starts
from largek_dask.driver.stopping import StepRecord, StopReason
from largek_dask.driver.storage import Folder
from largek_dask.errors import (
    CancelledFit,
    DegenerateDataWarning,
    NoModelError,
    ParameterError,
    warn,
)
from largek_dask.kernels.compiling import asked_before
from largek_dask.kernels.exact.statistics import Statistics
from largek_dask.kernels.rows import compute_dtype
from largek_dask.passes.base import BasePasses, PassOptions
from largek_dask.passes.local import LocalPasses
from largek_dask.passes.worker_selection import current_selection

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "FitResult",
    "checked",
    "chosen",
    "fit",
    "kind_of_problem",
    "open_passes",
    "problem_of",
]

ANSWER_SECONDS = 10.0
"""How long workers that are there may take to answer, beyond a time limit."""


@dataclass(frozen=True, slots=True)
class FitResult:
    """What a fit gives."""

    arrays: ModelArrays
    labels: NDArray[np.int32] | None
    """(n,) labels, -1 for rows that were skipped; None if they were not asked for in memory."""
    objective: Objective
    value: float | None
    """The exact value of the objective over all rows, with the returned model (of k-means: the sum
    of ``w ||x - c||^2``); None after a cancel."""
    n_iter: int
    history: tuple[StepRecord, ...]
    stop_reason: StopReason
    statistics: Statistics
    n_distinct: int | None
    """How many distinct rows there are where that is fewer than clusters, else None."""
    seconds: float
    """Time from the first look at the rows to the model, with that of earlier runs."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """What the algorithm tells of the model (``Algorithm.report``)."""
    provenance: dict[str, Any] = field(default_factory=dict)
    feature_names: tuple[str, ...] | None = None
    """Names of the rows' columns, None where they have none."""


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
    options: FitOptions,
    *,
    client: Client | None = None,
    n_threads: int | None = None,
    checkpoint: str | Folder | None = None,
    labels: bool | str | Folder = True,
    storage_options: Mapping[str, Any] | None = None,
    events: Sequence[Sink | str] = (),
    log: bool = True,
    callbacks: Sequence[Callback] = (),
    cancelled: Callable[[], bool] | None = None,
    held: Callable[[], bool] | None = None,
) -> FitResult:
    """Cluster rows.

    Parameters
    ----------
    rows : Rows
    options : FitOptions
        What is asked of the fit.
    client : distributed.Client, optional
        Its cluster; None: threads of this process.
    n_threads : int, optional
        Threads.
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
        Asked all the time until the last pass whether to stop.
    held : callable, optional
        Asked all the time, also in the last pass, whether to leave all as it is in the checkpoint.

    Returns
    -------
    FitResult
        After Ctrl-C (``stop_reason == "interrupted"``) and after a time limit that of the last
        complete step.

    Raises
    ------
    ParameterError, DataError, BadRowsError, NotEnoughMemoryError, OutputError
        What is asked cannot be done or written; found before the first step.
    CheckpointError, DataChangedError
        The folder holds another job, or this one with other data.
    NoModelError
        A cancel came before there was a model, or the time limit while workers were waited for;
        or it is held, whatever there is.

    Warns
    -----
    DegenerateDataWarning, RecoveryWarning
        Fewer distinct rows than clusters; a checkpoint is damaged, or a log not written.
    """
    rows, choice = checked(rows, options, n_threads=n_threads, client=client)
    out = Outputs.open(
        rows,
        options,
        choice,
        checkpoint=checkpoint,
        labels=labels,
        storage_options=storage_options,
        sinks=events,
        log=log,
    )
    work = _Work(
        rows, options, choice, out, bool(labels), client, n_threads, callbacks, cancelled, held
    )
    passes, best = work.search()
    return work.finish(passes, best)


def _never() -> bool:
    return False


def _held() -> NoModelError:
    return NoModelError(
        "The fit is held where it is: fit again with its checkpoint to go on.", "cancelled"
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """A fit whose options are checked and whose outputs are open."""

    rows: Rows
    options: FitOptions
    choice: Choice
    """What is run, with its problem."""
    out: Outputs
    labels: bool
    """Whether they are wanted, here or in a store."""
    client: Client | None
    n_threads: int | None
    callbacks: Sequence[Callback]
    cancelled: Callable[[], bool] | None
    held: Callable[[], bool] | None

    @property
    def problem(self) -> Problem:
        """What is asked."""
        assert self.choice.algorithm.problem is not None
        return self.choice.algorithm.problem

    def search(self) -> tuple[BasePasses, StartResult]:
        """The best start, and the passes that it was found by."""
        stop, events = self.options.stop, self.out.events
        clock = Clock(0.0, stop)
        asked, held = (ask or _never for ask in (self.cancelled, self.held))
        k, rows = self.options.n_clusters, self.rows
        is_helped = self.client is None and is_worth_it(rows, self.choice.algorithm, self.n_threads)
        watch = CompileWatch(events, k, is_helped=is_helped)
        helper = (
            compiles_in_parallel(compute_dtype(rows.dtype), rows.n_features, k)
            if is_helped
            else nullcontext()
        )
        try:
            # Heard from the first moment on: workers may have to be waited for.
            with helper, self._open_passes(lambda: asked() or self._is_too_late(clock)) as passes:
                passes.cancelled = lambda: watch.report() or held()
                passes.is_given_up = asked
                self._check(passes.statistics)
                if self.out.job is not None:
                    self.out.job.begin(passes.statistics)
                starts = self._starts(passes, watch)
                if isinstance(self.options.make_algorithm(), Auto):
                    engine = parameters_of(self.choice.algorithm)
                    events.emit(
                        "chosen", **engine, starts=self.choice.n_init, reason=self.choice.reason
                    )
                with asked_before(passes.raise_if_stopped):
                    return passes, starts.best(self.choice.n_init, clock.seconds())
        except CancelledFit as cut:
            # Later ones are taken by the loop, which then has a model to return.
            raise (_held() if held() else self._without_model(no_model(clock, stop))) from cut
        except NoModelError as error:
            raise (_held() if held() else self._without_model(error)) from error
        except KeyboardInterrupt:
            # Where it was just then says nothing, and would fill a screen.
            raise KeyboardInterrupt("The fit was stopped before there was a model.") from None
        finally:
            events.close()

    def _is_too_late(self, clock: Clock) -> bool:
        """Whether the time limit ends the wait for workers to answer.

        Those that are there may take a moment; without any, nothing will come.
        """
        if not clock.is_over():
            return False
        late = clock.seconds() - self.options.stop.seconds
        return late > ANSWER_SECONDS or not self._has_workers()

    def _has_workers(self) -> bool:
        if self.client is None:
            return False
        from largek_dask.passes.network import workers_known_to

        pick = current_selection()
        return len(workers_known_to(self.client)) >= (1 if pick is None else pick.least)

    def _without_model(self, error: NoModelError) -> NoModelError:
        """The error, which says so where nobody was there to compute."""
        if self.client is None or error.reason != "max_time" or self._has_workers():
            return error
        address, pick = self.client.scheduler.address, current_selection()
        if pick is not None:
            return NoModelError(
                f"The time limit (max_time={self.options.stop.seconds:g} s) passed before there "
                f"was a model: the cluster at {address} has fewer workers than the job asks for "
                f"({pick}). Start some, or ask for fewer.",
                "max_time",
            )
        return NoModelError(
            f"The time limit (max_time={self.options.stop.seconds:g} s) passed before there was a "
            f"model: the cluster at {address} has no workers. Start some, as by `dask worker "
            f"{address}`, or compute in this process, without a client.",
            "max_time",
        )

    def _open_passes(self, cancelled: Callable[[], bool]) -> AbstractContextManager[BasePasses]:
        options, job, events = self.options, self.out.job, self.out.events
        return open_passes(
            self.rows,
            client=self.client,
            n_threads=self.n_threads,
            memory_limit=options.memory_bytes,
            normalize=options.normalize,
            on_bad_rows=options.on_bad_rows,
            statistics=None if job is None else job.statistics(),
            cancelled=cancelled,
            log=lambda kind, text, **about: events.emit(
                "warning", topic=kind, message=text, **about
            ),
            tell=events.emit if events else None,
        )

    def _check(self, statistics: Statistics) -> None:
        """Refuse what could not be known before the rows were read."""
        k = self.options.n_clusters
        check_rows_that_count(k, statistics)
        check_scale(statistics)
        if statistics.grid.wide:
            check_memory(k, self.rows, self.n_threads, self.client, wide=True)

    def _starts(self, passes: BasePasses, watch: CompileWatch) -> Starts:
        return Starts(
            passes=passes,
            algorithm=self.choice.algorithm,
            problem=self.problem,
            seed=self.options.seed,
            stop=self.options.stop,
            folder=self.out.folder,
            events=self.out.events,
            cancelled=self.cancelled,
            callbacks=self.callbacks,
            labels=self.labels,
            out=self.out.labels,
            watch=watch,
        )

    def finish(self, passes: BasePasses, best: StartResult) -> FitResult:
        """What comes back; labels that are stored are whole now."""
        final, store = best.final, self.out.labels
        if final is not None:
            had_time = best.reason != "max_time_without_last_pass"
            history = best.run.history
            last = history[-1]["extra"] if history else {}
            complaint = self.problem.complaint(final, had_time=had_time, last=last)
            if complaint is not None:
                warn(complaint, DegenerateDataWarning)
        arrays = best.run.arrays if final is None else final.arrays
        if store is not None and final is not None:
            marks = marks_of(self.problem.labelling(arrays))
            passes.retry(lambda: store.finish(marks))
        return FitResult(
            arrays=arrays,
            labels=None if final is None else final.labels,
            objective=self.choice.algorithm.objective,
            value=best.value,
            n_iter=best.run.n_iter,
            history=best.run.history,
            stop_reason=best.reason,
            statistics=passes.statistics,
            n_distinct=None if final is None else final.n_distinct,
            seconds=best.seconds,
            report=best.report,
            provenance=self._provenance(best),
            feature_names=self.rows.feature_names,
        )

    def _provenance(self, best: StartResult) -> dict[str, Any]:
        """Where the model comes from."""
        data = {key: value for key, value in self.out.fingerprint.items() if key != "stamps"}
        before = {} if self.out.job is None else self.out.job.begun_with
        return {
            "parameters": self.out.identity,
            "engine": parameters_of(self.choice.algorithm),
            "stop": stop_rules_of(self.options),
            "data": data,
            "versions": versions(),
            # Bits are only promised of one and the same version.
            **({"begun_with": before, "same_bits": False} if before else {}),
            "n_iter": best.run.n_iter,
            "stop_reason": best.reason,
            self.choice.algorithm.objective.name: best.value,
            "start": best.stream,
            "seconds": best.seconds,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            **({"report": dict(best.report)} if best.report else {}),
        }


def checked(
    rows: Rows, options: FitOptions, *, n_threads: int | None, client: Client | None
) -> tuple[Rows, Choice]:
    """The rows of a fit and what is run on them, with its problem; none has been read.

    Raises
    ------
    ParameterError, NotEnoughMemoryError
        It cannot be done with these rows.
    """
    rows = without_equal_names(rows)
    if options.dither is not None:
        rows = DitheredRows(rows, options.seed)
    choice = chosen(rows, options)
    problem = problem_of(choice.algorithm, options)
    check_problem(rows, problem, n_threads=n_threads, client=client)
    algorithm = replace(choice.algorithm, problem=problem)
    algorithm.check(rows)
    return rows, choice._replace(algorithm=algorithm)


def chosen(rows: Rows, options: FitOptions) -> Choice:
    """What is run."""
    algorithm, n_init = options.make_algorithm(), options.n_init
    if not isinstance(algorithm, Auto):
        if not algorithm.takes_starts and n_init > 1:
            raise ParameterError(
                f"n_init={n_init}: {type(algorithm).__name__} makes starts of its own. "
                "Take n_init=1, and effort='best' where it has one."
            )
        return Choice(algorithm, n_init, "")
    choice = algorithm.choose(rows, options.n_clusters, options.init)
    # From the same centres every start is the same.
    least = choice.n_init if isinstance(options.init, str) else 1
    return choice._replace(n_init=max(n_init, least))


def kind_of_problem(algorithm: Algorithm[Any], mixture: str | None) -> type[Problem]:
    """Which kind of problem an algorithm answers: a mixture where one is asked for."""
    return algorithm.solves if mixture is None else MixtureProblem


def problem_of(algorithm: Algorithm[Any], options: FitOptions) -> Problem:
    """What is asked of an algorithm: options are fields of its kind of problem, by their names."""
    kind = kind_of_problem(algorithm, options.mixture)
    asked = [f.name for f in fields(kind) if f.name in OPTIONS]
    return kind(**{name: getattr(options, name) for name in asked})
