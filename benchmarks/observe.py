"""What it costs a scheduler to show its jobs, and how soon somebody sees them.

    python -m benchmarks.observe [--seconds 30] [--boards] [--events] [--write]
    python -m benchmarks.observe --picture

A scheduler of Dask in a process of its own, with the page on its HTTP server and 50 jobs that are
made up: each tells two steps a second to a feed as real ones have. Ten viewers ask as the page
does, five for the list and five for a job each, with the tags that browsers send; CPU seconds of
the scheduler's process with them and without, in turns. A task of its event loop wants to be called
every 5 ms; how much later it is called is a stall. Another job has 100,000 steps in its folder,
and is opened by an HTTP client and by Chromium, where there is one. ``--picture`` makes that of the
README. ``--boards`` measures only what boards hold (``benchmarks.observe_boards``), ``--events``
only what events and metrics cost (``benchmarks.observe_events``): these take no scheduler, and the
other figures stay as they were.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np

from benchmarks import observe_boards, observe_events
from benchmarks.common import RESULTS, ROOT, cpu_description, peer_environments, save
from benchmarks.tables import write_tables

TARGETS = {
    "cpu": ("scheduler CPU above no viewer: 50 jobs of 2 events/s, 10 viewers", "% of a core", 3.0),
    "stall": ("longest stall of the event loop while a job of 100,000 steps is opened", "ms", 50.0),
    "p99": ("p99 of the event loop's delay with 10 viewers, above none", "ms", 5.0),
    "first": ("first view, sent, without BokehJS", "kB", 30.0),
    "first_bokeh": ("first view with BokehJS, the first time", "kB", 450.0),
    "update": ("one update of a job with all panels", "kB", 40.0),
    "unchanged": ("the same where nothing is new", "kB", 0.0),
    "answer": ("opening a job of 100,000 steps to its first numbers", "s", 1.0),
    "drawing": ("the same to the first drawing, in Chromium", "s", 1.0),
    **observe_boards.TARGETS,
    **observe_events.TARGETS,
}
JOBS, VIEWERS, EVENTS_A_SECOND, STEPS = 50, 5, 2.0, 100_000
LONG = "long"
PICTURE = RESULTS / "page.png"
DRAWN = """() => window.Bokeh && Bokeh.documents.some(doc => [...doc._all_models.values()].some(
    model => model.name && model.name.startsWith("cost/on") && model.data.x.length > 1))"""


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
    """Jobs that tell what a clock makes up, through real feeds; a source of the page."""

    def __init__(self, folder: str) -> None:
        from largek_dask.service.feed import Feed

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

    def cancel(self, job_id: str, who: str) -> str:
        """See ``observe.desk.Source``."""
        raise NotImplementedError


async def child(folder: str) -> None:
    """A scheduler with the page, until it is killed; tells what it cost on standard output."""
    from distributed import Scheduler
    from distributed.dashboard.scheduler import template_variables
    from tornado import web

    from largek_dask.observe.web import install

    lags: list[float] = []

    class Cost(web.RequestHandler):
        def get(self) -> None:
            told = sorted(lags) or [0.0]
            lags.clear()
            self.finish({
                "cpu": time.process_time(), "wall": time.perf_counter(),
                "p99": told[int(0.99 * (len(told) - 1))], "most": told[-1],
            })  # fmt: skip

    async with Scheduler(port=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as scheduler:
        application = scheduler.http_application
        install(application, "/", MadeUp(folder), template_variables(scheduler)["pages"])
        application.add_handlers(".*$", [("/cost", Cost)])
        print(json.dumps({"port": scheduler.http_server.port}), flush=True)
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            lags.append(time.perf_counter() - began - 0.005)


@contextmanager
def scheduler(folder: str) -> Iterator[str]:
    """The address of a scheduler in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.observe", "--child", folder]
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
    """Asks for one address as the page does."""

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
    """What the scheduler's process takes for as long, while these look."""
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
    """How long the first numbers take, what the loop suffers until all is read, and sizes."""
    json.loads(get(f"{url}cost")[1])
    began = time.perf_counter()
    html = get(f"{url}largek?job={LONG}")[1]
    job = get(f"{url}largek/data/job.json?job={LONG}")[1]
    answer = time.perf_counter() - began
    while json.loads(gzip.decompress(job)).get("reading"):
        time.sleep(0.5)
        _, job, tag = get(f"{url}largek/data/job.json?job={LONG}")
    stall = json.loads(get(f"{url}cost")[1])["most"]
    text = gzip.decompress(html).decode()
    [script] = set(re.findall(r'data-bokeh="([^"]+)"', text))
    paths = set(re.findall(r'(?:src|href)="(largek/static/[^"]+)"', text)) - {script}
    own, bokeh = [get(url + path)[1] for path in paths], get(url + script)[1]
    first = len(html) + sum(map(len, own)) + len(job)
    unchanged = get(f"{url}largek/data/job.json?job={LONG}", tag)
    assert unchanged[0] == 304
    return {
        "answer": answer, "read_all": time.perf_counter() - began, "stall": 1e3 * stall,
        "first": first / 1e3, "first_bokeh": (first + len(bokeh)) / 1e3,
        "update": len(job) / 1e3, "unchanged": len(unchanged[1]) / 1e3,
    }  # fmt: skip


