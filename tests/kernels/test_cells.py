"""k-means inside cells against its definition."""

from __future__ import annotations

import itertools
from itertools import pairwise

import dask.config
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.kernels.bounds.lists import order_by_label
from largek_dask.kernels.dense.cells import cell_means
from largek_dask.kernels.tile import TILES
from tests.helpers.covering import slow
from tests.oracles import truncated as oracles

COMPILED = not numba.config.DISABLE_JIT


def cells_of(n, n_cells, rng):
    """Rows in cells, sizes and picks: everything `cell_means` is given besides the rows."""
    of = rng.integers(-1, n_cells, n).astype(np.int32)
    order, starts = order_by_label(of, n_cells)
    counts = np.diff(starts)
    sizes = np.array([rng.integers(0, min(c, 9) + 1) for c in counts], np.int64)
    picks = [starts[c] + rng.choice(counts[c], s, replace=False) for c, s in enumerate(sizes) if s]
    return order, starts, sizes, np.concatenate([*picks, []]).astype(np.int64)


# Kernels are compiled for the dtype, and up to 8 features for their number.
@pytest.mark.parametrize(
    "kernels",
    [
        [("f4", 2), ("f4", 9), ("u1", 19)],
        *slow([*itertools.product(["f4", "f8", "u1"], [1, 3, 8, 9, 19])]),
    ],
    ids=["few kernels", "all kernels"],
)
@settings(max_examples=60 if COMPILED else 20)
@given(
    st.sampled_from([1, 2, 30, 200]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1.0, 10.0]),
    st.data(),
)
def test_cell_means__are_lloyd_steps_in_cells(
    kernels, n, n_cells, steps, weighted, seed, spread, data
):
    dtype, d = data.draw(st.sampled_from(kernels))
    rng = np.random.default_rng(seed)
    x = np.abs(np.round(rng.normal(size=(n, d)) * spread * 8)).astype(dtype)
    order, starts, sizes, picks = cells_of(n, n_cells, rng)
    if len(picks) == 0:
        return
    weight = rng.integers(0, 3, n).astype(float) if weighted else np.ones(n)
    # one step at a time, so that a tie that rounding breaks is not carried on
    shift = np.zeros(d)
    got, labels = cell_means(x, order, starts, sizes, picks, shift, 1, weight if weighted else None)
    cells = [order[a:b] for a, b in pairwise(starts)]
    want, want_labels = oracles.cell_means(x, cells, sizes, order[picks], 1, weight)
    np.testing.assert_array_equal(labels, want_labels)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert got.dtype == (np.float64 if dtype == "f8" else np.float32)
    more = cell_means(x, order, starts, sizes, picks, shift, steps)
    assert np.isfinite(more[0]).all()


@pytest.mark.parametrize(
    ("weight", "seat"),
    [(None, 30.0), ([1, 1, 1, 9, 1], 10.0), ([1, 1, 1, 1, 0], 10.0), ([1, 1, 1, 0, 0], None)],
)
def test_cell_means__a_centre_without_rows_goes_to_the_farthest_row(weight, seat):
    x = np.array([[0], [0], [0], [10], [30]], np.float32)
    order, starts = order_by_label(np.zeros(5, np.int32), 1)
    given_weight = None if weight is None else np.array(weight, float)
    sizes, picks = np.array([2]), np.array([0, 1])
    centers, labels = cell_means(x, order, starts, sizes, picks, np.zeros(1), 1, given_weight)
    # both begin at zero, where all rows go to the first; without anyone away it stays there
    assert centers[1, 0] == (0.0 if seat is None else seat)
    assert (labels == (x[:, 0] == seat)).all()


@pytest.mark.parametrize("kind", ["f2", "i8", "F"])
def test_cell_means__takes_rows_of_any_kind_and_threads(kind):
    rng = np.random.default_rng(5)
    x = rng.integers(0, 30, (400, 10)).astype("f4" if kind != "i8" else "f8")
    order, starts, sizes, picks = cells_of(400, 3, rng)
    want = cell_means(x, order, starts, sizes, picks, np.zeros(10), 2)
    given_rows = np.asfortranarray(x) if kind == "F" else x.astype(kind)
    got = cell_means(given_rows, order, starts, sizes, picks, np.zeros(10), 2, n_threads=2)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("d", "tiles"), [(18, ["auto", "plain"]), *slow((3, [*TILES]), (18, [*TILES]))]
)
def test_cell_means__have_the_same_bits_with_every_tile(d, tiles):
    rng = np.random.default_rng(d)
    x = rng.normal(size=(3000, d)).astype("f4") + 3
    order, starts, sizes, picks = cells_of(3000, 3, rng)
    results = []
    for tile in tiles:
        with dask.config.set({"largek.kernels.tile": tile}):
            results.append(cell_means(x, order, starts, sizes, picks, x.mean(axis=0), 5))
    if COMPILED:
        for result in results[1:]:
            for got, want in zip(result, results[0], strict=True):
                np.testing.assert_array_equal(got, want)
