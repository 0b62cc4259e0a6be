"""The plugin on a scheduler that is only made up: what it answers, and how it ends."""

import asyncio
import json
import logging
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace

import dask
import pytest
from distributed import Scheduler
from tornado import web

from largek_dask import redaction
from largek_dask.errors import OutputError, ParameterError
from largek_dask.service.plugin import HANDLER, MOST_ARGUMENTS, TARGET, JobsPlugin, add_page
from largek_dask.service.web import page as pages_over_http


@asynccontextmanager
async def running(folder, handlers=None):
    """A plugin that has been started."""
    plugin = JobsPlugin(str(folder))
    usual = {TARGET: lambda target_duration=None: 1} if handlers is None else handlers
    await plugin.start(SimpleNamespace(address="tcp://127.0.0.1:1", handlers=usual))
    try:
        yield plugin
    finally:
        await plugin.before_close()


def test_start__what_cannot_be_is_said_in_one_line_and_nothing_else_fails(tmp_path):
    """As `dask scheduler` with it does, which closes what has not begun."""

    async def begin():
        scheduler = Scheduler(host="127.0.0.1", port=0, dashboard_address=":0")
        scheduler.plugins[JobsPlugin.name] = plugin = JobsPlugin(str(tmp_path / "store"))
        scheduler.preloads = SimpleNamespace(start=lambda: plugin.start(scheduler), teardown=aside)
        await scheduler

    async def aside():
        """Nothing is to be taken down."""

    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(logging.Formatter().format(record))
    names = ("largek_dask", "distributed")
    for name in names:
        logging.getLogger(name).addHandler(handler)
    try:
        (tmp_path / "store").write_text("a file")
        with pytest.raises(RuntimeError, match="failed to start") as caught:
            asyncio.run(begin())
    finally:
        for name in names:
            logging.getLogger(name).removeHandler(handler)
    assert isinstance(caught.value.__cause__, OutputError)
    (told,) = [line for line in lines if line.startswith("largek")]
    assert f"{tmp_path}/store: " in told
    assert not [line for line in lines if "Traceback" in line]


@pytest.mark.parametrize(
    ("error", "is_logged"),
    [
        (ParameterError("k is 0"), False),
        (OutputError("it is not empty"), False),
        (FileNotFoundError("no such file"), False),
        (ZeroDivisionError("divided"), True),
    ],
)
def test_answer__only_what_nobody_foresaw_is_logged(
    error, is_logged, tmp_path, quick_leases, logged, monkeypatch
):
    def fail():
        raise error

    async def asked():
        async with running(tmp_path) as plugin:
            monkeypatch.setattr(plugin._jobs, "hello", fail)
            return await plugin._answer("hello", "{}")

    told = asyncio.run(asked())
    assert str(error) in str(told), "the client is told in any case"
    failures = [line for line in logged if line.startswith("largek hello failed:")]
    assert len(failures) == is_logged
    assert all("    Traceback" in line and str(error) in line for line in failures)


def test_answer__a_question_that_is_too_long_is_refused_unread(tmp_path, quick_leases, monkeypatch):
    read = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: read.append(len(text)) or loads(text))
    arguments = json.dumps({"secrets": {"token": "secret\n" * MOST_ARGUMENTS}})

    async def asked():
        async with running(tmp_path) as plugin:
            read.clear()
            return await plugin._answer("submit", arguments)

    long = asyncio.run(asked())
    assert long["error"] == "ParameterError"
    assert "8,388,608" in long["message"]
    assert len(arguments) > max(read, default=0)


def test_answer__of_large_secrets_is_an_error_that_does_not_look_for_them(
    tmp_path, quick_leases, monkeypatch
):
    made = []
    made_of = redaction.Redactor.__init__
    monkeypatch.setattr(
        redaction.Redactor, "__init__", lambda self, of: made.append(of) or made_of(self, of)
    )
    secrets = {"token": "line\n" * 400_000}

    async def asked():
        async with running(tmp_path) as plugin:
            given = {"document": "{}", "secrets": secrets, "owner": "me"}
            return await plugin._answer("submit", json.dumps(given))

    told = asyncio.run(asked())
    assert "65,536" in told["message"]
    assert made
    assert secrets not in made


def test_close__waits_for_no_answer_that_is_under_way(tmp_path, quick_leases):
    end = threading.Event()

    async def closed():
        async with running(tmp_path) as plugin:
            answers = [plugin._pools[name].submit(end.wait, 20.0) for name in plugin._pools]
        return [answer.done() for answer in answers]

    try:
        answered = asyncio.run(closed())
        assert answered
        assert not any(answered)
    finally:
        end.set()


@pytest.mark.parametrize(
    ("given", "seconds", "usual", "worth", "target"),
    [
        ({"target_duration": "2s"}, 2.0, 1, 3, 3),
        ({}, 7.0, 5, 3, 5),
        ({"target_duration": "0s"}, 0.001, 1, 9, 9),
    ],
)
def test_target__is_what_dask_or_the_jobs_have_use_for(
    given, seconds, usual, worth, target, tmp_path, quick_leases, monkeypatch
):
    """What ``cluster.adapt()`` asks for: the more of Dask's own figure and the jobs'."""
    asked = []

    def of_dask(target_duration=None):
        asked.append(target_duration)
        return usual

    def of_jobs(seconds):
        asked.append(seconds)
        return worth

    async def found():
        handlers = {TARGET: of_dask}
        async with running(tmp_path, handlers) as plugin:
            monkeypatch.setattr(plugin._jobs, "workers_wanted", of_jobs)
            answer = handlers[TARGET](**given)
        return answer, handlers

    with dask.config.set({"distributed.adaptive.target-duration": "7s"}):
        answer, handlers = asyncio.run(found())
    assert answer == target
    assert asked == [given.get("target_duration"), seconds]
    assert handlers[TARGET] is of_dask, "Dask has its own back"
    told = asyncio.run(handlers[HANDLER]("jobs", "{}"))
    assert set(told) == {"away"}
    assert "tcp://127.0.0.1:1" in told["away"]


# --- the page -------------------------------------------------------------------------------------


class Nobody:
    """Has no jobs."""

    def close(self):
        """There is nothing to close."""


def http():
    """A scheduler with an HTTP server and pages as Dask has them."""
    application = web.Application([])
    application.applications = [application, SimpleNamespace(prefix="")]
    return SimpleNamespace(http_application=application)


def test_page__whatever_is_wrong_with_it_jobs_go_on(logged, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("the page")

    monkeypatch.setattr(pages_over_http, "Page", fail)
    assert add_page(http(), Nobody()) is None
    assert len(logged) == 1


def test_page__there_is_none_where_none_is_wanted_or_can_be(logged):
    assert add_page(SimpleNamespace(), Nobody()) is None
    bare = http()
    bare.http_application.applications.pop()
    assert add_page(bare, Nobody()) is None, "no dashboard, such as with --no-dashboard"
    with dask.config.set({"largek.observe.dashboard": False}):
        assert add_page(http(), Nobody()) is None
    assert logged == []
