"""``largek serve``: where it listens, and what it says of folders that it cannot show."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from tornado.httpclient import AsyncHTTPClient

import largek_dask as lk
from largek_dask.cli import main
from largek_dask.cli import serve as module
from largek_dask.driver.event_log import JsonLines, Tail
from largek_dask.driver.storage import Folder
from largek_dask.errors import JobNotFoundError, ParameterError
from largek_dask.service import folders
from largek_dask.service.folders import Folders
from largek_dask.service.spec import JobSpec
from largek_dask.service.store import Records, Result
from tests.helpers.checks import eventually
from tests.observe.sources import started, step


@pytest.fixture
def taken():
    """A port that somebody listens to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


class Server:
    """Takes sockets, and closes them."""

    def add_sockets(self, sockets):
        for held in sockets:
            held.close()


def test_listen__on_the_next_port_that_is_free(taken):
    assert taken < module.listen(Server(), "127.0.0.1", taken) < taken + module.MOST_PORTS


def test_listen__nowhere(taken, monkeypatch):
    monkeypatch.setattr(module, "MOST_PORTS", 1)
    with pytest.raises(ParameterError, match=rf"ports {taken} to {taken} .* are in use: give"):
        module.listen(Server(), "127.0.0.1", taken)
    with pytest.raises(ParameterError, match=r"cannot listen on 203\.0\.113\.1, port"):
        module.listen(Server(), "203.0.113.1", 0)


def test_serve__says_where_and_that_a_port_was_in_use(taken, tmp_path, monkeypatch):
    async def over():
        raise KeyboardInterrupt

    monkeypatch.setattr(module.asyncio, "Event", lambda: SimpleNamespace(wait=over))
    plain = CliRunner().invoke(main, ["serve", str(tmp_path), "--port", str(taken)])
    assert plain.exit_code == 0
    assert f"(port {taken} is in use); Ctrl-C ends it." in plain.output
    found = CliRunner().invoke(main, ["serve", str(tmp_path), "--port", "0", "--json"])
    told = json.loads(found.output)
    assert told["url"] == f"http://127.0.0.1:{told['port']}/largek"


def test_serve__answers_under_the_name_it_is_bound_to_and_no_foreign_one(tmp_path, monkeypatch):
    bound = []
    listen = module.listen

    def on_loopback(server, host, port):
        assert host == "big-machine"
        bound.append(listen(server, "127.0.0.1", 0))
        return bound[0]

    monkeypatch.setattr(module, "listen", on_loopback)

    async def asked():
        source = Folders([str(tmp_path)])
        serving = asyncio.ensure_future(module._serve(source, "big-machine", 0, True))
        while not bound:
            await asyncio.sleep(0)
        found = [
            await AsyncHTTPClient().fetch(
                f"http://127.0.0.1:{bound[0]}/{path}",
                headers={"Host": host},
                follow_redirects=False,
                raise_error=False,
            )
            for path in ("", "largek", "largek/data/jobs.json")
            for host in ("big-machine:8799", "evil.example")
        ]
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        source.close()
        return found

    root, *others = asyncio.run(asked())
    assert (root.code, root.headers["Location"]) == (302, "largek")
    assert [each.code for each in others] == [403, 200, 403, 200, 403]


def test_serve__wants_a_folder():
    assert CliRunner().invoke(main, ["serve"]).exit_code == 2


# --- folders --------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path, monkeypatch):
    """``source(*urls)``: closed at the end; it looks often."""
    monkeypatch.setattr(folders, "LOCAL_SECONDS", 0.02)
    monkeypatch.setattr(folders, "REMOTE_SECONDS", 0.02)
    opened = []

    def make(*urls):
        opened.append(Folders(urls))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def write(url, *events):
    sink = JsonLines(Folder(url))
    for event in events:
        sink(event)
    sink.close()


