"""Jobs that write ids, distances and second centres."""

from __future__ import annotations

import json
import os
import shutil
import threading

import dask
import numpy as np
import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest
import zarr
from click.testing import CliRunner

import largek_dask as lk
from largek_dask import fault_injection
from largek_dask.cli import main
from largek_dask.driver.storage import Folder
from largek_dask.errors import ParameterError
from largek_dask.model import predictions
from tests.helpers.checks import eventually
from tests.service.conftest import wait_until

N, D, K = 900, 5, 7
INCLUDE = ("id", "distance", "second")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Embeddings beside ids in Parquet."""
    x = np.random.default_rng(4).standard_normal((N, D)).astype(np.float32)
    url = str(tmp_path_factory.mktemp("rows") / "x.parquet")
    table = pa.table({"id": [f"r{i}" for i in range(N)], "e": list(x)})
    pq.write_table(table, url, row_group_size=100)
    return url


@pytest.fixture(autouse=True)
def nine_chunks(source):
    with dask.config.set({"largek.data.read-chunk-bytes": 100 * D * 4}):
        assert lk.open_rows(source, column="e").n_chunks == 9
        yield


@pytest.fixture
def several_groups(monkeypatch):
    """Three groups of chunks; a job can be stopped between them."""
    monkeypatch.setattr(predictions, "GROUP_ROWS", 300)


@pytest.fixture
def at_table():
    """``at_table(n, do)``: call ``do()`` before the n-th table of predictions is written."""
    seen = []

    def arm(n, do):
        def watch(when, point):
            if (when, point) == ("before", "labels"):
                seen.append(point)
                if len(seen) == n:
                    do()

        fault_injection.watch(watch)
        return seen

    yield arm
    fault_injection.watch(None)


@pytest.fixture
def asked(document, source):
    """The document of a job that writes predictions, and no labels."""
    return lambda **changes: document(
        data=source, column="e", ids="id", include=INCLUDE, labels=False, **changes
    )


def expected(source, folder, to, **given):
    """The table that ``predict`` writes with the model of the job."""
    model = lk.load_model(str(folder / "model.zarr"))
    model.predict(source, out=to, column="e", ids="id", include=INCLUDE, **given)
    return pq.read_table(to)


def check_whole(source, folder, tmp_path):
    table = pq.read_table(folder / "predictions.parquet")
    assert table.num_rows == N
    assert table.equals(expected(source, folder, tmp_path / "expected.parquet"))
    assert not (folder / "predictions.parquet.partial").exists()


@pytest.mark.parametrize("normalize", [None, "l2"])
def test_a_job_writes_what_predict_writes(service, source, tmp_path, normalize):
    assert len(service.client.scheduler_info()["workers"]) == 2
    job = service.submit(
        source, n_clusters=K, output=str(tmp_path / "out"), column="e", ids="id", include=INCLUDE,
        normalize=normalize,
    )  # fmt: skip
    job.result()
    check_whole(source, tmp_path / "out", tmp_path)
    result = job.status()["result"]
    assert (result["labels"], result["predictions"]) == (True, True)
    labels = zarr.open_array(str(tmp_path / "out" / "labels.zarr"))[...]
    table = pq.read_table(tmp_path / "out" / "predictions.parquet")
    np.testing.assert_array_equal(labels, table["label"])


def test_a_folder_for_each_cluster(service, source, tmp_path):
    given = {"include": ["id"], "partition_by": "cluster"}
    job = service.submit(
        source, n_clusters=K, output=str(tmp_path / "out"), column="e", ids="id", **given
    )
    model = job.result()
    where = tmp_path / "out" / "predictions.parquet"
    model.predict(source, out=tmp_path / "expected", column="e", ids="id", **given)
    found = [dataset.dataset(at, partitioning="hive").to_table() for at in
             (where, tmp_path / "expected")]  # fmt: skip
    assert found[0].num_rows == N
    assert found[0].equals(found[1])
    assert sorted(os.listdir(where)) == [f"cluster={c:05d}" for c in range(K)]


def test_the_command(service, source, tmp_path):
    words = ["submit", source, "-k", str(K), "--out", str(tmp_path / "out"), "--column", "e",
             "--ids", "id", "--include", "id,distance,second", "--no-labels", "--wait", "--json",
             "--scheduler", service.client.scheduler.address]  # fmt: skip
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    check_whole(source, tmp_path / "out", tmp_path)
    job_id = json.loads(done.stdout)["id"]
    shown = CliRunner().invoke(main, ["result", job_id, *words[-2:]])
    assert "predictions.parquet" in "".join(shown.stdout.split())
    again = ["submit", "--resume", job_id, "--include", "id", *words[-2:]]
    assert "include of a job cannot be changed" in CliRunner().invoke(main, again).stderr


def test_wrong_requests_are_refused(open_jobs, document, service, source, rows_url, tmp_path):
    for match, given in (
        ("include.0: must be 'id', 'distance' or 'second'", {"include": ["far"]}),
        ("partition_by: must be 'cluster'", {"partition_by": "label"}),
        ("at least two clusters", {"include": ["second"], "n_clusters": 1}),
        ("no distances to centres", {"include": ["id"], "mixture": "iso"}),
        ("no distances to centres", {"partition_by": "cluster", "mixture": "iso"}),
    ):
        with pytest.raises(ParameterError, match=match):
            service.submit(source, **{"n_clusters": K, "output": str(tmp_path / "out"), **given})
    jobs = open_jobs()
    for match, given in (
        ("no column 'no' to use as ids", {"data": source, "ids": "no"}),
        ("no named columns", {"data": rows_url, "ids": "id"}),
    ):
        with pytest.raises(ParameterError, match=match):
            jobs.submit(document(**given, include=["id"]), {}, "me")
    assert not (tmp_path / "out").exists()


def test_row_numbers_where_there_are_no_ids(open_jobs, document, tmp_path):
    jobs = open_jobs()
    wait_until(jobs, jobs.submit(document(include=["id"]), {}, "me"), "finished")
    table = pq.read_table(tmp_path / "out" / "predictions.parquet")
    assert table["id"].to_pylist() == list(range(3_000))


def test_a_scheduler_that_stops_leaves_it_to_the_next(
    open_jobs, asked, at_table, several_groups, source, tmp_path
):
    first, closing = open_jobs(), []

    def close():
        closing.append(threading.Thread(target=first.close, args=(120.0,)))
        closing[0].start()
        eventually(first.jobs()[0].is_stopped, "the job to be asked to stop")

    seen = at_table(4, close)
    job_id = first.submit(asked(), {}, "me")
    eventually(lambda: closing, "the second group")
    closing[0].join()
    assert first.status(job_id)["state"] == "queued"
    assert not (tmp_path / "out" / "predictions.parquet").exists()
    assert not (tmp_path / "out" / "predictions.parquet.partial").exists()
    second = open_jobs()
    wait_until(second, job_id, "finished")
    assert len(seen) > 9, "all tables were written again"
    check_whole(source, tmp_path / "out", tmp_path)


def test_cancel_while_it_writes(open_jobs, asked, at_table, several_groups, source, tmp_path):
    jobs = open_jobs()
    at_table(1, lambda: jobs.cancel(jobs.jobs()[0].record.id))
    job_id = jobs.submit(asked(), {}, "me")
    result = wait_until(jobs, job_id, "cancelled")["result"]
    assert (result["predictions"], result["digest"]) == (False, jobs.model(job_id).digest())
    assert "predictions.parquet" not in " ".join(os.listdir(tmp_path / "out"))
    jobs.resume(job_id, {}, {})
    assert wait_until(jobs, job_id, "finished")["result"]["predictions"]
    check_whole(source, tmp_path / "out", tmp_path)


def test_predictions_are_those_of_the_model(open_jobs, asked, at_table, source, tmp_path):
    """Written again for another model or if they are incomplete, and otherwise kept."""
    jobs, out = open_jobs(), tmp_path / "out"
    seen = at_table(0, None)
    job_id = jobs.submit(asked(max_iter=1, tol=0.0), {}, "me")
    wait_until(jobs, job_id, "finished")
    digest, n_tables = jobs.model(job_id).digest(), len(seen)
    check_whole(source, out, tmp_path)
    jobs.resume(job_id, {"max_iter": 3}, {})
    wait_until(jobs, job_id, "finished")
    assert jobs.model(job_id).digest() != digest
    (tmp_path / "expected.parquet").unlink()
    check_whole(source, out, tmp_path)
    assert len(seen) == 4 * n_tables, "by the job and by predict, for each of two models"
    jobs.resume(job_id, {"max_iter": 3}, {})
    wait_until(jobs, job_id, "finished")
    assert len(seen) == 4 * n_tables
    # An object store copies files one by one, so a killed process leaves some of them.
    (out / "predictions.parquet").write_bytes(b"PAR1")
    (out / "predictions.parquet.partial").mkdir()
    jobs.resume(job_id, {"max_iter": 3}, {})
    wait_until(jobs, job_id, "finished")
    (tmp_path / "expected.parquet").unlink()
    check_whole(source, out, tmp_path)


def test_delete(open_jobs, asked, tmp_path):
    jobs, out = open_jobs(), tmp_path / "out"
    job_id = jobs.submit(asked(), {}, "me")
    wait_until(jobs, job_id, "finished")
    shutil.copytree(out, tmp_path / "copy")
    jobs.delete(job_id, False)
    assert sorted(os.listdir(out)) == ["model.zarr", "predictions.parquet"]
    for outputs, mark, left in ((False, True, ["model.zarr"]), (True, False, [])):
        output = f"out-{outputs}"
        job_id = jobs.submit(asked(output=output), {}, "me")
        wait_until(jobs, job_id, "finished")
        if mark:
            (tmp_path / output / "predictions.parquet.partial").mkdir()
        jobs.delete(job_id, outputs)
        where = tmp_path / output
        assert (sorted(os.listdir(where)) if where.exists() else []) == left


@pytest.mark.parametrize("partition_by", [None, "cluster"])
def test_object_store(open_jobs, document, object_store, rows_url, tmp_path, partition_by):
    name = f"predictions-{partition_by}".lower()
    object_store.bucket(name)
    options, jobs = object_store.options, open_jobs()
    lk.ingest(lk.open_rows(rows_url), f"s3://{name}/x.zarr", progress=False,
              storage_options=options)  # fmt: skip
    asked = {"include": ["id"], "partition_by": partition_by}
    hidden = {option: {"memory": True} for option in options}
    spec = document(f"s3://{name}/out", data=f"s3://{name}/x.zarr", storage_options=hidden, **asked)
    job_id = jobs.submit(spec, options, "me")
    wait_until(jobs, job_id, "finished")
    out = Folder(f"s3://{name}/out", options)
    jobs.model(job_id).predict(rows_url, out=tmp_path / "predictions.parquet", **asked)
    found, expected = (
        dataset.dataset(path, filesystem=fs, partitioning="hive").to_table()
        for path, fs in (
            (out.path("predictions.parquet"), out.fs),
            (str(tmp_path / "predictions.parquet"), None),
        )
    )
    assert found.num_rows == 3_000
    assert found.equals(expected)
    assert "predictions.parquet.partial" not in out.names()
