"""The last pass: every row at its nearest centre, and centres without rows moved to rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import zarr

from largek_dask.algorithms import kmeans
from largek_dask.algorithms.choices import EmptyClusters
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem, exact_distances
from largek_dask.algorithms.parts import relocation
from largek_dask.algorithms.problem import Final
from largek_dask.data.sources import open_rows
from largek_dask.driver import labels as labels_module
from largek_dask.driver.final import label_rows
from largek_dask.driver.labels import GROUP_CHUNKS, LabelStore, group_chunks
from largek_dask.kernels.blocks import sparse_rows
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.passes.base import BasePasses
from largek_dask.passes.cluster import ClusterPasses
from largek_dask.passes.local import LocalPasses
from tests.passes.toys import rows_of


def finish(
    passes: BasePasses,
    arrays: CenterArrays,
    empty_clusters: EmptyClusters,
    told: Callable[[int], None] | None = None,
) -> Final:
    problem = KMeansProblem(len(arrays.centers), empty_clusters=empty_clusters)
    return problem.finish(passes, arrays, partial(label_rows, passes, report=told))


def test_centres_are_moved_for_as_many_rounds_as_it_takes() -> None:
    """Each centre that moves leaves the next without rows: three rounds for four clusters."""
    x = np.array([[0.0], [0.5], [100.0], [101.0], [1000.0], [1001.0]])
    # The last one has no rows; those of the second and the third are all farther off than any
    # centre would be that lies on one of them.
    centers = np.array([[0.0], [200.0], [1050.0], [1e6]])
    arrays = CenterArrays(centers, np.zeros(4), np.zeros(1))
    told: list[int] = []
    with LocalPasses(rows_of(x, [2, 2, 2])) as passes:
        final = finish(passes, arrays, "relocate", told.append)
    assert told.count(len(x)) == 4, "a pass for each round, and one that finds nothing to do"
    assert (final.n_empty, final.n_distinct) == (0, None)
    found = final.arrays.centers
    labels = ((x - found.T) ** 2).argmin(axis=1)
    np.testing.assert_array_equal(final.labels, labels)
    np.testing.assert_array_equal(final.arrays.counts, np.bincount(labels, minlength=4))
    assert len(set(labels)) == 4
    assert final.value == ((x - found[labels]) ** 2).sum()


def test_centres_without_rows_stay_where_they_are_if_they_may() -> None:
    x = np.array([[0.0], [1.0], [2.0]])
    arrays = CenterArrays(np.array([[1.0], [50.0]]), np.zeros(2), np.zeros(1))
    with LocalPasses(rows_of(x, [1, 2])) as passes:
        final = finish(passes, arrays, "keep")
    assert (final.n_empty, final.value) == (1, 2.0)
    np.testing.assert_array_equal(final.arrays.centers, arrays.centers)
    np.testing.assert_array_equal(final.arrays.counts, [3, 0])


@pytest.mark.parametrize("layout", ["f4", "f8", "u1", "8 features", "sparse", "far"])
def test_moved_centres_get_the_same_rows_as_in_a_search_of_all(
    layout: str, worker_clients: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows with ties and without weight; at least 20 of 240 centres without rows."""
    r = np.random.default_rng(3)
    x = r.integers(0, 3, (3_000, 8 if layout == "8 features" else 12)).astype("f4")
    x[::7] += r.random(x[::7].shape)
    x[-2:] += 1e19 if layout == "far" else 9.0
    if layout == "8 features":
        x = np.float32(0.1) + np.float32(0.6) * x  # (more ties in float32 than in float64)
    x = x.astype(layout if layout in ("f8", "u1") else "f4")
    weight = r.integers(0, 3, 3_000).astype(float)
    centers = x[r.choice(3_000, 240, replace=False)].astype("f8" if layout == "f8" else "f4")
    centers[::12] += 50
    centers[12] = centers[0]
    arrays = CenterArrays(centers, np.zeros(240), x[:100].mean(axis=0).astype(centers.dtype))
    rows = rows_of(x, [250] * 12, weight)
    table = sparse_rows(x) if layout == "sparse" else x
    if layout == "sparse":
        rows = open_rows(scipy.sparse.csr_matrix(x), sample_weight=weight)
    searched, search = [], kmeans.nearest_pruned

    def counted(some: Any, packed: Any) -> Any:
        searched.append(len(some) * packed.n_clusters)
        return search(some, packed)

    for module in (kmeans, relocation):
        monkeypatch.setattr(module, "nearest_pruned", counted)
    found = []
    # With several groups, the labels of the first groups are computed again.
    for group_rows in (3_000, 700):
        monkeypatch.setattr(labels_module, "GROUP_ROWS", group_rows)
        searched.clear()
        told: list[int] = []
        with LocalPasses(rows, n_threads=2) as passes:
            final = finish(passes, arrays, "relocate", told.append)
        found.append(final.arrays.centers)
        assert (final.n_empty, told.count(3_000)) == (0, 2)
        if layout in ("f4", "f8", "u1", "far"):
            n_times = sum(searched) / (3_000 * 240)
            assert n_times < 1.3 if group_rows == 3_000 else 1.7 < n_times < 2.3
        packed = pack_centers(final.arrays.centers, arrays.shift)
        labels = nearest(table, packed)
        exact_distances(table, packed, labels)
        np.testing.assert_array_equal(final.labels, labels)
        np.testing.assert_array_equal(final.arrays.counts, np.bincount(labels, weight, 240))
    assert 20 <= (found[0] != centers).any(axis=1).sum() <= 30
    with ClusterPasses(rows, worker_clients(2)) as passes:
        final = finish(passes, arrays, "relocate")
        assert passes.n_workers == 2
    np.testing.assert_array_equal(final.labels, labels)
    for centers in found:
        np.testing.assert_array_equal(final.arrays.centers, centers)


