"""``largek fit --plan``: what a fit would take, without doing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from largek_dask.cli.common import key_values
from largek_dask.driver.words import human_bytes, human_seconds

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.algorithms.base import Algorithm, Outlook
    from largek_dask.algorithms.problem import Problem
    from largek_dask.data.rows import Rows
    from largek_dask.driver.options import FitOptions

__all__ = ["Estimate", "Machines", "machines_of", "make_plan"]

PROBE_ROWS = 4_096
PROBE_CENTERS = 2_048
"""Size of the trial run of the kernel: its rate hardly changes beyond."""
TRIAL_ROWS = 2_048
"""Rows of the trial of a last pass."""
ROW_SECONDS = 1e-7
"""What a row costs one thread beside its distances, in a step in which it meets few centres: 60 ns
on two threads with two features (table of ``benchmarks.auto``)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate: rates are measured for a moment, on this machine."""

    n_rows: int
    n_features: int
    n_clusters: int
    dtype: str
    compute_dtype: str
    n_chunks: int
    n_processes: int
    n_threads: int
    """Threads of all processes together."""
    memory_model: int
    """Bytes a process for centres, packed centres and exact sums."""
    memory_reading: int
    """Bytes a process for chunks being read and computed."""
    memory_row_state: int
    """Bytes a process for what is kept per row."""
    memory_held: int
    """Bytes of rows that the driver's process holds at most: those of all steps, samples, batches
    that are gathered; with what is kept of them."""
    memory_state: int
    """Bytes of models that the driver's process keeps to go on from, at most."""
    row_bytes: int
    """Bytes that are kept of a row, at most; where they do not fit, rows are gone through anew."""
    row_state: int
    """Bytes of what is kept of all rows, in all processes, where there is room: those of the last
    pass stay while the next one writes its own."""
    is_local: bool
    """The driver's process is the one that computes."""
    memory_available: int
    """Bytes that the smallest process may use."""
    passes_before: int
    """Passes over the data for statistics, starting centres or a coreset."""
    passes_most: int
    """Passes in all if no rule stops earlier."""
    passes_after: int
    """Passes after the last step: labels, and what else there is to tell."""
    steps_most: int
    """Steps in all if no rule stops earlier; about how many, where that is known."""
    seconds_step: float | None
    """Seconds that a step computes, on all threads; None: as long as a pass."""
    rows_step: int
    """Rows that a step goes through."""
    share_cached: float
    """Share of the data that stays in memory between passes."""
    readings_step: int
    """Times that a step reads what does not stay in memory."""
    searches: int
    """About how many times rows are labelled by a search in the driver's process."""
    anchors: str | None
    """How often steps look through all clusters, where that is known."""
    seconds_compute: float
    """Seconds that a pass computes, on all threads."""
    seconds_read: float
    """Seconds that a pass reads, while it computes."""
    seconds_before: float
    """Seconds of all passes before the first step."""
    seconds_after: float
    """Seconds of all passes after the last step, beside the last pass."""
    seconds_last: float
    """Seconds of the last pass, in which labels become exact. By a trial where a model meets rows
    in its own way, as a mixture does."""
    seconds_search: float
    """Seconds of a search in the driver's process, on one thread."""
    max_time: float | None
    """Seconds that it has; None: as many as it takes."""

    @property
    def memory(self) -> int:
        """Bytes a process in all."""
        held = self.memory_held + self.memory_state if self.is_local else 0
        return self.memory_model + self.memory_reading + self.memory_row_state + held

    @property
    def driver(self) -> str | None:
        """What the driver's process computes by itself, as the scheduler's does for jobs."""
        if self.searches:
            return "the whole search"
        if self.rows_step < self.n_rows:
            return "all steps, on rows that it holds"
        return None if self.seconds_step is None else "the first steps, on samples"

    @property
    def memory_driver(self) -> int:
        """Bytes that the driver's process takes beside workers."""
        return self.memory_model + self.memory_held + self.memory_state

    @property
    def seconds_pass(self) -> float:
        """Reading and computing overlap: the slower one counts."""
        return max(self.seconds_compute, self.seconds_read * self.readings_step)

    @property
    def seconds_steps(self) -> float:
        """Of steps that are not as long as a pass over all rows, at most."""
        if self.searches:
            return self.seconds_search
        if self.seconds_step is not None:
            reading = self.seconds_read * self.readings_step * (1 - self.share_cached)
            return self.steps_most * max(self.seconds_step, reading)
        of_all = self.seconds_compute * self.n_threads * self.rows_step / self.n_rows
        return 0.0 if self.rows_step == self.n_rows else self.steps_most * of_all

    @property
    def seconds_most(self) -> float:
        """Of everything, if no rule stops earlier."""
        passes = self.passes_most - self.passes_before - self.passes_after
        beside = self.seconds_before + self.seconds_after + self.seconds_last
        return self.seconds_pass * passes + self.seconds_steps + beside

    @property
    def seconds_for_steps(self) -> float | None:
        """What a time limit leaves for steps; negative: not even the other passes have room."""
        if self.max_time is None:
            return None
        return self.max_time - self.seconds_before - self.seconds_last

    @property
    def seconds_of_a_step(self) -> float:
        """About as long as a step takes."""
        if self.searches or self.seconds_step is not None or self.rows_step < self.n_rows:
            return self.seconds_steps / max(1, self.steps_most)
        return self.seconds_pass

    @property
    def leaves_a_step(self) -> bool:
        """Whether a time limit, if there is one, has room for a step beside the last pass."""
        left = self.seconds_for_steps
        return left is None or left >= self.seconds_of_a_step

    @property
    def steps_a_reading(self) -> float | None:
        """Steps in which as much is read as the data are; None: nothing is read in any."""
        read = 0.0 if self.rows_step < self.n_rows else self.readings_step * (1 - self.share_cached)
        return 1 / read if read > 0 else None

    def as_json(self) -> dict[str, Any]:
        """All figures, with the sums."""
        return {
            **asdict(self),
            "memory": self.memory,
            "fits": self.memory <= self.memory_available,
            "driver": self.driver,
            "memory_driver": self.memory_driver,
            "seconds_pass": self.seconds_pass,
            "seconds_most": self.seconds_most,
            "steps_a_reading": self.steps_a_reading,
            "seconds_for_steps": self.seconds_for_steps,
            "leaves_a_step": self.leaves_a_step,
        }

    def table(self) -> Any:
        """The plan as a table for a terminal."""
        from rich.text import Text

        fits = self.memory <= self.memory_available
        held = self.memory_held > 0
        state = f"{human_bytes(self.memory_state)} by the driver, as in checkpoints"
        verdict = Text("fits") if fits else Text("does not fit", "bold red")
        return key_values(
            {
                "data": f"{self.n_rows:,} × {self.n_features:,} {self.dtype} in "
                f"{self.n_chunks:,} chunks, computed in {self.compute_dtype}",
                "where": f"{self.n_processes} process(es), {self.n_threads} thread(s) in all",
                "memory": Text(
                    f"{human_bytes(self.memory)} a process of "
                    f"{human_bytes(self.memory_available)}: "
                ).append_text(verdict),
                "  model and sums": human_bytes(self.memory_model),
                "  reading": human_bytes(self.memory_reading),
                **({"  held": f"{human_bytes(self.memory_held)} by the driver"} if held else {}),
                "  to go on from": state,
                "  kept per row": self._kept(),
                **({} if self.driver is None else {"scheduler": self._driver()}),
                "passes": self._passes(),
                "a reading": self._reading(),
                **({"search over all": self.anchors} if self.anchors else {}),
                "time": f"about {human_seconds(self.seconds_pass)} a pass "
                f"(computing {human_seconds(self.seconds_compute)}, "
                f"reading {human_seconds(self.seconds_read)}), "
                f"{human_seconds(self.seconds_last)} the last one, "
                f"{'about' if self.searches or self.seconds_step else 'at most'} "
                f"{human_seconds(self.seconds_most)} in all",
                **({} if self.max_time is None else {"max_time": self._limit()}),
            },
            title="largek fit --plan",
        )

    def _driver(self) -> str:
        where = "on a cluster it" if self.is_local else "it"
        return (
            f"{where} computes {self.driver}, while workers wait: size it by that, with the cores "
            f"of a worker and {human_bytes(self.memory_driver)} a job"
        )

    def _limit(self) -> Any:
        """What a time limit leaves for steps."""
        from rich.text import Text

        left, asked = self.seconds_for_steps, self.max_time
        assert asked is not None
        assert left is not None
        told = Text(human_seconds(asked) + ": ")
        if self.leaves_a_step:
            return told.append(f"{human_seconds(left)} of it for steps")
        least = asked - left + self.seconds_of_a_step
        return told.append(
            f"no room for a step of {human_seconds(self.seconds_of_a_step)} beside the last pass; "
            f"allow more than {human_seconds(least)}",
            "bold red",
        )

    def _kept(self) -> str:
        if self.rows_step < self.n_rows:
            return "nothing: steps go through rows that are held"
        whole = self.row_bytes * self.n_rows
        told = f"{human_bytes(self.memory_row_state)} ({self.row_bytes} B a row, "
        told += f"{human_bytes(whole)} in all; twice while a pass is under way)"
        if self.memory_row_state < whole // self.n_processes:
            told += "; of rows beyond that it is found anew in every step"
        return told

    def _passes(self) -> str:
        loop = self.passes_most - self.passes_before
        if self.searches:
            return (
                f"{self.passes_before} before a search in the driver's process, then about {loop}"
            )
        if self.seconds_step is not None:
            return (
                f"{self.passes_before} for statistics, about {self.steps_most} steps of "
                f"{human_seconds(self.seconds_step)}, some on samples, then {loop}"
            )
        if self.rows_step == self.n_rows:
            return f"{self.passes_before} for statistics and starting centres, then at most {loop}"
        return (
            f"{self.passes_before} for statistics and a coreset, none in the steps, "
            f"{self.passes_after} for labels and what the coreset lacks"
        )

    def _reading(self) -> str:
        steps = self.steps_a_reading
        if steps is None:
            return "none in the steps: their rows stay in memory"
        share = f"{self.share_cached:.0%} of the data stay in memory"
        if self.readings_step == 1:
            return f"for {steps:.3g} steps: {share}"
        return (
            f"for {steps:.3g} steps: {share}, and a step has {self.readings_step} rounds; "
            "of a store written by 'largek ingest --shuffle' each reads only its rows"
        )


