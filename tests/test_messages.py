"""Every error of the package says what is wrong, where, and what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.messages import (
    EXCEPTIONS,
    FOLDERS,
    INTERNAL,
    ROOT,
    Message,
    classes,
    messages,
    messages_in,
)

WHOLE = "rows {start} of {url} cannot be read: {error}; write them again."


@pytest.fixture(scope="module")
def found() -> list[Message]:
    told = messages()
    assert len(told) > 350
    assert len({message.place.split(":")[0] for message in told}) > 50
    return told


def test_every_text_says_what_where_and_what_to_do(found: list[Message]) -> None:
    poor = {m.place: (m.lacks(), m.text) for m in found if m.lacks() and not m.reason}
    assert poor == {}


def test_exceptions_are_needed(found: list[Message]) -> None:
    """One that no text needs any more is taken off the list."""
    poor = [message for message in found if message.lacks()]
    for begin in EXCEPTIONS:
        assert any(message.text.startswith(begin) for message in poor), begin
    for begin in FOLDERS:
        assert any(message.place.startswith(begin) for message in poor), begin
    for error in INTERNAL:
        assert any(message.error == error for message in poor), error


def test_every_class_is_looked_at(found: list[Message]) -> None:
    assert {"DataError", "ParameterError", "ClusterError", "OutputError"} <= classes()
    assert "RecoveryWarning" not in classes()
    # The base is raised by nobody.
    assert classes() - {message.error for message in found} <= {"LargekError"}


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        (WHOLE, []),
        ("{url}: give another.", ["what"]),
        ("nothing can be found here: give another output.", ["where"]),
        ("rows {start} of {url} cannot be read: {error}", ["do"]),
        ("k must be at least 1, got {k}.", []),
        ("there is nothing to draw of {url}", ["do"]),
        ("no", ["what", "where", "do"]),
        ("", ["what", "where", "do"]),
    ],
)
def test_parts_of_a_text(text: str, lacks: list[str]) -> None:
    assert Message("file.py:1", "DataError", text).lacks() == lacks


@pytest.mark.parametrize(
    "source",
    [
        'raise DataError(f"rows {start} of {url} cannot be read: {error}; write them again.")',
        'def make():\n    return errors.DataError(f"rows {start} of {url} cannot "\n'
        '        f"be read: {error}; write them again.")',
        'what = f"rows {start} of {url}"\nraise DataError(f"rows {start} of {url} cannot be read: '
        '{error}; " + "write them again.")',
        'def told():\n    return f"rows {start} of {url} cannot be read: {error}; write them '
        'again."\nraise DataError(told())',
        'text = f"rows {start} of {url} cannot be read: {error}; write them again."\n'
        "raise DataError(text)",
    ],
)
def test_texts_are_put_together(source: str) -> None:
    (message,) = messages_in(source, "file.py", {"DataError"})
    assert message.text == WHOLE
    line = next(i for i, text in enumerate(source.splitlines(), 1) if "DataError(" in text)
    assert message.place == f"file.py:{line}"


def test_each_branch_of_a_text_is_looked_at() -> None:
    source = 'raise DataError("all is lost" if gone else f"{url} is gone: give another.")'
    lacks = [message.lacks() for message in messages_in(source, "file.py", {"DataError"})]
    assert lacks == [["where", "do"], []]


def test_other_classes_are_left_alone() -> None:
    source = 'raise ValueError("no")\nwarn("no", RecoveryWarning)\nDataError.mro("no")'
    assert list(messages_in(source, "file.py", {"DataError"})) == []


def test_the_list_is_printed(found: list[Message]) -> None:
    command = [sys.executable, "-m", "tests.messages"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert done.stdout.rstrip().endswith(f"{len(found)} texts; 0 lack something")
    assert all(message.text in done.stdout for message in found)
