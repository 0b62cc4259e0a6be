"""The plugin on a scheduler that is only made up: what it answers, and how it ends."""

import asyncio
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from largek_dask.errors import OutputError, ParameterError
from largek_dask.service.plugin import TARGET, JobsPlugin


@asynccontextmanager
async def running(folder):
    """A plugin that has been started."""
    plugin = JobsPlugin(str(folder))
    usual = {TARGET: lambda target_duration=None: 1}
    await plugin.start(SimpleNamespace(address="tcp://127.0.0.1:1", handlers=usual))
    try:
        yield plugin
    finally:
        await plugin.before_close()


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
    def fail(operation, arguments):
        raise error

    async def asked():
        async with running(tmp_path) as plugin:
            monkeypatch.setattr(plugin, "_do", fail)
            return await plugin._answer("records", "{}")

    told = asyncio.run(asked())
    assert str(error) in str(told), "the client is told in any case"
    failures = [line for line in logged if line.startswith("largek records failed:")]
    assert len(failures) == is_logged
    assert all("    Traceback" in line and str(error) in line for line in failures)


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
