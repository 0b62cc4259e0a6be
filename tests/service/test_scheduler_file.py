"""``STORE/scheduler.json``: who writes it, what it may hold, and clients that find by it."""

from __future__ import annotations

import json
import logging
import os
import threading
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import dask
import pytest
from distributed import Client

import largek_dask as lk
from largek_dask.driver.storage import Folder
from largek_dask.errors import (
    ClusterError,
    DataError,
    OtherSchedulerError,
    ParameterError,
    SchedulerAwayError,
)
from largek_dask.service import client as client_module
from largek_dask.service import scheduler_file
from largek_dask.service.lease import STORE, Claimant
from largek_dask.service.scheduler_file import MOST_BYTES, NAME, Finder, is_file, publish_address
from largek_dask.service.store import Records
from tests.helpers.checks import eventually
from tests.helpers.commands import run
from tests.service.conftest import preloaded

NOBODY = "tcp://127.0.0.1:9"
NOON = "2026-03-01T12:03:00+00:00"


def written(folder, **changes):
    """A file that says where nobody is."""
    path = folder / NAME
    path.write_text(json.dumps({"address": NOBODY, "started": NOON, "token": 3, **changes}))
    return str(path)


# --- a scheduler writes this file ----------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    quick = {"largek.service.beat-seconds": 0.05, "largek.service.patience-seconds": 1.0}
    options = {"protocol": "tcp://", "silence_logs": logging.CRITICAL}
    with pytest.MonkeyPatch.context() as patch, dask.config.set(quick), ExitStack() as stack:
        patch.setenv("SLURM_JOB_ID", "4711")
        cluster = stack.enter_context(preloaded(tmp_path_factory.mktemp("store"), **options))
        cluster.file = os.path.join(dask.config.get("largek.store"), NAME)
        eventually(lambda: os.path.exists(cluster.file), "the file")
        yield cluster


def test_the_file_says_where_the_scheduler_is(cluster):
    with open(cluster.file, encoding="utf-8") as file:
        told = json.load(file)
    began = datetime.fromisoformat(told.pop("started"))
    assert timedelta(0) <= datetime.now(UTC) - began < timedelta(hours=1)
    assert told == {
        "format": 1,
        "type": "Scheduler",
        "address": cluster.scheduler_address,
        "dashboard": cluster.dashboard_link,
        "token": 1,
        "version": lk.__version__,
        "slurm_job": "4711",
    }
    assert os.stat(cluster.file).st_mode & 0o077 == 0, "it is for nobody else"
    # As Dask reads it, here and in `dask worker --scheduler-file`.
    with Client(scheduler_file=cluster.file, set_as_default=False) as client:
        assert client.scheduler.address == cluster.scheduler_address


class Holder:
    """A lease of a store."""

    def __init__(self, folder, owner="a"):
        lease = Claimant(Folder(str(folder)), STORE, owner, 0.0).claim()
        self.records, self.is_held = Records(Folder(str(folder))).under(lease), True

    def publish_address(self):
        publish_address(self, lambda token: {"address": NOBODY, "token": token})


def test_sign__is_put_up_again_and_only_by_who_has_the_store(tmp_path):
    first = Holder(tmp_path)
    path = tmp_path / NAME
    for before in (None, b"", b"x" * (MOST_BYTES + 1), b"that of an earlier one"):
        path.unlink(missing_ok=True)
        before is None or path.write_bytes(before)
        first.publish_address()
        assert json.loads(path.read_text())["token"] == 1
    wrote = os.stat(path).st_ino
    first.publish_address()
    assert os.stat(path).st_ino == wrote, "it was right already"
    second = Holder(tmp_path, "b")
    path.write_bytes(b"")
    first.publish_address()
    assert path.read_bytes() == b"", "the first has lost the store"
    second.publish_address()
    assert json.loads(path.read_text())["token"] == 2
    path.unlink()
    second.is_held = False
    second.publish_address()
    assert not path.exists()


# --- what it may hold -----------------------------------------------------------------------------


OTHERS = (
    b" \n",
    b"{",
    b"\xff\xfe",
    b"[" * 50_000,
    b"[1]",
    b'{"type": "Scheduler"}',
    b'{"address": 5}',
    b'{"address": "rm -rf /"}',
)


