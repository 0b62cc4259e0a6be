"""Kinds of model, found by name or by the arrays of a fit."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from largek_dask.errors import ModelFormatError

if TYPE_CHECKING:
    from largek_dask.model.base import Model

__all__ = ["FIRST_KIND", "KINDS", "check_names", "kind_holding", "kind_named"]

FIRST_KIND = "centers"
"""The kind of every model that does not say its own."""
KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")
KINDS: dict[str, type[Model]] = {}
"""Every kind of model by its name; ``largek_dask/model/__init__.py`` fills it."""


def kind_holding(arrays: Any) -> type[Model]:
    """The kind of model whose arrays these are.

    Raises
    ------
    TypeError
        None has such arrays.
    """
    if arrays is None:
        # A pickle from before there were kinds, when every model was of this one.
        return KINDS[FIRST_KIND]
    found = [kind for kind in KINDS.values() if isinstance(arrays, kind.holds)]
    if found:
        # A kind may hold what another does and more: the one that says most of them.
        return max(found, key=lambda kind: len(kind.holds.__mro__))
    raise TypeError(
        f"No kind of model holds a {type(arrays).__name__}: give what a fit has as arrays."
    )


def kind_named(name: object, place: str) -> type[Model]:
    """The kind of model that ``place`` (a URL, say) calls so.

    Raises
    ------
    ModelFormatError
        This version does not know it.
    """
    if not isinstance(name, str) or not KIND.fullmatch(name):
        raise ModelFormatError(
            f"{place} is not a model: its kind is {reprlib.repr(name)}, not a name of at most 32 "
            "small letters, digits and dashes."
        )
    if name not in KINDS:
        raise ModelFormatError(
            f"{place} is a model of the kind {name!r}, and this version of largek_dask knows only "
            f"{', '.join(map(repr, sorted(KINDS)))}. If a newer one has written it, install "
            "that, from its checkout or wheel."
        )
    return KINDS[name]


def check_names(kind: type[Model], found: Mapping[str, Any]) -> None:
    """Raise ValueError where arrays are missing, or are there that the kind does not have."""
    names = [f.name for f in fields(kind.holds)]
    missing = [name for name in names if name not in found]
    unknown = [name for name in found if name not in names]
    if missing or unknown:
        raise ValueError(
            f"a model of the kind {kind.kind!r} has the arrays {', '.join(names)}"
            + (f"; missing: {', '.join(missing)}" if missing else "")
            + (f"; not among them: {reprlib.repr(unknown)}" if unknown else "")
        )
