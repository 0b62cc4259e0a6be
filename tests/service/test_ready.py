"""``/largek/ready``: before a scheduler has its jobs, with them, and while it ends."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import dask
import pytest
from distributed import Scheduler
from tornado.httpclient import AsyncHTTPClient

from largek_dask.service.jobs import Jobs
from largek_dask.service.plugin import JobsPlugin

pytestmark = pytest.mark.usefixtures("quick_leases")
SECONDS = 60.0


@asynccontextmanager
async def scheduler(store, *, started=True, **options):
    """A scheduler with jobs, and ``ask(path)``: status and text of an answer over HTTP."""
    options = {"dashboard_address": "127.0.0.1:0", "host": "127.0.0.1", "port": 0, **options}
    made = Scheduler(**options)
    made.add_plugin(plugin := JobsPlugin(str(store)))
    client = AsyncHTTPClient(force_instance=True)

    async def ask(path="/largek/ready", **given):
        url = f"http://127.0.0.1:{made.http_server.port}{path}"
        found = await client.fetch(url, raise_error=False, **given)
        return found.code, found.body.decode()

    async def until(code, path="/largek/ready"):
        async with asyncio.timeout(SECONDS):
            while (found := await ask(path))[0] != code:
                await asyncio.sleep(0.01)
        return found[1]

    made.ask, made.until, made.plugin = ask, until, plugin
    try:
        if started:
            await made
        yield made
    finally:
        await made.close()
        client.close()


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"dashboard": False}, "/largek/ready"),
        ({"dashboard": True, "http_prefix": "/px"}, "/px/largek/ready"),
    ],
    ids=str,
)
def test_it_is_there_with_and_without_a_dashboard(tmp_path, options, path):
    async def asked():
        async with scheduler(tmp_path, **options) as made:
            assert await made.until(200, path) == "ready\n"
            assert await made.ask(path, method="HEAD") == (200, "")
            assert (await made.ask(path, method="POST", body=""))[0] == 405
            if not path.startswith("/largek"):
                assert (await made.ask("/largek/ready"))[0] == 404
            # The page of jobs lies beside it.
            assert (await made.ask(path.replace("/ready", "")))[0] == 200

    asyncio.run(asked())


def test_foreign_host_names__are_refused_on_our_pages_alone(tmp_path):
    """Prometheus of docker-compose.yml asks ``scheduler:8787`` for /metrics, which is Dask's."""

    async def asked():
        async with scheduler(tmp_path, dashboard=True) as made:
            await made.until(200)
            for path in ("/largek/ready", "/largek", "/largek/data/jobs.json"):
                assert (await made.ask(path))[0] == 200
                code, text = await made.ask(path, headers={"Host": "scheduler:8787"})
                assert code == 403
                assert "hosts: [scheduler]" in text
                with dask.config.set({"largek.observe.hosts": ["scheduler"]}):
                    assert (await made.ask(path, headers={"Host": "scheduler:8787"}))[0] == 200
                link = {
                    "distributed.dashboard.link": "https://hub.example/user/proxy/{port}/status"
                }
                with dask.config.set(link):
                    assert (await made.ask(path, headers={"Host": "hub.example"}))[0] == 200
            for path in ("/metrics", "/health", "/status"):
                assert (await made.ask(path, headers={"Host": "scheduler:8787"}))[0] == 200

    asyncio.run(asked())


def test_without_the_page_of_jobs_it_is_there(tmp_path):
    async def asked():
        async with scheduler(tmp_path, dashboard=False) as made:
            assert await made.until(200) == "ready\n"
            assert (await made.ask("/largek"))[0] == 404

    with dask.config.set({"largek.observe.dashboard": False}):
        asyncio.run(asked())


def test_it_says_no_before_and_while_it_ends(tmp_path, monkeypatch):
    opening, reading, ending = threading.Event(), threading.Event(), threading.Event()
    opened, close = JobsPlugin._open, Jobs.close

    def slowly(self, *given):
        assert opening.wait(SECONDS)
        return opened(self, *given)

    def slow_close(self, seconds):
        assert ending.wait(SECONDS)
        return close(self, seconds)

    def slow_reading(records):
        assert reading.wait(SECONDS)
        return every(records)

    from largek_dask.service.store import Records

    every = Records.all
    monkeypatch.setattr(JobsPlugin, "_open", slowly)
    monkeypatch.setattr(Records, "all", slow_reading)
    monkeypatch.setattr(Jobs, "close", slow_close)

    async def asked():
        async with scheduler(tmp_path, started=False) as made:
            starting = asyncio.ensure_future(made.start())
            assert await made.until(503) == "its store is being opened\n"
            opening.set()
            await starting
            assert await made.until(503) == "its jobs are being read\n"
            reading.set()
            assert await made.until(200) == "ready\n"
            closing = asyncio.ensure_future(made.close())
            assert await made.until(503) == "going away, will be back\n"
            told = await made.handlers["largek"]("jobs")
            assert told == {"away": f"the scheduler at {made.address} is going away, will be back"}
            ending.set()
            await closing

    try:
        asyncio.run(asked())
    finally:
        for event in (opening, reading, ending):
            event.set()


def test_it_says_no_while_another_scheduler_has_the_store(tmp_path):
    async def asked():
        async with scheduler(tmp_path / "store") as first:
            await first.until(200)
            async with scheduler(tmp_path / "store") as second:
                async with asyncio.timeout(SECONDS):
                    while "those of the scheduler at" not in (text := (await second.ask())[1]):
                        assert (await second.ask())[0] == 503
                        await asyncio.sleep(0.01)
                assert first.address in text
                answer = await second.handlers["largek"]("hello", "{}")
                assert answer["error"] == "OtherSchedulerError"
                assert first.address in answer["message"]
                assert named(tmp_path) == first.address
                await first.close()
                assert await second.until(200) == "ready\n"
                # The file is written a moment after it has the jobs.
                async with asyncio.timeout(SECONDS):
                    while named(tmp_path) != second.address:
                        await asyncio.sleep(0.01)

    asyncio.run(asked())


def named(folder):
    return json.loads((folder / "store" / "scheduler.json").read_text())["address"]
