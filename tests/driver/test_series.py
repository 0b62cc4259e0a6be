"""Series: what is drawn of a figure however long it is."""

from hypothesis import given
from hypothesis import strategies as st

from largek_dask.driver.series import KEY, Series, X, Y

VALUES = st.floats(-1e300, 1e300)
ROWS = st.lists(VALUES, min_size=1, max_size=60).flatmap(
    # Short lists of values, repeated up to some thousand times.
    lambda values: st.integers(1, 40).map(lambda times: values * times)
)


def filled(values, most=8):
    series = Series(most=most)
    for step, value in enumerate(values):
        series.add(step, 0.5 * step, value)
    return series


@given(ROWS)
def test_first_last_and_extremes_are_kept_in_order(values):
    series = filled(values)
    points = series.points().tolist()
    assert len(points) <= 8 + 3
    keys = [point[KEY] for point in points]
    assert keys == sorted(set(keys))
    # What is drawn are points that were added, each at its place.
    assert all(values[int(point[KEY])] == point[Y] for point in points)
    assert (points[0][Y], points[-1][Y]) == (values[0], values[-1])
    low, high = series.extremes()
    assert (low[KEY], low[Y]) == (values.index(min(values)), min(values))
    assert (high[KEY], high[Y]) == (values.index(max(values)), max(values))
    assert series.last()[X] == 0.5 * (len(values) - 1)


@given(ROWS, st.integers(1, 6))
def test_regular_points_are_at_the_same_steps_in_all_series(values, most):
    found, other = filled(values).regular(most), filled(values[::-1]).regular(most)
    assert found[:, KEY].tolist() == other[:, KEY].tolist()
    assert len(found) <= most + 1
    assert (found[0, Y], found[-1, Y]) == (values[0], values[-1])


@given(ROWS, st.integers(-1, 100))
def test_cut_forgets_what_comes_again(values, key):
    series = filled(values)
    series.cut(key)
    points = series.points().tolist()
    assert all(point[KEY] <= key and values[int(point[KEY])] == point[Y] for point in points)
    assert bool(points) == bool(series) == (key >= 0)
    for step in range(int(points[-1][KEY]) + 1 if points else 0, len(values)):
        series.add(step, 0.5 * step, values[step])
    assert series.last() == filled(values).last()
    assert len(series.points()) <= 8 + 3


def test_before_is_the_last_known_until_then():
    series = filled([3.0, 2.0, 1.0])
    assert series.before(-1) is None
    assert series.before(0.7)[Y] == 2.0
    assert series.before(9)[Y] == 1.0


def test_bytes_are_counted_and_bounded():
    series = Series()
    assert not series
    assert series.nbytes == 0
    for step in range(20_000):
        series.add(step, step, -step)
        assert series.nbytes <= 8 * 3 * (512 + 3)
