"""Answers of the page: made once for all who ask, of all that was told, and only while they ask."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from contextlib import contextmanager
from typing import Any

import pytest

from largek_dask.errors import ClusterError
from largek_dask.observe import desk as desks
from largek_dask.observe.desk import PAGE_JOBS, Desk
from largek_dask.observe.snapshot import snapshot
from tests.helpers.checks import eventually
from tests.observe.sources import MadeUp, at, started, step


@contextmanager
def working(source: MadeUp, draws: bool = False):
    desk = Desk(source, draws)
    desk.start()
    try:
        yield desk
    finally:
        desk.close()
        desk.join(10.0)
        assert not desk.is_alive()


@pytest.fixture
def no_old_answers(monkeypatch):
    """Every question waits for an answer of its own."""
    monkeypatch.setattr(desks, "FRESH_SECONDS", -1.0)


def ask(desk: Desk, *key: str) -> tuple[int, Any]:
    found = asyncio.run(desk.answer(key))
    return found.status, json.loads(gzip.decompress(found.body))


def whole(desk: Desk, job_id: str) -> dict[str, Any]:
    """The answer when all files have been read."""
    found: list[dict[str, Any]] = []

    def is_whole() -> bool:
        status, content = ask(desk, "job", job_id)
        assert status == 200, content
        found.append(content)
        return not content["reading"]

    eventually(is_whole, "all files read")
    return found[-1]


def costs(content: dict[str, Any]) -> list[float]:
    """The line of the cost."""
    (panel,) = [panel for panel in content["panels"] if panel["kind"] == "cost"]
    (series,) = panel["series"]
    return series["y"]


# --- the list -------------------------------------------------------------------------------------


def test_list__what_runs_comes_first_then_the_newest():
    source = MadeUp()
    for job_id, state in [("a", "finished"), ("b", "queued"), ("c", "running"), ("d", "failed"),
                          ("e", "running"), ("f", "waiting")]:  # fmt: skip
        source.add(job_id, state)
    with working(source) as desk:
        status, content = ask(desk, "jobs", "", "0")
    assert status == 200
    assert [job["id"] for job in content["jobs"]] == ["e", "c", "f", "b", "d", "a"]
    assert content["states"] == {"finished": 1, "queued": 1, "running": 2, "failed": 1,
                                 "waiting": 1}  # fmt: skip


def test_list__ten_thousand_jobs_fifty_at_a_time():
    source = MadeUp()
    for i in range(10_000):
        source.add(f"lk-{i:05d}", "finished", name=f"Run {i}")
    source.add("the-one", "running", rows_per_second=2e6, workers={"w1": {}, "w2": {}})
    with working(source) as desk:
        _, first = ask(desk, "jobs", "", "0")
        _, last = ask(desk, "jobs", "", "10000")
        _, beyond = ask(desk, "jobs", "", "20000")
        _, found = ask(desk, "jobs", "RUN 99 finished", "0")
        _, nothing = ask(desk, "jobs", "no such job", "0")
    assert [len(page["jobs"]) for page in (first, last, beyond)] == [PAGE_JOBS, 1, 0]
    assert first["jobs"][0]["id"] == "the-one"
    assert first["of"] == first["found"] == 10_001
    assert (first["workers"], first["rows_per_second"]) == (2, 2_000_000)
    names = [job["name"] for job in found["jobs"]]
    assert all("Run" in name and "99" in name for name in names)
    assert "Run 9999" in names, "of its name, its id or its state, in any case of letters"
    assert nothing["found"] == 0
    assert nothing["of"] == 10_001
    assert len(json.dumps(first)) < 20_000


def test_list__names_are_cut_and_are_text():
    source = MadeUp()
    source.add("a", name="</script><b>\x1b[2J" + 10_000 * "x")
    with working(source) as desk:
        _, content = ask(desk, "jobs", "", "0")
    (job,) = content["jobs"]
    assert job["name"].startswith("</script><b> [2Jxxx")
    assert len(job["name"]) <= 400


# --- a job ----------------------------------------------------------------------------------------


def test_job__all_that_is_in_memory():
    source = MadeUp()
    source.add("a")
    source.tell("a", {"event": "queued", "time": at(0)}, started(), *map(step, range(1, 6)))
    with working(source) as desk:
        status, content = ask(desk, "job", "a")
    assert status == 200
    assert costs(content) == pytest.approx([1000.0 / n for n in range(1, 6)], rel=1e-7)
    assert ("history", "a") not in source.asked, "no file is read where memory has it all"


def test_job__what_memory_has_not_comes_from_files_and_nothing_twice(no_old_answers):
    source = MadeUp()
    source.add("a")
    source.files["a"] = [started(), *map(step, range(1, 301))]
    source.tell("a", *map(step, range(291, 311)), first=290)
    with working(source) as desk:
        content = whole(desk, "a")
        source.tell("a", step(311))
        again = whole(desk, "a")
    assert ("history", "a") in source.asked
    for found, last in ((content, 310), (again, 311)):
        (panel,) = [panel for panel in found["panels"] if panel["kind"] == "cost"]
        assert panel["series"][0]["y"][-1] == pytest.approx(1000 / last)
        assert panel["series"][0]["x"] == sorted(panel["series"][0]["x"])
    assert source.asked.count(("history", "a")) == 1


def test_job__events_that_memory_has_lost_meanwhile_are_read(no_old_answers):
    source = MadeUp()
    source.add("a")
    source.tell("a", {"event": "queued", "time": at(0)}, started(), *map(step, range(1, 4)))
    with working(source) as desk:
        first = whole(desk, "a")
        # Long after, of which memory has the last two.
        source.files["a"] = [started(), *map(step, range(1, 21))]
        source.memory["a"].clear()
        source.tell("a", step(19), step(20), first=20)
        again = whole(desk, "a")
    assert len(costs(first)) == 3
    assert costs(again) == pytest.approx([1000 / n for n in range(1, 21)])


def test_job__another_scheduler_numbers_events_anew(no_old_answers):
    source = MadeUp()
    source.add("a")
    source.tell("a", {"event": "queued", "time": at(0)}, started(), *map(step, range(1, 9)))
    with working(source) as desk:
        first = whole(desk, "a")
        source.memory["a"].clear()
        source.tell("a", *map(step, range(7, 10)))
        again = whole(desk, "a")
    assert len(costs(first)) == 8
    assert costs(again) == pytest.approx([1000 / n for n in range(1, 10)])


@pytest.mark.parametrize(
    "event",
    [
        {"event": "step"},
        step(3, cost=float("nan"), seconds=None, elapsed="soon"),
        step(3, cost=10**400, rows=[], extra={"distances": float("inf")}),
        {"event": "workers", "workers": 3},
        {"event": ["what"], "time": 7},
        {"no": "kind"},
    ],
)
def test_job__events_that_nobody_should_have_written(event, no_old_answers):
    source = MadeUp()
    source.add("a")
    source.tell("a", {"event": "queued", "time": at(0)}, started(), step(1), event, step(4, 9.0))
    with working(source) as desk:
        content = whole(desk, "a")
    assert costs(content)[0] == 1000.0
    assert costs(content)[-1] == pytest.approx(250.0)


def test_job__files_that_cannot_be_read_are_said(no_old_answers):
    source = MadeUp()
    source.add("a", "finished")
    source.history = lambda job_id: (_ for _ in ()).throw(OSError("the store is away"))
    with working(source) as desk:
        content = whole(desk, "a")
    assert "the store is away" in content["error"]


def test_job__a_store_that_does_not_answer_keeps_nobody_waiting(no_old_answers):
    source = MadeUp()
    source.add("slow", "finished")
    source.add("quick")
    source.tell("quick", {"event": "queued", "time": at(0)}, started(), step(1))
    import threading

    go_on = threading.Event()

    def history(job_id):
        assert go_on.wait(60.0)
        yield started()

    source.history = history
    with working(source) as desk:
        status, content = ask(desk, "job", "slow")
        assert (status, content["reading"]) == (200, True)
        assert costs(ask(desk, "job", "quick")[1]) == [1000.0]
        go_on.set()
        assert not whole(desk, "slow")["reading"]


def test_job__files_wait_while_somebody_waits_for_something_else():
    source = MadeUp()
    source.add("a", "finished")
    source.files["a"] = [started(), *map(step, range(1, 1_000))]
    watched = desks.Watched("a")
    # Without it that would be all of them.
    watched.update(source, 60.0, lambda: True)
    assert watched.is_reading
    first = [panel for panel in snapshot(watched.view)["panels"] if panel["kind"] == "cost"]
    assert len(first[0]["series"][0]["x"]) == desks.READ_AT_ONCE - 1
    watched.update(source, 60.0)
    assert not watched.is_reading
    desk = Desk(source)
    for waiting, urgent in (((), False), ((("job", "a"),), False), ((("what",),), True)):
        desk._waiting = {key: [] for key in waiting}
        assert desk._waits(("job", "a")) is urgent


def test_job__files_are_not_read_unasked():
    """Two threads that want Python's lock all the time would keep it from the event loop."""
    at_once = desks.READ_AT_ONCE
    read, stands = [], []

    class Source(MadeUp):
        def history(self, job_id):
            for event in super().history(job_id):
                read.append(event)
                yield event

    class Told(threading.Event):
        def wait(self, timeout=None):
            stands.append(len(read))
            return super().wait(timeout)

    source = Source()
    source.add("a", "finished")
    source.files["a"] = [step(i) for i in range(1, 5 * at_once)]
    reader = desks.Reader(source, "a", "~")
    reader._is_wanted = Told()
    reader.start()
    for pieces in (1, 2):
        # Waited for twice: for a second nothing was read.
        there = [pieces * at_once] * 2
        eventually(lambda there=there: stands[-2:] == there, "the reader stands still")
        assert len(reader.next(time.monotonic() + 60)) == at_once
    reader.close()
    reader.join(60)
    assert not reader.is_alive()


