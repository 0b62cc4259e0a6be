"""Cases of tests: few of all combinations of values in the default tier, the others slow."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

__all__ = ["covering", "every_two", "in_turns", "slow"]


def slow(*cases: Any) -> list[Any]:
    """Cases of ``pytest.mark.parametrize`` that only the slow tier runs; tuples are unpacked."""
    every = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*values, marks=pytest.mark.slow) for values in every]


def covering(cases: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the first few of some cases in which all pairs of values meet that meet in any.

    Parameters
    ----------
    cases : iterable of tuple
        One hashable value for each parameter.

    Returns
    -------
    list of tuple
        In their order, the same in every process.
    """
    pairs = {case: set(itertools.combinations(enumerate(case), 2)) for case in cases}
    unmet = set().union(*pairs.values())
    chosen = set()
    while unmet:
        # (the first of those that bring most together)
        best = max(pairs, key=lambda case: len(pairs[case] & unmet))
        chosen.add(best)
        unmet -= pairs[best]
    return [case for case in pairs if case in chosen]


def every_two(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return combinations of values in which every two values of two parameters meet, and few more.

    An error in how two parameters act together is met like in all combinations
    (``itertools.product``); one that needs three of them may be missed.
    """
    places = itertools.product(*(range(len(some)) for some in values))
    return [
        tuple(some[at] for some, at in zip(values, case, strict=True)) for case in covering(places)
    ]


def in_turns(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return combinations in which each value occurs once, or as often as the longest list needs.

    For values that take code paths of their own, whichever other values they meet.
    """
    most = max(map(len, values))
    return [tuple(some[n % len(some)] for some in values) for n in range(most)]
