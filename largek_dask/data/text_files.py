"""Detect the compression, encoding and layout of text files of numbers.

The first lines of a file show its separator, decimal sign and header.
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

from largek_dask.errors import DataError

READING = (
    ValueError, EOFError, OSError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile
)  # fmt: skip
"""Errors that readers of text and of compressed files raise."""
ZSTD = b"\x28\xb5\x2f\xfd"
PACKED: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
ENCODINGS = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
"""Encodings by byte-order mark. UTF-32 is first, because its mark begins with the mark of
UTF-16."""
BUFFER_BYTES = 1 << 20
HEAD_LINES = 100
HEAD_CHARACTERS = 4 << 20
LEAST_LINES = 4
SEPARATORS = (",", ";", "\t", "|", r"\s+")

COMMENT = re.compile(r"[#%]|sep=.$", re.IGNORECASE)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
WITH_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
GROUPED = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
"""Numbers whose comma may be either a decimal sign or a thousands separator."""
BLANK = frozenset(("", "nan", "na", "n/a", "null", "none", "inf", "-inf", "?", "-", "*", "."))


@contextmanager
def open_text(fs: Any, path: str, where: str) -> Iterator[TextIO]:
    """Open a text file; its compression and encoding are detected from its first bytes.

    Bytes that are not UTF-8 are replaced, because numbers are the same in all encodings that extend
    ASCII. Raises DataError if the file is not text, or is an archive of several files.
    """
    with ExitStack() as stack:
        packed = io.BufferedReader(stack.enter_context(fs.open(path, "rb")), BUFFER_BYTES)
        data = io.BufferedReader(_unpacked(packed, where, stack), BUFFER_BYTES)
        head = data.peek(BUFFER_BYTES)[:BUFFER_BYTES]
        encoding = next((name for mark, name in ENCODINGS.items() if head.startswith(mark)), None)
        if encoding is None and b"\0" in head:
            raise DataError(
                f"{where} is not UTF-8 text: it contains null bytes. If it is UTF-16 without a "
                "byte-order mark, convert it to UTF-8 first (iconv -f UTF-16LE -t UTF-8); if it is "
                "binary, rename it with the suffix of its format."
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
                f"{where} is an archive of {len(names)} files ({', '.join(names[:5])}); unpack the "
                "archive, and pass one file or the folder."
            )
        return stack.enter_context(archive.open(names[0]))
    for start, kind in PACKED.items():
        if mark.startswith(start):
            return stack.enter_context(kind(packed))
    return packed


@dataclass(frozen=True, slots=True)
class TextLayout:
    """Layout of the lines of a text file."""

    separator: str
    """A single character, or a regular expression for white space."""
    decimal: str
    skip: int
    """Number of comment lines and blank lines before the header or the first row."""
    has_header: bool


def find_layout(text: TextIO, where: str, header: bool | None) -> TextLayout:
    """Find the layout of a text file from its first lines.

    ``header`` is True if the first line names the columns; if None, the header is detected. Raises
    DataError if there are no rows, or if the header is not UTF-8 or has fewer fields than a row.
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
        raise DataError(f"{where} has no rows; pass a table of numbers.")
    separator, rows = max(
        ((separator, _cut(body, separator)) for separator in SEPARATORS),
        key=lambda pair: _fitness(pair[1]),
    )
    decimal = _decimal(rows)
    if header is None:
        header = _is_header(rows[0])
    wrong = next((name for name in rows[0] if "\ufffd" in name), None)
    if header and wrong is not None:
        raise DataError(
            f"the header of {where} is not UTF-8 (column {wrong!r}); convert the file first, e.g. "
            f"from Latin-1 with iconv -f LATIN1 -t UTF-8 {where}."
        )
    if header and len(rows) == 1:
        raise DataError(f"{where} has no rows after the header; pass a table of numbers.")
    if header and any(len(row) > len(rows[0]) for row in rows):
        raise DataError(
            f"{where} has rows with more fields than the header: give every column a name, or "
            "write rows without row names and without a trailing separator."
        )
    return TextLayout(separator, decimal, skip, header)


def _cut(lines: Sequence[str], separator: str) -> list[list[str]]:
    if separator == r"\s+":
        lines, separator = [" ".join(line.split()) for line in lines], " "
    try:
        rows = list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
    except csv.Error:
        # A field exceeds the limit of the csv module.
        return [[line] for line in lines]
    return [[field.strip() for field in row] for row in rows]


def _fitness(rows: list[list[str]]) -> tuple[float, int]:
    """Score how well a separator splits rows into equal numbers of numeric fields."""
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
    """Return the decimal sign, which is a point by default."""
    fields = [field for row in rows for field in row]
    commas = [field for field in fields if WITH_COMMA.fullmatch(field)]
    points = any("." in field and NUMBER.fullmatch(field) for field in fields)
    return "," if not points and any(not GROUPED.fullmatch(field) for field in commas) else "."


def _is_header(first: list[str]) -> bool:
    """Return True if the first row is a header: text, or the numbers 0, 1, 2, ... from pandas."""
    if any(field and not _is_number(field) for field in first):
        return True
    names = first[1:] if first[0] == "" else first
    return len(names) > 1 and names == list(map(str, range(len(names))))
