"""Write the table of folders in CONTRIBUTING.md.

    python -m tests.documents.folders

rewrites it, and `test_documents.py` compares it with the tree. The purpose of a folder is the first
sentence of its ``__init__.py``, and that of a module directly in ``largek_dask`` the first sentence
of its docstring. Layers are in the order of pyproject.toml: each may import those after it.
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
    """Return the first sentence of the docstring of a package or module."""
    file = path / "__init__.py" if path.is_dir() else path
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    first = " ".join(docstring.split("\n\n")[0].split())
    if not first:
        raise ValueError(f"{file.relative_to(ROOT)} has no docstring, which CONTRIBUTING.md needs")
    return first.split(". ")[0].rstrip(".").replace("``", "`")


def layers(package: str) -> list[str]:
    """Return names within a package, the highest layer first, from the import contracts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for contract in project["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers" and package in contract["containers"]:
            return [name.strip() for layer in contract["layers"] for name in layer.split("|")]
    return []


def packages(folder: Path) -> list[Path]:
    """Return the packages directly in a folder, by layer if they have an order, then by name."""
    order = layers(".".join(folder.relative_to(ROOT).parts))
    names = sorted(path.parent.name for path in folder.glob("*/__init__.py"))
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    return [folder / name for name in names]


def below(folder: Path) -> list[Path]:
    """Return all packages in a folder, each followed by those in it."""
    return [path for part in packages(folder) for path in (part, *below(part))]


def entries() -> list[Path]:
    """Return the paths in the table: packages, top modules, and test folders that mirror none."""
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
    """Return the table in markdown."""
    lines = ["| folder | what it is for |", "|---|---|"]
    for path in entries():
        name = f"{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}"
        lines.append(f"| `{name}` | {purpose(path)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    put_table(PAGE, NAME, folders())
