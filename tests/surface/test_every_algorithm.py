"""Every registered algorithm by its name: as an estimator, a job, a plan, a command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import largek_dask as lk
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.cli import main
from tests.conftest import make_client
from tests.helpers.covering import slow

K, SEED, N_ROWS = 40, 5, 1_000
PATHS = {name for name, kind in ALGORITHMS.items() if not getattr(kind, "takes_starts", True)}
"""Those that find every partition: fewer are asked for, and all steps that they take."""

FEW = ("auto", "minibatch", "partition-path", "vc-gmm")
"""In the default tier: each kind of model, and a fit of which nothing is gathered."""

pytestmark = pytest.mark.usefixtures("chunks_as_stored")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    x = np.random.default_rng(1).normal(size=(N_ROWS, 10)).astype(np.float32)
    out = str(tmp_path_factory.mktemp("every") / "rows.zarr")
    lk.ingest(x, out, chunk_rows=300, progress=False)
    assert lk.open_rows(out).n_chunks == 4
    return out


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Jobs on one worker, in a thread of this process."""
    with ExitStack() as stack:
        client = make_client(stack, 1, processes=False, memory_limit=0)
        store = str(tmp_path_factory.mktemp("jobs"))
        yield stack.enter_context(lk.connect(client, store=store))


def run(*words: object) -> dict[str, Any]:
    done = CliRunner().invoke(main, [*map(str, words), "--json"])
    assert done.exit_code == 0, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("name", [*FEW, *slow(*(name for name in ALGORITHMS if name not in FEW))])
def test_it_is_the_same_wherever_it_is_asked_for(
    name: str, url: str, service: Any, tmp_path: Path
) -> None:
    k, most = (4, 300) if name in PATHS else (K, 6)
    asked = {"n_clusters": k, "max_iter": most}
    km = lk.KMeans(algorithm=name, random_state=SEED, **asked).fit(url)
    assert 1 < km.n_iter_ <= most
    np.testing.assert_array_equal(km.predict(url), km.labels_)

    job = service.submit(url, algorithm=name, seed=SEED, output=str(tmp_path / "job"), **asked)
    assert job.result(timeout=240).digest() == km.model_.digest()

    command = ["fit", url, "-k", k, "--max-iter", most, "--seed", SEED, "--algorithm", name]
    plan = run(*command, "--plan")
    assert plan["n_rows"] == N_ROWS
    assert plan["fits"]
    assert not (tmp_path / "run").exists()
    run(*command, "--out", tmp_path / "run")
    model = lk.load_model(str(tmp_path / "run" / "model.zarr"))
    assert model.digest() == km.model_.digest()
    run("predict", tmp_path / "run" / "model.zarr", url, "--out", tmp_path / "labels.zarr")
    labels: Any = zarr.open_array(str(tmp_path / "labels.zarr"), mode="r")
    np.testing.assert_array_equal(labels[...], km.labels_)
