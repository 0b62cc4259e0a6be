"""Measure the CPU time of a scheduler that serves the jobs page, and stalls of its event loop.

    python -m benchmarks.observe [--seconds 30] [--write]

A Dask scheduler in a separate process serves the jobs page with 5 simulated jobs. Each job has
1,000 steps and reports two further steps per second. Ten viewers open a job with its charts and
then send a request every two seconds, as browsers do. CPU seconds of the scheduler are measured
with and without viewers, alternately. A task of the event loop asks to be called every 5 ms; a
later call is a stall. Another job has 100,000 steps in its folder, and is opened by an HTTP
client.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np

from benchmarks.common import ROOT, cpu_description, new_parser, parse, peer_environments
from benchmarks.tables import publish, table_of

TARGETS = {
    "cpu": ("CPU of the scheduler for 10 viewers of a job of 1,000 steps", "% of a core", 15.0),
    "open": ("longest stall of the event loop while 10 viewers open the page", "ms", 100.0),
    "stall": ("longest stall of the event loop while 10 viewers follow the job", "ms", 20.0),
    "p99": ("p99 delay of the event loop: 10 viewers minus no viewer", "ms", 5.0),
    "update": ("size of one update of the page", "kB", 40.0),
    "answer": ("time from opening a job of 100,000 steps to its first numbers", "s", 1.0),
}
JOBS, VIEWERS, EVENTS_A_SECOND, STEPS, LONG_STEPS = 5, 10, 2.0, 1_000, 100_000
LONG = "long"


def step_of(number: int, at: datetime, seconds: float = 0.5) -> dict[str, Any]:
    """Return the event of a step, about as large as a real event."""
    rng = np.random.default_rng(number)
    cost = 1e6 * (1 + 30 / number) + float(rng.normal()) * 10
    total = seconds * float(rng.uniform(0.9, 1.1))
    return {
        "event": "step", "time": at.isoformat(timespec="milliseconds"), "step": number,
        "cost": cost, "rows": 1_000_000, "n_changed": 1_000_000 // number + 1, "sample": None,
        "shift": 1.0 / number, "converged": False,
        "extra": {"distances": 1 / (1 + number / 50), "gain": 0.01},
        "seconds": {"total": total, "compile": 0.0, "compute": 0.8 * total, "read": 0.1 * total,
                    "wait": 0.02 * total, "reduce": 0.01 * total},
        "bytes": 64_000_000, "copied": 0, "state_bytes": 4_000_000, "cache_bytes": 64_000_000,
        "retries": 0, "rebuilt": 0, "evictions": 0, "rows_per_second": 1e6 / total,
        "elapsed": number * seconds, "eta_s": 1e5 / number,
    }  # fmt: skip


def started(at: datetime) -> dict[str, Any]:
    return {"event": "started", "time": at.isoformat(timespec="milliseconds"), "n_iter": 0,
            "n_rows": 1_000_000, "n_features": 16, "n_chunks": 60}  # fmt: skip


class MadeUp:
    """Simulated jobs with the methods of ``Jobs`` that the page calls."""

    def __init__(self, folder: str) -> None:
        from largek_dask.service.job_state import Feed

        self._folder = folder
        self._about = {
            f"job-{i}": {
                "id": f"job-{i}", "name": f"job {i}", "state": "running", "run": 1,
                "algorithm": "lloyd", "n_clusters": 1000, "data": "/data/x.zarr",
                "output": f"/out/{i}", "max_iter": 1000, "owner": "somebody",
            }
            for i in range(JOBS)
        }  # fmt: skip
        self._about[LONG] = {**self._about["job-0"], "id": LONG, "name": LONG, "state": "finished"}
        self._feeds = {name: Feed(name, name != LONG) for name in self._about}
        begin = datetime.now(UTC) - timedelta(seconds=STEPS / EVENTS_A_SECOND)
        for feed in list(self._feeds.values())[:-1]:
            feed(started(begin))
            for number in range(1, STEPS + 1):
                feed(step_of(number, begin + timedelta(seconds=number / EVENTS_A_SECOND)))
        threading.Thread(target=self._tell, daemon=True).start()

    def _tell(self) -> None:
        for number in range(STEPS + 1, 10**9):
            for feed in list(self._feeds.values())[:-1]:
                feed(step_of(number, datetime.now(UTC)))
                time.sleep(1 / EVENTS_A_SECOND / JOBS)

    def listed(self) -> list[dict[str, Any]]:
        """Return the rows of the list."""
        return [self.status(name) for name in self._about]

    def status(self, job_id: str) -> dict[str, Any]:
        """Return the status of a job."""
        from largek_dask.errors import JobNotFoundError

        if job_id not in self._about:
            raise JobNotFoundError(job_id)
        return {**self._feeds[job_id].figures(), **self._about[job_id]}

    def view(self, job_id: str) -> tuple[Any, str]:
        """Return the view of a job; the long job is first read from its folder."""
        from largek_dask.driver.event_log import JsonLines
        from largek_dask.driver.storage import Folder

        feed = self._feeds[job_id]
        feed.load(JsonLines.read(Folder(self._folder)))
        view = feed.copy_view()
        view.set_status(self.status(job_id))
        return view, ""


async def serve(folder: str) -> None:
    """Run a scheduler with the page until it is killed; print its port."""
    from distributed import Scheduler
    from distributed.dashboard.scheduler import template_variables
    from tornado import web

    from largek_dask.service.web.hosts import Hosts
    from largek_dask.service.web.page import Page

    lags: list[float] = []

    class Cost(web.RequestHandler):
        def get(self) -> None:
            late = sorted(lags) or [0.0]
            lags.clear()
            self.finish({
                "cpu": time.process_time(), "wall": time.perf_counter(),
                "p99": late[int(0.99 * (len(late) - 1))], "most": late[-1],
            })  # fmt: skip

    async with Scheduler(port=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as scheduler:
        application = scheduler.http_application
        pages = template_variables(scheduler)["pages"]
        Page(application, "/", MadeUp(folder), Hosts(lambda: None), pages)
        application.add_handlers(".*$", [("/cost", Cost)])
        print(json.dumps({"port": scheduler.http_server.port}), flush=True)
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            lags.append(time.perf_counter() - began - 0.005)


@contextmanager
def scheduler(folder: str) -> Iterator[str]:
    """Start a scheduler in a separate process and yield its address."""
    command = [sys.executable, "-m", "benchmarks.observe", "--child", json.dumps([folder])]
    with subprocess.Popen(
        command, cwd=ROOT, env=peer_environments("largek_dask")[""], stdout=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}/"
        finally:
            process.kill()


class Viewer(threading.Thread):
    """Thread that opens a job with its charts, and then sends requests as the page does."""

    def __init__(self, url: str, job: str) -> None:
        super().__init__(daemon=True)
        self.url, self.job = url, job
        self.is_open, self.over = threading.Event(), threading.Event()
        self.size = 0

    def run(self) -> None:
        """Send requests until the thread is stopped."""
        get(f"{self.url}largek?job={self.job}")
        data = f"{self.url}largek/data/job.json?job={self.job}"
        _, body, tag = get(data)
        self.size = len(body)
        charts = re.findall('data-figure="([^"]+)"', json.loads(gzip.decompress(body))["html"])
        for chart in charts:
            get(f"{self.url}{unescape(chart)}&theme=light")
        self.is_open.set()
        while not self.over.wait(2.0):
            _, _, tag = get(data, tag)


def get(url: str, tag: str = "") -> tuple[int, bytes, str]:
    """Return the status, the bytes as sent, and the tag of a response."""
    headers = {"Accept-Encoding": "gzip", **({"If-None-Match": tag} if tag else {})}
    try:
        with urlopen(Request(url, headers=headers), timeout=60) as found:
            return found.status, found.read(), found.headers.get("Etag", "")
    except HTTPError as error:
        return error.code, b"", ""


def cost_of(url: str, seconds: float, jobs: list[str]) -> dict[str, float]:
    """Return CPU use in per cent of a core and stalls in ms, while viewers follow jobs."""
    get(f"{url}cost")
    viewers = [Viewer(url, job) for job in jobs]
    for viewer in viewers:
        viewer.start()
    for viewer in viewers:
        viewer.is_open.wait()
    before = json.loads(get(f"{url}cost")[1])
    time.sleep(seconds)
    after = json.loads(get(f"{url}cost")[1])
    for viewer in viewers:
        viewer.over.set()
    for viewer in viewers:
        viewer.join()
    share = (after["cpu"] - before["cpu"]) / (after["wall"] - before["wall"])
    return {
        "cpu": 100 * share, "p99": 1e3 * after["p99"], "stall": 1e3 * after["most"],
        "open": 1e3 * before["most"], "update": max((v.size for v in viewers), default=0) / 1e3,
    }  # fmt: skip


def write_long(folder: Path) -> None:
    """Write events of a job with 100,000 steps to its folder."""
    from largek_dask.driver.event_log import JsonLines
    from largek_dask.driver.storage import Folder

    sink = JsonLines(Folder(str(folder)))
    begin = datetime.now(UTC) - timedelta(days=1)
    sink(started(begin))
    for number in range(1, LONG_STEPS + 1):
        sink(step_of(number, begin + timedelta(seconds=0.5 * number)))
    sink.close()


def opened(url: str) -> dict[str, float]:
    """Return seconds until the long job shows its first values, and until all are read."""
    began = time.perf_counter()
    get(f"{url}largek?job={LONG}")
    answer = time.perf_counter() - began
    data = f"{url}largek/data/job.json?job={LONG}"
    while not json.loads(gzip.decompress(get(data)[1]))["series"]:
        time.sleep(0.5)
    return {"answer": answer, "read_all": time.perf_counter() - began}


def measure(seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write_long(Path(folder))
        with scheduler(folder) as url:
            # Create what a scheduler creates only once, such as compressed files.
            cost_of(url, 1.0, ["job-0"])
            rounds = []
            for _ in range(2):
                without = cost_of(url, seconds, [])
                rounds.append((without, cost_of(url, seconds, VIEWERS * ["job-1"])))
                print(rounds[-1], flush=True)
            figures: dict[str, Any] = opened(url)
    for name in ("cpu", "p99"):
        figures[name] = float(np.mean([after[name] - before[name] for before, after in rounds]))
    for name in ("open", "stall", "update"):
        figures[name] = max(after[name] for _, after in rounds)
    figures["cpu_without"] = float(np.mean([before["cpu"] for before, _ in rounds]))
    figures["stall_without"] = max(before["stall"] for before, _ in rounds)
    return figures


def table(result: dict[str, Any]) -> str:
    found, rows = result["figures"], []
    for name, (what, unit, most) in TARGETS.items():
        rows.append([what, f"{found[name]:.3g} {unit}", f"{most:g} {unit}"])
    note = (
        f"Without viewers, the scheduler uses {found['cpu_without']:.1f} % of a core for the "
        f"events of {JOBS} jobs, and the longest stall of its event loop is "
        f"{found['stall_without']:.3g} ms. All events of a job with 100,000 steps have been read "
        f"after {found['read_all']:.1f} s. 1 kB is 1,000 compressed bytes. "
        f"Processor: {result['cpu']}. This table was made by `python -m benchmarks.observe "
        "--write`."
    )
    return "\n".join([*table_of(["what", "measured", "at most"], rows), "", note])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="time of each CPU measurement")
    args = parse(parser, lambda folder: asyncio.run(serve(folder)))
    result = {"cpu": cpu_description(), "figures": measure(args.seconds)}
    publish("observe", result, write=args.write)


if __name__ == "__main__":
    main()