def test_job__what_somebody_is_about_to_ask_is_made():
    source = MadeUp()
    source.add("a")
    with working(source) as desk:
        assert ask(desk, "known", "a") == (200, {})
        assert ask(desk, "known", "b")[0] == 404
        assert ("job", "a") not in desk._answers
        desk.expect(("job", "a"))
        eventually(lambda: ("job", "a") in desk._answers, "it is made unasked")


def test_job__one_that_cannot_be_read_is_shown_with_its_reason(no_old_answers):
    source = MadeUp()
    source.add("a", "unreadable", note="its record cannot be read: damaged")
    with working(source) as desk:
        status, content = ask(desk, "job", "a")
    assert status == 200
    assert content["state"] == "unreadable"
    assert ("history", "a") not in source.asked


def test_job__what_memory_has_is_heard_in_turns_one_right_after_the_other(monkeypatch):
    monkeypatch.setattr(desks, "HEARD_SECONDS", 0.0)
    source = MadeUp()
    source.add("a")
    source.tell("a", {"event": "queued", "time": at(0)}, started(), *map(step, range(1, 3_500)))
    watched = desks.Watched("a")
    for heard in range(1_000, 4_000, 1_000):
        assert watched.update(source, 0.0)
        assert watched.is_reading
        assert watched._next == heard
    assert watched.update(source, 0.0)
    assert not watched.is_reading
    assert not watched.update(source, 0.0)
    with working(source) as desk:
        assert costs(whole(desk, "a"))[-1] == pytest.approx(1000 / 3_499)


