"""What pages of HTML are made of: escaped text, tables, pictures, and one style for light and dark.

A page is a fragment, which a notebook shows in a cell, or a document around it. Nothing is loaded
from anywhere, and there are no scripts. All rules of the style begin with ``.largek``, so that a
fragment changes nothing of the page that it stands in.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from largek_dask.driver.formatting import printable

__all__ = [
    "details",
    "document",
    "fragment",
    "heat_table",
    "pairs",
    "picture",
    "section",
    "table",
    "text",
]

MOST_TEXT = 400
"""Characters of a text of unknown length that are shown."""
MOST_NAME = 32
"""Characters of the name of a feature that are shown."""
MOST_Z, MOST_COLOUR = 3.0, 45
"""The z-score of the strongest colour, and that colour's percentage: text stays readable on it."""

STYLE = """
.largek{color-scheme:light dark;--paper:#fff;--panel:#f6f7f9;--ink:#1b2430;--quiet:#566170;
--rule:#dde2e8;--blue:#1f5fbf;--orange:#b4510a;--green:#17713a;--dots:#8a96a6;
--warn:#fff5dc;--warn-rule:#c98a00;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
padding:1px 0 24px;font-variant-numeric:tabular-nums}
@media (prefers-color-scheme:dark){.largek{--paper:#14181d;--panel:#1c2229;--ink:#e5e9ee;
--quiet:#a0abb8;--rule:#343c46;--blue:#82b4ff;--orange:#ffb171;--green:#71cf90;--dots:#6b7887;
--warn:#322914;--warn-rule:#e0aa3e}}
.largek *{box-sizing:border-box}
.largek .page{max-width:1080px;margin:0 auto;padding:0 20px}
.largek h1{font-size:26px;line-height:1.25;margin:28px 0 4px;font-weight:650;letter-spacing:-.01em}
.largek h2{font-size:18px;line-height:1.3;margin:0 0 4px;font-weight:650}
.largek h3{font-size:15px;margin:0 0 8px;font-weight:650}
.largek *+h3{margin-top:18px}
.largek p{margin:0 0 12px;max-width:72ch;overflow-wrap:anywhere}
.largek .quiet{color:var(--quiet)}
.largek section{border-top:1px solid var(--rule);margin-top:28px;padding-top:22px}
.largek .tiles{display:flex;flex-wrap:wrap;gap:10px;margin:18px 0 0;padding:0}
.largek .tiles div{background:var(--panel);border-radius:8px;padding:10px 14px;flex:1 1 150px}
.largek .tiles dt{color:var(--quiet);font-size:13px}
.largek .tiles dd{margin:0;font-size:20px;font-weight:600;white-space:nowrap;line-height:1.3}
.largek .notes{list-style:none;margin:18px 0 0;padding:0}
.largek .notes li{background:var(--warn);border-left:4px solid var(--warn-rule);
border-radius:0 6px 6px 0;padding:8px 14px;margin:0 0 8px;overflow-wrap:anywhere}
.largek .scroll{overflow-x:auto;margin:0 0 12px}
.largek table{border-collapse:collapse;border:0;font-size:14px;background:none;margin:0;
color:inherit}
.largek th,.largek td{padding:5px 18px 5px 0;text-align:right;vertical-align:top;
border:0;border-bottom:1px solid var(--rule);background:none;white-space:nowrap}
.largek tr,.largek tr:hover{background:none!important}
.largek thead th{color:var(--quiet);font-weight:500;font-size:13px}
.largek th.words,.largek td.words{text-align:left;white-space:normal;overflow-wrap:break-word;
min-width:8em}
.largek td small{color:var(--quiet);font-size:11px;display:inline-block;min-width:3.2em}
.largek td.heat{padding:5px 6px;background:color-mix(in srgb,var(--heat) var(--part),transparent)}
.largek td.above{--heat:var(--orange)}
.largek td.below{--heat:var(--blue)}
.largek tbody th{font-weight:500;text-align:left}
.largek table.pairs th{color:var(--quiet);font-weight:400;width:12em;min-width:8em;
white-space:normal;overflow-wrap:anywhere}
.largek table.pairs td{text-align:left;white-space:normal;overflow-wrap:anywhere}
.largek details{margin:8px 0 0}
.largek summary{cursor:pointer;color:var(--blue);font-size:14px;padding:4px 0}
.largek :focus-visible{outline:2px solid var(--blue);outline-offset:2px}
.largek figure{margin:14px 0 4px}
.largek .two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));
gap:8px 40px}
.largek .plot{position:relative;margin:0 10px 22px 58px}
.largek .plot svg{display:block;width:100%;height:100%;overflow:visible}
.largek .plot span{position:absolute;font-size:12px;color:var(--quiet);line-height:1;
white-space:nowrap}
.largek .plot .y{right:100%;transform:translate(-8px,-50%)}
.largek .plot .x{top:100%;transform:translate(-50%,7px)}
.largek .plot .mark{transform:translate(-100%,-130%);color:var(--ink)}
.largek .axis{font-size:12px;color:var(--quiet);margin:0 10px 6px 0}
.largek .axis.below{text-align:right;margin:0 10px 0 58px}
.largek .key{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px;margin:8px 0 0 58px;padding:0;
list-style:none}
.largek .key svg{width:26px;height:10px;margin-right:6px;display:inline-block;vertical-align:0}
.largek .line{fill:none;stroke:var(--blue);stroke-width:2;vector-effect:non-scaling-stroke;
stroke-linejoin:round;stroke-linecap:round}
.largek .line.part{stroke:var(--dots);stroke-width:1.6}
.largek .line.dot{stroke-width:8}
.largek .line.bound{stroke:var(--orange);stroke-dasharray:5 4}
.largek .line.n1{stroke:var(--orange);stroke-dasharray:7 4}
.largek .line.n2{stroke:var(--green);stroke-dasharray:2 4}
.largek .line.n3{stroke:var(--ink);stroke-width:1.2}
.largek .line.n4{stroke:var(--dots);stroke-dasharray:8 3 2 3}
.largek .line.n5{stroke:var(--warn-rule);stroke-width:3}
.largek .area{fill:var(--orange);fill-opacity:.22;stroke:none}
.largek .edge{fill:none;stroke:var(--orange);stroke-width:2;vector-effect:non-scaling-stroke}
.largek .grid{stroke:var(--rule);stroke-width:1;vector-effect:non-scaling-stroke}
.largek .event{stroke:var(--quiet);stroke-width:1;stroke-dasharray:1 4;
vector-effect:non-scaling-stroke}
.largek .mean{stroke:var(--ink);stroke-width:1;stroke-dasharray:4 4;
vector-effect:non-scaling-stroke}
.largek .rows{fill:none;stroke:var(--dots);stroke-width:3;stroke-linecap:round;stroke-opacity:.55;
vector-effect:non-scaling-stroke}
.largek .center{fill:var(--blue);fill-opacity:.3;stroke:var(--blue);stroke-width:1.3;
vector-effect:non-scaling-stroke}
.largek .number{fill:var(--ink);font-size:15px;text-anchor:middle;dominant-baseline:central;
pointer-events:none}
.largek .center:hover{fill-opacity:.65}
.largek .center.chosen{fill:var(--orange);stroke:var(--orange)}
.largek .plane{max-width:860px}
.largek .plane svg{display:block;width:100%;height:auto}
.largek .plane~.below{margin:4px 10px 0 0;max-width:860px}
.largek .frame{fill:none;stroke:var(--rule);stroke-width:1;vector-effect:non-scaling-stroke}
.largek .cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,324px),1fr));
gap:14px;margin-top:12px}
.largek .card{background:var(--panel);border-radius:8px;padding:14px 16px;min-width:0}
.largek .card .axis{margin:8px 0 4px}
.largek .card td,.largek .card th{padding-right:12px}
.largek .strip{display:flex;flex-wrap:wrap;gap:8px;margin:0;padding:0;list-style:none}
.largek .strip li{font-size:12px;width:52px;overflow-wrap:anywhere;color:var(--quiet);
text-align:center;line-height:1.35}
.largek img{display:block;width:52px;flex:none;height:auto;image-rendering:pixelated;
border-radius:4px;
outline:1px solid var(--rule);margin:0 0 2px}
.largek .lead{display:flex;gap:12px;align-items:flex-start}
.largek footer{color:var(--quiet);font-size:13px;margin-top:28px}
@media (max-width:480px){.largek .page{padding:0 14px}.largek h1{font-size:22px}
.largek .tiles div{flex-basis:40%}.largek .tiles dd{font-size:17px}
.largek table.pairs th{width:9em;min-width:6em}.largek th,.largek td{padding-right:12px}}
@media print{.largek section{break-inside:avoid}}
"""
"""The style of all pages: colours have names, and contrast of 4.5 and more on both papers."""


