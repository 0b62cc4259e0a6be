"""``largek fit --plan``: what a fit would take, without doing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from largek_dask.cli.common import key_values
from largek_dask.driver.words import human_bytes, human_seconds

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.data.rows import Rows
    from largek_dask.driver.options import FitOptions

__all__ = ["Estimate", "make_plan"]

PROBE_ROWS = 4_096
PROBE_CENTERS = 2_048
"""Size of the trial run of the kernel: its rate hardly changes beyond."""


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
    memory_available: int
    """Bytes that the smallest process may use."""
    passes_before: int
    """Passes over the data for statistics and starting centres."""
    passes_most: int
    """Passes in all if no rule stops earlier."""
    seconds_compute: float
    """Seconds that a pass computes, on all threads."""
    seconds_read: float
    """Seconds that a pass reads, while it computes."""

    @property
    def memory(self) -> int:
        """Bytes a process in all."""
        return self.memory_model + self.memory_reading + self.memory_row_state

    @property
    def seconds_pass(self) -> float:
        """Reading and computing overlap: the slower one counts."""
        return max(self.seconds_compute, self.seconds_read)

    def as_json(self) -> dict[str, Any]:
        """All figures, with the sums."""
        return {
            **asdict(self),
            "memory": self.memory,
            "fits": self.memory <= self.memory_available,
            "seconds_pass": self.seconds_pass,
            "seconds_most": self.seconds_pass * self.passes_most,
        }

    def table(self) -> Any:
        """The plan as a table for a terminal."""
        from rich.text import Text

        fits = self.memory <= self.memory_available
        verdict = Text("fits") if fits else Text("does not fit", "bold red")
        loop = self.passes_most - self.passes_before
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
                "  kept per row": human_bytes(self.memory_row_state),
                "passes": f"{self.passes_before} for statistics and starting centres, then at "
                f"most {loop}",
                "time": f"about {human_seconds(self.seconds_pass)} a pass "
                f"(computing {human_seconds(self.seconds_compute)}, "
                f"reading {human_seconds(self.seconds_read)}), at most "
                f"{human_seconds(self.seconds_pass * self.passes_most)} in all",
            },
            title="largek fit --plan",
        )


def make_plan(
    rows: Rows, options: FitOptions, threads: int | None, client: Client | None
) -> Estimate:
    """Estimate a fit of ``rows``; times the kernel and one read for a moment."""
    import numpy as np
    from distributed.system import MEMORY_LIMIT

    from largek_dask import config
    from largek_dask.driver.fit import chosen, problem_of
    from largek_dask.driver.plan import memory_needed
    from largek_dask.kernels.exact.statistics import compute_dtype
    from largek_dask.passes.local import available_cpus, state_budget

    (n, d), n_clusters = rows.shape, options.n_clusters
    algorithm, n_init, _ = chosen(rows, options)
    problem = problem_of(algorithm, options)
    compute = compute_dtype(rows.dtype)
    if client is None:
        n_processes, n_threads = 1, threads or available_cpus()
        available = int(MEMORY_LIMIT)
    else:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        n_processes = max(1, len(workers))
        n_threads = max(1, sum(worker["nthreads"] for worker in workers))
        limits = [worker["memory_limit"] or int(MEMORY_LIMIT) for worker in workers]
        available = min(limits, default=int(MEMORY_LIMIT))
    own_threads = -(-n_threads // n_processes)
    budget = state_budget(options.memory_bytes, available)
    chunk = int(np.diff(rows.chunk_table).max()) * d * rows.dtype.itemsize
    cached = min(int(config.get("passes.cache-bytes")), rows.nbytes // n_processes)
    scan = 0 if rows.stored_statistics() is not None and rows.weight is None else 1
    before = (scan + problem.passes_to_start()) * n_init
    return Estimate(
        n_rows=n,
        n_features=d,
        n_clusters=n_clusters,
        dtype=str(rows.dtype),
        compute_dtype=str(compute),
        n_chunks=rows.n_chunks,
        n_processes=n_processes,
        n_threads=n_threads,
        # Whether weights need wide sums is known when all have been read.
        memory_model=memory_needed(
            n_clusters, d, compute.itemsize, own_threads, wide=rows.weight is not None
        ),
        memory_reading=chunk * (own_threads + 2) + cached,
        memory_row_state=min(
            algorithm.row_bytes(rows, n_clusters, n_processes * budget) * n // n_processes,
            budget,
        ),
        memory_available=available,
        passes_before=before,
        passes_most=before + n_init * (options.max_iter + 1),
        seconds_compute=2.0 * n * d * n_clusters / flops(n_clusters, d, compute) / n_threads,
        seconds_read=rows.nbytes / read_rate(rows) / n_processes,
    )


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
