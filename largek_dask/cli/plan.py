"""``largek fit --plan``: estimate what a fit takes, without running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from largek_dask.driver.formatting import human_bytes, human_seconds

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.algorithms.base import Footprint
    from largek_dask.algorithms.problem import Problem
    from largek_dask.data.rows import Rows
    from largek_dask.driver.options import FitOptions

__all__ = ["Machines", "machines_of", "make_plan", "plan_table"]

PROBE_ROWS = 4_096
PROBE_CENTERS = 2_048
"""Rows and centres with which the kernel is timed: its rate hardly changes beyond."""
TRIAL_ROWS = 2_048
"""Rows with which a last pass is timed."""
ROW_SECONDS = 1e-7
"""Seconds of one thread per row besides its distances, in a step over few centres: 60 ns on two
threads with two features (table of ``benchmarks.auto``)."""

Plan = dict[str, Any]
"""Figures by name: memory in bytes, times in seconds."""


class Machines(NamedTuple):
    """The processes that compute, and their threads in all."""

    n_processes: int
    n_threads: int
    available: int
    """Bytes that the smallest process may use."""
    is_local: bool
    """True if the driver computes alone."""


def machines_of(threads: int | None, client: Client | None) -> Machines:
    """Return this process, or the workers of a cluster."""
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
    """Return the document of ``largek fit --plan --json``; times the kernel and one read."""
    from largek_dask.driver.fit import chosen, problem_of
    from largek_dask.driver.plan import footprint_of
    from largek_dask.kernels.exact.statistics import compute_dtype
    from largek_dask.passes.local import state_budget

    algorithm, n_init, _ = chosen(rows, options)
    problem = problem_of(algorithm, options)
    footprint = footprint_of(
        rows,
        replace(algorithm, problem=problem),
        machines.n_threads if machines.is_local else None,
        machines.n_processes * state_budget(options.memory_bytes, machines.available),
    )
    plan = {
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
        "max_time": None if options.max_time is None else options.stop.seconds,
    }
    plan |= _memory(rows, options, machines, footprint)
    plan |= _passes(rows, options, n_init, footprint)
    plan |= _seconds(rows, problem, footprint, plan)
    return plan | _totals(plan)


def _memory(
    rows: Rows, options: FitOptions, machines: Machines, footprint: Footprint
) -> dict[str, Any]:
    """Return bytes of a process and of the driver."""
    from largek_dask.driver.plan import fit_memory, state_needed

    n_processes, n_threads, available, is_local = machines
    own_threads = -(-n_threads // n_processes)
    fit = fit_memory(rows, options.n_clusters, footprint)
    process = fit.per_process(n_processes, own_threads, available, options.memory_bytes)
    state = state_needed(rows, options.n_clusters, footprint)
    # Samples of rows in memory are small compared with these.
    is_held = rows.location is not None or footprint.held_rows is not None
    held = footprint.held_bytes if is_held else 0
    memory = process.needed + process.cached + (held + state if is_local else 0)
    return {
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
    """Return passes over all rows and steps of all starts, if no rule stops the fit earlier."""
    # Statistics are read once, for all starts.
    before = _scans(rows) + n_init * footprint.passes_before
    after = n_init * (1 + footprint.passes_after)
    steps = n_init * min(options.max_iter, footprint.steps or options.max_iter)
    # Steps that are shorter than a pass, or use rows that are held, count by themselves.
    are_passes = footprint.held_rows is None and footprint.distances is None
    return {
        "passes_before": before,
        "passes_most": before + (steps if are_passes else 0) + after,
        "passes_after": after,
        "steps_most": steps,
        "readings_step": 1 if rows.shuffled else footprint.step_reads,
    }


def _scans(rows: Rows) -> int:
    """Return the number of passes for statistics."""
    return 0 if rows.stored_statistics() is not None and rows.weight is None else 1


def _seconds(rows: Rows, problem: Problem, footprint: Footprint, plan: Plan) -> dict[str, Any]:
    """Return seconds of all threads, by rates timed on this machine."""
    from largek_dask.kernels.exact.statistics import compute_dtype

    (n, d), n_clusters = rows.shape, problem.n_clusters
    n_threads: int = plan["n_threads"]
    rate: float = flops(n_clusters, d, compute_dtype(rows.dtype)) * n_threads
    whole = 2.0 * n * d * n_clusters / rate
    reading: float = rows.nbytes / read_rate(rows) / plan["n_processes"]

    def short(distances: float) -> float:
        return n * (2.0 * d * distances / rate + ROW_SECONDS / n_threads)

    def pass_of(distances: float | None) -> float:
        return max(reading, whole if distances is None else short(distances))

    distances, scans, n_init = footprint.distances, _scans(rows), plan["n_init"]
    last = seconds_of_labels(rows, problem)
    starts = plan["passes_before"] - scans
    return {
        "seconds_compute": whole,
        "seconds_read": reading,
        "seconds_step": None if distances is None else short(distances),
        "seconds_before": scans * pass_of(0.0) + starts * pass_of(footprint.distances_before),
        "seconds_after": n_init * footprint.passes_after * pass_of(footprint.distances_after),
        "seconds_last": n_init * max(reading, whole if last is None else last / n_threads),
        "seconds_search": seconds_of_search(footprint, n_clusters, d),
    }


def _totals(plan: Plan) -> dict[str, Any]:
    """Return seconds of a pass, of a step, in all, and those that a time limit leaves for steps."""
    n, rows_step, most = plan["n_rows"], plan["rows_step"], plan["steps_most"]
    own, is_held = plan["seconds_step"], rows_step < n
    # Reading and computing overlap: the slower one counts.
    reading = plan["seconds_read"] * plan["readings_step"]
    one_pass = max(plan["seconds_compute"], reading)
    read_again = plan["readings_step"] * (1 - plan["share_cached"])
    driver, steps = None, 0.0
    if plan["searches"]:
        driver, steps = "the whole search", plan["seconds_search"]
    elif own is not None:
        driver = "the first steps, on samples"
        steps = most * max(own, plan["seconds_read"] * read_again)
    elif is_held:
        steps = most * plan["seconds_compute"] * plan["n_threads"] * rows_step / n
    if is_held and not plan["searches"]:
        driver = "all steps, on rows that it holds"
    is_short = plan["searches"] or own is not None or is_held
    a_step = steps / max(1, most) if is_short else one_pass
    passes = plan["passes_most"] - plan["passes_before"] - plan["passes_after"]
    others = plan["seconds_before"] + plan["seconds_after"] + plan["seconds_last"]
    left = plan["max_time"]
    if left is not None:
        left -= plan["seconds_before"] + plan["seconds_last"]
    return {
        "driver": driver,
        "seconds_pass": one_pass,
        "seconds_steps": steps,
        "seconds_of_a_step": a_step,
        "seconds_most": one_pass * passes + steps + others,
        "steps_a_reading": 1 / read_again if read_again > 0 and not is_held else None,
        "seconds_for_steps": left,
        "leaves_a_step": left is None or left >= a_step,
    }


def plan_table(plan: Plan) -> dict[str, Any]:
    """Return the plan in words."""
    from rich.text import Text

    size = {name: human_bytes(plan[name]) for name in plan if name.startswith("memory")}
    time = {
        name: human_seconds(plan[name])
        for name in plan
        if name.startswith("seconds_") and plan[name] is not None
    }
    verdict = ("fits", "") if plan["fits"] else ("does not fit", "bold red")
    bound = "about" if plan["searches"] or plan["seconds_step"] else "at most"
    where = "on a cluster it" if plan["is_local"] else "it"
    shown = {
        "data": f"{plan['n_rows']:,} × {plan['n_features']:,} {plan['dtype']} in "
        f"{plan['n_chunks']:,} chunks, computed in {plan['compute_dtype']}",
        "where": f"{plan['n_processes']} process(es), {plan['n_threads']} thread(s) in all",
        "memory": Text.assemble(
            f"{size['memory']} a process of {size['memory_available']}: ", verdict
        ),
        "  model and sums": size["memory_model"],
        "  reading": size["memory_reading"],
        "  held": plan["memory_held"] and f"{size['memory_held']} by the driver",
        "  to go on from": f"{size['memory_state']} by the driver, as in checkpoints",
        "  kept per row": _kept(plan),
        "scheduler": plan["driver"]
        and f"{where} computes {plan['driver']}, while workers wait: size it by that, with the "
        f"cores of a worker and {size['memory_driver']} a job",
        "passes": _passes_in_words(plan),
        "a reading": _reading(plan),
        "search over all": plan["anchors"],
        "time": f"about {time['seconds_pass']} a pass (computing {time['seconds_compute']}, "
        f"reading {time['seconds_read']}), {time['seconds_last']} the last one, {bound} "
        f"{time['seconds_most']} in all",
        "max_time": None if plan["max_time"] is None else _limit(plan),
    }
    return {name: words for name, words in shown.items() if words}


def _limit(plan: Plan) -> Any:
    """Return what a time limit leaves for steps."""
    from rich.text import Text

    left, step, asked = plan["seconds_for_steps"], plan["seconds_of_a_step"], plan["max_time"]
    words = (f"{human_seconds(left)} of it for steps", "")
    if not plan["leaves_a_step"]:
        least = human_seconds(asked - left + step)
        none = f"no room for a step of {human_seconds(step)} beside the last pass; allow more than"
        words = (f"{none} {least}", "bold red")
    return Text.assemble(f"{human_seconds(asked)}: ", words)


def _kept(plan: Plan) -> str:
    if plan["rows_step"] < plan["n_rows"]:
        return "nothing: steps go through rows that are held"
    whole, own = plan["row_bytes"] * plan["n_rows"], plan["memory_row_state"]
    text = f"{human_bytes(own)} ({plan['row_bytes']} B a row, "
    text += f"{human_bytes(whole)} in all; twice while a pass is under way)"
    if own < whole // plan["n_processes"]:
        text += "; of rows beyond that it is found again in every step"
    return text


def _passes_in_words(plan: Plan) -> str:
    before, loop = plan["passes_before"], plan["passes_most"] - plan["passes_before"]
    if plan["searches"]:
        return f"{before} before a search in the driver's process, then about {loop}"
    if plan["seconds_step"] is not None:
        a_step = human_seconds(plan["seconds_step"])
        steps = f"about {plan['steps_most']} steps of {a_step}, some on samples"
        return f"{before} for statistics, {steps}, then {loop}"
    if plan["rows_step"] == plan["n_rows"]:
        return f"{before} for statistics and starting centres, then at most {loop}"
    after = f"{plan['passes_after']} for labels and what the coreset lacks"
    return f"{before} for statistics and a coreset, none in the steps, {after}"


def _reading(plan: Plan) -> str:
    steps, rounds = plan["steps_a_reading"], plan["readings_step"]
    if steps is None:
        return "none in the steps: their rows stay in memory"
    share = f"for {steps:.3g} steps: {plan['share_cached']:.0%} of the data stay in memory"
    if rounds == 1:
        return share
    shuffled = "of a store written by 'largek ingest --shuffle' each reads only its rows"
    return f"{share}, and a step has {rounds} rounds; {shuffled}"


@cache
def flops(n_clusters: int, n_features: int, dtype: Any) -> float:
    """Time the assignment kernel; return its operations per second on one thread."""
    import numpy as np

    from largek_dask.kernels.distances import nearest, pack_centers

    random = np.random.default_rng(0)
    k = min(n_clusters, PROBE_CENTERS)
    x = random.standard_normal((PROBE_ROWS, n_features)).astype(dtype)
    packed = pack_centers(x[np.arange(k) % PROBE_ROWS] + 1, np.zeros(n_features, dtype))
    seconds = best_seconds(lambda: nearest(x, packed))
    return 2.0 * len(x) * k * n_features / seconds


def seconds_of_labels(rows: Rows, problem: Problem) -> float | None:
    """Time labels of rows of the first chunk; return seconds of one thread for all rows.

    None if the kind of problem takes what all distances take.
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


def seconds_of_search(footprint: Footprint, n_clusters: int, n_features: int) -> float:
    """Time one labelling; return seconds of one thread for a search for all partitions."""
    import numpy as np

    from largek_dask.kernels.descent import Rows as SearchedRows
    from largek_dask.kernels.descent import label_rows

    if not footprint.searches:
        return 0.0
    x = np.random.default_rng(0).standard_normal((PROBE_ROWS, n_features))
    held = SearchedRows.of(x)
    seconds = best_seconds(lambda: label_rows(held, x[np.arange(n_clusters) % PROBE_ROWS]))
    assert footprint.held_rows is not None
    return seconds * footprint.searches * footprint.held_rows / PROBE_ROWS


def read_rate(rows: Rows) -> float:
    """Time a read of the first chunk; return bytes per second."""
    n_bytes: int = rows.read(0).nbytes
    return n_bytes / best_seconds(lambda: rows.read(0))


def best_seconds(function: Callable[[], Any]) -> float:
    """Return seconds of the faster of two calls, after one that compiles."""
    from time import perf_counter

    function()
    seconds = []
    for _ in range(2):
        begun = perf_counter()
        function()
        seconds.append(perf_counter() - begun)
    return max(min(seconds), 1e-9)
