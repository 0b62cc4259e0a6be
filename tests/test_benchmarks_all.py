"""Running every benchmark: what has ended is not run again, and what became worse is told."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks import all as every
from benchmarks.common import RESULTS, ROOT
from benchmarks.tables import TABLES

BEFORE = """
| set | seconds | size | how many times | end |
|---|---|---|---|---|
| A | 2.0 (1.9) | 10 MB | 3.0x | +0.10 % |
| B | 30 ms, 1,200 s | 2 GB | never | 40 % |
"""


def test_every_benchmark_that_writes_is_run():
    told = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if '"--write"' in path.read_text() and path.stem != "all"
    }
    assert set(every.NAMES) == told
    # Faults are counted by their tests (`python -m tests.faults --write`).
    assert {table.result for table in TABLES.values()} - told == {"faults"}


def test_figures_of_a_table():
    found = every.figures_of(BEFORE)
    assert found[0, 1, 0] == every.Figure(2.0, "seconds", "A, 2.0 (1.9)", "seconds")
    assert found[0, 1, 1].value == 1.9
    assert found[0, 2, 0][:2] == (1e7, "bytes")
    assert found[0, 3, 0][:2] == (3.0, "x")
    assert found[1, 1, 0][:2] == (pytest.approx(0.03), "seconds")
    assert found[1, 1, 1][:2] == (1200.0, "seconds")
    assert (1, 3, 0) not in found
    assert found[1, 4, 0][:2] == (40.0, "%")
    assert every.figures_of("No table.") == {}


@pytest.mark.parametrize("marker", TABLES)
def test_every_table_has_figures_and_is_as_it_is(marker):
    markdown = TABLES[marker].made()
    assert every.figures_of(markdown) or not any(map(str.isdigit, markdown.split("\n\n")[0]))
    assert list(every.changes(markdown, markdown, same_machine=True)) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("2.0 (1.9)", "2.2 (1.9)", []),
        ("2.0 (1.9)", "1.0 (1.9)", []),
        ("2.0 (1.9)", "2.0 (2.3)", ["worse: A, 2.0 (2.3): seconds: 1.9 seconds -> 2.3 seconds"]),
        ("30 ms", "1 min", ["worse: B, 1 min, 1,200 s: seconds: 0.03 seconds -> 60 seconds"]),
        ("2 GB", "2.4 GB", ["worse: B, 30 ms, 1,200 s: size: 2e+09 bytes -> 2.4e+09 bytes"]),
        ("3.0x", "2.5x", ["another: A, 2.0 (1.9): how many times: 3x -> 2.5x"]),
        ("+0.10 %", "+0.90 %", []),
        ("40 %", "47 %", ["another: B, 30 ms, 1,200 s: end: 40% -> 47%"]),
        ("never", "2.0x", ["another table: 1 numbers are new in their places"]),
    ],
)
def test_what_is_told_of_a_change(old, new, told):
    assert old in BEFORE
    after = BEFORE.replace(old, new)
    assert list(every.changes(BEFORE, after, same_machine=True)) == told
    if "seconds:" in "".join(told):
        assert list(every.changes(BEFORE, after, same_machine=False)) == []


def test_results_of_the_commit():
    committed = every.committed("guard")
    assert committed is not None
    assert committed.keys() == json.loads((RESULTS / "guard.json").read_text()).keys()
    assert every.committed("there is none") is None


def test_it_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    path, ran, failing = tmp_path / "done.json", [], {"b"}

    def run(command, **_):
        name = command[-2].removeprefix("benchmarks.")
        assert command == [sys.executable, "-m", f"benchmarks.{name}", "--write"]
        ran.append(name)
        return SimpleNamespace(returncode=int(name in failing))

    monkeypatch.setattr(every, "commit", lambda: "one")
    monkeypatch.setattr(every, "compared", lambda name: [f"{name}: nothing"])
    monkeypatch.setattr(subprocess, "run", run)
    assert not every.run_all("abc", path, anew=False)
    assert ran == ["a", "b", "c"]
    assert "b: failed" in capsys.readouterr().out
    failing.clear()
    assert every.run_all("abc", path, anew=False)
    assert ran == ["a", "b", "c", "b"]
    assert "failed" not in capsys.readouterr().out
    # What was measured of another commit says nothing of this one.
    monkeypatch.setattr(every, "commit", lambda: "two")
    assert every.run_all("ab", path, anew=False)
    assert every.run_all("ab", path, anew=True)
    assert ran[4:] == ["a", "b", "a", "b"]
