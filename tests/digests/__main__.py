"""Compare all digests with those in ``golden.json``, or write these anew."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

import click

from tests.digests.cases import FAMILIES
from tests.digests.fits import (
    Digest,
    differences,
    digest_of,
    digest_of_rows,
    expected_of,
    fit,
    golden,
    report,
    write,
)
from tests.digests.tables import Shelf


def found_by(families: Collection[str], n_threads: int | None) -> dict[str, str | Digest]:
    """The digests of some families, as of this code."""
    found: dict[str, str | Digest] = {}
    with tempfile.TemporaryDirectory() as folder:
        shelf = Shelf(Path(folder))
        for family in families:
            cases = FAMILIES[family]
            begun = time.process_time()
            for case in cases:
                found[case.name] = digest_of(*fit(case, shelf, n_threads))
                found[f"rows: {case.table}"] = digest_of_rows(case.table)
            seconds = time.process_time() - begun
            print(f"{family}: {len(cases)} fits, {seconds:.1f} s CPU", flush=True)
    return found


@click.command()
@click.argument("families", nargs=-1, type=click.Choice(list(FAMILIES)))
@click.option("--write", "writes", is_flag=True, help="Write golden.json anew.")
@click.option("--threads", type=int, help="Computing threads; without it: one a core.")
def main(families: tuple[str, ...], writes: bool, threads: int | None) -> None:
    """Say which digests differ, case by case and field by field; exit status 1 if any does.

    FAMILIES: only of these algorithms; without any: all there are.
    """
    asked = families or tuple(FAMILIES)
    found = found_by(asked, threads)
    expected = expected_of(asked, found) if families else golden()
    differ = differences(expected, found)
    print(report(differ) if differ else f"{len(found)} digests as expected")
    if writes:
        others = {name: digest for name, digest in golden().items() if name not in expected}
        write(others | found)
    sys.exit(1 if differ and not writes else 0)


if __name__ == "__main__":
    main()
