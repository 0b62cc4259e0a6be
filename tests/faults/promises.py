"""Programs that say what they have written, each with a check of what is there after a crash.

``python -m tests.faults.promises DATA FOLDER`` runs all of them, and writes what they say to the
file ``said`` in the folder, a line of JSON for each thing that is to be durable from then on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import dask
import numpy as np
import scipy.sparse
import zarr
from distributed import LocalCluster

import largek_dask as lk
from largek_dask.data import store_writer
from largek_dask.data.store_writer import write_weighted_rows
from largek_dask.data.stores import ATTRIBUTE
from largek_dask.driver import labels
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.options import FitOptions
from largek_dask.driver.storage import Folder
from largek_dask.errors import LargekError, ModelFormatError, OutputError, RecoveryWarning
from largek_dask.service import queue
from largek_dask.service.lease import Claimant
from largek_dask.service.runner import fit_into
from tests.faults.inprocess import MAX_ITER, QUICK, Small, ended, scheduler

SAID = "said"
N_CLUSTERS, CHUNK_ROWS = 6, 100
FEW_ROWS, FEW_VALUES = 150, 500
JOBS = {"lloyd": lk.Lloyd(), "nmbatch": lk.NMBatch(b0=50)}
DATA = ("dense", "sparse")

Say = Callable[..., None]
Said = dict[tuple[str, ...], Any]
"""What was said last of each thing."""


@contextlib.contextmanager
def small_steps() -> Iterator[None]:
    """Have checkpoints after every step, small groups and chunks, and short waits."""
    before = queue.TICK_SECONDS, labels.GROUP_ROWS, store_writer.CHUNK_VALUES
    queue.TICK_SECONDS, labels.GROUP_ROWS, store_writer.CHUNK_VALUES = 0.01, FEW_ROWS, FEW_VALUES
    try:
        with dask.config.set(QUICK):
            yield
    finally:
        queue.TICK_SECONDS, labels.GROUP_ROWS, store_writer.CHUNK_VALUES = before


def source(name: str) -> Any:
    """Rows to be ingested."""
    if name == "sparse":
        return scipy.sparse.random(400, 30, 0.2, format="csr", dtype=np.float32, random_state=5)
    return np.random.default_rng(3).standard_normal((400, 3)).astype(np.float32)


def make_data(folder: Path) -> None:
    """Write the rows that programs read, and a mixture."""
    for name in DATA:
        url = str(folder / f"{name}.zarr")
        lk.ingest(source(name), url, chunk_rows=CHUNK_ROWS, progress=False)
    fitted = lk.Mixture(4, random_state=0, max_iter=3).fit(source("dense"))
    fitted.model_.save(str(folder / "mixture.zarr"))


def digest_of_rows(url: str) -> str:
    """Return a hash of all rows of a store."""
    rows, found = lk.open_rows(url), hashlib.sha256()
    for number in range(rows.n_chunks):
        block = rows.read(number)
        dense = block.toarray() if hasattr(block, "toarray") else np.asarray(block)
        found.update(np.ascontiguousarray(dense).tobytes())
    return found.hexdigest()


def digest_of_labels(place: Path) -> str | None:
    """Return a hash of stored values; None unless the store says that it is complete."""
    try:
        node = zarr.open(str(place), mode="r")
    except (OSError, ValueError, KeyError):
        return None
    notes = node.attrs.get(ATTRIBUTE)
    if not isinstance(notes, dict) or notes.get("complete") is not True:
        return None
    if isinstance(node, zarr.Group):  # shares, as sparse rows
        return digest_of_rows(str(place))
    return hashlib.sha256(np.asarray(node[...]).tobytes()).hexdigest()


def digest_of_model(place: Path) -> str | None:
    """Return a model's digest; None if there is no whole model."""
    try:
        return lk.load_model(str(place)).digest()
    except ModelFormatError:
        return None


def digest_of_file(place: Path) -> str | None:
    """Return a hash of a file; None without a file."""
    return hashlib.sha256(place.read_bytes()).hexdigest() if place.exists() else None


class Program(ABC):
    """Something that writes into a folder and says what is durable there."""

    name: ClassVar[str]

    def __init__(self, data: Path) -> None:
        self.data = data

    @abstractmethod
    def run(self, folder: Path, say: Say) -> None:
        """Do it, and call ``say(kind, *names, value)`` for everything that is durable now."""

    @abstractmethod
    def check(self, folder: Path, said: Said, everything: Said) -> None:
        """Check after a crash that what had been said holds, then do it again to the end.

        Parameters
        ----------
        folder : Path
            As the crash has left it.
        said : dict
            What had been said before.
        everything : dict
            What is said by an undisturbed run.
        """

    def expect(self, said: Said, everything: Said, key: tuple[str, ...], found: Any) -> None:
        """Check that something is whole or absent, and whole if that was said."""
        assert found in (None, everything[key]), f"{key}: half of it is taken for whole"
        assert key not in said or found is not None, f"{key} was said, and is lost"


