"""KMeans and the command line on a Dask cluster: the same bits as here."""

import asyncio
import time

import dask
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster

import largek_dask as lk
from largek_dask.errors import NoModelError
from largek_dask.passes.admission import Workers
from tests.helpers.checks import computing_workers, fit_asked, watched_passes
from tests.helpers.commands import run_json

MEMORY_CHUNKS = {"largek.data.memory-chunk-bytes": 200 * 5 * 4}


@pytest.fixture(scope="module", autouse=True)
def many_chunks(chunks_as_stored):
    """Five of 200 rows, also of what lies in memory."""
    with pytest.MonkeyPatch.context() as patch, dask.config.set(MEMORY_CHUNKS):
        patch.setattr("largek_dask.data.memory_rows.MIN_CHUNK_ROWS", 200)
        yield


@pytest.fixture(scope="module")
def cluster():
    """Two workers of one thread, in this process: what runs in them is tested elsewhere."""
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        dashboard_address=":0",
        memory_limit="4 GiB",
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    with Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).standard_normal((900, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def url(x, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "x.zarr"
    zarr.create_array(str(path), data=x, chunks=(200, 5))
    return str(path)


def test_url__same_bits_as_here(client, x, url):
    here = lk.KMeans(6, random_state=1, tol=0).fit(x)
    with watched_passes() as seen:
        there = lk.KMeans(6, random_state=1, tol=0, client=client).fit(url)
    assert seen[0].n_chunks == 5
    assert computing_workers(seen[0]) == 2
    np.testing.assert_array_equal(there.labels_, here.labels_)
    np.testing.assert_array_equal(there.predict(url), here.labels_)
    assert there.inertia_ == here.inertia_
    assert there.model_.digest() == here.model_.digest()
    assert there.score(url) == -here.inertia_


def test_command_line_with_a_scheduler(cluster, url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    address = ["--scheduler", cluster.scheduler_address]
    planned = run_json("fit", url, "-k", 6, "--plan", *address)
    assert (planned["n_processes"], planned["n_threads"]) == (2, 2)
    assert planned["memory_available"] == 4 << 30
    here = run_json("fit", url, "-k", 6, "--out", "here")
    there = run_json("fit", url, "-k", 6, "--out", "there", *address)
    assert there["digest"] == here["digest"]
    labels = [zarr.open_array(f"{run}/labels.zarr", mode="r")[...] for run in ("here", "there")]
    np.testing.assert_array_equal(*labels)
    run_json("predict", "there/model.zarr", url, "--out", "again.zarr", *address)
    np.testing.assert_array_equal(zarr.open_array("again.zarr", mode="r")[...], labels[0])
    score = ["score", "there/model.zarr", url, "--labels", "here/labels.zarr"]
    scored = run_json(*score, *address)
    assert (scored["score"], scored["accuracy"]) == (-here["inertia"], 1)


def test_doctor_looks_at_the_cluster(cluster):
    told = run_json("doctor", "--scheduler", cluster.scheduler_address)
    assert told["healthy"]
    texts = [finding["text"] for finding in told["findings"]]
    assert any("2 workers with 2 threads; the smallest has 4.00 GiB" in text for text in texts)
    assert any("the same versions here, on the scheduler" in text for text in texts)


def test_without_workers_the_time_limit_counts(x, url):
    """And who waits is told, from the first moment on."""
    told = []
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as empty,
        Client(empty, set_as_default=False) as nobody,
        pytest.raises(NoModelError, match=r"time limit.* start workers"),
    ):
        fit_asked(
            lk.open_rows(url),
            algorithm=lk.Lloyd(),
            n_clusters=3,
            seed=0,
            max_time=0.5,
            client=nobody,
            events=[told.append],
        )
    assert [(e["topic"], e["message"]) for e in told] == [
        ("waiting", "the cluster has no workers; waiting for one")
    ]


@pytest.fixture
def slow_to_answer(monkeypatch):
    """Workers take a second to answer: whoever asks for a stop is heard several times."""
    begin, since = Workers.begin, []

    async def slowly(self):
        since.append(time.monotonic())
        await asyncio.sleep(1)
        await begin(self)

    monkeypatch.setattr(Workers, "begin", slowly)
    return since


def test_a_time_limit_with_workers_leaves_a_model(url, client, slow_to_answer):
    """Also where they are later than the limit."""
    km = lk.KMeans(3, client=client, max_time=1e-9).fit(url)
    assert time.monotonic() - slow_to_answer[0] > 1
    assert km.stop_reason_ == "max_time_without_search"
    assert len(np.unique(km.cluster_centers_, axis=0)) == 3


def test_workers_that_do_not_answer_are_not_waited_for(url, client, slow_to_answer, monkeypatch):
    monkeypatch.setattr("largek_dask.driver.fit.ANSWER_SECONDS", 0.1)
    with pytest.raises(NoModelError, match="time limit"):
        lk.KMeans(3, client=client, max_time=1e-9).fit(url)
    assert slow_to_answer
