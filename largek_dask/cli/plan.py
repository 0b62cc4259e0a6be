"""``largek fit --plan``: estimate the time and memory of a fit without running it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.algorithms.base import Footprint
    from largek_dask.data.rows import Rows
    from largek_dask.driver.options import FitOptions

PROBE_ROWS = 4_096
PROBE_CENTERS = 2_048
"""Numbers of rows and centres for timing the kernel; more rows or centres hardly change the
rate."""

Plan = dict[str, Any]
"""Values of a plan by name; memory is in bytes and time in seconds."""


class Machines(NamedTuple):
    """Processes that compute a fit, and their total number of threads."""

    n_processes: int
    n_threads: int
    available: int
    """Memory limit of the smallest process, in bytes."""
    is_local: bool
    """Whether all computing is done in the driver's process."""


def machines_of(threads: int | None, client: Client | None) -> Machines:
    from distributed.system import MEMORY_LIMIT

    from largek_dask.passes.local import available_cpus
    from largek_dask.passes.network import workers_known_to

    limit = int(MEMORY_LIMIT)
    if client is None:
        return Machines(1, threads or available_cpus(), limit, True)
    workers = workers_known_to(client).values()
    n_threads = sum(worker["nthreads"] for worker in workers)
    available = min((worker["memory_limit"] or limit for worker in workers), default=limit)
    return Machines(max(1, len(workers)), max(1, n_threads), available, False)


def make_plan(rows: Rows, options: FitOptions, machines: Machines) -> Plan:
    """Time the kernel and one read, and return the plan of a fit."""
    from largek_dask.driver.fit import choose_algorithm, problem_of
    from largek_dask.driver.plan import footprint_of
    from largek_dask.kernels.rows import compute_dtype
    from largek_dask.passes.local import state_budget

    algorithm, n_init, _ = choose_algorithm(rows, options)
    footprint = footprint_of(
        rows,
        algorithm.bind(problem_of(algorithm, options)),
        machines.n_threads if machines.is_local else None,
        machines.n_processes * state_budget(options.memory_bytes, machines.available),
    )
    plan: Plan = {
        "n_rows": rows.n_rows,
        "n_features": rows.n_features,
        "n_clusters": options.n_clusters,
        "dtype": str(rows.dtype),
        "compute_dtype": str(compute_dtype(rows.dtype)),
        "n_chunks": rows.n_chunks,
        "n_processes": machines.n_processes,
        "n_threads": machines.n_threads,
        "is_local": machines.is_local,
        "rows_step": footprint.held_rows or rows.n_rows,
        "searches": footprint.searches,
        "n_init": n_init,
        "anchors": footprint.full_search,
        "short_steps": footprint.distances is not None,
    }
    plan |= _memory(rows, options, machines, footprint)
    plan |= _passes(rows, options, n_init, footprint)
    plan |= _seconds(rows, plan)
    read_again = plan["readings_step"] * (1 - plan["share_cached"])
    is_held = plan["rows_step"] < rows.n_rows
    steps = 1 / read_again if read_again > 0 and not is_held else None
    about = {"driver": _driver(plan), "steps_per_reading": steps, "advice": _advice(rows, plan)}
    return plan | about


