"""Storage that is away for a while under a job, really: the job waits, says so, and goes on.

A server is stopped and started again, a folder renamed and renamed back, a file system refuses.
"""

from __future__ import annotations

import errno
import functools
import http.server
import io
import threading
import time

import dask
import numpy as np
import pytest

import largek_dask as lk
from largek_dask import fault_injection
from largek_dask.driver.labels import LabelStore, LabelWriter
from largek_dask.driver.storage import Folder
from largek_dask.model import Model, load_model
from largek_dask.service.runner import model_in
from largek_dask.service.spec import AlgorithmSpec, JobSpec
from tests.faults.inprocess import OUTPUT, ended, quick, scheduler
from tests.faults.stores import Away, FailsEvery, FaultyFileSystem, Plan
from tests.helpers.checks import eventually, fit_asked
from tests.helpers.covering import in_turns

# When one of zarr's writes fails, it leaves those beside it unawaited.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

X = np.random.default_rng(4).standard_normal((600, 3)).astype(np.float32)
MAX_ITER = 5
SECONDS = 120.0


@pytest.fixture(autouse=True)
def quickly():
    """No caches: every pass reads all chunks."""
    with quick(), dask.config.set({"largek.passes.cache-bytes": 0}):
        yield


def document(data, output=OUTPUT, **changes):
    spec = {
        "data": data, "output": output, "n_clusters": 6, "max_iter": MAX_ITER, "tol": 0.0,
        "algorithm": AlgorithmSpec.of(lk.Lloyd()).model_dump(mode="json"), **changes,
    }  # fmt: skip
    return JobSpec.parse(spec).model_dump_json()


