"""What the scheduler computes by itself, while workers wait, is told as ``driver``."""

from __future__ import annotations

import urllib.request

import numpy as np
import pytest
from distributed import Client, LocalCluster

import largek_dask as lk
from largek_dask.passes import subset

pytestmark = pytest.mark.slow

N = 100_000


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Two workers, and a scheduler with jobs and its pages."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
        lk.connect(client, store=str(tmp_path_factory.mktemp("store"))) as service,
    ):
        yield service


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Groups of rows, so many that the default begins with samples of them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, 3)) + rng.integers(0, 9, (N, 1))
    url = str(tmp_path_factory.mktemp("rows") / "x.zarr")
    lk.ingest(x.astype(np.float32), url, chunk_rows=10_000, progress=False)
    return url


def scraped(service, job_id):
    """Seconds of a job by kind, of the page for Prometheus."""
    # Of workers in this process a link of Dask names another interface than the page's.
    port = service.client.scheduler_info()["services"]["dashboard"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        text = page.read().decode()
    mark = f'largek_job_seconds_total{{job_id="{job_id}",kind="'
    lines = [line.removeprefix(mark) for line in text.splitlines() if line.startswith(mark)]
    return {kind: float(value) for kind, _, value in (line.partition('"} ') for line in lines)}


def of_steps(job):
    """Rows, and seconds by kind, of each step of a job that two workers computed."""
    events = list(job.events(follow=False))
    assert [event["n_workers"] for event in events if event["event"] == "started"] == [2]
    return [(event["rows"], event["seconds"]) for event in events if event["event"] == "step"]


def test_first_steps_of_the_default(service, rows, tmp_path):
    job = service.submit(rows, n_clusters=2_000, output=str(tmp_path / "out"), seed=0, max_iter=6)
    assert job.wait("250s") == "finished"
    of_samples = [seconds for n, seconds in of_steps(job) if n < N]
    assert of_samples, "the default begins with samples"
    assert len(of_samples) < len(of_steps(job)), "workers have steps, too"
    assert all(min(seconds["driver"], seconds["compute"]) > 0 for seconds in of_samples)
    driver = sum(seconds["driver"] for seconds in of_samples)
    seconds = job.status()["seconds"]
    assert seconds["driver"] >= 0.99 * driver
    assert scraped(service, job.id)["driver"] == pytest.approx(seconds["driver"], abs=0.01)


def test_all_of_a_small_partition_path__and_little_of_a_large_one(
    service, rows, tmp_path, monkeypatch
):
    share = {}
    for name, least in {"small": 1 << 40, "large": 1}.items():
        monkeypatch.setattr(subset, "WORKER_DISTANCES", least)
        job = service.submit(
            rows, n_clusters=4, output=str(tmp_path / name), algorithm=lk.PartitionPath()
        )
        assert job.wait("250s") == "finished"
        assert of_steps(job)
        seconds = job.status()["seconds"]
        share[name] = seconds["driver"] / seconds["total"]
    assert share["large"] < 0.5 < share["small"]
