"""What ``largek doctor`` says: findings, each with what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Finding", "broken", "note", "ok", "report", "table"]

Level = Literal["ok", "note", "broken"]

MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "broken": "[bold red]broken[/]"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    area: str
    """What it is about: ``cpu``, ``memory``, ``data`` ..."""
    level: Level
    """``broken`` keeps something from working; ``note`` costs time or memory."""
    text: str
    advice: str = ""
    """What to do; empty where nothing is to be done."""


def ok(area: str, text: str, advice: str = "") -> Finding:
    """A finding that all is well."""
    return Finding(area, "ok", text, advice)


def note(area: str, text: str, advice: str) -> Finding:
    """Works, but could be better."""
    return Finding(area, "note", text, advice)


def broken(area: str, text: str, advice: str) -> Finding:
    """Does not work."""
    return Finding(area, "broken", text, advice)


def report(findings: list[Finding]) -> dict[str, Any]:
    """The findings as JSON: ``{"healthy": bool, "findings": [...]}``."""
    return {
        "healthy": all(finding.level != "broken" for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }


def table(findings: list[Finding]) -> Any:
    """The findings as a table for a terminal, and how many of them ask for something."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    shown = Table(box=SIMPLE_HEAD)
    shown.add_column("", no_wrap=True)
    shown.add_column("what", style="cyan", no_wrap=True)
    shown.add_column("finding, and what to do", overflow="fold")
    previous = None
    for finding in findings:
        text = escape(finding.text)
        if finding.advice:
            text += f"\n[dim]→ {escape(finding.advice)}[/]"
        area = "" if finding.area == previous else finding.area
        shown.add_row(MARKS[finding.level], area, text)
        previous = finding.area
    n_broken = sum(finding.level == "broken" for finding in findings)
    n_notes = sum(finding.level == "note" for finding in findings)
    if n_broken:
        verdict = f"[bold red]{n_broken} broken[/], {n_notes} to improve."
    elif n_notes:
        verdict = f"[green]Nothing is broken[/]; {n_notes} to improve."
    else:
        verdict = "[green]All is well.[/]"
    return Group(shown, verdict)
