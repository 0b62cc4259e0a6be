"""Products of rows and directions, and orthonormal bases, against plain numpy."""

from __future__ import annotations

import itertools
import pickle

import dask.config
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.errors import ParameterError
from largek_dask.kernels.projection import Directions, orthonormal, project
from largek_dask.kernels.tile import TILES
from tests.helpers.covering import slow


def rows(n, d, dtype, seed=0):
    r = np.random.default_rng(seed)
    x = r.normal(size=(n, d)) * 20 + 50
    return np.clip(x, 0, 255).astype(dtype) if np.dtype(dtype).kind in "iu" else x.astype(dtype)


def plain(x, directions):
    """One fused multiply-add a feature is a rounding of the exact product: the sum in float64."""
    away = x.astype(directions.origin.dtype) - directions.origin
    return away.astype(np.float64) @ directions.vectors.T.astype(np.float64)


@pytest.mark.parametrize(
    ("tile", "dtype"),
    [
        *(("auto", dtype) for dtype in ("f4", "f8", "u1", "i2")),
        ("plain", "f4"),
        *slow(*itertools.product(TILES, ["f4", "f8", "u1", "i2"])),
    ],
)
def test_project(tile, dtype):
    for shape in [(1, 1, 1), (7, 3, 2), (50, 17, 9), (130, 70, 300)]:
        check_projection(tile, dtype, *shape)


def check_projection(tile, dtype, n, d, m):
    x = rows(n, d, dtype)
    r = np.random.default_rng(1)
    kind = "f8" if dtype == "f8" else "f4"
    directions = Directions.of(r.normal(size=(m, d)).astype(kind), x.mean(axis=0))
    with dask.config.set({"largek.kernels.tile": tile}):
        out = project(x, directions)
    assert out.dtype == np.dtype(kind)
    lengths = np.sqrt((directions.vectors.astype("f8") ** 2).sum(axis=1))
    away = np.sqrt(((x - directions.origin.astype("f8")) ** 2).sum(axis=1))
    bound = (d + 3) * np.finfo(kind).eps * (away[:, None] * lengths + 1)
    assert (np.abs(out - plain(x, directions)) <= bound).all()


@pytest.mark.parametrize("tiles", [["auto", "plain"], *slow([*TILES])], ids="-".join)
@given(st.integers(1, 40), st.integers(1, 30), st.integers(1, 40), st.integers(0, 9))
def test_no_bit_depends_on_tile_or_place(tiles, n, d, m, seed):
    x = rows(n, d, "f4", seed)
    vectors = np.random.default_rng(seed).normal(size=(m, d)).astype("f4")
    directions = Directions.of(vectors, x[0])
    found = []
    for tile in tiles:
        with dask.config.set({"largek.kernels.tile": tile}):
            found.append(project(x, directions))
            backwards = project(x[::-1], directions)[::-1]
            alone = project(x, Directions.of(vectors[m // 2 :][:1], x[0]))[:, 0]
        assert backwards.tobytes() == found[-1].tobytes()
        assert alone.tobytes() == found[-1][:, m // 2].tobytes()
    assert len({out.tobytes() for out in found}) == 1


def test_threads(monkeypatch):
    monkeypatch.setattr("largek_dask.kernels.threads.SLICE_VALUES", 8)
    x = rows(9, 4, "f4")
    directions = Directions.of(np.eye(2, 4, dtype="f4"), np.zeros(4))
    for n_threads in (1, 2, 3):
        assert (project(x, directions, n_threads) == x[:, :2]).all()
    assert project(x[:0], directions).shape == (0, 2)


def test_directions_travel():
    directions = Directions.of(rows(3, 5, "f4"), rows(1, 5, "f4")[0])
    other = pickle.loads(pickle.dumps(directions))
    assert other.same(directions)
    assert (
        project(rows(4, 5, "f4"), other).tobytes()
        == project(rows(4, 5, "f4"), directions).tobytes()
    )
    assert not other.same(Directions.of(directions.vectors[::-1], directions.origin))
    assert not other.same(Directions.of(directions.vectors[:2], directions.origin))
    with pytest.raises(ValueError, match="read-only"):
        other.vectors[0, 0] = 1


@pytest.mark.parametrize(("shape", "origin"), [((3,), 3), ((0, 3), 3), ((2, 0), 0), ((2, 3), 2)])
def test_shapes_that_do_not_fit(shape, origin):
    with pytest.raises(ParameterError, match=r"\(m, d\)"):
        Directions.of(np.zeros(shape), np.zeros(origin))
    with pytest.raises(ParameterError):
        project(np.zeros((2, 4), np.float32), Directions.of(np.ones((1, 3)), np.zeros(3)))


@pytest.mark.parametrize("kind", ["plain", "graded", "huge", "tiny", "nearly one"])
def test_orthonormal(kind):
    for m, d in [(1, 1), (3, 8), (5, 5), (20, 33), (40, 100)]:
        check_orthonormal(m, d, kind)


def check_orthonormal(m, d, kind):
    r = np.random.default_rng(m)
    x = r.normal(size=(m, d))
    x = {
        "plain": x,
        "graded": x * 10.0 ** -np.arange(m)[:, None],
        "huge": x * 1e300,
        "tiny": x * 1e-300,
        "nearly one": x[:1] + 1e-5 * x,
    }[kind]
    before = x.copy()
    basis = orthonormal(x)
    assert (x == before).all()
    assert basis.shape == (m, d)
    assert np.abs(basis @ basis.T - np.eye(m)).max() < 1e-14
    # in their order: the first of them span what the first vectors do
    scaled = x / np.abs(x).max(axis=1, keepdims=True)
    for j in range(m):
        inside = basis[: j + 1].T @ (basis[: j + 1] @ scaled[j])
        assert np.abs(scaled[j] - inside).max() < 1e-9


def test_orthonormal__what_depends_is_left_out():
    r = np.random.default_rng(0)
    a, b = r.normal(size=(2, 6))
    given_ = np.array([a, 2 * a, np.zeros(6), a - b, b, np.full(6, np.nan), np.full(6, np.inf)])
    basis = orthonormal(given_)
    assert basis.shape == (2, 6)
    assert np.abs(basis @ basis.T - np.eye(2)).max() < 1e-15
    assert orthonormal(np.zeros((3, 4))).shape == (0, 4)
    assert len(orthonormal(r.normal(size=(9, 4)))) == 4


def test_directions_behind_others():
    r = np.random.default_rng(0)
    x, vectors, origin = r.normal(size=(50, 7)), r.normal(size=(5, 7)), r.normal(size=7)
    five, three = Directions.of(vectors, origin), Directions.of(vectors[:3], origin)
    assert five.extends(three)
    assert five.extends(five)
    assert not three.extends(five)
    assert not five.extends(Directions.of(vectors[:3], 2 * origin))
    assert not five.extends(Directions.of(vectors[1:4], origin))
    assert project(x, five.beyond(3)).tobytes() == project(x, five)[:, 3:].tobytes()