def test_find__content_of_something_else(tmp_path):
    path = tmp_path / NAME
    for content in OTHERS:
        path.write_bytes(content)
        with pytest.raises(ParameterError, match=f"{path} is not the {NAME}"):
            lk.connect(path)


def test_find__a_file_of_100_MB_is_not_read(tmp_path, monkeypatch):
    finder, reads = Finder(tmp_path / NAME), []
    read = finder._folder.fs.cat_file
    monkeypatch.setattr(
        finder._folder.fs, "cat_file", lambda path, **of: (reads.append(path), read(path, **of))[1]
    )
    for size in (1_000, 100_000_000):
        with open(tmp_path / NAME, "wb") as file:
            file.truncate(size)
        with pytest.raises(ParameterError, match=f"is not the {NAME}"):
            finder.find()
        assert len(reads) == 1


def test_find__no_file_no_permission_a_folder(tmp_path, monkeypatch):
    with pytest.raises(ClusterError, match=r"cannot be read .*a scheduler writes this file"):
        lk.connect(tmp_path / NAME)
    with pytest.raises(ClusterError, match=r"cannot be read \(IsADirectoryError"):
        lk.connect(tmp_path)
    finder = Finder(written(tmp_path))

    def refused(name, limit):
        raise PermissionError(13, "Permission denied", name)

    monkeypatch.setattr(finder._folder, "read", refused)
    with pytest.raises(ClusterError, match=r"cannot be read \(PermissionError"):
        finder.find()
    assert not finder.has_moved()
    with pytest.raises(DataError, match="secret"):
        Finder("https://host/scheduler.json?token=abc")


def test_find__a_link_is_followed_wherever_it_leads_now(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, address=f"tcp://{name}:1")
    link = tmp_path / "here.json"
    link.symlink_to(tmp_path / "old" / NAME)
    finder = Finder(str(link))
    assert finder.find() == "tcp://old:1"
    assert not finder.has_moved()
    link.unlink()
    assert not finder.has_moved(), "what it said stands"
    link.symlink_to(tmp_path / "new" / NAME)
    assert finder.has_moved()
    assert finder.find() == "tcp://new:1"


def test_is_file__and_what_is_an_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    os.rename(NAME, "here")
    files = [tmp_path, "scheduler.json", "a/b", "/a", "here", "s3://b/x", "memory://x", "~/x.json"]
    addresses = [
        "tcp://a:1",
        "tls://a:1",
        "inproc://a/1",
        "host:8786",
        "127.0.0.1:1",
        "nonsense://a",
    ]
    assert [is_file(place) for place in (*files, *addresses)] == [True] * 8 + [False] * 6
    assert Finder("here").place == str(tmp_path / "here")


# --- nobody is there ------------------------------------------------------------------------------


def test_nobody__in_the_words_of_who_asks(tmp_path):
    def said(**changes):
        finder = Finder(written(tmp_path, **changes))
        finder.find()
        return str(finder.no_answer(OSError("refused")))

    for value in (f"{tmp_path}/{NAME}", NOBODY, NOON, "(OSError: refused)"):
        assert value in said()
    assert "SLURM" not in said()
    assert "job 4711 of SLURM" in said(slurm_job="4711")


def test_connect__looks_again_until_its_time_is_over(tmp_path, monkeypatch, cluster):
    path, tried = written(tmp_path), []
    connected = scheduler_file.Client

    def attempt(address, **options):
        tried.append(address)
        if tried == [NOBODY, NOBODY]:
            os.replace(link(tmp_path, cluster.file), path)
        if address == NOBODY:
            raise OSError("refused")
        return connected(address, **options)

    monkeypatch.setattr(scheduler_file, "Client", attempt)
    with lk.connect(path, timeout="60s") as service:
        assert service.client.scheduler.address == cluster.scheduler_address
    assert tried == [NOBODY, NOBODY, cluster.scheduler_address]
    os.remove(path)
    written(tmp_path)
    tried[:] = ["again"]
    with pytest.raises(SchedulerAwayError, match="does not answer"):
        lk.connect(path, timeout=0.3)
    assert len(tried) >= 3


def link(folder, target):
    """A link beside the file, to be put in its place."""
    path = folder / "link"
    path.symlink_to(target)
    return path


