"""Text files of numbers: how they are packed and encoded, and how their lines are cut.

A few lines at the beginning say which separator, decimal sign and header a file has. What they
leave open is asked for, not guessed.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import DataError

__all__ = ["READING", "TextLayout", "find_layout", "is_grouped", "open_text"]

READING = (
    ValueError, EOFError, OSError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile
)  # fmt: skip
"""Errors of readers of text and of packed files."""
ZSTD = b"\x28\xb5\x2f\xfd"
PACKED: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
BINARY = {b"PAR1": "Parquet", b"\x89HDF": "HDF5", b"\x93NUMPY": "NumPy (.npy)", b"ARROW1": "Arrow"}
ENCODINGS = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
"""Encodings by the mark that files begin with; UTF-32 comes before UTF-16, whose mark it holds."""
BUFFER_BYTES = 1 << 20
HEAD_LINES = 100
HEAD_CHARACTERS = 4 << 20
LEAST_LINES = 4
SEPARATORS = (",", ";", "\t", "|", r"\s+")

COMMENT = re.compile(r"[#%]|sep=.$", re.IGNORECASE)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
WHOLE = re.compile(r"[+-]?\d+")
WITH_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
GROUPED = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
"""One and 234 thousandths, or 1,234."""
THOUSANDS = re.compile(r"[+-]?\d{1,3}([., \u00a0\u202f'’]\d{3})*([.,]\d*)?")
BLANK = frozenset(("", "nan", "na", "n/a", "null", "none", "inf", "-inf", "?", "-", "*", "."))
WIDE = 4
"""This many whole numbers in rising order over decimals, or more, are a header."""
LONG = 8
"""This many numbers in rising order seldom come by chance."""


@contextmanager
def open_text(fs: Any, path: str, where: str) -> Iterator[TextIO]:
    """Open a text file, decompressed and decoded by its first bytes, not by its name.

    Bytes that are not UTF-8 are replaced: numbers are the same in all encodings that extend ASCII.
    Raises DataError if it is not a text, or an archive of several files.
    """
    with ExitStack() as stack:
        packed = io.BufferedReader(stack.enter_context(fs.open(path, "rb")), BUFFER_BYTES)
        data = io.BufferedReader(_unpacked(packed, where, stack), BUFFER_BYTES)
        head = data.peek(BUFFER_BYTES)[:BUFFER_BYTES]
        encoding = next((name for mark, name in ENCODINGS.items() if head.startswith(mark)), None)
        for mark, kind in BINARY.items():
            if head.startswith(mark):
                raise DataError(f"{where} is a file of {kind}, not a text: name it as such.")
        if encoding is None and b"\0" in head:
            raise DataError(
                f"{where} is not a text in UTF-8: it holds bytes that are 0. If it is in UTF-16 "
                "without a mark (BOM), convert its encoding to UTF-8 first (iconv -f UTF-16LE -t "
                "UTF-8); if it is binary, give it the ending of its format."
            )
        text = io.TextIOWrapper(data, encoding or "utf-8", errors="replace", newline="")
        yield stack.enter_context(text)


def _unpacked(packed: io.BufferedReader, where: str, stack: ExitStack) -> Any:
    mark = packed.peek(8)[:8]
    if mark.startswith(ZSTD):
        import pyarrow as pa

        return stack.enter_context(pa.input_stream(packed, compression="zstd"))
    if mark.startswith(b"PK\x03\x04"):
        archive = stack.enter_context(zipfile.ZipFile(packed))
        names = [
            name
            for name in archive.namelist()
            if not name.endswith("/") and not name.startswith("__MACOSX/")
        ]
        if len(names) != 1:
            raise DataError(
                f"{where} is an archive of {len(names)} files ({', '.join(names[:5])}): unpack it, "
                "and give the file or the folder."
            )
        return stack.enter_context(archive.open(names[0]))
    for start, kind in PACKED.items():
        if mark.startswith(start):
            return stack.enter_context(kind(packed))
    return packed


@dataclass(frozen=True, slots=True)
class TextLayout:
    """Layout of the lines of a text."""

    separator: str
    """One character, or the regular expression of white space."""
    decimal: str
    skip: int
    """Lines before the header or the first row: comments and blank ones."""
    has_header: bool
    """True if the first line after them names the columns."""
    names: tuple[str, ...] | None
    """Names of the columns that a comment before the first row gives."""


def find_layout(text: TextIO, where: str, header: bool | None) -> TextLayout:
    """Find the layout of a text by its first lines.

    ``header`` says whether the first line names the columns; None: as it looks. Raises DataError if
    there are no rows, the header is not UTF-8, or the first line may be names or numbers.
    """
    lines: list[str] = []
    n_characters = 0
    for line in itertools.islice(text, HEAD_LINES):
        lines.append(line.rstrip("\r\n"))
        n_characters += len(line)
        if n_characters > HEAD_CHARACTERS and len(lines) >= LEAST_LINES:
            break
    skip = next(
        (i for i, line in enumerate(lines) if line.strip() and not COMMENT.match(line)), len(lines)
    )
    body = [line for line in lines[skip:] if line.strip()]
    if not body:
        raise DataError(f"{where} has no rows: give a table of numbers.")
    separator, rows = max(
        ((separator, _cut(body, separator)) for separator in SEPARATORS),
        key=lambda pair: _fitness(pair[1]),
    )
    decimal = _decimal(rows)
    names = _names_in_comment(lines[:skip], separator, len(rows[0]))
    if header is None:
        header = _is_header(rows, decimal, _is_quoted(body))
        if names is not None and not header:
            header = False
    if header is None:
        shown = ", ".join(rows[0][:6]) + (", ..." if len(rows[0]) > 6 else "")
        raise DataError(
            f"{where}: the first line ({shown}) may name the columns or be a row of numbers; say "
            "which with --header or --no-header (ingest(..., header=True) or header=False)."
        )
    found = rows[0] if header else names or ()
    wrong = next((name for name in found if "\ufffd" in name), None)
    if wrong is not None:
        raise DataError(
            f"{where} names a column {wrong!r} in an encoding that is not UTF-8 (Latin-1, perhaps, "
            f"or Windows-1252): convert it first, e.g. iconv -f LATIN1 -t UTF-8 {where}."
        )
    return TextLayout(separator, decimal, skip, header, None if header else names)


def _cut(lines: Sequence[str], separator: str) -> list[list[str]]:
    if separator == r"\s+":
        lines, separator = [" ".join(line.split()) for line in lines], " "
    try:
        rows = list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
    except csv.Error:
        # A field longer than any number.
        return [[line] for line in lines]
    return [[field.strip() for field in row] for row in rows]


def _fitness(rows: list[list[str]]) -> tuple[float, int]:
    """Score a separator: rows of one length, full of numbers."""
    data = rows[1:] or rows
    widths = [len(row) for row in data]
    width = max(set(widths), key=widths.count)
    if width < 2:
        return (0.0, 0)
    fields = [field for row in data for field in row]
    numbers = sum(map(_is_number, fields)) / len(fields)
    return (round(widths.count(width) / len(widths) * (0.5 + numbers), 2), width)


def _is_number(field: str) -> bool:
    return bool(NUMBER.fullmatch(field) or WITH_COMMA.fullmatch(field)) or field.lower() in BLANK


def _decimal(rows: list[list[str]]) -> str:
    """Return the decimal sign; a point if it is unclear."""
    fields = [field for row in rows for field in row]
    commas = [field for field in fields if WITH_COMMA.fullmatch(field)]
    points = any("." in field and NUMBER.fullmatch(field) for field in fields)
    return "," if not points and any(not GROUPED.fullmatch(field) for field in commas) else "."


def is_grouped(value: Any) -> bool:
    """Return whether a text is a number with thousands separators or another decimal sign."""
    return isinstance(value, str) and THOUSANDS.fullmatch(value) is not None


def _names_in_comment(
    comments: Sequence[str], separator: str, width: int
) -> tuple[str, ...] | None:
    """Return the names in the last comment before the rows, as ``savetxt`` writes them."""
    last = next((line for line in reversed(comments) if line.strip()), "")
    if not last.startswith(("#", "%")):
        return None
    names = _cut([re.sub(r"^[#%]+\s+", "", last)], separator)[0]
    is_text = any(name and not _is_number(name) for name in names)
    return tuple(names) if len(names) == width and is_text and len(set(names)) == width else None


def _is_quoted(lines: Sequence[str]) -> bool:
    return len(lines) > 1 and lines[0].lstrip().startswith('"') and '"' not in lines[1]


# --- a first line of numbers ----------------------------------------------------------------------


def _is_header(rows: list[list[str]], decimal: str, is_quoted: bool) -> bool | None:
    """Return whether the first row names the columns of the others; None if it is unclear."""
    first, data = rows[0], rows[1:]
    is_longer = bool(data) and all(len(row) == len(first) + 1 for row in data)
    texts = [j for j, field in enumerate(first) if field and not _is_number(field)]
    if is_longer:
        # A header of R has no name for the names of rows.
        return True if texts or not all(_is_number(row[0]) for row in data) else None
    data = [row for row in data if len(row) == len(first)]
    if texts:
        return _is_header_of_texts(first, data, decimal, texts)
    if not data:
        return False
    has_index = first[0] == ""
    if has_index and [row[0] for row in data] == [str(i) for i in range(len(data))]:
        return True
    begin = int(has_index)
    below = [row[begin:] for row in data]
    return is_quoted or _is_row_of_names(first[begin:], below, decimal, has_index)


def _is_header_of_texts(
    first: list[str], data: list[list[str]], decimal: str, texts: list[int]
) -> bool | None:
    others = [j for j, field in enumerate(first) if j not in texts and field.lower() not in BLANK]
    below = [row[j] for row in data for j in texts]
    if not others or not data or any(_is_number(f) and f.lower() not in BLANK for f in below):
        return True
    if any(row[j] == first[j] for row in data for j in texts):
        return False
    names = [first[j] for j in others]
    numbers = [[row[j] for j in others] for row in data]
    return _is_row_of_names(names, numbers, decimal, True) or None


def _is_row_of_names(
    names: list[str], data: list[list[str]], decimal: str, is_beside_text: bool
) -> bool | None:
    """Return whether numbers are names: of another kind or order than those below."""
    values = _values(names, decimal)
    if not (values >= 0).all() or len(set(values.tolist())) < len(values):
        return False
    rises = bool((np.diff(values) > 0).all())
    below = [field for row in data for field in row if NUMBER.fullmatch(field.replace(",", "."))]
    is_whole = all(name.isdecimal() for name in names)
    if is_whole and below and not any(map(WHOLE.fullmatch, below)):
        return True if is_beside_text or (rises and len(names) >= WIDE) else None
    rows = [_values(row, decimal) for row in data]
    step = _step(values)
    if step is not None and step not in map(_step, rows):
        return True if is_beside_text else None
    if rises and len(names) >= LONG and not any((np.diff(row) > 0).all() for row in rows):
        return True if is_beside_text else None
    return False


def _step(values: NDArray[np.float64]) -> float | None:
    """Return the step by which three or more numbers rise, if it is always the same."""
    steps = np.diff(values)
    is_regular = len(steps) > 1 and (steps > 0).all() and np.allclose(steps, steps[0])
    return round(float(steps[0]), 9) if is_regular else None


def _values(fields: list[str], decimal: str) -> NDArray[np.float64]:
    found = [field.replace(decimal, ".") for field in fields]
    return np.array([float(field) if NUMBER.fullmatch(field) else np.nan for field in found])
