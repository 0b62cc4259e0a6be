"""The incremental Lloyd algorithm gives the digests that it gave."""

from __future__ import annotations

import pytest

from tests.digests.conftest import Fits, check, fits_of, stops, told

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fits(shelf) -> Fits:
    return fits_of("incremental", shelf)


def test_digests(fits):
    check(fits)


def test_everything_happened(fits):
    """Samples doubled; centres were relocated; what was expected was halved, and forgotten."""
    doubled: dict[str, int] = {}
    factors: list[set[float]] = []
    for case, (km, _) in fits.items():
        batches = {step["extra"]["batch_rows"] for step in km.history_}
        if len(batches) > 2:
            doubled[case.table.dtype] = doubled.get(case.table.dtype, 0) + 1
        factors.append({step["extra"]["factor"] for step in km.history_})
    assert doubled == {"float32": 2, "float64": 1, "csr": 1}
    assert told(fits, "relocated") >= 2
    assert any({4.5, 2.25} <= told_factors for told_factors in factors)
    assert sum(0.0 in told_factors for told_factors in factors) > 30
    assert {case.table.dtype for case in fits} == {"float32", "float64", "uint8", "bool", "csr"}
    assert stops(fits) == {"converged", "tol", "max_iter"}
