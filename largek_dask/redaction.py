"""Secrets are left out of every text that is written or sent: events, errors, lines of a log."""

from __future__ import annotations

import base64
import html
import json
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

__all__ = ["Redactor", "hide_in_logs", "redacted_line", "redactor"]

SHORTEST = 4
"""Values of fewer letters are no secrets; leaving them out would only garble texts."""
SHORTEST_FORM = 6
"""Least letters of a value in another form (JSON, base64, …), and least digits of a number."""
PLAIN_FIELDS = frozenset(
    {"event", "time", "job", "run", "state", "topic", "reason", "stop_reason", "error"}
)
"""Fields of events whose values are words of this package: an option may have the same value."""


def redactor(options: Any) -> Redactor:
    """A function that leaves every value of ``options`` out of texts: see :class:`Redactor`."""
    return Redactor(options)


class Redactor:
    """Leaves every value of ``options`` out of texts, and of texts inside values.

    Whatever is written or sent of a job goes through it: nobody knows what a driver of some
    file system puts into its errors, nor in which letters (as Python or JSON shows it, line by
    line, quoted for a URL, in base64 as in the header of a request). Names of fields stay as
    they are, and so do the values of ``PLAIN_FIELDS``.

    Making one takes up to a second for values of 16 kB, so make it once per job.
    """

    def __init__(self, options: Any) -> None:
        index: dict[str, set[str]] = {}
        for value in _values(options):
            for form in _forms(value):
                index.setdefault(form[:SHORTEST], set()).add(form)
        self._indexes = [index] if index else []
        """Forms by their first letters: a regular expression of all would be slow."""

    @classmethod
    def joined(cls, redactors: Iterable[Redactor]) -> Redactor:
        """Leave out what any of these leaves out."""
        made = cls(None)
        made._indexes = [index for each in redactors for index in each._indexes]
        return made

    def __call__(self, value: Any) -> Any:
        """The value without secrets."""
        if isinstance(value, str):
            return self._text(value) if self._indexes else value
        if isinstance(value, Mapping):
            return {key: item if key in PLAIN_FIELDS else self(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self(item) for item in value]
        return value

    def _text(self, text: str) -> str:
        parts, begin, at = [], 0, 0
        while at <= len(text) - SHORTEST:
            end = self._end(text, at)
            if end:
                parts += [text[begin:at], "***"]
                begin = at = end
            else:
                at += 1
        return "".join((*parts, text[begin:]))

    def _end(self, text: str, at: int) -> int:
        """End of the longest form that begins here; 0 if none does."""
        first, end = text[at : at + SHORTEST], 0
        for index in self._indexes:
            for form in index.get(first, ()):
                after = at + len(form)
                if after > end and text.startswith(form, at) and _stands_alone(form, text, at):
                    end = after
        return end


def _stands_alone(form: str, text: str, at: int) -> bool:
    """A number is one by itself, not part of a longer one."""
    if not form.isdigit():
        return True
    end = at + len(form)
    before, after = text[max(0, at - 1) : at], text[end : end + 1]
    return not (before.isdigit() or before == "." or after.isdigit())


def _values(options: Any) -> Iterator[str | bytes]:
    """Every text, number and string of bytes inside a value, however deep."""
    left = [options]
    while left:
        value = left.pop()
        if isinstance(value, str | bytes):
            yield value
        elif isinstance(value, bytearray | memoryview):
            yield bytes(value)
        elif isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            left.extend(value)
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


_hidden_in_logs: weakref.WeakSet[Redactor] = weakref.WeakSet()


def hide_in_logs(redact: Redactor) -> None:
    """Leave out of this process's log what ``redact`` leaves out, as long as somebody keeps it."""
    _hidden_in_logs.add(redact)


def redacted_line(text: str) -> str:
    """A text of the log without the secrets of any job that this process works for."""
    for redact in list(_hidden_in_logs):
        text = redact(text)
    return text