class _Course(NamedTuple):
    """How many passes there are before the first step, in all, and after the last one.

    And steps of a start, and rows that each goes through.
    """

    before: int
    most: int
    after: int
    steps: int
    rows_step: int


def _foreseen(outlook: Outlook, n: int, n_init: int, scan: int, max_iter: int) -> _Course:
    """The way of a fit whose algorithm tells what it is going to read."""
    before, after = scan + n_init * outlook.before, 1 + outlook.after
    steps = min(max_iter, outlook.steps or max_iter)
    # Steps that are shorter than a pass, or go through rows that are held, count by themselves.
    are_passes = outlook.rows is None and outlook.distances is None
    loop = n_init * steps if are_passes else 0
    return _Course(before, before + loop + after, after, steps, outlook.rows or n)


class Machines(NamedTuple):
    """The processes that compute."""

    n_processes: int
    n_threads: int
    """Threads of all of them together."""
    available: int
    """Bytes that the smallest one may use."""
    is_local: bool
    """It is one, the driver's."""


def machines_of(threads: int | None, client: Client | None) -> Machines:
    """Where a fit computes: in its own process, or on the workers of a cluster."""
    from distributed.system import MEMORY_LIMIT

    from largek_dask.passes.local import available_cpus

    if client is None:
        return Machines(1, threads or available_cpus(), int(MEMORY_LIMIT), True)
    from largek_dask.passes.network import workers_known_to

    workers = workers_known_to(client).values()
    limits = [worker["memory_limit"] or int(MEMORY_LIMIT) for worker in workers]
    n_threads = sum(worker["nthreads"] for worker in workers)
    available = min(limits, default=int(MEMORY_LIMIT))
    return Machines(max(1, len(workers)), max(1, n_threads), available, False)


