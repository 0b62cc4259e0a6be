"""Cases that are fewer than all combinations of some parameters, and leave no two values unmet."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["covering", "every_two"]


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
    places = covering(itertools.product(*(range(len(some)) for some in values)))
    return [tuple(some[at] for some, at in zip(values, case, strict=True)) for case in places]
