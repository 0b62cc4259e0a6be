"""Make the tables in the documents from the committed results.

    python -m benchmarks.tables

This command rewrites all tables without measuring anything, for example after a change of wording.
A benchmark with ``--write`` rewrites its own tables.
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

README, SITE = "README.md", "docs/results"
PAPERS = "docs/explanation/papers.md"
WIDTH = 118


class Table(NamedTuple):
    """Table in a document: its page, its result, and the function that writes it."""

    page: str
    result: str
    make: str = "table"
    module: str | None = None

    def made(self, result: dict[str, Any] | None = None) -> str:
        """Return the markdown of a result; the default is the committed result."""
        if result is None:
            result = json.loads((RESULTS / f"{self.result}.json").read_text())
        module = importlib.import_module(f"benchmarks.{self.module or self.result}")
        return wrapped(getattr(module, self.make)(result))


def _on(page: str) -> str:
    return f"{SITE}/{page}.md"


TABLES = {
    "peers": Table(README, "auto_threads", "readme_table", "auto"),
    "default": Table(_on("default"), "auto", "full_table"),
    "auto_behind": Table(_on("default"), "auto", "behind_table"),
    "auto_parts": Table(_on("default"), "auto_parts"),
    "directions": Table(_on("default"), "directions"),
    "embeddings": Table(_on("default"), "embeddings"),
    "embeddings_threads": Table(_on("default"), "embeddings_threads", "table", "embeddings"),
    "embeddings_short": Table(README, "embeddings", "readme_table"),
    "far": Table(_on("default"), "far"),
    "lloyd": Table(_on("exact"), "lloyd"),
    "kernels": Table(_on("exact"), "kernels"),
    "prefix": Table(_on("exact"), "prefix"),
    "nmbatch": Table(_on("batches"), "nmbatch"),
    "incremental_table": Table(_on("batches"), "incremental", "of_table"),
    "dcd_short": Table(_on("k"), "dcd", "of_short", "dcd_tables"),
    "elbow": Table(_on("k"), "elbow"),
    "duplicates_recall": Table(_on("duplicates"), "duplicates", "recall_table"),
    "duplicates_cost": Table(_on("duplicates"), "duplicates", "cost_table"),
    "mixtures_sets": Table(_on("mixtures"), "vcgmm", "of_sets", "vcgmm_tables"),
    "mixtures_when": Table(_on("mixtures"), "vcgmm", "of_when", "vcgmm_tables"),
    "mixtures_sublinear": Table(_on("mixtures"), "vcgmm", "of_sublinear", "vcgmm_tables"),
    "mixtures_parts": Table(_on("mixtures"), "vcgmm", "of_parts", "vcgmm_tables"),
    "papers_nmbatch": Table(PAPERS, "papers", "of_nmbatch", "papers_tables"),
    "papers_vrkm": Table(PAPERS, "papers", "of_vrkm", "papers_tables"),
    "papers_vcgmm": Table(PAPERS, "papers", "of_vcgmm", "papers_tables"),
    "papers_dcd": Table(PAPERS, "papers", "of_dcd", "papers_tables"),
    "sparse": Table(_on("sparse"), "sparse"),
    "indexes": Table(_on("indexes"), "indexes"),
    "formats": Table("docs/howto/data.md", "formats"),
    "cores": Table(_on("scale"), "cores"),
    "cores_worst": Table(_on("scale"), "cores", "worst_table"),
    "span_threads": Table(_on("scale"), "span", "of_threads"),
    "span_stages": Table(_on("scale"), "span", "of_stages"),
    "span_workers": Table(_on("scale"), "span", "of_workers"),
    "span_driver": Table(_on("scale"), "span", "of_driver"),
    "span_held_out": Table(_on("scale"), "span", "of_held_out"),
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
"""All tables, by the name in their markers."""
PAGES = tuple(dict.fromkeys(table.page for table in TABLES.values()))
"""Documents with generated tables."""


# --- markdown -------------------------------------------------------------------------------------


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a markdown table."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def against(value: float, aim: float, form: str, *, least: bool) -> str:
    """Format a value and its target, in bold if the value misses the target."""
    held = value >= aim if least else value <= aim
    text, sign = format(value, form), "≥" if least else "≤"
    return f"{text if held else f'**{text}**'} ({sign} {aim:g})"


def wrapped(markdown: str) -> str:
    """Wrap lines of text at the width of a page, but not lines of tables.

    Lines are not broken within code, or before a word that would begin a list.
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


def read_table(page: Path, name: str) -> str:
    """Return the markdown between ``<!-- name:begin -->`` and ``<!-- name:end -->``."""
    found = _table(name).search(page.read_text())
    if found is None:
        raise ValueError(f"{page.name} has no markers for a table {name!r}")
    return found[2].strip()


def put_table(page: Path, name: str, markdown: str) -> None:
    """Replace the markdown between the markers."""
    read_table(page, name)
    page.write_text(_table(name).sub(lambda m: f"{m[1]}{markdown}\n{m[3]}", page.read_text()))


def write_tables(name: str, result: dict[str, Any]) -> None:
    """Write all tables of a result into the documents."""
    for marker, table in TABLES.items():
        if table.result == name:
            put_table(ROOT / table.page, marker, table.made(result))


def publish(name: str, result: dict[str, Any], *, write: bool, indent: int | None = None) -> None:
    """Print the tables of a result; with ``write``, save the result and update the documents."""
    for table in TABLES.values():
        if table.result == name:
            print(table.made(result), end="\n\n", flush=True)
    if write:
        print(save(name, result, indent))
        write_tables(name, result)


def main() -> None:
    """Rewrite every table from the committed results."""
    for marker, table in TABLES.items():
        put_table(ROOT / table.page, marker, table.made())


if __name__ == "__main__":
    main()
