"""Tables that fit the terminal, whatever its width."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from rich.console import Console

from largek_dask.plots.tables import TextTable, shortened

COLUMNS = {"job": 0, "name": 1, "steps": 2, "output": 3}
ROWS = [
    ("lk-1", "first", "12", "/data/somebody/runs/first"),
    ("lk-22", "the second one", "1,234", "[red]/data/runs"),
]


LEAST = {"name": 6, "output": 10}


def printed(width: int, **options: int) -> list[str]:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(TextTable(COLUMNS, ROWS, right=["steps"], least=LEAST, **options))
    return captured.get().splitlines()


@pytest.mark.parametrize("options", [{}, {"gap": 1}])
@pytest.mark.parametrize("width", [8, 20, 31, 32, 54, 90])
def test_no_line_is_wider_than_the_terminal(width: int, options: dict[str, int]) -> None:
    lines = printed(width, **options)
    assert max(map(cell_len, lines)) <= width
    # Every row has one line, and the first column is whole.
    assert [sum(line.startswith(job) for line in lines) for job in ("lk-1 ", "lk-22")] == [1, 1]
    _, _, left_out = " ".join(line.strip() for line in lines[3:]).partition("Left out: ")
    for column in COLUMNS:
        assert (column in lines[0]) != (column in left_out.split(" (")[0]), lines


def test_all_is_shown_where_there_is_room() -> None:
    lines = printed(55)
    assert [text for row in ROWS for text in row if text not in "\n".join(lines)] == []
    # The same columns, with the name and the path shortened, and no more than needed.
    assert "…" not in "\n".join(lines)
    assert sum(line.count("…") for line in printed(54)) == 1
    assert "the second one" in "\n".join(printed(54))
    assert sum(line.count("…") for line in printed(32)) == 3
    assert "Left out" not in "\n".join(printed(55) + printed(32))
    assert "Left out: output" in "\n".join(printed(31))


def test_columns_are_left_out_by_rank() -> None:
    def absent(width: int) -> str:
        told = " ".join(line.strip() for line in printed(width))
        return told.split("Left out: ")[1].split(" (")[0] if "Left out" in told else ""

    seen = list(dict.fromkeys(absent(width) for width in range(60, 7, -1)))
    assert seen == ["", "output", "steps, output", "name, steps, output"]


def test_a_path_keeps_its_end() -> None:
    path = "/data/projects/somebody/run1"
    assert shortened(path, len(path)) == path
    assert shortened(path, 12) == "/da…ody/run1"
    for width in range(1, len(path)):
        found = shortened(path, width)
        assert cell_len(found) == width
        assert found.count("…") == 1
        head, tail = found.split("…")
        assert path.startswith(head)
        assert path.endswith(tail)
    wide = "資料/計算/結果"
    assert all(cell_len(shortened(wide, width)) <= width for width in range(1, 14))
