"""What commands print as tables: on 60 and 120 columns, with and without colour."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from rich.console import Console

import largek_dask as lk
from largek_dask.cli import main
from largek_dask.cli.common import key_values
from largek_dask.cli.jobs import jobs_table, result_words

COMMANDS = {
    "doctor": "doctor",
    "ingest": "ingest {npy} {out}/ingested.zarr",
    "fit --plan": "fit {x} -k 3 --plan",
    "fit": "fit {x} -k 3 --out {out}/run",
    "predict": "predict {model} {x} --out {out}/labels.zarr",
    "score": "score {model} {x}",
    "coreset": "coreset {x} {out}/few.zarr --rows 50",
    "report --out": "report {run} --out {out}/fit.png",
    "elbow": "elbow {x} --k-max 4",
    "report": "report {run} --out {out}/run.html",
}

WORKERS = {
    f"tcp://10.0.0.{i}:45321": {"rows": 10**9, "compute": 3e3, "read": 10.0, "wait": 1.5,
                                "state_bytes": 1 << 33, "cache_bytes": 1 << 29}
    for i in range(3)
}  # fmt: skip
JOB: dict[str, Any] = {
    "id": "lk-3f9c0d21ab",
    "name": "embeddings of all customers",
    "state": "running",
    "data": "s3://bucket/a/very/long/prefix/of/somebody/embeddings.zarr",
    "output": "s3://bucket/a/very/long/prefix/of/somebody/runs/2026-11-25/embeddings-k10000",
    "n_clusters": 10_000,
    "algorithm": "truncated",
    "max_iter": 300,
    "step": 123,
    "cost": 1234567.8,
    "n_changed": 123_456,
    "rows_per_second": 1.7e6,
    "elapsed": 100.0,
    "eta_s": 4_000.0,
    "created": "2026-11-25T03:00:00",
    "workers": WORKERS,
}
ENDED = JOB | {
    "state": "finished",
    "result": {
        "stop_reason": "converged", "n_iter": 123, "objective": "inertia", "value": 1234567.8,
        "seconds": 100.0, "labels": True, "digest": "0123456789abcdef" * 4,
    },
}  # fmt: skip
OTHERS = {
    "jobs": lambda: jobs_table([JOB, ENDED], {"running": 1, "finished": 1}, "store"),
    "result": lambda: key_values(result_words(ENDED).items()),
}
"""Tables that take a cluster, or long, as they are made of what was told."""


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses that the commands are given."""
    folder = tmp_path_factory.mktemp("widths")
    x = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    found = {name: str(folder / name) for name in ("npy.npy", "x", "run")}
    np.save(found["npy.npy"], x)
    lk.ingest(x, found["x"], progress=False)
    run(f"fit {found['x']} -k 3 --out {found['run']}", 80)
    return found | {"npy": found["npy.npy"], "model": f"{found['run']}/model.zarr"}


def run(line: str, width: int) -> str:
    environment = {"COLUMNS": str(width), "FORCE_COLOR": None, "NO_COLOR": None}
    done = CliRunner().invoke(main, shlex.split(line), env=environment)
    assert done.exit_code == 0, done.output
    return done.stdout


def shown(what: str, width: int, **console: Any) -> str:
    console = Console(width=width, highlight=False, **console)  # type: ignore[assignment]
    with console.capture() as captured:  # type: ignore[attr-defined]
        console.print(OTHERS[what]())  # type: ignore[attr-defined]
    return str(captured.get())


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_fit(command: str, names: dict[str, str], tmp_path: Path) -> None:
    text = run(COMMANDS[command].format(out=tmp_path, **names), 80)
    assert text.strip()
    assert "\x1b" not in text


def test_every_command_with_a_table_is_here() -> None:
    told = {line.split()[0] for line in (*COMMANDS.values(), *OTHERS)}
    # These print lines, ids and words; `demo` and `warmup` have names and values like `fit`.
    lines = {"cluster", "submit", "cancel", "logs", "watch", "warmup", "delete", "demo"}
    assert set(main.commands) == told | lines


@pytest.mark.parametrize("what", OTHERS)
def test_tables_of_jobs_fit(what: str) -> None:
    assert all(cell_len(line) <= 80 for line in shown(what, 80).splitlines())


@pytest.mark.parametrize("width", [80, 120])
def test_a_digest_has_its_line(width: int, names: dict[str, str], tmp_path: Path) -> None:
    line = f"fit {names['x']} -k 3 --out {tmp_path}/run"
    told = json.loads(run(f"{line} --json", width))
    assert any(told["digest"] in row for row in run(line, width).splitlines())


@pytest.mark.parametrize("what", OTHERS)
def test_no_color_is_heeded(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal: no colour where the variable says so, and some where it does not."""
    colour = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38;[\d;]+)m")
    options = {"force_terminal": True, "color_system": "standard"}
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colour.search(shown(what, 80, **options))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour.search(shown(what, 80, **options))
