"""Splits of clusters of sparse rows beside the same in plain numpy, on rows with their zeros."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.kernels.bounds.lists import order_by_label
from largek_dask.kernels.sparse import splits
from largek_dask.kernels.sparse.splits import LEAST_ROWS, split_sparse
from tests.kernels.test_sparse import block_of


def twin(x, weight):
    """Gain and halves of one cluster, of whose rows (n, d) every second one fits the split."""
    x = x.astype(np.float64)
    if len(x) < LEAST_ROWS:
        return 0.0, None
    fits, judges, w = x[::2], x[1::2], weight[::2]
    mean = w @ fits / w.sum()
    away = w * ((fits - mean) ** 2).sum(axis=1)
    if not away.max() > 1e-12 * (fits**2).sum(axis=1).max():
        return 0.0, None
    direction = fits[away.argmax()] - mean
    for _ in range(splits.POWER_STEPS):
        direction = (w * ((fits - mean) @ direction)) @ (fits - mean)
        direction /= np.sqrt(direction @ direction)
    gain, limit, halves = 0.0, mean @ direction, None
    for _ in range(splits.STEPS):
        part = fits @ direction > limit
        if part.all() or not part.any():
            break
        a, b = (w[of] @ fits[of] / w[of].sum() for of in (part, ~part))
        new = w[part].sum() * w[~part].sum() / w.sum() * ((a - b) ** 2).sum()
        if not new > gain:
            break
        halves, enough = np.stack([a, b]), new <= gain * splits.WORTH
        gain, direction, limit = new, a - b, 0.5 * (a - b) @ (a + b)
        if enough:
            break
    if halves is None:
        return 0.0, None
    to_halves = ((judges[:, None] - halves) ** 2).sum(axis=2).min(axis=1)
    saved = weight[1::2] @ (((judges - mean) ** 2).sum(axis=1) - to_halves)
    gain = saved * len(x) / len(judges)
    return (gain, halves) if gain > 0 else (0.0, None)


def sparse_numbers(r, n, d, share=0.2):
    """Rows with few numbers, those of the second half with more in their first columns."""
    x = r.random((n, d)) * (r.random((n, d)) < share)
    x[n // 2 :, :3] += 1.0
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_gains_and_halves(dtype, weighted, n_threads):
    r = np.random.default_rng(3)
    # More clusters than a thread takes at a time; some of fewer rows than can be split.
    k, n, d = 40, 1_500, 25
    labels = r.choice(k, n, p=r.dirichlet(np.ones(k))).astype(np.int32)
    x = sparse_numbers(r, n, d).astype(dtype)
    weight = r.integers(1, 5, n).astype(np.float64) if weighted else None
    order, starts = order_by_label(labels, k)
    clusters = np.arange(1, k)
    centers = r.random((k, d)).astype(dtype)
    gains, halves = split_sparse(
        block_of(x), order, starts, clusters, centers, weight, n_threads=n_threads
    )
    counts = np.bincount(labels, minlength=k)
    assert (counts[1:] < LEAST_ROWS).any()
    assert 0 < np.count_nonzero(gains) < len(gains)
    given = np.ones(n) if weight is None else weight
    for at, j in enumerate(clusters):
        wanted, pair = twin(x[labels == j], given[labels == j])
        assert gains[at] == pytest.approx(wanted, rel=1e-9 if dtype is np.float64 else 1e-5)
        np.testing.assert_allclose(halves[at], centers[[j, j]] if pair is None else pair, 2e-6)


def test_few_rows_of_a_large_cluster_are_looked_at_and_they_tell_of_all():
    r = np.random.default_rng(0)
    x = sparse_numbers(r, 6_000, 30)
    x = x[r.permutation(len(x))]
    whole = np.arange(6_000, dtype=np.int32), np.array([0, 6_000]), np.array([0])
    center = x.mean(axis=0, keepdims=True)
    some, halves = split_sparse(block_of(x), *whole, center, max_rows=400)
    wanted, pair = twin(x[np.arange(400) * 15], np.ones(400))
    assert some[0] == pytest.approx(15 * wanted, rel=1e-9)
    np.testing.assert_allclose(halves[0], pair, rtol=1e-9)
    every, _ = split_sparse(block_of(x), *whole, center, max_rows=10_000)
    assert some[0] == pytest.approx(every[0], rel=0.1)


def test_rows_without_structure_gain_nothing_by_a_split():
    """On the rows that it was fitted to any split would seem to pay."""
    r = np.random.default_rng(1)
    x = (r.random((300, 2_000)) < 0.004).astype(np.float64)
    everyone = np.arange(300, dtype=np.int32), np.array([0, 300]), np.array([0])
    center = x.mean(axis=0, keepdims=True)
    gains, halves = split_sparse(block_of(x), *everyone, center)
    # What it gains is little beside the share of any two of so many rows.
    assert gains[0] < 0.02 * ((x - center) ** 2).sum()
    blobs = np.concatenate([x[:150] + np.eye(2_000)[0], x[150:] + np.eye(2_000)[1]])
    center = blobs.mean(axis=0, keepdims=True)
    gains, halves = split_sparse(block_of(blobs), *everyone, center)
    # Half of what the two columns are apart, less what the means of few rows miss.
    assert 100 < gains[0] < 150
    assert sorted(halves[0].argmax(axis=1)) == [0, 1]


@pytest.mark.parametrize("kind", ["empty", "alike", "one column", "vanishing", "NaN"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_any_kind(kind, dtype):
    x = np.zeros((64, 6), dtype)
    if kind == "alike":
        x[:] = np.array([0, 1.1, 0, 2.3, 0, 0])
    elif kind == "one column":
        x[:, 4] = np.arange(64)
    elif kind == "vanishing":
        # In float64 the squares of these are numbers still, and products of three are none.
        x[:, 2] = np.arange(64) * dtype(1e-45 if dtype is np.float32 else 1e-158)
    elif kind == "NaN":
        x[:, 2], x[7, 1] = np.arange(64), np.nan
    everyone = np.arange(64, dtype=np.int32), np.array([0, 64]), np.array([0])
    center = np.full((1, 6), 7, dtype)
    gains, halves = split_sparse(block_of(x), *everyone, center)
    if kind == "one column":
        assert gains[0] == pytest.approx(64 * 16**2, rel=0.1)
        assert sorted(halves[0, :, 4]) == [pytest.approx(15, abs=1), pytest.approx(47, abs=1)]
    elif kind == "vanishing":
        assert 0 <= gains[0] < 1e-80
    else:
        assert gains[0] == 0
        np.testing.assert_array_equal(halves[0], center[[0, 0]])


def test_steps_end_while_they_still_pay():
    n = 400
    x = np.abs(np.random.default_rng(4).standard_normal((n, 3)) ** 3)
    everyone = np.arange(n, dtype=np.int32), np.array([0, n]), np.array([0])
    gains, halves = split_sparse(block_of(x), *everyone, x[:1], max_rows=n)
    wanted, pair = twin(x, np.ones(n))
    assert gains[0] == pytest.approx(wanted, rel=1e-9)
    np.testing.assert_allclose(halves[0], pair, rtol=1e-9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "STEPS", 20)
        assert abs(twin(x, np.ones(n))[1] - pair).max() > 0.01, "further steps would have gone on"


def test_a_direction_along_which_no_row_lies_cuts_nothing():
    block = block_of(np.eye(4))
    parts = block.data, block.indices, block.indptr, np.arange(4)
    zeros = np.zeros((4, 4))
    halves = np.full((2, 4), 7.0)
    met = np.arange(4, dtype=np.int32)
    assert not splits._cut(
        parts, np.ones(4), np.ones(4), 4.0, np.ones(4) / 4, met, *zeros[:3], halves
    )
    assert (halves == 7).all()
