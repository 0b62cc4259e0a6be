"""What a case gives, in few characters, and how it differs from what is expected."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import largek_dask as lk
from tests.digests.cases import Case
from tests.digests.tables import Shelf, Table, rows_of, weights_of

GOLDEN = Path(__file__).parent / "golden.json"
NO_BITS = "seconds"
"""The only field of a history that may be another one each time."""

WHAT_TO_DO = """
If no bits were to change, the change is wrong. If they were: `python -m tests.digests --write`
writes what there is now, and CHANGELOG.md and the commit message say why bits have changed."""

Digest = dict[str, Any]
Fitted = lk.KMeans | lk.Mixture


def short(data: bytes | str) -> str:
    """The first digits of its sha256."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:12]


def fit(case: Case, shelf: Shelf, n_threads: int | None = None) -> tuple[Fitted, list[str]]:
    """The fit of a case, and the warnings that it has given."""
    km = case.estimator(n_threads)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        km.fit(shelf.rows(case.table))
    return km, sorted({type(warning.message).__name__ for warning in told})


def digest_of(km: Fitted, told: list[str]) -> Digest:
    """All of a fit that has to be the same bits."""
    labels = np.ascontiguousarray(km.labels_, "<i4")
    objective = km.model_.objective.name
    return {
        "model": km.model_.digest()[:16],
        "labels": short(labels.tobytes()),
        objective: float(getattr(km, f"{objective}_")).hex(),
        "n_iter": km.n_iter_,
        "stop_reason": km.stop_reason_,
        "warnings": told,
        "history": history_of(km.history_),
    }


def history_of(history: tuple[Mapping[str, Any], ...]) -> dict[str, str]:
    """A digest of each field over all steps."""
    fields: dict[str, dict[int, Any]] = {}
    for step in history:
        flat = {name: value for name, value in step.items() if name not in ("extra", NO_BITS)}
        flat |= {f"extra.{name}": value for name, value in step["extra"].items()}
        for name, value in flat.items():
            fields.setdefault(name, {})[step["step"]] = value
    return {name: short(json.dumps(values))[:6] for name, values in sorted(fields.items())}


def digest_of_rows(table: Table) -> str:
    """Of what is fitted: where it differs, no fit can be the same."""
    x, weight = rows_of(table), weights_of(table)
    parts = [x.data, x.indices, x.indptr] if table.dtype == "csr" else [x]
    parts += [] if weight is None else [weight]
    return short(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))


def golden() -> dict[str, Any]:
    """What is expected: digests by case, and of tables."""
    return json.loads(GOLDEN.read_text())


def expected_of(families: Collection[str], found: Collection[str]) -> dict[str, Any]:
    """What is expected of all cases of some families, and of what else was found."""
    begins = tuple(f"{family}: " for family in families)
    return {
        name: digest
        for name, digest in golden().items()
        if name in found or name.startswith(begins)
    }


def write(found: Mapping[str, Any]) -> None:
    """A line a case, in order, so that a person can compare them."""
    lines = (f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found))
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, list[str]]:
    """By case: which fields differ, and how; all of them where only one has the case."""
    differ = {}
    for name in sorted(expected.keys() | found.keys()):
        if name not in expected or name not in found:
            differ[name] = ["is new" if name in found else "is no longer there"]
        elif fields := list(_fields(_flat(expected[name]), _flat(found[name]))):
            differ[name] = fields
    return differ


def _flat(digest: Any) -> dict[str, Any]:
    if not isinstance(digest, dict):
        return {"rows": digest}
    history = {f"history.{name}": value for name, value in digest["history"].items()}
    return {name: value for name, value in digest.items() if name != "history"} | history


def _fields(expected: dict[str, Any], found: dict[str, Any]) -> Any:
    for name in dict.fromkeys([*expected, *found]):
        before, after = expected.get(name), found.get(name)
        if before != after:
            yield f"{name}: {before} -> {after}"


def report(differ: Mapping[str, list[str]]) -> str:
    """The differences for a person."""
    lines = [
        line for name, fields in differ.items() for line in (name, *(f"    {f}" for f in fields))
    ]
    return "\n".join([f"{len(differ)} digests differ:", *lines])
