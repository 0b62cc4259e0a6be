"""What the scheduler computes by itself, while workers wait, is told as ``driver``."""

from __future__ import annotations

import json
import urllib.request

import numpy as np
import pytest
from distributed import Client, LocalCluster

import largek_dask as lk

prometheus_client = pytest.importorskip("prometheus_client")


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
        assert len(service.workers()) == 2
        yield service


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Groups of rows, so many that the default begins with samples of them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40_000, 3)) + rng.integers(0, 9, (40_000, 1))
    url = str(tmp_path_factory.mktemp("rows") / "x.zarr")
    lk.ingest(x.astype(np.float32), url, chunk_rows=4_000, progress=False)
    return url


def scraped(service, job_id):
    """Seconds of a job by kind, of the page for Prometheus."""
    page = service.client.dashboard_link.replace("/status", "/metrics")
    text = urllib.request.urlopen(page).read().decode()
    mark = f'largek_job_seconds_total{{job_id="{job_id}",kind="'
    lines = [line.removeprefix(mark) for line in text.splitlines() if line.startswith(mark)]
    return {kind: float(value) for kind, _, value in (line.partition('"} ') for line in lines)}


@pytest.mark.parametrize(
    ("algorithm", "least"), [(None, 0.2), (lk.DCDBundle(), 0.5)], ids=["default", "dcdbundle"]
)
def test_driver(service, rows, algorithm, least, tmp_path):
    options = {} if algorithm is None else {"algorithm": algorithm}
    k = 200 if algorithm is None else 4
    job = service.submit(rows, n_clusters=k, output=str(tmp_path / "out"), **options)
    assert job.wait("200s") == "finished"
    status = job.status()
    done = {name: found["chunks"] for name, found in status["workers"].items()}
    assert len([name for name, chunks in done.items() if chunks]) == 2, done
    seconds = status["seconds"]
    assert seconds["driver"] >= least * seconds["total"], json.dumps(seconds)
    assert scraped(service, job.id)["driver"] == pytest.approx(seconds["driver"], abs=0.01)
    steps = [event for event in job.events(follow=False) if event["event"] == "step"]
    assert all("driver" in event["seconds"] for event in steps)


def test_passes_of_workers_are_no_work_of_the_driver(service, rows, tmp_path):
    job = service.submit(
        rows, n_clusters=60, output=str(tmp_path / "out"), algorithm=lk.Lloyd(), init="random"
    )
    assert job.wait("200s") == "finished"
    seconds = job.status()["seconds"]
    assert seconds["driver"] < 0.5 * seconds["total"], json.dumps(seconds)
