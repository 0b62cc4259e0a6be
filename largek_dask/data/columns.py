"""Select, order and name columns; find an index that has become a column."""

from __future__ import annotations

import csv
import difflib
import io
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.rows import Rows
from largek_dask.errors import DataError, DataWarning, ParameterError, warn

__all__ = [
    "WRITTEN",
    "Selection",
    "all_differences",
    "as_option",
    "check_still_counts",
    "equal_names",
    "first_difference",
    "is_index_name",
    "leave_out_counter",
    "left_out_as_index",
    "listed",
    "names_of",
    "not_told_from_index",
    "noted_as_index",
    "order_by_name",
    "without_equal_names",
]

Names = str | int | Iterable[str | int]
MOST_LISTED = 20
INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Names of the column that a DataFrame's index becomes in a file."""
INDEX_LEVEL = re.compile(r"__index_level_\d+__")
"""Name that pyarrow gives an unnamed index, which it puts after all columns."""
WRITTEN = "pandas wrote it as the index of the rows"


def names_of(labels: Iterable[Any]) -> tuple[str, ...] | None:
    """Return the labels of columns as names; None if none of them is a text."""
    labels = list(labels)
    return tuple(map(str, labels)) if any(isinstance(label, str) for label in labels) else None


def listed(names: Iterable[Any], most: int = MOST_LISTED) -> str:
    """Format names for a message, of many the first ones."""
    names = list(names)
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def equal_names(names: Sequence[str]) -> list[str]:
    """Return the names that several columns have."""
    return [name for name, n in Counter(names).items() if n > 1]


def without_equal_names(rows: Rows) -> Rows:
    """Return the rows, without names and with a DataWarning if several are equal."""
    equal = equal_names(rows.feature_names or ())
    if not equal:
        return rows
    warn(
        f"{rows.describe_source(rows.location)} has several columns of the same name "
        f"({listed(equal, 5)}): columns go by their order, and the model keeps no names. Rename "
        "them to have names.",
        DataWarning,
    )
    return rows.with_names(None)


def as_option(names: Iterable[str]) -> str:
    """Format names as the value of an option of the command line."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(list(names))
    return shlex.quote(line.getvalue())


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of the columns of a table."""

    columns: tuple[str, ...] | None = None
    """Names of those that are, in this order; None: all."""
    drop: tuple[str, ...] = ()
    """Names of those that are not."""

    @classmethod
    def of(cls, columns: Names | None, drop: Names | None) -> Selection:
        """Return a selection by names, one name, or numbers of columns that have no names."""
        taken = None if columns is None else _texts(columns)
        return cls(taken, () if drop is None else _texts(drop))

    def __bool__(self) -> bool:
        return self.columns is not None or bool(self.drop)

    def says(self, name: str) -> bool:
        """Return whether this column is selected or dropped by name."""
        return self.columns is not None or name in self.drop

    def places(self, names: Sequence[str], where: str) -> list[int]:
        """Return the positions of the selected columns of a table with these ``names``, in order.

        Raises ParameterError if a column is missing or ambiguous, or none is left.
        """
        found: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            found.setdefault(name, []).append(place)
        wanted = tuple(names) if self.columns is None else self.columns
        for name in dict.fromkeys([*(self.columns or ()), *self.drop]):
            if name not in found:
                raise _unknown(name, names, where)
            if len(found[name]) > 1:
                raise ParameterError(
                    f"{where} has {len(found[name])} columns named {name!r}: rename them, or it "
                    "cannot be said which one is meant."
                )
        taken = self.columns or ()
        twice = [name for name in taken if taken.count(name) > 1 or name in self.drop]
        if twice:
            name = twice[0]
            raise ParameterError(
                f"column {name!r} of {where} is asked for twice, or both taken and dropped: name "
                "each column once."
            )
        if self.columns is not None:
            places = [found[name][0] for name in wanted]
        else:
            places = [place for place, name in enumerate(names) if name not in self.drop]
        if not places:
            raise ParameterError(f"no column of {where} is left: drop fewer of {listed(names)}.")
        return places


def _texts(names: Names) -> tuple[str, ...]:
    return (str(names),) if isinstance(names, str | int) else tuple(map(str, names))


def _unknown(name: str, names: Sequence[str], where: str) -> ParameterError:
    near = difflib.get_close_matches(name, names, 3)
    near += [other for other in names if other.lower() == name.lower() and other not in near]
    told = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return ParameterError(
        f"{where} has no column {name!r}: {told}It has {len(names):,} ({listed(names)})."
    )