# --- a client that follows ------------------------------------------------------------------------


@pytest.fixture
def moved(tmp_path, cluster, monkeypatch):
    """A service by a file of its own, and a function that has it name somebody else."""
    path = tmp_path / NAME
    path.symlink_to(cluster.file)
    monkeypatch.setattr(client_module, "PAUSE_SECONDS", 0.01)
    with lk.connect(path, away="60s") as service:
        yield service, path


def test_follow__a_scheduler_that_has_lost_its_store(moved, cluster, monkeypatch, tmp_path):
    """It answers that the jobs are another's; when the file says where, that one is asked."""
    service, path = moved
    answer, made = service._answer, []
    other = OtherSchedulerError("the jobs are those of another")

    def refuse(operation, arguments, seconds):
        if not made:
            # A moment later the file says where the other one is (which is this one, in truth).
            os.replace(link(tmp_path, target), path)
            made.append(service.client)
            return {"error": type(other).__name__, "message": str(other)}
        return answer(operation, arguments, seconds)

    target = tmp_path / "other.json"
    with open(cluster.file, encoding="utf-8") as file:
        target.write_text(json.dumps({**json.load(file), "token": 5}))
    monkeypatch.setattr(service, "_answer", refuse)
    assert service.ask_with_retry("hello")["version"] == lk.__version__
    assert service.client is not made[0], "it has connected anew"
    assert made[0].status == "closed"


def test_follow__a_refusal_is_told_in_the_end(moved, monkeypatch):
    service, _ = moved
    message = "the jobs in /x are those of b: connect to that scheduler"
    monkeypatch.setattr(
        service, "_answer", lambda *_: {"error": "OtherSchedulerError", "message": message}
    )
    monkeypatch.setattr(service, "_away_seconds", 0.0)
    with pytest.raises(SchedulerAwayError, match=message):
        service.ask_with_retry("hello")
    monkeypatch.setattr(service._finder, "is_file", False)
    with pytest.raises(OtherSchedulerError, match=message):
        service.ask_with_retry("hello")


def test_follow__one_that_does_not_answer_at_all(moved, cluster, monkeypatch):
    """As a process does that is stopped: the connection stands, and nothing comes."""
    service, _ = moved
    monkeypatch.setattr(client_module, "SILENT_SECONDS", 0.1)
    plugin = cluster.scheduler.plugins["largek-jobs"]
    do, go_on, asked = plugin._do, threading.Event(), []

    def silent(operation, arguments):
        asked.append(operation)
        go_on.wait(60.0 if len(asked) <= 2 else 0.0)
        return do(operation, arguments)

    monkeypatch.setattr(plugin, "_do", silent)
    try:
        assert service.ask_with_retry("hello")["version"] == lk.__version__
    finally:
        go_on.set()
    assert len(asked) == 3


# --- from the shell -------------------------------------------------------------------------------


def test_commands_take_the_file(cluster, rows_url, tmp_path):
    out, file = str(tmp_path / "run"), cluster.file
    done = run("submit", rows_url, "-k", 3, "--out", out, "--scheduler", file, "--wait", "--json")
    job_id = json.loads(done.stdout)["id"]
    for command in (["result", job_id], ["doctor"],
                    ["fit", rows_url, "-k", 3, "--out", tmp_path / "fit"]):  # fmt: skip
        told = run(*command, "--scheduler", file, "--json").stdout
        assert told, command


def test_watch__has_an_exit_code_for_a_job_that_is_out_of_sight(cluster, tmp_path, monkeypatch):
    with lk.connect(cluster.file) as service:
        assert run("watch", "lk-none", "--scheduler", cluster.file, code=1)

    def lost(self, operation, arguments, seconds):
        if operation == "hello":
            return {"answer": json.dumps({"store": "", "version": lk.__version__})}
        raise OSError("the connection was lost")

    monkeypatch.setattr(type(service), "_answer", lost)
    done = run("watch", "lk-1", "--scheduler", cluster.file, "--away", "0s", code=4)
    assert "job 4711 of SLURM" in done.stderr
    assert run("watch", "lk-1", "--scheduler", cluster.file, "--away", "long", code=1)
    done = run("watch", "lk-1", "--scheduler", tmp_path / NAME, code=1)
    assert "cannot be read" in done.stderr