# --- questions ------------------------------------------------------------------------------------


def test_answers__nothing_new_keeps_its_tag(no_old_answers):
    source = MadeUp()
    source.add("a")
    source.tell("a", {"event": "queued", "time": at(0)}, started(), step(1))
    with working(source) as desk:
        tags = [asyncio.run(desk.answer(("job", "a"))).tag for _ in range(2)]
        lists = [asyncio.run(desk.answer(("jobs", "", "0"))).tag for _ in range(2)]
        source.tell("a", step(2))
        tags.append(asyncio.run(desk.answer(("job", "a"))).tag)
    assert tags[0] == tags[1] != tags[2]
    assert lists[0] == lists[1]


def test_answers__everybody_gets_the_same_bytes_and_one_is_made():
    source = MadeUp()
    source.add("a")

    async def many(desk):
        return await asyncio.gather(*(desk.answer(("jobs", "", "0")) for _ in range(50)))

    with working(source) as desk:
        found = asyncio.run(many(desk))
    assert len({id(answer) for answer in found}) == 1
    assert source.asked.count(("jobs",)) == 1


def test_answers__nothing_is_made_when_nobody_asks_any_more(monkeypatch):
    monkeypatch.setattr(desks, "WANTED_SECONDS", 0.2)
    monkeypatch.setattr(desks, "EVERY_SECONDS", 0.02)
    source = MadeUp()
    source.add("a")
    with working(source) as desk:
        ask(desk, "jobs", "", "0")
        eventually(lambda: source.asked.count(("jobs",)) >= 3, "it is made again while wanted")
        time.sleep(0.4)
        before = len(source.asked)
        time.sleep(0.3)
        assert len(source.asked) == before


