"""Every registered algorithm by its name: as an estimator, a job, a plan, a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import largek_dask as lk
from largek_dask.algorithms.names import ALGORITHMS
from tests.conftest import make_client
from tests.helpers.commands import run_json as run
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
def lists(url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same rows as lists beside ids, in a Parquet file with as many row groups."""
    out = str(tmp_path_factory.mktemp("lists") / "rows.parquet")
    rows = lk.open_rows(url)
    x = np.concatenate([rows.read(i) for i in range(rows.n_chunks)])
    table = pa.table({"id": range(N_ROWS), "e": list(x)})
    pq.write_table(table, out, row_group_size=300)
    return out


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Jobs on one worker, in a thread of this process."""
    with ExitStack() as stack:
        client = make_client(stack, 1, processes=False, memory_limit=0)
        store = str(tmp_path_factory.mktemp("jobs"))
        yield stack.enter_context(lk.connect(client, store=store))


@pytest.mark.parametrize("name", [*FEW, *slow(*(name for name in ALGORITHMS if name not in FEW))])
def test_it_is_the_same_wherever_it_is_asked_for(
    name: str, url: str, service: Any, tmp_path: Path
) -> None:
    check_everywhere(name, url, None, service, tmp_path)


@pytest.mark.parametrize("name", ["auto", *slow("lloyd", "minibatch", "nmbatch", "vc-gmm")])
def test_lists_in_parquet_give_the_model_of_the_zarr_store(
    name: str, url: str, lists: str, service: Any, tmp_path: Path
) -> None:
    with dask.config.set({"largek.data.read-chunk-bytes": 300 * 10 * 4}):
        assert lk.open_rows(lists, column="e").n_chunks == 4
        model = check_everywhere(name, lists, "e", service, tmp_path)
        stored = lk.KMeans(K, algorithm=name, random_state=SEED, max_iter=6).fit(url)
    assert stored.model_.digest() == model.digest()


def check_everywhere(name: str, url: str, column: str | None, service: Any, tmp_path: Path) -> Any:
    """Compare a fit with a job and with the commands; return the model."""
    k, most = (4, 300) if name in PATHS else (K, 6)
    asked = {"n_clusters": k, "max_iter": most}
    given = {} if column is None else {"column": column}
    km = lk.KMeans(algorithm=name, random_state=SEED, **asked).fit(url, **given)
    assert 1 < km.n_iter_ <= most
    np.testing.assert_array_equal(km.predict(url, **given), km.labels_)

    job = service.submit(
        url, algorithm=name, seed=SEED, output=str(tmp_path / "job"), **asked, **given
    )
    assert job.result(timeout=240).digest() == km.model_.digest()

    words = [] if column is None else ["--column", column]
    command = ["fit", url, "-k", k, "--max-iter", most, "--seed", SEED, "--algorithm", name, *words]
    plan = run(*command, "--plan")
    assert plan["n_rows"] == N_ROWS
    assert plan["fits"]
    assert not (tmp_path / "run").exists()
    run(*command, "--out", tmp_path / "run")
    model = lk.load_model(str(tmp_path / "run" / "model.zarr"))
    assert model.digest() == km.model_.digest()
    run("predict", tmp_path / "run" / "model.zarr", url, "--out", tmp_path / "labels.zarr", *words)
    labels: Any = zarr.open_array(str(tmp_path / "labels.zarr"), mode="r")
    np.testing.assert_array_equal(labels[...], km.labels_)
    return model
