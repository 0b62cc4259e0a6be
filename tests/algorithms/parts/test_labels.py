"""Labels and bounds of rows against brute force, for rows that enter and rows that were there."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.algorithms.parts.labels import UNKNOWN, label_rows, label_with_margins
from largek_dask.kernels.bounds.groups import BoundedCenters, Drift, group_centers
from largek_dask.kernels.distances import pack_centers
from tests import oracles


def test_a_look_says_how_much_farther_the_second_centre_is():
    x = np.random.default_rng(2).normal(size=(300, 12))
    kept, n_evaluated, margins = label_with_margins(x, pack_centers(x[:30], np.zeros(12)), None)
    assert n_evaluated == 300 * 30
    d2 = np.sort(np.square(x[:, None] - x[:30]).sum(axis=2), axis=1)
    np.testing.assert_array_equal(kept["labels"], oracles.assign(x, x[:30])[0])
    np.testing.assert_allclose(margins, d2[:, 1] - d2[:, 0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n_new", [0, 1, 250, 499, 500])
def test_rows_that_enter_get_bounds_and_the_others_keep_theirs(n_new):
    r = np.random.default_rng(1)
    x = r.normal(size=(500, 12)).astype(np.float32)
    packed = pack_centers(x[:30], np.zeros(12, np.float32))
    groups = group_centers(packed.centers, packed.shift, 4)
    centers = BoundedCenters(packed, groups, Drift.zero(groups))
    known, n_all = label_rows(x, centers, {"labels": np.full(500, -1, np.int32)})
    assert n_all == 500 * 30
    new = r.permutation(500)[:n_new]
    carried = {name: array.copy() for name, array in known.items()}
    for name, nothing in UNKNOWN.items():
        carried[name][new] = nothing
    kept, n_evaluated = label_rows(x, centers, carried)
    np.testing.assert_array_equal(kept["labels"], oracles.assign(x, packed.centers)[0])
    for name in ("upper", "lower"):
        np.testing.assert_array_equal(kept[name][new], known[name][new])
    assert n_new * 30 <= n_evaluated <= n_all


def test_a_look_leaves_no_bounds_of_another_label():
    """Rows that change their label in a step that looks for moves lose their bounds."""
    r = np.random.default_rng(0)
    x = r.normal(size=(500, 12)).astype(np.float32)
    old = pack_centers(x[:30], np.zeros(12, np.float32))
    new = pack_centers(x[100:130], np.zeros(12, np.float32))
    groups = group_centers(old.centers, old.shift, 4)
    drift = Drift.zero(groups)
    before, _ = label_rows(x, BoundedCenters(old, groups, drift), None)
    after = BoundedCenters(new, groups, drift.advance(old, new, groups))
    kept, _, margins = label_with_margins(x, after, before)
    labels = kept["labels"]
    changed = labels != before["labels"]
    assert 0 < np.count_nonzero(changed) < 500
    assert (margins >= 0).all()
    assert np.isposinf(kept["upper"][changed]).all()
    assert np.isneginf(kept["lower"][changed]).all()
    distance = np.sqrt(((x - new.centers[labels]) ** 2).sum(axis=1, dtype=np.float64))
    assert (kept["upper"] + after.drift.centers[labels] >= distance * (1 - 1e-6)).all()
    assert np.isfinite(kept["upper"][~changed]).all()
