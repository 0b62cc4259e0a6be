"""``python -m tests.mutation``: lines broken at random, and whether the tests notice.

A line is drawn by a seed from the code of a few folders, and one thing in it is broken: a sign, a
bound, a condition, a number, or a statement is left out. Then the tests of that folder run, those
of the line's own module first, until one fails. Everything happens in a working tree of its own,
made of the last commit.

A line that no test notices gets one, or it is not needed and goes; or it changes only how long
something takes.
"""

from __future__ import annotations

import ast
import copy
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

FOLDERS = ("algorithms", "passes", "driver", "service")
SECONDS = 900.0
"""After which tests that do not end are taken to have noticed."""
OTHERS = {
    "algorithms/auto": ["algorithms/test_auto.py"],
    "algorithms/base": ["algorithms/test_seeding.py", "algorithms/test_minibatch.py"],
    "algorithms/bounded": ["algorithms/test_lloyd_bounds.py"],
    "algorithms/gathered": ["algorithms/test_gathered.py", "algorithms/test_nmbatch.py"],
    "algorithms/lloyd": ["algorithms/test_lloyd.py", "algorithms/test_lloyd_bounds.py"],
    "algorithms/memory": ["algorithms/test_nmbatch.py", "cli/test_fit.py"],
    "algorithms/minibatch": ["algorithms/test_minibatch.py"],
    "algorithms/moves": ["algorithms/test_moves.py", "algorithms/test_truncated.py"],
    "algorithms/names": ["estimators/test_kmeans.py"],
    "algorithms/nested": ["algorithms/test_nmbatch.py", "algorithms/test_nested_stores.py"],
    "algorithms/nmbatch": ["algorithms/test_nmbatch.py", "algorithms/test_nested_stores.py"],
    "algorithms/relocation": ["algorithms/test_lloyd.py", "driver/test_fit.py"],
    "algorithms/seeding": ["algorithms/test_seeding.py", "algorithms/test_sparse_rows.py"],
    "algorithms/truncated": [
        "algorithms/test_truncated_parts.py",
        "algorithms/test_truncated.py",
        "algorithms/test_truncated_samples.py",
    ],
    "algorithms/votes": ["algorithms/test_minibatch.py", "estimators/test_kmeans.py"],
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


def tests_of(path: str, root: Path) -> list[str]:
    """Test files for a module, those called like it first."""
    folder, name = Path(path).parts[1], Path(path).stem
    tests = root / "tests"
    own = [f"{folder}/{p.name}" for p in sorted((tests / folder).glob(f"test_{name}*.py"))]
    module = f"{folder}/{name}"
    for begin in sorted(OTHERS, key=len, reverse=True):
        if module.startswith(begin):
            own += OTHERS[begin]
            break
    if folder in WHOLE_FOLDER:
        own += [f"{folder}/{p.name}" for p in sorted((tests / folder).glob("test_*.py"))]
    else:
        own += LAST
    return [f"tests/{file}" for file in dict.fromkeys(own) if (tests / file).exists()]


def run_tests(root: Path, targets: list[str]) -> tuple[bool, str]:
    """Whether all pass; and the first that does not."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "0"]
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [*command, "--timeout", "120", *targets],
        cwd=root,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        # Workers, too.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False, ""
    failed = [line for line in out.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return process.returncode == 0, failed[0].split()[1] if failed else ""


def notice(root: Path, broken: Break) -> str | None:
    """The test that notices; None if none does."""
    file = root / broken.path
    whole = file.read_bytes()
    for target in tests_of(broken.path, root):
        broken.apply(root)
        try:
            passed, failed = run_tests(root, [target])
        finally:
            file.write_bytes(whole)
        if passed:
            continue
        # A test that fails anyway has noticed nothing.
        if failed and "::" in failed and not run_tests(root, [failed])[0]:
            print(f"    {failed} fails without it as well", flush=True)
            continue
        return failed or target
    return None


def choose(root: Path, seed: int, lines: int, folders: tuple[str, ...]) -> list[Break]:
    """One thing to break on each of so many lines."""
    by_line: dict[tuple[str, int], list[Break]] = {}
    for folder in folders:
        for file in sorted((root / "largek_dask" / folder).glob("*.py")):
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
@click.option("--dry", is_flag=True, help="Only say what would be broken.")
def main(seed: int, lines: int, folders: tuple[str, ...], dry: bool) -> None:
    """Break lines at random; say which the tests do not notice."""
    here = Path(__file__).parents[1]
    if dry:
        for broken in choose(here, seed, lines, folders):
            print(broken)
        return
    unnoticed = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        git = ["git", "-C", str(here), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(root), "HEAD"], check=True)
        try:
            for broken in choose(root, seed, lines, folders):
                begin = time.monotonic()
                test = notice(root, broken)
                print(f"{'noticed  ' if test else 'UNNOTICED'} {broken}")
                print(f"    {test or ''} {time.monotonic() - begin:.0f} s", flush=True)
                if test is None:
                    unnoticed.append(broken)
        finally:
            subprocess.run([*git, "remove", "--force", str(root)], check=True)
    print(f"seed {seed}: {lines - len(unnoticed)} of {lines} noticed")
    for broken in unnoticed:
        print(f"  unnoticed: {broken}")


if __name__ == "__main__":
    main()
