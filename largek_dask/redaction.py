"""Removal of secrets from all text that is written or sent: events, errors, log lines.

``service.runner`` redacts the events of a job before they are written to a file or sent.
"""

from __future__ import annotations

import base64
import json
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

SHORTEST = 4
"""Minimum length of a secret in characters; replacing shorter strings would garble messages."""
SHORTEST_FORM = 6
"""Minimum length of a number, or of a secret encoded as JSON, URL or base64."""
PLAIN_FIELDS = frozenset(
    {"event", "time", "job", "run", "state", "topic", "reason", "stop_reason", "error"}
)
"""Fields of events that are never redacted, because this package defines their values."""


class Redactor:
    """Replace every value of ``options`` by ``***`` in strings and in nested values.

    Values are recognised as a whole and line by line: as plain text, as a Python or JSON literal,
    quoted for a URL, and in base64. Keys of mappings and values of ``PLAIN_FIELDS`` are not
    changed.

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
        """Return a redactor that combines the given redactors."""
        made = cls(None)
        made._set({form for each in redactors for form in each._forms})
        return made

    def __call__(self, value: Any) -> Any:
        """Return the value without secrets."""
        if isinstance(value, str):
            for form in self._forms:
                if form in value:
                    # A number is not replaced inside a longer number.
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
    """Yield every text, number and byte string inside a nested value."""
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
            # Short values such as True and None are not secrets.
            yield text


def _forms(value: str | bytes) -> Iterator[str]:
    """Yield the forms in which a secret, or one of its lines, may appear in a text."""
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
        # A string is escaped twice if it is part of another printed value, such as a tuple.
        yield repr(shown)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield from (quote(data), quote(data, safe=""), quote_plus(data))
    for before in range(3):
        # Only these base64 characters are the same inside longer data, such as "user:password".
        encoded = base64.b64encode(bytes(before) + data).decode()
        yield encoded[-(-8 * before // 6) : 8 * (before + len(data)) // 6]


_hidden_in_logs: weakref.WeakSet[Redactor] = weakref.WeakSet()


def hide_in_logs(redact: Redactor) -> None:
    """Apply ``redact`` to the log lines of this process as long as ``redact`` is referenced."""
    _hidden_in_logs.add(redact)


def redacted_line(text: str) -> str:
    """Return a log line without the secrets of this process's jobs."""
    for redact in list(_hidden_in_logs):
        text = redact(text)
    return text
