"""Tables and figures in the documents: where each stands, and which result it is made from.

    python -m benchmarks.tables

writes all of them anew from the committed results. It measures nothing: it is for a change of
wording, and each benchmark does the same for its own after measuring.
"""

from __future__ import annotations

import importlib
import json
import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import RESULTS, ROOT

__all__ = [
    "PAGES",
    "TABLES",
    "Table",
    "put_table",
    "read_quotes",
    "read_table",
    "wrapped",
    "write_tables",
]

README, DESIGN, PAGE = "README.md", "largek_dask/DESIGN.md", "benchmarks/RESULTS.md"
PAGES = (README, DESIGN, PAGE)
"""The documents with tables or figures that a command makes."""
WIDTH = 100


class Table(NamedTuple):
    """Where a table stands, the benchmark whose result it shows, and the function that makes it."""

    page: str
    result: str
    make: str = "table"
    module: str | None = None

    def made(self, result: dict[str, Any] | None = None) -> str:
        """The markdown, of the committed result where none is given."""
        if result is None:
            result = json.loads((RESULTS / f"{self.result}.json").read_text())
        module = importlib.import_module(f"benchmarks.{self.module or self.result}")
        return wrapped(getattr(module, self.make)(result))


TABLES = {
    "default": Table(README, "auto", "short_table"),
    "lloyd": Table(README, "lloyd"),
    "auto": Table(PAGE, "auto"),
    "auto_behind": Table(PAGE, "auto", "behind_table"),
    "auto_parts": Table(PAGE, "auto_parts"),
    "auto_scale": Table(PAGE, "auto_scale"),
    "cores": Table(PAGE, "cores"),
    "clusters": Table(PAGE, "clusters"),
    "large": Table(PAGE, "large"),
    "large_papers": Table(PAGE, "large", "papers_table"),
    "directions": Table(PAGE, "directions"),
    "first": Table(PAGE, "first"),
    "elbow": Table(PAGE, "elbow"),
    "far": Table(PAGE, "far"),
    "kernels": Table(PAGE, "kernels"),
    "labels": Table(PAGE, "labels"),
    "labels_pruned": Table(PAGE, "labels_pruned"),
    "outlier": Table(PAGE, "outlier"),
    "bounds": Table(PAGE, "nmbatch", "bounds_table"),
    "nmbatch": Table(PAGE, "nmbatch"),
    "rivals": Table(PAGE, "nmbatch", "rivals_table"),
    "rivals_ahead": Table(PAGE, "nmbatch", "ahead_table"),
    "figures": Table(PAGE, "figures"),
    "balance": Table(PAGE, "balance"),
    "workers": Table(PAGE, "workers"),
    "sparse": Table(PAGE, "sparse"),
    "overhead": Table(PAGE, "overhead"),
    "many": Table(PAGE, "many"),
    "many_simulated": Table(PAGE, "many", "simulated_table"),
    "start": Table(PAGE, "start"),
    "sizes": Table(README, "sizes"),
    "service": Table(PAGE, "service"),
    "observe": Table(PAGE, "observe"),
    "sizing": Table(PAGE, "sizing"),
    "sizing_storage": Table(PAGE, "sizing", "storage_table"),
    "sizing_trust": Table(PAGE, "sizing", "trust_table"),
    "faults": Table(PAGE, "faults"),
    "durability": Table(PAGE, "durability"),
    "guard": Table(PAGE, "guard"),
    "guard_counts": Table(PAGE, "guard", "counts_table"),
    "mixtures_sets": Table(PAGE, "vcgmm", "of_sets", "vcgmm_tables"),
    "mixtures_sklearn": Table(PAGE, "vcgmm", "of_sklearn", "vcgmm_tables"),
    "mixtures_table4": Table(PAGE, "vcgmm", "of_table4", "vcgmm_tables"),
    "mixtures_sublinear": Table(PAGE, "vcgmm", "of_sublinear", "vcgmm_tables"),
    "mixtures_when": Table(PAGE, "vcgmm", "of_when", "vcgmm_tables"),
    "mixtures_parts": Table(PAGE, "vcgmm", "of_parts", "vcgmm_tables"),
    "mixtures_coresets": Table(PAGE, "vcgmm", "of_coresets", "vcgmm_tables"),
    "mixtures_price": Table(PAGE, "vcgmm", "of_price", "vcgmm_tables"),
    "mixtures_scale": Table(PAGE, "vcgmm_scale"),
    "vrkm_table": Table(PAGE, "vrkm", "of_table", "vrkm_tables"),
    "vrkm_sparse": Table(PAGE, "vrkm", "of_sparse", "vrkm_tables"),
    "vrkm_auto": Table(PAGE, "vrkm", "of_auto", "vrkm_tables"),
    "vrkm_panels": Table(PAGE, "vrkm", "of_panels", "vrkm_tables"),
    "vrkm_storage": Table(PAGE, "vrkm", "of_storage", "vrkm_tables"),
    "vrkm_workers": Table(PAGE, "vrkm", "of_workers", "vrkm_tables"),
    "vrkm_published": Table(PAGE, "vrkm", "of_published", "vrkm_tables"),
    "vrkm_epoch": Table(PAGE, "vrkm", "of_epochs", "vrkm_tables"),
    "vrkm_eta": Table(PAGE, "vrkm", "of_etas", "vrkm_tables"),
    "vrkm_svrg": Table(PAGE, "vrkm", "of_svrgs", "vrkm_tables"),
    "vrkm_scores": Table(PAGE, "vrkm", "of_scores", "vrkm_tables"),
    "dcd_short": Table(README, "dcd", "of_short", "dcd_tables"),
    "dcd": Table(PAGE, "dcd", "of_summary", "dcd_tables"),
    "dcd_tabled": Table(PAGE, "dcd", "of_tabled", "dcd_tables"),
    "dcd_each": Table(PAGE, "dcd", "of_each", "dcd_tables"),
    "dcd_lower": Table(PAGE, "dcd", "of_lower", "dcd_tables"),
    "dcd_stages": Table(PAGE, "dcd", "of_stages", "dcd_tables"),
    "dcd_paper": Table(PAGE, "dcd", "of_paper", "dcd_tables"),
    "dcd_hundred": Table(PAGE, "dcd", "of_hundred", "dcd_tables"),
    "dcd_auto": Table(PAGE, "dcd", "of_auto", "dcd_tables"),
    "dcd_generated": Table(PAGE, "dcd", "of_generated", "dcd_tables"),
    "dcd_stored": Table(PAGE, "dcd", "of_stored", "dcd_tables"),
    "dcd_workers": Table(PAGE, "dcd", "of_workers", "dcd_tables"),
}
"""All tables by the name in their markers."""


