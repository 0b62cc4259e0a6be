"""Fits that the tests of one file share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.digests.cases import FAMILIES, Case
from tests.digests.fits import (
    WHAT_TO_DO,
    Fitted,
    differences,
    digest_of,
    digest_of_rows,
    expected_of,
    fit,
    report,
)
from tests.digests.tables import Shelf

Fits = dict[Case, tuple[Fitted, list[str]]]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("digests"))


def fits_of(family: str, shelf: Shelf) -> Fits:
    """All fits of a family."""
    return {case: fit(case, shelf) for case in FAMILIES[family]}


def check(fits: Fits, *, whole: bool = True) -> None:
    """Fail with every case and field that is not as expected; ``whole``: of all of a family."""
    found: dict[str, Any] = {case.name: digest_of(*done) for case, done in fits.items()}
    found |= {f"rows: {case.table}": digest_of_rows(case.table) for case in fits}
    expected = expected_of({case.family for case in fits} if whole else (), found)
    if differ := differences(expected, found):
        pytest.fail(f"{report(differ)}\n{WHAT_TO_DO}", pytrace=False)


def told(fits: Fits, name: str) -> int:
    """In how many fits a step has told more than 0 of something."""
    return sum(any(step["extra"].get(name) for step in km.history_) for km, _ in fits.values())


def stops(fits: Fits) -> set[str]:
    """Why fits have ended."""
    return {km.stop_reason_ for km, _ in fits.values()}
