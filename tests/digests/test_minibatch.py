"""Mini-batches give the digests that they gave."""

from __future__ import annotations

import pytest

from tests.digests.conftest import Fits, check, fits_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fits(shelf) -> Fits:
    return fits_of("minibatch", shelf)


def test_digests(fits):
    check(fits)


def test_rows_voted_again(fits):
    """After the last slice of a permutation the first came again, by either kind of votes."""
    again = {
        case.algorithm.votes
        for case, (km, _) in fits.items()
        if sum(step["rows"] for step in km.history_) > 2 * case.table.n
    }
    assert again == {"all", "latest"}
