"""Store jobs so that they outlive the scheduler: one small record per job, one result per run.

The store (``largek.store``) is written by the holder of its newest claim (``lease.py``)::

    jobs/lk-3f9c0d21ab.json     the job, the number of its run, and the result of this run
    claims/000001.json          the scheduler that has the store
    late/lk-3f9c0d21ab.json     a record from a scheduler that had lost the store
    scheduler.json              the scheduler's address, for clients and workers (scheduler_file.py)

The job's output folder has the result of each run, created exclusively. So if two schedulers
believe that they hold the job, only one of them publishes the result::

    results/000001.json
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, TypeAdapter

from largek_dask.algorithms.objective import MOST_TEXT
from largek_dask.driver.labels import are_whole
from largek_dask.driver.plan import FitMemory
from largek_dask.driver.stopping import End
from largek_dask.driver.storage import DamagedError, Folder, is_torn
from largek_dask.errors import JobNotFoundError, LargekError, ParameterError, RecoveryWarning, warn
from largek_dask.redaction import Redactor
from largek_dask.service.lease import Lease
from largek_dask.service.spec import MOST_BYTES, JobSpec, faults_of, unique_keys
from largek_dask.version import __version__

MODEL = "model.zarr"
LABELS = "labels.zarr"
UNFINISHED_LABELS = "labels.zarr.progress.json"
JOB_FILES = (
    "job.json",
    "counted.json",
    "events",
    "logs.jsonl",  # written by earlier versions
    "checkpoints",
    "starts",
    MODEL,
    LABELS,
    UNFINISHED_LABELS,
    "results",
    "claims",
)
"""Files of a job in its folder, in the order of removal. Claims come last, so that they name the
owner of the remaining files, and incomplete labels stay marked as incomplete."""

FORMAT: Literal[1] = 1
REMOVED = frozenset(
    {"paused", "resumed", "kept", "cleared", "notices", "deleting", "before", "failure"}
)
"""Fields in records of earlier versions that are ignored."""
REMOVED_FROM_SPEC = frozenset({"priority", "notify"})
"""Fields in job documents of earlier versions that are ignored."""
LATE = "late"
"""Folder of the store for quarantined records, which are late or empty."""
BLANK = b"\0 \t\r\n"
"""Bytes that count as empty, because a power failure may leave only zeros."""
JOB_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")

Text = Annotated[str, Field(max_length=1 << 17)]
Word = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]


class Result(BaseModel):
    """Result of a run."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    format: Literal[1] = FORMAT
    job: Text
    run: int
    token: int
    state: End
    digest: Text | None = None
    labels: bool = False
    n_iter: int = 0
    stop_reason: Text | None = None
    inertia: float | None = None
    """Inertia, if the objective is that of k-means; otherwise None."""
    objective: dict[Word, Word | float | None] | None = None
    """Any other objective, and its value: see ``algorithms.objective.Objective.describe``."""
    figures: dict[Text, float] | None = None
    """Result of ``Model.fit_figures``, or None."""
    seconds: float | None = None
    """Total time used by all runs, in seconds."""
    error: Text | None = None
    message: Text | None = None
    traceback: Text | None = None


Takes = Annotated[FitMemory, PlainValidator(TypeAdapter(FitMemory).validate_python)]
"""Unlike in a record, fields of a later version are ignored."""


def _spec_in(document: Any) -> JobSpec:
    if isinstance(document, JobSpec):
        return document
    return JobSpec.parse(_without(REMOVED_FROM_SPEC, document))