def text(value: object, most: int | None = None) -> str:
    """Text for HTML: escaped, without control characters, at most ``most`` of them."""
    found = printable(value)
    if most is not None and len(found) > most:
        found = f"{found[: most - 1]}…"
    return escape(found)


def fragment(body: str) -> str:
    """What a notebook shows: a style that concerns nothing else, and the body."""
    return f'<div class="largek"><style>{STYLE}</style><div class="page">{body}</div></div>'


def document(title: str, body: str, reload_seconds: float | None = None) -> str:
    """A whole page in one file, which a browser reloads after some seconds if they are given."""
    seconds = "" if reload_seconds is None else math.ceil(reload_seconds)
    reload = f'<meta http-equiv="refresh" content="{seconds}">' if seconds else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"{reload}<title>{text(title)}</title><style>body{{margin:0}}{STYLE}</style></head>"
        f'<body class="largek"><main class="page">{body}</main></body></html>\n'
    )


def section(title: str, *parts: str, lead: str = "") -> str:
    """A part of a page, with its heading and a sentence beneath."""
    told = f'<p class="quiet">{lead}</p>' if lead else ""
    return f"<section><h2>{text(title)}</h2>{told}{''.join(parts)}</section>"


def details(summary: str, body: str) -> str:
    """What is shown when it is asked for."""
    return f"<details><summary>{text(summary)}</summary>{body}</details>"


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, words: Iterable[str] = ()
) -> str:
    """A table with a head; columns named in ``words`` hold text, the others figures."""
    left = [name in set(words) for name in columns]

    def cells(values: Sequence[object], tag: str, scope: str = "") -> str:
        kinds = (' class="words"' if is_text else "" for is_text in left)
        return "".join(
            f"<{tag}{scope}{kind}>{text(value, MOST_TEXT)}</{tag}>"
            for value, kind in zip(values, kinds, strict=True)
        )

    head = cells(columns, "th", ' scope="col"')
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(", ".join(columns))}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def heat_table(
    corner: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[tuple[str, float]]]]
) -> str:
    """Return a table whose cells are coloured by their z-scores: orange above 0, blue below.

    Parameters
    ----------
    corner : str
        Heading of the names of the rows.
    columns : sequence of str
    rows : iterable of (str, sequence of (str, float))
        A row's name, and the text and z-score of each of its cells.
    """

    def cell(value: str, z: float) -> str:
        part = round(min(abs(z), MOST_Z) / MOST_Z * MOST_COLOUR)
        side = "above" if z > 0 else "below"
        return (
            f'<td class="heat {side}" style="--part:{part}%">{text(value)} '
            f"<small>{text(f'{z:+.1f}')}</small></td>"
        )

    head = "".join(f'<th scope="col">{text(name, MOST_TEXT)}</th>' for name in (corner, *columns))
    body = "".join(
        f'<tr><th scope="row">{text(name, MOST_NAME)}</th>'
        f"{''.join(cell(*found) for found in cells)}</tr>"
        for name, cells in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(corner)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def pairs(facts: Mapping[str, object]) -> str:
    """A table of names and values."""
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th><td>{text(value, MOST_TEXT)}</td></tr>'
        for name, value in facts.items()
    )
    return f'<table class="pairs"><tbody>{rows}</tbody></table>'


def picture(pixels: NDArray[np.uint8], words: str) -> str:
    """A picture (h, w), (h, w, 1) or (h, w, 3) inside the page, and what it is of."""
    height, width = pixels.shape[:2]
    data = base64.b64encode(_png(pixels)).decode()
    return (
        f'<img src="data:image/png;base64,{data}" width="{width}" height="{height}" '
        f'alt="{text(words)}">'
    )


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG file of grey or coloured pixels, 8 bits each."""
    height, width = pixels.shape[:2]
    is_grey = pixels.ndim == 2 or pixels.shape[2] == 1
    lines = np.ascontiguousarray(pixels).reshape(height, -1)
    # Every line begins with the number of its filter: none.
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if is_grey else 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(filtered.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
