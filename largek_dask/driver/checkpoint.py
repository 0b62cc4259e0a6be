"""Write and read the checkpoints of a fit.

A job's folder::

    job.json                    the job: data, algorithm, parameters, seed, statistics
    checkpoints/000012.zarr/    the arrays of the state after step 12
    checkpoints/000012.json     written last: the rest of the state, the checksum of each array
    starts/01/checkpoints/...   the same for each further start of ``n_init``

A checkpoint is valid once its JSON file exists; this file is written atomically. Reading verifies
all checksums, and falls back to the previous checkpoint if one is damaged.

States are stored as JSON and named arrays, never as pickles. No class named in a file is imported:
only dataclasses in the type hints of the expected class are instantiated.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.data.derived_rows import SCALING, Scaling
from largek_dask.data.fingerprint import same_data
from largek_dask.data.storage_errors import unanswered
from largek_dask.driver.event_log import NAME as EVENTS
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.former_names import current_description, current_state
from largek_dask.driver.stopping import StepRecord, last_steps
from largek_dask.driver.storage import DamagedError, Folder, canonical_json, is_torn
from largek_dask.errors import CheckpointError, DataChangedError, OutputError, RecoveryWarning, warn
from largek_dask.fault_injection import at
from largek_dask.kernels.exact.statistics import Statistics
from largek_dask.version import check_format

FORMAT = 2
"""Version of the file format; files of format 1 contain former names of algorithms."""
KINDS = "biuf"
"""Kinds of numpy dtypes that may be stored: boolean, integer and float."""
PUBLISHED = re.compile(r"(\d{6,12})\.json")
RESUMED = ("checkpoints", "starts", "counted.json")
"""Files that are needed only to resume a fit."""
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Progress(Generic[State]):
    """State of a fit between two steps, sufficient to resume the fit."""

    state: State
    n_iter: int
    history: Sequence[StepRecord]
    """Step records. Ignore records after step ``n_iter``; the oldest records may be missing."""
    seconds: float
    """Seconds used so far, including earlier runs."""

    def records(self) -> list[StepRecord]:
        return last_steps(self.history, self.n_iter)


class Checkpoints(Generic[State]):
    """Checkpoints of one start of a fit, stored in the subfolder ``checkpoints/``.

    ``expected`` is the algorithm's state class, or a union of state classes.
    """

    def __init__(self, folder: Folder, expected: type[State] | UnionType) -> None:
        self.folder = folder.sub("checkpoints")
        self._expected = expected
        self._keep = max(1, config.get("checkpoints.keep"))
        self._every = config.get("checkpoints.seconds")
        self._written_at = time.monotonic()
        self._newest: int | None = None
        self._damaged: set[int] = set()
        self.has_failed = False
        """Whether the last write failed; set by the caller."""

    def latest(self) -> Progress[State] | None:
        """Return the newest intact checkpoint, or None; warn if a newer one is damaged.

        Raises OSError if storage does not answer, and CheckpointError for a newer format.
        """
        broken = []
        for n in sorted(self._published(), reverse=True):
            try:
                progress = self._read(n)
            except (DamagedError, OSError) as error:
                if unanswered(error):
                    raise
                if n not in self._published():
                    where = self.folder.url
                    raise FileNotFoundError(errno.ENOENT, "the store is gone", where) from error
                self._damaged.add(n)
                broken.append(f"{self.folder.url}/{n:06d} ({error})")
                continue
            if broken:
                self._warn(broken, f"the fit continues from the one after step {n}")
            self._newest = n
            return progress
        if broken:
            self._warn(broken, "there is no intact one, so the fit starts again")
        return None

    @staticmethod
    def _warn(broken: list[str], then: str) -> None:
        warn(f"Damaged checkpoint: {'; '.join(broken)}; {then}.", RecoveryWarning)

    def _published(self) -> list[int]:
        found = (PUBLISHED.fullmatch(name) for name in self.folder.names())
        return [int(match[1]) for match in found if match]

    def _read(self, n: int) -> Progress[State]:
        name = f"{n:06d}"
        try:
            record = json.loads(self.folder.read(f"{name}.json"))
            # Check the format first, because other formats may compute the digest differently.
            check_format(record, f"{self.folder.url}/{name}.json", CheckpointError, FORMAT)
            digest = record.pop("sha256")
            intact = digest == hashlib.sha256(canonical_json(record)).hexdigest()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{name}.json is not a valid record: {error!r}") from error
        if not intact:
            raise DamagedError(f"{name}.json does not match its recorded SHA-256 hash")
        arrays = self.folder.read_arrays(f"{name}.zarr", record["arrays"])
        state = decode(current_state(record["state"]), arrays, self._expected)
        return Progress(state, record["n_iter"], record["history"], record["seconds"])

    def due(self) -> bool:
        """Return whether the next checkpoint is due."""
        return bool(time.monotonic() - self._written_at >= self._every)

    def save(self, progress: Progress[State]) -> bool:
        """Write a checkpoint unless this step already has one; return whether it was written.

        A failed write raises OSError, and is not retried before the next checkpoint is due.
        """
        if self._newest == progress.n_iter:
            return False
        try:
            with at("checkpoint"):
                self._write(progress)
        finally:
            self._written_at = time.monotonic()
        return True

    def _write(self, progress: Progress[State]) -> None:
        n, name = progress.n_iter, f"{progress.n_iter:06d}"
        arrays: dict[str, NDArray[Any]] = {}
        tree = encode(progress.state, arrays)
        # Remove the record of a damaged checkpoint before its arrays are replaced.
        self.folder.remove(f"{name}.json")
        record = {
            "format": FORMAT,
            "n_iter": n,
            "seconds": progress.seconds,
            "state": tree,
            "history": progress.records(),
            "arrays": self.folder.write_arrays(f"{name}.zarr", arrays),
        }
        record["sha256"] = hashlib.sha256(canonical_json(record)).hexdigest()
        self.folder.publish(f"{name}.json", json.dumps(record, allow_nan=False).encode())
        self._newest = n
        self._damaged.discard(n)
        self._prune(n, self._keep)

    def keep_last(self) -> None:
        """Remove all checkpoints except the newest intact one; raise errors like :meth:`latest`."""
        if len(self._published()) > 1 and (last := self.latest()) is not None:
            self._prune(last.n_iter, keep=1)

    def _prune(self, newest: int, keep: int) -> None:
        """Remove old and damaged checkpoints, and arrays left by unfinished writes."""
        whole = sorted(n for n in self._published() if n <= newest and n not in self._damaged)
        kept = {f"{n:06d}{end}" for n in whole[-keep:] for end in (".json", ".zarr")}
        # Sorted order removes each record (.json) before its arrays (.zarr).
        for name in sorted(set(self.folder.names()) - kept):
            self.folder.remove(name)


def encode(value: Any, arrays: dict[str, NDArray[Any]], where: str = "state") -> Any:
    """Encode ``value`` as JSON that refers to arrays by name, and add the arrays to ``arrays``.

    Supported values are None, bool, int, float, str, numpy scalars, numeric arrays, tuples and
    dataclasses. Other values raise TypeError with a message that begins with ``where``.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.generic) and value.dtype.kind in KINDS:
        number = np.asarray(value, value.dtype.newbyteorder("<"))
        return {"scalar": number.dtype.str, "hex": number.tobytes().hex()}
    if isinstance(value, np.ndarray) and value.dtype.kind in KINDS:
        # Store each array once, even if the state contains it several times.
        known = (name for name, array in arrays.items() if array is value)
        name = next(known, f"a{len(arrays)}")
        arrays[name] = np.atleast_1d(value)
        return {"array": name, "shape": list(value.shape)}
    if type(value) is tuple:
        return {"tuple": [encode(v, arrays, f"{where}[{i}]") for i, v in enumerate(value)]}
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "class": type(value).__qualname__,
            "fields": {
                f.name: encode(getattr(value, f.name), arrays, f"{where}.{f.name}")
                for f in fields(value)
                if f.init
            },
        }
    raise TypeError(
        f"{where} is a {type(value).__name__}; a state may contain numeric arrays, numbers, "
        "strings, None, tuples and dataclasses."
    )


