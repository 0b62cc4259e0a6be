"""Tables and figures in the documents, made from the committed results.

    python -m benchmarks.tables

writes all of them anew, and measures nothing: it is for a change of wording. A benchmark with
``--write`` does the same for its own result.
"""

from __future__ import annotations

import importlib
import json
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import RESULTS, ROOT, save

README, DESIGN, SITE = "README.md", "largek_dask/DESIGN.md", "docs/results"
PAPERS = "docs/explanation/papers.md"
PAGES = (
    README,
    DESIGN,
    PAPERS,
    "docs/howto/size.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / SITE).glob("*.md")),
)
"""Documents with tables or figures that a command makes."""
WIDTH = 118


class Table(NamedTuple):
    """A table: its page, the benchmark whose result it shows, and the function that makes it."""

    page: str
    result: str
    make: str = "table"
    module: str | None = None

    def made(self, result: dict[str, Any] | None = None) -> str:
        """Markdown of a result, by default the committed one."""
        if result is None:
            result = json.loads((RESULTS / f"{self.result}.json").read_text())
        module = importlib.import_module(f"benchmarks.{self.module or self.result}")
        return wrapped(getattr(module, self.make)(result))


def _on(page: str) -> str:
    return f"{SITE}/{page}.md"


TABLES = {
    "default": Table(README, "auto", "short_table"),
    "lloyd": Table(README, "lloyd"),
    "dcd_short": Table(README, "dcd", "of_short", "dcd_tables"),
    "auto_behind": Table(_on("default"), "auto", "behind_table"),
    "auto_parts": Table(_on("default"), "auto_parts"),
    "directions": Table(_on("default"), "directions"),
    "far": Table(_on("default"), "far"),
    "kernels": Table(_on("exact"), "kernels"),
    "prefix": Table(_on("exact"), "prefix"),
    "bounds": Table(_on("exact"), "nmbatch", "bounds_table"),
    "nmbatch": Table(_on("batches"), "nmbatch"),
    "incremental_table": Table(_on("batches"), "incremental", "of_table"),
    "elbow": Table(_on("k"), "elbow"),
    "mixtures_sets": Table(_on("mixtures"), "vcgmm", "of_sets", "vcgmm_tables"),
    "mixtures_when": Table(_on("mixtures"), "vcgmm", "of_when", "vcgmm_tables"),
    "mixtures_sublinear": Table(_on("mixtures"), "vcgmm", "of_sublinear", "vcgmm_tables"),
    "mixtures_parts": Table(_on("mixtures"), "vcgmm", "of_parts", "vcgmm_tables"),
    "papers_nmbatch": Table(PAPERS, "papers", "of_nmbatch", "papers_tables"),
    "papers_vrkm": Table(PAPERS, "papers", "of_vrkm", "papers_tables"),
    "papers_vcgmm": Table(PAPERS, "papers", "of_vcgmm", "papers_tables"),
    "papers_dcd": Table(PAPERS, "papers", "of_dcd", "papers_tables"),
    "sparse": Table(_on("sparse"), "sparse"),
    "cores": Table(_on("scale"), "cores"),
    "auto_scale": Table(_on("scale"), "auto_scale"),
    "clusters": Table(_on("scale"), "clusters"),
    "overhead": Table(_on("scale"), "overhead"),
    "many": Table(_on("scale"), "many"),
    "large": Table(_on("service"), "large"),
    "service": Table(_on("service"), "service"),
    "observe": Table(_on("service"), "observe"),
    "faults": Table(_on("service"), "faults"),
    "sizing": Table(_on("sizing"), "sizing"),
    "sizing_storage": Table(_on("sizing"), "sizing", "storage_table"),
    "sizing_trust": Table(_on("sizing"), "sizing", "trust_table"),
    "start": Table(_on("start"), "start"),
    "guard": Table(_on("start"), "guard"),
    "guard_counts": Table(_on("start"), "guard", "counts_table"),
}
"""All tables by the name in their markers."""


# --- markdown -------------------------------------------------------------------------------------


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a markdown table."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def against(value: float, aim: float, form: str, *, least: bool) -> str:
    """A figure and its aim; bold if it misses it."""
    held = value >= aim if least else value <= aim
    text, sign = format(value, form), "≥" if least else "≤"
    return f"{text if held else f'**{text}**'} ({sign} {aim:g})"


def wrapped(markdown: str) -> str:
    """Wrap lines of text at the width of a page; lines of tables stay as they are.

    A line is not broken within code, nor before what would begin a list there.
    """
    lines = []
    for line in markdown.strip().splitlines():
        if line.startswith("|") or len(line) <= WIDTH:
            lines.append(line)
            continue
        held = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), line)
        held = re.sub(r" (?=(?:[-+*#>|]+|\d+[.)]) )", "\0", held)
        text = textwrap.wrap(held, WIDTH, break_long_words=False, break_on_hyphens=False)
        lines += [part.replace("\0", " ") for part in text]
    return "\n".join(lines)


# --- documents ------------------------------------------------------------------------------------


def _table(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name}:begin -->\n)(.*?)(<!-- {name}:end -->)", re.DOTALL)


QUOTE = re.compile(r"(<!-- quote ([\w-]+) -->)(.*?)(<!-- end -->)", re.DOTALL)


def read_table(page: Path, name: str) -> str:
    """Markdown between ``<!-- name:begin -->`` and ``<!-- name:end -->``."""
    found = _table(name).search(page.read_text())
    if found is None:
        raise ValueError(f"{page.name} has no markers for a table {name!r}")
    return found[2].strip()


def put_table(page: Path, name: str, markdown: str) -> None:
    """Replace the markdown between the markers."""
    read_table(page, name)
    page.write_text(_table(name).sub(lambda m: f"{m[1]}{markdown}\n{m[3]}", page.read_text()))


def read_quotes(page: Path) -> list[tuple[str, str]]:
    """Name and text of every ``<!-- quote name -->text<!-- end -->``."""
    return [(found[2], found[3]) for found in QUOTE.finditer(page.read_text())]


def write_tables(name: str, result: dict[str, Any]) -> None:
    """Write all tables and figures that are made from a result into the documents."""
    from benchmarks.quotes import QUOTES  # it imports benchmarks, which import this module

    for marker, table in TABLES.items():
        if table.result == name:
            put_table(ROOT / table.page, marker, table.made(result))

    def quoted(found: re.Match[str]) -> str:
        source, make = QUOTES[found[2]]
        return f"{found[1]}{make(result)}{found[4]}" if source == name else found[0]

    for page in (ROOT / path for path in PAGES):
        page.write_text(QUOTE.sub(quoted, page.read_text()))


def publish(name: str, result: dict[str, Any], *, write: bool, indent: int | None = None) -> None:
    """Print the tables of a result; save it and write them into the documents if asked to."""
    for table in TABLES.values():
        if table.result == name:
            print(table.made(result), end="\n\n", flush=True)
    if write:
        print(save(name, result, indent))
        write_tables(name, result)


def main() -> None:
    """Write everything anew from the committed results."""
    from benchmarks.quotes import QUOTES

    for name in dict.fromkeys(
        [table.result for table in TABLES.values()] + [source for source, _ in QUOTES.values()]
    ):
        write_tables(name, json.loads((RESULTS / f"{name}.json").read_text()))


if __name__ == "__main__":
    main()
