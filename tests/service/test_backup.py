"""A store that is copied while nothing runs; schedulers whose clocks differ."""

from __future__ import annotations

import shutil
import time
from datetime import datetime, timedelta
from types import SimpleNamespace

import dask
import pytest

from largek_dask.driver import events
from largek_dask.driver.storage import Folder
from largek_dask.errors import OtherSchedulerError
from largek_dask.model import load_model
from largek_dask.service import job_state, queue, runner
from largek_dask.service import jobs as jobs_module
from tests.service.conftest import begun, wait_until
from tests.service.test_jobs import expected


def patient():
    """Nobody is waited for: whatever is waited for longer than this test lasts ends it."""
    return dask.config.set({"largek.service.patience-seconds": 3600.0})


def test_restored__store_and_outputs_are_all_there_is(
    open_jobs, document, slow_steps, rows_url, tmp_path
):
    """What deploy/README.md says of a back-up: a finished job, a queued one, one that ran."""
    slow_steps.set()
    jobs = open_jobs()
    ended = jobs.submit(document("ended", max_iter=3), {}, "me")
    digest = wait_until(jobs, ended, "finished")["result"]["digest"]
    slow_steps.clear()
    ran = jobs.submit(document("ran"), {}, "me")
    begun(jobs, ran, 2)
    with dask.config.set({"largek.service.concurrent-jobs": 1}):
        queued = jobs.submit(document("queued"), {}, "me")
        assert jobs.status(queued)["state"] == "queued"
        assert jobs.close(120.0) == []
    names = ("store", "ended", "ran", "queued")
    for name in names:
        shutil.copytree(tmp_path / name, tmp_path / "backup" / name)
        shutil.rmtree(tmp_path / name)
    slow_steps.set()
    for name in names[1:]:
        shutil.copytree(tmp_path / "backup" / name, tmp_path / name)
    with patient():
        # Outputs have to be where they were; the store may be anywhere.
        later = open_jobs(store=str(tmp_path / "backup" / "store"))
        assert wait_until(later, ended, "finished")["result"]["digest"] == digest
        for job_id in (ran, queued):
            assert wait_until(later, job_id, "finished")["result"]["digest"] == expected(rows_url)
    assert load_model(str(tmp_path / "ended" / "model.zarr")).digest() == digest
    assert {status["id"] for status in later.listed()} == {ended, ran, queued}
    started = [event for event in later.events(ran, 0, 1000) if event["event"] == "started"]
    assert started[-1]["n_iter"] >= 2, "it went on from its checkpoint"


@pytest.fixture
def ahead(monkeypatch):
    """Clock time of schedulers that is ahead by so many seconds; timers are as they are."""
    seconds = [0.0]

    class Wall(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(seconds=seconds[0])

    told = SimpleNamespace(**{**vars(time), "time": lambda: time.time() + seconds[0]})
    for module in (jobs_module, job_state, queue, runner):
        monkeypatch.setattr(module, "time", told)
    for module in (events, runner, job_state):
        monkeypatch.setattr(module, "datetime", Wall)
    return seconds


def test_clocks_ten_minutes_apart(open_jobs, document, slow_steps, rows_url, ahead, tmp_path):
    """The store and a job go from a scheduler to one that is ten minutes behind: nothing is lost,
    taken too early or removed too late."""
    slow_steps.set()
    ahead[0] = 600.0
    first = open_jobs()
    ended = first.submit(document("ended", max_iter=1), {}, "me")
    ended_at = wait_until(first, ended, "finished")["ended"]
    assert datetime.fromisoformat(ended_at).timestamp() > time.time() + 500
    slow_steps.clear()
    runs = first.submit(document("runs"), {}, "me")
    begun(first, runs, 2)
    with patient():
        ahead[0] = 0.0
        second = open_jobs()
        with pytest.raises(OtherSchedulerError, match="scheduler-0"):
            second.wait_until_ready()
        assert first.close(120.0) == []
        slow_steps.set()
        with second.changed:
            assert second.changed.wait_for(second.loaded.is_set, 60.0)
        status = wait_until(second, runs, "finished")
    assert status["result"]["digest"] == expected(rows_url)
    assert {row["id"] for row in second.listed(["finished"])} == {ended, runs}

    def old(seconds):
        return {row["id"] for row in second.listed(older_than=-seconds)}

    assert old(1.0) == {runs}, "the other ends in the future"
    assert old(700.0) == {ended, runs}
    assert Folder(str(tmp_path / "ended")).exists("model.zarr")
