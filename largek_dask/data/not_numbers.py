"""The error about columns that are not numbers: what each holds instead, and what to do with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from largek_dask.data.columns import as_option, listed
from largek_dask.errors import DataError

__all__ = ["HEAD_ROWS", "Held", "check_numbers", "is_number", "not_numbers"]

HEAD_ROWS = 1_000
"""Rows of a table that are looked at to say what its columns hold."""
ID = re.compile(r"(.*[\W_])?(?i:ids?|uuid|guid)|.*[a-z](Id|ID)")
"""Names of columns that only name the rows."""
MISSING = ("None", "nan", "NaT", "<NA>")
LEAST_DIFFERENT = 20
"""Texts that all differ from each other are taken for ids from this number on."""

Nature = Literal["text", "ids", "numbers", "lists", "dates", "nothing", "other"]
KINDS: tuple[tuple[str, Nature], ...] = (
    (r"list|array", "lists"),
    (r"date|time|duration|period|interval", "dates"),
    (r"null|void", "nothing"),
    (r"complex|struct|map|extension", "other"),
)
"""Parts of names of types, of any library, and what columns of such a type hold."""


@dataclass(frozen=True, slots=True)
class Held:
    """Content of a column that does not hold numbers."""

    kind: str
    """Name of its type."""
    nature: Nature
    example: str = ""
    """The first value that is no number, and its row."""

    def __str__(self) -> str:
        return f"({self.kind}){self.example}"


PANDAS = {
    "leave": "df.drop(columns={names})",
    "select": "df.select_dtypes(['number', 'bool'])",
    "encode": "pandas.get_dummies(df, columns={names})",
    "convert": "df.astype({floats})",
    "stack": "np.stack(list(df[{name}]))",
}
LIBRARIES: dict[str, dict[str, str]] = {
    "pandas": PANDAS,
    "dask": PANDAS
    | {
        "encode": "dask.dataframe.get_dummies(df.categorize(columns={names}), columns={names})",
        "stack": "np.stack(list(df[{name}].compute()))",
    },
    "polars": {
        "leave": "df.drop({names})",
        "select": "df.select(polars.selectors.numeric())",
        "encode": "df.to_dummies({names})",
        "convert": "df.with_columns(polars.col({names}).cast(polars.Float64))",
        "stack": "np.stack(list(df[{name}]))",
    },
    "arrow": {
        "leave": "table.drop_columns({names})",
        "encode": "pandas.get_dummies(table.to_pandas(), columns={names})",
        "convert": "table.to_pandas().astype({floats})",
        "stack": "np.stack(table[{name}].to_pylist())",
    },
    "dict": {
        "leave": "pandas.DataFrame(data).drop(columns={names})",
        "encode": "pandas.get_dummies(pandas.DataFrame(data), columns={names})",
        "convert": "pandas.DataFrame(data).astype({floats})",
        "stack": "np.stack(data[{name}])",
    },
    "file": {
        "leave": "largek ingest --drop {option}",
        "encode": "pandas.get_dummies(df, columns={names}) on its DataFrame,",
        "convert": "df.astype({floats}) on its DataFrame,",
        "stack": "np.stack(pandas.read_parquet(file)[{name}])",
    },
}
"""Code of each library that leaves out, encodes or converts columns; "select" takes all numbers."""


def _code(library: str, what: str, names: Sequence[str]) -> str:
    floats = dict.fromkeys(names, "float")
    return LIBRARIES[library][what].format(
        names=list(names), name=repr(names[0]), floats=floats, option=as_option(names)
    )


def is_id_name(name: str) -> bool:
    """Return True if a column is called as those are that only name the rows."""
    return ID.fullmatch(name) is not None


def counts_rows(values: Sequence[Any]) -> bool:
    """Return True if the first values of a column are whole numbers that rise by one, as ids do."""
    if len(values) < LEAST_DIFFERENT or any(type(value) is not int for value in values):
        return False
    return list(values) == list(range(values[0], values[0] + len(values)))


def look_at(name: str, kind: Any, values: Iterable[Any] = ()) -> Held:
    """Describe the content of a column by its type and its first values, as Python objects.

    Parameters
    ----------
    kind : object
        Its type, of whichever library.
    values : iterable
        None where there are none to look at.
    """
    found = next((nature for part, nature in KINDS if re.search(part, str(kind).lower())), None)
    values = list(values)
    present = [(row, value) for row, value in enumerate(values) if str(value) not in MISSING]
    odd = next(((row, value) for row, value in present if not is_number(value)), None)
    if odd is None:
        if found is None and values:
            found = "numbers" if present else "nothing"
        return Held(str(kind), found or ("ids" if is_id_name(name) else "text"))
    row, value = odd
    if _is_list(value):
        return Held(str(kind), "lists", f" with a {type(value).__name__} in row {row}")
    shown = repr(value) if isinstance(value, str) else str(value)
    example = f" with {shown if len(shown) <= 40 else f'{shown[:40]}...'} in row {row}"
    texts = [str(value) for _, value in present]
    differ = len(texts) >= LEAST_DIFFERENT and len(set(texts)) == len(texts)
    return Held(str(kind), found or ("ids" if differ or is_id_name(name) else "text"), example)


def _is_list(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, (str, bytes, dict))


def is_number(value: Any) -> bool:
    """Return True if Python makes a float of a value."""
    if _is_list(value):
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def check_numbers(
    columns: Sequence[tuple[str, Any, bool]],
    head: Callable[[int], Iterable[Any]],
    where: str,
    library: str,
) -> None:
    """Refuse a table with columns that are not numbers.

    Parameters
    ----------
    columns : sequence of tuple
        Name and type of each column, and True if it holds numbers.
    head : callable
        Returns the first values of the column at a position.
    where : str
        Name of the table in messages.
    library : str
        A key of ``LIBRARIES``.
    """
    if all(is_numeric for _, _, is_numeric in columns):
        return
    wrong, ids = {}, []
    for i, (name, kind, is_numeric) in enumerate(columns):
        values = list(head(i))
        if not is_numeric:
            wrong[name] = look_at(name, kind, values)
        elif is_id_name(name) or counts_rows(values):
            ids.append(name)
    raise not_numbers(where, wrong, library, ids)


def not_numbers(
    where: str,
    columns: Mapping[str, Held | str],
    library: str = "file",
    ids: Sequence[str] = (),
) -> DataError:
    """The error that names all columns that are no numbers: leave them out, or encode them.

    Parameters
    ----------
    columns : mapping
        What each of them holds instead, by its name.
    library : str
        Whose table it is, a key of ``LIBRARIES``, or "file".
    ids : sequence of str
        Columns of numbers that only name the rows, as it seems.
    """
    held = {
        name: one if isinstance(one, Held) else Held(one, "ids" if is_id_name(name) else "text")
        for name, one in columns.items()
    }
    told = ", ".join(f"{name!r} {one}" for name, one in held.items())
    one, names = len(held) == 1, list(held)
    them = "it" if one else "them"
    # pandas counts these as numbers
    keeps = any(one.kind.startswith(("timedelta", "complex")) for one in held.values())
    select = LIBRARIES[library].get("select")
    select = f" or {select}" if select and not keeps else ""
    ways = _ways(held, library)
    encode = f", or encode {them} as numbers: {'; '.join(ways)}" if ways else ""
    ids = [*(name for name, one in held.items() if one.nature == "ids"), *ids]
    only = (
        f" Ids, which only name rows, are no features: leave out {listed(ids)} if that is what "
        f"{'it is' if len(ids) == 1 else 'they are'}."
        if ids
        else ""
    )
    return DataError(
        f"{where} has {'a column that is' if one else 'columns that are'} not numbers: {told}. "
        f"Leave {them} out with {_code(library, 'leave', names)}{select} "
        f"(ingest(..., drop={names!r}))"
        f"{encode}.{only}"
    )


def _ways(held: Mapping[str, Held], library: str) -> list[str]:
    by_nature: dict[Nature, list[str]] = {}
    for name, one in held.items():
        by_nature.setdefault(one.nature, []).append(name)
    ways = []
    if "text" in by_nature:
        ways.append(
            f"{_code(library, 'encode', by_nature['text'])} for texts of few different values"
        )
    if "numbers" in by_nature:
        ways.append(
            f"{_code(library, 'convert', by_nature['numbers'])} for numbers of another type"
        )
    if "dates" in by_nature:
        ways.append("of dates and times, the days since the first one")
    if "lists" in by_nature:
        ways.append(
            f"{_code(library, 'stack', by_nature['lists'])} for lists of one length, as rows"
        )
    if "other" in by_nature:
        ways.append("of complex numbers and structures, a column for each part")
    return ways
