"""Algorithm 5.1 of DCD-Bundle: what the paper proves of it, and what it does on k-means."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from largek_dask.algorithms.published import dcd_bundle
from largek_dask.algorithms.published.dcd_bundle import (
    Accuracy,
    Iterate,
    clarke_stationary,
    iterate,
    plain_descent,
    serious,
)
from largek_dask.errors import ParameterError
from largek_dask.kernels.convex import (
    AuxiliaryFunction,
    ClusteringFunction,
    Evaluation,
    MeasuredRows,
    multipliers,
)
from tests.oracles import dcd as oracles
from tests.oracles import dcd_bundle as printed


class Bumpy:
    """``f_1 = |x - c|^2`` and ``f_2 = sum_i h_i |x_i|``: corners where f has maxima."""

    def __init__(self, center, heights):
        self.center, self.heights = np.array(center, float), np.array(heights, float)

    def evaluate(self, x):
        f1 = ((x - self.center) ** 2).sum()
        sign = np.where(x >= 0, 1.0, -1.0)
        return Evaluation(
            f1 - (self.heights * abs(x)).sum(), 2 * (x - self.center), self.heights * sign
        )

    def value(self, x):
        return self.evaluate(x).value

    def other_subgradient(self, x):
        if (x != 0).all():
            return None
        return self.evaluate(x).subgradient * np.where(x == 0, -1.0, 1.0)


class Valley:
    """``f_1`` badly scaled and smooth, ``f_2`` polyhedral: many steps overshoot."""

    def __init__(self, scales, slopes):
        self.scales, self.slopes = np.array(scales, float), np.array(slopes, float)

    def evaluate(self, x):
        values = self.slopes @ x
        best = int(values.argmax())
        f1 = (self.scales * x**2 + 0.1 * x**4).sum()
        gradient = 2 * self.scales * x + 0.4 * x**3
        return Evaluation(float(f1 - values[best]), gradient, self.slopes[best])


class Rotated:
    """A quadratic whose axes no diagonal metric fits: null steps follow one another."""

    def __init__(self, seed):
        r = np.random.default_rng(seed)
        axes, _ = np.linalg.qr(r.normal(size=(6, 6)))
        self.bends = axes @ np.diag(np.geomspace(0.5, 20, 6)) @ axes.T
        self.heights, self.center = r.uniform(size=6), r.normal(size=6)

    def evaluate(self, x):
        slope = self.bends @ (x - self.center)
        f = (x - self.center) @ slope / 2 - (self.heights * abs(x)).sum()
        return Evaluation(float(f), slope, self.heights * np.where(x >= 0, 1.0, -1.0))


class Waves:
    """Hills and dales in a bowl: the first step may end near a top."""

    def __init__(self, seed):
        self.directions = np.random.default_rng(seed).normal(size=(5, 3))
        self.bend = 0.05 + 5 * (self.directions**2).sum()

    def evaluate(self, x):
        angles = self.directions @ x
        f = 10 * np.cos(angles).sum() + 0.05 * (x**2).sum()
        slope = -10 * np.sin(angles) @ self.directions + 0.1 * x
        gradient = 2 * self.bend * x
        return Evaluation(float(f), gradient, gradient - slope)


def valley(seed=0):
    r = np.random.default_rng(seed)
    return Valley([1, 30, 900], r.normal(size=(6, 3)) * 20), r.normal(size=3) * 5


def iterates(function, start, accuracy, most):
    """States of Algorithm 5.1 at Step 3, at most so many iterations, and how it has ended."""
    x = np.array(start, float)
    s, states = serious(0, x, function.evaluate(x), np.ones_like(x), ()), []
    while s.end is None and len(states) <= most:
        states.append(s)
        s = iterate(function, s, accuracy)
    return states, s.end


@pytest.mark.parametrize("kind", ["valley", "waves", "bumpy", "rotated"])
def test_trajectories_of_toys_are_as_printed(kind):
    """Every vector and number of Algorithm 5.1, with all kinds of step."""
    for seed in range(12):
        r = np.random.default_rng(seed)
        function, start = Valley([1, 3, 9], r.normal(size=(6, 3))), r.normal(size=3)
        if kind == "waves":
            function, start = Waves(seed), 5 * start
        elif kind == "bumpy":
            function, start = Bumpy([0.01, -0.02, 1.0], [1.0, 3, 0.5]), start / 2
        elif kind == "rotated":
            function, start = Rotated(seed), r.normal(size=6)
        compare(function, start, 12, mu_max=2.0 if kind == "rotated" else 1e10)


@pytest.mark.parametrize("rows", ["cloud", "duplicates", "ties", "weights"])
@pytest.mark.parametrize("problem", ["clustering", "auxiliary"])
def test_trajectories_of_k_means_are_as_printed(problem, rows):
    r = np.random.default_rng(3)
    x = r.normal(size=(40, 2)) + 4 * r.integers(0, 3, (40, 1))
    if rows == "duplicates":
        x = np.repeat(x[:20], 2, axis=0)
    elif rows == "ties":  # every point of a square lattice, centres on it
        x = np.stack(np.meshgrid(np.arange(6.0), np.arange(6.0)), axis=-1).reshape(-1, 2)
    weight = r.uniform(0.5, 2, len(x)) if rows == "weights" else None
    measured, y = MeasuredRows.of(x, weight), x[20] + 0.25
    # Two centres of the lattice coincide; others lie beside their rows, or would be at rest but for
    # rounding, which equation 24 would see.
    centers = x[[0, 13, 13]] if rows == "ties" else x[[0, 7, 29]] + 0.25
    if problem == "auxiliary":
        compare(AuxiliaryFunction(measured, centers), y, 20, lambda y: oracles.auxiliary(
            x, weight, centers, y))  # fmt: skip
    else:
        compare(ClusteringFunction(measured, 3), centers, 20, lambda c: oracles.clustering(
            x, weight, c.reshape(3, 2)))  # fmt: skip


def compare(function, start, n, parts=None, mu_max=1e10):
    """Iterates and those of the oracle, which evaluates f by ``parts`` if they are given."""

    def evaluate(x):
        if parts is None:
            e = function.evaluate(x.reshape(start.shape))
            return e.value, e.gradient.ravel(), e.subgradient.ravel()
        f_1, f_2, g_1, g_2, *_ = parts(x)
        return f_1 - f_2, g_1.ravel(), g_2.ravel()

    states, _ = iterates(function, start, Accuracy(1e-12, mu_max=mu_max), n - 1)
    expected = list(printed.bundle(evaluate, start, n, 1e-12, mu_max))
    assert len(states) >= min(3, len(expected))
    # Vectors that cancel are as exact as the longest of them.
    fields = [np.abs(np.stack(field)) for field in zip(*expected, strict=True)]
    largest = [np.nan_to_num(field).max() for field in fields]
    largest[3] = 0.0  # D_1
    for s, e in zip(states, expected, strict=False):
        found = s.x, s.xi, s.beta, s.D_1, s.d, s.w, s.t
        for mine, theirs, most in zip(found, e, largest, strict=True):
            np.testing.assert_allclose(np.ravel(mine), np.ravel(theirs), 1e-9, 1e-9 * most)


def test_null_steps_from_any_state():
    """(25), (28), (30) to (33) where the aggregate is no longer a subgradient and has an error."""
    r, a, met = np.random.default_rng(1), Accuracy(mu_max=10.0), set()
    for seed in range(200):
        function, x = Rotated(seed), r.normal(size=6)
        if seed % 2:
            function, x = Waves(seed), 5 * r.normal(size=3)
        at, D_1, before = function.evaluate(x), 10 ** r.uniform(-2, 0, len(x)), r.uniform(0, 10)
        at_m = at.gradient - at.subgradient
        xi = r.uniform(-0.5, 0.5) * at_m + 10 * r.normal(size=len(x))
        s = Iterate(3, x, at, at_m, xi, before, D_1, -D_1 * xi, (), null=2)
        after = iterate(function, s, a)
        if after.null == 0 or after.end is not None:
            continue
        end = function.evaluate(x + after.t * s.d)
        new = end.gradient - end.subgradient
        error, apart = at.value - end.value + after.t * new @ s.d, after.t**2 * s.d @ s.d
        beta = max(abs(error), a.gamma * apart)
        assert -beta + new @ s.d >= -a.eps_R * (xi @ (D_1 * xi) + 2 * before)
        shares = printed.least((at_m, new, xi), (0, beta, before), np.diag(D_1))
        expected = shares @ np.array([at_m, new, xi])
        np.testing.assert_allclose(after.xi, expected, 1e-9, 1e-9 * abs(at_m).max())
        assert after.beta == pytest.approx(shares[1] * beta + shares[2] * before, rel=1e-9)
        np.testing.assert_array_equal(after.D_1, D_1)
        y, metric = function.evaluate(x + s.d), D_1
        if at.value - y.value + (y.gradient - y.subgradient) @ s.d < 0:
            D_2 = np.diag(printed.inverse([s.d], [y.subgradient - at.subgradient], a.mu_max))
            p = (D_2 / (D_1 + D_2)).max()
            metric = p * D_1 - (1 - p) * D_2
        np.testing.assert_allclose(after.d, -metric * after.xi, 1e-9, 1e-9)
        kind = "near" if beta > abs(error) else "below" if error < 0 else "above"
        met |= {tuple(shares > 0.01), kind, after.t < 1}
    assert met >= {(True, False, True), (False, True, True), (True, True, True)}
    assert met >= {"near", "below", "above", True, False}


@pytest.mark.parametrize("case", ["corner", "edge", "inside", "equal", "zero"])
def test_multipliers(case):
    """Against a fine grid of the triangle, and where the minimum is known."""
    vectors, b, expected = {
        "corner": ([[1, 0], [2, 0], [2, 1]], [0, 0, 0], [1, 0, 0]),
        "edge": ([[1, 1], [3, 3], [1, -1]], [0, 0, 0], [0.5, 0, 0.5]),
        "inside": ([[1, 0], [-0.5, 1], [-0.5, -1]], [0, 0, 0], [1 / 3, 1 / 3, 1 / 3]),
        "equal": ([[1, 2], [1, 2], [1, 2]], [0.5, 0, 1], [0, 1, 0]),
        "zero": ([[0, 0], [1, 0], [0, 1]], [0, 0, 0], [1, 0, 0]),
    }[case]
    vectors = tuple(np.array(v, float) for v in vectors)
    found = multipliers(vectors, tuple(b), np.array([1.0, 1.0]))
    np.testing.assert_allclose(found, expected, atol=1e-15)


@pytest.mark.parametrize("m_c", [1, 2, 7])
def test_stored_corrections(m_c):
    """The diagonal of (24) fits the latest m_c of them, in the sense of least squares."""
    compared = 0
    for seed in range(6):
        function, start = valley(seed)
        states, _ = iterates(function, start, Accuracy(1e-12, m_c=m_c), 40)
        for i in range(1, len(states)):
            if states[i].null:
                continue
            latest = states[max(0, i - m_c) : i]
            s = np.stack([now.d for now in latest])
            ends = [function.evaluate(now.x + now.d).gradient for now in latest]
            u = np.stack([y - now.at.gradient for y, now in zip(ends, latest, strict=True)])
            moved = (s != 0).any(axis=0)
            expected = np.ones(3)
            expected[moved] = (s * s).sum(axis=0)[moved] / (s * u).sum(axis=0)[moved]
            np.testing.assert_allclose(states[i].D_1, expected, rtol=1e-12)
            compared += i > m_c
    assert compared > 20


def test_ends(monkeypatch):
    function = Bumpy([1.0], [2.0])
    at = np.array([-1.5])
    # at its minimum already
    states, end = iterates(function, np.array([2.0]), Accuracy(), 5)
    assert (end, len(states)) == ("accuracy", 1)
    assert clarke_stationary(function, at, Accuracy(0.0)).at.value == -3
    assert clarke_stationary(Stairs(), np.array([1.0]), Accuracy(1e-12)).end == "rounding"
    assert plain_descent(Stairs(), np.array([1.0]), Accuracy()).end == "rounding"
    monkeypatch.setattr(dcd_bundle, "MOST", 1)
    assert clarke_stationary(function, at, Accuracy()).end == "most"
    assert plain_descent(function, at, Accuracy()).end == "most"


class Stairs:
    """A slope that f does not have, as rounding may feign it."""

    def evaluate(self, x):
        return Evaluation(1.0, 2 * x, np.zeros_like(x))


def test_ranges():
    for wrong in (
        {"eps": -1.0}, {"eps": math.nan}, {"eps_L": 0.5}, {"eps_R": 1e-5}, {"eps_R": 1.0},
        {"gamma": 0.0}, {"m_c": 0}, {"mu_min": 0.0}, {"mu_min": 2.0, "mu_max": 1.0},
        {"eps_T": 0.6},
    ):  # fmt: skip
        with pytest.raises(ParameterError, match="out of range"):
            dataclasses.replace(Accuracy(), **wrong)


# --- what the mathematics says of k-means ---------------------------------------------------------


def blobs(seed, n=300, d=3, k=4):
    r = np.random.default_rng(seed)
    x = r.standard_normal((n, d)) + 4 * r.integers(0, 3, (n, 1))
    x = x - x.mean(0)
    return x, x[r.choice(n, k, replace=False)].copy()


def cluster_means(x, centers):
    labels = oracles.two_nearest(x, centers)[0]
    n = np.bincount(labels, minlength=len(centers))
    means = np.stack([x[labels == j].mean(0) for j in range(len(centers))])
    return n, means


@pytest.mark.parametrize("seed", range(2))
def test_convex_step_is_a_damped_lloyd_step(seed):
    x, centers = blobs(seed)
    function = ClusteringFunction(MeasuredRows.of(x), len(centers))
    states, _ = iterates(function, centers, Accuracy(), 12)
    assert len(states) == 13
    for s in states[1:]:
        assert s.null == 0
        np.testing.assert_allclose(s.D_1, 0.5, rtol=1e-12)
        n, means = cluster_means(x, s.x)
        damped = s.x - (n / len(x))[:, None] * (s.x - means)
        np.testing.assert_allclose(s.x + s.d, damped, atol=1e-12)
