"""Stores that die, fail, lie and fill up under a job, and jobs that are fought for.

Everything runs in this process. What a job makes has to be the same in all cases.
"""

from __future__ import annotations

import itertools
import threading
import time
import warnings

import dask
import pytest

from largek_dask import fault_injection
from largek_dask.driver.storage import Folder
from largek_dask.errors import ClusterError
from largek_dask.model import load_model
from tests.faults.inprocess import (
    ALGORITHMS,
    MAX_ITER,
    OUTPUT,
    Made,
    clean,
    crashed,
    ended,
    make_small,
    quick,
    remembered,
    resumed,
    scheduler,
)
from tests.faults.stores import Dies, FailsEvery, FaultyFileSystem, Full, Plan, Slow
from tests.helpers.covering import in_turns

# When one of zarr's writes fails, it leaves those beside it unawaited.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PATIENT = {"largek.service.patience-seconds": 3600.0}
"""Whoever waits from now on takes nobody for dead on a busy machine."""
LOCAL_POINTS = [
    point
    for point in fault_injection.POINTS
    if point not in ("scatter", "submit", "receive", "reduce")
]
"""Points that a job without a cluster comes to."""


FEW = [
    pytest.param(name, marks=() if name in ("nmbatch-sparse", "incremental") else pytest.mark.slow)
    for name in ALGORITHMS
]
"""Row state of two kinds; the slow tier has all."""


@pytest.fixture(scope="module")
def jobs_of(tmp_path_factory):
    return make_small(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def made_of(jobs_of):
    with quick():
        return {name: clean(small) for name, small in jobs_of.items()}


@pytest.fixture(autouse=True)
def quickly():
    with quick():
        yield


def submit(jobs, small, **changes):
    return jobs.submit(small.document(**changes), {}, "somebody")


# --- crashes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("lloyd", 15),
        pytest.param("incremental", 15, marks=pytest.mark.slow),
        pytest.param("lloyd", 1, marks=pytest.mark.slow),
        pytest.param("nmbatch", 3, marks=pytest.mark.slow),
        pytest.param("nmbatch-sparse", 4, marks=pytest.mark.slow),
        pytest.param("incremental", 4, marks=pytest.mark.slow),
    ],
)
def test_a_crash_before_every_change_of_the_store(jobs_of, made_of, name, every):
    history = remembered(jobs_of[name])
    assert len(history.states) > 60
    for number in range(0, len(history.states), every):
        history.restore(number, torn=False)
        assert resumed(jobs_of[name]) == made_of[name], f"before change {number}"


@pytest.mark.parametrize("every", [15, pytest.param(3, marks=pytest.mark.slow)])
def test_a_crash_inside_writes(jobs_of, made_of, every):
    history = remembered(jobs_of["lloyd"])
    # Single small files appear whole or not at all, on every store that this is meant for.
    numbers = [
        number
        for number, write in enumerate(history.writes)
        if write is not None and (".zarr/" in write[0] or "/checkpoints/" in write[0])
    ]
    assert len(numbers) > 40
    for number in numbers[::every]:
        history.restore(number, torn=True)
        assert resumed(jobs_of["lloyd"]) == made_of["lloyd"], f"inside {history.writes[number]}"


@pytest.mark.parametrize(("point", "when"), in_turns(list(LOCAL_POINTS), ["before", "after"]))
def test_a_crash_at_every_moment(jobs_of, made_of, when, point):
    name = list(ALGORITHMS)[(len(point) + len(when)) % len(ALGORITHMS)]
    plan = Dies()
    # The cluster that files share may run in this process, and its scheduler renews a lease too.
    strangers = set(threading.enumerate())

    def watch(*moment):
        if moment == (when, point) and threading.current_thread() not in strangers:
            plan.die()

    fault_injection.watch(watch)
    crashed(jobs_of[name], plan)
    fault_injection.watch(None)
    assert resumed(jobs_of[name]) == made_of[name]


# --- stores out of order --------------------------------------------------------------------------


@pytest.mark.parametrize("name", FEW)
def test_every_nth_operation_fails(jobs_of, made_of, name):
    FaultyFileSystem.follow(plan := FailsEvery(25))
    with scheduler() as jobs:
        status = ended(jobs, submit(jobs, jobs_of[name]))
    assert plan.count > 200
    FaultyFileSystem.follow(Plan())
    assert Made.by(status) == made_of[name]


