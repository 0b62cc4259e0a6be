"""Disk space of an installation: the package, its dependencies, and each of its extras.

    python -m benchmarks.sizes [--write]

Builds the wheel and installs it into new environments, with the newest versions that there are.
Counted are the files that packages list as theirs, without the bytecode that Python adds.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, new_parser, parse
from benchmarks.tables import publish, table_of

OWN = "largek_dask"
NAMED = 5
"""Number of largest packages that the table names."""
DEVELOPERS = ("test", "docs", "deploy", "bench", "dev")
"""Extras for developers of the package."""

LIST = """
import json
from importlib.metadata import distributions
def size(file):
    path = file.locate()
    return path.stat().st_size if path.is_file() and path.suffix != ".pyc" else 0
print(json.dumps({
    found.metadata["Name"]: sum(size(file) for file in found.files or ())
    for found in distributions()
}))
"""


def extras() -> list[str]:
    """Names of the extras that users install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [name for name in project["optional-dependencies"] if name not in DEVELOPERS]


def installed(wheel: Path, extra: str, folder: Path) -> dict[str, int]:
    """Bytes of every package of a new environment, by its name."""
    uv = [sys.executable, "-m", "uv"]
    python = folder / "bin" / "python"
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, what], check=True)
    done = subprocess.run([python, "-c", LIST], check=True, capture_output=True, text=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def measure() -> dict[str, Any]:
    """Bytes of the wheel, and of the packages that each extra installs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = [sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT]
        subprocess.run(build, check=True, capture_output=True)
        (wheel,) = folder.glob("*.whl")
        found = {
            extra: installed(wheel, extra, folder / f"env-{extra}") for extra in ("", *extras())
        }
        return {"wheel": wheel.stat().st_size, "installed": found}


def megabytes(size: float) -> str:
    """``12345678`` as ``12.3 MB``; to the whole one from 100 on."""
    return f"{size / 1e6:.3g} MB" if size < 1e8 else f"{size / 1e6:.0f} MB"


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    base = result["installed"][""]
    (own,) = (size for name, size in base.items() if name.replace("-", "_") == OWN)

    def largest(packages: dict[str, int]) -> str:
        ranked = sorted(packages.items(), key=lambda item: -item[1])[:NAMED]
        return ", ".join(f"{name} {megabytes(size)}" for name, size in ranked)

    def row(what: str, packages: dict[str, int]) -> list[str]:
        size = megabytes(sum(packages.values()))
        return [what, f"{len(packages)}", size, largest(packages)]

    rows = [
        [f"`{OWN}` alone", "1", f"{megabytes(own)} (wheel: {megabytes(result['wheel'])})", ""],
        row("`pip install .`", base),
    ]
    for extra, packages in result["installed"].items():
        if extra:
            more = {name: size for name, size in packages.items() if name not in base}
            rows.append(row(f"`[{extra}]` adds", more))
    note = (
        f"Python {result['python']} on {result['system']}, newest versions, without bytecode. Made "
        "by `python -m benchmarks.sizes --write`."
    )
    head = ["what", "packages", "on disk", "the largest of them"]
    return "\n".join([*table_of(head, rows), "", note])


def main() -> None:
    """Measure, and write if asked to."""
    args = parse(new_parser(__doc__))
    result = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "system": f"{platform.system()}, {platform.machine()}",
        **measure(),
    }
    publish("sizes", result, write=args.write)


if __name__ == "__main__":
    main()
