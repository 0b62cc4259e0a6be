from __future__ import annotations

import errno
import json
import re
import shutil
import tracemalloc
import warnings
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pytest

from largek_dask import config
from largek_dask.driver.checkpoint import Checkpoints, FitFolder, Progress
from largek_dask.driver.stopping import StopRules
from largek_dask.driver.storage import Folder, canonical_json
from largek_dask.errors import CheckpointError, RecoveryWarning
from largek_dask.kernels.exact.statistics import RowScan, Statistics
from tests.driver.test_run import assert_same, every_step, go
from tests.driver.toy import ToyPasses, ToyState, toy_rows
from tests.faults.stores import Away, Dies, FaultyFileSystem, Plan
from tests.helpers.covering import in_turns

ONCE = {"largek.stores.tries": 1}


def state_of(step: int) -> ToyState:
    return ToyState(step, np.full((2, 2), step / 3), (0.1, float("inf")), None)


def progress_of(step: int) -> Progress[ToyState]:
    return Progress(state_of(step), step, (), float(step))


# --- what is kept


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    checkpoints = every_step(Folder(str(tmp_path)))
    for step in range(5):
        assert checkpoints.save(progress_of(step))
    assert not checkpoints.save(progress_of(4))  # it is there already
    assert checkpoints.folder.names() == [
        f"{n:06d}.{kind}" for n in (2, 3, 4) for kind in ("json", "zarr")
    ]
    latest = every_step(Folder(str(tmp_path))).latest()
    assert latest is not None
    assert (latest.n_iter, latest.seconds, latest.state.path) == (4, 4.0, (0.1, float("inf")))
    assert not latest.state.centers.flags.writeable