def decode(tree: Any, arrays: Mapping[str, NDArray[Any]], expected: type | UnionType) -> Any:
    """Decode the result of :func:`encode`; equal arrays and dataclasses become one object.

    Only instances of ``expected`` (a class or union) and of dataclasses in its type hints are
    created. Raises DamagedError if ``tree`` is not a valid encoding.
    """
    known = _dataclasses_of(expected)
    made: dict[str, Any] = {}

    def once(node: Any, make: Callable[[], Any]) -> Any:
        key = json.dumps(node)
        if key not in made:
            made[key] = make()
        return made[key]

    def as_array(name: str, shape: list[int]) -> NDArray[Any]:
        array = arrays[name].reshape(shape)
        array.flags.writeable = False
        return array

    def walk(node: Any) -> Any:
        match node:
            case None | bool() | int() | float() | str():
                return node
            case {"float": str(text)}:
                return float(text)
            case {"scalar": str(dtype), "hex": str(digits)}:
                return np.frombuffer(bytes.fromhex(digits), _numeric(dtype))[0]
            case {"array": str(name), "shape": list(shape)}:
                return once(node, lambda: as_array(name, shape))
            case {"tuple": list(items)}:
                return tuple(walk(item) for item in items)
            case {"class": str(name), "fields": dict(values)}:
                kind = known[name]
                return once(node, lambda: kind(**{key: walk(v) for key, v in values.items()}))
        raise ValueError(f"{node!r} is not an encoded value")

    try:
        return walk(tree)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        name = expected.__name__ if isinstance(expected, type) else str(expected)
        raise DamagedError(f"the stored {name} cannot be decoded: {error!r}") from error


