"""Clusters that are joined: as brute force would, and a curve that tells where groups end."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.model.suggest_k import window
from largek_dask.selection.agglomeration import bent_sizes, merge_down


def joined_by_brute_force(centers, counts, to):
    """Losses and centres of joins, each found among all pairs."""
    clusters = [(n, c) for n, c in zip(counts, centers, strict=True)]
    losses = []
    while len(clusters) > to:
        pairs = [
            (n * m / (n + m) * ((c - e) ** 2).sum() if n + m else 0.0, i, j)
            for i, (n, c) in enumerate(clusters)
            for j, (m, e) in enumerate(clusters)
            if i < j
        ]
        loss, i, j = min(pairs)
        (n, c), (m, e) = clusters[i], clusters[j]
        clusters[i] = n + m, (n * c + m * e) / (n + m) if n + m else c
        del clusters[j]
        losses.append(loss)
    return losses, np.array([c for _, c in clusters])


@pytest.mark.parametrize("seed", range(4))
def test_the_cheapest_two_are_joined(seed):
    r = np.random.default_rng(seed)
    centers, counts = r.normal(size=(30, 3)), r.integers(1, 9, size=30).astype(float)
    merges = merge_down(centers, counts, centers.mean(axis=0), 1)
    for left in (30, 17, 2, 1):
        losses, found = joined_by_brute_force(centers, counts, left)
        np.testing.assert_allclose(merges.losses[: 30 - left], losses, rtol=1e-9)
        np.testing.assert_allclose(merges.centers_of(left), found, rtol=1e-9, atol=1e-12)


def test_what_joins_cost_is_what_rows_then_cost():
    r = np.random.default_rng(5)
    labels = np.arange(200) % 20
    x = r.normal(size=(200, 2))
    centers = np.array([x[labels == j].mean(axis=0) for j in range(20)])
    within = sum(((x[labels == j] - centers[j]) ** 2).sum() for j in range(20))
    merges = merge_down(centers, np.full(20, 10.0), np.zeros(2), 1)
    curve = merges.curve(within)
    assert len(curve) == 20
    assert curve[-1] == pytest.approx(((x - x.mean(axis=0)) ** 2).sum(), rel=1e-12)


def test_a_cluster_that_weighs_nothing_goes_first():
    centers = np.array([[0.0], [10.0], [20.0], [10.5]])
    merges = merge_down(centers, np.array([5.0, 5.0, 0.0, 5.0]), np.zeros(1), 2)
    assert merges.losses[0] == 0
    assert merges.centers_of(2).tolist() == [[0.0], [10.25]]


def test_nothing_is_joined_where_all_are_to_stay():
    merges = merge_down(np.eye(3), np.ones(3), np.zeros(3), 3)
    assert len(merges.losses) == 0
    assert merges.curve(2.0).tolist() == [2.0]
    assert merges.centers_of(3).tolist() == np.eye(3).tolist()


@pytest.mark.parametrize(("groups", "pieces"), [(7, 16), (60, 100)])
def test_the_curve_bends_where_groups_would_be_torn(groups, pieces):
    r = np.random.default_rng(groups)
    home = np.concatenate([np.arange(groups), r.integers(groups, size=pieces - groups)])
    centers = 100 * r.normal(size=(groups, 4))[home] + r.normal(size=(pieces, 4))
    merges = merge_down(centers, np.full(pieces, 10.0), np.zeros(4), 2)
    most = pieces - window(pieces)
    assert bent_sizes(merges, 1.0, 3, most, 3.0, 1) == [groups]
    # it has to be looked for where it is, a window more or less
    beyond = 2 * window(groups) + 1
    assert groups not in bent_sizes(merges, 1.0, groups + beyond, most, 3.0, 9)
    assert groups not in bent_sizes(merges, 1.0, 3, groups - beyond, 3.0, 9)


def test_numbers_near_a_more_bent_one_are_left_out():
    r = np.random.default_rng(1)
    centers = 100 * r.normal(size=(60, 4))[np.arange(90) % 60] + r.normal(size=(90, 4))
    merges = merge_down(centers, np.full(90, 10.0), np.zeros(4), 2)
    found = bent_sizes(merges, 3_600.0, 3, 86, 1.5, 50)
    assert found[0] == 60
    assert window(60) == 3
    assert not {*range(54, 60), *range(61, 67)} & set(found)