def test_groups_have_a_minimum_number_of_chunks() -> None:
    table = np.arange(0, 101, 10)
    assert list(group_chunks(table, 20, 4)) == [range(4), range(4, 8), range(8, 10)]
    assert list(group_chunks(table, 50, 4)) == [range(5), range(5, 10)]
    assert list(group_chunks(table, 20, 1_000)) == [range(10)]


@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_many_workers_label_more_chunks_at_a_time(
    n_workers: int, worker_clients: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if workers write the labels: otherwise the driver would hold more of them at a time."""
    monkeypatch.setattr(labels_module, "GROUP_ROWS", 20)
    x = np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32)
    rows = rows_of(x, [10] * 50)
    problem = KMeansProblem(3)
    labelling = problem.labelling(CenterArrays(x[:3], np.zeros(3), np.zeros(2)))
    ends: list[int] = []
    with LocalPasses(rows) as passes:
        expected = label_rows(passes, labelling, report=ends.append)
    assert ends == list(range(20, 501, 20))
    ends.clear()
    out = LabelStore(str(tmp_path / "labels.zarr"), rows.chunk_table, {})
    assert out.writer is not None
    with ClusterPasses(rows, worker_clients(n_workers)) as passes:
        found = label_rows(passes, labelling, out=out, report=ends.append)
        step = 10 * GROUP_CHUNKS * n_workers
        assert ends == [*range(step, 500, step), 500]
        ends.clear()
        here = label_rows(passes, labelling, report=ends.append)
    assert ends == list(range(20, 501, 20))
    assert expected.labels is not None
    np.testing.assert_array_equal(zarr.open_array(out.url, mode="r")[...], expected.labels)
    np.testing.assert_array_equal(here.labels, expected.labels)
    for name, sums in expected.sums.items():
        np.testing.assert_array_equal(found.sums[name].values, sums.values)
        np.testing.assert_array_equal(here.sums[name].values, sums.values)
