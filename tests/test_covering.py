"""Every two values meet, in about as few cases as can be."""

from __future__ import annotations

import itertools

import pytest

from tests.covering import every_two


@pytest.mark.parametrize(
    "sizes", [(1, 1), (3, 2), (3, 3, 2), (3, 3, 2, 7), (2, 2, 2, 2, 2), (1, 4, 1)]
)
def test_every_two_values_meet(sizes):
    values = [
        [f"{name}{at}" for at in range(size)] for name, size in zip("abcde", sizes, strict=False)
    ]
    cases = every_two(*values)
    for (i, some), (j, others) in itertools.combinations(enumerate(values), 2):
        assert {(case[i], case[j]) for case in cases} == set(itertools.product(some, others))
    least = max(a * b for a, b in itertools.combinations(sizes, 2))
    assert least <= len(cases) == len(set(cases)) <= 1.5 * least + 2
    assert cases == every_two(*values)