@dataclass(frozen=True, slots=True)
class Record:
    """Stored record of a job; types and bounds are checked when it is read."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    id: Annotated[str, Field(pattern=f"^{JOB_ID.pattern}$")]
    spec: Annotated[JobSpec, PlainValidator(_spec_in)]
    owner: Annotated[str, Field(max_length=200)]
    """Name of the user, as given by the client."""
    created: Annotated[float, Field(ge=0)]
    """Seconds since 1970."""
    run: Annotated[int, Field(ge=1)] = 1
    """Incremented when a job that has ended is resumed."""
    cancel: bool = False
    result: Result | None = None
    """Result of this run; None until it has ended."""
    ended: Annotated[float, Field(ge=0)] | None = None
    """End of this run, in seconds since 1970; None also in records of earlier versions."""
    versions: Annotated[tuple[Word, ...], Field(max_length=1_000)] = ()
    """Versions of this package that computed the job, in order; a user accepted each change."""
    takes: Takes | None = None
    """Memory that the fit takes; None in records of earlier versions."""
    format: Literal[1] = FORMAT


RECORD = TypeAdapter(Record)


class Records:
    """The records of one scheduler, in ``largek.store``.

    ``lease`` is the scheduler's right to the store. It is checked before every write or removal,
    and raises LostJobError once another scheduler has claimed the store. ``former_owners`` are
    schedulers that had the store before, and have lost their jobs with it.
    """

    def __init__(self, folder: Folder, lease: Lease | None = None) -> None:
        # Records name users and data, so only their owner may read them.
        self.folder = folder = folder.private()
        self.url = folder.url
        self._redact = Redactor(folder.storage_options)
        self.former_owners: frozenset[str] = frozenset()
        self._folder = folder.sub("jobs")
        self.lease = lease
        self._made: set[str] = set()
        if lease is not None:
            self._folder = self._folder.guarded(lease.check)
            self.former_owners = lease.earlier_owners()

    def under(self, lease: Lease) -> Records:
        """Return the same records, guarded by a lease."""
        return Records(self.folder, lease)

    def check(self) -> None:
        """Raise LostJobError if another scheduler has claimed the store."""
        if self.lease is not None:
            self.lease.check()

    def check_writable(self) -> None:
        """Raise OutputError if the store cannot be written."""
        self._folder.check_writable()

    def create(
        self, spec: JobSpec, owner: str, created: float, takes: FitMemory | None = None
    ) -> Record:
        """Store a new job under a new id.

        After a LostJobError the other scheduler may or may not have loaded the job.
        """
        while True:
            record = Record(f"lk-{uuid.uuid4().hex[:10]}", spec, owner, created, takes=takes)
            self._made.add(record.id)
            try:
                if self._folder.create(f"{record.id}.json", _dumped(record)):
                    # The lease may have been lost during the write.
                    self.check()
                    return record
            except BaseException:
                self._made.discard(record.id)
                raise

    def update(self, record: Record) -> None:
        """Write the current record of a job.

        After a LostJobError the other scheduler may not know of the change.
        """
        self._folder.publish(f"{record.id}.json", _dumped(record))
        self.check()

    def stamps(self) -> dict[str, int]:
        """Return the ids of all records, with a hash that changes when a record is written."""
        found = self._folder.stamps()
        return {job_id: found[f"{job_id}.json"] for job_id in map(_job_of, found) if job_id}

    def is_new(self, job_id: str) -> bool:
        """Return whether this job was created here, and has not been removed."""
        return job_id in self._made

    def is_stored(self, record: Record) -> bool:
        """Return whether the stored record is this one, or there is none."""
        document = _dumped(record)
        try:
            return self._folder.read(f"{record.id}.json", limit=len(document)) == document
        except FileNotFoundError:
            return True
        except DamagedError:
            return False

    def quarantine(self, job_id: str) -> bool:
        """Move a record into ``late/``, from where records are not loaded.

        Returns False if there is no file, or if it was not written as a record.
        """
        name = f"{checked_id(job_id)}.json"
        try:
            document = self._folder.read(name, limit=2 * MOST_BYTES)
        except (FileNotFoundError, DamagedError):
            return False
        self.folder.sub(LATE).guarded(self.check).publish(name, document)
        self._folder.remove(name)
        return True

    def remove(self, job_id: str) -> None:
        self._made.discard(job_id)
        self._folder.remove(f"{checked_id(job_id)}.json")

    def read(self, job_id: str) -> Record:
        """Read a record; raise ParameterError if it is damaged or of a newer version."""
        name = f"{checked_id(job_id)}.json"
        try:
            text = self._folder.read(name, limit=2 * MOST_BYTES)
            document = _without(REMOVED, json.loads(text, object_pairs_hook=unique_keys))
            found: Record = RECORD.validate_json(json.dumps(document))
        except FileNotFoundError:
            raise JobNotFoundError(
                f"there is no job {job_id} in {self.url}: see jobs() for existing ones."
            ) from None
        except (ValueError, RecursionError, DamagedError) as error:
            raise ParameterError(
                f"{self._folder.url}/{name} is not a job record that largek_dask {__version__} can "
                f"read ({faults_of(error)}): upgrade to the version that wrote it, restore it, or "
                "move it away."
            ) from None
        if found.id != job_id:
            raise ParameterError(
                f"{self._folder.url}/{name} is the record of another job: move it away."
            )
        return found

    def all(self) -> list[Record]:
        """Return all jobs, oldest first; warn of unreadable records.

        The holder of the store moves empty records into ``late/``. Raises OSError if storage cannot
        be reached.
        """
        records = []
        for job_id in filter(None, map(_job_of, self._folder.names())):
            try:
                records.append(self.read(job_id))
            except JobNotFoundError:
                continue
            except ParameterError as error:
                reason = self.reason(error)
                if self.lease is not None and self._is_quarantined(job_id):
                    reason = (
                        f"its record was empty, and has been moved to {self.url}/{LATE}: submit it "
                        "again, with another output"
                    )
                warn(f"Job {job_id} is ignored: {reason}", RecoveryWarning)
        return sorted(records, key=lambda record: (record.created, record.id))

    def _is_quarantined(self, job_id: str) -> bool:
        """Quarantine an empty record; return False if it is not empty or the move fails."""
        try:
            text = self._folder.read(f"{job_id}.json", limit=2 * MOST_BYTES)
            return not text.strip(BLANK) and self.quarantine(job_id)
        except (LargekError, OSError):
            return False

    def reason(self, error: Exception) -> str:
        """Describe an error without secrets, which messages of storage drivers may contain."""
        text: str = self._redact(f"{type(error).__name__}: {error}")
        return text[:1_000]


def _without(names: Collection[str], document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    return {name: value for name, value in document.items() if name not in names}


def _job_of(name: str) -> str:
    """Return the job id in a record's file name; empty if the name is not that of a record."""
    job_id = name.removesuffix(".json")
    return "" if name == job_id or JOB_ID.fullmatch(job_id) is None else job_id


