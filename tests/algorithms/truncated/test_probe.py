"""Probes of a sample: gains of lists, misled rows, and splits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from largek_dask.algorithms.truncated.passes import Pass
from largek_dask.algorithms.truncated.probe import (
    LabelledSample,
    _with_costliest,
    gains_of_lists,
    share_misled,
    splits_of,
)
from largek_dask.algorithms.truncated.schedule import LENGTHS, LONG
from largek_dask.kernels.bounds.lists import order_by_label
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.threads import Threads


@pytest.mark.parametrize("weighted", [False, True])
def test_share_misled(weighted):
    """Two useless coarse cells, and lists that reach half the way."""
    centers = np.arange(40, dtype=np.float32)[:, None]
    shift = np.zeros(1, np.float32)
    coarse = np.array([[0.0], [1000.0]], np.float32)
    x = np.array([[0.4], [12.4], [30.4], [5.0]], np.float32)
    labels = np.array([0, 12, 30, -1], np.int32)
    weight = np.array([1.0, 2.0, 3.0, 0.0]) if weighted else None
    rows = LabelledSample(x, weight, labels, 1.0, centers, shift)
    listed = np.concatenate([np.arange(11), np.arange(11, 40)]).astype(np.int32)
    cells = Pass("cells", centers, shift, listed, np.array([0, 11, 40]), coarse)
    table = np.argsort(np.abs(centers - centers.T), axis=1, kind="stable").astype(np.int32)
    # The cell of 0 has 0 to 10; five of the nearest centres of 10 lead on to 12.
    found = np.array([0.0, 12.0, 12.0])
    near = np.array([1.0, 2.0, 3.0]) if weighted else np.ones(3)
    now, then = near @ np.full(3, 0.4**2), near @ (x[:3, 0] - found) ** 2
    misled = share_misled(rows, cells, table[:, :9], 5, Threads())
    assert misled == pytest.approx(then / now - 1, rel=1e-4)
    assert share_misled(rows, cells, table, 40, Threads(2)) == pytest.approx(0, abs=1e-6)
    nobody = replace(rows, labels=np.full(4, -1, np.int32))
    assert share_misled(nobody, cells, table, 5, Threads()) == 0


@pytest.mark.parametrize("weighted", [False, True])
def test_gains_of_lists_of_every_length(weighted):
    k = 2 * max(LENGTHS)
    lengths = (*LENGTHS, k)
    borders = {at + off for at in (*LENGTHS, LONG) for off in (-1, 0, 1)}
    # The centre at j is the j-th from the centre at 0, where all rows are said to be.
    at = np.array(sorted(borders))
    weight = np.arange(1.0, len(at) + 1) if weighted else None
    centers, shift = np.arange(k, dtype=np.float32)[:, None], np.zeros(1, np.float32)
    x, labels = at[:, None].astype("f4"), np.zeros(len(at), np.int32)
    rows = LabelledSample(x, weight, labels, 3.0, centers, shift)
    gains = gains_of_lists(rows, Threads(2))
    saved = at.astype(float) ** 2 * (1 if weight is None else weight)
    assert at[-1] > LONG
    saved[-1] = 0  # the one that is not trusted
    assert gains == tuple(3 * saved[at < length].sum() for length in lengths)
    # No other is beyond what lists can hold but for these: with one alone nothing is left.
    few = at <= LONG
    rows = LabelledSample(rows.x[few], None, rows.labels[few], 1.0, centers, shift)
    gains = gains_of_lists(rows, Threads(1))
    assert gains[-1] == np.square(at[at < LONG], dtype=float).sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_splits_are_tried_on_the_costliest_rows(weighted):
    """Of a cluster that has more than enough; the others weigh what all the others do."""
    sizes = [255, 0, 256, 257, 900, 1]
    r = np.random.default_rng(0)
    labels = r.permutation(np.repeat(np.arange(6, dtype=np.int32), sizes))
    x = np.rint(4 * r.standard_t(2, (len(labels), 3))).astype(np.float32)
    weight = r.integers(1, 9, len(x)).astype(float) if weighted else None
    given_weight = None if weight is None else weight.copy()
    centers, shift = np.zeros((6, 3), np.float32), np.zeros(3, np.float32)
    order, starts = order_by_label(labels, 6)
    rows = LabelledSample(x, weight, labels, 1.0, centers, shift, far=True)
    chosen, edges, weights = _with_costliest(rows, order, starts)
    assert np.diff(edges).tolist() == [255, 0, 256, 256, 256, 1]
    mass = np.ones(len(x)) if weight is None else weight
    cost = mass * np.square(x, dtype=float).sum(axis=1)
    for cluster in range(6):
        own, mine = np.flatnonzero(labels == cluster), chosen[edges[cluster] : edges[cluster + 1]]
        if len(own) <= 256:
            np.testing.assert_array_equal(mine, own)
            np.testing.assert_array_equal(weights[own], mass[own])
            continue
        dearest, others = mine[:64], np.setdiff1d(own, mine[:64])
        assert cost[dearest].min() >= cost[others].max()
        assert (np.diff(cost[dearest]) <= 0).all()
        np.testing.assert_array_equal(weights[dearest], mass[dearest])
        at = np.searchsorted(others, mine[64:])
        np.testing.assert_array_equal(others[at], mine[64:])
        assert np.ptp(np.diff(at)) <= 1
        scale = weights[mine[64:]] / mass[mine[64:]]
        np.testing.assert_allclose(scale, mass[others].sum() / mass[mine[64:]].sum(), rtol=1e-12)
    if weighted:
        np.testing.assert_array_equal(weight, given_weight)


def test_probes_do_not_depend_on_threads():
    r = np.random.default_rng(0)
    x = r.standard_normal((2_000, 6)).astype(np.float32)
    centers, shift = x[:40].copy(), np.zeros(6, np.float32)
    labels = nearest(x, pack_centers(centers, shift))
    labels[::7] = -1
    labels[1::9] = 3
    rows, clusters = LabelledSample(x, None, labels, 2.5, centers, shift), np.arange(0, 40, 2)
    one, two = (splits_of(rows, clusters, n) for n in (1, 2))
    np.testing.assert_array_equal(one.gains, two.gains)
    np.testing.assert_array_equal(one.halves, two.halves)
    gains = gains_of_lists(rows, Threads())
    assert max(gains) > 0
    assert gains_of_lists(rows, Threads(2)) == gains
