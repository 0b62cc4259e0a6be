"""Refuse columns that are not numbers, each with its type and the first such value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from largek_dask.data.columns import as_option
from largek_dask.errors import DataError

__all__ = ["HEAD_ROWS", "check_numbers", "is_number", "not_numbers"]

HEAD_ROWS = 1_000
"""Rows of a table that are searched for a value that is not a number."""
MISSING = ("None", "nan", "NaT", "<NA>")
SHOWN_CHARACTERS = 40


def is_number(value: Any) -> bool:
    """Return whether Python makes a float of a value."""
    if hasattr(value, "__len__") and not isinstance(value, (str, bytes, dict)):
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def check_numbers(
    columns: Sequence[tuple[str, Any, bool]], head: Callable[[int], Iterable[Any]], where: str
) -> None:
    """Raise DataError if columns are not numbers.

    Parameters
    ----------
    columns : sequence of tuple
        Name and type of each column, and whether it holds numbers.
    head : callable
        Returns the first values of the column at a position.
    where : str
        Name of the table in messages.
    """
    wrong = {
        name: f"({kind}){_example(head(i))}"
        for i, (name, kind, is_numeric) in enumerate(columns)
        if not is_numeric
    }
    if wrong:
        raise not_numbers(where, wrong)


def _example(values: Iterable[Any]) -> str:
    """Return the first value that is not a number, and its row; "" if there is none."""
    for row, value in enumerate(values):
        if str(value) not in MISSING and not is_number(value):
            shown = repr(value) if isinstance(value, str) else str(value)
            if len(shown) > SHOWN_CHARACTERS:
                shown = f"{shown[:SHOWN_CHARACTERS]}..."
            return f" with {shown} in row {row}"
    return ""


def not_numbers(where: str, columns: Mapping[str, str]) -> DataError:
    """Return the error that names all columns that are not numbers, with their contents."""
    held = ", ".join(f"{name!r} {content}" for name, content in columns.items())
    names, is_one = list(columns), len(columns) == 1
    return DataError(
        f"{where} has {'a column that is' if is_one else 'columns that are'} not numbers: {held}. "
        f"Leave {'it' if is_one else 'them'} out with largek ingest --drop {as_option(names)} "
        f"(ingest(..., drop={names!r}), or df.drop(columns={names!r})), or encode texts of few "
        "different values with pandas.get_dummies, dates as days, and lists of one length as rows "
        "with np.stack."
    )
