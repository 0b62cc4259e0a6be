from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from largek_dask.algorithms.base import Info
from largek_dask.driver.events import (
    Events,
    JsonLines,
    ProgressLine,
    estimate_seconds_left,
    logger,
    open_sinks,
)
from largek_dask.driver.stopping import StopRules, record_of
from largek_dask.driver.storage import Folder
from largek_dask.errors import OutputError, RecoveryWarning


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
    assert len(folder.read("events.jsonl").splitlines()) == 2
    assert JsonLines.read(folder) == [
        {"event": "step", "cost": None, "seconds": {"total": None}, "list": [1, 2.5]},
        {"event": "warning", "message": 'a\n{"event": "stopped"}\r\u2028b'},
    ]


def test_a_later_run_goes_on_after_a_cut_line(folder: Folder) -> None:
    folder.publish("events.jsonl", b'{"event": "started"}\n{"event": "st')
    sink = JsonLines(folder)
    sink({"event": "stopped"})
    sink.close()
    assert [event["event"] for event in JsonLines.read(folder)] == ["started", "stopped"]


def test_local_lines_are_there_at_once(tmp_path: Path) -> None:
    sink = JsonLines(Folder(str(tmp_path)))
    sink({"event": "started"})
    assert json.loads((tmp_path / "events.jsonl").read_text()) == {"event": "started"}
    sink.close()


def test_object_stores_are_written_at_intervals() -> None:
    folder = Folder("memory://intervals")
    sink = JsonLines(folder, every=1e9)
    sink({"event": "started"})
    assert JsonLines.read(folder) == []
    sink.close()
    assert len(JsonLines.read(folder)) == 1
    eager = JsonLines(folder, every=0)
    eager({"event": "stopped"})
    assert len(JsonLines.read(folder)) == 2


def test_a_log_that_cannot_be_written_is_found_before_computing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        open_sinks([str(tmp_path / "file" / "events.jsonl")], None)


def test_sinks_are_opened_from_urls_and_callables(tmp_path: Path) -> None:
    heard: list[Any] = []
    sinks = open_sinks([heard.append, str(tmp_path / "my.jsonl")], Folder(str(tmp_path / "job")))
    events = Events(sinks)
    events.emit("started")
    events.close()
    assert heard[0]["event"] == "started"
    assert (tmp_path / "my.jsonl").read_text() == (tmp_path / "job/events.jsonl").read_text()


def test_a_sink_that_fails_is_dropped_and_the_others_hear_on() -> None:
    heard: list[Any] = []

    def broken(event: Any) -> None:
        raise OSError("disk full")

    events = Events([broken, heard.append])
    with pytest.warns(RecoveryWarning, match="disk full"):
        events.emit("started")
    events.within(start=1).emit("stopped")
    assert [(e["event"], e.get("start")) for e in heard] == [("started", None), ("stopped", 1)]


def test_what_nobody_would_hear_goes_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    # not caplog: a cluster of another test may have silenced the handlers of the root logger
    monkeypatch.setattr(logger, "warning", logged.append)
    Events().emit("warning", topic="waiting", message="the cluster has no workers")
    Events().emit("started")
    Events([lambda event: None]).emit("warning", topic="waiting", message="heard elsewhere")
    assert logged == ["the cluster has no workers"]


# --- time left


def history(changed: list[int | None], shift: list[float] | None = None) -> Any:
    shifts = shift or [None] * len(changed)  # type: ignore[list-item]
    return [
        record_of(i + 1, Info(1.0, 10, c, s), 2.0 * (i + 1))
        for i, (c, s) in enumerate(zip(changed, shifts, strict=True))
    ]


def test_nothing_is_known_at_first() -> None:
    assert estimate_seconds_left(history([5]), StopRules(), 2.0) is None
    assert estimate_seconds_left([], StopRules(max_time=60), 2.0) == 58.0


def test_time_left_by_max_iter() -> None:
    assert estimate_seconds_left(history([None] * 4), StopRules(max_iter=10), 8.0) == 12.0


def test_time_left_by_the_trend_of_changed_rows() -> None:
    # Halved every step, 2 s a step: 64 rows fall below half a row after 7 more steps.
    left = estimate_seconds_left(history([512, 256, 128, 64]), StopRules(), 8.0)
    assert left == pytest.approx(14.0)


def test_time_left_by_tol() -> None:
    records = history([None] * 3, [1e-1, 1e-2, 1e-3])
    assert estimate_seconds_left(records, StopRules(tol=1e-5), 6.0) == pytest.approx(4.0)
    assert estimate_seconds_left(records, StopRules(10, tol=0), 6.0) == pytest.approx(14.0)


def test_time_left_by_max_time() -> None:
    assert estimate_seconds_left(history([512, 256, 128]), StopRules(max_time=7), 6.0) == 1.0


def test_no_trend_in_what_does_not_fall() -> None:
    assert estimate_seconds_left(history([5, 6, 7]), StopRules(max_iter=13), 6.0) == 20.0
    assert estimate_seconds_left(history([5, 2, 0]), StopRules(max_iter=13), 6.0) == 20.0


# --- the line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def step(n: int) -> dict[str, Any]:
    return {
        "event": "step",
        "step": n,
        "cost": 1234.5678,
        "n_changed": 4321,
        "rows_per_second": 2.5e6,
        "eta_s": 75.4,
    }


STOPPED = {"event": "stopped", "reason": "tol", "n_iter": 3, "elapsed": 3.21, "cost": 1.0}


def test_a_plain_stream_gets_few_lines_and_the_last() -> None:
    out, now = io.StringIO(), [0.0]
    line = ProgressLine(out, clock=lambda: now[0])
    for n in range(1, 5):
        line(step(n))
        now[0] += 4
    line(STOPPED)
    assert out.getvalue().splitlines() == [
        "step 1, cost 1234.57, 4,321 rows changed, 2.5M rows/s, at most 1 min 15 s left",
        "step 4, cost 1234.57, 4,321 rows changed, 2.5M rows/s, at most 1 min 15 s left",
        "stopped: tol after 3 steps, 3.2 s",
    ]


def test_a_terminal_has_one_line_rewritten() -> None:
    out, now = Terminal(), [0.0]
    line = ProgressLine(out, clock=lambda: now[0])
    line(step(1))
    line(step(2))  # too soon to be shown
    now[0] = 0.2
    line({**step(3), "cost": None, "n_changed": None, "eta_s": None})
    line(STOPPED)
    text = out.getvalue()
    assert "step 2" not in text
    assert text.count("\r") == 2
    assert text.endswith("\rstep 3, 2.5M rows/s\x1b[K\nstopped: tol after 3 steps, 3.2 s\n")


def test_a_warning_cannot_forge_lines_or_steer_the_terminal() -> None:
    out = Terminal()
    ProgressLine(out)({"event": "warning", "message": "a\nstopped: tol\x1b[2J"})
    assert out.getvalue() == "warning: a stopped: tol [2J\n"


@pytest.mark.parametrize(
    ("rate", "seconds", "text"),
    [
        (12.0, 7300.0, "12 rows/s, at most 2 h 01 min left"),
        (3.2e9, 0.04, "3.2G rows/s, at most 0.04 s left"),
        (1500.0, 60.0, "1.5k rows/s, at most 1 min 00 s left"),
    ],
)
def test_numbers_are_short(rate: float, seconds: float, text: str) -> None:
    out = io.StringIO()
    ProgressLine(out)({**step(1), "rows_per_second": rate, "eta_s": seconds})
    assert out.getvalue().strip().endswith(text)
