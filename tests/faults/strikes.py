"""One fault done to one job, and what became of it."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import largek_dask as lk
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.storage import Folder
from tests.faults.cases import Case
from tests.faults.catalogue import Fault
from tests.faults.moments import Moment
from tests.faults.rig import Rig

MOST_SECONDS = 90.0
COUNTED_BY_VISITS = ("claim", "labels", "publish")
"""Before the first step and after the last one no event counts what is done again: there it shows
in that processes come to the point more often than in a clean run."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a struck job ended."""

    state: str
    same: bool
    """The model's digest, as told and as read from its folder, is that of a clean run."""
    redone: int
    """Chunks handed out again, row states rebuilt, tasks lost, runs taken up again; at the points
    of ``COUNTED_BY_VISITS`` the visits beyond those of a clean run."""
    recovery: float
    """Seconds from the strike to the next step, or to the end where no step followed."""
    seconds: float
    """Seconds from submit to end."""

    def check(self, fault: Fault) -> None:
        """Assert that nothing has been lost, and that something was at stake."""
        assert self.state == "finished"
        assert self.same
        # Behind the last write nothing is left to be lost.
        published = (fault.moment.when, fault.moment.point) == ("after", "publish")
        if fault.redoes and not published:
            assert self.redone > 0, "the fault has hit nothing"


def strike(rig: Rig, service: lk.Service, case: Case, fault: Fault, output: Path) -> Outcome:
    """Submit a job, strike it at the fault's moment, and wait for its end."""
    options = {**case.options(), "output": str(output)}
    began = time.monotonic()
    moment = fault.moment
    by_visits = moment.point in COUNTED_BY_VISITS
    usual = _clean_visits(rig, service, case, moment.point) if by_visits else 0
    visits = rig.visits(moment.point)
    first = Moment("before", "step", nth=moment.from_step) if moment.from_step else moment
    meeting = rig.meet(first)
    job = fault.submit(rig, service, options)
    try:
        if moment.from_step:
            meeting.wait()
            # Whoever waits there is let go when the order has been given.
            gate, meeting = meeting, rig.meet(moment)
            gate.release()
        pid = meeting.wait()
        struck = time.time()
        fault.inject(rig, pid)
        meeting.release()
        state = job.wait(MOST_SECONDS)
    finally:
        meeting.release()
        fault.heal(rig)
    seconds = time.monotonic() - began
    result = job.status()["result"]
    events = events_of(output)
    model = lk.load_model(str(output / "model.zarr")) if state == "finished" else None
    return Outcome(
        state=state,
        same=model is not None and model.digest() == result["digest"] == case.digest,
        redone=rig.visits(moment.point) - visits - usual if by_visits else redone(events),
        recovery=_recovery(events, struck),
        seconds=seconds,
    )


def _clean_visits(rig: Rig, service: lk.Service, case: Case, point: str) -> int:
    """How often a job that nothing happens to comes to a point."""
    known = rig.clean_visits
    if (case.name, point) not in known:
        visits = rig.visits(point)
        job = service.submit(
            **case.options(), output=str(rig.folder / f"clean {case.name} {point}")
        )
        assert job.wait(MOST_SECONDS) == "finished"
        known[case.name, point] = rig.visits(point) - visits
    return known[case.name, point]


def events_of(output: Path) -> list[dict[str, Any]]:
    """A job's events; the line that a kill has torn is left out."""
    return list(JsonLines.read(Folder(str(output))))


def redone(events: list[dict[str, Any]]) -> int:
    """What had to be done more than once, as the events tell."""
    kinds = Counter(event["event"] for event in events)
    steps = [event for event in events if event["event"] == "step"]
    again = sum(event["retries"] + event["rebuilt"] for event in steps)
    warned = sum(event.get("topic") == "retry" for event in events)
    return int(again) + warned + kinds["running"] - 1


def _recovery(events: list[dict[str, Any]], struck: float) -> float:
    """Seconds until the next step after a strike."""
    later = [
        at - struck
        for event in events
        if event["event"] in ("step", "finished")
        and (at := datetime.fromisoformat(event["time"]).timestamp()) > struck
    ]
    return min(later, default=0.0)
