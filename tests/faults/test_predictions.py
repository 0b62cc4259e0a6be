"""Processes that are killed while a job writes its predictions."""

from __future__ import annotations

import os
import signal

import dask
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import largek_dask as lk
from largek_dask.driver.labels import group_chunks
from largek_dask.model.predictions import GROUP_ROWS
from tests.faults.moments import Moment
from tests.faults.rig import Rig
from tests.helpers.checks import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

N_ROWS, CHUNK_ROWS = 2_400_000, 100_000
CHUNK_BYTES = CHUNK_ROWS * 8


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    x = np.random.default_rng(0).standard_normal((N_ROWS, 2)).astype(np.float32)
    url = str(tmp_path_factory.mktemp("rows") / "x.parquet")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 2)
    table = pa.table({"id": np.arange(N_ROWS)[::-1], "e": vectors})
    pq.write_table(table, url, row_group_size=CHUNK_ROWS)
    return url


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    settings = {"LARGEK__DATA__READ_CHUNK_BYTES": CHUNK_BYTES}
    with Rig(tmp_path_factory.mktemp("rig"), nannies=False, **settings) as rig:
        yield rig


@pytest.mark.parametrize("role", ["worker", "scheduler"])
def test_all_predictions_are_there(rig, source, tmp_path, role):
    with dask.config.set({"largek.data.read-chunk-bytes": CHUNK_BYTES}):
        chunks = lk.open_rows(source, column="e", ids="id").chunk_table
    first, *others = group_chunks(chunks, GROUP_ROWS)
    assert len(others) == 2
    out, n = tmp_path / "out" / "predictions.parquet", len(first) + 2
    second = rig.meet(Moment("before", "labels", nth=n))
    visits = rig.visits("labels")
    try:
        with rig.connected() as service:
            job = service.submit(
                source, n_clusters=3, output=str(tmp_path / "out"), column="e", ids="id",
                include=["id", "distance", "second"], labels=False, max_iter=2, algorithm="lloyd",
            )  # fmt: skip
            pid = second.wait(300.0)
            assert not out.exists()
            assert os.listdir(f"{out}.partial")
            if role == "worker":
                chunk = rig.meet(Moment("before", "chunk", "worker"))
                second.release()
                pid = chunk.wait(300.0)
            os.kill(pid, signal.SIGKILL)
            eventually(job.done, "the job to end")
            assert job.state == "finished"
    except BaseException:
        print(rig.logs())
        raise
    again = n if role == "scheduler" else 0
    assert rig.visits("labels") - visits == len(chunks) - 1 + again
    model = lk.load_model(str(tmp_path / "out" / "model.zarr"))
    expected = tmp_path / "expected.parquet"
    model.predict(source, out=expected, column="e", ids="id", include=["id", "distance", "second"])
    found = pq.read_table(out)
    assert found.num_rows == N_ROWS
    assert found.equals(pq.read_table(expected))
    assert not os.path.exists(f"{out}.partial")
