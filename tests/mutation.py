"""``python -m tests.mutation``: break lines at random and see whether the tests notice.

A line is drawn by a seed from the code of some folders, and one thing in it is broken: a sign, a
bound, a condition, a number, or a statement is left out. Then test files run until one test fails:
first those named after the module, then those that import it, then those of its folder. A test has
noticed only if it passes when nothing is broken; a test that hangs has noticed, too.

``--record FILE`` keeps each result as soon as it is known, so an interrupted run continues where it
stopped. ``--again FILE`` breaks the lines of another record that were noticed, and lists those that
no test of ``--tier`` notices: it compares two versions of the tests.

Everything happens in a working tree of its own, made of ``--commit``. A line that no test notices
gets one, or is not needed and goes; or it changes only the speed.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import psutil

FOLDERS = ("algorithms", "passes", "driver", "service")
TEST_SECONDS = 60
"""Timeout of a single test."""
SECONDS = 420.0
"""Time limit of the tests of one line; nobody has noticed after that."""
LAST = ("tests/algorithms/test_contract.py",)
"""Tests that run for algorithms if no other has noticed."""
TIERS = {"default": "not slow", "all": "slow or not slow"}

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}


@dataclass(frozen=True)
class Break:
    """One thing broken: a piece of a file, and what stands there instead."""

    path: str
    line: int
    begin: int
    end: int
    """Bytes of the file."""
    before: str
    after: str

    def apply(self, root: Path) -> None:
        """Break it in the tree at ``root``."""
        file = root / self.path
        source = file.read_bytes()
        assert source[self.begin : self.end].decode() == self.before
        file.write_bytes(source[: self.begin] + self.after.encode() + source[self.end :])

    def __str__(self) -> str:
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.path}:{self.line}: {before}  ->  {after}"


def breaks_of(path: str, source: str) -> list[Break]:
    """All that can be broken inside the functions of a file."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    tree = ast.parse(source)
    conditions = {id(node.test) for node in ast.walk(tree) if isinstance(node, ast.If | ast.While)}
    for node in _nodes(tree):
        changes = list(_changed(node))
        if id(node) in conditions and not changes:
            changes = [ast.UnaryOp(ast.Not(), node)]
        for changed in changes:
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            before = source.encode()[begin:end].decode()
            after = ast.unparse(changed)
            if isinstance(changed, ast.expr):
                after = f"({after})"
            found.append(Break(path, node.lineno, begin, end, before, after))
    return found


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Statements and expressions in bodies of functions, without what is only said."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                yield from _spoken_of(statement)


def _spoken_of(node: ast.AST) -> Iterator[ast.AST]:
    silent = (ast.JoinedStr, ast.Raise, ast.Assert, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, silent):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _spoken_of(child)


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """The node with one thing broken, in each way there is."""
    other = copy.deepcopy(node)
    if isinstance(other, ast.Compare) and len(other.ops) == 1:
        if swapped := SWAPPED.get(type(other.ops[0])):
            other.ops[0] = swapped()
            yield other
    elif isinstance(other, ast.BoolOp | ast.BinOp):
        if swapped := SWAPPED.get(type(other.op)):
            other.op = swapped()
            yield other
    elif isinstance(other, ast.UnaryOp) and isinstance(other.op, ast.USub | ast.Not):
        yield other.operand
    elif isinstance(other, ast.Constant) and isinstance(other.value, bool):
        yield ast.Constant(not other.value)
    elif isinstance(other, ast.Constant) and isinstance(other.value, int | float):
        yield ast.Constant(other.value + 1)
    elif isinstance(other, ast.IfExp):
        other.test = ast.UnaryOp(ast.Not(), other.test)
        yield other
    elif (
        isinstance(other, ast.AugAssign)
        or (isinstance(other, ast.Expr) and isinstance(other.value, ast.Call | ast.Await))
        or (
            isinstance(other, ast.Assign)
            and isinstance(other.targets[0], ast.Attribute | ast.Subscript)
        )
    ):
        yield ast.Pass()


def test_files(path: str, root: Path) -> list[str]:
    """Test files for a module: named after it, importing it, then those of its folder."""
    _, *folders, name = Path(path).with_suffix("").parts
    dotted = ".".join(["largek_dask", *folders, name])
    imported = re.compile(
        rf"{re.escape(dotted)}\b|from {re.escape(dotted.rpartition('.')[0])} import .*\b{name}\b"
    )
    names = (name, "_".join([*folders[1:], name]))
    ranks: dict[str, tuple[int, int]] = {}
    for file in sorted((root / "tests").rglob("test_*.py")):
        inside = file.relative_to(root / "tests").parts[:-1]
        common = next(
            (n for n in range(len(folders), 0, -1) if inside[:n] == tuple(folders[:n])), 0
        )
        if common and file.stem.removeprefix("test_").startswith(names):
            rank = 0
        elif imported.search(file.read_text()):
            rank = 1
        elif common:
            rank = 2
        else:
            continue
        ranks[str(file.relative_to(root))] = (rank, -common)
    found = sorted(ranks, key=ranks.__getitem__)
    last = [file for file in LAST if folders[0] == "algorithms" and (root / file).exists()]
    return [*(file for file in found if file not in last), *last]


@dataclass(frozen=True)
class Ran:
    """Outcome of a run of tests."""

    passed: bool
    test: str = ""
    """The first test that did not pass."""


