"""A table of facts as HTML, for notebooks: nothing is loaded, and every text is escaped.

Colours are left to the page, so that it can be read on light and on dark ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

__all__ = ["CELL", "FRAME", "facts_table"]

FRAME = "border:1px solid #8888;border-radius:6px;padding:8px 12px;display:inline-block"
CELL = "text-align:{};padding:1px 12px 1px 0;background:none"


def facts_table(title: str, facts: Mapping[str, str]) -> str:
    """A framed table with a row for each fact."""
    cell = CELL.format("left")
    rows = "".join(
        f'<tr style="background:none"><th scope="row" style="{cell};font-weight:normal;opacity:.7">'
        f'{escape(name)}</th><td style="{cell};overflow-wrap:anywhere">{escape(text)}</td></tr>'
        for name, text in facts.items()
    )
    return (
        f'<div style="{FRAME};max-width:100%;box-sizing:border-box"><div><b>{escape(title)}</b>'
        f'</div><table style="border:none;margin:4px 0">{rows}</table></div>'
    )
