"""The default gives the digests that it gave."""

from __future__ import annotations

import pytest

from largek_dask.algorithms.auto import Auto, Choice
from tests.digests.conftest import Fits, check, fits_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chosen() -> list[Choice]:
    return []


@pytest.fixture(scope="module")
def fits(shelf, chosen) -> Fits:
    choose = Auto.choose

    def noted(self, *asked):
        chosen.append(choose(self, *asked))
        return chosen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Auto, "choose", noted)
        return fits_of("auto", shelf)


def test_digests(fits):
    check(fits)


def test_every_choice_was_made(fits, chosen):
    made = {(type(choice.algorithm).__name__, choice.n_init) for choice in chosen}
    assert made == {
        ("PartitionPath", 1),
        ("Lloyd", 1),
        ("Lloyd", 4),
        ("Lloyd", 16),
        ("NMBatch", 1),
        ("Truncated", 1),
        ("Truncated", 3),
    }
    words = {choice.reason.split(":")[0] for choice in chosen}
    assert {"one cluster", "little to compute", "few clusters", "sparse rows"} <= words
    assert {case.table.stored for case in fits} == {False, True}
