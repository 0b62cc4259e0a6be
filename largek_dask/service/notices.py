"""Notices of jobs: that one has ended, waits, stands still, or was taken over.

A notice is noted in its job's record before it is sent and until it is delivered or given up, so
that the next scheduler goes on with it: whoever gets one may get it twice, with the same id. Who
looks at jobs is one thread, and each target has another with a bounded queue: no job waits for any
of it, and no target for another.
"""

from __future__ import annotations

import logging
import math
import queue
import statistics
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from largek_dask import config
from largek_dask.driver.events import Event
from largek_dask.driver.stopping import ENDS
from largek_dask.driver.words import human_seconds
from largek_dask.errors import ParameterError
from largek_dask.redaction import Redactor, hide_in_logs
from largek_dask.service.known import KnownJob
from largek_dask.service.notice import MOST_TEXT, Kind, Notice, body_of, shortened
from largek_dask.service.register import Register
from largek_dask.service.store import Record, Result
from largek_dask.service.targets import Outcome, Target, targets_of

__all__ = ["Notices"]

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
WAITING_SECONDS = 600.0
"""A job that waits is worth a notice after so long."""
STALLED_SECONDS, STALLED_STEPS = 600.0, 10.0
"""So is one without a step for such a time, and for ten times what a step usually takes."""
PAUSES = (60.0, 240.0, 900.0, 1_800.0)
"""Seconds from each try to the next: five tries within an hour."""
MOST_OF_KIND = 5
"""Notices of one kind and run, of those that can come again."""
MOST_QUEUED = 256
"""Notices that wait for one target; others stay where they are kept, and come later."""
USUAL_STEPS = 21
"""Steps of which the middle one tells how long they usually take."""
SIGNS = ("started", "step", "labels")
"""Kinds of events by which a run shows that it comes on."""


class _Taken(NamedTuple):
    """That a job was taken over."""

    job: str
    run: int
    token: int
    before: str
    """Who had it."""


class _Track:
    """What is seen of a job while it has not ended."""

    def __init__(self, job: KnownJob, now: float) -> None:
        self.job = job
        self.waits_since: float | None = None
        self.runs_since: float | None = None
        self.told_waiting = self.told_stalled = False
        self.sign_at = now
        self._stepped_at: float | None = None
        self._spans: deque[float] = deque(maxlen=USUAL_STEPS)
        self._ready_at = 0.0

    def heed(self, kind: str, now: float) -> None:
        """Take up a sign of the run."""
        self.sign_at, self.told_stalled = now, False
        if kind == "step" and self._stepped_at is not None:
            self._spans.append(now - self._stepped_at)
        if kind in ("started", "step"):
            self._stepped_at = now

    @property
    def usual(self) -> float | None:
        """Seconds that a step usually takes; None before the first."""
        # What is heard of meanwhile may change it.
        spans = tuple(self._spans)
        return statistics.median(spans) if spans else None

    def has_waited(self, now: float) -> float | None:
        """Seconds for which the job has waited, if it does."""
        if self.job.state != "waiting":
            self.waits_since, self.told_waiting = None, False
            return None
        if self.waits_since is None:
            self.waits_since = now
        return now - self.waits_since

    def has_stood_still(self, now: float) -> float | None:
        """Seconds for which the job runs without a sign, if it does."""
        if self.job.state != "running":
            self.runs_since, self.told_stalled = None, False
            self._stepped_at = None
            return None
        if self.runs_since is None:
            self.runs_since = self.sign_at = now
        ready_at = self.job.feed.ready.at
        if self.usual is None and ready_at != self._ready_at:
            # Before the first step a pass says how far it is, and nothing else does.
            self._ready_at, self.sign_at = ready_at, now
        return now - self.sign_at


