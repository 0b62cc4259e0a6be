"""Cases that are fewer than all combinations of some parameters, and leave no value out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["every_two", "in_turns"]

Pair = tuple[tuple[int, int], tuple[int, int]]


def pairs_of(places: Sequence[int]) -> set[Pair]:
    """Every two values of a case: (parameter, place of its value), twice."""
    return set(itertools.combinations(enumerate(places), 2))


def every_two(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Combinations of values, one for each parameter, in which every two of them meet.

    A kernel is compiled for every combination that a test asks for, which takes seconds each. Most
    faults need one value or two; what three and more of them do together is tried for other cases
    than the ones that are left out.

    Parameters
    ----------
    *values : sequence
        The values of each parameter, two parameters or more.

    Returns
    -------
    list of tuple
        In the order of ``itertools.product``, the same in every process.
    """
    every = list(itertools.product(*(range(len(some)) for some in values)))
    unmet = set().union(*map(pairs_of, every))
    chosen = []
    while unmet:
        # (the first of those that bring most together)
        best = max(every, key=lambda places: len(pairs_of(places) & unmet))
        chosen.append(best)
        unmet -= pairs_of(best)
    return [
        tuple(some[at] for some, at in zip(values, case, strict=True)) for case in sorted(chosen)
    ]


def in_turns(*values: Sequence[Any]) -> list[Any]:
    """Return all combinations for ``parametrize``: each value once in the default tier, then slow.

    For values that take code paths of their own, whichever other values they meet.
    """
    most = max(map(len, values))
    usual = {tuple(n % len(some) for some in values) for n in range(most)}
    return [
        pytest.param(
            *(some[at] for some, at in zip(values, places, strict=True)),
            marks=() if places in usual else pytest.mark.slow,
        )
        for places in itertools.product(*(range(len(some)) for some in values))
    ]
