"""``python -m tests.mutation``: lines broken at random, and whether the tests notice.

A line is drawn by a seed from the code of a few folders, and one thing in it is broken: a sign, a
bound, a condition, a number, or a statement is left out. Then the tests that run this line are run,
those of its own module first, until one fails; where no test runs it in the process of the tests
(code of workers), the files of tests of its folder. A test has noticed only if it passes when
nothing is broken: one that ran into a limit of time, too.

Which tests run a line is found once, by a run of all of them, and kept in a folder (``--map``).
Lines of files that have changed since are found again by what stands in them. Everything happens in
a working tree of its own, made of the last commit.

A line that no test notices gets one, or it is not needed and goes; or it changes only how long
something takes.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import difflib
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import click
import psutil
from coverage import CoverageData

FOLDERS = ("algorithms", "passes", "driver", "service")
TEST_SECONDS = 60
"""After which a single test has failed."""
SECONDS = 300.0
"""Seconds of tests that run a line: more are left out. Twice this ends a run of tests."""
COVERING = {
    "algorithms": ("algorithms", "estimators", "test_surface.py"),
    "passes": ("passes", "estimators"),
    "driver": ("driver", "cli", "estimators", "test_model.py"),
    "service": ("service", "cli"),
}
"""Tests of which is known what they run, by folder."""
OTHERS = {
    "algorithms/auto": ["algorithms/test_auto.py"],
    "algorithms/base": ["algorithms/parts/test_seeding.py", "algorithms/test_minibatch.py"],
    "algorithms/lloyd": ["algorithms/test_lloyd.py", "algorithms/test_lloyd_bounds.py"],
    "algorithms/minibatch": ["algorithms/test_minibatch.py"],
    "algorithms/names": ["estimators/test_kmeans.py"],
    "algorithms/nmbatch": ["algorithms/test_nmbatch.py", "algorithms/test_nested_stores.py"],
    "algorithms/parts/bounded": ["algorithms/test_lloyd_bounds.py"],
    "algorithms/parts/greedy": ["algorithms/truncated/test_far.py"],
    "algorithms/parts/labels": ["algorithms/test_nmbatch.py", "algorithms/test_lloyd_bounds.py"],
    "algorithms/parts/moves": [
        "algorithms/test_nmbatch_moves.py",
        "algorithms/truncated/test_algorithm.py",
    ],
    "algorithms/parts/nested": ["algorithms/test_nested_stores.py", "algorithms/test_nmbatch.py"],
    "algorithms/parts/relocation": ["algorithms/test_lloyd.py", "driver/test_fit.py"],
    "algorithms/parts/seeding": ["algorithms/test_sparse_rows.py"],
    "algorithms/parts/splits": ["algorithms/parts/test_sparse_splits.py"],
    "algorithms/parts/totals": ["algorithms/test_lloyd.py", "algorithms/test_nmbatch.py"],
    "algorithms/parts/two_level": ["algorithms/truncated/test_algorithm.py"],
    "algorithms/truncated": ["algorithms/truncated"],
    "algorithms/vrkm": ["algorithms/vrkm"],
    "driver": ["test_model.py", "cli/test_fit.py"],
    "passes": ["algorithms/test_lloyd.py"],
    "service": ["cli/test_jobs.py"],
}
"""Tests by where a module lies, or how it begins, beside those called like it."""
WHOLE_FOLDER = ("passes", "driver", "service")
LAST = ["algorithms/test_contract.py", "test_surface.py"]
"""What runs for algorithms if nothing else has noticed."""

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


def own_files(path: str, root: Path) -> list[str]:
    """Files of tests for a module, those called like it first."""
    _, folder, *inner = Path(path).with_suffix("").parts
    # A module of a sub-folder may have tests that are called like both.
    name, module = inner[-1], f"{folder}/{'_'.join(inner)}"
    tests = root / "tests"
    own = [
        str(file.relative_to(tests))
        for called in dict.fromkeys([name, "_".join(inner)])
        for file in sorted((tests / folder).rglob(f"test_{called}*.py"))
    ]
    for begin in sorted(OTHERS, key=len, reverse=True):
        if module.startswith(begin):
            own += OTHERS[begin]
            break
    return [f"tests/{file}" for file in dict.fromkeys(own) if (tests / file).exists()]


def files_of(path: str, root: Path) -> list[str]:
    """Files of tests for a module, then the others of its folder."""
    folder = Path(path).parts[1]
    others = sorted((root / "tests" / folder).rglob("test_*.py"))
    if folder not in WHOLE_FOLDER:
        others = [root / "tests" / file for file in LAST]
    names = [str(file.relative_to(root)) for file in others]
    return list(dict.fromkeys([*own_files(path, root), *names]))


@dataclass(frozen=True)
class Ran:
    """What tests made of it."""

    passed: bool
    test: str = ""
    """The first that did not pass."""
    hung: bool = False
    """It ran into a limit."""


def run_tests(root: Path, tests: list[str], limit: float = 2 * SECONDS) -> Ran:
    """Run these, one after the other, until one does not pass."""
    with tempfile.TemporaryDirectory() as folder:
        targets, log = Path(folder, "tests"), Path(folder, "log")
        targets.write_text("\n".join(tests))
        options = ["-x", "-v", "--timeout", str(TEST_SECONDS), "--hypothesis-seed", "0"]
        with log.open("w") as out:
            process = _pytest(root, [*options, f"@{targets}"], stdout=out, stderr=out)
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = -1
            finally:
                if process.poll() is None:
                    end_all(process.pid)
        text = log.read_text(errors="replace")
    if code == 0:
        return Ran(True)
    failed = re.findall(r"^(tests/.*?) (?:FAILED|ERROR)\b", text, re.MULTILINE)
    begun = re.findall(r"^(tests/\S*::.*?)(?: [A-Z]{5,}\b.*)?$", text, re.MULTILINE)
    test = (failed or begun[-1:] or tests)[0]
    return Ran(False, test, hung=code == -1 or "Failed: Timeout" in text)


def _pytest(root: Path, options: list[str], **popen) -> subprocess.Popen[bytes]:
    # Workers and schedulers in processes of their own have to import this tree, too.
    paths = f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    return subprocess.Popen(command, cwd=root, env=env | popen.pop("more", {}), **popen)


def end_all(pid: int) -> None:
    """End a process and all it has started, in whatever session."""
    parent = psutil.Process(pid)
    for process in [*parent.children(recursive=True), parent]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    parent.wait()


def make_map(root: Path, folder: Path, folders: tuple[str, ...]) -> None:
    """Run the tests once, and keep which lines each of them runs, and how long it takes."""
    folder.mkdir(exist_ok=True)
    settings = folder / "settings"
    settings.write_text("[run]\nrelative_files = true\n")
    for tests in dict.fromkeys(tests for name in folders for tests in COVERING[name]):
        done = folder / f"{tests}.commit"
        if done.exists():
            continue
        print(f"finding which lines are run by tests/{tests}", flush=True)
        data = folder / f"{tests}.coverage"
        data.unlink(missing_ok=True)
        options = ["-q", f"--junitxml={folder / tests}.xml", f"--cov-config={settings}"]
        options += ["--cov=largek_dask", "--cov-context=test", "--cov-report=", f"tests/{tests}"]
        more = {"COVERAGE_FILE": str(data), "COVERAGE_CORE": "ctrace"}
        _pytest(root, options, more=more, stdout=subprocess.DEVNULL).wait()
        done.write_text(_git(root, "rev-parse", "HEAD"))


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip("\n")


@cache
def _run_by(folder: Path, tests: str, path: str) -> dict[int, list[str]]:
    """Tests by the line of a file, as it was then."""
    data = CoverageData(str(folder / f"{tests}.coverage"))
    data.read()
    return data.contexts_by_lineno(path)


@cache
def _seconds(folder: Path, tests: str) -> dict[str, float]:
    """How long each test took, in the order in which they ran."""
    seconds = {}
    for case in ElementTree.parse(folder / f"{tests}.xml").iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        seconds[f"{file}::{case.get('name')}"] = float(case.get("time", 0))
    return seconds


def tests_that_run(broken: Break, root: Path, folder: Path) -> list[str]:
    """Tests that run a line, file by file: those of its module first, then the quickest."""
    by_file: dict[str, dict[str, float]] = {}
    text = (root / broken.path).read_text()
    source = text.splitlines()
    # A part of a statement that goes over several lines may not be seen to run on its own.
    around = [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and node.lineno <= broken.line <= node.end_lineno
    ]
    for tests in COVERING[Path(broken.path).parts[1]]:
        commit = (folder / f"{tests}.commit").read_text()
        if not _git(root, "ls-tree", commit, broken.path):
            continue  # The module is newer than the map.
        then = _git(root, "show", f"{commit}:{broken.path}").splitlines()
        same = difflib.SequenceMatcher(None, then, source, False).get_matching_blocks()
        lines = [
            a + at - b
            for at in {broken.line, max(around)}
            for a, b, size in same
            if b < at <= b + size
        ]
        seconds = _seconds(folder, tests)
        run = {c for line in lines for c in _run_by(folder, tests, broken.path).get(line, ()) if c}
        # What a fixture does for a module or a session is written down for its first test.
        whole = {context.split("::")[0] for context in run if context.endswith("|setup")}
        run = {context.rpartition("|")[0] for context in run}
        for test, duration in seconds.items():
            file = test.split("::")[0]
            if (test in run or file in whole) and (root / file).exists():
                by_file.setdefault(file, {})[test] = duration
    own = own_files(broken.path, root)
    files = sorted(by_file, key=lambda file: (file not in own, sum(by_file[file].values())))
    chosen, total = [], 0.0
    for test, duration in ((t, s) for file in files for t, s in by_file[file].items()):
        if total + duration <= SECONDS:
            chosen.append(test)
            total += duration
    return chosen


def notice(root: Path, broken: Break, folder: Path) -> Ran | None:
    """The test that notices; None if none does."""
    file = root / broken.path
    whole = file.read_bytes()
    tests = tests_that_run(broken, root, folder)
    if not tests:
        tests = files_of(broken.path, root)
        print("    no test is seen to run it", flush=True)
    while tests:
        broken.apply(root)
        try:
            ran = run_tests(root, tests)
        finally:
            file.write_bytes(whole)
        if ran.passed:
            break
        # A test that fails anyway has noticed nothing.
        if run_tests(root, [ran.test]).passed:
            return ran
        print(f"    {ran.test} fails without it as well", flush=True)
        tests = tests[tests.index(ran.test) + 1 :] if ran.test in tests else []
    return None


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


@click.command()
@click.option("--seed", type=int, default=0, show_default=True, help="Of the lines.")
@click.option("--lines", type=int, default=60, show_default=True, help="How many.")
@click.option("--folder", "folders", multiple=True, default=FOLDERS, show_default=True)
@click.option(
    "--map",
    "mapped",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(tempfile.gettempdir()) / "largek-mutation",
    show_default=True,
    help="Folder with which tests run which line; made if it is not there.",
)
@click.option("--dry", is_flag=True, help="Only say what would be broken.")
def main(seed: int, lines: int, folders: tuple[str, ...], mapped: Path, dry: bool) -> None:
    """Break lines at random; say which the tests do not notice."""
    here = Path(__file__).parents[1]
    if dry:
        for broken in choose(here, seed, lines, folders):
            print(broken)
        return
    unnoticed = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        _git(here, "worktree", "add", "--quiet", "--detach", str(root), "HEAD")
        try:
            make_map(root, mapped, folders)
            for broken in choose(root, seed, lines, folders):
                begin = time.monotonic()
                ran = notice(root, broken, mapped)
                print(f"{'noticed  ' if ran else 'UNNOTICED'} {broken}")
                said = f"{ran.test}{', which hangs' * ran.hung}" if ran else ""
                print(f"    {said} {time.monotonic() - begin:.0f} s", flush=True)
                if ran is None:
                    unnoticed.append(broken)
        finally:
            _git(here, "worktree", "remove", "--force", str(root))
    print(f"seed {seed}: {lines - len(unnoticed)} of {lines} noticed")
    for broken in unnoticed:
        print(f"  unnoticed: {broken}")


if __name__ == "__main__":
    main()