class Ingest(Program):
    """Rows are ingested: dense, sparse, and shuffled; a coreset is written."""

    name = "ingest"
    KINDS: ClassVar[dict[str, dict[str, Any]]] = {
        "dense": {},
        "sparse": {},
        "shuffled": {"shuffle": 1},
        "coreset": {},
    }

    def _ingest(self, folder: Path, kind: str, **more: Any) -> str:
        url = str(folder / f"{kind}.zarr")
        if kind == "coreset":
            x = source(kind)
            notes = {"kind": "coreset"}
            write_weighted_rows(url, x, np.ones(len(x)), np.arange(len(x)), notes, **more)
            return digest_of_rows(url)
        options = {**self.KINDS[kind], **more}
        lk.ingest(source(kind), url, chunk_rows=CHUNK_ROWS, progress=False, **options)
        return digest_of_rows(url)

    def run(self, folder: Path, say: Say) -> None:
        """Ingest all kinds."""
        for kind in self.KINDS:
            say("rows", kind, self._ingest(folder, kind))

    def check(self, folder: Path, said: Said, everything: Said) -> None:
        """Open what is there; what is not whole is ingested again."""
        for kind in self.KINDS:
            place = folder / f"{kind}.zarr"
            try:
                found = digest_of_rows(str(place))
            except (LargekError, OSError):
                found = None
            self.expect(said, everything, ("rows", kind), found)
            if found is None:
                try:
                    again = self._ingest(folder, kind, force=True)
                except OutputError as error:
                    assert "Remove it yourself" in str(error)  # noqa: PT017
                    shutil.rmtree(place)
                    again = self._ingest(folder, kind)
                assert again == everything["rows", kind]


class Fit(Program):
    """A fit into a folder: checkpoints, events, labels and the model."""

    name = "fit"
    n_init = 1

    def _fit(self, folder: Path, tell: Callable[[Any], None]) -> str:
        options = FitOptions(
            n_clusters=N_CLUSTERS,
            algorithm=lk.Lloyd(),
            max_iter=MAX_ITER,
            tol=0.0,
            seed=0,
            n_init=self.n_init,
        )
        rows = lk.open_rows(str(self.data / "dense.zarr"))
        assert rows.n_chunks > 3
        model, _ = fit_into(Folder(str(folder / "out")), rows, options, labels=True, events=[tell])
        return model.digest()

    def run(self, folder: Path, say: Say) -> None:
        """Fit once."""

        def tell(event: Any) -> None:
            if event["event"] == "checkpoint":
                say("checkpoint", str(event.get("start", 0)), event["n_iter"])

        digest = self._fit(folder, tell)
        say("labels", digest_of_labels(folder / "out" / "labels.zarr"))
        say("model", digest)

    def check(self, folder: Path, said: Said, everything: Said) -> None:
        """Go on from what is there; no step that a checkpoint was said of is done again."""
        out, steps = folder / "out", []
        self.expect(said, everything, ("model",), digest_of_model(out / "model.zarr"))
        found = digest_of_labels(out / "labels.zarr")
        self.expect(said, everything, ("labels",), found)
        begun = list(JsonLines.read(Folder(str(out))))
        assert all({"event", "time"} <= set(event) for event in begun)
        is_told = any(event["event"] == "stopped" for event in begun)
        assert is_told or ("model",) not in said, "events of a fit that had ended are lost"
        again = self._fit(folder, lambda event: event["event"] == "step" and steps.append(event))
        assert again == everything["model",]
        assert digest_of_model(out / "model.zarr") == again
        assert digest_of_labels(out / "labels.zarr") == everything["labels",]
        done = sum(n for key, n in said.items() if key[0] == "checkpoint")
        wanted = sum(n for key, n in everything.items() if key[0] == "checkpoint")
        assert len(steps) <= wanted - done, "a checkpoint that was said is lost"


class Starts(Fit):
    """A fit of several starts."""

    name = "starts"
    n_init = 2