def fitted(data, **options):
    return fit_asked(
        lk.open_rows(data), algorithm=lk.Lloyd(), n_clusters=6, seed=0,
        max_iter=MAX_ITER, tol=0.0, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """The digest of a run without any fault."""
    data = ingest(str(tmp_path_factory.mktemp("clean") / "x.zarr"))
    with quick():
        return Model.of(fitted(data)).digest()


def ingest(url, **options):
    lk.ingest(X, url, chunk_rows=100, progress=False, **options)
    with dask.config.set({"largek.data.read-chunk-bytes": 1}):
        assert lk.open_rows(url, **options).n_chunks == 6
    return url


class Strike:
    """Takes something away when a job comes to a moment for the n-th time."""

    def __init__(self, take, moment=("after", "step"), nth=2):
        self._take, self._moment, self._nth = take, moment, nth
        self.done = threading.Event()
        fault_injection.watch(self)

    def __call__(self, *moment):
        if moment == self._moment and not self.done.is_set():
            self._nth -= 1
            if self._nth == 0:
                self._take()
                self.done.set()


def seen_waiting(jobs, job_id, reason="storage"):
    """The status of a job that waits for this reason."""
    until = time.monotonic() + SECONDS
    while (status := jobs.status(job_id))["state"] != "waiting":
        assert status["state"] in ("queued", "running"), str(status)
        assert time.monotonic() < until, f"it does not wait after {SECONDS:g} s: {status}"
        time.sleep(0.002)
    assert status["reason"] == reason, str(status)
    assert status["note"]
    assert "result" not in status
    return status


def tried_again(jobs, job_id, enough):
    """Whether it has been tried often enough; it shows that it waits all the time."""
    assert jobs.status(job_id)["state"] == "waiting"
    return enough


def kinds_of(jobs, job_id):
    return [event["event"] for event in jobs.events(job_id, 0, 10_000)]


def assert_clean(status, clean):
    assert status["state"] == "finished", str(status)
    assert status["reason"] is None
    assert not status["note"]
    assert status["result"]["digest"] == clean


# --- a file system that refuses -------------------------------------------------------------------

ERRORS = {
    "away": OSError(errno.EIO, "a cable is loose"),
    "slow": TimeoutError("no answer"),
    "not-found": FileNotFoundError(errno.ENOENT, "nothing is mounted"),
    "forbidden": PermissionError(errno.EACCES, "the token is too old"),
    "full": OSError(errno.ENOSPC, "No space left on device"),
}


MOMENTS = [("after", "step"), ("before", "labels"), ("before", "publish")]


@pytest.mark.parametrize(("error", "moment"), in_turns(list(ERRORS), MOMENTS))
def test_a_job_waits_for_its_output_and_goes_on(tmp_path, error, moment, clean):
    FaultyFileSystem.follow(plan := Away(ERRORS[error]))
    data = ingest(str(tmp_path / "x.zarr"))
    strike = Strike(plan.gone.set, moment, 1 if moment[1] != "step" else 2)
    # Its own claim, which it could not give back, is not waited for.
    with dask.config.set({"largek.service.patience-seconds": 3600}), scheduler() as jobs:
        job_id = jobs.submit(document(data), {}, "somebody")
        assert strike.done.wait(SECONDS)
        status = seen_waiting(jobs, job_id)
        if error != "not-found":
            assert str(ERRORS[error].args[-1]) in status["note"]
        asked = plan.asked
        eventually(lambda: tried_again(jobs, job_id, plan.asked >= asked + 20), "many more tries")
        plan.gone.clear()
        assert_clean(ended(jobs, job_id), clean)
    assert load_model(f"{OUTPUT}/model.zarr").digest() == clean


def test_a_job_waits_for_its_data_and_goes_on(tmp_path, clean):
    data = ingest("faulty://rows/x.zarr")
    FaultyFileSystem.follow(plan := Away(ERRORS["slow"]))
    strike = Strike(plan.gone.set)
    with scheduler() as jobs:
        job_id = jobs.submit(document(data, str(tmp_path / "out")), {}, "somebody")
        assert strike.done.wait(SECONDS)
        seen_waiting(jobs, job_id)
        tries = jobs.find(job_id)
        eventually(lambda: tried_again(jobs, job_id, tries.tries >= 3), "a third try")
        plan.gone.clear()
        assert_clean(ended(jobs, job_id), clean)
        kinds = kinds_of(jobs, job_id)
    # Told once, however often it was tried.
    assert kinds.count("waiting") == 1
    assert kinds.index("waiting") < len(kinds) - kinds[::-1].index("running")


def test_what_was_never_there_is_an_error_at_once(tmp_path):
    data = ingest(str(tmp_path / "x.zarr"))
    with scheduler() as jobs:
        with dask.config.set({"largek.service.concurrent-jobs": 0}):
            job_id = jobs.submit(document(data), {}, "somebody")
            (tmp_path / "x.zarr").rename(tmp_path / "elsewhere.zarr")
        status = ended(jobs, job_id)
    assert status["state"] == "failed"
    assert "does not exist" in status["result"]["message"]


def test_a_job_gives_up_after_retry_hours(tmp_path, clean):
    FaultyFileSystem.follow(plan := Away(ERRORS["away"]))
    data = ingest(str(tmp_path / "x.zarr"))
    strike = Strike(plan.gone.set)
    with scheduler() as jobs, dask.config.set({"largek.service.retry-hours": 0}):
        job_id = jobs.submit(document(data), {}, "somebody")
        assert strike.done.wait(SECONDS)
        status = ended(jobs, job_id)
        assert status["state"] == "failed"
        assert "a cable is loose" in status["result"]["message"]
        assert "retried" in status["result"]["traceback"]
        plan.gone.clear()
        jobs.resume(job_id, {}, {})
        assert_clean(ended(jobs, job_id), clean)


def test_a_job_that_waits_can_be_cancelled(tmp_path, clean):
    FaultyFileSystem.follow(plan := Away(ERRORS["away"]))
    data = ingest(str(tmp_path / "x.zarr"))
    strike = Strike(plan.gone.set)
    # The scheduler's own records are elsewhere.
    with scheduler(store=str(tmp_path / "store")) as jobs:
        job_id = jobs.submit(document(data), {}, "somebody")
        assert strike.done.wait(SECONDS)
        seen_waiting(jobs, job_id)
        jobs.cancel(job_id)
        assert ended(jobs, job_id)["state"] == "cancelled"
        plan.gone.clear()
        jobs.resume(job_id, {}, {})
        assert_clean(ended(jobs, job_id), clean)


def test_a_job_that_waits_survives_its_scheduler(tmp_path, clean):
    FaultyFileSystem.follow(plan := Away(ERRORS["not-found"]))
    data = ingest(str(tmp_path / "x.zarr"))
    strike = Strike(plan.gone.set)
    store = str(tmp_path / "store")
    with scheduler("first", store=store) as jobs:
        job_id = jobs.submit(document(data), {}, "somebody")
        assert strike.done.wait(SECONDS)
        seen_waiting(jobs, job_id)
    with scheduler("second", store=store) as jobs:
        seen_waiting(jobs, job_id)
        plan.gone.clear()
        assert_clean(ended(jobs, job_id), clean)


def test_a_job_that_waits_takes_no_place_of_another(tmp_path, clean):
    FaultyFileSystem.follow(plan := Away(ERRORS["away"]))
    data = ingest(str(tmp_path / "x.zarr"))
    strike = Strike(plan.gone.set)
    settings = {"largek.service.concurrent-jobs": 1, "largek.service.retry-seconds": 3600}
    settings["largek.service.beat-seconds"] = 3600
    settings["largek.service.patience-seconds"] = 7200
    with dask.config.set(settings), scheduler(store=str(tmp_path / "store")) as jobs:
        job_id = jobs.submit(document(data), {}, "somebody")
        assert strike.done.wait(SECONDS)
        seen_waiting(jobs, job_id)
        other = jobs.submit(document(data, str(tmp_path / "out")), {}, "somebody")
        assert_clean(ended(jobs, other), clean)
        assert jobs.status(job_id)["state"] == "waiting"
        plan.gone.clear()
        jobs.cancel(job_id)
        assert ended(jobs, job_id)["state"] == "cancelled"


# --- checkpoints ----------------------------------------------------------------------------------


class NoCheckpoints(Plan):
    """Some checkpoints cannot be written."""

    def __init__(self, steps):
        self._names = [f"checkpoints/{step:06d}" for step in steps]
        self.hits = 0

    def change(self, path, data):
        if data is not None and any(name in path for name in self._names):
            self.hits += 1
            raise OSError(errno.EIO, "a cable is loose")
        return data


@pytest.mark.parametrize("steps", [(1, 2), (0, 1, 2, 3, 4, 5)])
def test_a_checkpoint_that_cannot_be_written_ends_nothing(tmp_path, steps, clean):
    data = ingest(str(tmp_path / "x.zarr"))
    FaultyFileSystem.follow(plan := NoCheckpoints(steps))
    told = []
    result = fitted(data, checkpoint="faulty://data/fit", events=[told.append])
    assert plan.hits >= len(steps)
    assert Model.of(result).digest() == clean
    warned = [e["message"] for e in told if e["event"] == "warning" and e["topic"] == "checkpoint"]
    written = [e["n_iter"] for e in told if e["event"] == "checkpoint"]
    assert written == [step for step in range(MAX_ITER + 1) if step not in steps]
    # Once for as long as it lasts, and in the end.
    assert len(warned) == (1 if MAX_ITER not in steps else 2)
    assert "a cable is loose" in warned[0]


@pytest.mark.parametrize("part", ["/checkpoints/00000", ".zarr/a0/c"])
def test_a_job_waits_for_its_checkpoints_and_goes_on_from_the_last(tmp_path, part, clean):
    """Storage that answers, but not for them: no older one is taken, and none begun again."""
    FaultyFileSystem.follow(plan := Away(ERRORS["away"]))
    data = ingest(str(tmp_path / "x.zarr"))
    strike = Strike(plan.gone.set, nth=3)
    with dask.config.set({"largek.service.patience-seconds": 3600}), scheduler() as jobs:
        job_id = jobs.submit(document(data), {}, "somebody")
        assert strike.done.wait(SECONDS)
        seen_waiting(jobs, job_id)
        FaultyFileSystem.follow(plan := Away(ERRORS["slow"], part))
        plan.gone.set()
        eventually(lambda: tried_again(jobs, job_id, plan.asked >= 20), "many tries")
        plan.gone.clear()
        assert_clean(ended(jobs, job_id), clean)
        events = jobs.events(job_id, 0, 10_000)
    begun = [event["n_iter"] for event in events if event["event"] == "started"]
    assert begun == [0, 2], "the third step was struck before it was kept"
    assert not [event for event in events if event.get("topic") == "RecoveryWarning"]


def test_a_plain_fit_waits_for_its_checkpoints(tmp_path, clean):
    data = ingest(str(tmp_path / "x.zarr"))
    place = "faulty://data/fit"
    assert fitted(data, checkpoint=place, callbacks=[lambda s: s.record["step"] == 3]).n_iter == 3
    FaultyFileSystem.follow(plan := Away(ERRORS["slow"], "000003.zarr"))
    plan.gone.set()
    told = []

    def hear(event):
        told.append(event)
        if event["event"] == "warning" and event["topic"] == "storage":
            plan.gone.clear()

    with dask.config.set({"largek.stores.patience-seconds": SECONDS}):
        result = fitted(data, checkpoint=place, events=[hear])
    assert plan.asked > 0
    assert Model.of(result).digest() == clean
    assert [event["n_iter"] for event in told if event["event"] == "started"] == [3]
    topics = [event["topic"] for event in told if event["event"] == "warning"]
    assert topics == ["storage", "back"]


def test_labels_that_cannot_be_read_are_not_begun_again():
    url = "faulty://data/labels.zarr"
    store = LabelStore(url, np.array([0, 4, 8]), {})
    assert store.begin("model") == (0, {})
    LabelWriter(url).write(0, np.zeros(4, np.int32))
    store.record(1, {})
    FaultyFileSystem.follow(plan := Away(ERRORS["slow"], "labels.zarr/zarr.json"))
    plan.gone.set()
    with pytest.raises(TimeoutError):
        store.begin("model")
    assert plan.asked > 0
    plan.gone.clear()
    assert store.begin("model")[0] == 1


@pytest.mark.parametrize(
    ("error", "part"),
    in_turns(["away", "slow", "forbidden"], ["model.zarr/zarr.json", "model.zarr/centers"]),
)
def test_a_model_out_of_reach_is_neither_damaged_nor_missing(tmp_path, error, part):
    folder = Folder("faulty://data/fit")
    model = Model.of(fitted(ingest(str(tmp_path / "x.zarr"))))
    model.save(folder.sub("model.zarr"))
    FaultyFileSystem.follow(plan := Away(ERRORS[error], part))
    plan.gone.set()
    with pytest.raises(type(ERRORS[error])):
        model_in(folder)
    assert plan.asked > 0
    if part.endswith("zarr.json"):
        # Nobody knows what would be replaced.
        with pytest.raises(type(ERRORS[error])):
            model.save(folder.sub("model.zarr"), overwrite=True)
    plan.gone.clear()
    found = model_in(folder)
    assert found is not None
    assert found.digest() == model.digest()


def test_a_remote_npy_is_asked_for_again():
    file = io.BytesIO()
    np.save(file, X)
    FaultyFileSystem().pipe_file("/rows/x.npy", file.getvalue())
    FaultyFileSystem.follow(plan := FailsEvery(2))
    for _ in range(4):
        rows = lk.open_rows("faulty://rows/x.npy")
        np.testing.assert_array_equal(rows.read(0), X[: len(rows.read(0))])
    assert plan.count > 4


# --- a folder that is renamed ---------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["as-ingested", "foreign", "sparse"])
def test_a_folder_of_data_is_renamed_and_renamed_back(tmp_path, layout):
    """Zarr reads chunks of a store that is not there as fill values."""
    import scipy.sparse
    import zarr

    place, elsewhere = tmp_path / "x.zarr", tmp_path / "elsewhere.zarr"
    if layout == "foreign":
        # Compressed in a way that only Zarr itself reads.
        stored = zarr.create_array(
            str(place), data=X, chunks=(100, 3), compressors=zarr.codecs.GzipCodec()
        )
        stored.attrs["mine"] = True
    elif layout == "sparse":
        lk.ingest(scipy.sparse.csr_array(X), str(place), chunk_rows=100, progress=False)
    else:
        ingest(str(place))
    expected = Model.of(fitted(str(place))).digest()
    strike = Strike(lambda: place.rename(elsewhere))
    with scheduler() as jobs:
        job_id = jobs.submit(document(str(place)), {}, "somebody")
        assert strike.done.wait(SECONDS)
        status = seen_waiting(jobs, job_id)
        assert str(place) in status["note"]
        elsewhere.rename(place)
        status = ended(jobs, job_id)
        assert status["state"] == "finished", str(status)
        assert status["result"]["digest"] == expected


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_plain_fit_waits_too(tmp_path, worker_clients, n_workers, clean):
    place, elsewhere = tmp_path / "x.zarr", tmp_path / "elsewhere.zarr"
    ingest(str(place))
    told = []

    def hear(event):
        told.append(event)
        if event["event"] == "warning" and event["topic"] == "storage":
            elsewhere.rename(place)

    Strike(lambda: place.rename(elsewhere))
    client = worker_clients(n_workers) if n_workers else None
    with dask.config.set({"largek.stores.patience-seconds": SECONDS}):
        result = fitted(str(place), events=[hear], client=client)
    assert Model.of(result).digest() == clean
    topics = [event["topic"] for event in told if event["event"] == "warning"]
    assert topics == ["storage", "back"]


def test_a_plain_fit_that_waits_heeds_max_time_and_cancel(tmp_path):
    place, elsewhere = tmp_path / "x.zarr", tmp_path / "elsewhere.zarr"
    ingest(str(place))
    cancelled = threading.Event()

    def hear(event):
        if event["event"] == "warning" and event["topic"] == "storage":
            cancelled.set()

    Strike(lambda: place.rename(elsewhere))
    with dask.config.set({"largek.stores.patience-seconds": SECONDS}):
        result = fitted(str(place), events=[hear], cancelled=cancelled.is_set)
    assert result.stop_reason == "cancelled"
    assert result.n_iter == 2


# --- servers that are stopped ---------------------------------------------------------------------


class Server:
    """A folder over HTTP that can be stopped and started at the same port."""

    def __init__(self, folder):
        self._folder, self._port = str(folder), 0
        self.start()

    def start(self):
        handler = functools.partial(Quiet, directory=self._folder)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self._server.daemon_threads = False
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._port}"

    def stop(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Says nothing."""


def test_a_web_server_is_stopped_and_started(tmp_path, clean):
    ingest(str(tmp_path / "x.zarr"))
    server = Server(tmp_path)
    try:
        strike = Strike(server.stop)
        with scheduler() as jobs:
            job_id = jobs.submit(document(f"{server.url}/x.zarr"), {}, "somebody")
            assert strike.done.wait(SECONDS)
            seen_waiting(jobs, job_id)
            server.start()
            assert_clean(ended(jobs, job_id), clean)
    finally:
        server.stop()


def test_a_web_server_that_is_stopped_says_nothing_of_its_files(tmp_path):
    (tmp_path / "there.txt").write_text("there")
    server = Server(tmp_path)
    folder = Folder(server.url)
    assert folder.exists("there.txt")
    assert not folder.exists("elsewhere.txt")
    server.stop()
    assert not folder.fs.exists(folder.path("there.txt")), "to fsspec it is not there"
    with pytest.raises(OSError, match="Cannot connect"):
        folder.exists("there.txt")


@pytest.mark.slow
def test_an_object_store_is_stopped_and_started(object_store, clean):
    object_store.bucket("away")
    options = object_store.options
    data = ingest("s3://away/x.zarr", storage_options=options)
    given = {name: {"memory": True} for name in options}
    strike = Strike(object_store.stop)
    with scheduler() as jobs:
        spec = document(data, "s3://away/out", storage_options=given)
        job_id = jobs.submit(spec, options, "somebody")
        assert strike.done.wait(SECONDS)
        seen_waiting(jobs, job_id)
        object_store.start()
        assert_clean(ended(jobs, job_id, 120.0), clean)
