"""Moves of centres: only where they pay, and then to where they pay most."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.algorithms.parts import moves
from largek_dask.algorithms.parts.moves import (
    Moves,
    Splits,
    choose_moves,
    losses_of_merging,
    nearest_others,
)
from largek_dask.algorithms.truncated import probe
from largek_dask.algorithms.truncated.probe import LabelledSample


def on_a_line(k):
    """(k, k - 1) nearest others of centres on a line, ties to the lower one."""
    at = np.arange(k)
    distance = np.abs(at[:, None] - at[None])
    return np.argsort(distance, axis=1, kind="stable")[:, 1:]


def choose(losses, gains, *, clusters=None, near=4, **options):
    """Moves among centres on a line; by default every cluster may be split or removed."""
    losses, gains = np.asarray(losses, float), np.asarray(gains, float)
    clusters = np.arange(len(gains)) if clusters is None else np.asarray(clusters)
    halves = 1000.0 + np.arange(2.0 * len(gains)).reshape(-1, 2, 1)
    cheapest = np.argsort(losses, kind="stable")
    options = {"most": len(losses), "split_takers": True, **options}
    others = on_a_line(len(losses))[cheapest, :near]
    return choose_moves(Splits(clusters, gains, halves), losses, cheapest, others, **options)


def test_moves_only_where_the_gain_exceeds_the_loss():
    losses = np.full(30, np.inf)
    losses[[3, 12]] = 5.0, 7.0
    moves = choose(losses, [4.0, 6.0], clusters=[20, 25])
    # The better split (of 25) takes the cheaper centre (3); 4.0 does not pay for 12.
    assert (moves.split.tolist(), moves.removed.tolist()) == ([25], [3])
    assert moves.gain == 1.0
    assert not len(choose(losses, [4.0, 5.0], clusters=[20, 25]).split)
    assert not len(choose(losses, [-np.inf, np.nan], clusters=[20, 25]).split)


def plain_moves(losses, gains, near, most, factor, split_takers):
    """The same in plain Python: in every round the best split that is left, the cheapest centre."""
    k = len(losses)
    removable, splittable, found = set(range(k)), set(range(k)), []
    order = sorted(range(k), key=lambda j: (losses[j], j))
    while splittable and len(found) < most:
        j = min(splittable, key=lambda j: (-gains[j], j))
        splittable.discard(j)
        while order and (order[0] not in removable or order[0] == j):
            order.pop(0)
        if not order or not gains[j] > max(0, factor * losses[order[0]]):
            break
        r = order.pop(0)
        takers = set(near[r].tolist())
        removable -= {j, r} | takers
        splittable -= {r} if split_takers else {r} | takers
        found.append((j, r))
    return found


@pytest.mark.parametrize("split_takers", [False, True])
def test_choose_moves__are_those_of_plain_python(split_takers):
    for seed in range(40):
        r = np.random.default_rng(seed)
        k = int(r.integers(3, 60))
        losses, gains = r.integers(0, 12, k) / 2.0, r.integers(0, 16, k).astype(float)
        factor, most, near = r.choice([0.5, 1.0, 2.0]), int(r.integers(1, k)), int(r.integers(0, 5))
        options = {"most": most, "factor": factor, "split_takers": split_takers}
        moves = choose(losses, gains, near=near, **options)
        expected = plain_moves(losses, gains, on_a_line(k)[:, :near], **options)
        assert list(zip(moves.split.tolist(), moves.removed.tolist(), strict=True)) == expected
        assert moves.gain == sum(gains[j] - losses[i] for j, i in expected)
        np.testing.assert_array_equal(moves.halves[:, 0, 0], 1000.0 + 2 * moves.split)


def test_apply__puts_one_half_in_its_place_and_the_other_where_a_centre_is_taken_from():
    centers = np.arange(8.0)[:, None]
    halves = np.array([[[10.0], [11.0]], [[20.0], [21.0]]])
    moved = Moves(np.array([4, 6]), np.array([0, 3]), halves, 1.0).apply(centers)
    assert moved[:, 0].tolist() == [11, 1, 2, 21, 10, 5, 20, 7]
    assert centers[:, 0].tolist() == list(range(8)), "a copy"


def gaps_of(centers):
    """Squared distances of some sparse centres to all, as a labelled sample tells."""
    nobody = np.empty(0, np.int32)
    return LabelledSample(None, None, nobody, 1.0, centers, np.zeros(centers.shape[1])).gaps


def test_nearest_others(monkeypatch):
    centers = np.array([[0.0], [1.0], [3.0], [7.0]])
    kept, anew = gaps_of(centers), gaps_of(centers)
    for same, most in ((None, 0), (kept, 16), (anew, 15)):
        monkeypatch.setattr(probe, "MOST_GAPS", most)
        found = nearest_others(centers, np.array([3, 0]), np.zeros(1), 2, same)
        assert found.tolist() == [[2, 1], [1, 2]]
    assert "_gaps" in kept.__self__.__dict__, "all are asked once"
    assert "_gaps" not in anew.__self__.__dict__, "there are too many to keep"
    assert kept.__self__._gaps.min() == 0, "what is kept is not written to"
    assert nearest_others(centers, np.array([1]), np.zeros(1), 9).tolist() == [[0, 2, 3]]


@pytest.mark.parametrize("sparse", [False, True])
def test_nearest_others_are_looked_for_a_few_at_a_time(monkeypatch, sparse):
    """Among many centres, of which some are equal, and the same as if all were put in order."""
    r = np.random.default_rng(1)
    centers, which = r.integers(0, 3, (90, 3)).astype(np.float64), r.permutation(90)[:40]
    apart = ((centers[which, None] - centers) ** 2).sum(axis=2)
    apart[np.arange(40), which] = np.inf
    expected = np.argsort(apart, axis=1, kind="stable")[:, :5]
    assert (np.sort(apart, axis=1)[:, 4] == np.sort(apart, axis=1)[:, 5]).any(), "ties at the end"
    asked = []

    def gaps(some):
        asked.append(len(some))
        return ((centers[some, None] - centers) ** 2).sum(axis=2)

    compare = moves.scores
    monkeypatch.setattr(
        moves, "scores", lambda x, packed: (asked.append(len(x)), compare(x, packed))[1]
    )
    monkeypatch.setattr(moves, "GAPS_AT_ONCE", 700)
    found = nearest_others(centers, which, np.zeros(3), 5, gaps if sparse else None)
    assert asked == [7, 7, 7, 7, 7, 5]
    np.testing.assert_array_equal(found, expected)


def test_the_least_values_are_those_that_come_first_in_order():
    r = np.random.default_rng(2)
    for _ in range(300):
        values = r.integers(0, 4, (r.integers(1, 6), r.integers(1, 9))).astype(np.float64)
        values[r.random(values.shape) < 0.2] = np.inf
        values[r.random(values.shape) < 0.1] = np.nan
        for m in range(values.shape[1] + 1):
            expected = np.argsort(values, axis=1, kind="stable")[:, :m]
            np.testing.assert_array_equal(moves._least(values, m), expected)


def test_what_merging_loses():
    r = np.random.default_rng(0)
    centers, counts = r.standard_normal((9, 3)), r.integers(1, 50, 9).astype(np.float64)
    counts[4] = 0
    wanted = np.full(9, np.inf)
    for i in range(9):
        for j in set(range(9)) - {i}:
            both = np.maximum(counts[i] + counts[j], 1)
            ward = counts[i] * counts[j] / both * ((centers[i] - centers[j]) ** 2).sum()
            wanted[i] = min(wanted[i], ward)
    for gaps in (None, gaps_of(centers)):
        found = losses_of_merging(centers, counts, np.zeros(3), gaps)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
        assert found[4] == 0