@pytest.mark.parametrize("place", ["local", "memory"])
def test_folders__what_is_added_is_known(place, tmp_path, source):
    url = str(tmp_path / "run") if place == "local" else f"memory://serve/{tmp_path.name}/run"
    found = source(url)
    assert found.jobs() == []
    assert "cannot be read since" in found.trouble()[0]
    write(url, started(), step(1))
    eventually(lambda: [job["state"] for job in found.jobs()] == ["running"], "it is found")
    assert found.trouble() == []
    write(url, step(2), {"event": "stopped", "reason": "tol", "n_iter": 2, "cost": 1.0,
                         "elapsed": 2.0})  # fmt: skip
    eventually(lambda: found.status("run")["state"] == "finished", "it has ended")
    status = found.status("run")
    assert (status["step"], status["cost"], status["n_events"]) == (2, 500.0, 4)
    assert [event["event"] for event in found.events("run", 1, 2)] == ["step", "step"]
    assert [event["event"] for event in found.history("run")][-1] == "stopped"
    # Another fit goes on there.
    write(url, started(9.0), step(3))
    eventually(lambda: found.status("run")["state"] == "running", "it goes on")


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "started", "n_chunks": 1e999, "n_rows": NaN}',
        '{"event": "started"}',
        '{"event": "step", "cost": ' + "[" * 600 + "]" * 600 + "}",
        '{"event": "step", "seconds": {"compute": 1e999, "read": "a"}}',
        '{"event": ["a kind"], "format": 99}',
        '{"event": "a newer kind", "format": 99, "n_chunks": {}}',
        '{"event": "st',
        "nonsense",
    ],
    ids=["infinite", "missing", "nested", "seconds", "list", "newer", "cut", "nonsense"],
)
def test_folders__an_odd_line_keeps_nothing_after_it_from_being_seen(line, tmp_path):
    (tmp_path / "events").mkdir()
    file = tmp_path / "events" / "000001.jsonl"
    good = json.dumps({"event": "stopped", "reason": "tol", "n_iter": 1, "elapsed": 1.0})
    file.write_text(f"{json.dumps(started())}\n{line}\n{json.dumps(step(1))}\n{good}\n")
    # Called here, not in the thread that looks: an error would end that without a word.
    root = folders.Root(Folder(str(tmp_path)), "run")
    root.look()
    status = root.jobs["run"].status()
    assert (status["state"], status["step"]) == ("finished", 1)
    json.dumps(status, allow_nan=False)


def test_folders__names_are_told_apart(tmp_path, source):
    urls = [str(tmp_path / outer / "a run") for outer in ("x", "y")]
    for url in urls:
        write(url, started(), step(1))
    found = source(*urls)
    eventually(lambda: len(found.jobs()) == 2, "both are found")
    assert {job["id"] for job in found.jobs()} == {"a-run", "a-run-2"}


def test_folders__a_store_that_does_not_answer_says_since_when(tmp_path, source, monkeypatch):
    write(str(tmp_path / "run"), started(), step(1))
    found = source(str(tmp_path / "run"))
    eventually(lambda: len(found.jobs()) == 1, "it is found")
    monkeypatch.setattr(Folder, "_listed", lambda self: (_ for _ in ()).throw(OSError("away")))
    # The folder and the job in it are looked into one after the other.
    eventually(lambda: found.trouble() and found.status("run").get("note"), "it is away")
    told = found.trouble()
    assert "cannot be read since" in told[0]
    assert "away" in told[0]
    assert "away" in found.status("run")["note"]
    assert found.status("run")["step"] == 1, "what is known is shown"
    assert found.trouble() == told, "since the first time"
    monkeypatch.undo()
    eventually(lambda: not found.trouble() and not found.status("run").get("note"), "it is back")


def test_folders__nothing_leads_out_and_nothing_is_done(tmp_path, source):
    write(str(tmp_path / "run"), started())
    found = source(str(tmp_path / "run"))
    for name in ("..", "../run", "", "x" * 500):
        with pytest.raises(JobNotFoundError):
            found.status(name)
    with pytest.raises(ParameterError, match="by its scheduler only"):
        found.cancel("run", "somebody")


def test_folders__a_fit_and_what_it_is_of(tmp_path, source):
    import numpy as np

    x = np.random.default_rng(0).standard_normal((400, 3)).astype(np.float32)
    lk.KMeans(4, algorithm=lk.Lloyd(), random_state=0, checkpoint=str(tmp_path / "fit")).fit(x)
    found = source(str(tmp_path / "fit"))
    eventually(lambda: found.jobs() and found.jobs()[0]["state"] == "finished", "it is found")
    status = found.status("fit")
    assert (status["n_clusters"], status["algorithm"]) == (4, "Lloyd")
    assert status["data"] == "rows in memory"


@pytest.fixture
def jobs(tmp_path):
    """Ids of two jobs of a store, the first of which ends; their folders are one and two."""
    records = Records(Folder(str(tmp_path / "store")))
    found = []
    for name in ("one", "two"):
        output = str(tmp_path / name)
        spec = JobSpec.parse({"data": "/x.zarr", "output": output, "n_clusters": 3})
        found.append(records.create(spec, "me", float(len(found))))
        write(output, started(), step(1), *([step(2)] if name == "two" else []))
    ended = Result(job=found[0].id, run=1, token=1, state="finished")
    records.update(replace(found[0], result=ended))
    return [record.id for record in found]


def states(found):
    return {job["id"]: job["state"] for job in found.jobs()}


