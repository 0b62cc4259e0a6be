"""Ascending integers that are pickled as differences."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from largek_dask.algorithms.parts.ascending import Ascending


@pytest.mark.parametrize(
    ("values", "itemsize"),
    [
        ([], 1),
        ([0], 1),
        ([7, 7, 8, 263], 1),
        ([0, 256, 300], 2),
        ([70_000, 70_001], 4),
        ([0, 1 << 40, (1 << 62) + 1], 8),
    ],
)
def test_values_survive_several_pickles(values: list[int], itemsize: int) -> None:
    expected = np.array(values, np.int64)
    made = Ascending(expected)
    assert made.values is expected
    for _ in range(2):
        made = pickle.loads(pickle.dumps(made))
        assert made.__getstate__().itemsize == itemsize
        np.testing.assert_array_equal(made.values, expected, strict=True)


def test_a_sample_of_many_rows_takes_few_bytes() -> None:
    rows = np.sort(np.random.default_rng(0).choice(10**6, 10**5, replace=False))
    assert len(pickle.dumps(rows)) > 7 * len(pickle.dumps(Ascending(rows)))


@pytest.mark.parametrize("values", [[3, 2], [-1, 4]])
def test_other_values_are_refused(values: list[int]) -> None:
    with pytest.raises(ValueError, match="ascending and not negative"):
        pickle.dumps(Ascending(np.array(values, np.int64)))
