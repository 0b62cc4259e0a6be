"""``scale`` in jobs and on the command line: the model of the estimator."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import largek_dask as lk
from largek_dask.cli import main
from largek_dask.driver.storage import Folder
from largek_dask.errors import DataError
from largek_dask.service.runner import model_so_far

K = 5
PARAMETERS = {"init": "random", "max_iter": 6}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """900 rows with features of other units, in six chunks."""
    r = np.random.default_rng(0)
    x = (r.normal(size=(900, 4)) + 6 * np.eye(4)[r.integers(0, 4, 900)]) * [1, 500, 1e-3, 30] + 7
    path = str(tmp_path_factory.mktemp("rows") / "x.zarr")
    lk.ingest(x.astype("f4"), path, chunk_rows=150, progress=False)
    return path


@pytest.mark.parametrize("mixture", [None, "diag"])
def test_a_job_gives_the_model_of_the_estimator(service, url, tmp_path, mixture, chunks_as_stored):
    assert lk.open_rows(url).n_chunks == 6
    asked = {"n_clusters": K, "mixture": mixture, "scale": "standard", **PARAMETERS}
    job = service.submit(url, output=str(tmp_path / "out"), **asked)
    model = job.result("120s")
    kind = lk.KMeans if mixture is None else lk.Mixture
    known = {} if mixture is None else {"covariance": mixture}
    found = kind(K, scale="standard", random_state=0, **known, **PARAMETERS).fit(url)
    assert model.digest() == found.model_.digest()
    np.testing.assert_array_equal(model.scaling.mean, found.model_.scaling.mean)
    assert model.provenance["parameters"]["scale"] == "standard"
    labels = zarr.open_array(str(tmp_path / "out" / "labels.zarr"), mode="r")[...]
    np.testing.assert_array_equal(labels, found.labels_)
    np.testing.assert_array_equal(model.predict(url, client=service.client), labels)
    # A model of a checkpoint, as a cancelled job leaves it, has it too.
    so_far, _ = model_so_far(Folder(str(tmp_path / "out")))
    np.testing.assert_array_equal(so_far.scaling.scale, found.model_.scaling.scale)


def test_command_line(url, tmp_path, chunks_as_stored):
    def run(*arguments):
        done = CliRunner().invoke(main, [*map(str, arguments), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    asked = ["-k", K, "--scale", "standard", "--init", "random", "--max-iter", 6]
    told = run("fit", url, *asked, "--out", tmp_path / "run")
    found = lk.KMeans(K, scale="standard", random_state=0, **PARAMETERS).fit(url)
    assert told["digest"] == found.model_.digest()
    run("predict", tmp_path / "run", url, "--out", tmp_path / "again.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "again.npy"), found.labels_)
    assert run("score", tmp_path / "run", url)["inertia"] == pytest.approx(found.inertia_)
    planned, plain = (run("fit", url, *one, "--plan") for one in (asked, asked[:2] + asked[4:]))
    assert planned["passes_before"] == plain["passes_before"] + 2


def test_a_job_reports_a_variance_that_overflows(service, tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 2))
    x[3, 1] = 1e180
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(20, 2))
    asked = {"n_clusters": 2, "scale": "standard", "output": str(tmp_path / "out")}
    job = service.submit(str(tmp_path / "x.zarr"), **asked)
    with pytest.raises(DataError, match="variance of column 1 overflows float64"):
        job.result("120s")