def test_a_slow_store(jobs_of, made_of):
    FaultyFileSystem.follow(Slow(0.002))
    with scheduler() as jobs:
        made = Made.by(ended(jobs, submit(jobs, jobs_of["nmbatch"])))
    assert made == made_of["nmbatch"]


@pytest.mark.parametrize(
    ("name", "part"), in_turns(list(ALGORITHMS), ["labels.zarr", "model.zarr", "results"])
)
def test_a_full_disk(jobs_of, made_of, name, part):
    FaultyFileSystem.follow(plan := Full(part))
    with scheduler() as jobs:
        job_id = submit(jobs, jobs_of[name])
        until = time.monotonic() + 120
        while (status := jobs.status(job_id))["state"] != "waiting":
            assert time.monotonic() < until, f"it does not wait after 120 s: {status}"
        assert plan.hit
        assert status["reason"] == "storage"
        assert "No space left on device" in status["note"]
        checkpoints = Folder(OUTPUT).sub("checkpoints").names()
        assert f"{MAX_ITER:06d}.json" in checkpoints, "what was written before stays"
        FaultyFileSystem.follow(Plan())
        assert Made.by(ended(jobs, job_id)) == made_of[name]


@pytest.mark.parametrize("name", FEW)
def test_a_disk_without_space_for_checkpoints(jobs_of, made_of, name):
    FaultyFileSystem.follow(plan := Full("checkpoints/"))
    with scheduler() as jobs:
        job_id = submit(jobs, jobs_of[name])
        assert Made.by(ended(jobs, job_id)) == made_of[name]
        events = jobs.events(job_id, 0, 1000)
    assert plan.hit
    told = [event["message"] for event in events if event.get("topic") == "checkpoint"]
    assert all("No space left on device" in message for message in told)
    assert len(told) == 2, "when it began and in the end"
    assert Folder(OUTPUT).sub("checkpoints").names() == []


# --- checkpoints that are not what was written ----------------------------------------------------


def flipped(data):
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