class Estimator(Program):
    """An estimator with checkpoints, as a notebook has it."""

    name = "estimator"

    def _fit(self, folder: Path, callback: Callable[[Any], None]) -> str:
        fitted = lk.KMeans(
            N_CLUSTERS,
            algorithm=lk.NMBatch(b0=50),
            max_iter=MAX_ITER,
            tol=0.0,
            random_state=0,
            checkpoint=str(folder / "fit"),
            callbacks=[callback],
        ).fit(str(self.data / "sparse.zarr"))
        digest: str = fitted.model_.digest()
        return digest

    def run(self, folder: Path, say: Say) -> None:
        """Fit; the checkpoint before a step is written when the step begins."""
        digest = self._fit(folder, lambda snapshot: say("before", len(snapshot.history) - 1))
        say("steps", MAX_ITER)
        say("digest", digest)

    def check(self, folder: Path, said: Said, everything: Said) -> None:
        """Fit again: steps that were written are not done again."""
        steps: list[Any] = []
        assert self._fit(folder, steps.append) == everything["digest",]
        done = said.get(("steps",), said.get(("before",), 0))
        assert len(steps) <= MAX_ITER - done, "a checkpoint is lost"


class Values(Program):
    """A model is saved, and labels and probabilities are written to files."""

    name = "values"
    OUTS = ("labels.npy", "labels.csv", "labels.zarr")

    def _write(self, folder: Path, out: str) -> str | None:
        model = lk.load_model(str(self.data / "mixture.zarr"))
        rows = str(self.data / "dense.zarr")
        if out.startswith("soft"):
            # What a kill has left of them is removed by hand.
            shutil.rmtree(folder / out, ignore_errors=True)
            model.predict_proba(rows, out=str(folder / out))  # type: ignore[attr-defined]
        else:
            model.predict(rows, out=str(folder / out))
        return self._found(folder, out)

    @staticmethod
    def _found(folder: Path, out: str) -> str | None:
        place = folder / out
        return digest_of_labels(place) if out.endswith(".zarr") else digest_of_file(place)

    def run(self, folder: Path, say: Say) -> None:
        """Write all of them."""
        model = lk.load_model(str(self.data / "mixture.zarr"))
        model.save(str(folder / "model.zarr"))
        say("model", model.digest())
        for out in (*self.OUTS, "soft.zarr"):
            say("values", out, self._write(folder, out))

    def check(self, folder: Path, said: Said, everything: Said) -> None:
        """Look at each, and write those again that are not there."""
        self.expect(said, everything, ("model",), digest_of_model(folder / "model.zarr"))
        for out in (*self.OUTS, "soft.zarr"):
            found = self._found(folder, out)
            self.expect(said, everything, ("values", out), found)
            if found is None:
                assert self._write(folder, out) == everything["values", out]


class Service(Program):
    """Jobs on a cluster whose worker writes labels: records, claims, results, outputs."""

    name = "service"

    def run(self, folder: Path, say: Say) -> None:
        """Submit two jobs, one after the other, to a scheduler with one worker process."""
        with (
            dask.config.set({"largek.store": str(folder / "store")}),
            LocalCluster(
                n_workers=1,
                threads_per_worker=1,
                dashboard_address=None,
                scheduler_kwargs={"preload": "largek_dask.service.preload"},
            ) as cluster,
            lk.connect(cluster.scheduler_address) as service,
        ):
            for name, algorithm in JOBS.items():
                job = service.submit(
                    str(self.data / "dense.zarr"), algorithm=algorithm, n_clusters=N_CLUSTERS,
                    output=str(folder / name), max_iter=MAX_ITER, tol=0.0,
                )  # fmt: skip
                say("job", name, job.id)
                assert job.wait("60s") == "finished"
                say("digest", name, job.status()["result"]["digest"])
                say("labels", name, digest_of_labels(folder / name / "labels.zarr"))

    def check(self, folder: Path, said: Said, everything: Said) -> None:
        """Start a scheduler on the store; all jobs come to the same end."""
        for name in JOBS:
            model = digest_of_model(folder / name / "model.zarr")
            self.expect(said, everything, ("digest", name), model)
            self.expect(
                said, everything, ("labels", name), digest_of_labels(folder / name / "labels.zarr")
            )
        with scheduler("second", store=str(folder / "store")) as jobs:
            found = {row["id"]: jobs.status(row["id"]) for row in jobs.listed()}
            for name in JOBS:
                job_id = said.get(("job", name))
                assert job_id is None or job_id in found, f"job {name} was accepted, and is lost"
                if ("digest", name) in said:
                    assert found[job_id]["state"] == "finished", found[job_id]
            for job_id in found:
                status = ended(jobs, job_id)
                assert status["state"] == "finished", status
                name = Path(status["output"]).name
                assert status["result"]["digest"] == everything["digest", name]
                assert jobs.model(job_id).digest() == everything["digest", name]
                labels_found = digest_of_labels(folder / name / "labels.zarr")
                assert labels_found == everything["labels", name]
                if ("digest", name) in said:
                    assert status["result"]["token"] == found[job_id]["result"]["token"]


