"""Rows of all kinds on a real cluster: workers compute that have the tag, and no bit differs."""

import dask
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client, Nanny, Scheduler, SpecCluster

import largek_dask as lk
from largek_dask.passes.worker import WorkPlugin

TAGGED, PLAIN = "tagged", "plain"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A scheduler with jobs, and two workers, each in a process, of which one has a tag."""
    quiet = {"nthreads": 1, "dashboard_address": ":0"}
    workers = {
        TAGGED: {"cls": Nanny, "options": {**quiet, "resources": {"bigmem": 1}}},
        PLAIN: {"cls": Nanny, "options": quiet},
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": ":0"}}
    store = str(tmp_path_factory.mktemp("store"))
    with (
        dask.config.set({"largek.service.beat-seconds": 0.05}),
        SpecCluster(workers=workers, scheduler=scheduler) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(2)
        with lk.connect(client, store=store) as service:
            yield service


def rows_of_kind(kind, folder):
    """URLs of rows and weights, these None where there are none; six chunks of rows."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3_000, 4)).astype(np.float32)
    weight = None
    if kind == "sparse":
        x = sp.csr_matrix(np.where(x > 0.5, x, 0.0).astype(np.float32))
    elif kind == "integers":
        x = rng.integers(0, 256, (3_000, 4), np.uint8)
    else:
        weight = str(folder / "w.npy")
        np.save(weight, rng.integers(0, 4, 3_000).astype(np.float64))
    lk.ingest(x, str(folder / "x.zarr"), chunk_rows=500, progress=False)
    return str(folder / "x.zarr"), weight


def rows_by_worker(service):
    """How many rows each worker has gone through for jobs so far, by its name."""

    def ask(dask_worker):
        # It is there since the first job.
        plugin = dask_worker.plugins.get(WorkPlugin.name)
        return str(dask_worker.name), 0 if plugin is None else plugin.worked.rows

    return dict(service.client.run(ask).values())


@pytest.mark.parametrize(
    "kind",
    [
        "weighted",
        pytest.param("sparse", marks=pytest.mark.slow),
        pytest.param("integers", marks=pytest.mark.slow),
    ],
)
def test_only_tagged_workers_compute_and_the_bits_are_the_same(service, tmp_path, kind):
    url, weight = rows_of_kind(kind, tmp_path)
    rows = lk.open_rows(url, sample_weight=weight)
    assert rows.n_chunks == 6
    options = {"algorithm": lk.Lloyd(), "max_iter": 10}
    expected = lk.KMeans(7, random_state=0, **options).fit(rows).model_.digest()
    plain = lk.KMeans(7, random_state=0, **options).fit(lk.open_rows(url)).model_.digest()
    assert (plain == expected) == (weight is None)
    digests = []
    for name, asked in (("one", {"tags": ["bigmem"]}), ("both", None)):
        before = rows_by_worker(service)
        job = service.submit(url, sample_weight=weight, n_clusters=7, seed=0,
                             output=str(tmp_path / name), workers=asked, **options)  # fmt: skip
        digests.append(job.result("120s").digest())
        worked = {worker: n - before[worker] for worker, n in rows_by_worker(service).items()}
        assert worked[TAGGED] > 0
        assert (worked[PLAIN] > 0) == (asked is None)
    assert digests == [expected, expected]
