"""The truncated search gives the digests that it gave."""

from __future__ import annotations

import pytest

from largek_dask.algorithms.truncated import search as truncated
from tests.digests.conftest import Fits, check, fits_of, stops, told

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def drawn() -> list:
    return []


@pytest.fixture(scope="module")
def fits(shelf, drawn) -> Fits:
    draw_rows = truncated.draw_rows

    def noted(*arguments):
        drawn.append(draw_rows(*arguments))
        return drawn[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truncated, "draw_rows", noted)
        return fits_of("truncated", shelf)


def test_digests(fits):
    check(fits)


def test_everything_happened(fits, drawn):
    """Samples and all rows, lists and all centres, rounds that paid and were undone, far rows."""
    steps = [step for km, _ in fits.values() for step in km.history_]
    lists = {(s["extra"]["everywhere"], s["extra"]["neighbours"] in (16, 32, 64)) for s in steps}
    assert lists == {(0, False), (0, True), (1, False), (1, True)}
    assert {32, 64, 128, 256} < {step["extra"]["neighbours"] for step in steps}
    assert told(fits, "moves") >= 30
    assert told(fits, "back") >= 30, "rounds were undone"
    ends = [s["extra"] for s in steps if s["extra"]["ends_round"]]
    assert {extra["back"] for extra in ends} == {0, 1}
    assert any(extra["steps_per_reading"] > 2 for extra in (s["extra"] for s in steps))
    widths = {case: {s["extra"]["features"] for s in km.history_} for case, (km, _) in fits.items()}
    assert sum(len(features) > 1 for features in widths.values()) == 7, "few directions, then all"
    assert sum(133 in features for features in widths.values()) == 2, "random directions"
    assert len(drawn) >= 5
    assert all(len(far.rows) for far in drawn)
    assert stops(fits) == {"converged", "max_iter"}
    sizes = {
        len({step["rows"] for step in km.history_})
        for case, (km, _) in fits.items()
        if case.table.n > 12_000
    }
    assert max(sizes) >= 3, "samples that grow, and all rows"
