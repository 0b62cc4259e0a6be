"""CPU of a scheduler that shows its jobs, stalls of its event loop, and time to the first numbers.

    python -m benchmarks.observe [--seconds 30] [--write]

A scheduler of Dask in a process of its own, with the page on its HTTP server and 50 jobs that are
made up: each adds two steps a second to a feed as real ones have. Ten viewers ask as the page
does, five for the list and five for a job each, with the tags that browsers send; CPU seconds of
the scheduler's process with them and without, in turns. A task of its event loop asks to be called
every 5 ms; a later call is a stall. Another job has 100,000 steps in its folder, and is opened by
an HTTP client.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np

from benchmarks.common import ROOT, cpu_description, new_parser, parse, peer_environments
from benchmarks.tables import publish, table_of

TARGETS = {
    "cpu": ("scheduler CPU above no viewer: 50 jobs of 2 events/s, 10 viewers", "% of a core", 3.0),
    "stall": ("longest stall of the event loop while a job of 100,000 steps is opened", "ms", 50.0),
    "p99": ("p99 of the event loop's delay with 10 viewers, above none", "ms", 5.0),
    "update": ("one update of a job with all panels", "kB", 40.0),
    "answer": ("opening a job of 100,000 steps to its first numbers", "s", 1.0),
}
JOBS, VIEWERS, EVENTS_A_SECOND, STEPS = 50, 5, 2.0, 100_000
LONG = "long"


def step_of(number: int, at: datetime, seconds: float = 0.5) -> dict[str, Any]:
    """The event of a step, as large as a real one's."""
    rng = np.random.default_rng(number)
    cost = 1e6 * (1 + 30 / number) + float(rng.normal()) * 10
    total = seconds * float(rng.uniform(0.9, 1.1))
    return {
        "event": "step", "time": at.isoformat(timespec="milliseconds"), "step": number,
        "cost": cost, "rows": 1_000_000, "n_changed": 1_000_000 // number + 1, "sample": None,
        "shift": 1.0 / number, "converged": False,
        "extra": {"distances": 1 / (1 + number / 50), "row_state_bytes": 4.0},
        "seconds": {"total": total, "compile": 0.0, "compute": 0.8 * total, "read": 0.1 * total,
                    "wait": 0.02 * total, "reduce": 0.01 * total},
        "bytes": 64_000_000, "copied": 0, "state_bytes": 4_000_000, "cache_bytes": 64_000_000,
        "retries": 0, "rebuilt": 0, "evictions": 0, "rows_per_second": 1e6 / total,
        "elapsed": number * seconds, "eta_s": 1e5 / number,
    }  # fmt: skip


def started(at: datetime) -> dict[str, Any]:
    """The event of a fit that begins."""
    return {"event": "started", "time": at.isoformat(timespec="milliseconds"), "n_iter": 0,
            "n_rows": 1_000_000, "n_features": 16, "n_chunks": 60}  # fmt: skip


class MadeUp:
    """Source of the page: jobs whose made-up events go through real feeds."""

    def __init__(self, folder: str) -> None:
        from largek_dask.service.job_state import Feed

        self._folder = folder
        now = datetime.now(UTC)
        self._about = {
            f"job-{i}": {
                "id": f"job-{i}", "name": f"job {i}", "state": "running", "run": 1,
                "created": (now + timedelta(seconds=i)).isoformat(), "algorithm": "lloyd",
                "n_clusters": 1000, "data": "/data/x.zarr", "output": f"/out/{i}",
                "max_iter": 1000, "owner": "somebody",
            }
            for i in range(JOBS)
        }  # fmt: skip
        self._feeds = {name: Feed(name, lambda event: None, is_new=True) for name in self._about}
        for feed in self._feeds.values():
            feed({"event": "queued"})
            feed(started(now))
        self._about[LONG] = {**self._about["job-0"], "id": LONG, "name": LONG, "state": "finished"}
        threading.Thread(target=self._tell, daemon=True).start()

    def _tell(self) -> None:
        for number in range(1, 10**9):
            for feed in self._feeds.values():
                feed(step_of(number, datetime.now(UTC)))
                time.sleep(1 / EVENTS_A_SECOND / JOBS)

    def jobs(self) -> list[dict[str, Any]]:
        """See ``observe.desk.Source``."""
        return [self.status(name) for name in self._about]

    def status(self, job_id: str) -> dict[str, Any]:
        """See ``observe.desk.Source``."""
        from largek_dask.errors import JobNotFoundError

        if job_id not in self._about:
            raise JobNotFoundError(job_id)
        feed = self._feeds.get(job_id)
        return {**self._about[job_id], **({"n_events": 0} if feed is None else feed.figures())}

    def events(self, job_id: str, n: int, most: int) -> list[dict[str, Any]]:
        """See ``observe.desk.Source``."""
        feed = self._feeds.get(job_id)
        return [] if feed is None else feed.since(n, most)

    def history(self, job_id: str) -> Iterator[Any]:
        """See ``observe.desk.Source``."""
        from largek_dask.driver.event_log import JsonLines
        from largek_dask.driver.storage import Folder

        return JsonLines.read(Folder(self._folder))

    def trouble(self) -> tuple[str, ...]:
        """See ``observe.desk.Source``."""
        return ()

    def cancel(self, job_id: str, who: str) -> str:
        """See ``observe.desk.Source``."""
        raise NotImplementedError