@pytest.mark.parametrize(
    ("damage", "file"),
    in_turns([flipped, lambda data: data[: len(data) // 2], None], ["000002.json", "000002.zarr/"]),
)
def test_a_damaged_checkpoint(jobs_of, made_of, damage, file):
    plan = Dies()
    steps = itertools.count()

    def watch(when, point):
        if (when, point) == ("after", "step") and next(steps) == 2:
            plan.die()

    fault_injection.watch(watch)
    crashed(jobs_of["lloyd"], plan)
    fault_injection.watch(None)
    files = FaultyFileSystem()
    inside = f"/data/out/checkpoints/{file}"
    path = (
        max(path for path in files.store if path.startswith(inside) and path.endswith("0"))
        if inside.endswith("/")
        else inside
    )
    data = files.cat_file(path)
    files.rm(path)
    if damage is not None:
        files.pipe_file(path, damage(data))
    with scheduler("second") as jobs:
        job_id = jobs.listed()[0]["id"]
        assert Made.by(ended(jobs, job_id)) == made_of["lloyd"]
        events = jobs.events(job_id, 0, 1000)
        started = [event for event in events if event["event"] == "started"]
        assert started[-1]["n_iter"] == 1, "the one before it was taken"
        told = [event for event in events if event.get("topic") == "RecoveryWarning"]
        # Without its record a checkpoint never was.
        assert bool(told) == (damage is not None or file != "000002.json")
        assert all("000002" in event["message"] for event in told)


# --- who has the job ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FEW)
def test_two_schedulers_on_one_store(jobs_of, made_of, name):
    """The second one is refused for as long as the first one lives, and then has its jobs."""
    FaultyFileSystem.follow(Slow(0.0005))
    with scheduler("a") as one:
        job_id = submit(one, jobs_of[name])
        with dask.config.set(PATIENT), scheduler("b") as two:
            with pytest.raises(ClusterError, match="held by a: connect"):
                two.status(job_id)
            made = Made.by(ended(one, job_id))
            assert one.close(20.0) == []
            with two.changed:
                assert two.changed.wait_for(two.loaded.is_set, 120.0)
            assert made == Made.by(ended(two, job_id)) == made_of[name]
            results = {jobs.status(job_id)["result"]["token"] for jobs in (one, two)}
    assert len(results) == 1


@pytest.mark.parametrize("name", FEW)
def test_a_scheduler_that_slept_has_lost_its_job(jobs_of, made_of, name):
    sleepers, over, asleep = set(), threading.Event(), threading.Event()
    strangers = set(threading.enumerate())

    def watch(when, point):
        thread = threading.current_thread()
        if thread in strangers or (asleep.is_set() and thread not in sleepers):
            return
        if (when, point) in (("before", "renewal"), ("before", "step")):
            # The first one's three threads stand still (it shows that it has the store, and the
            # job, and it computes); those of the second are other ones.
            sleepers.add(thread)
            if len(sleepers) == 3:
                asleep.set()
        if thread in sleepers and not over.wait(120):
            raise AssertionError("nobody has taken the job over")

    fault_injection.watch(watch)
    FaultyFileSystem.follow(Slow(0.005))
    with scheduler("a") as one:
        job_id = submit(one, jobs_of[name])
        assert asleep.wait(120)
        assert {"largek-keeper-1", "largek-keeper-2"} < {thread.name for thread in sleepers}
        with scheduler("b") as two:
            assert Made.by(ended(two, job_id)) == made_of[name]
            files = {path: file.getvalue() for path, file in FaultyFileSystem.store.items()}
            with dask.config.set(PATIENT):
                over.set()
                # It wakes up, writes nothing, and says who has its job now.
                with one.changed:
                    assert one.changed.wait_for(lambda: one._store_lease.holder, 120.0)
                with pytest.raises(ClusterError, match="held by b"):
                    one.status(job_id)
            # (The first claim was the submit's.)
            assert two.status(job_id)["result"]["token"] == 3
            kept = {path: file.getvalue() for path, file in FaultyFileSystem.store.items()}
    assert not {path for path in kept if kept[path] != files.get(path) and ".beat" not in path}
    assert set(kept) == set(files)


# --- clocks, cancels, many jobs -------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_the_wall_clock_jumps(jobs_of, made_of, monkeypatch, jump):
    wall, jumped = time.time, []

    def watch(when, point):
        if (when, point) == ("after", "step"):
            jumped.append(point)

    def now():
        # Only for jobs: Dask clients of other tests, in this process too, would sleep for a day.
        is_job = threading.current_thread().name.startswith("largek")
        return wall() + jump * len(jumped) * is_job

    fault_injection.watch(watch)
    monkeypatch.setattr(time, "time", now)
    with scheduler() as jobs:
        job_id = submit(jobs, jobs_of["nmbatch"], max_time=600.0)
        assert Made.by(ended(jobs, job_id)) == made_of["nmbatch"]
    assert jumped


@pytest.mark.parametrize(
    ("name", "every"),
    [("nmbatch", 3), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ALGORITHMS)],
)
def test_a_cancel_at_every_event(jobs_of, made_of, name, every):
    for number in range(0, 1_000, every):
        FaultyFileSystem.clear()
        with scheduler() as jobs:
            job_id = submit(jobs, jobs_of[name])
            until = time.monotonic() + 120
            while (at := jobs.status(job_id))["n_events"] <= number and at["state"] != "finished":
                assert time.monotonic() < until, f"neither event {number} nor the end in 120 s"
                time.sleep(0.001)
            jobs.cancel(job_id)
            status = ended(jobs, job_id)
            if status["state"] == "cancelled":
                with warnings.catch_warnings():
                    jobs.resume(job_id, {}, {})
                    status = ended(jobs, job_id)
            assert Made.by(status) == made_of[name], f"at event {number}"
        if at["n_events"] <= number:
            break
    assert number > 5


def test_many_jobs_at_once_and_a_crash_among_them(jobs_of, made_of):
    plan = Dies()
    states, most = [], []
    n_jobs = 16

    with dask.config.set({"largek.service.concurrent-jobs": 4}):
        FaultyFileSystem.follow(plan)
        with scheduler("a") as one:
            names = dict(zip(range(n_jobs), itertools.cycle(ALGORITHMS)))
            ids = {
                submit(one, jobs_of[name], output=f"faulty://data/{i}"): (i, name)
                for i, name in names.items()
            }
            until = time.monotonic() + 120
            while states.count("finished") < n_jobs // 3:
                assert time.monotonic() < until, f"in 120 s no third has finished: {states}"
                states = [status["state"] for status in one.listed()]
                most.append(states.count("running"))
                time.sleep(0.005)
            plan.die()
        FaultyFileSystem.follow(Plan())
        assert 1 < max(most) <= 4
        with scheduler("b") as two:
            for job_id, (i, name) in ids.items():
                status = ended(two, job_id)
                assert status["state"] == "finished", str(status)
                assert load_model(f"faulty://data/{i}/model.zarr").digest() == made_of[name].digest
