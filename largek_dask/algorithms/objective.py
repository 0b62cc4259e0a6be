"""What a fit lowers or raises.

Nothing heavy is imported here: views that show a fit read it as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

__all__ = ["INERTIA", "Objective", "Sense", "objective_in", "value_in"]

Sense = Literal["min", "max"]
MOST_TEXT = 100
"""Characters of a name or unit that is read from a document."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a fit lowers or raises, what it is called, and what ``tol`` is compared with.

    Starts are compared by it, steps are shown by it, and files hold its value under its name.
    """

    name: str
    """Of its exact value over all rows, which the last pass finds. A name of Python's: files,
    results and provenance have it as a key, and words are made of it for people."""
    of_step: str
    """What people call the value that a step knows of it (``Info.cost``): often an estimate, a
    bound, or that of a batch."""
    unit: str
    """In symbols."""
    sense: Sense = "min"
    """Whether less is better, or more."""
    change: str = "shift"
    """The figure of a step that ``tol`` is compared with: the field ``shift`` of its record, or
    the one of this name in its ``extra``. The fit ends once it is no larger."""

    @property
    def words(self) -> str:
        """The name as people read it."""
        return self.name.replace("_", " ")

    def is_better(self, a: float | None, b: float | None) -> bool:
        """Whether ``a`` is known to be better than ``b``; None is not known, and never better."""
        if a is None or b is None:
            return a is not None
        return a < b if self.sense == "min" else a > b

    def change_in(self, record: Mapping[str, Any]) -> float | None:
        """What ``tol`` is compared with, in the record of a step; None where that has none."""
        change = record["shift"] if self.change == "shift" else record["extra"].get(self.change)
        return None if change is None else float(change)

    def told(self, **value: float | None) -> dict[str, Any]:
        """What a document says of it; nothing of the first one, as before there were others.

        With ``value=`` a number, that is told too: of the first one under its own name.
        """
        if self == INERTIA:
            return {self.name: value["value"]} if value else {}
        return {"objective": {**asdict(self), **value}}


INERTIA = Objective("inertia", "cost", "Σ w d²")
"""That of every k-means: the weighted sum of squared distances of the rows to their centres.
What does not say its objective has this one."""


def objective_in(document: Mapping[str, Any]) -> Objective:
    """The objective of what a document tells: see :meth:`Objective.told`.

    Events and results may come from files that anybody could have written to: what is no
    objective is passed over.
    """
    told = document.get("objective")
    if not isinstance(told, Mapping):
        return INERTIA
    known: dict[str, Any] = {f.name: told.get(f.name) for f in fields(Objective)}
    if not all(map(_is_word, known.values())) or known["sense"] not in get_args(Sense):
        return INERTIA
    return Objective(**known)


def value_in(document: Mapping[str, Any]) -> tuple[Objective, Any]:
    """The objective of what a document tells, and what it says is its value, whatever that is."""
    objective = objective_in(document)
    if objective == INERTIA:
        return objective, document.get(INERTIA.name)
    return objective, document["objective"].get("value")


def _is_word(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_TEXT and value.isprintable()