async def serve(folder: str) -> None:
    """Run a scheduler with the page until it is killed; print its port."""
    from distributed import Scheduler
    from distributed.dashboard.scheduler import template_variables
    from tornado import web

    from largek_dask.observe.hosts import Hosts
    from largek_dask.observe.web import install

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
        install(application, "/", MadeUp(folder), Hosts(lambda: None), pages)
        application.add_handlers(".*$", [("/cost", Cost)])
        print(json.dumps({"port": scheduler.http_server.port}), flush=True)
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            lags.append(time.perf_counter() - began - 0.005)


@contextmanager
def scheduler(folder: str) -> Iterator[str]:
    """Address of a scheduler in a process of its own."""
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
    """Thread that asks for one address as the page does."""

    def __init__(self, url: str, pause: float) -> None:
        super().__init__(daemon=True)
        self.url, self.pause, self.over = url, pause, threading.Event()
        self.sizes: list[int] = []

    def run(self) -> None:
        """Ask until it is over."""
        tag = ""
        while not self.over.wait(self.pause):
            status, body, found = get(self.url, tag)
            tag = found or tag
            self.sizes.append(len(body) if status == 200 else 0)


def get(url: str, tag: str = "") -> tuple[int, bytes, str]:
    """Status, bytes as they were sent, and the tag of an answer."""
    headers = {"Accept-Encoding": "gzip", **({"If-None-Match": tag} if tag else {})}
    try:
        with urlopen(Request(url, headers=headers), timeout=60) as found:
            return found.status, found.read(), found.headers.get("Etag", "")
    except HTTPError as error:
        return error.code, b"", ""


def cost_of(url: str, seconds: float, viewers: list[Viewer]) -> dict[str, float]:
    """CPU of the scheduler's process, in per cent of a core, while some viewers look."""
    for viewer in viewers:
        viewer.start()
    time.sleep(3.0)
    before = json.loads(get(f"{url}cost")[1])
    time.sleep(seconds)
    after = json.loads(get(f"{url}cost")[1])
    for viewer in viewers:
        viewer.over.set()
    for viewer in viewers:
        viewer.join()
    share = (after["cpu"] - before["cpu"]) / (after["wall"] - before["wall"])
    return {"cpu": 100 * share, "p99": 1e3 * after["p99"]}


def write_long(folder: Path) -> None:
    """Events of a job of 100,000 steps, in its folder."""
    from largek_dask.driver.event_log import JsonLines
    from largek_dask.driver.storage import Folder

    sink = JsonLines(Folder(str(folder)))
    begin = datetime.now(UTC) - timedelta(days=1)
    sink(started(begin))
    for number in range(1, STEPS + 1):
        sink(step_of(number, begin + timedelta(seconds=0.5 * number)))
    sink.close()


def opened(url: str) -> dict[str, float]:
    """Seconds to the first numbers, stalls until all is read, and bytes of an update."""
    get(f"{url}cost")
    began = time.perf_counter()
    get(f"{url}largek?job={LONG}")
    job = get(f"{url}largek/data/job.json?job={LONG}")[1]
    answer = time.perf_counter() - began
    while json.loads(gzip.decompress(job)).get("reading"):
        time.sleep(0.5)
        job = get(f"{url}largek/data/job.json?job={LONG}")[1]
    stall = json.loads(get(f"{url}cost")[1])["most"]
    return {
        "answer": answer, "read_all": time.perf_counter() - began, "stall": 1e3 * stall,
        "update": len(job) / 1e3,
    }  # fmt: skip


def measure(seconds: float) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        write_long(Path(folder))
        with scheduler(folder) as url:
            rounds = []
            for _ in range(2):
                without = cost_of(url, seconds, [])
                viewers = [Viewer(f"{url}largek/data/jobs.json?from=0&search=", 2.0)
                           for _ in range(VIEWERS)]  # fmt: skip
                viewers += [Viewer(f"{url}largek/data/job.json?job=job-{i}", 1.0)
                            for i in range(VIEWERS)]  # fmt: skip
                rounds.append((without, cost_of(url, seconds, viewers)))
                print(rounds[-1], flush=True)
            figures: dict[str, Any] = opened(url)
    for name in ("cpu", "p99"):
        figures[name] = float(np.mean([after[name] - before[name] for before, after in rounds]))
    figures["cpu_without"] = float(np.mean([before["cpu"] for before, _ in rounds]))
    return figures


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    found, rows = result["figures"], []
    for name, (what, unit, most) in TARGETS.items():
        rows.append([what, f"{found[name]:.3g} {unit}", f"{most:g} {unit}"])
    note = (
        f"With no viewer the scheduler takes {found['cpu_without']:.1f} % of a core. All of the "
        f"job of 100,000 steps has been read after {found['read_all']:.1f} s; its charts fill up "
        f"until then. Kilobytes of 1,000 bytes, as they are sent. {result['cpu']}. Made by "
        "`python -m benchmarks.observe --write`."
    )
    return "\n".join([*table_of(["what", "measured", "at most"], rows), "", note])


def main() -> None:
    """Measure, and write if asked to."""
    parser = new_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement of CPU")
    args = parse(parser, lambda folder: asyncio.run(serve(folder)))
    result = {"cpu": cpu_description(), "figures": measure(args.seconds)}
    publish("observe", result, write=args.write)


if __name__ == "__main__":
    main()
