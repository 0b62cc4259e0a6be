"""A made-up job whose events have all figures that any algorithm reports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any


def day_of_events(
    seconds: float, every: float = 8.64, workers: int = 3
) -> Iterator[dict[str, Any]]:
    """Events of a job of 10,000 steps a day, with all figures of all algorithms."""
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
        if n % 70 == 0:
            yield event("checkpoint", at, n_iter=n, url="s3://bucket/run", seconds=2.0)
        if n % 1_000 == 0:
            yield event("worker", at, address=names[n // 1_000 % workers], change="left", chunks=25)
            yield event("warning", at, topic="slow", message=f"{names[0]} is slow")
    edges = [10 ** (i / 8) for i in range(33)]
    yield event("sizes", seconds, n_empty=3, least=1, median=100, mean=120, most=10_000,
                edges=edges, counts=[31 * i % 97 for i in range(32)])  # fmt: skip
