"""Tables for a terminal of any width: columns that do not fit are left out, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["TextTable", "shortened"]


class TextTable:
    """A table that fits the terminal; rich prints it.

    Long texts are shortened in the middle, then the columns that matter least are left out, and a
    line below names them.

    Parameters
    ----------
    columns : mapping
        Names of columns and their ranks: the highest is left out first, and 0 stays.
    rows : sequence of sequence of str
        Texts as they are shown, without markup.
    notes : sequence of str
        Lines below the table.
    right : sequence of str
        Columns set flush right.
    least : mapping, optional
        Columns whose texts may be shortened, and to which width.
    styles : sequence of mapping, optional
        For each row, rich's style of a column by name.
    gap : int
        Spaces between two columns, at least 1.
    """

    def __init__(
        self,
        columns: Mapping[str, int],
        rows: Sequence[Sequence[str]],
        notes: Sequence[str] = (),
        *,
        right: Sequence[str] = (),
        least: Mapping[str, int] | None = None,
        styles: Sequence[Mapping[str, str]] | None = None,
        gap: int = 2,
    ) -> None:
        self.columns, self.rows, self.notes = columns, rows, notes
        self.right, self.least, self.styles = right, least or {}, styles
        self.gap = gap

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, the names of columns that are left out, and the notes."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        widths = self._widths(options.max_width)
        table = Table(
            box=SIMPLE_HEAD, show_edge=False, pad_edge=False,
            # A box has a blank of its own between columns.
            padding=(0, self.gap - 1, 0, 0), header_style="cyan",
        )  # fmt: skip
        for name in widths:
            table.add_column(name, justify="right" if name in self.right else "left", no_wrap=True)
        for row, style in zip(self.rows, self.styles or [{}] * len(self.rows), strict=True):
            texts = dict(zip(self.columns, row, strict=True))
            table.add_row(
                *(Text(shortened(texts[name], width), style.get(name, ""))
                  for name, width in widths.items())
            )  # fmt: skip
        yield table
        if absent := [name for name in self.columns if name not in widths]:
            where = "a wider terminal shows them, and --json"
            yield Text(f"Left out: {', '.join(absent)} ({where}).", "dim")
        yield from map(Text, self.notes)

    def _widths(self, most: int) -> dict[str, int]:
        """Return the widths of the columns that are shown within ``most`` characters."""
        from rich.cells import cell_len

        texts = zip(self.columns, *self.rows, strict=True)
        full = {name: max(map(cell_len, (name, *cells))) for name, *cells in texts}
        found = {name: min(width, max(self.least.get(name, width), len(name)))
                 for name, width in full.items()}  # fmt: skip
        while (room := most - sum(found.values()) - self.gap * (len(found) - 1)) < 0:
            last = max(found, key=lambda name: self.columns[name])
            if self.columns[last] == 0:
                break
            del found[last]
        for name, width in found.items():
            found[name] += min(full[name] - width, max(room, 0))
            room -= found[name] - width
        return found


def shortened(text: str, width: int) -> str:
    """Return a text with its middle left out if it is wider than this many characters.

    Examples
    --------
    >>> shortened("/data/projects/run1", 12)
    '/da…cts/run1'
    """
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    head = set_cell_size(text, (width - 1) // 3)
    tail = text
    while cell_len(head) + 1 + cell_len(tail) > width:
        tail = tail[1:]
    return f"{head}…{tail}"
