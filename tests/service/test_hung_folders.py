"""A folder of one job that hangs, as on a network file system that is away: others go on."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any, ClassVar

import fsspec
import pytest

from largek_dask.service import plugin
from largek_dask.service.jobs import Jobs
from tests.helpers.memory_files import MemoryFiles
from tests.service.test_plugin import running


class HangingFileSystem(MemoryFiles):
    """``hang://``: like ``memory://``, but until :attr:`opened` no call of "hung" returns."""

    protocol = "hang"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    opened = threading.Event()
    hung = threading.Event()
    """Set once a call has been made that hangs."""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFiles._strip_protocol(path.replace("hang://", "memory://"))


def held(name: str) -> Any:
    """A method of the file system that hangs."""

    def method(self: Any, path: Any, *given: Any, **options: Any) -> Any:
        if "hung" in str(path) and not self.opened.is_set():
            self.hung.set()
            self.opened.wait()
        return getattr(MemoryFiles, name)(self, path, *given, **options)

    return method


for name in ("ls", "info", "cat_file", "pipe_file", "_open", "rm", "rm_file", "makedirs", "exists"):
    setattr(HangingFileSystem, name, held(name))
fsspec.register_implementation("hang", HangingFileSystem, clobber=True)


@pytest.fixture
def storage():
    """``storage.opened.clear()``: from now on ``hang:///hung`` answers no more."""
    HangingFileSystem.store.clear()
    HangingFileSystem.pseudo_dirs[:] = [""]
    HangingFileSystem.clear_instance_cache()
    HangingFileSystem.opened.set()
    HangingFileSystem.hung.clear()
    yield HangingFileSystem
    HangingFileSystem.opened.set()


def ids_of(jobs):
    return {row["id"] for row in jobs.listed()}


def test_answers__about_a_job_that_hangs_leave_threads_for_others(
    tmp_path, quick_leases, monkeypatch
):
    go_on, asked = threading.Event(), []
    monkeypatch.setattr(plugin, "HANGS_SECONDS", 0.0)

    def news(self, job_id):
        if job_id == "lk-hung":
            asked.append(job_id)
            go_on.wait()
        return job_id

    monkeypatch.setattr(Jobs, "news", news)

    async def ask():
        async with running(tmp_path) as made:
            hung = json.dumps({"job_id": "lk-hung"})
            waiting = [
                asyncio.ensure_future(made._answer("news", hung))
                for _ in range(plugin.MOST_OF_A_JOB)
            ]
            async with asyncio.timeout(60):
                while len(asked) < plugin.MOST_OF_A_JOB:
                    await asyncio.sleep(0)
            refused = await made._answer("news", hung)
            one = json.dumps({"job_id": "lk-1"})
            others = [await made._answer("news", one) for _ in range(50)]
            go_on.set()
            return refused, others, await asyncio.gather(*waiting), made._file_requests

    try:
        refused, others, late, left = asyncio.run(ask())
    finally:
        go_on.set()
    assert refused["error"] == "OutputError"
    assert "lk-hung has not answered" in refused["message"]
    assert {answer["answer"] for answer in others} == {'"lk-1"'}
    assert {answer["answer"] for answer in late} == {'"lk-hung"'}
    assert left == {}