class Orders(Program):
    """Jobs are deleted, resumed and cancelled."""

    name = "orders"

    def _submit(self, jobs: Any, folder: Path, output: str, **changes: Any) -> str:
        small = Small("lloyd", str(self.data / "dense.zarr"))
        document = small.document(str(folder / output), **changes)
        job_id: str = jobs.submit(document, {}, "somebody")
        return job_id

    def run(self, folder: Path, say: Say) -> None:
        """Give the orders."""
        with scheduler("first", store=str(folder / "store")) as jobs:
            doomed, longer, cancelled = (
                self._submit(jobs, folder, name, **changes)
                for name, changes in (
                    ("doomed", {"labels": False}), ("longer", {}), ("cancelled", {})
                )
            )  # fmt: skip
            say("job", "longer", longer)
            jobs.cancel(cancelled)
            say("cancelled", cancelled)
            for job_id in (doomed, longer):
                say("digest", job_id, ended(jobs, job_id)["result"]["digest"])
            say("deleting", doomed)
            jobs.delete(doomed)
            say("deleted", doomed)
            jobs.resume(longer, {"max_iter": 2 * MAX_ITER}, {})
            say("resumed", longer)
            say("again", longer, ended(jobs, longer)["result"]["digest"])

    def check(self, folder: Path, said: Said, everything: Said) -> None:
        """The next scheduler knows of all orders, and carries them out."""
        longer = everything["job", "longer"]
        with scheduler("second", store=str(folder / "store")) as jobs:
            found = {status["id"]: status for status in jobs.listed()}
            assert ("deleted",) not in said or said["deleted",] not in found, (
                "a deleted job is back"
            )
            if ("cancelled",) in said:
                assert ended(jobs, said["cancelled",])["state"] == "cancelled"
            for job_id in found:
                status = ended(jobs, job_id)
                assert status["state"] in ("finished", "cancelled"), status
                if status["state"] == "finished":
                    digest = status["result"]["digest"]
                    if said.get(("deleting",)) == job_id:
                        # An interrupted deletion may leave the job without its model.
                        with contextlib.suppress(ModelFormatError):
                            assert jobs.model(job_id).digest() == digest
                        jobs.delete(job_id)
                        assert job_id not in {status["id"] for status in jobs.listed()}
                    else:
                        assert jobs.model(job_id).digest() == digest
                    if job_id == longer:
                        is_longer = status["result"]["n_iter"] > MAX_ITER
                        assert is_longer or ("resumed",) not in said
                        kind = "again" if is_longer else "digest"
                        assert digest == everything[kind, longer]
                    else:
                        # One that was cancelled or deleted, as far as anybody knows, was not.
                        assert digest == everything["digest", longer]


class Claims(Program):
    """Schedulers that take a job from each other: no number is given out twice."""

    name = "claims"

    def _claim(self, folder: Path, owner: str) -> Any:
        lease = Claimant(Folder(str(folder)), "lk-1", owner, patience=-1.0).claim()
        assert lease is not None
        return lease

    def run(self, folder: Path, say: Say) -> None:
        """Claim, show signs of life, and give back."""
        for owner in ("a", "b", "c"):
            lease = self._claim(folder, owner)
            say("token", lease.token)
            lease.renew()
            if owner == "b":
                lease.release()

    def check(self, folder: Path, said: Said, everything: Said) -> None:
        """The next claim has a number that nobody has had."""
        token = self._claim(folder, "late").token
        assert token > said.get(("token",), 0), "two schedulers have the same claim"


PROGRAMS = {
    program.name: program
    for program in (Ingest, Fit, Starts, Estimator, Values, Service, Orders, Claims)
}


def read_said(lines: bytes) -> Said:
    """Return what was said last of each thing."""
    said: Said = {}
    for line in lines.splitlines():
        *key, value = json.loads(line)
        said[tuple(key)] = value
    return said


def main() -> None:
    """Run the programs."""
    data, folder = Path(sys.argv[1]), Path(sys.argv[2])
    for name in PROGRAMS:
        number = os.open(folder / name / SAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def say(*words: Any, number: int = number) -> None:
            os.write(number, json.dumps(words).encode() + b"\n")

        PROGRAMS[name](data).run(folder / name / "disk", say)
        os.close(number)


if __name__ == "__main__":
    warnings.simplefilter("error", RecoveryWarning)
    with small_steps():
        main()
