"""Jobs that are only made up, for what shows them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from tornado import web
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from largek_dask.driver.job_view import JobView
from largek_dask.errors import JobNotFoundError
from largek_dask.service.web.hosts import Hosts
from largek_dask.service.web.page import Page

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> str:
    """A time in ISO form."""
    return (BEGIN + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def step(number: int, seconds: float | None = None, **changes: Any) -> dict[str, Any]:
    """The event of a step of a job that lowers its cost."""
    seconds = float(number) if seconds is None else seconds
    return {
        "event": "step", "time": at(seconds), "step": number, "cost": 1000.0 / number,
        "rows": 500, "n_changed": 1000 // number, "shift": 0.1 / number, "sample": None,
        "seconds": {"total": 1.0, "compile": 0.0, "compute": 0.7, "read": 0.1, "wait": 0.1,
                    "reduce": 0.05},
        "bytes": 64_000, "copied": 0, "state_bytes": 4_000, "cache_bytes": 64_000, "retries": 0,
        "rebuilt": 0, "evictions": 0, "rows_per_second": 500.0, "elapsed": seconds, "eta_s": 9.0,
        "extra": {"distances": 1.0 / number},
        **changes,
    }  # fmt: skip


def started(seconds: float = 0.0) -> dict[str, Any]:
    """The event of a fit that begins."""
    return {"event": "started", "time": at(seconds), "n_rows": 500, "n_features": 4,
            "n_chunks": 5, "n_iter": 0}  # fmt: skip


class MadeUp:
    """Jobs that are made up, with the methods of ``JobsSource``.

    Attributes
    ----------
    statuses, told : dict
        Status and events by id.
    asked : list
        Calls, in their order.
    fails : Exception or None
        Raised by every call.
    lack : str
        What is missing of all jobs.
    """

    def __init__(self) -> None:
        self.statuses: dict[str, dict[str, Any]] = {}
        self.told: dict[str, list[dict[str, Any]]] = {}
        self.asked: list[tuple[str, ...]] = []
        self.cancelled: list[tuple[str, str]] = []
        self.fails: Exception | None = None
        self.lack = ""

    def add(self, job_id: str, state: str = "running", **about: Any) -> None:
        """Add a job."""
        self.statuses[job_id] = {
            "id": job_id, "name": None, "state": state, "created": float(len(self.statuses)),
            "algorithm": "lloyd", "n_clusters": 5, "data": "/rows/x.zarr", "owner": "ann",
            "output": f"/out/{job_id}", "max_iter": 100, "run": 1, **about,
        }  # fmt: skip
        self.told[job_id] = []

    def tell(self, job_id: str, *events: dict[str, Any]) -> None:
        """Add events to a job."""
        self.told[job_id].extend(events)

    def _asks(self, *what: str) -> None:
        self.asked.append(what)
        if self.fails is not None:
            raise self.fails

    def listed(self) -> list[dict[str, Any]]:
        self._asks("rows")
        return list(self.statuses.values())

    def view(self, job_id: str) -> tuple[JobView, str]:
        self._asks("view", job_id)
        if job_id not in self.statuses:
            raise JobNotFoundError(f"there is no job {job_id}.")
        view = JobView().update_all(self.told[job_id])
        view.set_status(self.statuses[job_id])
        return view, self.lack

    def cancel(self, job_id: str, who: str) -> str:
        self.view(job_id)
        self.cancelled.append((job_id, who))
        return "running"

    def report(self, job_id: str) -> str:
        self.view(job_id)
        return f"<!DOCTYPE html><title>{job_id}</title>"

    def close(self) -> None:
        """There is nothing to close."""


@contextmanager
def page_of(source: MadeUp, **how: Any) -> Iterator[str]:
    """A server of the page in a thread; its address."""
    address: list[str] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        application = web.Application([])
        page = Page(application, "/", source, Hosts(lambda: None), ["status"], **how)
        server = HTTPServer(application)
        sockets = bind_sockets(0, "127.0.0.1")
        server.add_sockets(sockets)
        address.append(f"http://127.0.0.1:{sockets[0].getsockname()[1]}/largek")
        ready.set()
        while not over.is_set():
            await asyncio.sleep(0.05)
        server.stop()
        await server.close_all_connections()
        page.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)
    try:
        yield address[0]
    finally:
        over.set()
        thread.join(20)