@pytest.mark.parametrize(
    ("error", "status"),
    [(ClusterError("another one has them"), 503), (OSError("away"), 503), (KeyError("x"), 500)],
)
def test_answers__what_goes_wrong_is_said_and_passes(error, status, no_old_answers, caplog):
    source = MadeUp()
    source.add("a")
    source.fails = error
    with working(source) as desk:
        assert ask(desk, "jobs", "", "0")[0] == status
        assert ask(desk, "job", "a")[0] == status
        source.fails = None
        assert ask(desk, "jobs", "", "0")[0] == 200
        assert ask(desk, "job", "a")[0] == 200


def test_answers__no_such_job_and_no_such_question():
    source = MadeUp()
    source.add("a")
    with working(source) as desk:
        assert ask(desk, "job", "b")[0] == 404
        assert ask(desk, "figure", "a", "nothing", "light", "", "")[0] == 404
        assert ask(desk, "what")[0] == 400


def test_views__of_running_jobs_are_kept_up_while_nobody_looks(monkeypatch):
    monkeypatch.setattr(desks, "CATCH_UP_SECONDS", 0.05)
    source = MadeUp()
    source.add("a")
    source.add("b", "finished")
    source.tell("a", {"event": "queued", "time": at(0)}, started(), step(1))
    with working(source) as desk:
        eventually(lambda: ("events", "a") in source.asked, "it is heard unasked")
        # What it has told is in memory no longer, and in no file.
        time.sleep(0.2)
        source.memory["a"].clear()
        source.tell("a", step(2), first=3)
        _, content = ask(desk, "job", "a")
    assert costs(content) == [1000.0, 500.0]
    assert ("events", "b") not in source.asked


def test_views__what_nobody_foresaw_ends_nothing(monkeypatch, no_old_answers):
    monkeypatch.setattr(desks, "CATCH_UP_SECONDS", 0.02)
    source = MadeUp()
    source.add("a")
    source.fails = ZeroDivisionError("divided")
    with working(source) as desk:
        eventually(lambda: source.asked.count(("jobs",)) >= 3, "it is tried again and again")
        assert ask(desk, "job", "a")[0] == 500
        source.fails = None
        assert ask(desk, "job", "a")[0] == 200


def test_views__of_jobs_that_do_not_run_are_a_few(monkeypatch):
    monkeypatch.setattr(desks, "MOST_VIEWS", 3)
    source = MadeUp()
    for i in range(8):
        source.add(f"j{i}", "finished")
    with working(source) as desk:
        for i in range(8):
            ask(desk, "job", f"j{i}")
        assert list(desk._views) == ["j5", "j6", "j7"]


def test_answers__are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(desks, "MOST_ANSWERS", 10)
    source = MadeUp()
    source.add("a")
    with working(source) as desk:
        for i in range(40):
            ask(desk, "jobs", f"search {i}", "0")
        eventually(lambda: len(desk._answers) <= 11, "old ones are forgotten")
