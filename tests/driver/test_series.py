"""Series: what is drawn of a figure however long it is."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.driver.series import KEY, N, Series, X, Y

VALUES = st.floats(-1e300, 1e300)
ROWS = st.lists(VALUES, min_size=1, max_size=60).flatmap(
    # Short lists of values, repeated up to some thousand times: many buckets are merged.
    lambda values: st.integers(1, 40).map(lambda times: values * times)
)


def filled(values, buckets=8, beside=0):
    series = Series(beside, buckets)
    for step, value in enumerate(values):
        series.add(step, 0.5 * step, value, *[float(step)] * beside)
    return series


def told(points):
    """Points as tuples; None where the line is interrupted."""
    assert points.ndim == 2
    return [None if math.isnan(point[N]) else tuple(point) for point in points.tolist()]


@given(ROWS)
def test_first_last_and_extremes_are_kept_in_order(values):
    series = filled(values)
    points = told(series.points())
    assert len(points) <= 4 * 8
    assert [point[N] for point in points] == sorted({point[N] for point in points})
    # What is drawn are points that were added, each at its place.
    assert all(values[int(point[N])] == point[Y] for point in points)
    assert (points[0][Y], points[-1][Y]) == (values[0], values[-1])
    ys = [point[Y] for point in points]
    assert (min(ys), max(ys)) == (min(values), max(values))
    low, high = series.extremes()
    assert (low[Y], high[Y]) == (min(values), max(values))
    assert low[KEY] == values.index(min(values))
    assert high[KEY] == values.index(max(values))
    assert series.last()[X] == 0.5 * (len(values) - 1)


@given(ROWS, st.lists(st.integers(0, 2000), max_size=5))
def test_when_it_is_asked_changes_nothing(values, places):
    """Nobody who looks at a series changes what is kept, wherever the events are split."""
    asked = Series(buckets=8)
    for step, value in enumerate(values):
        if step in places:
            told(asked.points()), told(asked.means(3)), asked.extremes(), asked.before(7.0)
        asked.add(step, 0.5 * step, value)
    assert told(asked.points()) == told(filled(values).points())
    assert told(asked.means()) == told(filled(values).means())


@given(ROWS, st.integers(1, 6))
def test_coarser_ones_keep_first_last_and_extremes_as_well(values, most):
    points = told(filled(values).points(most))
    ys = [point[Y] for point in points]
    assert len(points) <= 4 * most
    assert (ys[0], ys[-1]) == (values[0], values[-1])
    assert (min(ys), max(ys)) == (min(values), max(values))


@given(ROWS, st.integers(-1, 100))
def test_cut_forgets_what_comes_again(values, key):
    series = filled(values)
    series.cut(key)
    points = [point for point in told(series.points()) if point is not None]
    assert all(point[KEY] <= key and values[int(point[N])] == point[Y] for point in points)
    assert bool(points) == (key >= 0)
    if len(values) - 1 <= key:
        assert points == told(filled(values).points())
    if points:
        assert points[0][Y] == values[0]


def test_of_few_points_a_cut_keeps_each():
    series = filled([5.0, 4.0, 3.0, 2.0, 1.0])
    series.cut(2)
    series.interrupt()
    series.add(3, 1.5, 2.0)
    assert [point and point[Y] for point in told(series.points())] == [5, 4, 3, None, 2]


def test_a_gap_stays_where_a_cut_goes_through_its_bucket():
    series = Series(buckets=4)
    for step in range(63):
        if step == 37:
            series.interrupt()
        series.add(step, step, -step)
    # Sixteen points a bucket: the third has the gap, and is cut behind it.
    assert [bool(begins) for begins in series._coarse(4)[:, 2]] == [False, False, True, False]
    series.cut(46)
    series.add(47, 47, -47)
    found = told(series.points())
    assert [point and point[KEY] for point in found] == [0, 15, 16, 31, 32, None, 47]
    series.cut(31)
    series.add(32, 32, -32)
    assert None not in told(series.points())


@given(ROWS, st.sets(st.integers(1, 2000), max_size=4))
def test_gaps_stay_visible(values, gaps):
    series, expected = Series(buckets=8), 0
    for step, value in enumerate(values):
        if step in gaps:
            series.interrupt()
            expected += step < len(values)
        series.add(step, step, value)
    found = told(series.points())
    n = sum(point is None for point in found)
    # Several within one bucket are one gap.
    assert min(expected, 1) <= n <= expected
    for before, after in itertools.pairwise(found):
        assert before is not None or after is not None
    assert found[0] is not None
    assert found[-1] is not None


def test_merging_happened_and_means_are_means():
    values = [float(i % 10) for i in range(1000)]
    series = filled(values, buckets=10)
    means = told(series.means())
    assert len(means) <= 10
    # Merged before, so a bucket stands for many: whole tens of values have one mean.
    assert series._stride == 128
    weights = [128] * (len(means) - 1) + [1000 - 128 * (len(means) - 1)]
    total = sum(w * point[Y] for w, point in zip(weights, means, strict=True))
    assert total == pytest.approx(sum(values))


def test_before_is_the_last_known_until_then():
    series = filled([3.0, 2.0, 1.0])
    assert series.before(-1) is None
    assert series.before(0.7)[Y] == 2.0
    assert series.before(9)[Y] == 1.0


def test_what_overflows_is_no_warning():
    series = filled([1.7e308] * 100)
    assert all(point[Y] == 1.7e308 for point in told(series.means()))


def test_bytes_are_counted_and_bounded():
    series = Series(beside=2)
    assert not series
    assert series.nbytes == 0
    sizes = set()
    for step in range(20_000):
        series.add(step, step, -step, step, step)
        sizes.add(series.nbytes)
    assert max(sizes) <= 8 * 256 * (3 + 4 * 6) + 8 * 24
    assert series.nbytes > 0.4 * max(sizes)
