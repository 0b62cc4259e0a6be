"""Objective of a fit: name, direction of improvement, and JSON form.

Programs that only display results import this module, so it has no heavy imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Sense = Literal["min", "max"]
MOST_TEXT = 100
"""Maximum length of a name or unit read from a document, in characters."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Objective of a fit, by which starts are compared."""

    name: str
    """Name of the exact value over all rows, which the last pass computes; words are joined by
    ``_``. Files, results and provenance use this name as a key."""
    of_step: str
    """Name of the value that a step reports (``Info.cost``), which is often an estimate, a bound,
    or the value over a batch."""
    unit: str
    sense: Sense = "min"
    """Direction of improvement: lower ("min") or higher ("max")."""

    @property
    def words(self) -> str:
        return self.name.replace("_", " ")

    def is_better(self, a: float | None, b: float | None) -> bool:
        """Return True if ``a`` is better than ``b``; a known value is better than None."""
        if a is None or b is None:
            return a is not None
        return a < b if self.sense == "min" else a > b

    def describe(self, **value: float | None) -> dict[str, Any]:
        """Return the fields that describe this objective in a document, with ``value`` if given.

        For k-means, the only field is "inertia", if a value is given.
        """
        if self == INERTIA:
            return {self.name: value["value"]} if value else {}
        return {"objective": asdict(self) | value}


INERTIA = Objective("inertia", "cost", "Σ w d²")
"""Objective of k-means: the weighted sum of squared distances of the rows to their centres.
Documents that name no objective use this one."""


def objective_in(document: Mapping[str, Any]) -> Objective:
    """Return the objective of a document (see :meth:`Objective.describe`).

    An invalid objective is ignored, because the document may come from an untrusted file.
    """
    given = document.get("objective")
    if not isinstance(given, Mapping):
        return INERTIA
    known: dict[str, Any] = {field.name: given.get(field.name) for field in fields(Objective)}
    if not all(map(_is_word, known.values())) or known["sense"] not in get_args(Sense):
        return INERTIA
    return Objective(**known)


def value_in(document: Mapping[str, Any]) -> tuple[Objective, Any]:
    """Return the objective of a document and its unchecked value."""
    objective = objective_in(document)
    if objective == INERTIA:
        return objective, document.get(INERTIA.name)
    return objective, document["objective"].get("value")


def _is_word(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_TEXT and value.isprintable()
