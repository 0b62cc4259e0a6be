"""Passes over rows: searches, losses, stops, pickles and replays."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.truncated.lists import Neighbours, Recipe
from largek_dask.algorithms.truncated.passes import Pass, RowArrays, advance, pass_over
from largek_dask.data.memory_rows import ArrayRows
from largek_dask.data.sources import open_rows
from largek_dask.errors import CancelledFit
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.threads import Threads
from largek_dask.passes.local import LocalPasses
from tests import oracles


@pytest.mark.parametrize("weighted", [False, True])
def test_losses_of_removing_clusters(weighted):
    r = np.random.default_rng(0)
    x, centers = r.normal(size=(400, 3)), r.normal(size=(12, 3))
    weight = r.integers(0, 4, 400).astype(float) if weighted else None
    made = Pass("all", centers, np.zeros(3), max_loss=1e3, loss_steps=2.0**30)
    found = advance(x, weight, RowArrays.new(400, np.dtype("f8")), made, Threads(2))[1]
    assert found is not None
    d2 = np.sort(np.square(x[:, None] - centers).sum(axis=2), axis=1)
    own, mass = oracles.assign(x, centers)[0], np.ones(400) if weight is None else weight
    removed, cost = (np.bincount(own, mass * part, 12) for part in (d2[:, 1] - d2[:, 0], d2[:, 0]))
    np.testing.assert_allclose(found / made.loss_steps, [removed, cost], rtol=1e-6)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_saved_labels_are_restored(n_threads):
    r = np.random.default_rng(0)
    x, centers = r.normal(size=(400, 2)), r.normal(size=(12, 2))
    shift, threads = np.zeros(2), Threads(n_threads)
    d2 = np.square(x[:, None] - centers).sum(axis=2)

    def lists(centers, **how):
        near = Neighbours(centers, shift, 4)
        unknown = {"drift": np.zeros(12), "reach": np.full(12, np.inf)}
        listed = np.sort(near.table(), axis=1).reshape(-1)
        return Pass("lists", centers, shift, listed, recipe=Recipe(near, 4), **unknown, **how)

    def of_lists(labels, centers):
        """The nearest of the list of each row's cluster, which is ``labels``."""
        table, all_ = (
            Neighbours(centers, shift, 4).table(),
            np.square(x[:, None] - centers).sum(axis=2),
        )
        allowed = np.zeros((len(x), 12), bool)
        allowed[np.arange(len(x))[:, None], table[labels]] = True
        return np.where(allowed, all_, np.inf).argmin(axis=1)

    rows = RowArrays.new(400, np.dtype("f8"))
    advance(x, None, rows, Pass("all", centers, shift), threads)
    first = d2.argmin(axis=1)
    np.testing.assert_array_equal(rows.labels, first)
    others = np.roll(centers, 1, axis=0)
    advance(x, None, rows, lists(others, save=True), threads)
    np.testing.assert_array_equal(rows.saved, first)
    between = of_lists(first, others)
    np.testing.assert_array_equal(rows.labels, between)
    again = lists(centers[::-1].copy(), restore=True, max_loss=1e3, loss_steps=1.0)
    expected = of_lists(first, centers[::-1])
    assert (expected != of_lists(between, centers[::-1])).sum() > 50
    _, _, moved = advance(x, None, rows, again, threads)
    np.testing.assert_array_equal(rows.labels, expected)
    # The search begins with the restored labels; bounds from another list do not hold.
    changed = np.flatnonzero(expected != first)
    assert 0 < len(changed) < 400
    np.testing.assert_array_equal(np.sort(moved.rows), changed)
    np.testing.assert_array_equal(moved.before, first[moved.rows])
    np.testing.assert_array_equal(np.flatnonzero(rows.lower == 0), changed)


@pytest.mark.parametrize("weighted", [False, True])
def test_far_rows_are_those_beyond_the_limit_that_have_weight(weighted):
    x, center = np.arange(1, 6, dtype="f4")[:, None], np.zeros((1, 1), "f4")
    weight = np.array([1, 2, 3, 0, 5.0]) if weighted else None
    with LocalPasses(open_rows(x, sample_weight=weight), n_threads=1) as passes:
        for far, cost in ((0.0, 0), (4.0, 3 * 9 + 5 * 25 if weighted else 9 + 16 + 25)):
            made = Pass("all", center, center[0], far=far)
            total, _ = pass_over(passes, History(), made, 0, None)
            assert total.tally.far.value == cost


