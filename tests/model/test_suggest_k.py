"""How many clusters there are: planted ones are named, and where there are none none is."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.partition_path.stability import compare_halves
from largek_dask.algorithms.parts.spectrum import scatter_sums, spectral_bounds
from largek_dask.model.suggest_k import BELOW, BEND, STABLE, Curve, spectrum_of, suggest_from
from tests.helpers.covering import in_turns, slow
from tests.oracles.dcd_certain import inertia_of, simple_path

K = 8
N = 1_500


def suggested(inertia, stability, weight, n_features, spectrum=None, sizes=None, halves=None):
    sizes = np.arange(1, len(inertia) + 1) if sizes is None else sizes
    return suggest_from(Curve(sizes, inertia, weight, n_features, spectrum), stability, halves)


def gaussian_ratios(inertia, d, spectrum=None):
    return Curve(np.arange(1, len(inertia) + 1), inertia, 1.0, d, spectrum).gaussian_ratios()


def judged(x, k=K, seed=0, with_spectrum=True):
    """What is said of rows, by a path that is found in a simple way."""
    ones = np.ones(len(x))
    inertia = inertia_of(x, ones, simple_path(x, ones, k))
    stability = compare_halves(x, None, Rng(seed), k).stability[: len(inertia)]
    bounds = spectral_bounds(*scatter_sums(x, None, x.mean(axis=0)).matrix(), k)
    spectrum = spectrum_of(bounds, x.shape[1]) if with_spectrum else None
    return suggested(inertia, stability, weight=len(x), n_features=x.shape[1], spectrum=spectrum)


def planted(k, d, r):
    """Round groups whose centres are 7 standard deviations apart, or farther."""
    width = {1: 8.0 * k, 2: 8.0 * k**0.5}.get(d, 10.0)
    centers: list[np.ndarray] = []
    while len(centers) < k:
        one = width * r.uniform(-1, 1, size=d)
        if all(((one - other) ** 2).sum() >= 49 for other in centers):
            centers.append(one)
    return np.array(centers)[r.integers(k, size=N)] + r.normal(size=(N, d))


@pytest.mark.parametrize(
    ("shape", "with_spectrum"),
    in_turns([(2, 1), (4, 1), (3, 2), (6, 2), (5, 5), (3, 20), (6, 20)], [True, False]),
)
def test_planted_groups_are_counted(shape, with_spectrum):
    k, d = shape
    found = judged(planted(k, d, np.random.default_rng([k, d])), with_spectrum=with_spectrum)
    assert (found.k, found.clear) == (k, True), str(found)
    assert found.stability[k - 1] >= STABLE
    assert found.gaussian[k - 1] < BELOW
    assert str(found).startswith(f"{k} clusters: halves of the data agree")


ONE_LUMP = {
    "Gaussian, d = 1": lambda r: r.normal(size=(N, 1)),
    "Gaussian, d = 2": lambda r: r.normal(size=(N, 2)),
    "Gaussian, d = 3": lambda r: r.normal(size=(N, 3)),
    "Gaussian, d = 10": lambda r: r.normal(size=(N, 10)),
    "long Gaussian, d = 2": lambda r: r.normal(size=(N, 2)) * [30, 1],
    "long Gaussian, d = 5": lambda r: r.normal(size=(N, 5)) * [10, 1, 1, 1, 1],
    "line": lambda r: r.uniform(size=(N, 1)),
    "square": lambda r: r.uniform(size=(N, 2)),
    "cube": lambda r: r.uniform(size=(N, 3)),
    "rectangle": lambda r: r.uniform(size=(N, 2)) * [4, 1],
    "heavy tails": lambda r: r.standard_t(3, size=(N, 2)),
    "few rows on a line": lambda r: r.uniform(size=(60, 1)),
    "few rows": lambda r: r.normal(size=(60, 1)),
}


@pytest.mark.parametrize(
    ("name", "with_spectrum"),
    in_turns([*ONE_LUMP][:6], [True, False]) + slow(*in_turns([*ONE_LUMP][6:], [True, False])),
)
def test_one_lump_has_no_clear_k(name, with_spectrum):
    found = judged(ONE_LUMP[name](np.random.default_rng(0)), with_spectrum=with_spectrum)
    assert (found.k, found.runner_up, found.clear) == (None, None, False), str(found)
    assert str(found).startswith("No clear k: ")


def test_halves_of_one_gaussian_agree_by_accident():
    """So stability alone does not do."""
    found = judged(np.random.default_rng(0).normal(size=(N, 2)) * [30, 1], seed=1)
    assert found.stability[1] >= STABLE
    assert found.gaussian[1] == pytest.approx(4 * (1 - 2 / np.pi), rel=0.05)
    assert "one Gaussian of the same spectrum" in found.words


def test_groups_of_groups_have_a_runner_up():
    r = np.random.default_rng(1)
    centers = np.array([[0, 0], [12, 0], [0, 12], [90, 0], [102, 0], [90, 12.0]])
    x = centers[r.integers(6, size=N)] + r.normal(size=(N, 2))
    found = judged(x)
    assert (found.k, found.clear) == (6, True)
    assert found.runner_up == 2
    assert "runner-up is 2" in str(found)


def test_a_curve_that_ends_too_early():
    found = judged(planted(5, 2, np.random.default_rng([5, 2])), k=5)
    assert (found.k, found.clear) == (5, False)
    assert str(found).startswith("No clear k: 5 clusters or more.")


@pytest.mark.parametrize(("k", "seed"), [(5, 1), *slow((8, 2))])
def test_a_curve_that_ends_before_its_bend(k, seed):
    """Of 12 groups in 16 dimensions no stable partition need be into as few."""
    x = planted(12, 16, np.random.default_rng(seed))
    assert judged(x, k=16).k == 12
    found = judged(x, k=k)
    assert not found.clear
    assert str(found).startswith(f"No clear k: {k} clusters or more.")


def test_a_curve_that_is_smooth_does_not_ask_for_more_clusters():
    turn = 2 * np.pi * np.random.default_rng(0).random(N)
    found = judged(np.stack([np.cos(turn), np.sin(turn)], axis=1), k=8)
    assert found.gaussian[-1] < 0.8
    assert (found.k, "or more" in found.words) == (None, False)


def test_few_distinct_rows():
    x = np.repeat([[0.0, 0], [0, 1], [9, 9]], 40, axis=0)
    found = judged(x)
    assert (found.k, found.clear) == (3, True)


@pytest.mark.parametrize("inertia", [[0.0], [0.0, 0.0, 0.0], [5.0]])
def test_nothing_to_compare(inertia):
    k = len(inertia)
    found = suggested(np.array(inertia), np.ones(k), weight=10.0, n_features=2)
    assert (found.k, found.clear) == (None, False)
    assert "nothing to compare" in found.words


def test_few_rows_must_show_more():
    """What is a little below a line is chance where rows are few."""
    curve = np.array([100.0, 18.75, 18.0, 17.0])
    many, few = (
        suggested(curve, np.ones(4), weight=weight, n_features=1) for weight in (1e4, 60.0)
    )
    assert many.gaussian[1] == pytest.approx(0.75, rel=1e-12)
    assert (many.k, many.clear) == (2, True)
    assert (few.k, few.clear) == (None, False)


def test_a_curved_line_has_no_bend():
    """Its objectives fall as 1 / l^2, below those of a Gaussian that is as wide both ways."""
    sizes = np.arange(1.0, 13)
    found = suggested(100 / sizes**2, np.ones(12), weight=1e6, n_features=2)
    assert (found.gaussian[2:11] < BELOW).all()
    assert not found.clear
    falls = np.diff(-np.log(1 / sizes**2))
    assert (falls[:-1] / falls[1:] < BEND).all()
    middle = suggested(100 / sizes**2, np.append(np.ones(11), 0.0), weight=1e6, n_features=2)
    assert middle.k is None
    assert "no bend" in middle.words


# --- the parts


def waterfilled(spectrum, size):
    """The least a Gaussian could leave, by bisection for the level: at all, and where used."""
    low, high = 0.0, max(spectrum)
    for _ in range(200):
        level = (low + high) / 2
        rate = sum(max(0.0, np.log(own / level)) / 2 for own in spectrum if own > 0)
        low, high = (level, high) if rate > np.log(size) else (low, level)
    return sum(min(own, level) for own in spectrum), sum(own for own in spectrum if own <= level)


def test_what_a_gaussian_could_leave_at_best():
    r = np.random.default_rng(3)
    for _ in range(40):
        d = int(r.integers(1, 7))
        spectrum = np.sort(10.0 ** r.uniform(-3, 3, d))[::-1]
        if d > 2:
            spectrum[-1] = 0.0
        inertia = np.sort(r.random(9) * spectrum.sum())[::-1]
        inertia[0] = spectrum.sum()
        found = gaussian_ratios(inertia, d, spectrum)
        assert np.isnan(found[0])
        for size in range(2, 10):
            least, others = waterfilled(spectrum.tolist(), size)
            true = (inertia[size - 1] - others) / (least - others)
            assert found[size - 1] == pytest.approx(true, rel=1e-9, abs=1e-9)


def test_evenly_cut_cubes_leave_as_much_as_a_gaussian_could():
    for d in (1, 2, 3):
        inertia = np.full(8, float(d))
        inertia[2**d - 1] = d / 4
        ratios = gaussian_ratios(inertia, d)
        assert ratios[2**d - 1] == pytest.approx(1, rel=1e-12)
        assert BELOW < 1


def test_the_spectrum_from_its_bounds():
    bounds = np.array([14.0, 5, 1, 0, 0])
    assert spectrum_of(bounds, 3).tolist() == [9, 4, 1]
    assert spectrum_of(bounds[:2], 3).tolist() == [9, 2.5, 2.5]
    assert spectrum_of(bounds[:1], 2).tolist() == [7, 7]
    assert spectrum_of(np.array([14.0, 8, 3]), 1).tolist() == [14]
    assert spectrum_of(np.zeros(4), 3) is None


# --- curves with gaps, and halves


def falling(sizes, k, steep=8.0):
    """ln W that falls quickly up to k clusters, slowly beyond."""
    sizes = np.asarray(sizes)
    logs = np.where(sizes <= k, np.log(sizes), np.log(k) + (sizes - k) / (20 * k))
    return 1e6 * np.exp(-steep * logs / np.log(k))


def test_numbers_may_be_left_out():
    sizes = np.array([1, 2, 3, 4, 8, 16, 32, 64, 95, 100, 105, 128])
    found = suggested(
        falling(sizes, 100), np.ones(len(sizes)), weight=1e6, n_features=4, sizes=sizes
    )
    assert (found.k, found.clear) == (100, True)
    assert found.n_clusters.tolist() == sizes.tolist()


def test_without_its_window_a_number_does_not_bend():
    sizes = np.array([1, 2, 3, 4, 8, 16, 32, 64, 95, 100, 128])
    found = suggested(
        falling(sizes, 100), np.ones(len(sizes)), weight=1e6, n_features=4, sizes=sizes
    )
    assert not found.clear


@pytest.mark.parametrize(
    ("halves", "range_"), [((6, 6), (6, 6)), ((6, 7), (6, 7)), ((5, 8), (5, 8))]
)
def test_halves_that_name_about_the_same_say_how_sure_it_is(halves, range_):
    sizes = np.arange(1, 13)
    curves = [Curve(sizes, falling(sizes, k), 1e5, 4) for k in halves]
    assert tuple(curve.suggested() for curve in curves) == halves
    found = suggested(falling(sizes, 6), np.ones(12), weight=1e5, n_features=4, halves=curves)
    assert (found.k, found.clear, found.halves, found.range) == (6, True, halves, range_)
    assert f"suggest {halves[0]} and {halves[1]} clusters" in str(found)


@pytest.mark.parametrize("other", [3, 10, None])
def test_a_half_that_names_another_number_is_a_doubt(other):
    sizes = np.arange(1, 13)
    curve = falling(sizes, other) if other else 1e6 / sizes
    halves = [Curve(sizes, falling(sizes, 6), 1e5, 4), Curve(sizes, curve, 1e5, 4)]
    assert halves[1].suggested() == other
    found = suggested(falling(sizes, 6), np.ones(12), weight=1e5, n_features=4, halves=halves)
    assert (found.k, found.clear, found.range, found.runner_up) == (None, False, None, None)
    assert str(found).startswith(
        "No clear k: all of the data suggest 6 clusters, but the two halves"
    )
