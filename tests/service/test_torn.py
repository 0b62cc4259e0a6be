"""A scheduler starts where a power failure has emptied or torn files of its jobs and its store."""

import json
import re
import shutil
from itertools import cycle
from pathlib import Path

import dask
import numpy as np
import pytest
import zarr

import largek_dask as lk
from largek_dask.driver.storage import Folder
from largek_dask.errors import ClusterError, JobNotFoundError, ModelFormatError
from largek_dask.model import Model, load_model
from largek_dask.service.store import read_result
from tests.helpers.checks import fit_asked
from tests.service.conftest import begun, wait_until

SMALL = {"largek.checkpoints.seconds": 0.0, "largek.checkpoints.keep": 2}
ENDED = ("finished", "failed", "cancelled")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def blank(path: Path) -> None:
    """As a file system leaves it that writes a file's size before its data."""
    path.write_bytes(b"\0" * path.stat().st_size)


DAMAGES = [
    blank,
    # (The tests of each file have these two by turns.)
    pytest.param(empty, marks=pytest.mark.slow),
    pytest.param(cut, marks=pytest.mark.slow),
]


def files_in(*folders: Path) -> list[Path]:
    found = (path for folder in folders for path in folder.rglob("*"))
    return sorted(path for path in found if path.is_file() and path.stat().st_size)


class Places:
    """A job's output and its scheduler's store, put back to what they were."""

    def __init__(self, root: Path) -> None:
        self.root, self.saved = root, root / "saved"
        self.job_id = ""

    def save(self, job_id: str) -> None:
        self.job_id = job_id
        for name in ("out", "store"):
            shutil.copytree(self.root / name, self.saved / name)

    def put_back(self) -> None:
        for name in ("out", "store"):
            shutil.rmtree(self.root / name)
            shutil.copytree(self.saved / name, self.root / name)

    @property
    def record(self) -> Path:
        return self.root / "store" / "jobs" / f"{self.job_id}.json"

    def labels(self) -> np.ndarray:
        return np.asarray(zarr.open_array(str(self.root / "out" / "labels.zarr"), mode="r")[:])


@pytest.fixture
def finished(open_jobs, document, tmp_path):
    """The places of a job that has finished, of its model's digest and its labels."""
    with dask.config.set(SMALL):
        jobs = open_jobs()
        job_id = jobs.submit(document(labels=True, algorithm=lk.Lloyd(), max_iter=4), {}, "me")
        digest = wait_until(jobs, job_id, *ENDED)["result"]["digest"]
        jobs.close(120.0)
    places = Places(tmp_path)
    places.save(job_id)
    return places, digest, places.labels()


@pytest.fixture
def unfinished(open_jobs, document, tmp_path, slow_steps):
    """The places of a job that was stopped after two steps."""
    with dask.config.set(SMALL):
        jobs = open_jobs()
        job_id = jobs.submit(document(labels=True, algorithm=lk.Lloyd(), max_iter=4), {}, "me")
        begun(jobs, job_id, 2)
        jobs.close(120.0)
        slow_steps.set()
        places = Places(tmp_path)
        places.save(job_id)
        yield places


@pytest.fixture(scope="module")
def finished_digest(rows_url):
    """The digest of these jobs' model."""
    rows = lk.open_rows(rows_url)
    return Model.of(fit_asked(rows, algorithm=lk.Lloyd(), n_clusters=7, max_iter=4)).digest()


@pytest.fixture
def restart(open_jobs):
    """``restart(job_id)``: a scheduler that has just been started, and the job's state."""

    def start(job_id):
        jobs = open_jobs()
        try:
            return jobs, jobs.status(job_id)
        except (ClusterError, JobNotFoundError) as error:
            return jobs, {"state": type(error).__name__}

    return start


def computed_again(jobs, places, digest, labels):
    job_id = places.job_id
    jobs.resume(job_id, {}, {})
    status = wait_until(jobs, job_id, *ENDED)
    assert status["state"] == "finished", status
    assert status["result"]["digest"] == digest == jobs.model(job_id).digest()
    assert load_model(str(places.root / "out")).digest() == digest
    assert np.array_equal(places.labels(), labels)


def of_one_kind(path: Path) -> str:
    """One name for files of which any is as good as the others."""
    where = re.sub("labels.zarr/c/[0-9]+", "labels.zarr/c/n", str(path))
    return re.sub("[0-9]+.zarr/.*", "n.zarr/file", where)


def one_of_each_kind(paths: list[Path]) -> list[Path]:
    return list({of_one_kind(path): path for path in paths}.values())