def _memory(
    rows: Rows, options: FitOptions, machines: Machines, footprint: Footprint
) -> dict[str, Any]:
    """Estimate the memory of a worker and of the driver, in bytes."""
    from largek_dask.driver.plan import fit_memory, state_needed

    n_processes, n_threads, available, is_local = machines
    own_threads = -(-n_threads // n_processes)
    fit = fit_memory(rows, options.n_clusters, footprint)
    process = fit.per_process(n_processes, own_threads, available, options.memory_bytes)
    state = state_needed(rows, options.n_clusters, footprint)
    # Ignore samples of rows that are already in memory, because they are comparatively small.
    is_held = rows.location is not None or footprint.held_rows is not None
    held = footprint.held_bytes if is_held else 0
    memory = process.needed + process.cached + (held + state if is_local else 0)
    on_worker = not is_local and _is_large(options.n_clusters, footprint)
    memory += held if on_worker else 0
    return {
        "worker_searches": on_worker,
        "memory": memory,
        "memory_available": available,
        "fits": memory <= available,
        "memory_model": process.model,
        "memory_reading": process.chunks + process.cached,
        "memory_row_state": process.row_state,
        "memory_held": held,
        "memory_state": state,
        "memory_driver": process.model + held + state,
        "row_bytes": footprint.row_bytes,
        "row_state": fit.row_state,
        "share_cached": min(1.0, n_processes * process.cached / rows.nbytes),
    }


def _passes(rows: Rows, options: FitOptions, n_init: int, footprint: Footprint) -> dict[str, Any]:
    """Return the maximum numbers of passes and steps of all starts."""
    # Computing the statistics needs one scan, unless they are stored.
    n_scans = 0 if rows.stored_statistics() is not None and rows.weight is None else 1
    if options.scale is not None:
        n_scans = 2  # moments of the stored rows, then statistics of the standardised rows
    before = n_scans + n_init * footprint.passes_before
    after = n_init * (1 + footprint.passes_after)
    steps = n_init * min(options.max_iter, footprint.steps or options.max_iter)
    # Steps on batches or on rows in memory do not count as passes.
    are_passes = footprint.held_rows is None and footprint.distances is None
    return {
        "passes_before": before,
        "passes_most": before + (steps if are_passes else 0) + after,
        "passes_after": after,
        "steps_most": steps,
        "readings_step": 1 if rows.shuffled else footprint.step_reads,
    }


def _seconds(rows: Rows, plan: Plan) -> dict[str, Any]:
    """Estimate the time of a pass over all distances, from rates measured here."""
    from largek_dask.kernels.rows import compute_dtype

    (n, d), k = rows.shape, plan["n_clusters"]
    computing = 2.0 * n * d * k / flops(k, d, compute_dtype(rows.dtype)) / plan["n_threads"]
    reading: float = rows.nbytes / read_rate(rows) / plan["n_processes"]
    # Computing and reading overlap, so the pass takes the longer of the two times.
    return {"seconds_compute": computing, "seconds_read": reading,
            "seconds_pass": max(computing, reading * plan["readings_step"])}  # fmt: skip


def _is_large(k: int, footprint: Footprint) -> bool:
    """Return True if a worker runs the search of a cluster's fit."""
    from largek_dask.algorithms.path_problem import length_of_search
    from largek_dask.passes.subset import WORKER_DISTANCES

    distances = (footprint.held_rows or 0) * length_of_search(k)
    return footprint.searches > 0 and distances >= WORKER_DISTANCES


def _driver(plan: Plan) -> str | None:
    """Describe which part of the fit the driver computes, if any."""
    if plan["searches"]:
        return None if plan["worker_searches"] else "the whole search"
    if plan["short_steps"]:
        return "the first steps, on samples"
    return "all steps, on rows in its memory" if plan["rows_step"] < plan["n_rows"] else None


def _advice(rows: Rows, plan: Plan) -> str | None:
    """Recommend to ingest rows whose decoding takes longer than a pass."""
    from largek_dask.data.arrow_files import ArrowFileRows

    if not isinstance(rows, ArrowFileRows) or plan["seconds_read"] <= plan["seconds_compute"]:
        return None
    return "decoding these files takes longer than computing a pass: largek ingest saves time"


@cache
def flops(n_clusters: int, n_features: int, dtype: Any) -> float:
    """Time the assignment kernel; return the FLOP/s of one thread."""
    import numpy as np

    from largek_dask.kernels.distances import nearest, pack_centers

    random = np.random.default_rng(0)
    k = min(n_clusters, PROBE_CENTERS)
    x = random.standard_normal((PROBE_ROWS, n_features)).astype(dtype)
    packed = pack_centers(x[np.arange(k) % PROBE_ROWS] + 1, np.zeros(n_features, dtype))
    seconds = best_seconds(lambda: nearest(x, packed))
    return 2.0 * len(x) * k * n_features / seconds


def read_rate(rows: Rows) -> float:
    """Time a read of the first chunk; return bytes per second."""
    n_bytes: int = rows.read(0).nbytes
    return n_bytes / best_seconds(lambda: rows.read(0))


def best_seconds(function: Callable[[], Any]) -> float:
    """Call a function to compile it, then time two calls; return the shorter time."""
    from time import perf_counter

    function()
    seconds = []
    for _ in range(2):
        begun = perf_counter()
        function()
        seconds.append(perf_counter() - begun)
    return max(min(seconds), 1e-9)
