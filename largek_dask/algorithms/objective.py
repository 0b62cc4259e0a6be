"""What a fit lowers or raises.

Nothing heavy is imported here: views that show a fit read it as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

__all__ = ["INERTIA", "Objective", "Sense", "objective_in", "value_in"]

Sense = Literal["min", "max"]
TOLD = ("name", "of_step", "unit", "sense")
"""The fields of an objective that documents tell."""
MOST_TEXT = 100
"""Characters of a name or unit that is read from a document."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a fit lowers or raises, what it is called, and what ``tol`` is compared with.

    Starts are compared by it, steps are shown by it, and files hold its value under its name.
    """

    name: str
    """The name of its exact value over all rows, which the last pass finds: a key in files,
    results and provenance, with ``_`` between words."""
    of_step: str
    """The word for the value that a step knows (``Info.cost``): often an estimate, a bound, or
    the value over a batch."""
    unit: str
    """The unit or formula, in symbols."""
    sense: Sense = "min"
    """Whether less is better, or more."""
    change: str = field(default="shift", compare=False)
    """The figure of a step that ``tol`` is compared with: the field ``shift`` of its record, or
    the one of this name in its ``extra``. The fit ends once it is no larger. It is no part of what
    documents tell: algorithms for one objective may differ in it."""

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

    def describe(self, **value: float | None) -> dict[str, Any]:
        """Return the fields of a document about this objective; none for that of k-means.

        ``value=`` is added to them; that of k-means under its name, "inertia".
        """
        if self == INERTIA:
            return {self.name: value["value"]} if value else {}
        return {"objective": {name: getattr(self, name) for name in TOLD} | value}


INERTIA = Objective("inertia", "cost", "Σ w d²")
"""The objective of every k-means: the weighted sum of squared distances of the rows to their
centres. Documents that name no objective mean this one."""


def objective_in(document: Mapping[str, Any]) -> Objective:
    """The objective of what a document tells: see :meth:`Objective.describe`.

    Events and results may come from files that anybody could have written to: what is no
    objective is passed over.
    """
    told = document.get("objective")
    if not isinstance(told, Mapping):
        return INERTIA
    known: dict[str, Any] = {name: told.get(name) for name in TOLD}
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