def _numeric(text: str) -> np.dtype[Any]:
    dtype = np.dtype(text)
    if dtype.kind not in KINDS:
        raise ValueError(f"dtype {text} is not numeric")
    return dtype


def _dataclasses_of(expected: type | UnionType) -> dict[str, Callable[..., Any]]:
    """Return all dataclasses found in a type and its type hints, by qualified name."""
    found: dict[str, Callable[..., Any]] = {}
    waiting: list[Any] = [expected]
    while waiting:
        kind = waiting.pop()
        # Also visit a generic class and its type arguments.
        waiting.extend(part for part in (get_origin(kind), *get_args(kind)) if part is not None)
        if isinstance(kind, type) and is_dataclass(kind) and kind.__qualname__ not in found:
            found[kind.__qualname__] = kind
            hints = get_type_hints(kind)
            waiting.extend(hints[f.name] for f in fields(kind))
    return found


def check_output_folder(folder: Folder, advice: str, *, may_be_begun: bool = True) -> None:
    """Raise OutputError unless the folder is empty or contains a fit that can be resumed.

    With ``may_be_begun=False``, the folder must be empty. The error message ends with ``advice``.
    :class:`FitFolder` checks whether the folder belongs to the same job.
    """
    names = folder.names()
    # A fit that was killed before its rows were scanned has written only events.
    is_begun = "job.json" in names or (names == [EVENTS] and JsonLines.is_in(folder))
    if names and not (may_be_begun and is_begun):
        holds = "already contains a job" if is_begun else "is not empty and contains no job"
        raise OutputError(
            f"{folder.url} {holds} (it contains {names[0]!r}); nothing was changed. {advice}"
        )


def description_in(folder: Folder) -> dict[str, Any] | None:
    """Return the content of ``job.json``, or None if the folder contains no fit.

    Raises CheckpointError if it is unreadable, or missing although there are checkpoints.
    """
    try:
        record = json.loads(folder.read("job.json"))
        head: dict[str, Any] = {"format": int(record["format"])}
        if isinstance(versions := record.get("versions"), dict):
            head["version"] = versions.get("largek_dask", "")
        check_format(head, f"{folder.url}/job.json", CheckpointError, FORMAT)
        job = record["job"]
        if "algorithm" in job:
            current = current_description(job["algorithm"], head["format"])
            record["job"] = {**job, "algorithm": current}
        found = {key: record[key] for key in ("format", "job", "data", "versions", "statistics")}
        return found | {"scaling": record.get("scaling")}
    except FileNotFoundError:
        if folder.sub("checkpoints").names():
            raise CheckpointError(
                f"{folder.url} contains checkpoints, but no job.json that describes their job; use "
                "another folder."
            ) from None
        return None
    except (ValueError, KeyError, TypeError, DamagedError) as error:
        raise CheckpointError(
            f"{folder.url}/job.json cannot be read ({error!r}); use another folder."
        ) from error


def remove_torn_job(folder: Folder) -> None:
    """Remove an empty or truncated ``job.json`` and all checkpoints, with a RecoveryWarning."""
    try:
        if not is_torn(folder.read("job.json")):
            return
    except (FileNotFoundError, DamagedError):
        return
    warn(
        f"{folder.url}/job.json is empty or truncated, as after a power failure: it is "
        "removed with all checkpoints, and the fit starts again.",
        RecoveryWarning,
    )
    # Remove job.json last, because checkpoints without job.json would block every fit.
    for name in (*RESUMED, "job.json"):
        folder.remove(name)


