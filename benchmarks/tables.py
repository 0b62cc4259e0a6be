"""Tables between markers in a markdown page."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["read_table", "write_table"]


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name}:begin -->\n)(.*?)(<!-- {name}:end -->)", re.DOTALL)


def read_table(page: Path, name: str) -> str:
    """The markdown between ``<!-- name:begin -->`` and ``<!-- name:end -->``."""
    found = _pattern(name).search(page.read_text())
    if found is None:
        raise ValueError(f"{page.name} has no markers for a table {name!r}")
    return found[2]


def write_table(page: Path, name: str, markdown: str) -> None:
    """Replace what stands between the markers."""
    read_table(page, name)
    text = _pattern(name).sub(lambda m: f"{m[1]}{markdown.strip()}\n{m[3]}", page.read_text())
    page.write_text(text)
