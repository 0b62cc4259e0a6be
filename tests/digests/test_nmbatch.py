"""Nested mini-batches give the digests that they gave."""

from __future__ import annotations

import pytest

import largek_dask as lk
from tests.digests.conftest import Fits, check, fits_of, stops, told

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fits(shelf) -> Fits:
    return fits_of("nmbatch", shelf)


def test_digests(fits):
    check(fits)


def test_everything_happened(fits):
    """Batches grew, gathered and not; centres were moved and relocated."""
    fits = {case: fit for case, fit in fits.items() if isinstance(case.algorithm, lk.NMBatch)}
    grown: dict[tuple[float, ...], set[str]] = {}
    for case, (km, _) in fits.items():
        batches = [step["extra"]["batch_rows"] for step in km.history_]
        if len(set(batches)) > 2:
            ways = tuple(sorted({step["extra"]["gathered"] for step in km.history_}))
            grown.setdefault(ways, set()).add(case.table.dtype)
    assert grown[0.0,] >= {"float32", "float64", "csr"}
    assert grown[0.0, 1.0] >= {"float32", "float64", "csr"}
    assert grown[1.0,] >= {"float32", "float64", "uint8", "bool", "csr"}
    assert told(fits, "moved_centers") >= 20
    assert told(fits, "relocated") >= 8
    assert stops(fits) == {"converged", "tol", "max_iter"}
