"""Store one small record per job and one result per run, so that jobs outlive the scheduler.

Only the holder of the newest claim writes to the store ``largek.store`` (see ``lease.py``)::

    jobs/lk-3f9c0d21ab.json     the job, its run number, and the result of this run
    claims/000001.json          a scheduler that has claimed the store
    late/lk-3f9c0d21ab.json     a quarantined record of a scheduler that had lost the store
    scheduler.json              the scheduler's address (scheduler_file.py)

A job's output folder contains the result of each run. Each result is created exclusively: if two
schedulers believe that they hold the job, only one of them publishes a result::

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
PREDICTIONS = "predictions.parquet"
UNFINISHED = {LABELS: UNFINISHED_LABELS, PREDICTIONS: f"{PREDICTIONS}.partial"}
"""Files that mark outputs as incomplete."""
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
    PREDICTIONS,
    UNFINISHED[PREDICTIONS],
    "results",
    "claims",
)
"""Files in a job's folder, in order of removal: marks after incomplete files, and claims last,
because they name the owner of the other files."""

FORMAT: Literal[1] = 1
REMOVED = frozenset(
    {"paused", "resumed", "kept", "cleared", "notices", "deleting", "before", "failure"}
)
"""Fields of earlier versions to ignore in records."""
REMOVED_FROM_SPEC = frozenset({"priority", "notify"})
"""Fields of earlier versions to ignore in job documents."""
LATE = "late"
"""Folder in the store for quarantined records, which are late or empty."""
BLANK = b"\0 \t\r\n"
"""Bytes to ignore in the test for empty records; a power failure may leave only zeros."""
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
    predictions: bool = False
    n_iter: int = 0
    stop_reason: Text | None = None
    inertia: float | None = None
    """Inertia if the objective is that of k-means, otherwise None."""
    objective: dict[Word, Word | float | None] | None = None
    """Any other objective and its value, as in ``algorithms.objective.Objective.describe``."""
    figures: dict[Text, float] | None = None
    """Result of ``Model.fit_figures``, or None without a model."""
    seconds: float | None = None
    """Total time of all runs, in seconds."""
    error: Text | None = None
    message: Text | None = None
    traceback: Text | None = None


Takes = Annotated[FitMemory, PlainValidator(TypeAdapter(FitMemory).validate_python)]
"""Memory of a fit; unlike in a record, unknown fields of later versions are ignored."""


def _spec_in(document: Any) -> JobSpec:
    if isinstance(document, JobSpec):
        return document
    return JobSpec.parse(_without(REMOVED_FROM_SPEC, document))


@dataclass(frozen=True, slots=True)
class Record:
    """Stored record of a job, whose types and bounds are checked when it is read."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    id: Annotated[str, Field(pattern=f"^{JOB_ID.pattern}$")]
    spec: Annotated[JobSpec, PlainValidator(_spec_in)]
    owner: Annotated[str, Field(max_length=200)]
    created: Annotated[float, Field(ge=0)]
    """Submission time as Unix time."""
    run: Annotated[int, Field(ge=1)] = 1
    """Number of the run, incremented when an ended job is resumed."""
    cancel: bool = False
    result: Result | None = None
    """Result of this run; None until the run has ended."""
    ended: Annotated[float, Field(ge=0)] | None = None
    """End of this run as Unix time; None before the end, or in records of earlier versions."""
    versions: Annotated[tuple[Word, ...], Field(max_length=1_000)] = ()
    """Versions of this package that computed the job, in order; users accepted each change."""
    takes: Takes | None = None
    """Memory that the fit needs; None in records of earlier versions."""
    format: Literal[1] = FORMAT


RECORD = TypeAdapter(Record)


