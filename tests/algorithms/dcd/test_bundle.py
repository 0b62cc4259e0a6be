"""Algorithm 5.1 of DCD-Bundle: what the paper proves of it, and what it does on k-means."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest

from largek_dask.algorithms.dcd.bundle import Accuracy, bundle, inner, multipliers
from largek_dask.algorithms.dcd.plain import plain_descent
from largek_dask.errors import ParameterError
from largek_dask.kernels.convex import ClusteringFunction, Evaluation, MeasuredRows
from tests.oracles import dcd as oracles


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

    def second(self, x):
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


def watched(function, start, accuracy):
    seen = []
    return bundle(function, start, accuracy, seen.append), seen


def run_all():
    """Descents that meet all kinds of step."""
    out = []
    for seed in range(30):
        function, start = valley(seed)
        out.append((function, *watched(function, start, Accuracy(1e-12, most=80))))
        waves = Waves(seed)
        out.append((waves, *watched(waves, start, Accuracy(1e-12, most=80))))
        bumpy = Bumpy([0.01, -0.02, 1.0], [1.0, 3, 0.5])
        out.append((bumpy, *watched(bumpy, start / 10, Accuracy(1e-12, most=80))))
    kinds = {i.kind for _, _, seen in out for i in seen}
    assert kinds == {"serious", "convex", "concave"}
    assert any(a.kind != "serious" != b.kind for *_, s in out for a, b in pairwise(s))
    return out


RUNS = run_all()


def test_steps_are_the_algorithms_own():
    """(26), and who moves: f falls at serious steps and stays at null steps."""
    for _, end, seen in RUNS:
        a = Accuracy()
        for i, now in enumerate(seen):
            falls = now.trial - now.value <= -a.descent * now.w
            assert falls == (now.kind == "serious")
            x = seen[i + 1].x if i + 1 < len(seen) else end.x
            after = seen[i + 1].value if i + 1 < len(seen) else end.found.value
            if falls:
                np.testing.assert_array_equal(x, now.x + now.direction)
                assert after == now.trial < now.value
            else:
                np.testing.assert_array_equal(x, now.x)
                assert after == now.value
        assert end.serious == sum(now.kind == "serious" for now in seen)
        assert end.null == len(seen) - end.serious


def test_desirable_descent():
    """Lemma 6.1."""
    a = Accuracy()
    for *_, seen in RUNS:
        for now in seen:
            square = inner(now.aggregate, now.metric * now.aggregate)
            assert now.w == pytest.approx(square + 2 * now.locality, rel=1e-14)
            assert now.locality >= 0
            assert now.w >= 2 * now.locality
            assert now.w >= a.lowest * inner(now.aggregate, now.aggregate)
            assert ((a.lowest <= now.metric) & (now.metric <= a.highest)).all()


def test_metric_does_not_grow_over_null_steps():
    """(29), and w falls (37), from the second of consecutive null steps on."""
    several = 0
    for *_, seen in RUNS:
        for before, now, after in zip(seen, seen[1:], seen[2:], strict=False):
            if "serious" not in (before.kind, now.kind):
                several += 1
                g = after.aggregate
                assert inner(g, after.metric * g) <= inner(g, now.metric * g) * (1 + 1e-14)
                assert after.w <= now.w * (1 + 1e-10)
    assert several > 20


def test_null_steps():
    """(27), (28), (31), (32), the sign of (33), and the multipliers of (30)."""
    a, r, n = Accuracy(), np.random.default_rng(0), 0
    for function, _, seen in RUNS:
        latest = None
        for i, now in enumerate(seen):
            if i == 0 or seen[i - 1].kind == "serious":
                latest = now.aggregate
                e = function.evaluate(now.x)
                np.testing.assert_array_equal(latest, e.gradient - e.subgradient)
                assert now.locality == 0
            if now.kind == "serious":
                continue
            n += 1
            at = function.evaluate(now.x + now.t * now.direction)
            assert 0 < now.t <= 1
            np.testing.assert_array_equal(now.auxiliary, at.gradient - at.subgradient)
            slope = inner(now.auxiliary, now.direction)
            error = now.value - at.value + now.t * slope
            length = inner(now.direction, now.direction)
            expected = max(abs(error), a.distance * now.t**2 * length)
            assert now.auxiliary_locality == pytest.approx(expected, rel=1e-12)
            assert -now.auxiliary_locality + slope >= -a.null * now.w
            trial = function.evaluate(now.x + now.direction)
            whole = inner(trial.gradient - trial.subgradient, now.direction)
            assert (now.value - trial.value + whole >= 0) == (now.kind == "convex")
            check_multipliers(now, latest, r)
            if i + 1 < len(seen):
                np.testing.assert_array_equal(seen[i + 1].aggregate, now.next_aggregate)
                mixed = now.multipliers @ [0, now.auxiliary_locality, now.locality]
                assert seen[i + 1].locality == pytest.approx(mixed, rel=1e-14)
    assert n > 100


def check_multipliers(now, latest, r):
    shares = now.multipliers
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(1, abs=1e-15)
    vectors = np.stack([latest, now.auxiliary, now.aggregate])
    b = np.array([0, now.auxiliary_locality, now.locality])
    np.testing.assert_allclose(now.next_aggregate, shares @ vectors, rtol=1e-12, atol=1e-12)

    def psi(s):
        return ((s @ vectors) ** 2 * now.metric).sum(axis=-1) + 2 * s @ b

    others = r.dirichlet(np.full(3, 0.5), 1000)
    assert psi(shares) <= psi(others).min() + 1e-12 * abs(psi(np.eye(3))).max()


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


def test_metrics_of_the_corrections():
    """(24): f_1 has the Hessian 2I, and a coordinate that never moves keeps its 1."""
    _, steps = watched(Bumpy([1.0, 0.3], [4.0, 0.0]), np.array([0.2, 0.0]), Accuracy())
    assert len(steps) > 1
    np.testing.assert_array_equal(steps[0].metric, [1, 1])
    np.testing.assert_allclose(steps[1].metric, [0.5, 0.5], rtol=1e-15)
    _, steps = watched(Bumpy([1.0, 0.0], [4.0, 0.0]), np.array([0.2, 0.0]), Accuracy())
    assert len(steps) > 1
    np.testing.assert_allclose(steps[1].metric, [0.5, 1], rtol=1e-15)
    assert steps[1].metric[1] == 1


@pytest.mark.parametrize("corrections", [1, 2, 7])
def test_stored_corrections(corrections):
    """The diagonal of (24) fits the latest m_c of them, in the sense of least squares."""
    compared = 0
    for seed in range(6):
        function, start = valley(seed)
        accuracy = Accuracy(1e-12, corrections=corrections, most=40)
        _, seen = watched(function, start, accuracy)
        for i in range(1, len(seen)):
            if seen[i - 1].kind != "serious":
                continue
            latest = seen[max(0, i - corrections) : i]
            s = np.stack([now.direction for now in latest])
            u = np.stack(
                [
                    function.evaluate(now.x + now.direction).gradient
                    - function.evaluate(now.x).gradient
                    for now in latest
                ]
            )
            moved = (s != 0).any(axis=0)
            expected = np.ones(3)
            expected[moved] = (s * s).sum(axis=0)[moved] / (s * u).sum(axis=0)[moved]
            np.testing.assert_allclose(seen[i].metric, expected, rtol=1e-12)
            compared += i > corrections
    assert compared > 20


def test_concave_direction():
    """``-(p D_1 - (1 - p) D_2)`` times the aggregate, semidefinite and singular."""
    n = 0
    for *_, seen in RUNS:
        for now, after in pairwise(seen):
            if now.kind == "concave":
                n += 1
                metric = np.where(after.aggregate != 0, -after.direction / after.aggregate, np.nan)
                # p D_1 - (1 - p) D_2 = 0 somewhere, and nowhere above D_1
                assert np.nanmin(metric) == pytest.approx(0, abs=1e-12)
                assert (metric[~np.isnan(metric)] <= after.metric[~np.isnan(metric)] * 2).all()
            elif now.kind == "convex":
                np.testing.assert_array_equal(after.direction, -after.metric * after.aggregate)
    assert n > 10


def test_ends():
    function = Bumpy([1.0], [2.0])
    at = np.array([-1.5])
    # at its minimum already
    end = bundle(function, np.array([2.0]), Accuracy())
    assert (end.ended, end.serious, end.null) == ("accuracy", 0, 0)
    assert bundle(function, at, Accuracy(most=1)).ended == "most"
    assert bundle(function, at, Accuracy(0.0)).found.value == -3
    end = bundle(Stairs(), np.array([1.0]), Accuracy(1e-12))
    assert end.ended == "rounding"
    assert plain_descent(Stairs(), np.array([1.0]), Accuracy()).ended == "rounding"
    assert plain_descent(function, at, Accuracy(most=1)).ended == "most"


class Stairs:
    """A slope that f does not have, as rounding may feign it."""

    def evaluate(self, x):
        return Evaluation(1.0, 2 * x, np.zeros_like(x))


def test_ranges():
    for wrong in (
        {"tolerance": -1.0}, {"tolerance": math.nan}, {"descent": 0.5}, {"null": 1e-5},
        {"null": 1.0}, {"distance": 0.0}, {"corrections": 0}, {"lowest": 0.0},
        {"lowest": 2.0, "highest": 1.0}, {"escape": 0.6}, {"most": 0},
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
    end, seen = watched(function, centers, Accuracy(most=12))
    assert len(seen) == 12
    for now in seen[1:]:
        assert now.kind == "serious"
        np.testing.assert_allclose(now.metric, 0.5, rtol=1e-12)
        n, means = cluster_means(x, now.x)
        damped = now.x - (n / len(x))[:, None] * (now.x - means)
        np.testing.assert_allclose(now.x + now.direction, damped, atol=1e-12)
    assert end.null == 0
