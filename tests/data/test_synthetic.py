"""Seeded data: the same rows however they are made, and what each kind promises."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from largek_dask.data import synthetic
from largek_dask.data.ingest import ingest
from largek_dask.data.synthetic import KINDS, SyntheticRows, generate
from largek_dask.errors import ParameterError
from tests.data.helpers import read_all


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_generate__written_rows_are_the_generated_ones(kind, tmp_path):
    shape = (300, 784) if kind == "C" else (5_000, 6)
    x = generate(kind, *shape, n_components=20, seed=3)
    assert x.shape == shape
    assert x.dtype == np.float32
    assert np.isfinite(x).all()
    made = SyntheticRows(kind, *shape, n_components=20, seed=3)
    rows = ingest(made, tmp_path / "x.zarr", chunk_rows=shape[0] // 2, progress=False)
    np.testing.assert_array_equal(read_all(rows), x)
    assert rows.stored_statistics()["n_rows"] == len(x)
    lazy = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(lazy.read(lazy.n_chunks - 1), x[lazy.chunk_table[-2] :])
    other = generate(kind, *shape, n_components=20, seed=4)
    assert not np.array_equal(other, x)


@pytest.mark.parametrize("kind", ["mixture", "low-rank", "duplicates", "offset"])
def test_generate__a_longer_set_begins_with_the_shorter_one(kind):
    long, short = (generate(kind, n, 5, n_components=9) for n in (10_000, 5_000))
    np.testing.assert_array_equal(long[:5_000], short)


@pytest.mark.parametrize(("name", "shape"), [("A", (200_000, 64)), ("B", (1_000_000, 18))])
def test_benchmark_sets__have_their_sizes(name, shape):
    rows = SyntheticRows(name)
    assert rows.shape == shape
    assert SyntheticRows("C").shape == (60_000, 784)
    np.testing.assert_array_equal(rows.read(0), SyntheticRows(name).read(0))


def test_duplicates__have_few_distinct_rows():
    assert len(np.unique(generate("duplicates", 5_000, 4, n_components=13), axis=0)) == 13


def test_sorted__components_come_one_after_the_other():
    x = generate("sorted", 20_000, 64, n_components=4, seed=1)
    shares = SyntheticRows("sorted", 20_000, 64, n_components=4, seed=1)._maker._shares
    parts = np.split(x, np.round(shares[:-1] * 20_000).astype(int))
    means = np.array([part.mean(axis=0) for part in parts])
    nearest = ((x[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    label = np.repeat(np.arange(4), [len(part) for part in parts])
    assert (nearest == label).mean() > 0.9


def test_offset__lies_far_away_with_extent_one():
    x = generate("offset", 5_000, 4, dtype=np.float64)
    assert abs(x.mean() - 1e6) < 1
    assert 0.5 < np.abs(x - 1e6).max() < 2


def test_low_rank__clusters_are_flat():
    maker = SyntheticRows("low-rank", 10_000, 30, n_components=1)
    values = np.linalg.svd(maker.read(0) - maker.read(0).mean(axis=0), compute_uv=False)
    assert values[3] > 10 * values[4]


def test_digits__look_like_images():
    x = generate("C", 500)
    assert x.min() == 0
    assert 200 < x.max() <= 255
    image = x.reshape(-1, 28, 28).mean(axis=0)
    assert image[10:18, 10:18].mean() > 5 * image[:3].mean()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16", "float64"])
def test_generate__types(dtype):
    x = generate("C", 300, dtype=dtype)
    assert x.dtype == np.dtype(dtype)
    np.testing.assert_allclose(x, generate("C", 300), rtol=1e-3, atol=0.5)


def test_generate__says_what_is_missing():
    for arguments, message in [
        (("nonsense", 5, 5), "kind='nonsense': choose one of mixture"),
        (("mixture", 5), "needs n_features"),
        (("mixture", 0, 5), "needs n_rows"),
        (("C", 5, 5), "n_features must be 784"),
    ]:
        with pytest.raises(ParameterError, match=message):
            generate(*arguments)


def test_generated_rows__are_made_a_block_at_a_time():
    rows = SyntheticRows("mixture", 80_000_000, 32, n_components=4)
    assert rows.nbytes == 80_000_000 * 32 * 4
    assert np.diff(rows.chunk_table).max() == synthetic.BLOCK_ROWS
    last = rows.n_chunks - 1
    assert rows.read(last).shape == (80_000_000 % 4_096, 32)