def drawn(url: str) -> float | None:
    """Seconds from opening to the first drawing in a real browser; None without one."""
    import pytest

    from tests.observe.browser import Tab, browser

    with contextlib.suppress(pytest.skip.Exception), browser() as found:
        # Starting the browser is none of it.
        Tab(found).open(f"{url}largek").close()
        tab = Tab(found)
        began = time.perf_counter()
        tab.open(f"{url}largek?job={LONG}")
        tab.wait(DRAWN)
        taken = time.perf_counter() - began
        tab.close()
        return taken
    return None


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
        with scheduler(folder) as url:
            time.sleep(5.0)
            figures["drawing"] = drawn(url)
    for name in ("cpu", "p99"):
        figures[name] = float(np.mean([after[name] - before[name] for before, after in rounds]))
    figures["cpu_without"] = float(np.mean([before["cpu"] for before, _ in rounds]))
    return figures


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    found = result["figures"]
    lines = ["| what | measured | at most |", "|---|---|---|"]
    for name, (what, unit, most) in TARGETS.items():
        if name not in found:
            # By a run before there was this figure.
            continue
        value = "not measured" if found[name] is None else f"{found[name]:.3g} {unit}"
        lines.append(f"| {what} | {value} | {most:g} {unit} |")
    return "\n".join(
        [
            *lines,
            "",
            f"With no viewer the scheduler takes {found['cpu_without']:.1f} % of a core. "
            f"All of the job of 100,000 steps has been read after {found['read_all']:.1f} s; its "
            "charts fill up until then. Kilobytes of 1,000 bytes, as they are sent. "
            f"{result['cpu']}. Made by `python -m benchmarks.observe --write`.",
        ]
    )


def picture() -> None:
    """The page of a job as the README shows it."""
    from largek_dask.service.feed import Feed
    from tests.observe.browser import Tab, browser
    from tests.observe.sources import MadeUp as Source
    from tests.observe.sources import page_of

    source, events = Source(), example()
    feed = Feed("photographs", lambda event: None, is_new=True)
    for event in events:
        feed(event)
    source.add("photographs", **feed.figures())
    source.tell("photographs", *events)
    with page_of(source) as url, browser() as found:
        tab = Tab(found, 1160)
        tab.open(f"{url}?job=photographs")
        tab.wait(DRAWN)
        tab.page.get_by_label("above the best, log").check()
        time.sleep(2.0)
        clip = {"x": 0, "y": 0, "width": 1160, "height": 632}
        tab.page.screenshot(path=str(PICTURE), clip=clip)


def example() -> list[dict[str, Any]]:
    """Events of a run of some minutes on four workers, one of which dies."""
    events: list[dict[str, Any]] = []
    begin = datetime.now(UTC) - timedelta(seconds=2 * 180 + 1)

    def at(seconds: float) -> dict[str, str]:
        return {"time": (begin + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")}

    events.append(started(begin))
    totals = {f"tcp://10.0.0.{i}:8788": 0 for i in range(1, 5)}
    for number in range(1, 181):
        at_step = 2.0 * number
        event = step_of(number, begin + timedelta(seconds=at_step), 2.0)
        if number == 90:
            gone = {"event": "worker", "address": "tcp://10.0.0.3:8788", "change": "left",
                    "chunks": 15, **at(at_step)}  # fmt: skip
            events.append(gone)
            event["retries"] = 15
        if number == 110:
            back = {"event": "worker", "address": "tcp://10.0.0.3:8788", "change": "joined",
                    "chunks": 0, **at(at_step)}  # fmt: skip
            events.append(back)
        is_gone = 90 <= number < 110
        event["rows_per_second"] *= 0.75 if is_gone else 1.0
        for name in totals:
            if not (is_gone and name.endswith("3:8788")):
                totals[name] += 320_000 if is_gone else 250_000
        events.append(event)
        if number % 3 == 0:
            about = {name: {"rows": rows, "compute": rows / 2e5, "read": rows / 2e6, "wait": 0.0,
                            "state_bytes": 1_000_000, "cache_bytes": 16_000_000}
                     for name, rows in totals.items()}  # fmt: skip
            events.append({"event": "workers", "workers": about, **at(at_step)})
        if number % 30 == 0:
            events.append({"event": "checkpoint", "n_iter": number, "url": "", "seconds": 0.4,
                  **at(at_step)})  # fmt: skip
    return events


def main() -> None:
    """Measure, save, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement of CPU")
    parser.add_argument("--boards", action="store_true", help="only what boards hold")
    parser.add_argument("--events", action="store_true", help="only what events and metrics cost")
    parser.add_argument("--write", action="store_true", help="save results, write the table")
    parser.add_argument("--picture", action="store_true", help="make the README's picture only")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        asyncio.run(child(args.child))
        return
    if args.picture:
        picture()
        return
    is_part = args.boards or args.events
    known = json.loads((RESULTS / "observe.json").read_text()) if is_part else {}
    figures = known["figures"] if is_part else measure(args.seconds)
    if args.boards or not is_part:
        for made in observe_boards.MEASURES.values():
            figures |= made()
    if args.events or not is_part:
        for made in observe_events.MEASURES.values():
            figures |= made()
    result = {"cpu": known.get("cpu", cpu_description()), "figures": figures}
    print(table(result))
    if args.write:
        save("observe", result)
        write_tables("observe", result)


if __name__ == "__main__":
    main()