def wrapped(markdown: str) -> str:
    """Lines of text no longer than the page is wide; lines of tables as they are.

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


def _table(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name}:begin -->\n)(.*?)(<!-- {name}:end -->)", re.DOTALL)


QUOTE = re.compile(r"(<!-- quote ([\w-]+) -->)(.*?)(<!-- end -->)", re.DOTALL)


def read_table(page: Path, name: str) -> str:
    """The markdown between ``<!-- name:begin -->`` and ``<!-- name:end -->``."""
    found = _table(name).search(page.read_text())
    if found is None:
        raise ValueError(f"{page.name} has no markers for a table {name!r}")
    return found[2].strip()


def put_table(page: Path, name: str, markdown: str) -> None:
    """Replace what stands between the markers."""
    read_table(page, name)
    page.write_text(_table(name).sub(lambda m: f"{m[1]}{markdown}\n{m[3]}", page.read_text()))


def read_quotes(page: Path) -> list[tuple[str, str]]:
    """Name and text of every ``<!-- quote name -->text<!-- end -->``."""
    return [(found[2], found[3]) for found in QUOTE.finditer(page.read_text())]


def write_tables(name: str, result: dict[str, Any]) -> None:
    """Put a result into the documents: all tables and figures that are made from it."""
    from benchmarks.quotes import QUOTES  # benchmarks that it asks import this module

    for marker, table in TABLES.items():
        if table.result == name:
            put_table(ROOT / table.page, marker, table.made(result))

    def quoted(found: re.Match[str]) -> str:
        source, make = QUOTES[found[2]]
        return f"{found[1]}{make(result)}{found[4]}" if source == name else found[0]

    for page in (ROOT / path for path in PAGES):
        page.write_text(QUOTE.sub(quoted, page.read_text()))


def main() -> None:
    """Write everything anew from the committed results."""
    from benchmarks.quotes import QUOTES

    for name in dict.fromkeys(
        [table.result for table in TABLES.values()] + [source for source, _ in QUOTES.values()]
    ):
        write_tables(name, json.loads((RESULTS / f"{name}.json").read_text()))


if __name__ == "__main__":
    main()