class Records:
    """Job records of one scheduler, stored in ``largek.store``.

    ``lease`` is the scheduler's lease on the store, which is checked before every write or removal.
    LostJobError is raised once another scheduler has claimed the store. ``former_owners`` are
    schedulers that held the store before and have lost all their jobs.
    """

    def __init__(self, folder: Folder, lease: Lease | None = None) -> None:
        # Records contain user names and data addresses, so only the owner may read them.
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
        """Return the same records, with every write guarded by a lease."""
        return Records(self.folder, lease)

    def check(self) -> None:
        """Raise LostJobError if another scheduler has claimed the store."""
        if self.lease is not None:
            self.lease.check()

    def check_writable(self) -> None:
        self._folder.check_writable()

    def create(
        self, spec: JobSpec, owner: str, created: float, takes: FitMemory | None = None
    ) -> Record:
        """Create a new id, and store a new job under it.

        If LostJobError is raised, the scheduler that claimed the store may or may not have loaded
        the job.
        """
        while True:
            record = Record(f"lk-{uuid.uuid4().hex[:10]}", spec, owner, created, takes=takes)
            self._made.add(record.id)
            try:
                if self._folder.create(f"{record.id}.json", _dumped(record)):
                    # Check again, because the lease may have been lost during the write.
                    self.check()
                    return record
            except BaseException:
                self._made.discard(record.id)
                raise

    def update(self, record: Record) -> None:
        """Overwrite the record of a job.

        If LostJobError is raised, the scheduler that claimed the store may not have loaded the
        change.
        """
        self._folder.publish(f"{record.id}.json", _dumped(record))
        self.check()

    def stamps(self) -> dict[str, int]:
        """Return a hash for each job id, which changes when the record is written."""
        found = self._folder.stamps()
        return {job_id: found[f"{job_id}.json"] for job_id in map(_job_of, found) if job_id}

    def is_new(self, job_id: str) -> bool:
        """Return whether this object created the job and has not removed it."""
        return job_id in self._made

    def is_stored(self, record: Record) -> bool:
        """Return whether the stored record equals ``record`` or does not exist."""
        document = _dumped(record)
        try:
            return self._folder.read(f"{record.id}.json", limit=len(document)) == document
        except FileNotFoundError:
            return True
        except DamagedError:
            return False

    def quarantine(self, job_id: str) -> bool:
        """Move a record to ``late/``, whose records are never loaded.

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
        """Read a record; raise ParameterError if it is damaged or from a newer version."""
        name = f"{checked_id(job_id)}.json"
        try:
            text = self._folder.read(name, limit=2 * MOST_BYTES)
            document = _without(REMOVED, json.loads(text, object_pairs_hook=unique_keys))
            found: Record = RECORD.validate_json(json.dumps(document))
        except FileNotFoundError:
            raise JobNotFoundError(
                f"there is no job {job_id} in {self.url}; jobs() lists the existing jobs."
            ) from None
        except (ValueError, RecursionError, DamagedError) as error:
            raise ParameterError(
                f"{self._folder.url}/{name} is not a job record that largek_dask {__version__} can "
                f"read ({faults_of(error)}): upgrade to the version that wrote it, or restore or "
                "move the file."
            ) from None
        if found.id != job_id:
            raise ParameterError(
                f"{self._folder.url}/{name} is the record of another job: move this file out of "
                "the store."
            )
        return found

    def all(self) -> list[Record]:
        """Return all records, oldest first; warn about unreadable records.

        If the store is held, empty records are moved to ``late/``. OSError is raised if storage
        cannot be reached.
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
                        f"its record was empty, and has been moved to {self.url}/{LATE}; submit "
                        "the job again with another output"
                    )
                warn(f"Job {job_id} is ignored: {reason}", RecoveryWarning)
        return sorted(records, key=lambda record: (record.created, record.id))

    def _is_quarantined(self, job_id: str) -> bool:
        """Quarantine a record if it is empty; return whether this was done."""
        try:
            text = self._folder.read(f"{job_id}.json", limit=2 * MOST_BYTES)
            return not text.strip(BLANK) and self.quarantine(job_id)
        except (LargekError, OSError):
            return False

    def reason(self, error: Exception) -> str:
        """Describe an error without the secrets that messages of storage drivers may contain."""
        text: str = self._redact(f"{type(error).__name__}: {error}")
        return text[:1_000]


def _without(names: Collection[str], document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    return {name: value for name, value in document.items() if name not in names}


def _job_of(name: str) -> str:
    """Return the job id in the file name of a record; empty for other file names."""
    job_id = name.removesuffix(".json")
    return "" if name == job_id or JOB_ID.fullmatch(job_id) is None else job_id


def checked_id(job_id: str) -> str:
    """Check that a job id is valid, and thus a safe file name; raise JobNotFoundError if not."""
    if not isinstance(job_id, str) or JOB_ID.fullmatch(job_id) is None:
        raise JobNotFoundError(
            f"{str(job_id)[:100]!r} is not a valid job id; jobs() lists the existing jobs."
        )
    return job_id


def _dumped(record: Record) -> bytes:
    document = RECORD.dump_python(record, mode="json", exclude={"spec", "format", "takes"})
    if record.takes is not None:
        document["takes"] = asdict(record.takes)
    document = {"format": FORMAT, **document, "spec": record.spec.dump()}
    return json.dumps(document, allow_nan=False).encode()


def read_result(folder: Folder, job_id: str, run: int) -> Result | None:
    """Return the result of one run of a job; None if there is no result yet.

    A torn result causes a warning and counts as missing. ParameterError is raised for the result of
    another job.
    """
    name = f"results/{run:06d}.json"
    try:
        document = folder.read(name, MOST_BYTES)
        if is_torn(document):
            # Do not warn about empty files: without hard links, a killed writer leaves them.
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
            f"{folder.url} is the output of job {found.job}, not of {job_id}: choose another "
            "output."
        )
    return found


def write_result(folder: Folder, result: Result) -> Result:
    """Publish the result of a run unless one exists; return the published result."""
    document = result.model_dump_json().encode()
    if folder.create(f"results/{result.run:06d}.json", document):
        return result
    standing = read_result(folder, result.job, result.run)
    if standing is None:
        folder.publish(f"results/{result.run:06d}.json", document)
        return result
    return standing


def labels_in(folder: Folder) -> bool:
    return not folder.exists(UNFINISHED_LABELS) and are_whole(folder.sub(LABELS))


def predictions_in(folder: Folder) -> bool:
    return folder.exists(PREDICTIONS) and not folder.exists(UNFINISHED[PREDICTIONS])