# --- an index that has become a column ------------------------------------------------------------


def is_index_name(name: str) -> bool:
    """Return whether pandas may have written an index as a column of this name."""
    return INDEX.fullmatch(name) is not None


def noted_as_index(names: Sequence[str], metadata: Mapping[str, Any] | None) -> list[str]:
    """Return the columns that are an index by pandas' metadata in the schema, or by their names.

    A first column may be one as well: see :func:`is_index_name`.
    """
    noted = (metadata or {}).get("index_columns", ())
    return [
        name
        for place, name in enumerate(names)
        if name in noted or (place and INDEX_LEVEL.fullmatch(name))
    ]


def left_out_as_index(name: str, where: str, why: str) -> None:
    """Warn that a column is left out."""
    warn(
        f"Column {name!r} of {where} is left out: {why}. To keep it, name all columns that are "
        f"wanted (--columns, columns=); with --drop {as_option([name])} nothing is said.",
        DataWarning,
    )


def leave_out_counter(values: NDArray[Any], name: str, where: str, leave: bool = True) -> None:
    """Warn that a column that counts the rows is left out.

    Raises DataError if it does not count them, and with ``leave=False`` in any case.
    """
    if not np.array_equal(values, np.arange(len(values))):
        raise not_told_from_index(name, where, "and holds whole numbers")
    if not leave:
        raise not_told_from_index(name, where, "and counts the rows from 0 on")
    left_out_as_index(name, where, "it counts the rows from 0 on, as an index that pandas wrote")


def not_told_from_index(name: str, where: str, how: str) -> DataError:
    """Return the error about a column that is named as an index but does not count the rows."""
    return DataError(
        f"column {name!r} of {where} is called as pandas calls an index that it writes, {how}: "
        f"leave it out with largek ingest --drop {as_option([name])} "
        f"(ingest(..., drop=[{name!r}]), or df.drop(columns={name!r})). If it is a feature, rename "
        "it, or name all columns that are wanted (--columns, columns=)."
    )


def check_still_counts(values: NDArray[Any], row: int, name: str, where: str) -> None:
    """Raise DataError if a left-out column, here from ``row`` on, does not count the rows."""
    wrong = values != np.arange(row, row + len(values))
    if wrong.any():
        at = row + int(np.argmax(wrong))
        raise not_told_from_index(name, where, f"and counts them, but only up to row {at}")


# --- the columns of a model -----------------------------------------------------------------------


def first_difference(
    before: Sequence[str], found: Sequence[str], here: str = "now", there: str = "in the fit"
) -> str:
    """Describe the first difference of names: ``found`` is ``here``, ``before`` is ``there``."""
    for place, (then, now) in enumerate(zip(before, found, strict=False)):
        if then != now:
            return f"column {place} is {now!r} {here} and {then!r} {there}"
    if len(found) > len(before):
        return f"column {len(before)} ({found[len(before)]!r}) is not {there}"
    return f"column {len(found)} ({before[len(found)]!r}) is not {here}"


def all_differences(
    before: Sequence[str], found: Sequence[str], here: str = "now", there: str = "in the fit"
) -> str:
    """Describe the first name that differs, and all that are missing or added; "" if none are."""
    wanted, there_now = set(before), set(found)
    missing = [name for name in before if name not in there_now]
    added = [name for name in found if name not in wanted]
    lists = "".join(
        f" {what}: {listed(names)}."
        for what, names in (("Missing", missing), ("Not known", added))
        if names
    )
    return f"{first_difference(before, found, here, there)}.{lists}" if lists else ""


def order_by_name(fitted: Sequence[str], found: Sequence[str], where: str) -> list[int] | None:
    """Return the positions of a fit's columns in a table; None if they are in the same order.

    Raises ParameterError if columns are missing, unknown or ambiguous.
    """
    if tuple(fitted) == tuple(found):
        return None
    places = {name: place for place, name in enumerate(found)}
    told = all_differences(fitted, found)
    if not told and len(places) == len(found) == len(fitted):
        return [places[name] for name in fitted]
    raise ParameterError(
        f"The columns of {where} are not those that the model was fitted on: "
        f"{told or 'a name is there more than once.'} Give the columns of the fit "
        f"({listed(fitted)}) by these names, in any order, and no others."
    )