def test_every_pass_can_be_stopped():
    """The check comes before every share of each search, that for cells included."""
    # (9 features: with fewer the shares depend on which kernels somebody has compiled already)
    x = np.random.default_rng(0).normal(size=(400, 9)).astype(np.float32)
    centers, shift = x[:12].copy(), np.zeros(9, np.float32)
    listed = np.tile(np.arange(12, dtype=np.int32), 12)
    asked: Counter[str] = Counter()

    def stop():
        raise CancelledFit("now")

    for kind in ("all", "lists", "unsettled", "cells"):
        rows = RowArrays.new(400, np.dtype("f4"))
        advance(x, None, rows, Pass("all", centers, shift))
        rows.lower[:] = 0  # none is settled
        made = Pass(
            kind, centers, shift, listed, np.arange(13) * 12, centers, np.zeros(12), np.zeros(12)
        )
        advance(x, None, rows, made, Threads(1, partial(asked.update, [kind])))
        np.testing.assert_array_equal(rows.labels, oracles.assign(x, centers)[0])
        rows.lower[:] = 0
        with pytest.raises(CancelledFit):
            advance(x, None, rows, made, Threads(1, stop))
    # Checks before compilations count as well, so numbers depend on what has been compiled.
    assert set(asked) == {"all", "lists", "unsettled", "cells"}


def test_a_pickled_pass_leaves_out_packed_centres():
    centers = np.ones((4, 2), np.float32)
    made = Pass("lists", centers, centers[0], np.arange(4, dtype=np.int32))
    packed = made.packed
    assert made.packed is packed
    other = pickle.loads(pickle.dumps(made))
    assert "packed" not in other.__dict__
    assert other.lists.lengths.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("k", "itemsize"), [(2, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4)])
def test_lists_are_pickled_in_few_bytes(k, itemsize):
    centers, listed = np.zeros((k, 1), np.float32), np.arange(k, dtype=np.int32)
    made = Pass("lists", centers, centers[0], listed)
    assert made.__getstate__()["listed"].itemsize == itemsize
    other = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(made))))
    np.testing.assert_array_equal(other.listed, listed, strict=True)
    assert pickle.loads(pickle.dumps(Pass("all", centers, centers[0]))).listed is None


def test_a_stored_pass_makes_its_lists_again():
    r = np.random.default_rng(0)
    before = Neighbours(r.normal(size=(60, 3)).astype("f4"), np.zeros(3, np.float32), 40)
    near = Neighbours(r.normal(size=(60, 3)).astype("f4"), np.zeros(3, np.float32), 30)
    split, removed = np.array([4, 7]), np.array([20, 50])
    for recipe in (Recipe(near, 16), Recipe(near, 16, before, split, removed)):
        old = None if recipe.before is None else before.table()
        offsets, listed = recipe.make(near.table(), old)
        made = Pass(
            "lists", near.centers, near.shift, listed=listed, offsets=offsets, recipe=recipe
        )
        # what travels has the lists, what stays the way to make them
        assert pickle.loads(pickle.dumps(made)).recipe is None
        kept = made.to_keep()
        assert kept.listed is kept.offsets is None
        for other in (kept, pickle.loads(pickle.dumps(kept))):
            np.testing.assert_array_equal(other.lists.offsets, made.lists.offsets)
            np.testing.assert_array_equal(other.lists.centers, made.lists.centers)
        kept.forget()
        assert "lists" not in kept.__dict__
        assert "remade" not in near.__dict__


def test_replayed_passes_drop_cached_arrays():
    x = np.random.default_rng(3).normal(size=(60, 3)).astype("f4")
    shift, listed = np.zeros(3, np.float32), np.tile(np.arange(4, dtype=np.int32), 4)
    known = {"drift": np.zeros(4), "reach": np.full(4, np.inf)}
    anchor = Pass("all", x[:4], shift)
    done = [anchor, *(Pass("lists", x[i : i + 4], shift, listed, **known) for i in (1, 2))]
    with LocalPasses(ArrayRows(x), n_threads=1) as passes:
        history = History()
        for step, one in enumerate(done):
            pass_over(passes, history, one, step, None)
            one.forget()
            history = history.then(one, anchor=one.is_anchor)
        assert passes.last.rebuilt == 0
        passes.begin_run()
        _, labels = pass_over(passes, history, replace(done[1]), 3, "all")
        assert passes.last.rebuilt == 1
    np.testing.assert_array_equal(labels, nearest(x, pack_centers(x[1:5], shift)))
    assert len(history) == 3
    assert not any(one.has_cached for one in history.entries)
