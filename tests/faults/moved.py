"""``python -m tests.faults.moved --n 30``: schedulers that die are followed by others elsewhere.

At random moments a scheduler is killed, frozen, or loses its way to the store, and a second one is
started on the same store at another port, with jobs that run, wait, have ended, are just submitted
and just deleted. Whoever was frozen or cut off comes back when the other one has everything.
"""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

import largek_dask as lk
from largek_dask.driver.storage import Folder
from largek_dask.errors import LargekError, OtherSchedulerError
from largek_dask.service.store import LATE, Records
from tests.faults.cases import Case
from tests.faults.drill import (
    SECONDS,
    Steps,
    Strike,
    asked,
    lasting,
    table,
    time_of,
    until,
    write_curve,
)
from tests.faults.moments import Moment
from tests.faults.rig import Rig, Scheduler
from tests.faults.strikes import events_of, redone

N_ITER = {"long": 60, "short": 3}
"""Steps of the job that runs, and of those that wait."""
BEGIN_BY = 25
"""The strike comes soon after a step before this one."""
BESIDE_SECONDS = 0.3
"""Most seconds from the begin of a submit and a delete to a strike."""
KEPT = 4
"""Jobs that have ended and are in the store before one of them is deleted."""
ONE_AT_A_TIME: dict[str, Any] = {"LARGEK__SERVICE__CONCURRENT_JOBS": 1}


# --- what happens to a scheduler ------------------------------------------------------------------


class Fate:
    """What happens to a scheduler; it is over when :meth:`back` has been called."""

    leaves_workers = False
    """Whether its workers stay with it, and have to be started anew for the next one."""

    def strike(self, rig: Rig, old: Scheduler) -> None:
        """Now."""
        raise NotImplementedError

    def check(self, old: Scheduler) -> None:
        """Assert that it is as it was struck."""
        raise NotImplementedError

    def back(self, old: Scheduler) -> None:
        """It is as it was before, if that is possible."""


class Killed(Fate):
    """SIGKILL of the scheduler."""

    def __init__(self) -> None:
        self._pid = 0

    def strike(self, rig: Rig, old: Scheduler) -> None:
        self._pid = old.pid
        old.hold()

    def check(self, old: Scheduler) -> None:
        assert not psutil.pid_exists(self._pid)


class Frozen(Fate):
    """SIGSTOP of the scheduler, and SIGCONT when the next one has its jobs."""

    leaves_workers = True

    def strike(self, rig: Rig, old: Scheduler) -> None:
        old.send(signal.SIGSTOP)

    def check(self, old: Scheduler) -> None:
        assert psutil.Process(old.pid).status() == psutil.STATUS_STOPPED

    def back(self, old: Scheduler) -> None:
        old.send(signal.SIGCONT)


class CutOff(Fate):
    """The scheduler's way to its store is gone, and comes back when the next one has its jobs.

    Its job stands still meanwhile, or it would perhaps have ended it by then.
    """

    leaves_workers = True

    def strike(self, rig: Rig, old: Scheduler) -> None:
        self._meeting = rig.meet(Moment("before", "step"))
        assert self._meeting.wait(SECONDS) == old.pid
        old.unmount()

    def check(self, old: Scheduler) -> None:
        assert not old.sees_store
        assert psutil.Process(old.pid).status() != psutil.STATUS_STOPPED

    def back(self, old: Scheduler) -> None:
        old.mount()
        self._meeting.release()


FATES: dict[str, type[Fate]] = {"killed": Killed, "frozen": Frozen, "store away": CutOff}


# --- what is to be in the store -------------------------------------------------------------------


