"""Partition paths and DCD-Bundle give the digests that they gave, every way of them."""

from __future__ import annotations

import pytest

from tests.digests.conftest import Fits, check, fits_of, stops

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fits(shelf) -> Fits:
    return fits_of("partition-path", shelf)


@pytest.fixture(scope="module")
def published(shelf) -> Fits:
    return fits_of("dcd-bundle", shelf)


def test_digests(fits, published):
    check(fits)
    check(published)


def test_every_way_was_gone(fits):
    """In memory, by passes, on a line; all stages; paths that ended before k."""
    passes, stages, lines = 0, set(), 0
    for case, (km, _) in fits.items():
        told = [step["extra"] for step in km.history_]
        passes += any(extra.get("path_passes") for extra in told)
        stages |= {extra.get("stage") for extra in told}
        lines += case.table.d == 1 and km.n_iter_ == 1
        assert km.path_.inertia[-1] == km.inertia_
    assert passes == 2
    assert stages == {0, 1, 2, 3, 4}
    assert lines == 2
    assert {case.table.dtype for case in fits} == {"float32", "float64", "uint8", "bool"}
    assert stops(fits) == {"converged", "max_iter"}
