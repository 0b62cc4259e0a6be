"""Every algorithm on rows of every kind, for few and many clusters, wherever they are computed.

Small tables; what is asserted is what holds for all: nearest labels, exact inertia, as many
clusters as the rows allow, labels that can be predicted, and no warning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.errors import ParameterError
from tests.helpers.checks import (
    computing_workers,
    distinct_rows,
    faults_of_fit,
    recorded_warnings,
    watched_passes,
)
from tests.helpers.covering import covering, slow

N_ROWS, N_FEATURES, CHUNK_ROWS = 1_100, 10, 300
"""More rows than "auto" takes for few, in four chunks."""
CLUSTERS = [1, 2, 8, 9, 100, 101, 128, 129, 300]
"""Both sides of every number of clusters at which something else is done, and many."""

PATHS = {name for name, kind in ALGORITHMS.items() if not getattr(kind, "takes_starts", True)}
"""Those that find every partition: each is as much work as a fit of others, so few are asked for.
The published method is slow."""
MOST_OF_PATHS = {"partition-path": 9, "dcd-bundle": 2}
NAMES = list(ALGORITHMS)
CASES = [
    (k, name)
    for k in CLUSTERS
    for name in ALGORITHMS
    if name not in PATHS or k <= MOST_OF_PATHS[name]
]

KINDS = ["float32", "float64", "uint8", "bool", "csr"]


def is_weighted(k: int, algorithm: str, kind: str, source: str) -> bool:
    """Weights are in the array of every second case, and in the store of the others."""
    at = CLUSTERS.index(k) + NAMES.index(algorithm) + KINDS.index(kind)
    return at % 2 == (source == "array")


def meets_workers(k: int, algorithm: str, kind: str) -> bool:
    """Two or three of five kinds for each number of clusters and algorithm, then other ones."""
    at = 2 * CLUSTERS.index(k) + NAMES.index(algorithm) + KINDS.index(kind)
    return at % len(KINDS) < (3 if algorithm in PATHS else 2)


SURFACE = [
    (kind, k, algorithm, source, is_weighted(k, algorithm, kind, source))
    for kind in KINDS
    for k, algorithm in CASES
    for source in ("array", "store", "workers")
    if source != "workers" or meets_workers(k, algorithm, kind)
]
FEW = covering(case for case in SURFACE if case[1] in (2, 129) or case[2] == "auto")
"""Every two values meet, though all numbers of clusters only "auto"."""
MORE = [case for case in covering(SURFACE) if case not in FEW]
"""Slow: every two values meet."""

pytestmark = pytest.mark.usefixtures("chunks_as_stored")


def make_rows(kind: str) -> Any:
    rng = np.random.default_rng(14)
    groups = rng.normal(size=(60, N_FEATURES)) * 6
    x = groups[rng.integers(60, size=N_ROWS)] + rng.normal(size=(N_ROWS, N_FEATURES))
    if kind == "csr":
        return sp.csr_matrix(np.where(x > 4, x, 0).astype(np.float32))
    if kind == "uint8":
        return (x * 4 + 120).clip(0, 255).astype(np.uint8)
    if kind == "bool":
        return x > 2
    return x.astype(kind)


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def rows(kind: str) -> Any:
    x = make_rows(kind)
    # Only bools repeat so much that the most clusters cannot all be used.
    assert (129 < distinct_rows(x) < 300) == (kind == "bool")
    return x


def make_weights() -> NDArray[np.float64]:
    """Whole ones and fractions, and some rows that do not count."""
    return np.random.default_rng(3).choice([0.0, 0.5, 1.0, 3.0], N_ROWS, p=[0.1, 0.2, 0.5, 0.2])


@pytest.fixture(scope="module")
def url(rows: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    out: Path = tmp_path_factory.mktemp("surface") / "rows.zarr"
    # A store of bools is one of uint8.
    stored = rows.view(np.uint8) if rows.dtype == bool else rows
    lk.ingest(stored, str(out), chunk_rows=CHUNK_ROWS, progress=False)
    return str(out)


@pytest.mark.parametrize(
    ("kind", "k", "algorithm", "source", "weighted"), [*FEW, *slow(*MORE)], indirect=["kind"]
)
def test_surface(
    k: int,
    algorithm: str,
    source: str,
    weighted: bool,
    rows: Any,
    url: str,
    request: pytest.FixtureRequest,
) -> None:
    data = rows if source == "array" else url
    client = request.getfixturevalue("cluster2") if source == "workers" else None
    weight = make_weights() if weighted else None
    most = 300 if algorithm in PATHS else 5
    km = lk.KMeans(k, algorithm=algorithm, random_state=k, max_iter=most, client=client)
    if (algorithm.startswith("vc-gmm") or algorithm in PATHS) and sp.issparse(rows):
        with pytest.raises(ParameterError, match="dense"):
            km.fit(data, sample_weight=weight)
        return
    with watched_passes() as seen, recorded_warnings() as told:
        km.fit(data, sample_weight=weight)
    assert seen[0].n_chunks == (4 if isinstance(data, str) else 1)
    assert computing_workers(seen[0]) == (2 if client else 0)
    assert faults_of_fit(km, rows, weight, told=told) == []
    np.testing.assert_array_equal(km.predict(data), km.labels_)


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_array_of_several_chunks(algorithm: str) -> None:
    """The one source of the table that is a single chunk there, cut."""
    x = make_rows("float32")
    with dask.config.set({"largek.data.memory-chunk-bytes": 1}), watched_passes() as seen:
        k, most = (4, 300) if algorithm in PATHS else (20, 5)
        km = lk.KMeans(k, algorithm=algorithm, random_state=0, max_iter=most).fit(x)
    assert seen[0].n_chunks == 2
    assert faults_of_fit(km, x) == []
