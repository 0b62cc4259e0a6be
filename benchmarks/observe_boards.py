"""What drawing costs: memory of boards over a day, and bytes of an update of a job."""

from __future__ import annotations

import gc
import gzip
import json
import math
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = ["MEASURES", "TARGETS", "day_of_events"]

TARGETS = {
    "board_mb": ("memory of drawing one job that runs, every panel, 32 workers", "MB", 2.0),
    "boards_mb": ("memory of drawing 50 running jobs and 1,000 ended ones", "MB", 100.0),
    "boards_growth": ("its peak in the second half of a simulated day above the first", "%", 5.0),
    "update_kb": ("one update of a job with every panel and 32 workers", "kB", 40.0),
}
"""What is measured, its unit, and what it is not to exceed."""
N_RUNNING, N_ENDED = 50, 1_000
ENDED_STEPS = 200
WORKERS = 32
DAY_SECONDS = 86_400


def day_of_events(
    seconds: float = DAY_SECONDS, every: float = 8.64, workers: int = WORKERS
) -> Iterator[dict[str, Any]]:
    """Events of a job of 10,000 steps a day, with every figure that any algorithm tells."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    names = [f"tcp://10.0.{i // 256}.{i % 256}:40001" for i in range(workers)]

    def event(kind: str, at: float, **values: Any) -> dict[str, Any]:
        time = (began + timedelta(seconds=at)).isoformat(timespec="milliseconds")
        return {"event": kind, "time": time, **values}

    yield event("started", 0.0, n_rows=80_000_000, n_features=100, n_chunks=800, n_iter=0)
    for n in range(1, int(seconds / every) + 1):
        at, falls = n * every, math.exp(-n / 2_000)
        spent = {"total": every, "compute": 7 * every, "read": every, "wait": 0.5 * every,
                 "reduce": 0.1 * every, "driver": 0.1, "compile": 0.0}  # fmt: skip
        extra = {"distances": 0.02 + falls, "batch_rows": 1e5 * 2 ** min(9, n // 500),
                 "energy": 5 + falls, "lower_bound": -9 - falls, "alive": 1000.0, "gain": falls,
                 "rounds": 10.0, "factor": 4.5, "partitions": float(1 + n // 100),
                 "settled": float(n // 50)}  # fmt: skip
        yield event(
            "step", at, step=n, cost=1e9 * (1 + falls + 1e-3 * math.sin(n)), rows=80_000_000,
            n_changed=int(8e7 * falls), shift=falls, sample=None, seconds=spent, bytes=3 * 10**9,
            copied=10**6, state_bytes=9 * 10**8, cache_bytes=4 * 10**9, retries=int(n % 997 == 0),
            rebuilt=0, evictions=0, rows_per_second=9e6 * (1 + 0.1 * math.sin(n)), elapsed=at,
            eta_s=max(0.0, seconds - at), extra=extra,
        )  # fmt: skip
        told = {name: {"rows": n * 80_000_000 // workers, "compute": at, "read": at / 7,
                       "wait": 1.0, "state_bytes": 3 * 10**7, "cache_bytes": 10**8}
                for name in names}  # fmt: skip
        yield event("workers", at, workers=told)
        if n % 70 == 0:
            yield event("checkpoint", at, n_iter=n, url="s3://bucket/run", seconds=2.0)
        if n % 1_000 == 0:
            yield event("worker", at, address=names[n // 1_000 % workers], change="left", chunks=25)
            yield event("warning", at, topic="slow", message=f"{names[0]} is slow")
    edges = [10 ** (i / 8) for i in range(33)]
    yield event("sizes", seconds, n_empty=3, least=1, median=100, mean=120, most=10_000,
                edges=edges, counts=[31 * i % 97 for i in range(32)])  # fmt: skip


def _status(job_id: int, state: str) -> dict[str, Any]:
    return {"id": f"{job_id:06d}", "name": f"job {job_id}", "state": state, "max_iter": 10_000,
            "eta_s": 100.0, "elapsed": 1.0, "step": 5, "bytes": 10**9}  # fmt: skip


def memory() -> dict[str, float]:
    """Bytes that boards hold, counted by Python, every five minutes of a simulated day.

    Of jobs that do not run only those that were looked at last have one.
    """
    from largek_dask.observe.board import Board
    from largek_dask.observe.desk import MOST_BOARDS

    gc.collect()
    tracemalloc.start()
    ended = []
    for i in range(min(N_ENDED, MOST_BOARDS)):
        board = Board(str(i)).hear_all(day_of_events(ENDED_STEPS * 8.64, workers=2))
        board.know(_status(i, "finished"))
        ended.append(board)
    of_ended = tracemalloc.get_traced_memory()[0]
    # One job stands for the fifty: what they are told is the same.
    board, found = Board("running"), []
    board.know(_status(0, "running"))
    before = tracemalloc.get_traced_memory()[0]
    for event in day_of_events():
        board.hear(event)
        if float(event.get("elapsed", 0.0)) >= 300 * (len(found) + 1):
            found.append(tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    assert len(ended) == MOST_BOARDS < N_ENDED
    half = len(found) // 2
    assert half >= 140
    return {
        "board_mb": max(found) / 1e6,
        "boards_mb": (of_ended + N_RUNNING * max(found)) / 1e6,
        "boards_growth": 100 * (max(found[half:]) / max(found[:half]) - 1),
    }


def update() -> dict[str, float]:
    """Bytes of the answer about a job at the end of its day, compressed as it is sent."""
    from largek_dask.observe.board import Board

    board = Board("running").hear_all(day_of_events())
    memory = {f"tcp://10.0.0.{i}:40001": {"used": 10**9 + i, "limit": 4 * 10**9}
              for i in range(WORKERS)}  # fmt: skip
    board.know(_status(0, "running") | {"memory": memory})
    answer = board.answer()
    assert len(answer["panels"]) == 19, [panel["kind"] for panel in answer["panels"]]
    sent = json.dumps(answer, separators=(",", ":"), allow_nan=False).encode()
    return {"update_kb": len(gzip.compress(sent, 6)) / 1e3}


MEASURES = {"memory": memory, "update": update}
