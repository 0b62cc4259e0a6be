"""`deploy/README.md`: what it quotes of measured tables is there, and its commands exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.common import RESULTS
from benchmarks.sizing import ALGORITHMS, CHUNK_ROWS, LIMIT, THREADS, WORKERS, empty, planned

ROOT = Path(__file__).parents[2]
README = (ROOT / "deploy" / "README.md").read_text()


def part(title: str) -> str:
    """What stands below a heading."""
    [found] = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.M | re.S)
    return found


def rows(text: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def table_of_results(mark: str) -> list[list[str]]:
    text = (ROOT / "docs" / "results" / "sizing.md").read_text()
    [found] = re.findall(rf"<!-- {mark}:begin -->\n(.*?)<!-- {mark}:end -->", text, re.S)
    lines = [line for line in found.splitlines() if line.startswith("|")]
    head = [cell.strip() for cell in lines[0].strip("|").split(" | ")]
    return [head, *rows(found)]


def test_sizing__rows_are_those_of_the_results():
    head, *measured = table_of_results("sizing")
    wanted = [head.index(name) for name in ("data", "truncated", "lloyd")]
    known = {row[0]: [row[at] for at in wanted] for row in measured}
    shown = rows(part("Sizing"))
    assert len(shown) == 5
    for name, *cells in shown:
        assert cells == known[name], name


def test_sizing__kept_of_a_row():
    kept = {row[0]: row[1] for row in table_of_results("sizing_storage")[1:]}
    shown = re.findall(r"(\d+ B) \((\w+)[^)]*\)", part("Sizing"))
    assert [name for _, name in shown] == ["minibatch", "truncated", "lloyd", "nmbatch"]
    for size, name in shown:
        assert kept[name] == size


def test_sizing__the_formula_gives_what_was_planned():
    assert (
        "0.22 GB + k · d · (40 + 8 · threads) B + (threads + 2) · chunk + "
        "min(data / workers, 0.54 GB) + rows · kept / workers\n"
    ) in part("Sizing")
    found = json.loads((RESULTS / "sizing.json").read_text())
    kept = {"minibatch": 4, "truncated": 32, "lloyd": 8, "nmbatch": 20}
    seen = 0
    for plan in found["plans"]:
        if plan["algorithm"] not in kept:
            continue
        n, d, k = plan["n"], plan["d"], plan["k"]
        # Beside what the process itself takes.
        for workers, memory in zip(WORKERS, plan["memory"], strict=True):
            ram = k * d * (40 + 8 * THREADS) + (THREADS + 2) * CHUNK_ROWS * d * 4
            ram += min(n * d * 4 / workers, 0.54e9) + n * kept[plan["algorithm"]] / workers
            assert ram == pytest.approx(memory, rel=0.05), (plan["algorithm"], n, d, k, workers)
            seen += 1
    assert seen > 100


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sizing__is_what_is_planned_now(algorithm, tmp_path):
    """After a change of plans `python -m benchmarks.sizing --plans --write` makes the tables."""
    n, d, k = 80_000_000, 32, 1_000
    found = json.loads((RESULTS / "sizing.json").read_text())["plans"]
    wanted = {"n": n, "d": d, "k": k, "algorithm": algorithm}
    [told] = [plan for plan in found if plan.items() >= wanted.items()]
    rows = empty(str(tmp_path), n, d)
    now = [planned(rows, k, algorithm, workers, THREADS, LIMIT)["memory"] for workers in WORKERS]
    assert now == pytest.approx(told["memory"], rel=0.05)


def test_commands_have_what_is_typed():
    from click.testing import CliRunner

    from largek_dask.cli import main

    typed = part("Upgrade") + part("Back-up") + part("What to watch") + part("What it looks like")
    commands = set(re.findall(r"largek (\w+)(?: \w+)?((?: (?:ID|ADDR|--[\w-]+))*)", typed))
    assert {"submit", "delete", "doctor", "jobs", "logs"} <= {name for name, _ in commands}
    for name, options in commands:
        if name == "cluster":
            continue
        said = CliRunner().invoke(main, [name, "--help"])
        assert said.exit_code == 0, name
        for option in re.findall(r"--[\w-]+", options):
            assert option in said.output, f"largek {name} {option}"