class _Sender(threading.Thread):
    """Sends notices to one target, one after the other."""

    def __init__(self, target: Target, deliver: Callable[[KnownJob, Notice, Target], None]) -> None:
        super().__init__(name=f"largek-notices-{target.name}", daemon=True)
        self.target = target
        self._deliver = deliver
        self.queue: queue.Queue[tuple[KnownJob, Notice] | None] = queue.Queue(MOST_QUEUED)
        self._over = threading.Event()

    def run(self) -> None:
        """Send what comes until it is stopped."""
        while (one := self.queue.get()) is not None and not self._over.is_set():
            self._deliver(*one, self.target)

    def stop(self) -> None:
        """End after the one that is just being sent."""
        self._over.set()
        try:
            self.queue.put_nowait(None)
        except queue.Full:
            # It does not wait for any, then.
            return


class Notices(threading.Thread):
    """Sees what is worth a notice, and has it sent to the targets that the job names.

    Parameters
    ----------
    register : Register
    owner : str
        This scheduler, as notices name it.
    clock : callable
        Seconds, never set back.

    Raises
    ------
    ParameterError
        ``largek.service.notify`` is wrong; says which target, and what of it.
    """

    def __init__(
        self, register: Register, owner: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(name="largek-notices", daemon=True)
        self.targets = targets_of(config.get("service.notify"))
        self._register = register
        self._owner = owner
        self._clock = clock
        self._redact = Redactor([target.hidden for target in self.targets.values()])
        hide_in_logs(self._redact)
        self._senders = {
            name: _Sender(target, self._deliver) for name, target in self.targets.items()
        }
        self._tracks: dict[str, _Track] = {}
        self._taken: deque[_Taken] = deque(maxlen=1_000)
        """Jobs that were taken over, as heard."""
        self._due: dict[tuple[str, str], float] = {}
        """When a notice is tried again, by its id and target."""
        self._in_flight: set[tuple[str, str]] = set()
        """Notices that are in a queue, or being sent."""
        self._noting = threading.Lock()
        """Held while the notices of a record are changed: nobody else changes them."""
        self._wake = threading.Event()
        self._over = threading.Event()

    # --- what others ask --------------------------------------------------------------------------

    def check(self, names: Sequence[str]) -> None:
        """Refuse targets that there are none of.

        Raises
        ------
        ParameterError
        """
        for name in names:
            if name not in self.targets:
                known = ", ".join(self.targets) or "none"
                raise ParameterError(
                    f"notify: this scheduler has no target {name[:80]!r} for notices; use one of "
                    f"those of largek.service.notify in its configuration: {known}."
                )

    def try_out(self, name: str) -> dict[str, Any]:
        """Send a notice for trial to a target: see ``Service.try_notice``.

        Raises
        ------
        ParameterError
            There is no such target.
        """
        if not isinstance(name, str):
            raise ParameterError(f"notify: give the name of a target, not {type(name).__name__}.")
        self.check([name])
        target, notice_id = self.targets[name], f"test.{uuid.uuid4().hex}"
        told = {
            "format": 1,
            "id": notice_id,
            "kind": "test",
            "time": _stamp(time.time()),
            "text": f"a notice for trial: whoever reads this gets those of jobs that name {name!r}",
            "scheduler": self._owner,
        }
        begun = time.monotonic()
        outcome = target.send(body_of(told), notice_id)
        return {
            "target": name,
            "place": target.place,
            "id": notice_id,
            "delivered": outcome.is_delivered,
            "answer": outcome.answer,
            "seconds": time.monotonic() - begun,
        }

    def hear(self, event: Event) -> None:
        """Take up an event of any job; never waits."""
        kind, job_id = event["event"], event["job"]
        if kind in SIGNS and (track := self._tracks.get(job_id)) is not None:
            track.heed(kind, self._clock())
        elif kind == "running" and event.get("taken_from"):
            run, token = int(event["run"]), int(event["token"])
            self._taken.append(_Taken(job_id, run, token, str(event["taken_from"])))
            self._wake.set()
        elif kind in ENDS:
            self._wake.set()

    # --- its thread -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look and to send."""
        for sender in self._senders.values():
            sender.start()
        super().start()

    def run(self) -> None:
        """Look at all jobs again and again until it is stopped."""
        while not self._over.is_set():
            try:
                self.look()
            except Exception as error:
                # Whatever it is, others may have more luck at the next look.
                logger.warning("Notices have to wait: %s", type(error).__name__)
            self._wake.wait(TICK_SECONDS)
            self._wake.clear()
        for sender in self._senders.values():
            sender.stop()

    def stop(self) -> None:
        """Send no more; what is under way is tried again by the next scheduler."""
        self._over.set()
        self._wake.set()

    def look(self) -> None:
        """Note what is worth a notice now, and hand over those that are due."""
        if not self._register.loaded.is_set():
            self._tracks.clear()
            return
        now, taken = self._clock(), {}
        while self._taken:
            heard = self._taken.popleft()
            taken[heard.job] = heard
        jobs = {
            job.record.id: job
            for job in self._register.jobs()
            if job.record.spec.notify and job.record.deleting is None
        }
        for job_id in [name for name in self._tracks if name not in jobs]:
            del self._tracks[job_id]
        for job_id, job in jobs.items():
            if (over := taken.get(job_id)) is not None:
                told = (
                    f"was taken over by {self._owner} from {over.before}, which gave no sign any "
                    "more"
                )
                self._note(job, over.run, "taken-over", str(over.token), told)
            self._look_at(job, now)

    def _look_at(self, job: KnownJob, now: float) -> None:
        record = job.record
        if job.state in ENDS:
            self._tracks.pop(record.id, None)
            if (end := _end_of(record)) is not None:
                kind, told = end
                self._note(job, record.run, kind, "", told)
        else:
            self._look_at_active(job, now)
        for notice in job.record.notices:
            if notice.state == "pending":
                self._hand_over(job, notice, now)

    def _look_at_active(self, job: KnownJob, now: float) -> None:
        track = self._tracks.get(job.record.id)
        if track is None or track.job is not job:
            track = self._tracks[job.record.id] = _Track(job, now)
        waited, still = track.has_waited(now), track.has_stood_still(now)
        if waited is not None and waited > WAITING_SECONDS and not track.told_waiting:
            track.told_waiting = True
            told = f"has waited for {human_seconds(waited)} for {job.reason}: {job.told}"
            self._note(job, job.record.run, "waiting", None, told)
        usual = track.usual
        longest = max(STALLED_SECONDS, STALLED_STEPS * (usual or 0.0))
        if still is not None and still > longest and not track.told_stalled:
            track.told_stalled = True
            told = f"runs, and has taken no step for {human_seconds(still)}"
            if usual is not None:
                told += f"; one usually takes {human_seconds(usual)}"
            self._note(job, job.record.run, "stalled", None, told)

    # --- what is kept -----------------------------------------------------------------------------

    def _note(self, job: KnownJob, run: int, kind: Kind, which: str | None, told: str) -> None:
        """Note what is to be sent, once.

        Parameters
        ----------
        which : str or None
            Tells this one from others of its kind and run; None: the next number.
        """
        with self._noting:
            record = job.record
            ids = {each.id for each in record.notices if (each.run, each.kind) == (run, kind)}
            if which is None:
                which = str(len(ids) + 1)
            notice_id = f"{record.id}.{run}.{kind}" + (f".{which}" if which else "")
            if notice_id in ids or len(ids) >= MOST_OF_KIND or record.run != run:
                return
            text = self._told(job, told)
            # Of an earlier run only what is still to be sent.
            kept = (each for each in record.notices if each.run == run or each.state == "pending")
            new = (
                Notice(id=notice_id, kind=kind, target=name, run=run, at=time.time(), text=text)
                for name in record.spec.notify
            )
            job.change_now(notices=(*kept, *new))
        self._register.keep(job)

    def _told(self, job: KnownJob, told: str) -> str:
        record = job.record
        name = "" if record.spec.name is None else f" ({record.spec.name})"
        text: str = self._redactor(job)(f"job {record.id}{name} {told}")
        return shortened(text, MOST_TEXT)

    def _redactor(self, job: KnownJob) -> Redactor:
        """Leaves out of a notice what is left out of events, and what belongs to targets."""
        return Redactor.joined([self._redact, job.redact])

    def _hand_over(self, job: KnownJob, notice: Notice, now: float) -> None:
        key = (notice.id, notice.target)
        if key in self._in_flight or now < self._due.get(key, -math.inf):
            return
        sender = self._senders.get(notice.target)
        if sender is None:
            told = "the configuration of the scheduler has no such target"
            self._settle(job, notice, Outcome(False, told))
            return
        self._in_flight.add(key)
        try:
            sender.queue.put_nowait((job, notice))
        except queue.Full:
            self._in_flight.discard(key)

    # --- in the threads of targets ----------------------------------------------------------------

    def _deliver(self, job: KnownJob, notice: Notice, target: Target) -> None:
        """Try to send a notice, unless the job has gone or is another scheduler's meanwhile."""
        try:
            if job not in self._register.jobs() or job.record.deleting is not None:
                return
            outcome = target.send(self.body(job, notice), notice.id)
            if not self._over.is_set():
                self._settle(job, notice, outcome)
        except Exception as error:
            # Nothing is to end this thread: it is tried again later.
            self._due[notice.id, notice.target] = self._clock() + PAUSES[0]
            kind = type(error).__name__
            logger.warning("The notice %s could not be sent now: %s", notice.id, kind)
        finally:
            self._in_flight.discard((notice.id, notice.target))

    def body(self, job: KnownJob, notice: Notice) -> bytes:
        """What is sent: see the page of the service."""
        record, result = job.record, _result_of(job.record)
        document: dict[str, Any] = {
            "format": 1,
            "id": notice.id,
            "kind": notice.kind,
            "time": _stamp(notice.at),
            "text": notice.text,
            "job": record.id,
            "name": record.spec.name,
            "run": notice.run,
            "state": job.state,
            "owner": record.owner,
            "algorithm": record.spec.algorithm.name,
            "n_clusters": record.spec.n_clusters,
            "output": record.spec.output,
            "scheduler": self._owner,
        }
        if result is not None and notice.kind in ("finished", "failed"):
            told = ("n_iter", "stop_reason", "seconds", "digest", "inertia", "error", "message")
            document |= {name: getattr(result, name) for name in told}
        return body_of(self._redactor(job)(document))

    def _settle(self, job: KnownJob, notice: Notice, outcome: Outcome) -> None:
        """Note what came of a try."""
        key, tries = (notice.id, notice.target), notice.tries + 1
        pending = not outcome.is_delivered and tries <= len(PAUSES)
        state = "sent" if outcome.is_delivered else "pending" if pending else "given up"
        if pending:
            self._due[key] = self._clock() + PAUSES[tries - 1]
        else:
            self._due.pop(key, None)
        about = {"tries": tries, "state": state, "answer": outcome.answer}
        with self._noting:
            changed = tuple(
                each.model_copy(update=about) if (each.id, each.target) == key else each
                for each in job.record.notices
            )
            job.change_now(notices=changed)
        self._register.keep(job)
        if pending:
            if tries == 1:
                # Not at every try: what is wrong with a target lasts.
                logger.warning(
                    "The notice %s is not delivered yet, target %s: %s", *key, outcome.answer
                )
            return
        told = {"kind": notice.kind, "target": notice.target, "id": notice.id, **about}
        job.tell({"event": "notice", "run": notice.run, **told})
        if state == "given up":
            last = outcome.answer
            logger.warning("The notice %s is given up, target %s: %s", *key, last)


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _result_of(record: Record) -> Result | None:
    """How this run ended, where that is worth a notice; not how one before it did."""
    ended = record.failure or record.result
    return None if ended is None or ended.run != record.run else ended


def _end_of(record: Record) -> tuple[Kind, str] | None:
    result = _result_of(record)
    if result is None:
        return None
    if result.state == "finished":
        return "finished", f"has finished: {result.stop_reason} after {result.n_iter:,} steps"
    if result.state == "failed":
        return "failed", f"has failed: {result.error}: {result.message}"
    return None
