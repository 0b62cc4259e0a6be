"""Scatter matrices and their eigenvalues, against fractions and characteristic polynomials."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.kernels.spectrum import ScatterSums, eigenvalues
from tests.helpers.covering import in_turns
from tests.oracles.dcd_certain import scatter


def rotated(values, r):
    """A matrix with these eigenvalues, nearly: an orthogonal one from QR on either side."""
    q, _ = np.linalg.qr(r.normal(size=(len(values), len(values))))
    made = (q * values) @ q.T
    return (made + made.T) / 2


@pytest.mark.parametrize(
    ("d", "kind"),
    in_turns([1, 2, 3, 7, 30], ["plain", "graded", "equal", "low rank", "huge", "tiny"]),
)
def test_eigenvalues(d, kind):
    r = np.random.default_rng(d)
    values = {
        "plain": r.normal(size=d),
        "graded": 10.0 ** -np.arange(d),
        "equal": np.full(d, 3.0),
        "low rank": np.where(np.arange(d) < 2, 5.0, 0.0),
        "huge": 1e280 * (1 + r.random(d)),
        "tiny": 1e-290 * (1 + r.random(d)),
    }[kind]
    matrix = rotated(values, r)
    before = matrix.tobytes()
    found, error = eigenvalues(matrix)
    assert matrix.tobytes() == before
    largest = np.abs(values).max()
    assert (np.diff(found) <= 0).all()
    assert 0 <= error < 1e-10 * largest
    # numpy's own are off by a few roundings of the largest
    true = np.linalg.eigvalsh(matrix / largest)[::-1]
    off = np.sqrt(((found / largest - true) ** 2).sum())
    assert off <= error / largest + 1e-14 * d
    assert off < 1e-14 * d


def test_eigenvalues_that_are_known():
    assert eigenvalues(np.diag([1.0, 4.0, 2.0]))[0].tolist() == [4, 2, 1]
    for other in (1.0, -1.0):
        values, error = eigenvalues(np.array([[2.0, other], [other, 2.0]]))
        assert np.sqrt(((values - [3, 1]) ** 2).sum()) <= error
    # the second difference: 2 - 2 cos(pi i / (d + 1))
    d = 50
    matrix = 2 * np.eye(d) - np.eye(d, k=1) - np.eye(d, k=-1)
    values, error = eigenvalues(matrix)
    true = np.sort(2 - 2 * np.cos(np.pi * np.arange(1, d + 1) / (d + 1)))[::-1]
    assert np.sqrt(((values - true) ** 2).sum()) <= error
    assert eigenvalues(np.zeros((3, 3)))[0].tolist() == [0, 0, 0]
    assert eigenvalues(np.zeros((3, 3)))[1] == 0


def test_what_rotations_have_not_reached_counts_as_an_error(monkeypatch):
    """The error includes entries that are too small to be rotated."""
    matrix = np.diag([1.0, 2.0])
    matrix[0, 1] = matrix[1, 0] = 2.0**-57
    values, error = eigenvalues(matrix)
    assert values.tolist() == [2, 1]
    assert error >= 2.0**-57 * 2**0.5


ROWS = ("plain", "far", "one far out", "constant column", "repeats", "one row", "integers")


def rows_of(kind, r):
    x = r.normal(size=(9, 3))
    if kind == "far":
        x += 1e6
    if kind == "one far out":
        x[4] = 1e9
    if kind == "constant column":
        x[:, 1] = 0.1
    if kind == "repeats":
        x[3:] = x[2]
    if kind == "one row":
        return x[:1]
    return (10 * x).astype(np.int16) if kind == "integers" else x


@pytest.mark.parametrize(("weighted", "kind", "seed"), in_turns([False, True], ROWS, range(3)))
def test_scatter_matrix(seed, kind, weighted):
    r = np.random.default_rng([seed, ROWS.index(kind)])
    x = rows_of(kind, r)
    weight = np.exp(r.normal(size=len(x))) if weighted else None
    total = ScatterSums(3)
    total.add(x, weight, x.astype(float).mean(axis=0))
    found, error = total.matrix()
    true = scatter(x, np.ones(len(x)) if weight is None else weight)
    off = np.sqrt(
        sum(
            float(f - t) ** 2
            for f, t in zip(found.flat, (v for row in true for v in row), strict=True)
        )
    )
    assert off <= error
    assert (found == found.T).all()
    size = float(sum(true[i][i] for i in range(3)))
    # (the mean that is counted from is rounded)
    most = float(np.abs(x.astype(float)).max())
    assert error <= 2.0**-47 * size + 1e-25 * most**2


def test_any_parts_in_any_order():
    r = np.random.default_rng(0)
    x = (1e3 + r.normal(size=(5_000, 4)) * 10.0 ** r.integers(-6, 6, size=(5_000, 4))).astype("f4")
    weight = r.integers(0, 3, 5_000) * 0.3
    x[weight == 0] = np.nan
    shift = np.full(4, 1e3)
    whole = ScatterSums(4)
    whole.add(x, weight, shift)
    parts = [ScatterSums(4) for _ in range(3)]
    for at, rows in enumerate([slice(0, 1), slice(1, 700), slice(700, 4_000), slice(4_000, None)]):
        parts[at % 3].add(x[rows], weight[rows], shift)
    joined = parts[2].merge(parts[0]).merge(parts[1])
    assert joined.nbytes > 0
    assert joined.matrix()[0].tobytes() == whole.matrix()[0].tobytes()
    assert joined.matrix()[1] == whole.matrix()[1] > 0


def test_no_rows_and_numbers_that_are_too_large():
    assert ScatterSums(2).matrix()[0].tolist() == [[0, 0], [0, 0]]
    assert ScatterSums(2).matrix()[1] == 0
    for value in (1e200, 1e151):
        total = ScatterSums(2)
        total.add(np.array([[value, 0.0], [-value, 1.0]]), None, np.zeros(2))
        assert total.matrix()[1] == np.inf
