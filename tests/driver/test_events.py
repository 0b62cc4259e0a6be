from __future__ import annotations

import io
from typing import Any

import pytest

from largek_dask.driver.events import Events, ProgressLine, logger
from largek_dask.errors import RecoveryWarning


def test_the_others_hear_on_when_a_sink_fails() -> None:
    heard: list[Any] = []

    def broken(event: Any) -> None:
        raise ValueError("no such thing")

    events = Events([broken, heard.append])
    with pytest.warns(RecoveryWarning, match="no such thing"):
        events.emit("started")
    events.with_context(start=1).emit("stopped")
    assert [(e["event"], e.get("start")) for e in heard] == [("started", None), ("stopped", 1)]


class Away:
    """A sink whose storage is away for some events, and at the end."""

    def __init__(self, *away: int) -> None:
        self.away, self.n, self.heard = away, 0, list[int]()

    def __call__(self, event: Any) -> None:
        self.n += 1
        if self.n in self.away:
            raise OSError(f"a cable is loose at {self.n}")
        self.heard.append(self.n)

    def close(self) -> None:
        raise OSError("a cable is loose in the end")


def test_a_sink_whose_storage_is_away_stays() -> None:
    sink = Away(2, 3, 5)
    events = Events([sink])

    def tell() -> None:
        for _ in range(6):
            events.with_context(start=1).emit("step")
        events.close()

    with pytest.warns(RecoveryWarning) as warned:
        tell()
    assert sink.heard == [1, 4, 6]
    told = [str(warning.message).rpartition(" at ")[2].rstrip("')") for warning in warned]
    assert told[:2] == ["2", "5"], "once for as long as it lasts"
    assert "in the end" in told[2]
    assert len(told) == 3


def test_what_nobody_would_hear_goes_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    # not caplog: a cluster of another test may have silenced the handlers of the root logger
    monkeypatch.setattr(logger, "warning", logged.append)
    Events().emit("warning", topic="waiting", message="the cluster has no workers")
    Events().emit("started")
    Events([lambda event: None]).emit("warning", topic="waiting", message="heard elsewhere")
    assert logged == ["the cluster has no workers"]


# --- the line


def started(n_rows: int) -> dict[str, Any]:
    return {"event": "started", "n_rows": n_rows}


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
        "step 1, cost 1234.5678, 4,321 rows changed, 2.5M rows/s, at most 1 min 15 s left",
        "step 4, cost 1234.5678, 4,321 rows changed, 2.5M rows/s, at most 1 min 15 s left",
        "stopped: tol after 3 steps, 3.2 s",
    ]


def test_a_warning_cannot_forge_lines_or_steer_the_terminal() -> None:
    out = io.StringIO()
    ProgressLine(out)({"event": "warning", "message": "a\nstopped: tol\x1b[2J"})
    assert out.getvalue() == "warning: a stopped: tol [2J\n"