def checked_id(job_id: str) -> str:
    """Return a valid id of a job, which is a file name, or raise JobNotFoundError."""
    if not isinstance(job_id, str) or JOB_ID.fullmatch(job_id) is None:
        raise JobNotFoundError(
            f"{str(job_id)[:100]!r} is not an id of a job: see jobs() for existing ones."
        )
    return job_id


def _dumped(record: Record) -> bytes:
    document = RECORD.dump_python(record, mode="json", exclude={"spec", "format", "takes"})
    if record.takes is not None:
        document["takes"] = asdict(record.takes)
    document = {"format": FORMAT, **document, "spec": record.spec.dump()}
    return json.dumps(document, allow_nan=False).encode()


def read_result(folder: Folder, job_id: str, run: int) -> Result | None:
    """Return the result of a run of this job; None if there is no result yet.

    A torn result gives a warning and counts as missing. Raises ParameterError for another job's
    result.
    """
    name = f"results/{run:06d}.json"
    try:
        document = folder.read(name, MOST_BYTES)
        if is_torn(document):
            # Without hard links, a killed writer leaves an empty file, which needs no warning.
            if document:
                what = f"{folder.url}/{name} is torn, as after a power failure"
                warn(f"{what}: run {run} of the job continues.", RecoveryWarning)
            return None
        found = Result.model_validate_json(document)
    except FileNotFoundError:
        return None
    except (ValueError, DamagedError) as error:
        raise ParameterError(
            f"{folder.url}/{name} is not a job result that largek_dask {__version__} can read "
            f"({faults_of(error)}): upgrade to the version that wrote it, or choose another output."
        ) from None
    if found.job != job_id:
        raise ParameterError(
            f"{folder.url} is the output of job {found.job}, not of {job_id}: choose another."
        )
    return found


def write_result(folder: Folder, result: Result) -> Result:
    """Publish the result of a run; return the first one published."""
    document = result.model_dump_json().encode()
    if folder.create(f"results/{result.run:06d}.json", document):
        return result
    standing = read_result(folder, result.job, result.run)
    if standing is None:
        folder.publish(f"results/{result.run:06d}.json", document)
        return result
    return standing


def labels_in(folder: Folder) -> bool:
    """Return whether the labels of all rows are complete."""
    return not folder.exists(UNFINISHED_LABELS) and are_whole(folder.sub(LABELS))
