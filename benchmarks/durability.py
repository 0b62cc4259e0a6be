"""The price of outputs that survive a power failure: syncs, and seconds beside ``dd``.

    python -m benchmarks.durability [--folder DIR] [--write]

Writes a record, checkpoints, models, labels and an ingested store into a folder of a local disk,
and as many bytes by ``dd conv=fsync`` after each; the medians of some turns count.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import largek_dask as lk
from benchmarks.common import RESULTS, cpu_description, new_parser, parse
from benchmarks.tables import publish, table_of
from largek_dask.algorithms.kmeans import CenterArrays
from largek_dask.algorithms.lloyd import LloydState
from largek_dask.driver.checkpoint import Checkpoints, Progress
from largek_dask.driver.labels import LabelStore
from largek_dask.driver.storage import Folder
from largek_dask.model import Model

TURNS = 7
ROW_CHUNK = 65_536
N_LABELS = 4_000_000
N_ROWS, N_FEATURES = 400_000, 64
CENTERS = ((100, 16), (5_000, 32), (100_000, 64))


def centers_of(k: int, d: int) -> CenterArrays:
    """Random centres."""
    draws = np.random.default_rng(k)
    return CenterArrays(draws.random((k, d), np.float32), np.ones(k), np.zeros(d, np.float32))


def write_record(place: Path) -> None:
    """A record as a scheduler keeps it of a job."""
    Folder(str(place)).publish("record.json", b"x" * 4_096)


def write_checkpoint(place: Path, k: int, d: int) -> None:
    """A checkpoint of Lloyd's algorithm."""
    arrays = centers_of(k, d)
    state = LloydState(arrays.centers, arrays.counts, arrays.shift, None)
    Checkpoints(Folder(str(place)), LloydState).save(Progress(state, 1, [], 0.0))


def write_model(place: Path, k: int, d: int) -> None:
    """A model of centres."""
    Model(centers_of(k, d)).save(str(place / "model.zarr"))


def write_labels(place: Path) -> None:
    """Labels, chunk by chunk, as one worker writes them."""
    table = np.append(np.arange(0, N_LABELS, ROW_CHUNK), N_LABELS)
    store = LabelStore(str(place / "labels.zarr"), table, {"model": "none"})
    store.begin("none")
    writer = store.writer
    assert writer is not None, "chunks of rows are those of labels"
    for start, stop in pairwise(table.tolist()):
        writer.write(start, np.zeros(stop - start, np.int32))
    store.record(len(table) - 1, {})
    store.finish({})


def ingest_rows(place: Path) -> None:
    """Rows from memory into a store."""
    x = np.random.default_rng(0).random((N_ROWS, N_FEATURES), np.float32)
    lk.ingest(x, place / "rows.zarr", progress=False)


def cases() -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Functions that write something, with names."""
    yield "record of a job", write_record
    for k, d in CENTERS:
        yield f"checkpoint, {k:,} × {d}", lambda place, k=k, d=d: write_checkpoint(place, k, d)
    for k, d in CENTERS:
        yield f"model, {k:,} × {d}", lambda place, k=k, d=d: write_model(place, k, d)
    yield f"labels of {N_LABELS:,} rows", write_labels
    yield f"ingest of {N_ROWS:,} × {N_FEATURES}", ingest_rows


@contextmanager
def syncs(sync: Callable[[int], None]) -> Iterator[list[int]]:
    """Replace ``os.fsync`` by ``sync``, and count its calls."""
    calls = [0]
    before = os.fsync

    def counted(number: int) -> None:
        calls[0] += 1
        sync(number)

    os.fsync = counted
    try:
        yield calls
    finally:
        os.fsync = before


def timed(folder: Path, write: Callable[[Path], None]) -> tuple[float, int]:
    """Seconds of one write into a new folder, and its bytes."""
    place = folder / "case"
    place.mkdir()
    os.sync()
    begun = time.perf_counter()
    write(place)
    seconds = time.perf_counter() - begun
    n_bytes = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    shutil.rmtree(place)
    return seconds, n_bytes


def by_dd(folder: Path, n_bytes: int) -> float:
    """Seconds in which ``dd`` writes as many bytes and syncs them."""
    source, target = folder / "source", folder / "target"
    source.write_bytes(b"\1" * n_bytes)
    os.sync()
    command = ["dd", f"if={source}", f"of={target}", "bs=1M", "conv=fsync", "status=none"]
    begun = time.perf_counter()
    subprocess.run(command, check=True)
    seconds = time.perf_counter() - begun
    source.unlink()
    target.unlink()
    return seconds


def measure(folder: Path, turns: int = TURNS) -> dict[str, Any]:
    """Figures of all cases, the ways to write in turns."""
    rows = []
    for name, write in cases():
        times: dict[str, list[float]] = {"seconds": [], "unsynced": [], "dd": []}
        n_syncs = n_bytes = 0
        for _ in range(turns):
            with syncs(os.fsync) as calls:
                seconds, n_bytes = timed(folder, write)
            n_syncs = calls[0]
            times["seconds"].append(seconds)
            with syncs(lambda number: None):
                times["unsynced"].append(timed(folder, write)[0])
            times["dd"].append(by_dd(folder, n_bytes))
        medians = {key: median(values) for key, values in times.items()}
        rows.append({"name": name, "bytes": n_bytes, "syncs": n_syncs, **medians})
        print(rows[-1], flush=True)
    return {"cpu": cpu_description(), "load": os.getloadavg()[0], "rows": rows}


def _seconds(value: float) -> str:
    return f"{1e3 * value:.1f} ms" if value < 1 else f"{value:.2f} s"


def table(result: dict[str, Any]) -> str:
    """The markdown table: a line for each kind of output."""
    rows = [
        [
            row["name"],
            f"{row['bytes'] / 1e6:,.2f} MB",
            f"{row['syncs']}",
            *(_seconds(row[key]) for key in ("seconds", "unsynced", "dd")),
            f"{row['seconds'] / row['dd']:.1f}x",
        ]
        for row in result["rows"]
    ]
    head = ["written", "bytes", "syncs", "time", "without syncs", "`dd conv=fsync`", "beside `dd`"]
    note = (
        "Medians of some turns on one local disk, beside `dd` with as many bytes in one file; what "
        "is written without syncs has its price too, checksums and a file for each array and "
        "chunk. Labels are written by one thread, in pieces of 65,536 rows that take two syncs "
        f"each. Load of the machine at the end: {result['load']:.0f}. {result['cpu']}. Made by "
        "`python -m benchmarks.durability --write`."
    )
    return "\n".join([*table_of(head, rows), "", note])


def main() -> None:
    """Measure, and write if asked to."""
    parser = new_parser(__doc__)
    parser.add_argument("--folder", help="a folder of the disk to measure")
    args = parse(parser)
    with tempfile.TemporaryDirectory(dir=args.folder or RESULTS) as folder:
        result = measure(Path(folder))
    publish("durability", result, write=args.write)


if __name__ == "__main__":
    main()
