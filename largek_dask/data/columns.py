"""Select, order and name columns; recognize an index that was written as a column."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from largek_dask.data.rows import Rows
from largek_dask.errors import DataError, DataWarning, ParameterError, warn

Names = str | int | Iterable[str | int]
Kind = Literal["list", "float", "other"]
"""Kind of a column: lists of numbers, floating-point numbers, or anything else."""
MOST_LISTED = 20
INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Column names that pandas and pyarrow give to an unnamed index."""
INDEX_LEVEL = re.compile(r"__index_level_\d+__")
"""Name that pyarrow gives to an unnamed index, which is stored after all columns."""
UNNAMED = re.compile(r"Unnamed: \d+")
"""Name that pandas gives to an unnamed column of a CSV file."""


def names_of(labels: Iterable[Any]) -> tuple[str, ...] | None:
    """Convert column labels to strings; return None if no label is a string."""
    labels = list(labels)
    return tuple(map(str, labels)) if any(isinstance(label, str) for label in labels) else None


def listed(names: Iterable[Any], most: int = MOST_LISTED) -> str:
    """Format up to ``most`` names for a message, followed by the number of remaining names."""
    names = list(names)
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def equal_names(names: Sequence[str]) -> list[str]:
    return [name for name, n in Counter(names).items() if n > 1]


def without_equal_names(rows: Rows) -> Rows:
    """Return the rows; if column names are not unique, drop all names with a DataWarning."""
    equal = equal_names(rows.feature_names or ())
    if not equal:
        return rows
    warn(
        f"{rows.describe_source(rows.location)} has several columns with the same name "
        f"({listed(equal, 5)}); columns are matched by position, and the model has no column "
        "names. Rename these columns to keep the names.",
        DataWarning,
    )
    return rows.with_names(None)


@dataclass(frozen=True, slots=True)
class Selection:
    """Names of the columns to keep, in order (None for all columns), and of the columns to drop."""

    columns: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()

    @classmethod
    def of(cls, columns: Names | None, drop: Names | None) -> Selection:
        """Build a selection from column names, or from column numbers if columns have no names."""
        taken = None if columns is None else _texts(columns)
        return cls(taken, () if drop is None else _texts(drop))

    @classmethod
    def only(cls, column: str | None) -> Selection | None:
        """Build the selection of a single column; None for None."""
        return None if column is None else cls((column,))

    def __bool__(self) -> bool:
        return self.columns is not None or bool(self.drop)

    def places(self, names: Sequence[str], where: str) -> list[int]:
        """Return the positions of the selected columns in ``names``, in order.

        Raises ParameterError if a column is missing or ambiguous, or if no column is left.
        """
        found: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            found.setdefault(name, []).append(place)
        taken = self.columns or ()
        for name in dict.fromkeys([*taken, *self.drop]):
            if name not in found:
                raise ParameterError(
                    f"{where} has no column {name!r}; its columns ({len(names):,}) are "
                    f"{listed(names)}."
                )
            if len(found[name]) > 1:
                raise ParameterError(
                    f"{where} has {len(found[name])} columns named {name!r}: rename them, so that "
                    "the name is unique."
                )
        if twice := [name for name in taken if taken.count(name) > 1 or name in self.drop]:
            raise ParameterError(
                f"column {twice[0]!r} of {where} is selected twice, or both selected and dropped: "
                "name each column once."
            )
        places = [found[name][0] for name in taken]
        if self.columns is None:
            places = [place for place, name in enumerate(names) if name not in self.drop]
        if not places:
            raise ParameterError(
                f"no column of {where} is selected; keep at least one of {listed(names)}."
            )
        return places


def without(selection: Selection | None, name: str) -> Selection:
    """Return a selection that also drops the column ``name``."""
    chosen = selection or Selection()
    return Selection(chosen.columns, (*chosen.drop, name))


def _texts(names: Names) -> tuple[str, ...]:
    return (str(names),) if isinstance(names, str | int) else tuple(map(str, names))


# --- columns that are not numbers -----------------------------------------------------------------


def check_numbers(columns: Sequence[tuple[str, Any, bool]], where: str) -> None:
    """Raise DataError if any of the columns ``(name, type, is_numeric)`` is not numeric."""
    if wrong := {name: f"({kind})" for name, kind, is_numeric in columns if not is_numeric}:
        raise not_numbers(where, wrong)


def not_numbers(where: str, columns: Mapping[str, str]) -> DataError:
    """Return an error that lists the columns that are not numeric."""
    held = ", ".join(f"{name!r} {content}" for name, content in columns.items())
    names, is_one = list(columns), len(columns) == 1
    return DataError(
        f"{where} has {'a column that is' if is_one else 'columns that are'} not numbers: {held}. "
        f"Leave {'it' if is_one else 'them'} out with drop={names!r} (--drop), or encode text "
        "with few different values by pandas.get_dummies, and dates as days."
    )


