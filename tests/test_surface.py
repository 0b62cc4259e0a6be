"""Every algorithm on rows of every kind, for few and many clusters, wherever they are computed.

Small tables; what is asserted is what holds for all: nearest labels, exact inertia, as many
clusters as the rows allow, labels that can be predicted, and no warning.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.errors import ParameterError
from tests.checks import (
    computing_workers,
    distinct_rows,
    faults_of_fit,
    recorded_warnings,
    watched_passes,
)

N_ROWS, N_FEATURES, CHUNK_ROWS = 1_100, 10, 300
"""More rows than "auto" takes for few, in four chunks."""
CLUSTERS = [1, 2, 8, 9, 100, 101, 128, 129, 300]
"""Both sides of every number of clusters at which something else is done, and many."""

PATHS = {name for name, kind in ALGORITHMS.items() if not getattr(kind, "takes_starts", True)}
"""Those that find every partition: each is as much work as a fit of others, so few are asked for.
The published methods are slow."""
MOST_OF_PATHS = {"dcdbundle": 9, "dcclust": 2}
NAMES = list(ALGORITHMS)
CASES = [
    (k, name)
    for k in CLUSTERS
    for name in ALGORITHMS
    if name not in PATHS or k <= MOST_OF_PATHS[name]
]

KINDS = ["float32", "float64", "uint8", "bool", "csr"]


def alike(k: int, algorithm: str, kind: str) -> bool:
    """Whether rows in a store are all alike in this case: they have weights in every second one."""
    return (CLUSTERS.index(k) + NAMES.index(algorithm) + KINDS.index(kind)) % 2 == 0


def meets_workers(k: int, algorithm: str, kind: str) -> bool:
    """Two or three of five kinds for each number of clusters and algorithm, then other ones."""
    at = 2 * CLUSTERS.index(k) + NAMES.index(algorithm) + KINDS.index(kind)
    return at % len(KINDS) < (3 if algorithm in PATHS else 2)


ON_WORKERS = [(kind, *case) for kind in KINDS for case in CASES if meets_workers(*case, kind)]
"""Where rows are computed does not know of what kind they are: every two values meet."""

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


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def rows(kind: str) -> Any:
    x = make_rows(kind)
    # Only bools repeat so much that the most clusters cannot all be used.
    assert (129 < distinct_rows(x) < 300) == (kind == "bool")
    return x


def make_weights(are_alike: bool) -> NDArray[np.float64] | None:
    """Whole ones and fractions, and some rows that do not count; None: all rows are alike."""
    if are_alike:
        return None
    return np.random.default_rng(3).choice([0.0, 0.5, 1.0, 3.0], N_ROWS, p=[0.1, 0.2, 0.5, 0.2])


@pytest.fixture(scope="module")
def url(rows: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    out: Path = tmp_path_factory.mktemp("surface") / "rows.zarr"
    # A store of bools is one of uint8.
    stored = rows.view(np.uint8) if rows.dtype == bool else rows
    lk.ingest(stored, str(out), chunk_rows=CHUNK_ROWS, progress=False)
    return str(out)


@pytest.mark.parametrize("source", ["array", "store"])
@pytest.mark.parametrize(("k", "algorithm"), CASES)
def test_surface(k: int, algorithm: str, source: str, kind: str, rows: Any, url: str) -> None:
    """Each kind of rows, number of clusters and algorithm from both sources, once with weights.

    Which of the two has them takes turns: what is done with weights does not know where rows lie.
    """
    are_alike = alike(k, algorithm, kind) == (source == "store")
    check(k, algorithm, rows, rows if source == "array" else url, make_weights(are_alike))


@pytest.mark.parametrize(("kind", "k", "algorithm"), ON_WORKERS, indirect=["kind"])
def test_workers(k: int, algorithm: str, kind: str, rows: Any, url: str, cluster2: Client) -> None:
    check(k, algorithm, rows, url, make_weights(alike(k, algorithm, kind)), cluster2)


def test_every_two_values_meet_on_workers() -> None:
    """And every two are there with weights, and without."""
    cases = [(*case, alike(*case[1:], case[0])) for case in ON_WORKERS]
    whole = [(kind, *case, weights) for kind in KINDS for case in CASES for weights in (0, 1)]
    for a, b in itertools.combinations(range(4), 2):
        assert {(case[a], case[b]) for case in cases} == {(case[a], case[b]) for case in whole}


def check(
    k: int,
    algorithm: str,
    rows: Any,
    data: Any,
    weight: NDArray[np.float64] | None,
    client: Client | None = None,
) -> None:
    most = 300 if algorithm in PATHS else 5
    km = lk.KMeans(k, algorithm=algorithm, random_state=k, max_iter=most, client=client)
    if algorithm in ("vc-gmm", *PATHS) and sp.issparse(rows):
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
