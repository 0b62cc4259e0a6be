"""Jobs on rows whose columns have names: every model that one gives knows them."""

from __future__ import annotations

import dask
import numpy as np
import pandas as pd
import pytest

import largek_dask as lk
from largek_dask.driver.storage import Folder
from largek_dask.errors import ParameterError
from largek_dask.service.runner import model_of_checkpoint
from largek_dask.service.serialization import message_of_model, model_of
from tests.service.conftest import begun, wait_until

NAMES = ("a", "b", "c", "d")


@pytest.fixture
def frame(rows_url):
    rows = lk.open_rows(rows_url)
    return pd.DataFrame(np.concatenate(list(map(rows.read, range(6)))), columns=list(NAMES))


def test_every_model_of_a_job_has_the_names(open_jobs, document, slow_steps, frame, tmp_path):
    url = str(tmp_path / "named.zarr")
    lk.ingest(frame, url, chunk_rows=500, progress=False)
    jobs = open_jobs()
    with dask.config.set({"largek.checkpoints.seconds": 0.0}):
        job_id = jobs.submit(document(data=url), {}, "me")
        begun(jobs, job_id, 2)
    running = jobs.model(job_id)
    assert len(running.history) >= 1
    assert jobs.status(job_id)["state"] == "running"
    assert running.feature_names == NAMES
    # as it travels to a client
    sent = message_of_model(running)
    sent["arrays"] = {name: part.data for name, part in sent["arrays"].items()}
    assert model_of(sent).feature_names == NAMES
    jobs.cancel(job_id)
    wait_until(jobs, job_id, "cancelled")
    assert jobs.model(job_id).feature_names == NAMES
    slow_steps.set()
    jobs.resume(job_id, {}, {})
    wait_until(jobs, job_id, "finished")
    model = lk.load_model(str(tmp_path / "out" / "model.zarr"))
    assert model.feature_names == NAMES
    np.testing.assert_array_equal(model.predict(frame[list("dcba")]), model.predict(url))
    with pytest.raises(ParameterError, match="Missing: 'd'"):
        model.predict(frame.rename(columns={"d": "e"}))


def test_the_model_of_a_checkpoint_has_them_without_the_rows(frame, tmp_path):
    lk.KMeans(7, algorithm="lloyd", max_iter=3, random_state=0, checkpoint=tmp_path / "run").fit(
        frame
    )
    model, _ = model_of_checkpoint(Folder(str(tmp_path / "run")), "cancelled")
    assert model.feature_names == NAMES
    assert "feature_names" not in model.provenance["data"]
    # names are no part of what data are: the same numbers go on without them
    km = lk.KMeans(7, algorithm="lloyd", max_iter=4, random_state=0, checkpoint=tmp_path / "run")
    assert km.fit(frame.to_numpy()).model_.feature_names is None
    assert km.n_iter_ == 4