def make_plan(rows: Rows, options: FitOptions, machines: Machines) -> Estimate:
    """Estimate a fit of ``rows``; times the kernel and one read for a moment."""
    from largek_dask.driver.fit import chosen, problem_of
    from largek_dask.driver.plan import footprint, row_state_of, state_needed
    from largek_dask.kernels.exact.statistics import compute_dtype
    from largek_dask.passes.local import state_budget

    (n, d), n_clusters = rows.shape, options.n_clusters
    n_processes, n_threads, available, is_local = machines
    algorithm, n_init, _ = chosen(rows, options)
    problem = problem_of(algorithm, options)
    algorithm = replace(algorithm, problem=problem)
    compute = compute_dtype(rows.dtype)
    own_threads = -(-n_threads // n_processes)
    budget = state_budget(options.memory_bytes, available)
    scan = 0 if rows.stored_statistics() is not None and rows.weight is None else 1
    outlook = algorithm.outlook(rows, n_clusters)
    before = (scan + problem.passes_to_start()) * n_init
    course = _Course(before, before + n_init * (options.max_iter + 1), 1, options.max_iter, n)
    if outlook is not None:
        course = _foreseen(outlook, n, n_init, scan, options.max_iter)
    kept = row_state_of(rows, n_clusters, algorithm, n_processes * budget)
    takes = footprint(rows, n_clusters, kept)
    share = takes.on(n_processes, own_threads, available, options.memory_bytes)
    rate = flops(n_clusters, d, compute) * n_threads
    seconds_step = None
    if outlook is not None and outlook.distances is not None:
        seconds_step = n * (2.0 * d * outlook.distances / rate + ROW_SECONDS / n_threads)
    whole = 2.0 * n * d * n_clusters / rate
    reading = rows.nbytes / read_rate(rows) / n_processes

    def seconds_of(distances: float | None) -> float:
        """Of a pass in which a row takes as long as so many distances; None: all."""
        short = n * (2.0 * d * (distances or 0.0) / rate + ROW_SECONDS / n_threads)
        return max(reading, whole if distances is None else short)

    beside = (
        (None, None) if outlook is None else (outlook.before_distances, outlook.after_distances)
    )
    last = seconds_of_labels(rows, problem)
    return Estimate(
        n_rows=n,
        n_features=d,
        n_clusters=n_clusters,
        dtype=str(rows.dtype),
        compute_dtype=str(compute),
        n_chunks=rows.n_chunks,
        n_processes=n_processes,
        n_threads=n_threads,
        memory_model=share.model,
        memory_reading=share.chunks + share.cached,
        memory_row_state=share.row_state,
        memory_held=held_in(algorithm, rows, n_clusters, outlook, n_threads if is_local else None),
        memory_state=state_needed(rows, n_clusters, algorithm),
        row_bytes=algorithm.row_bytes(rows, n_clusters, n_processes * budget),
        row_state=kept,
        is_local=is_local,
        memory_available=available,
        passes_before=course.before,
        passes_most=course.most,
        passes_after=course.after,
        rows_step=course.rows_step,
        readings_step=1 if outlook is None or rows.shuffled else outlook.readings,
        steps_most=n_init * course.steps,
        seconds_step=seconds_step,
        share_cached=min(1.0, n_processes * share.cached / rows.nbytes),
        searches=0 if outlook is None else outlook.searches,
        anchors=None if outlook is None else outlook.anchors,
        seconds_compute=whole,
        seconds_read=reading,
        seconds_before=scan * seconds_of(0.0) + (course.before - scan) * seconds_of(beside[0]),
        seconds_after=(course.after - 1) * seconds_of(beside[1]),
        seconds_last=max(reading, whole if last is None else last / n_threads),
        seconds_search=seconds_of_search(outlook, n_clusters, d),
        max_time=None if options.max_time is None else options.stop.seconds,
    )


@cache
def flops(n_clusters: int, n_features: int, dtype: Any) -> float:
    """Operations a second of one thread in the assignment kernel, measured for a moment."""
    import numpy as np

    from largek_dask.kernels.distances import nearest, pack_centers

    random = np.random.default_rng(0)
    k = min(n_clusters, PROBE_CENTERS)
    x = random.standard_normal((PROBE_ROWS, n_features)).astype(dtype)
    packed = pack_centers(x[np.arange(k) % PROBE_ROWS] + 1, np.zeros(n_features, dtype))
    seconds = best_seconds(lambda: nearest(x, packed))
    return 2.0 * len(x) * k * n_features / seconds


def held_in(
    algorithm: Algorithm[Any],
    rows: Rows,
    n_clusters: int,
    outlook: Outlook | None,
    n_threads: int | None,
) -> int:
    """Bytes of rows that the driver's process holds; ``n_threads`` as of ``Passes``."""
    from largek_dask.kernels.exact.statistics import compute_dtype

    if rows.location is None and (outlook is None or outlook.rows is None):
        # Of rows that lie here samples are little beside them.
        return 0
    return algorithm.held_bytes(rows, n_clusters, compute_dtype(rows.dtype).itemsize, n_threads)


def seconds_of_labels(rows: Rows, problem: Problem) -> float | None:
    """Seconds of one thread for labels of all rows by a model much like one of a fit.

    By a trial on rows of the first chunk; None where that takes what all distances take.
    """
    import numpy as np

    from largek_dask.algorithms.problem import Problem
    from largek_dask.driver.final import LabelTotal
    from largek_dask.kernels.blocks import dense_rows
    from largek_dask.kernels.exact.statistics import compute_dtype
    from largek_dask.passes.chunks import ChunkView

    if type(problem).example is Problem.example:  # no row need be read
        return None
    x = dense_rows(rows.read(0))[: TRIAL_ROWS + PROBE_CENTERS].astype(compute_dtype(rows.dtype))
    x = x[np.isfinite(x).all(axis=1)]
    if len(x) < 2:
        return None
    k = min(problem.n_clusters, PROBE_CENTERS, len(x) // 2)
    shift = x.mean(axis=0)
    labelling = problem.labelling(replace(problem, n_clusters=k).example(x, shift))
    met = np.resize(x[k:], (TRIAL_ROWS, x.shape[1]))

    def label() -> None:
        total = LabelTotal.of(labelling.sums)
        labelling.chunk_fn(ChunkView(0, 0, met, None), total.sums, *labelling.broadcast)

    return best_seconds(label) * rows.n_rows / len(met) * problem.n_clusters / k


def seconds_of_search(outlook: Outlook | None, n_clusters: int, n_features: int) -> float:
    """Seconds of one thread for a search for all partitions, by a labelling as it makes them."""
    import numpy as np

    from largek_dask.kernels.descent import Rows as SearchedRows
    from largek_dask.kernels.descent import label_rows

    if outlook is None or not outlook.searches:
        return 0.0
    x = np.random.default_rng(0).standard_normal((PROBE_ROWS, n_features))
    held = SearchedRows.of(x)
    seconds = best_seconds(lambda: label_rows(held, x[np.arange(n_clusters) % PROBE_ROWS]))
    assert outlook.rows is not None
    return seconds * outlook.searches * outlook.rows / PROBE_ROWS


def read_rate(rows: Rows) -> float:
    """Bytes a second of reading, from the first chunk."""
    n_bytes: int = rows.read(0).nbytes
    return n_bytes / best_seconds(lambda: rows.read(0))


def best_seconds(function: Callable[[], Any]) -> float:
    """The faster of two calls after one that warms up."""
    from time import perf_counter

    function()
    seconds = []
    for _ in range(2):
        begun = perf_counter()
        function()
        seconds.append(perf_counter() - begun)
    return max(min(seconds), 1e-9)
