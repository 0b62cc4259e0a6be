"""VRKM gives the digests that it gave, with a table of labels and as published."""

from __future__ import annotations

import pytest

from tests.digests.conftest import Fits, check, fits_of, stops, told

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fits(shelf) -> Fits:
    return fits_of("vrkm", shelf)


def test_digests(fits):
    check(fits)


def test_everything_happened_to_labels(fits):
    """Samples doubled; centres were relocated; what was expected was halved, and forgotten."""
    own = {case: done for case, done in fits.items() if case.algorithm.table == "labels"}
    doubled: dict[str, int] = {}
    factors: list[set[float]] = []
    for case, (km, _) in own.items():
        batches = {step["extra"]["batch_rows"] for step in km.history_}
        if len(batches) > 2:
            doubled[case.table.dtype] = doubled.get(case.table.dtype, 0) + 1
        factors.append({step["extra"]["factor"] for step in km.history_})
    assert doubled == {"float32": 2, "float64": 1, "csr": 1}
    assert told(own, "relocated") >= 2
    assert any({4.5, 2.25} <= told_factors for told_factors in factors)
    assert sum(0.0 in told_factors for told_factors in factors) > 30
    assert {case.table.dtype for case in own} == {"float32", "float64", "uint8", "bool", "csr"}
    assert stops(own) == {"converged", "tol", "max_iter"}


def test_everything_happened_to_snapshots(fits):
    """In rounds and row by row; the rate was halved; what it was warned of; bounds spared."""
    own = {case: done for case, done in fits.items() if case.algorithm.table == "snapshot"}
    ways = {(case.algorithm.round_rows == 1, case.table.dtype) for case in own}
    assert ways >= {
        (one, dtype) for one in (False, True) for dtype in ("float32", "float64", "csr")
    }
    assert told(own, "restored") >= 3
    assert told(own, "relocated") >= 3
    assert {case.algorithm.round_rows == 1 for case, (_, warned) in own.items() if warned} == {
        False,
        True,
    }
    assert any(km.history_[-1]["extra"]["distances"] < 0.9 for km, _ in own.values())
    assert stops(own) == {"converged", "tol", "max_iter"}