def run_tests(root: Path, tests: list[str], tier: str) -> Ran:
    """Run tests one after the other until one does not pass or the time is over."""
    with tempfile.TemporaryDirectory() as folder:
        targets, log = Path(folder, "tests"), Path(folder, "log")
        targets.write_text("\n".join(tests))
        options = ["-x", "-v", "-n", "0", "-m", TIERS[tier], "-p", "no:cacheprovider"]
        options += ["-p", "no:randomly"]
        options += ["--timeout", str(TEST_SECONDS), "--hypothesis-seed", "0", f"@{targets}"]
        # Workers and schedulers in processes of their own have to import this tree, too.
        paths = f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": paths}
        with log.open("w") as out:
            command = [sys.executable, "-m", "pytest", *options]
            process = subprocess.Popen(command, cwd=root, env=env, stdout=out, stderr=out)
            try:
                code = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                return Ran(True)
            finally:
                if process.poll() is None:
                    end_all(process.pid)
        text = log.read_text(errors="replace")
    if code in (0, 5):  # 5: none of the tests belongs to the tier
        return Ran(True)
    failed = re.findall(r"^(tests/.*?) (?:FAILED|ERROR)\b", text, re.MULTILINE)
    failed += re.findall(r"^ERROR (tests/\S+)", text, re.MULTILINE)
    begun = re.findall(r"^(tests/\S*::.*?)(?: [A-Z]{5,}\b.*)?$", text, re.MULTILINE)
    return Ran(False, (failed or begun[-1:] or tests)[0])


def end_all(pid: int) -> None:
    """Kill a process and all its descendants."""
    parent = psutil.Process(pid)
    for process in [*parent.children(recursive=True), parent]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    parent.wait()


def notice(root: Path, broken: Break, tier: str, first: str = "") -> str:
    """Return the test that notices, or an empty string; ``first`` is tried before all others."""
    file = root / broken.path
    whole = file.read_bytes()
    tests = test_files(broken.path, root)
    if first and (root / first.split("::")[0]).exists():
        tests.insert(0, first)
    while tests:
        broken.apply(root)
        try:
            ran = run_tests(root, tests, tier)
        finally:
            file.write_bytes(whole)
        if ran.passed:
            break
        if run_tests(root, [ran.test], tier).passed:
            return ran.test
        print(f"    {ran.test} fails without it as well", flush=True)
        name = ran.test.split("::")[0]
        at = next(i for i, test in enumerate(tests) if test.split("::")[0] == name)
        tests = tests[at + 1 :]
    return ""


def choose(root: Path, seed: int, lines: int, folders: tuple[str, ...]) -> list[Break]:
    """One thing to break on each of some lines."""
    by_line: dict[tuple[str, int], list[Break]] = {}
    for folder in folders:
        for file in sorted((root / "largek_dask" / folder).rglob("*.py")):
            path = str(file.relative_to(root))
            for broken in breaks_of(path, file.read_text()):
                by_line.setdefault((path, broken.line), []).append(broken)
    rng = random.Random(seed)
    chosen = rng.sample(sorted(by_line), min(lines, len(by_line)))
    return [rng.choice(by_line[place]) for place in chosen]


def noticed_before(record: Path, root: Path) -> list[tuple[Break, str]]:
    """Lines of a record that were noticed and are still there, and the test that noticed."""
    found = []
    for entry in json.loads(record.read_text()):
        test = entry.pop("test")
        entry.pop("seconds")
        broken = Break(**entry)
        if not test:
            continue
        file = root / broken.path
        same = [
            other
            for other in breaks_of(broken.path, file.read_text() if file.exists() else "")
            if (other.before, other.after) == (broken.before, broken.after)
        ]
        if same:
            found.append((min(same, key=lambda other: abs(other.line - broken.line)), test))
        else:
            print(f"changed since: {broken}")
    return found


@click.command()
@click.option("--seed", type=int, default=0, show_default=True, help="Of the lines.")
@click.option("--lines", type=int, default=60, show_default=True, help="How many.")
@click.option("--folder", "folders", multiple=True, default=FOLDERS, show_default=True)
@click.option("--tier", type=click.Choice(list(TIERS)), default="all", show_default=True)
@click.option("--commit", default="HEAD", show_default=True, help="What is broken and tested.")
@click.option("--record", type=click.Path(path_type=Path), help="File of results; continued.")
@click.option("--again", type=click.Path(path_type=Path, exists=True), help="Another record.")
def main(
    seed: int,
    lines: int,
    folders: tuple[str, ...],
    tier: str,
    commit: str,
    record: Path | None,
    again: Path | None,
) -> None:
    """Break lines at random; list those that the tests do not notice."""
    here = Path(__file__).parents[1]
    done = json.loads(record.read_text()) if record and record.exists() else []
    known = {(entry["path"], entry["begin"], entry["after"]): entry["test"] for entry in done}
    unnoticed = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        git = ["git", "-C", str(here), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(root), commit], check=True)
        try:
            if again:
                chosen = noticed_before(again, root)
            else:
                chosen = [(broken, "") for broken in choose(root, seed, lines, folders)]
            for broken, first in chosen:
                begin = time.monotonic()
                test = known.get((broken.path, broken.begin, broken.after))
                if test is None:
                    test = notice(root, broken, tier, first)
                    seconds = round(time.monotonic() - begin)
                    print(
                        f"{'noticed  ' if test else 'UNNOTICED'} {broken}\n    {test} {seconds} s"
                    )
                    done.append(dataclasses.asdict(broken) | {"test": test, "seconds": seconds})
                    if record:
                        record.write_text(json.dumps(done, indent=1))
                    sys.stdout.flush()
                if not test:
                    unnoticed.append(broken)
        finally:
            subprocess.run([*git, "remove", "--force", str(root)], check=True)
    print(f"{len(chosen) - len(unnoticed)} of {len(chosen)} noticed")
    for broken in unnoticed:
        print(f"  unnoticed: {broken}")


if __name__ == "__main__":
    main()
