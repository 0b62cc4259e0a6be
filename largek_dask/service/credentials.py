"""Storage options with their secrets: put together where they are needed, left out of all text."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from fsspec.core import split_protocol

from largek_dask.driver.storage import Folder
from largek_dask.errors import MissingOptionError
from largek_dask.service.spec import JobSpec

__all__ = ["known_values", "missing", "options_of", "output_folder", "redactor"]

SHORTEST = 4
"""Values of fewer letters are no secrets; leaving them out would only garble texts."""
SHORTEST_FORM = 6
"""Least letters of a value in another form (JSON, base64, …), and least digits of a number."""
PLAIN_FIELDS = frozenset(
    {"event", "time", "job", "run", "state", "topic", "reason", "stop_reason", "error"}
)
"""Fields of events whose values are words of this package: an option may have the same value."""


def missing(spec: JobSpec, secrets: Mapping[str, Any]) -> list[str]:
    """Storage options whose values a client has to supply (again)."""
    return [name for name in spec.in_memory if name not in secrets]


def options_of(spec: JobSpec, secrets: Mapping[str, Any]) -> dict[str, Any]:
    """The storage options of a job with their values.

    Raises
    ------
    MissingOptionError
        A value is not in this process's environment, or has not been supplied.
    """
    options = {}
    for name, option in spec.storage_options.items():
        if option.env is not None:
            if option.env not in os.environ:
                raise MissingOptionError(
                    f"storage_options[{name!r}]: the environment of the scheduler has no "
                    f"variable {option.env}: start it with that one."
                )
            options[name] = os.environ[option.env]
        elif name in secrets:
            options[name] = secrets[name]
        else:
            raise MissingOptionError(
                f"storage_options[{name!r}] has not been supplied: call supply() of the job."
            )
    return options


def output_folder(spec: JobSpec, options: Mapping[str, Any]) -> Folder:
    """The output's folder; it has the data's storage options if both lie alike."""
    alike = split_protocol(spec.output)[0] == split_protocol(spec.data)[0]
    return Folder(spec.output, options if alike else None)


def known_values(spec: JobSpec, secrets: Mapping[str, Any]) -> list[Any]:
    """The values of a job's storage options as far as they are known."""
    names = [option.env for option in spec.storage_options.values() if option.env is not None]
    return [*secrets.values(), *(os.environ[name] for name in names if name in os.environ)]


def redactor(options: Any) -> Callable[[Any], Any]:
    """A function that leaves every value of ``options`` out of texts, and of texts inside values.

    Whatever is written or sent of a job goes through it: nobody knows what a driver of some
    file system puts into its errors, nor in which letters (as Python or JSON shows it, line by
    line, quoted for a URL, in base64 as in the header of a request). Names of fields stay as
    they are, and so do the values of ``PLAIN_FIELDS``.
    """
    forms: set[str] = set()
    for value in _values(options):
        forms.update(_forms(value))
    # Longer ones first: one may be part of another.
    ordered = sorted(forms, key=lambda form: (-len(form), form))
    pattern = re.compile("|".join(map(_pattern, ordered))) if ordered else None

    def redact(value: Any) -> Any:
        if isinstance(value, str):
            return value if pattern is None else pattern.sub("***", value)
        if isinstance(value, Mapping):
            return {
                key: item if key in PLAIN_FIELDS else redact(item) for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [redact(item) for item in value]
        return value

    return redact


def _values(value: Any) -> Iterator[str | bytes]:
    """Every text, number and string of bytes inside a value."""
    if isinstance(value, str | bytes):
        yield value
    elif isinstance(value, bytearray | memoryview):
        yield bytes(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _values(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _values(item)
    elif len(text := str(value)) >= SHORTEST_FORM:
        # A number, a path, or an object that shows what it holds; True and None are too short.
        yield text


def _forms(value: str | bytes) -> Iterator[str]:
    """A value in all letters in which it may be met."""
    if isinstance(value, bytes):
        data, text = value, value.decode("utf-8", "replace")
    else:
        data, text = value.encode("utf-8", "surrogatepass"), value
    lines = [line.strip() for line in text.splitlines()]
    for part in (text, *lines):
        if len(part) >= SHORTEST:
            yield part
            encoded = data if part is text else part.encode("utf-8", "surrogatepass")
            yield from (f for f in _other_forms(part, encoded) if len(f) >= SHORTEST_FORM)


def _other_forms(text: str, data: bytes) -> Iterator[str]:
    shown = repr(text)[1:-1]
    # As part of what is shown itself, a tuple of arguments for one.
    yield from (shown, repr(shown)[1:-1], ascii(text)[1:-1])
    yield from (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    yield from (repr(data)[2:-1], repr(repr(data)[2:-1])[1:-1])
    for quoted in (quote(data, safe=""), quote(data), quote_plus(data), quote_plus(data, safe="/")):
        yield quoted
        yield re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), quoted)
    yield from (html.escape(text), data.hex(), data.hex().upper())
    for alphabet in (None, b"-_"):
        for before in range(3):
            # With others before and behind it, only the letters in between tell of it alone.
            encoded = base64.b64encode(bytes(before) + data, alphabet).decode()
            yield encoded[-(-8 * before // 6) : 8 * (before + len(data)) // 6]


def _pattern(form: str) -> str:
    """A number is one by itself, not part of a longer one."""
    return rf"(?<![\d.]){re.escape(form)}(?!\d)" if form.isdigit() else re.escape(form)