def test_it_is_due_by_the_clock_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(
        "largek_dask.driver.checkpoint.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    checkpoints = Checkpoints(Folder(str(tmp_path)), ToyState)
    assert not checkpoints.due()
    now[0] = float(config.get("checkpoints.seconds"))
    assert checkpoints.due()
    checkpoints.save(progress_of(1))
    assert not checkpoints.due()


def test_a_new_folder_has_none(tmp_path: Path) -> None:
    assert every_step(Folder(str(tmp_path / "new"))).latest() is None


def test_numpy_reads_what_is_there(tmp_path: Path) -> None:
    """Plain Zarr and JSON, no format of our own."""
    import zarr

    every_step(Folder(str(tmp_path))).save(progress_of(7))
    record = json.loads((tmp_path / "checkpoints/000007.json").read_text())
    group = zarr.open_group(str(tmp_path / "checkpoints/000007.zarr"), mode="r")
    name = record["state"]["fields"]["centers"]["array"]
    np.testing.assert_array_equal(group[name][...], np.full((2, 2), 7 / 3))


# --- damage


def files_of_checkpoint(n: int) -> list[str]:
    """The files of the toy's checkpoint, relative to ``checkpoints/``."""
    return [
        f"{n:06d}.json",
        f"{n:06d}.zarr/zarr.json",
        f"{n:06d}.zarr/a0/zarr.json",
        f"{n:06d}.zarr/a0/c/0/0",
        f"{n:06d}.zarr/a1/c/0",
    ]


def hurt(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "torn":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    else:  # one bit of one byte in the middle
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


@pytest.fixture(scope="module")
def after_five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job")
    go(StopRules(max_iter=5, tol=0), checkpoints=every_step(Folder(str(path))))
    return path


@pytest.mark.parametrize("how", ["torn", "flipped", "empty"])
@pytest.mark.parametrize("name", files_of_checkpoint(5))
def test_damage_falls_back_to_the_one_before(
    name: str, how: str, after_five: Path, tmp_path: Path
) -> None:
    job = tmp_path / "job"
    shutil.copytree(after_five, job)
    hurt(job / "checkpoints" / name, how)
    passes = ToyPasses(toy_rows())
    folder = Folder(str(job))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = go(passes=passes, checkpoints=every_step(folder))
    assert_same(result, go())
    if told:
        assert re.search("000005.*after step 4", str(told[0].message))
        assert passes.chunks_done == 4 * passes.n_chunks
    else:
        # One bit of Zarr's own metadata may change nothing that matters.
        assert name.endswith("zarr.json")
        assert passes.chunks_done == 3 * passes.n_chunks
    # The damaged one has been replaced.
    assert_same(go(checkpoints=every_step(folder)), go())


def test_missing_arrays_are_damage(after_five: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    shutil.copytree(after_five, job)
    shutil.rmtree(job / "checkpoints/000005.zarr")
    with pytest.warns(RecoveryWarning, match="000005"):
        assert_same(go(checkpoints=every_step(Folder(str(job)))), go())


def test_a_checkpoint_that_claims_more_than_is_there_takes_no_memory(
    after_five: Path, tmp_path: Path
) -> None:
    shutil.copytree(after_five, tmp_path / "job")
    place = tmp_path / "job" / "checkpoints"
    record = json.loads((place / "000005.json").read_text())
    [key] = [name for name, noted in record["arrays"].items() if noted["shape"] == [3, 2]]
    n = 10**9
    record["arrays"][key]["shape"] = [n, 2]
    del record["sha256"]
    record["sha256"] = sha256(canonical_json(record)).hexdigest()
    (place / "000005.json").write_text(json.dumps(record))
    meta = json.loads((place / "000005.zarr" / key / "zarr.json").read_text())
    meta["shape"] = [n, 2]
    meta["chunk_grid"]["configuration"]["chunk_shape"] = [4_000_000, 2]
    (place / "000005.zarr" / key / "zarr.json").write_text(json.dumps(meta))
    tracemalloc.start()
    try:
        with pytest.warns(
            RecoveryWarning, match=r"250 chunks of 64000000 bytes, but its chunk c/0"
        ):
            latest = every_step(Folder(str(tmp_path / "job"))).latest()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert latest is not None
    assert latest.n_iter == 4


def test_when_all_are_damaged_the_fit_starts_again(after_five: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    shutil.copytree(after_five, job)
    for path in (job / "checkpoints").glob("*.json"):
        hurt(path, "torn")
    passes = ToyPasses(toy_rows())
    with pytest.warns(RecoveryWarning, match="000005.*000004.*000003.*starts again"):
        result = go(passes=passes, checkpoints=every_step(Folder(str(job))))
    assert_same(result, go())
    assert passes.chunks_done == 9 * passes.n_chunks


# --- storage that does not answer


def unanswered_errors() -> dict[str, Exception]:
    """What file systems and drivers raise where nobody answers, or nobody may read."""
    from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError
    from fsspec.exceptions import FSTimeoutError

    where = "http://127.0.0.1:9/jobs"
    return {
        "connect-timeout": ConnectTimeoutError(endpoint_url=where),
        "read-timeout": ReadTimeoutError(endpoint_url=where),
        "no-connection": EndpointConnectionError(endpoint_url=where),
        "fsspec-timeout": FSTimeoutError(),
        "timeout": TimeoutError("no answer"),
        "refused": ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        "stale": OSError(errno.ESTALE, "the folder was mounted anew"),
        "forbidden": PermissionError(errno.EACCES, "the token is too old"),
    }


# Nobody asks for the description of the group, which holds nothing but these arrays.
@pytest.mark.parametrize(
    ("file", "kind"),
    in_turns(
        [f for f in files_of_checkpoint(5) if "5.zarr/zarr" not in f], list(unanswered_errors())
    ),
)
def test_a_checkpoint_out_of_reach_is_not_damaged(
    kind: str, file: str, machine: type[FaultyFileSystem]
) -> None:
    folder = Folder("faulty://job")
    go(StopRules(max_iter=5, tol=0), checkpoints=every_step(folder))
    machine.follow(plan := Away(unanswered_errors()[kind], file))
    checkpoints = every_step(folder)
    plan.gone.set()
    # Warnings are errors here: nobody is told of damage.
    with dask.config.set(ONCE), pytest.raises(OSError):
        checkpoints.latest()
    assert plan.asked > 0
    plan.gone.clear()
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.n_iter == 5
    checkpoints.save(progress_of(6))
    assert "000005.json" in checkpoints.folder.names()


def test_a_store_that_goes_after_its_list_was_read_is_not_damaged(
    machine: type[FaultyFileSystem],
) -> None:
    class Gone(Plan):
        """Nothing is mounted any more once a record is asked for."""

        hit = False

        def read(self, path: str) -> None:
            self.hit = self.hit or path.endswith("000005.json")
            if self.hit:
                raise FileNotFoundError(errno.ENOENT, "nothing is mounted", path)

    folder = Folder("faulty://job")
    go(StopRules(max_iter=5, tol=0), checkpoints=every_step(folder))
    machine.follow(plan := Gone())
    with pytest.raises(FileNotFoundError, match="the store is gone"):
        every_step(folder).latest()
    assert plan.hit
    machine.follow(Plan())
    latest = every_step(folder).latest()
    assert latest is not None
    assert latest.n_iter == 5


# --- a writer that dies


@pytest.fixture
def machine() -> Iterator[type[FaultyFileSystem]]:
    FaultyFileSystem.clear()
    yield FaultyFileSystem
    FaultyFileSystem.clear()


def assert_all_whole(machine: type[FaultyFileSystem], folder: Folder) -> None:
    """Every published checkpoint can be read, not only the newest."""
    files, folders = dict(machine.store), list(machine.pseudo_dirs)
    while (latest := every_step(folder).latest()) is not None:
        folder.remove(f"checkpoints/{latest.n_iter:06d}.json")
    machine.store.clear()
    machine.store.update(files)
    machine.pseudo_dirs[:] = folders


def test_a_writer_killed_at_any_change_loses_no_published_checkpoint(
    machine: type[FaultyFileSystem],
) -> None:
    rules = StopRules(max_iter=3, tol=0)
    whole = go(rules)
    machine.follow(counting := Dies())
    go(rules, checkpoints=every_step(Folder("faulty://count"), keep=2))
    n_changes = counting.changes
    assert n_changes > 20
    best = 0
    for dies_at in range(n_changes):
        machine.clear()
        folder = Folder("faulty://job")
        # The store alone: who computes goes on without it.
        machine.follow(plan := Dies(dies_at))
        assert_same(go(rules, checkpoints=every_step(folder, keep=2)), whole)
        assert plan.dead.is_set()
        machine.follow(Plan())
        # Warnings are errors here: nothing torn is ever taken for a checkpoint.
        latest = every_step(folder, keep=2).latest()
        published = -1 if latest is None else latest.n_iter
        assert published >= best - 1
        best = max(best, published)
        assert_all_whole(machine, folder)
        assert_same(go(rules, checkpoints=every_step(folder, keep=2)), whole)
        kept = folder.sub("checkpoints").names()
        assert kept[-4:] == ["000002.json", "000002.zarr", "000003.json", "000003.zarr"]
    assert best == 3


# --- whose folder it is

DATA = {
    "content": {"shape": [4, 2], "dtype": "float64", "sha256": "aa", "weight_sha256": None},
    "chunk_rows": [[4, 1]],
    "location": None,
    "stamps": None,
}
ASKED = {"algorithm": {"name": "Toy", "noise": 0.1}, "n_clusters": 3, "seed": 0}


def statistics() -> Statistics:
    scan = RowScan(2, np.float64)
    scan.add(np.array([[0.1, 2], [3, 4], [5, 6], [7, 8]]))
    return scan.finish()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    job = FitFolder(Folder(str(tmp_path)), ASKED, DATA, {"numpy": "2.0"})
    assert job.statistics() is None
    job.begin(statistics())
    return Folder(str(tmp_path))


def test_the_same_job_finds_its_statistics(folder: Folder) -> None:
    found = FitFolder(folder, ASKED, DATA, {"numpy": "2.0"}).statistics()
    assert found is not None
    assert found.to_dict() == statistics().to_dict()


def test_other_versions_are_named(folder: Folder) -> None:
    with pytest.warns(RecoveryWarning, match=r"numpy 2\.0 then, 3\.0 now"):
        FitFolder(folder, ASKED, DATA, {"numpy": "3.0"})


def test_checkpoints_of_nobody_are_refused(folder: Folder) -> None:
    every_step(folder).save(progress_of(1))
    folder.remove("job.json")
    with pytest.raises(CheckpointError, match=r"no job\.json"):
        FitFolder(folder, ASKED, DATA, {})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": "x"}'])
def test_a_broken_job_file_is_refused(folder: Folder, text: str) -> None:
    folder.publish("job.json", text.encode())
    with pytest.raises(CheckpointError, match=r"job\.json cannot be read"):
        FitFolder(folder, ASKED, DATA, {})


def test_statistics_of_another_version_are_scanned_again(folder: Folder) -> None:
    record = json.loads(folder.read("job.json"))
    record["statistics"] = {"mean": 1}
    folder.publish("job.json", json.dumps(record).encode())
    assert FitFolder(folder, ASKED, DATA, {"numpy": "2.0"}).statistics() is None
