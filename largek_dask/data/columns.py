"""Select, order and name columns; find an index that has become a column."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from largek_dask.data.rows import Rows
from largek_dask.errors import DataError, DataWarning, ParameterError, warn

Names = str | int | Iterable[str | int]
MOST_LISTED = 20
INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Names of the column that a DataFrame's index becomes in a file."""
INDEX_LEVEL = re.compile(r"__index_level_\d+__")
"""Name that pyarrow gives an unnamed index, which it puts after all columns."""
UNNAMED = re.compile(r"Unnamed: \d+")
"""Name that pandas gives a column of a CSV file without a name."""


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

    def places(self, names: Sequence[str], where: str) -> list[int]:
        """Return the positions of the selected columns of a table with these ``names``, in order.

        Raises ParameterError if a column is missing or ambiguous, or none is left.
        """
        found: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            found.setdefault(name, []).append(place)
        taken = self.columns or ()
        for name in dict.fromkeys([*taken, *self.drop]):
            if name not in found:
                raise ParameterError(
                    f"{where} has no column {name!r}. It has {len(names):,} ({listed(names)})."
                )
            if len(found[name]) > 1:
                raise ParameterError(
                    f"{where} has {len(found[name])} columns named {name!r}: rename them, or it "
                    "cannot be said which one is meant."
                )
        if twice := [name for name in taken if taken.count(name) > 1 or name in self.drop]:
            raise ParameterError(
                f"column {twice[0]!r} of {where} is asked for twice, or both taken and dropped: "
                "name each column once."
            )
        places = [found[name][0] for name in taken]
        if self.columns is None:
            places = [place for place, name in enumerate(names) if name not in self.drop]
        if not places:
            raise ParameterError(f"no column of {where} is left: drop fewer of {listed(names)}.")
        return places


def _texts(names: Names) -> tuple[str, ...]:
    return (str(names),) if isinstance(names, str | int) else tuple(map(str, names))


# --- columns that are not numbers -----------------------------------------------------------------


def check_numbers(columns: Sequence[tuple[str, Any, bool]], where: str) -> None:
    """Raise DataError for columns ``(name, type, is_numeric)`` of a table that are not numbers."""
    if wrong := {name: f"({kind})" for name, kind, is_numeric in columns if not is_numeric}:
        raise not_numbers(where, wrong)


def not_numbers(where: str, columns: Mapping[str, str]) -> DataError:
    """Return the error that names columns that are not numbers, with their contents."""
    held = ", ".join(f"{name!r} {content}" for name, content in columns.items())
    names, is_one = list(columns), len(columns) == 1
    return DataError(
        f"{where} has {'a column that is' if is_one else 'columns that are'} not numbers: {held}. "
        f"Leave {'it' if is_one else 'them'} out with drop={names!r} (--drop), or encode texts of "
        "few different values with pandas.get_dummies, dates as days, and lists of one length as "
        "rows with np.stack."
    )


# --- an index that has become a column ------------------------------------------------------------


def is_index_name(name: str) -> bool:
    """Return whether pandas may have written an index as a column of this name."""
    return INDEX.fullmatch(name) is not None


def chosen_columns(
    names: Sequence[str],
    selection: Selection | None,
    where: str,
    metadata: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the positions of the selected columns, by default of all but an index.

    Columns that pandas' ``metadata`` of a schema note as index are left out with a DataWarning.
    Raises DataError for other columns without a name, such as an index in a CSV file.
    """
    places = selection.places(names, where) if selection else list(range(len(names)))
    if selection is not None and selection.columns is not None:
        return places
    for name in noted_as_index(names, metadata):
        if len(places) > 1 and names.index(name) in places:
            warn(
                f"Column {name!r} of {where} is left out: pandas wrote it as the index of the "
                f"rows. Drop it (drop=[{name!r}], --drop), or name all columns that are wanted "
                "(columns=, --columns).",
                DataWarning,
            )
            places.remove(names.index(name))
    unnamed = [
        names[place]
        for place in places
        if (is_index_name(names[place]) and place == 0) or UNNAMED.fullmatch(names[place])
    ]
    if unnamed:
        raise DataError(
            f"{where} has columns without a name ({listed(unnamed)}), as pandas writes an index: "
            f"leave them out (drop={unnamed!r}, --drop), rename those that are features, or name "
            "all columns that are wanted (columns=, --columns)."
        )
    return places


def noted_as_index(names: Sequence[str], metadata: Mapping[str, Any] | None) -> list[str]:
    """Return the columns that are an index by pandas' metadata in the schema, or by their names."""
    noted = (metadata or {}).get("index_columns", ())
    return [
        name
        for place, name in enumerate(names)
        if name in noted or (place and INDEX_LEVEL.fullmatch(name))
    ]


# --- the columns of a model -----------------------------------------------------------------------


def all_differences(before: Sequence[str], found: Sequence[str]) -> str:
    """List the names that are missing or added; "" if none are."""
    missing = [name for name in before if name not in found]
    added = [name for name in found if name not in before]
    lists = (("Missing", missing), ("Not known", added))
    return " ".join(f"{what}: {listed(names)}." for what, names in lists if names)


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
