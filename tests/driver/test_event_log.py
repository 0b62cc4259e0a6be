"""Events in parts: bounded, none lost, none written twice."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from largek_dask.driver import event_log
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.storage import Folder
from largek_dask.errors import OutputError


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "local":
        return Folder(str(tmp_path / "job"))
    return Folder(f"memory://{tmp_path.name}")


def test_lines_hold_what_was_said(folder: Folder) -> None:
    sink = JsonLines(folder)
    sink({"event": "step", "cost": math.nan, "seconds": {"total": math.inf}, "list": (1, 2.5)})
    sink({"event": "warning", "message": 'a\n{"event": "stopped"}\r\u2028b'})
    sink.close()
    assert len(folder.read("events/000001.jsonl").splitlines()) == 2
    assert list(JsonLines.read(folder)) == [
        {"event": "step", "cost": None, "seconds": {"total": None}, "list": [1, 2.5]},
        {"event": "warning", "message": 'a\n{"event": "stopped"}\r\u2028b'},
    ]


def test_a_later_run_goes_on_after_a_cut_line(folder: Folder) -> None:
    folder.publish("events/000001.jsonl", b'{"event": "started"}\n{"event": "st')
    sink = JsonLines(folder)
    sink({"event": "stopped"})
    sink.close()
    assert [event["event"] for event in JsonLines.read(folder)] == ["started", "stopped"]


def test_object_stores_are_written_at_intervals() -> None:
    folder = Folder("memory://intervals")
    sink = JsonLines(folder, every=1e9)
    sink({"event": "started"})
    assert list(JsonLines.read(folder)) == []
    sink.close()
    assert len(list(JsonLines.read(folder))) == 1
    eager = JsonLines(folder, every=0)
    eager({"event": "stopped"})
    assert len(list(JsonLines.read(folder))) == 2


def test_a_log_that_cannot_be_written_is_found_before_computing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        JsonLines(Folder(str(tmp_path / "file")))


# --- parts

N_EVENTS = 200


def event(n: int) -> dict[str, Any]:
    return {"event": "step", "step": n, "text": "x" * (n % 50)}


class Watched(Folder):
    """A folder that counts what is written to it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.written: list[tuple[str, int]] = []

    def publish(self, name: str, data: bytes, *, is_durable: bool = True) -> None:
        if is_durable:
            self.written.append((f"{self.root.rpartition('/')[2]}/{name}", len(data)))
        super().publish(name, data, is_durable=is_durable)


@pytest.mark.parametrize("every", [0.0, 1e9])
@pytest.mark.parametrize("url", ["local", "memory://parts"])
def test_parts_are_bounded_and_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, every: float
) -> None:
    monkeypatch.setattr(event_log, "PART_BYTES", 1_000)
    folder = Watched(str(tmp_path) if url == "local" else f"{url}/{tmp_path.name}-{every}")
    sink = JsonLines(folder, every=every)
    for n in range(N_EVENTS):
        sink(event(n))
    sink.close()
    names = folder.sub("events").names()
    assert names == [f"{n:06d}.jsonl" for n in range(1, len(names) + 1)]
    assert len(names) > 10
    assert all(len(folder.read(f"events/{name}")) <= 1_000 for name in names)
    assert list(JsonLines.read(folder)) == [event(n) for n in range(N_EVENTS)]
    order = [name for name, _ in folder.written if name.startswith("events/")]
    assert order == sorted(order), "no part is touched again after the next one"
    if every:
        assert len(order) <= len(names) + 1


def test_the_last_events_are_read_from_the_end(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "PART_BYTES", 1_000)
    sink = JsonLines(folder)
    for n in range(N_EVENTS):
        sink(event(n))
    sink.close()
    every = [event(n) for n in range(N_EVENTS)]
    assert list(JsonLines.read(folder)) == every
    for most in (1, 7, 20, 149, 150, 151, 190, 200, 1_000):
        assert JsonLines.last(folder, most) == every[-most:]
    read: list[str] = []
    content = Folder.read

    def counted(self: Folder, name: str, *limit: int) -> bytes:
        read.append(name)
        return content(self, name, *limit)

    monkeypatch.setattr(Folder, "read", counted)
    assert len(JsonLines.last(folder, 7)) == 7
    assert len(read) <= 2
    monkeypatch.undo()
    assert JsonLines.is_in(folder)
    assert not JsonLines.is_in(folder.sub("others"))


def test_two_writers_at_a_time_have_parts_of_their_own(tmp_path: Path) -> None:
    """One of them may have been stopped since it looked which parts there are."""
    sinks = [JsonLines(Folder(str(tmp_path))) for _ in range(2)]
    for n in range(6):
        sinks[n % 2](event(n))
    for sink in sinks:
        sink.close()
    assert len(list((tmp_path / "events").iterdir())) == 2
    assert sorted(told["step"] for told in JsonLines.read(Folder(str(tmp_path)))) == [*range(6)]


@pytest.mark.parametrize("url", ["local", "memory://away"])
def test_what_cannot_be_written_now_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(event_log, "PART_BYTES", 1_000)
    folder = Folder(str(tmp_path) if url == "local" else f"{url}/{tmp_path.name}")
    sink = JsonLines(folder, every=0)
    failed = 0

    def refuse(*_: Any) -> None:
        raise OSError("a cable is loose")

    for n in range(N_EVENTS):
        # Away for several parts, not for more than are kept.
        if n in (40, 140):
            for name in ("publish", "create"):
                monkeypatch.setattr(Folder, name, refuse)
            monkeypatch.setattr(event_log.os, "write", refuse)
        elif n in (60, 160):
            monkeypatch.undo()
            monkeypatch.setattr(event_log, "PART_BYTES", 1_000)
        try:
            sink(event(n))
        except OSError:
            failed += 1
    monkeypatch.undo()
    sink.close()
    assert failed == 40
    found = [told["step"] for told in JsonLines.read(folder)]
    assert found == list(range(N_EVENTS))