def test_each_file_of_a_job_that_has_finished(finished, restart, logged):
    places, digest, labels = finished
    whole = files_in(places.root / "out", places.root / "store")
    assert len([path for path in whole if "labels.zarr/c/" in str(path)]) == 6
    damaged = set()
    for path, damage in zip(one_of_each_kind(whole), cycle([empty, cut]), strict=False):
        places.put_back()
        damage(path)
        jobs, status = restart(places.job_id)
        where = str(path.relative_to(places.root))
        if path == places.record:
            assert any(places.job_id in line for line in logged)
            jobs.close(120.0)
            continue
        assert status["state"] == "finished", where
        if where.split("/")[1] == "model.zarr":
            with pytest.raises(ModelFormatError, match=re.escape("submit(resume=")):
                jobs.model(places.job_id)
        else:
            assert jobs.model(places.job_id).digest() == digest, where
        if where.split("/")[1] in ("model.zarr", "labels.zarr"):
            damaged.add(where.split("/")[1])
            computed_again(jobs, places, digest, labels)
        else:
            assert np.array_equal(places.labels(), labels), where
        jobs.close(120.0)
    assert damaged == {"model.zarr", "labels.zarr"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_all_files_of_a_job_that_has_finished(finished, restart, damage):
    """But those by which its scheduler knows of it."""
    places, digest, labels = finished
    for path in files_in(places.root / "out"):
        damage(path)
    jobs, status = restart(places.job_id)
    assert status["state"] == "finished"
    with pytest.raises(ModelFormatError):
        jobs.model(places.job_id)
    computed_again(jobs, places, digest, labels)


def test_each_file_of_a_job_that_has_not_ended(unfinished, restart, finished_digest):
    places = unfinished
    whole = one_of_each_kind(files_in(places.root / "out", places.root / "store"))
    assert [path for path in whole if path.parent.name == "checkpoints"]
    for path, damage in zip(whole, cycle([cut, empty]), strict=False):
        places.put_back()
        damage(path)
        jobs, status = restart(places.job_id)
        if path != places.record:
            status = wait_until(jobs, places.job_id, *ENDED)
            assert status["state"] == "finished", f"{path}: {status}"
            assert status["result"]["digest"] == finished_digest, path
        jobs.close(120.0)


@pytest.mark.parametrize("damage", DAMAGES)
def test_all_files_of_a_job_that_has_not_ended(unfinished, restart, finished_digest, damage):
    for path in files_in(unfinished.root / "out"):
        damage(path)
    jobs, _ = restart(unfinished.job_id)
    status = wait_until(jobs, unfinished.job_id, *ENDED)
    assert (status["state"], status["result"]["digest"]) == ("finished", finished_digest)
    topics = [event.get("topic") for event in jobs.events(unfinished.job_id, 0, 1000)]
    assert "RecoveryWarning" in topics


@pytest.mark.parametrize("damage", [empty, blank])
def test_an_empty_record_is_set_aside_and_named(finished, restart, logged, damage):
    places, *_ = finished
    damage(places.record)
    jobs, status = restart(places.job_id)
    assert status["state"] == "JobNotFoundError"
    assert jobs.listed() == []
    assert not places.record.exists()
    assert (places.root / "store" / "late" / places.record.name).exists()
    assert any(places.job_id in line and "empty" in line for line in logged)


def test_a_record_that_is_cut_off_is_named(finished, restart, logged):
    places, *_ = finished
    cut(places.record)
    _, status = restart(places.job_id)
    assert status["state"] == "JobNotFoundError"
    assert any(places.record.name in line for line in logged)
    assert places.record.exists()


def test_a_result_that_is_torn_was_not_written(unfinished, restart, finished_digest):
    result = unfinished.root / "out" / "results" / "000001.json"
    result.parent.mkdir()
    result.write_text('{"format": 1, "job": "lk')
    jobs, _ = restart(unfinished.job_id)
    assert wait_until(jobs, unfinished.job_id, *ENDED)["result"]["digest"] == finished_digest
    assert read_result(Folder(str(result.parent.parent)), unfinished.job_id, 1) is not None


def test_a_result_whose_model_is_torn_is_computed(finished, restart):
    """It was published, and the scheduler did not come to note it."""
    places, digest, labels = finished
    record = json.loads(places.record.read_text())
    record |= {"result": None}
    del record["ended"]
    places.record.write_text(json.dumps(record))
    empty(places.root / "out" / "model.zarr" / "centers" / "c" / "0" / "0")
    jobs, _ = restart(places.job_id)
    wait_until(jobs, places.job_id, "finished")
    with pytest.raises(ModelFormatError):
        jobs.model(places.job_id)
    computed_again(jobs, places, digest, labels)


def test_leftovers_of_a_write_are_in_nobodys_way(document, open_jobs, tmp_path):
    """As a power failure leaves them, before it or after."""
    name = f"job.json.{'0123456789abcdef' * 2}.partial"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_bytes(b"")
    jobs = open_jobs()
    job_id = jobs.submit(document(max_iter=2), {}, "me")
    assert wait_until(jobs, job_id, *ENDED)["state"] == "finished"
    assert Folder(str(tmp_path / "out")).exists(name)
