"""Tables for a terminal of any width: columns that do not fit are left out, by name.

A path that is folded into a narrow column is read by nobody. So a table takes the width that there
is: long texts are shortened in the middle, then the columns that matter least are left out, and a
line below says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Column", "Fitting", "shortened"]

MORE = "a wider terminal shows them, and --json"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    rank: int = 0
    """Rank among those to leave out: the highest goes first, and 0 stays in any case."""
    least: int | None = None
    """Width to which its texts may be shortened in the middle; None: they are shown whole."""
    right: bool = False
    """Whether it is set flush right, as figures are."""


class Fitting:
    """A table that fits the terminal; rich prints it.

    Parameters
    ----------
    columns : sequence of Column
    rows : sequence of sequence of str
        Texts as they are shown: no markup is looked for.
    styles : sequence of mapping, optional
        For each row, rich's style of a column by name.
    more : str
        Where to find what is left out.
    gap : int
        Spaces between two columns, at least 1.
    ruled : bool
        Whether a line is drawn below the names of the columns.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[str]],
        *,
        styles: Sequence[dict[str, str]] | None = None,
        more: str = MORE,
        gap: int = 2,
        ruled: bool = True,
    ) -> None:
        self.columns = columns
        self.rows = rows
        self.styles = styles or [{}] * len(rows)
        self.more = more
        self.gap = gap
        self.ruled = ruled

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """The table, and the names of columns that are left out."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        widths = self.widths(options.max_width)
        table = Table(
            box=SIMPLE_HEAD if self.ruled else None,
            show_edge=False,
            pad_edge=False,
            # A box has a blank of its own between columns.
            padding=(0, self.gap - self.ruled, 0, 0),
            header_style="cyan",
        )
        shown = [i for i, column in enumerate(self.columns) if column.name in widths]
        for i in shown:
            column = self.columns[i]
            justify: Any = "right" if column.right else "left"
            table.add_column(column.name, justify=justify, no_wrap=True)
        for row, style in zip(self.rows, self.styles, strict=True):
            names = [self.columns[i].name for i in shown]
            table.add_row(
                *(
                    Text(shortened(row[i], widths[name]), style.get(name, ""))
                    for i, name in zip(shown, names, strict=True)
                )
            )
        yield table
        absent = [column.name for column in self.columns if column.name not in widths]
        if absent:
            yield Text(f"Left out: {', '.join(absent)} ({self.more}).", "dim")

    def widths(self, most: int) -> dict[str, int]:
        """Widths of the columns that are shown within as many characters, by name."""
        from rich.cells import cell_len

        full = {
            column.name: max(map(cell_len, (column.name, *(row[i] for row in self.rows))))
            for i, column in enumerate(self.columns)
        }
        shown = list(self.columns)
        while True:
            least = sum(
                full[c.name] if c.least is None else min(full[c.name], max(c.least, len(c.name)))
                for c in shown
            )
            room = most - least - self.gap * (len(shown) - 1)
            leaving = max(shown, key=lambda column: column.rank)
            if room >= 0 or leaving.rank == 0:
                break
            shown.remove(leaving)
        found = {}
        for column in shown:
            found[column.name] = full[column.name]
            if column.least is not None:
                kept = min(full[column.name], max(column.least, len(column.name)))
                found[column.name] = min(full[column.name], kept + max(room, 0))
                room -= found[column.name] - kept
        return found


def shortened(text: str, width: int) -> str:
    """A text with its middle left out where it is wider than this many characters.

    Examples
    --------
    >>> shortened("/data/projects/run1", 12)
    '/da…cts/run1'
    """
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    head = set_cell_size(text, (width - 1) // 3)
    room = width - 1 - cell_len(head)
    tail = ""
    for letter in reversed(text):
        if cell_len(letter + tail) > room:
            break
        tail = letter + tail
    return f"{head}…{tail}"
