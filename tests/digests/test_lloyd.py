"""Exact k-means gives the digests that it gave."""

from __future__ import annotations

import pytest

from tests.digests.cases import BAD, FEW
from tests.digests.conftest import Fits, check, fits_of, stops, told
from tests.digests.tables import N_CHUNKS
from tests.helpers.checks import watched_passes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen() -> list:
    return []


@pytest.fixture(scope="module")
def fits(shelf, seen) -> Fits:
    with watched_passes() as passes:
        done = fits_of("lloyd", shelf)
    seen += passes
    return done


def test_digests(fits):
    check(fits)


def test_everything_happened(fits, seen):
    """Centres moved to far rows, sums had two limbs, rows were skipped."""
    assert told(fits, "relocated") >= 2
    assert stops(fits) == {"converged", "tol", "max_iter"}
    assert {passes.statistics.grid.wide for passes in seen} == {False, True}
    assert {passes.n_chunks for passes in seen} == {1, N_CHUNKS}
    warned = [warnings for case, (_, warnings) in fits.items() if case.table == FEW]
    assert ["DegenerateDataWarning"] in warned
    assert all(-1 in km.labels_ for case, (km, _) in fits.items() if case.table == BAD)
