"""HTML table of names and values for notebooks; every text is escaped.

The table sets no colours, so it is readable on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

FRAME = "border:1px solid #8888;border-radius:6px;padding:8px 12px;display:inline-block"
CELL = "text-align:{};padding:1px 12px 1px 0;background:none"


def html_table(title: str, values: Mapping[str, str]) -> str:
    """Return a framed table with one row per value."""
    cell = CELL.format("left")
    rows = "".join(
        f'<tr style="background:none"><th scope="row" style="{cell};font-weight:normal;opacity:.7">'
        f'{escape(name)}</th><td style="{cell};overflow-wrap:anywhere">{escape(text)}</td></tr>'
        for name, text in values.items()
    )
    return (
        f'<div style="{FRAME};max-width:100%;box-sizing:border-box"><div><b>{escape(title)}</b>'
        f'</div><table style="border:none;margin:4px 0">{rows}</table></div>'
    )
