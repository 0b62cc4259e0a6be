"""``python -m tests.matrix``: the package in new environments, and a table of what held there.

For each version of Python that pyproject.toml names and this machine has, the wheel is installed
with the newest and with the lowest versions of all dependencies, and `suite.py` is run: import,
fits, files, a job on a cluster, the command line, the demo. Fits have to have the bits that they
have in the environment of this command. The exit code is 1 if anything does not hold.

``--short`` takes this Python with the lowest versions alone, and a part of the suite.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from tests.matrix.environments import (
    RESOLUTIONS,
    ROOT,
    InstallError,
    Record,
    build_wheel,
    interpreter,
    make,
    run_suite,
    versions,
)
from tests.matrix.suite import CHECKS, SHOWN

SHORT = ("import", "fits", "files", "job", "shell")
"""Checks of which the kernels are few."""
WITH_DIGESTS = ("fits", "others")


@dataclass(frozen=True)
class Tried:
    """An environment, and what its checks told."""

    version: str
    """Python's, such as "3.11"."""
    resolution: str
    """Which versions of dependencies: "newest" or "lowest"."""
    seconds: float
    """Seconds of wall time that it took, with the installation."""
    records: tuple[Record, ...]
    """One a check; none where it could not be installed."""
    error: str = ""
    """Why it could not be installed."""

    def faults(self, expected: dict[str, str]) -> dict[str, str]:
        """What did not hold, by the name of the check."""
        found = {"install": self.error} if self.error else {}
        for record in self.records:
            if "error" in record:
                found[record["check"]] = record["error"]
            elif other := sorted(
                name
                for name, digest in record.get("digests", {}).items()
                if digest != expected[name]
            ):
                found[record["check"]] = f"other bits: {', '.join(other)}"
        return found

    def packages(self) -> str:
        """Versions of the main packages, in words."""
        told: dict[str, str] = next((r["versions"] for r in self.records if "versions" in r), {})
        return ", ".join(f"{name} {told[name]}" for name in SHOWN if name in told)


def digests_in(records: Sequence[Record]) -> dict[str, str]:
    """Digests of all fits by name."""
    return {name: value for r in records for name, value in r.get("digests", {}).items()}


def tried(version: str, python: Path, resolution: str, wheel: Path, checks: Sequence[str]) -> Tried:
    """Make an environment, run the checks there, remove it."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            own = make(folder / "env", python, resolution, wheel)
        except InstallError as error:
            return Tried(version, resolution, time.perf_counter() - begun, (), str(error))
        records = tuple(run_suite(own, checks, folder))
    return Tried(version, resolution, time.perf_counter() - begun, records)


def table(
    found: Sequence[Tried], missing: Sequence[str], checks: Sequence[str], expected: dict[str, str]
) -> str:
    """What held in each environment, as text; below it what did not, and what was not tried."""
    names = ("Python", "versions", *checks, "seconds")
    lines = []
    for one in found:
        faults = one.faults(expected)
        held = ["-" if one.error else "no" if name in faults else "ok" for name in checks]
        lines.append((one.version, one.resolution, *held, f"{one.seconds:.0f}"))
    widths = [max(map(len, column)) for column in zip(names, *lines, strict=True)]
    shown = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in (names, *lines)
    ]
    for one in found:
        if packages := one.packages():
            shown.append(f"{one.version}, {one.resolution}: {packages}")
        for name, fault in one.faults(expected).items():
            shown.append(f"{one.version}, {one.resolution}: {name} does not hold: {fault}")
    shown += [f"{version}: not tried, as this machine does not have it" for version in missing]
    return "\n".join(shown)


@click.command(help=__doc__)
@click.option(
    "--python",
    "given",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An interpreter to try that is neither on the path nor pyenv's; may be repeated.",
)
@click.option("--only", multiple=True, metavar="3.X", help="Only this Python; may be repeated.")
@click.option("--short", is_flag=True, help="This Python, lowest versions, part of the suite.")
def main(given: tuple[Path, ...], only: tuple[str, ...], short: bool) -> None:
    """Try all environments, print the table, exit with 1 if anything does not hold."""
    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    asked = (this,) if short else only or tuple(versions())
    resolutions = ("lowest",) if short else tuple(RESOLUTIONS)
    checks = SHORT if short else tuple(CHECKS)
    pythons = {version: interpreter(version, given) for version in asked}
    found: list[Tried] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference = [check for check in WITH_DIGESTS if check in checks]
        records = run_suite(Path(sys.executable), reference, folder, ROOT)
        if faults := [record["error"] for record in records if "error" in record]:
            raise click.ClickException(f"the fits fail in this environment already: {faults[0]}")
        expected = digests_in(records)
        wheel = build_wheel(folder)
        for version, python in pythons.items():
            for resolution in resolutions if python else ():
                assert python is not None
                click.echo(f"Python {version}, {resolution} versions ...", err=True)
                found.append(tried(version, python, resolution, wheel, checks))
    missing = [version for version, python in pythons.items() if python is None]
    click.echo(table(found, missing, checks, expected))
    sys.exit(1 if not found or any(one.faults(expected) for one in found) else 0)


if __name__ == "__main__":
    main()