def test_folders__what_nobody_foresaw_is_said_once_and_the_rest_goes_on(
    jobs, tmp_path, source, monkeypatch, caplog
):
    """A storage driver has errors of its own: neither a thread nor another job ends by them."""
    bad, good = jobs
    usual, fails = Tail.new, [True]

    def broken(tail):
        if fails and tail._folder.url.endswith("one"):
            raise EOFError("of a driver")
        return usual(tail)

    monkeypatch.setattr(Tail, "new", broken)
    found = source(str(tmp_path / "store"))
    eventually(lambda: "EOFError" in found.status(bad).get("note", ""), "it is said")
    write(str(tmp_path / "two"), step(3))
    eventually(lambda: found.status(good)["step"] == 3, "the other one is followed")
    told = [record.getMessage() for record in caplog.records]
    assert len([text for text in told if "nobody foresaw why" in text]) == 1
    assert "test_serve.py" in told[0], "where it came from"
    fails.clear()
    eventually(lambda: not found.status(bad)["note"], "it can be read again")
    assert found.status(bad)["step"] == 1
    # And where even the list of what is there cannot be had.
    monkeypatch.setattr(Records, "found", lambda self: (_ for _ in ()).throw(EOFError("odd")))
    eventually(lambda: found.trouble(), "that is said as well")
    assert "EOFError: odd" in found.trouble()[0]
    (root,) = found._roots
    assert root.is_alive()
    monkeypatch.undo()
    eventually(lambda: not found.trouble(), "it is over")


def test_folders__a_look_that_fails_as_a_whole_is_not_the_last(tmp_path, source, monkeypatch):
    write(str(tmp_path / "run"), started(), step(1))
    usual, fails = folders.Root.look, [True]

    def look(root):
        if fails:
            raise EOFError("odd")
        usual(root)

    monkeypatch.setattr(folders.Root, "look", look)
    found = source(str(tmp_path / "run"))
    assert found.jobs() == []
    assert "EOFError: odd" in found.trouble()[0]
    fails.clear()
    eventually(lambda: len(found.jobs()) == 1, "it is looked into again")
    assert found.trouble() == []


def test_folders__a_record_of_a_newer_version_is_shown_as_one_that_cannot_be_read(
    jobs, tmp_path, source, caplog
):
    newer, other = jobs
    file = tmp_path / "store" / "jobs" / f"{newer}.json"
    known = json.loads(file.read_text())
    file.write_text(json.dumps({**known, "format": 2, "more": []}))
    # Here, where warnings are errors: of what is looked at again and again none is right.
    root = folders.Root(Folder(str(tmp_path / "store")), "store")
    for _ in range(3):
        root.look()
    assert set(root.jobs) == {other}
    found = source(str(tmp_path / "store"))
    eventually(lambda: states(found) == {other: "queued", newer: "unreadable"}, "both are listed")
    note = found.status(newer)["note"]
    assert re.search(r"in format 2, and largek_dask \S+ reads format 1: install", note)
    assert found.trouble() == []
    assert caplog.records == []
    # As the service writes: nobody ever sees half of a record.
    again = file.with_suffix(".part")
    again.write_text(json.dumps(known))
    again.replace(file)
    eventually(lambda: states(found)[newer] == "finished", "it can be read again")


def test_folders__of_a_job_that_is_deleted_the_page_keeps_what_it_knows(jobs, tmp_path, source):
    gone, other = jobs
    found = source(str(tmp_path / "store"))
    eventually(lambda: found.status(gone).get("step") == 1, "it is shown")
    shutil.rmtree(tmp_path / "one")
    note = eventually(lambda: found.status(gone).get("note"), "it says so")
    assert re.search(r"one cannot be read since .*: its events are gone", note)
    assert (found.status(gone)["state"], found.status(gone)["step"]) == ("finished", 1)
    write(str(tmp_path / "two"), step(3))
    eventually(lambda: found.status(other)["step"] == 3, "the other one is followed")
    # Its record as well: then there is no such job.
    (tmp_path / "store" / "jobs" / f"{gone}.json").unlink()
    eventually(lambda: states(found) == {other: "queued"}, "it is no longer listed")
    with pytest.raises(JobNotFoundError):
        found.status(gone)
    shutil.rmtree(tmp_path / "store")
    eventually(found.trouble, "the records are gone")
    assert "its records of jobs are gone" in found.trouble()[0]
    assert states(found) == {other: "queued"}, "what is known is shown"


def test_tail__broken_lines_parts_and_earlier_versions(tmp_path):
    tail = Tail(Folder(str(tmp_path)))
    with pytest.raises(FileNotFoundError):
        list(tail.new())
    (tmp_path / "events.jsonl").write_text('{"event": "a"}\n{"event": "b"')
    assert [event["event"] for event in tail.new()] == ["a"]
    with open(tmp_path / "events.jsonl", "a") as file:
        file.write('}\nnonsense\n[1]\n{"event": "c"}\n')
    assert [event["event"] for event in tail.new()] == ["b", "c"]
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "000001.jsonl").write_text('{"event": "d"}\n{"cut')
    (tmp_path / "events" / "000003.jsonl").write_text('{"event": "e"}\n')
    assert [event["event"] for event in tail.new()] == ["d", "e"]
    assert list(tail.new()) == []