def _difference(what: str, theirs: Any, mine: Any) -> tuple[str, Any, Any]:
    """Return the name of the first field that differs, and both values of the field."""
    if isinstance(theirs, Mapping) and isinstance(mine, Mapping):
        for name in sorted({*theirs, *mine}, key=lambda name: (name != "name", name)):
            if theirs.get(name) != mine.get(name):
                return f"{what} {name}", theirs.get(name), mine.get(name)
    return what, theirs, mine


def scaling_in(description: Mapping[str, Any]) -> Scaling | None:
    """Return the scaling in a result of :func:`description_in`; None if features are not scaled.

    Raises CheckpointError if it is damaged.
    """
    found: Any = description.get("scaling")
    if found is None and description["job"].get("scale") is None:
        return None
    try:
        d = len(found["mean"])
        return Scaling(*(np.array(found[name], np.float64).reshape(d) for name in SCALING))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"job.json has no readable scaling of the features ({error!r}); give another folder."
        ) from error


class FitFolder:
    """Folder of one fit, which only the same job can reopen.

    When a fit is resumed, ``identity`` (algorithm, parameters, seed) and ``data``
    (``Rows.fingerprint()`` and column names) must be unchanged; otherwise CheckpointError or
    DataChangedError is raised. If package versions (``versions``) differ, a RecoveryWarning says
    that results may differ in their last bits.
    """

    def __init__(
        self,
        folder: Folder,
        identity: Mapping[str, Any],
        data: Mapping[str, Any],
        versions: Mapping[str, str],
    ) -> None:
        self.folder = folder
        # A round trip through JSON makes this record comparable to stored records.
        self._record: dict[str, Any] = json.loads(
            canonical_json(
                {"format": FORMAT, "job": identity, "data": data, "versions": dict(versions)}
            )
        )
        self._before = description_in(folder)
        if self._before is not None:
            self._compare(self._before)

    def _compare(self, before: Mapping[str, Any]) -> None:
        mine, theirs = self._record["job"], before["job"]
        for key in sorted({*mine, *theirs}):
            if mine.get(key) != theirs.get(key):
                what, old, new = _difference(key, theirs.get(key), mine.get(key))
                raise CheckpointError(
                    f"{self.folder.url} contains another job: its {what} is {old!r}, not {new!r}. "
                    f"Use the same {key} or another folder."
                )
        changed = same_data(before["data"], self._record["data"])
        if changed is not None:
            raise DataChangedError(
                f"{self.folder.url} contains a fit of other data. {changed} "
                "Restore the data, or use another folder."
            )
        versions = self._record["versions"]
        other = [
            f"{name} {before['versions'].get(name)} then, {version} now"
            for name, version in versions.items()
            if before["versions"].get(name) != version
        ]
        if other:
            warn(
                f"{self.folder.url} was started with other versions ({'; '.join(other)}): "
                "the result may differ in its last bits.",
                RecoveryWarning,
            )

    @property
    def is_new(self) -> bool:
        return self._before is None

    @property
    def begun_with(self) -> dict[str, str]:
        """Package versions at the start of the job; empty if they equal the current versions."""
        before = {} if self._before is None else dict(self._before["versions"])
        return {} if before == self._record["versions"] else before

    def statistics(self) -> Statistics | None:
        """Return the row statistics that an earlier run stored, or None for a new job."""
        if self._before is None:
            return None
        try:
            return Statistics.from_dict(self._before["statistics"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return None  # Another version wrote these statistics, so the rows are scanned again.

    def scaling(self) -> Scaling | None:
        """Return the scaling of the features that an earlier run computed, if any."""
        return None if self._before is None else scaling_in(self._before)

    def begin(self, statistics: Statistics, scaling: Scaling | None = None) -> None:
        """Write ``job.json`` if it does not exist yet."""
        if self._before is None:
            record = {**self._record, "statistics": statistics.to_dict()}
            if scaling is not None:
                record["scaling"] = {"mean": scaling.mean.tolist(), "scale": scaling.scale.tolist()}
            self.folder.publish("job.json", json.dumps(record, indent=1).encode())
            self._before = record
