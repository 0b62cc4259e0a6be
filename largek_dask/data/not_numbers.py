"""Refuse columns that are not numbers, by name and type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from largek_dask.errors import DataError


def check_numbers(columns: Sequence[tuple[str, Any, bool]], where: str) -> None:
    """Raise DataError if columns are not numbers.

    Each has a name, a type, and whether it holds numbers; ``where`` names the table.
    """
    if wrong := {name: f"({kind})" for name, kind, is_numeric in columns if not is_numeric}:
        raise not_numbers(where, wrong)


def not_numbers(where: str, columns: Mapping[str, str]) -> DataError:
    """Return the error that names all columns that are not numbers, with their contents."""
    held = ", ".join(f"{name!r} {content}" for name, content in columns.items())
    names, is_one = list(columns), len(columns) == 1
    return DataError(
        f"{where} has {'a column that is' if is_one else 'columns that are'} not numbers: {held}. "
        f"Leave {'it' if is_one else 'them'} out with drop={names!r} (--drop), or encode texts of "
        "few different values with pandas.get_dummies, dates as days, and lists of one length as "
        "rows with np.stack."
    )
