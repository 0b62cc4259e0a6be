"""Secrets are left out of every text that is written or sent: events, errors, lines of a log."""

from __future__ import annotations

import base64
import json
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

__all__ = ["Redactor", "hide_in_logs", "redacted_line"]

SHORTEST = 4
"""Fewest characters of a secret; to leave out shorter ones would only garble texts."""
SHORTEST_FORM = 6
"""Fewest characters of a secret in another form (JSON, URL, base64), and digits of a number."""
PLAIN_FIELDS = frozenset(
    {"event", "time", "job", "run", "state", "topic", "reason", "stop_reason", "error"}
)
"""Fields of events whose values are words of this package: an option may have the same value."""


class Redactor:
    """Replace every value of ``options`` in texts, and in texts inside values, by ``***``.

    A value is found as it is, as a whole and line by line, as Python or JSON shows it, quoted for
    a URL, and in base64 as in the header of a request. Keys of mappings and the values of
    ``PLAIN_FIELDS`` stay as they are.

    Examples
    --------
    >>> Redactor({"key": "open sesame"})({"message": "no access by open%20sesame"})
    {'message': 'no access by ***'}
    """

    def __init__(self, options: Any) -> None:
        self._set({form for value in _values(options) for form in _forms(value)})

    def _set(self, forms: set[str]) -> None:
        self._forms = sorted(forms, key=len, reverse=True)

    @classmethod
    def joined(cls, redactors: Iterable[Redactor]) -> Redactor:
        """Return one that replaces what any of these does."""
        made = cls(None)
        made._set({form for each in redactors for form in each._forms})
        return made

    def __call__(self, value: Any) -> Any:
        """Return the value without secrets."""
        if isinstance(value, str):
            for form in self._forms:
                if form in value:
                    # A number counts by itself only, not as a part of a longer one.
                    value = (
                        re.sub(rf"(?<![\d.]){form}(?!\d)", "***", value)
                        if form.isdecimal()
                        else value.replace(form, "***")
                    )
            return value
        if isinstance(value, Mapping):
            return {key: item if key in PLAIN_FIELDS else self(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self(item) for item in value]
        return value


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
    """Yield a secret, and each of its lines, as it may appear in a text."""
    whole = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    for text in {whole, *map(str.strip, whole.splitlines())}:
        if len(text) >= SHORTEST:
            data = text.encode("utf-8", "surrogatepass")
            if isinstance(value, bytes) and text is whole:
                data = value
            yield text
            yield from (form for form in _other_forms(text, data) if len(form) >= SHORTEST_FORM)


def _other_forms(text: str, data: bytes) -> Iterator[str]:
    for shown in (repr(text)[1:-1], json.dumps(text)[1:-1], repr(data)[2:-1]):
        yield shown
        # As a part of something that is shown itself, such as a tuple of arguments.
        yield repr(shown)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield from (quote(data), quote(data, safe=""), quote_plus(data))
    for before in range(3):
        # Among other bytes, as in "user:password", only what depends on these alone.
        encoded = base64.b64encode(bytes(before) + data).decode()
        yield encoded[-(-8 * before // 6) : 8 * (before + len(data)) // 6]


_hidden_in_logs: weakref.WeakSet[Redactor] = weakref.WeakSet()


def hide_in_logs(redact: Redactor) -> None:
    """Apply ``redact`` to this process's log lines, as long as somebody keeps it."""
    _hidden_in_logs.add(redact)


def redacted_line(text: str) -> str:
    """Return a log line without the secrets of any job that this process works for."""
    for redact in list(_hidden_in_logs):
        text = redact(text)
    return text