class WrongError(AssertionError):
    """Something that must not happen, and which kind of thing it is."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


WRONG = ("lost", "doubled", "back from the dead", "other digests")


def require(well: bool, kind: str, text: str) -> None:
    """Raise if something of this kind has happened."""
    if not well:
        raise WrongError(kind, text)


class Asking(threading.Thread):
    """Asks for something while the scheduler is struck."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        super().__init__(name="asking")
        self._ask = ask
        self.answer: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Ask; without an answer nobody knows whether it was done."""
        try:
            self.answer = self._ask()
        except (LargekError, OSError, RuntimeError) as error:
            self.error = error


@dataclasses.dataclass
class Ledger:
    """All jobs that are to be there, by somebody who does not ask the scheduler."""

    folder: Path
    store: Path
    cases: dict[str, Case] = dataclasses.field(default_factory=dict)
    """What each is, by its id."""
    outputs: dict[str, Path] = dataclasses.field(default_factory=dict)
    results: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """How those ended that have."""
    removed: set[str] = dataclasses.field(default_factory=set)
    n_outputs: int = 0

    def new_output(self) -> Path:
        """A folder that nobody has had."""
        self.n_outputs += 1
        return self.folder / f"out{self.n_outputs}"

    def submit(self, service: lk.Service, case: Case) -> lk.Job:
        """A job that is there from now on."""
        output = self.new_output()
        job = service.submit(**case.options(), output=str(output))
        self.add(job.id, case, output)
        return job

    def add(self, job_id: str, case: Case, output: Path) -> None:
        """This job is to be there from now on."""
        self.cases[job_id], self.outputs[job_id] = case, output

    def remove(self, job_id: str) -> None:
        """This one is not."""
        self.removed.add(job_id)
        for known in (self.cases, self.outputs, self.results):
            known.pop(job_id, None)

    def check(self, service: lk.Service) -> None:
        """Every job once, ended as it has to, and what had ended before as it was; no other."""
        for job_id in self.cases:
            assert service.job(job_id).wait(SECONDS) == "finished", service.job(job_id).status()
        self._count([status["id"] for status in service.jobs(limit=None).rows])
        for job_id, case in self.cases.items():
            result = service.job(job_id).status()["result"]
            output = self.outputs[job_id]
            found = {result["digest"], lk.load_model(str(output / "model.zarr")).digest()}
            require(found == {case.digest}, "other digests", f"{case.name} {job_id}: {found}")
            known = self.results.setdefault(job_id, result)
            require(known == result, "doubled", f"{job_id} had ended: {known}, now {result}")
            runs = [path.name for path in (output / "results").iterdir()]
            require(runs == ["000001.json"], "doubled", f"results of {job_id}: {runs}")
            ends = [event for event in events_of(output) if event["event"] == "finished"]
            require(len(ends) <= 1, "doubled", f"ends of {job_id}: {ends}")
        # As the next scheduler is going to read them; they are written a moment after it is told.
        until(self._is_written, "the records to say what the scheduler says")

    def _is_written(self) -> bool:
        records = Records(Folder(str(self.store))).all()
        found = {record.id for record in records}
        require(found >= set(self.cases), "lost", f"records: {set(self.cases)}, {found}")
        # One of somebody who was frozen while he wrote it is still to be put away.
        told = {each.id: each.result and each.result.model_dump(mode="json") for each in records}
        return told == self.results

    def _count(self, found: list[str]) -> None:
        """Exactly the jobs that there are to be, each once."""
        wanted, extra = set(self.cases), set(found) - set(self.cases)
        require(wanted <= set(found), "lost", f"{wanted - set(found)}")
        require(not self.removed & extra, "back from the dead", f"{self.removed & extra}")
        require(not extra and len(found) == len(wanted), "doubled", f"{extra} of {found}")

    @property
    def n_late(self) -> int:
        """Records that came too late, and were put away."""
        return len(list(self.store.glob(f"{LATE}/*")))


# --- one death ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Death(Strike):
    """The death of a scheduler, after which all was well; its seconds: until a step elsewhere."""

    step: int
    """The last one of the job that ran, before it."""
    taken: float
    """Seconds until another one had the store and its jobs."""
    late: int
    """Records that came from it too late."""

    def __str__(self) -> str:
        return (
            f"{self.kind} after step {self.step} of {N_ITER['long']}: another one had the jobs "
            f"after {self.taken:.2f} s, a step elsewhere after {self.seconds:.2f} s, load "
            f"{self.load:.1f}" + (f"; records too late: {self.late}" if self.late else "")
        )


def sign_in(rig: Rig) -> dict[str, Any]:
    """What the store says of where its scheduler is."""
    found: dict[str, Any] = json.loads(Path(rig.address).read_text())
    return found


def refuses(address: str, other: str) -> bool:
    """Whether a scheduler says that the jobs are those of the other one."""
    try:
        lk.connect(address, timeout="10s").close()
    except OtherSchedulerError as error:
        return other in str(error)
    except LargekError:
        return False
    return False


def last_claim(folder: Path) -> dict[str, Any]:
    """Who has written a job, or a store, last."""
    name = max(path for path in (folder / "claims").glob("*.json"))
    return {"token": int(name.stem), **json.loads(name.read_text())}


class Doubts:
    """A submit and a delete that are under way when the scheduler is struck."""

    def __init__(self, service: lk.Service, ledger: Ledger, case: Case) -> None:
        self._ledger, self._case, self._output = ledger, case, ledger.new_output()
        # The oldest of those that have ended.
        ended = list(ledger.results)
        self._doomed = ended[0] if len(ended) >= KEPT else None
        self._submitting = Asking(
            lambda: service.submit(**case.options(), output=str(self._output))
        )
        self._deleting = Asking(lambda: self._doomed and service.job(self._doomed).delete())
        for thread in (self._submitting, self._deleting):
            thread.start()

    def settle(self, service: lk.Service) -> None:
        """What was answered holds; what was not was done once, or can be done now."""
        for thread in (self._submitting, self._deleting):
            thread.join(SECONDS)
            assert not thread.is_alive(), thread.name
        listed = {status["id"]: status["output"] for status in service.jobs(limit=None).rows}
        found = [job_id for job_id, output in listed.items() if output == str(self._output)]
        require(len(found) <= 1, "doubled", f"{found} have {self._output}")
        if self._submitting.error is None:
            told = self._submitting.answer.id
            require(found == [told], "lost", f"{told} was submitted, there is {found}")
        if not found:
            found = [service.submit(**self._case.options(), output=str(self._output)).id]
        self._ledger.add(found[0], self._case, self._output)
        if self._doomed is not None:
            if self._doomed in listed:
                was_answered = self._deleting.error is None
                require(not was_answered, "back from the dead", f"{self._doomed} was deleted")
                service.job(self._doomed).delete()
            self._ledger.remove(self._doomed)


def strike(
    rig: Rig, ledger: Ledger, kind: str, cases: dict[str, Case], rng: random.Random
) -> Death:
    """Have a scheduler die in the middle of everything, and another one come instead."""
    fate, old, n_late = FATES[kind](), rig.scheduler, ledger.n_late
    with rig.connected() as first:
        before, claimed = sign_in(rig), last_claim(rig.store)
        meeting = rig.meet(Moment("before", "step", nth=rng.randrange(2, BEGIN_BY)))
        both = [ledger.submit(first, cases[name]).id for name in ("long", "short")]
        followed = [Steps(ledger.outputs[job_id]) for job_id in both]
        assert meeting.wait(SECONDS) == old.pid
        doubts = Doubts(first, ledger, cases["short"])
        # Whoever follows it does so to its end, wherever that is.
        client, result = first.client, Asking(first.job(both[0]).result)
        result.start()
        meeting.release()
        time.sleep(rng.uniform(0.0, BESIDE_SECONDS))
        struck = time.time()
        fate.strike(rig, old)
        step, old_pid = followed[0].n_iter(), old.pid
        assert not any(each.has_ended for each in followed), "there is something left to do"
        new = rig.add_scheduler()
        until(lambda: sign_in(rig)["token"] > before["token"], "another scheduler with the store")
        taken = time.time() - struck
        fate.check(old)
        here, claim = sign_in(rig)["address"], last_claim(rig.store)
        # From the one that was struck, by another process.
        assert before["address"] in claimed["owner"], (before, claimed)
        assert here in claim["owner"], (here, claim)
        assert f"process {new.pid}," in claim["owner"], (new.pid, claim)
        assert new.pid != old_pid
        assert claim["token"] == claimed["token"] + 1, (claimed, claim)
        if fate.leaves_workers:
            for worker in rig.workers:
                worker.kill()
        with rig.connected() as service:
            seconds = until(lambda: first_step(followed, here), "a step elsewhere") - struck
            fate.check(old)
            fate.back(old)
            if old.pid:
                until(lambda: refuses(before["address"], here), "the first to see it has lost")
            doubts.settle(service)
            ledger.check(service)
            result.join(SECONDS)
            assert result.error is None, result.error
            assert first.client is not client, "it has followed"
            found = {result.answer.digest(), service.job(both[0]).model().digest()}
            require(found == {cases["long"].digest}, "other digests", f"as told: {found}")
        assert redone(events_of(ledger.outputs[both[0]])) > 0, "it was struck in the middle"
        # It has come back, and changed nothing: the jobs are the other one's to this moment.
        assert last_claim(rig.store) == claim
        for job_id in both:
            own = last_claim(ledger.outputs[job_id])
            assert here in own["owner"], (own, here)
            assert own["token"] == ledger.results[job_id]["token"], own
        old.hold()
    return Death(kind, seconds, step=step, taken=taken, late=ledger.n_late - n_late)


def first_step(followed: list[Steps], here: str) -> float:
    """When the scheduler at an address was through with a first step of any job; 0: not yet."""
    found = []
    for steps in followed:
        begun = [
            time_of(event)
            for event in steps.look()
            if event["event"] == "running" and here in event["owner"]
        ]
        found += [at for at in steps.times() if begun and at > begun[0]]
    return min(found, default=0.0)


def drill(folder: Path, n: int, seed: int = 0, first: int = 0, **of_rig: Any) -> Iterator[Death]:
    """So many deaths, each kind in turn from number ``first`` on."""
    rng = random.Random(seed + first)
    data = write_curve(folder)
    cases = {name: lasting(data, name, n_iter) for name, n_iter in N_ITER.items()}
    with Rig(folder / "rig", moves=True, **ONE_AT_A_TIME, **of_rig) as rig:
        ledger = Ledger(folder, rig.store)
        for number in range(first, first + n):
            try:
                yield strike(rig, ledger, list(FATES)[number % len(FATES)], cases, rng)
            except Exception:
                print(rig.logs(), file=sys.stderr)
                raise


def main() -> int:
    """Strike, print, and say whether all was well."""
    given = asked("tests.faults.moved", __doc__, 30)
    deaths: list[Death] = []
    wrong: list[str] = []
    counts = dict.fromkeys(WRONG, 0)
    while (number := len(deaths) + len(wrong)) < given.n:
        with tempfile.TemporaryDirectory(prefix="largek-moved-") as name:
            try:
                for death in drill(Path(name), given.n - number, given.seed, first=number):
                    print(f"{len(deaths) + len(wrong):3d} {death}", flush=True)
                    deaths.append(death)
            except Exception as error:
                # Whatever comes after it has a store of its own.
                wrong.append(f"{len(deaths) + len(wrong)} {type(error).__name__}: {error}")
                print("WRONG", wrong[-1], flush=True)
                if isinstance(error, WrongError):
                    counts[error.kind] += 1
    if deaths:
        print(table("what happens", deaths, f"python -m tests.faults.moved --n {given.n}"))
        print(f"Seconds until another one had the jobs, worst: {max(d.taken for d in deaths):.2f}")
        print(f"Records that came too late, and were put away: {sum(d.late for d in deaths)}")
    print(f"Deaths: {given.n}; not as they should be: {len(wrong)}. Records and digests: "
          + ", ".join(f"{kind} {count}" for kind, count in counts.items()))  # fmt: skip
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
