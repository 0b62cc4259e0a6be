"""Jobs whose models hold every partition, and the effort that a job is given."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr

import largek_dask as lk
from largek_dask.algorithms.auto import Auto
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.errors import ParameterError
from largek_dask.model import PathModel
from largek_dask.service.spec import JobSpec
from tests.helpers.paths import PathToy

K = 4


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scheduler and workers are in this process."""
    monkeypatch.setitem(ALGORITHMS, "path-toy", PathToy)


def test_a_job_gives_every_partition(service, rows_url, tmp_path):
    out = tmp_path / "out"
    job = service.submit(
        rows_url, algorithm="path-toy", effort="best", n_clusters=K, output=str(out)
    )
    model = job.result("120s")
    km = lk.KMeans(K, algorithm="path-toy", effort="best", random_state=0).fit(rows_url)
    assert type(model) is PathModel
    assert model.digest() == km.model_.digest()
    assert len(model.path_) == K
    assert model.path_.model(2).digest() == km.path_.model(2).digest()
    assert model.provenance["parameters"]["algorithm"] == {"name": "PathToy", "effort": "best"}
    assert lk.load_model(str(out / "model.zarr")).digest() == model.digest()
    np.testing.assert_array_equal(zarr.open_array(str(out / "labels.zarr"))[...], km.labels_)
    assert "<table" in job._repr_html_()
    status = job.status()
    assert status["result"]["inertia"] == km.inertia_
    assert status["result"]["figures"] == {"partitions": K}


def test_a_job_that_is_cut_gives_those_so_far_and_goes_on(service, rows_url, tmp_path):
    job = service.submit(
        rows_url, algorithm="path-toy", n_clusters=K, max_iter=1, output=str(tmp_path / "out")
    )
    assert len(job.result("120s").path_) == 2
    said = [event["message"] for event in job.events() if event["event"] == "warning"]
    assert any("partitions end at 2 clusters, of 4" in message for message in said)
    model = service.submit(resume=job.id, max_iter=50).result("120s")
    whole = lk.KMeans(K, algorithm="path-toy", random_state=0).fit(rows_url)
    assert model.digest() == whole.model_.digest()


def test_an_effort_is_a_parameter_of_the_algorithm(service, monkeypatch):
    sent = []
    monkeypatch.setattr(service, "ask", lambda _, **more: sent.append(more) or "lk-0123456789")
    for asked, expected in (
        ({"algorithm": "path-toy", "effort": "best"}, PathToy("best")),
        ({"algorithm": "path-toy"}, PathToy()),
        ({"algorithm": PathToy("fast"), "effort": "balanced"}, PathToy("fast")),
        ({"algorithm": "lloyd", "effort": "balanced"}, lk.Lloyd()),
        ({"effort": "fast"}, Auto("fast")),
        ({"effort": "balanced", "mixture": "iso"}, Auto()),
    ):
        service.submit("/x.zarr", output="/run", n_clusters=3, **asked)
        assert JobSpec.parse(json.loads(sent[-1]["document"])).algorithm.make() == expected


def test_an_effort_that_nobody_hears_is_refused(service):
    for asked, message in (
        ({"algorithm": lk.Lloyd()}, "Lloyd has no effort: leave out effort, or use one of these"),
        ({"algorithm": PathToy("fast")}, r"not to PathToy.*: use PathToy\(effort='best'\)"),
        ({"algorithm": "none"}, "algorithm must be one of .auto., "),
        ({"mixture": "iso"}, "VCGMM has no effort"),
        ({"algorithm": "path-toy", "effort": "most"}, "effort must be one of 'fast'"),
    ):
        with pytest.raises(ParameterError, match=message):
            service.submit("/x.zarr", output="/run", n_clusters=3, **{"effort": "best", **asked})
