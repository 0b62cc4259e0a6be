"""Labels by numpy alone are those of the kernels, whatever BLAS gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from largek_dask.algorithms.parts import plain
from largek_dask.algorithms.parts.plain import label_plainly, nearest_plainly
from largek_dask.data.sources import open_rows
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.passes.local import LocalPasses


def brute(x: NDArray[Any], centers: NDArray[Any]) -> NDArray[np.float64]:
    return ((x[:, None].astype(np.float64) - centers.astype(np.float64)) ** 2).sum(-1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [9, 40])
def test_labels_are_those_of_the_kernels(d: int, dtype: Any, monkeypatch: Any) -> None:
    """Also in a tight group far out, where a product of matrices does not tell centres apart."""
    monkeypatch.setattr(plain, "BLOCK", 37 * 60)
    draws = np.random.default_rng(d)
    centers = draws.normal(size=(60, d)).astype(dtype)
    centers[30:] = centers[30:] * dtype(1e-3) + dtype(300)
    centers[50:] = centers[40:50]
    x = np.repeat(centers, 4, axis=0) + draws.normal(size=(240, d)).astype(dtype) * dtype(1e-3)
    labels, distances = nearest_plainly(x.astype(np.float64), centers.astype(np.float64))
    kernel = nearest(x, pack_centers(centers, np.zeros(d, dtype)))
    np.testing.assert_array_equal(labels, kernel)
    assert not np.isin(labels, range(50, 60)).any(), "the lower one of two equal centres"
    np.testing.assert_allclose(distances, brute(x, centers).min(1), rtol=1e-12)


def test_what_blas_gives_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(1)
    x = draws.normal(size=(300, 12))
    # Many rows half-way between two centres.
    centers = np.concatenate([x[:20] + 0.25, x[:20] - 0.25])
    labels, distances = nearest_plainly(x, centers)
    order = np.arange(12)[::-1]
    # The products of another order are rounded otherwise; all else stays.
    squared = plain._squared
    monkeypatch.setattr(
        plain, "_squared", lambda a, i, b, j: squared(a[:, order], i, b[:, order], j)
    )
    again = nearest_plainly(
        np.ascontiguousarray(x[:, order]), np.ascontiguousarray(centers[:, order])
    )
    np.testing.assert_array_equal(labels, again[0])
    np.testing.assert_array_equal(distances, again[1])


def test_chunks_weights_and_bad_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("largek_dask.data.memory_rows.MIN_CHUNK_ROWS", 1)
    draws = np.random.default_rng(2)
    x = draws.normal(size=(500, 9))
    x[17, 3] = np.nan
    weight = draws.uniform(0, 2, 500)
    weight[40:60] = 0
    import dask.config

    with (
        dask.config.set({"largek.data.memory-chunk-bytes": 50 * 9 * 8}),
        LocalPasses(open_rows(x, sample_weight=weight), n_threads=3, on_bad_rows="skip") as passes,
    ):
        assert passes.n_chunks == 10
        centers = x[:7]
        found = label_plainly(passes, centers)
        assert found is not None
        labels, inertia, counts = found
        again = label_plainly(passes, centers)
        assert again is not None
        assert again[1] == inertia
        monkeypatch.setattr(plain, "MOST_WORK", 500 * 7 * 9 - 1)
        assert label_plainly(passes, centers) is None
    good = np.delete(np.arange(500), 17)
    expected = brute(x[good], centers)
    np.testing.assert_array_equal(labels[good], expected.argmin(1))
    assert labels[17] == -1
    assert inertia == pytest.approx((expected.min(1) * weight[good]).sum())
    np.testing.assert_allclose(
        counts, np.bincount(expected.argmin(1), weight[good], minlength=7), rtol=1e-12
    )
