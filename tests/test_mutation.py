"""What ``python -m tests.mutation`` breaks, and where it looks for tests of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation import choose, own_files

SOURCE = """
def f(x):
    if x > 1:
        return x + 2
    return -x
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree of two modules, one of them in a sub-folder."""
    for name in ("flat.py", "parts/__init__.py", "parts/deep.py"):
        path = tmp_path / "largek_dask/algorithms" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if "init" in name else SOURCE)
    for name in ("test_flat.py", "test_parts_deep.py", "parts/test_deep.py", "parts/test_other.py"):
        path = tmp_path / "tests/algorithms" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return tmp_path


def test_lines_of_sub_folders_are_drawn(root: Path) -> None:
    chosen = choose(root, 7, 100, ("algorithms",))
    expected = {
        (f"largek_dask/algorithms/{name}.py", line)
        for name in ("flat", "parts/deep")
        for line in (3, 4, 5)
    }
    assert {(broken.path, broken.line) for broken in chosen} == expected
    assert len(chosen) == len(expected)
    assert choose(root, 7, 100, ("algorithms",)) == chosen


def test_tests_of_sub_folders_are_found(root: Path) -> None:
    found = own_files("largek_dask/algorithms/parts/deep.py", root)
    assert found == ["tests/algorithms/parts/test_deep.py", "tests/algorithms/test_parts_deep.py"]
    assert own_files("largek_dask/algorithms/flat.py", root) == ["tests/algorithms/test_flat.py"]


def test_a_break_is_of_one_place(root: Path) -> None:
    (broken,) = choose(root, 7, 1, ("algorithms",))
    before = (root / broken.path).read_text()
    broken.apply(root)
    after = (root / broken.path).read_text()
    differ = [
        number
        for number, pair in enumerate(zip(before.split("\n"), after.split("\n"), strict=True), 1)
        if len(set(pair)) > 1
    ]
    assert differ == [broken.line]
