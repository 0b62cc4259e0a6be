"""Leases of schedulers on jobs and stores: the highest claim holds the lease.

The claims on a job are the files ``claims/000001.json``, ``claims/000002.json``, … in its folder.
Each file is created exclusively, so each number belongs to one scheduler. Only the holder of the
highest number writes to the folder, with the number as fencing token. Each claim contains the id of
the job, so that no other job is written to the same folder. The first claim is made when a job is
submitted, and is released immediately.

The holder renews its lease by heartbeats, which change ``claims/000002.beat``. A scheduler that
sees no new heartbeat for longer than ``service.patience-seconds``, by its own clock, may claim the
next number. The former holder has then lost the job: it notices the loss before its next write, and
stops. The lease of a store works in the same way.

A process may be suspended between checking its lease and writing a file, and may lose the job in
between. Therefore, files that are published once must be created exclusively (``Folder.create``),
and all other files must be written under the token.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from largek_dask import config
from largek_dask.driver.storage import DamagedError, Folder
from largek_dask.errors import (
    ClusterError,
    LargekError,
    LostJobError,
    OtherSchedulerError,
    OutputError,
    ParameterError,
)
from largek_dask.fault_injection import at
from largek_dask.version import check_format

if TYPE_CHECKING:
    from largek_dask.service.store import Records

logger = logging.getLogger(__name__)

CLAIM = re.compile(r"(\d{6,12})\.json")
SMALL = 4_096
RELEASED = b"released"
REMEMBERED = 20
"""Number of earlier claims to read for the list of former owners."""
STORE = "the store of a scheduler"
"""Job name used in the claims of a store."""


def _newest(folder: Folder) -> int:
    found = (CLAIM.fullmatch(name) for name in folder.names())
    return max((int(match[1]) for match in found if match), default=0)


def _beat(folder: Folder, number: int) -> bytes:
    try:
        return folder.read(f"{number:06d}.beat", limit=SMALL)
    except (FileNotFoundError, DamagedError):
        return b""


def _claim_field(claims: Folder, number: int, name: Literal["job", "owner"]) -> str | None:
    """Return a field of a claim; None if the claim is incomplete or lacks the field."""
    try:
        document = json.loads(claims.read(f"{number:06d}.json", limit=SMALL))
    except (FileNotFoundError, DamagedError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    check_format(document, f"{claims.url}/{number:06d}.json", ParameterError)
    text = document.get(name)
    return text if isinstance(text, str) else None


def claimed_for(folder: Folder) -> str | None:
    """Return the id of the job that has claimed a folder; None if no claim names a job."""
    claims = folder.sub("claims")
    number = _newest(claims)
    return _claim_field(claims, number, "job") if number else None


def check_job(folder: Folder, job: str) -> None:
    """Raise ParameterError if another job has claimed the folder."""
    found = claimed_for(folder)
    if found not in (None, job):
        what = found if found == STORE else f"the output of job {found}"
        raise ParameterError(f"{folder.url} is {what}, not of {job}: choose another folder.")


def reserve(folder: Folder, job: str, owner: str) -> None:
    """Claim a folder for a new job; raise OutputError if another job has claimed it."""
    try:
        lease = Claimant(folder, job, owner, 0.0).claim()
    except ParameterError as error:
        raise OutputError(str(error)) from None
    if lease is None:
        raise OutputError(
            f"{folder.url} was just claimed as the output of another job: choose another folder."
        )
    lease.release()


@dataclass(frozen=True, slots=True)
class Lease:
    """Right to write to the folder of a job until another scheduler claims the job."""

    folder: Folder
    token: int
    owner: str
    taken_from: str | None = None
    """Former owner whose lease timed out without a release, or None."""

    def check(self) -> None:
        """Check that the lease is still held; call this before every write.

        Raises LostJobError if another scheduler has claimed the job, and FileNotFoundError if its
        folder is gone.
        """
        newest = _newest(self.folder)
        if newest < self.token:
            raise FileNotFoundError(errno.ENOENT, "the job's output is gone", self.folder.url)
        if newest != self.token:
            raise LostJobError(
                f"{self.folder.url}: claim {self.token} of {self.owner} has been superseded by "
                f"claim {newest}; this process writes nothing more there."
            )

    def renew(self) -> None:
        """Write a heartbeat, or raise LostJobError if another scheduler has claimed the job."""
        self.check()
        self._beat(uuid.uuid4().hex.encode())

    def _beat(self, sign: bytes) -> None:
        """Write a heartbeat; heartbeats need not survive a power failure."""
        self.folder.publish(f"{self.token:06d}.beat", sign, is_durable=False)

    def earlier_owners(self) -> frozenset[str]:
        """Return the owners of the earlier claims that can be read."""
        earlier = range(max(1, self.token - REMEMBERED), self.token)
        found = {_claim_field(self.folder, number, "owner") for number in earlier}
        return frozenset(owner for owner in found if owner is not None) - {self.owner}

    def release(self) -> None:
        """Release the lease, so that any scheduler can claim the job immediately."""
        with contextlib.suppress(LostJobError):
            self.check()
            self._beat(RELEASED)


class Claimant:
    """Scheduler that tries to claim a job or, if ``job`` is ``STORE``, a store.

    ``owner`` is the name of this scheduler, shown in messages of other schedulers. ``patience`` is
    the timeout for the heartbeats of a holder, in seconds of the monotonic ``clock``. Leases of
    ``former_owners``, who have lost their store, can be claimed without this timeout.
    """

    def __init__(
        self,
        folder: Folder,
        job: str,
        owner: str,
        patience: float,
        former_owners: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job_folder = folder
        self._folder = folder.sub("claims")
        self._job = job
        self._owner = owner
        self._patience = patience
        self._gone = former_owners
        self._clock = clock
        self._seen: tuple[int, bytes] = (0, b"")
        self._since = clock()
        self.holder = ""
        """Owner of the lease; empty until a new heartbeat has been seen."""

    def claim(self) -> Lease | None:
        """Return a lease if the job is free or its holder has timed out; otherwise return None.

        Raises ParameterError if the folder belongs to another job.
        """
        number = _newest(self._folder)
        taken_from = None
        if number:
            check_job(self._job_folder, self._job)
            seen = (number, _beat(self._folder, number))
            owner = _claim_field(self._folder, number, "owner") or "another scheduler"
            if seen != self._seen:
                if self._seen[0]:
                    self.holder = owner
                self._seen, self._since = seen, self._clock()
            waited = self._clock() - self._since
            if seen[1] != RELEASED and owner not in self._gone and waited <= self._patience:
                return None
            if seen[1] != RELEASED and owner != self._owner:
                taken_from = owner
        token = number + 1
        claim = {"format": 1, "job": self._job, "owner": self._owner, "claimed": uuid.uuid4().hex}
        document = json.dumps(claim).encode()
        name = f"{token:06d}.json"
        # If storage retries the request, the first attempt may already have written this claim.
        if not self._folder.create(name, document) and self._folder.read(name) != document:
            check_job(self._job_folder, self._job)
            return None
        lease = Lease(self._folder, token, self._owner, taken_from)
        try:
            lease.renew()
        except LostJobError:
            # The write took longer than the timeout, so another scheduler has claimed the job.
            return None
        return lease


class LeaseRenewer(threading.Thread):
    """Thread that renews a lease, and calls ``lost`` if another scheduler has taken it."""

    def __init__(self, lease: Lease, lost: Callable[[], None]) -> None:
        super().__init__(name=f"largek-keeper-{lease.token}", daemon=True)
        self._lease = lease
        self._lost = lost
        self._ended_run = threading.Event()

    def run(self) -> None:
        while not self._ended_run.wait(float(config.get("service.beat-seconds"))):
            try:
                with at("renewal"):
                    self._lease.renew()
            except LostJobError:
                self._lost()
                return
            except Exception as error:
                # Log only the type of the error, because its message may contain secrets.
                kind = type(error).__name__
                logger.warning(
                    "The lease of %s could not be renewed: %s", self._lease.folder.url, kind
                )

    def stop(self) -> None:
        """End the thread and release the lease.

        This method waits for a renewal in progress, so that no heartbeat is written after the
        release or into a folder that is being removed. The wait is limited by the timeouts of
        object stores (``data.stores``).
        """
        self._ended_run.set()
        self.join()
        with contextlib.suppress(LargekError, OSError):
            self._lease.release()


class StoreLease:
    """Lease of a scheduler on a store, which may be awaited, held or lost.

    ``records`` checks the lease before every write. ``holder`` is the other scheduler that has the
    store, or empty if unknown. ``epoch`` changes whenever the store is claimed. The lock
    ``changed`` is held while attributes change.
    """

    def __init__(self, records: Records, owner: str, changed: threading.Condition) -> None:
        beat = float(config.get("service.beat-seconds"))
        patience = float(config.get("service.patience-seconds"))
        # With a factor of two, one late heartbeat does not cause a timeout.
        if not patience >= 2.0 * beat:
            raise ParameterError(
                f"largek.service.patience-seconds ({patience:g}) must be at least twice "
                f"largek.service.beat-seconds ({beat:g}) on all schedulers of a store; otherwise "
                "another scheduler may take over jobs from a scheduler that is alive."
            )
        self.records = records
        self.holder = ""
        self.epoch = ""
        self._owner = owner
        self._changed = changed
        self._claimant: Claimant | None = None
        self._renewer: LeaseRenewer | None = None
        self._is_over = False

    @property
    def is_held(self) -> bool:
        """True if this scheduler believes that it holds the lease of its store."""
        return self._renewer is not None

    def claim(self, lost: Callable[[], None]) -> None:
        """Claim the store unless another scheduler holds it.

        When another scheduler claims the store, ``lost`` is called with the lock ``changed`` held.
        """
        if self._claimant is None:
            patience = float(config.get("service.patience-seconds"))
            self._claimant = Claimant(self.records.folder, STORE, self._owner, patience)
        lease = self._claimant.claim()
        if lease is None:
            self._note_holder(self._claimant.holder)
            return
        records = self.records.under(lease)
        renewer = LeaseRenewer(lease, lambda: self._lose(lost))
        with self._changed:
            if self._is_over:
                lease.release()
                return
            self._claimant, self.holder, self.epoch = None, "", uuid.uuid4().hex
            self.records, self._renewer = records, renewer
            renewer.start()

    def _note_holder(self, owner: str) -> None:
        with self._changed:
            if owner and not self.holder:
                logger.warning("The store %s is held by %s", self.records.url, owner)
            self.holder = owner
            self._changed.notify_all()

    def _lose(self, lost: Callable[[], None]) -> None:
        with self._changed:
            self._renewer = None
            lost()
            self._changed.notify_all()

    def refusal(self) -> ClusterError:
        """Make the error for clients, which names the scheduler to connect to instead."""
        if not self.holder:
            return ClusterError(
                f"the jobs in {self.records.url} cannot be read at the moment: try again later."
            )
        patience = float(config.get("service.patience-seconds"))
        return OtherSchedulerError(
            f"the store {self.records.url} is held by {self.holder}: connect to that scheduler. "
            f"(This one takes over once the other has been silent for {patience:g} s.)"
        )

    def stop_claiming(self) -> None:
        """Stop trying to claim the store; keep a lease that is held until :meth:`release`."""
        with self._changed:
            self._is_over = True

    def release(self) -> None:
        """Release the lease, so that another scheduler can claim the store immediately."""
        if (renewer := self._renewer) is not None:
            renewer.stop()
