"""Series: what is drawn of a figure however long it is."""

from hypothesis import given
from hypothesis import strategies as st

from largek_dask.driver.job_view import KEY, MOST_POINTS, Series, X, Y

VALUES = st.floats(-1e300, 1e300)
ROWS = st.lists(VALUES, min_size=1, max_size=60).flatmap(
    # Short lists of values, repeated up to some thousand times.
    lambda values: st.integers(1, 40).map(lambda times: values * times)
)


def filled(values):
    series = Series()
    for step, value in enumerate(values):
        series.add((step, 0.5 * step, value))
    return series


@given(ROWS)
def test_first_last_and_extremes_are_kept_in_order(values):
    series = filled(values)
    points = series.points().tolist()
    assert len(points) <= MOST_POINTS + 3
    keys = [point[KEY] for point in points]
    assert keys == sorted(set(keys))
    # What is drawn are points that were added, each at its place.
    assert all(values[int(point[KEY])] == point[Y] for point in points)
    assert (points[0][Y], points[-1][Y]) == (values[0], values[-1])
    low, high = series.lowest, series.highest
    assert (low[KEY], low[Y]) == (values.index(min(values)), min(values))
    assert (high[KEY], high[Y]) == (values.index(max(values)), max(values))
    assert series.last[X] == 0.5 * (len(values) - 1)


def test_before_is_the_last_known_until_then():
    series = filled([3.0, 2.0, 1.0])
    assert series.before(-1) is None
    assert series.before(0.7)[Y] == 2.0
    assert series.before(9)[Y] == 1.0
