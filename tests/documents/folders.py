"""The map of folders in CONTRIBUTING.md, made from the tree.

    python -m tests.documents.folders

writes it anew; `test_documents.py` compares it. What a folder is for is the first sentence of its
``__init__.py``, and of a module directly in ``largek_dask`` that of its docstring. Layers come in
the order of pyproject.toml, in which each may import those after it.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from benchmarks.tables import put_table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
PACKAGE = ROOT / "largek_dask"
NAME = "folders"


def purpose(path: Path) -> str:
    """The first sentence that a package or module says of itself."""
    file = path / "__init__.py" if path.is_dir() else path
    told = ast.get_docstring(ast.parse(file.read_text())) or ""
    first = " ".join(told.split("\n\n")[0].split())
    if not first:
        raise ValueError(
            f"{file.relative_to(ROOT)} does not say what it is for: give it a docstring"
        )
    return first.split(". ")[0].rstrip(".").replace("``", "`")


def layers(package: str) -> list[str]:
    """Names within a package, the highest layer first, as import-linter is told."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for contract in told["contracts"]:
        if contract["type"] == "layers" and package in contract["containers"]:
            return [name.strip() for layer in contract["layers"] for name in layer.split("|")]
    return []


def packages(folder: Path) -> list[Path]:
    """The packages directly in a folder, by layer where they have an order, then by name."""
    order = layers(".".join(folder.relative_to(ROOT).parts))
    names = sorted(path.parent.name for path in folder.glob("*/__init__.py"))
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    return [folder / name for name in names]


def below(folder: Path) -> list[Path]:
    """All packages in a folder, each followed by those in it."""
    return [path for part in packages(folder) for path in (part, *below(part))]


def entries() -> list[Path]:
    """What has a line: packages, modules of ``largek_dask`` itself, tests that mirror no folder."""
    modules = [PACKAGE / f"{name}.py" for name in layers("largek_dask")]
    mirrored = {path.relative_to(PACKAGE) for path in below(PACKAGE)}
    tests = ROOT / "tests"
    return [
        PACKAGE,
        *below(PACKAGE),
        *(module for module in modules if module.exists()),
        tests,
        *(path for path in below(tests) if path.relative_to(tests) not in mirrored),
        ROOT / "benchmarks",
    ]


def folders() -> str:
    """The map as a markdown table."""
    lines = ["| folder | what it is for |", "|---|---|"]
    for path in entries():
        name = f"{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}"
        lines.append(f"| `{name}` | {purpose(path)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    put_table(PAGE, NAME, folders())
