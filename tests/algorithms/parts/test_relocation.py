"""Centres without rows go to distinct far rows until every cluster has rows, or rows run out."""

from __future__ import annotations

import warnings
from typing import Any

import dask.config
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.algorithms.parts.relocation import FarthestRows, farthest_chunk, relocate_empty
from largek_dask.data.sources import open_rows
from largek_dask.driver.provenance import digest_of
from largek_dask.errors import DegenerateDataWarning
from largek_dask.kernels.blocks import SparseBlock
from largek_dask.kernels.distances import pack_centers
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.passes.local import LocalPasses
from tests.helpers.covering import in_turns
from tests.passes.toys import rows_of

EVERY_DTYPE = ["bool", "u1", "i1", "u2", "i4", "i8", "f2", "f4", "f8"]


def n_distinct(x: Any, weight: NDArray[Any] | None = None) -> int:
    dense = x.toarray() if scipy.sparse.issparse(x) else x
    return len(np.unique(dense if weight is None else dense[weight > 0], axis=0))


def assert_as_many_clusters_as_rows_allow(x: Any, k: int, weight: Any = None, **options: Any):
    """Fit, and check that what is warned of is so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DegenerateDataWarning)
        model = lk.KMeans(k, **{"random_state": 1, "n_threads": 1, **options})
        model.fit(x, sample_weight=weight)
    distinct = n_distinct(x, weight)
    labels = model.labels_ if weight is None else model.labels_[weight > 0]
    assert len(np.unique(labels)) == min(k, distinct)
    told = [str(w.message) for w in caught if w.category is DegenerateDataWarning]
    if k > distinct:
        assert len(told) == 1
        assert f"{k - distinct} of {k} clusters are empty" in told[0]
        assert f"only {distinct} distinct" in told[0]
    else:
        assert not told
    return model


def binary(n: int, d: int, seed: int = 0) -> NDArray[np.uint8]:
    return (np.random.default_rng(seed).random((n, d)) < 0.3).astype("u1")


# --- every cluster that the rows allow


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_every_dtype_fills_its_clusters(dtype: str) -> None:
    x = binary(3000, 10)
    options = {"algorithm": "lloyd", "init": "random"}
    model = assert_as_many_clusters_as_rows_allow(x.astype(dtype), 200, **options)
    as_float = assert_as_many_clusters_as_rows_allow(x.astype("f4"), 200, **options)
    # The same centres are empty and go to the same rows; means of integers then tie more often.
    first = [fitted.history_[0]["extra"]["relocated"] for fitted in (model, as_float)]
    assert first[0] == first[1] > 40
    assert model.inertia_ == pytest.approx(as_float.inertia_, rel=0.1)


ALGORITHMS = {
    "lloyd": lk.Lloyd(),
    "minibatch": lk.MiniBatch(batch_rows=100),
    "nmbatch": lk.NMBatch(b0=60, gather=0),
    "gathered": lk.NMBatch(b0=60),
    "truncated": lk.Truncated(),
    "incremental": lk.IncrementalLloyd(),
    "vrkm": lk.VRKM(),
}


DENSE_ONLY = {"truncated"}


@pytest.mark.parametrize(
    ("algorithm", "layout"),
    [
        (name, layout)
        for name in ALGORITHMS
        for layout in ("dense", "sparse")
        if layout == "dense" or name not in DENSE_ONLY
    ],
)
@pytest.mark.parametrize(("weighted", "k"), in_turns([False, True], [45, 70]))
def test_every_algorithm(algorithm: str, layout: str, weighted: bool, k: int) -> None:
    """About 60 distinct rows, some of them only among rows that weigh nothing."""
    r = np.random.default_rng(3)
    distinct = r.normal(size=(60, 4)).astype("f4")
    x = distinct[r.integers(0, 60, 400) ** 2 // 60]
    weight = r.choice([0, 0.1, 1e-7, 30.0], 400) if weighted else None
    options = {"algorithm": ALGORITHMS[algorithm], "init": "random", "max_iter": 30}
    if layout == "sparse":
        x = np.where(x > 0.5, x, 0).astype("f4")
        assert_as_many_clusters_as_rows_allow(scipy.sparse.csr_matrix(x), k, weight, **options)
        return
    assert_as_many_clusters_as_rows_allow(x, k, weight, **options)


@pytest.mark.parametrize(
    "algorithm", [lk.Lloyd(), lk.NMBatch(moves=False), lk.NMBatch(), lk.IncrementalLloyd()]
)
def test_rows_that_sums_do_not_tell_apart_end_the_fit(algorithm: Any) -> None:
    """Means of six distinct rows are one: centres that were moved to them meet there again."""
    r = np.random.default_rng(0)
    distinct = np.concatenate([r.normal(size=(6, 3)) * 1e-9, r.normal(size=(6, 3)) * 1e6])
    x = np.repeat(distinct, 7, axis=0)
    model = assert_as_many_clusters_as_rows_allow(
        x, 20, algorithm=algorithm, init=x[:20].copy(), tol=0, max_iter=60
    )
    assert model.stop_reason_ == "converged"
    assert model.inertia_ == 0.0
    with LocalPasses(open_rows(x)) as passes:
        sums = ClusterSums(12, 3, passes.statistics.grid)
    sums.add(x, np.repeat(np.arange(12, dtype=np.int32), 7))
    assert len(np.unique(sums.means(np.zeros((12, 3))), axis=0)) < 12


def test_centres_that_rows_cannot_tell_apart_end_the_fit() -> None:
    """A centre that is moved to where it already is changes nothing."""
    x = np.float32([[0, 0], [0, 0], [4, 0], [4, 0], [4, 1]])
    init = np.float32([[0, 0], [4, 0.2], [50, 50]])
    model = assert_as_many_clusters_as_rows_allow(
        x, 3, algorithm="lloyd", init=init, tol=0, max_iter=100
    )
    assert model.stop_reason_ == "converged"


# --- weight 2 is two rows


@pytest.mark.parametrize(("dtype", "max_iter"), in_turns(["f4", "f8", "i2", "u1"], [1, 5, 50]))
def test_repeated_rows_take_no_candidates_place(dtype: str, max_iter: int) -> None:
    r = np.random.default_rng(0)
    x = r.integers(0, 100, (2000, 1)).astype(dtype)
    times = r.integers(1, 5, 2000)
    k = 44
    init = x[np.random.default_rng(2).choice(2000, k, replace=False)].astype("f8")
    assert len(np.unique(init)) < k, "else no cluster is empty"
    options = {"algorithm": "lloyd", "init": init, "max_iter": max_iter, "tol": 0, "n_threads": 1}
    weighted = lk.KMeans(k, **options).fit(x, sample_weight=times.astype(float))
    repeated = lk.KMeans(k, **options).fit(np.repeat(x, times, axis=0))
    assert weighted.inertia_ == repeated.inertia_
    assert digest_of(weighted.model_.arrays) == digest_of(repeated.model_.arrays)
    np.testing.assert_array_equal(np.repeat(weighted.labels_, times), repeated.labels_)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_chunks_and_repeats_change_no_candidate(layout: str) -> None:
    """A few far rows, repeated so often that they would fill any list of fixed length."""
    r = np.random.default_rng(5)
    x = np.concatenate([np.repeat(r.normal(size=(3, 2)) + 50, 400, axis=0), r.normal(size=(99, 2))])
    x = r.permutation(x).astype("f4")
    centers, empty = np.zeros((12, 2), np.float32), np.arange(1, 12)
    table = scipy.sparse.csr_matrix(x) if layout == "sparse" else x
    found = []
    for chunk_bytes in (80, 1 << 20):
        with dask.config.set({"largek.data.memory-chunk-bytes": chunk_bytes}):
            rows = open_rows(table)
        if layout == "dense":
            sizes = [len(x)] if chunk_bytes > 80 else [100] * 12 + [99]
            rows = rows_of(x, sizes)
            assert rows.n_chunks == len(sizes)
        with LocalPasses(rows, n_threads=2) as passes:
            packed = pack_centers(centers, passes.statistics.shift)
            moved = relocate_empty(passes, packed, centers, empty)
        assert moved.n_moved == 11
        found.append(moved.centers)
    np.testing.assert_array_equal(*found)
    far = x[np.argsort(-(x.astype("f8") ** 2).sum(1), kind="stable")]
    _, first = np.unique(far, axis=0, return_index=True)
    np.testing.assert_array_equal(found[0][1:], far[np.sort(first)[:11]])


class Piece:
    def __init__(self, x: Any, start: int, weight: Any = None) -> None:
        self.x, self.start, self.weight, self.state = x, start, weight, None

    def numbers(self) -> Any:
        return self.start + np.arange(len(self.x))


@given(st.integers(0, 2**16), st.integers(1, 9), st.booleans(), st.booleans())
def test_no_order_of_merging_changes_a_candidate(
    seed: int, size: int, sparse: bool, binary_rows: bool
) -> None:
    """Against sorting all rows: distances descending, rows ascending, each value once."""
    r = np.random.default_rng(seed)
    n, k = 60, 4
    x = r.integers(0, 2, (n, 5)) if binary_rows else r.integers(0, 7, (n, 1))
    x = x.astype("f4")
    centers = np.concatenate([x[:2], x[:2] + 0.5]).astype("f4")
    weight = r.integers(0, 3, n).astype(float)
    packed = pack_centers(centers, np.zeros(x.shape[1], "f4"))

    def rows_as(part: NDArray[Any]) -> Any:
        if not sparse:
            return part
        csr = scipy.sparse.csr_matrix(part)
        return SparseBlock(csr.data, csr.indices, csr.indptr.astype(np.int64), part.shape[1])

    cuts = np.sort(r.choice(np.arange(1, n), 5, replace=False))
    pieces = []
    for at in np.split(np.arange(n), cuts):
        total = FarthestRows(size, k, x.shape[1], x.dtype)
        farthest_chunk(Piece(rows_as(x[at]), at[0], weight[at]), total, packed, None)
        pieces.append(total)
    together = FarthestRows(size, k, x.shape[1], x.dtype)
    for i in r.permutation(len(pieces)):
        together = FarthestRows.combine(together, pieces[i])
    squares = ((x[:, None].astype("f8") - centers) ** 2).sum(-1)
    labels, distances = squares.argmin(1), squares.min(1)
    wanted, seen = [], set()
    for i in np.lexsort((np.arange(n), -distances)):
        value = x[i].tobytes()
        if weight[i] > 0 and distances[i] > 0 and value not in seen and len(wanted) < size:
            seen.add(value)
            wanted.append(i)
    np.testing.assert_array_equal(together.rows, wanted)
    np.testing.assert_array_equal(together.x, x[wanted])
    several = [len({x[i].tobytes() for i in np.flatnonzero((labels == j) & (weight > 0))}) > 1
               for j in range(k)]  # fmt: skip
    np.testing.assert_array_equal(together.several, several)