# --- index columns --------------------------------------------------------------------------------


def is_index_name(name: str) -> bool:
    """Return True if pandas may have written an index as a column with this name."""
    return INDEX.fullmatch(name) is not None


def chosen_columns(
    names: Sequence[str],
    selection: Selection | None,
    where: str,
    metadata: Mapping[str, Any] | None = None,
    kinds: Sequence[Kind] = (),
) -> list[int]:
    """Return the positions of the selected columns; by default, of all columns except an index.

    A column that the pandas ``metadata`` of a schema marks as an index is dropped with a
    DataWarning. Raises DataError for other unnamed columns, such as an index in a CSV file.
    If the ``kinds`` of the columns are given, a single column of lists is selected unless there are
    columns of floats: the other columns (ids, text) are dropped with a DataWarning.
    """
    places = selection.places(names, where) if selection else list(range(len(names)))
    if selection is not None and selection.columns is not None:
        return places
    for name in noted_as_index(names, metadata):
        if len(places) > 1 and names.index(name) in places:
            warn(
                f"Column {name!r} of {where} is left out, because pandas wrote it as the index of "
                f"the rows. Drop the column (drop=[{name!r}], --drop), or list all columns to keep "
                "(columns=, --columns).",
                DataWarning,
            )
            places.remove(names.index(name))
    if len(places) > 1 and kinds and (lists := _lists_beside_ids(places, kinds)):
        return [_only_list([names[place] for place in places], names, lists, where)]
    unnamed = [
        names[place]
        for place in places
        if (is_index_name(names[place]) and place == 0) or UNNAMED.fullmatch(names[place])
    ]
    if unnamed:
        raise DataError(
            f"{where} has columns without names ({listed(unnamed)}), perhaps an index that pandas "
            f"wrote; leave them out (drop={unnamed!r}, --drop), rename the columns that are "
            "features, or list all columns to keep (columns=, --columns)."
        )
    return places


def _lists_beside_ids(places: Sequence[int], kinds: Sequence[Kind]) -> list[int]:
    """Return the columns of lists, if no other column can be a feature."""
    if any(kinds[place] == "float" for place in places):
        return []
    return [place for place in places if kinds[place] == "list"]


def _only_list(
    chosen: Sequence[str], names: Sequence[str], lists: Sequence[int], where: str
) -> int:
    """Return the only column of lists and warn of the others; raise an error if there are more."""
    if len(lists) > 1:
        raise ParameterError(
            f"{where} has several columns of lists ({listed(names[place] for place in lists)}): "
            "name one with column= (--column)."
        )
    name = names[lists[0]]
    others = listed(other for other in chosen if other != name)
    warn(
        f"The rows of {where} are the lists in its column {name!r}; the other columns ({others}) "
        f"are left out. Name it with column={name!r} (--column) to say that this is right.",
        DataWarning,
    )
    return lists[0]


def noted_as_index(names: Sequence[str], metadata: Mapping[str, Any] | None) -> list[str]:
    """Return the columns that are an index according to their names or to the pandas metadata."""
    noted = (metadata or {}).get("index_columns", ())
    return [
        name
        for place, name in enumerate(names)
        if name in noted or (place and INDEX_LEVEL.fullmatch(name))
    ]


# --- the columns of a model -----------------------------------------------------------------------


def all_differences(before: Sequence[str], found: Sequence[str]) -> str:
    """List the names that are missing or added; return "" if there are none."""
    missing = [name for name in before if name not in found]
    added = [name for name in found if name not in before]
    lists = (("Missing", missing), ("Unknown", added))
    return " ".join(f"{what}: {listed(names)}." for what, names in lists if names)


def check_same_columns(first: Sequence[str], where: str, found: Sequence[str], url: str) -> None:
    """Raise DataError if the columns of a file differ from those of the first file ``where``."""
    if differences := all_differences(first, found):
        raise DataError(
            f"{url} does not have the same columns as {where}, the first file. {differences} Pass "
            "files with the same columns, or select columns that all files have with --columns "
            "(columns=)."
        )


def order_by_name(fitted: Sequence[str], found: Sequence[str], where: str) -> list[int] | None:
    """Return the positions of the fitted columns in a table; None if the order is the same.

    Raises ParameterError if columns are missing, unknown or ambiguous.
    """
    if tuple(fitted) == tuple(found):
        return None
    places = {name: place for place, name in enumerate(found)}
    differences = all_differences(fitted, found)
    if not differences and len(places) == len(found) == len(fitted):
        return [places[name] for name in fitted]
    raise ParameterError(
        f"The columns of {where} differ from the columns that the model was fitted on. "
        f"{differences or 'A name occurs more than once.'} Pass exactly the columns of the fit "
        f"({listed(fitted)}), in any order."
    )
