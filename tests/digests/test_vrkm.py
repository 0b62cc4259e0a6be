"""VRKM gives the digests that it gave, in rounds and row by row."""

from __future__ import annotations

import pytest

from tests.digests.conftest import Fits, check, fits_of, stops, told

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fits(shelf) -> Fits:
    return fits_of("vrkm", shelf)


def test_digests(fits):
    check(fits)


def test_everything_happened(fits):
    """In rounds and row by row; the rate was too large; centres were relocated."""
    ways = {(case.algorithm.round_rows == 1, case.table.dtype) for case in fits}
    assert ways >= {
        (one, dtype) for one in (False, True) for dtype in ("float32", "float64", "csr")
    }
    assert told(fits, "relocated") >= 3
    assert {case.algorithm.round_rows == 1 for case, (_, warned) in fits.items() if warned} == {
        False,
        True,
    }
    assert stops(fits) == {"converged", "tol", "max_iter"}
