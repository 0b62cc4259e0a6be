"""Rows per second and core that each format gives to a pass.

    python -m benchmarks.formats [--write]

100,000 rows of 768 float32 on a local disk whose cache holds them, read once in order by one
thread. The median of three readings in CPU seconds. A last line has the rows per second that exact
labels take with 4,096 centres, for comparison.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import largek_dask as lk
from benchmarks.common import cpu_description, new_parser, parse, rounded
from benchmarks.tables import publish, table_of

N, D, K, READINGS = 100_000, 768, 4_096, 3
GROUPS = (1_000, 65_536, 1_048_576)


def files(folder: Path) -> dict[str, tuple[str, str]]:
    """Write the rows in every format; return path and use by name."""
    import pyarrow as pa
    import pyarrow.feather as feather
    import pyarrow.parquet as pq

    x = np.random.default_rng(0).standard_normal((N, D), np.float32)
    ends = pa.array(np.arange(N + 1, dtype=np.int32) * D)
    table = pa.table({"e": pa.ListArray.from_arrays(ends, pa.array(x.ravel()))})
    found = {}
    for compression in ("none", "zstd"):
        for group in GROUPS:
            path = folder / f"{compression}-{group}.parquet"
            pq.write_table(table, path, row_group_size=group, compression=compression)
            packed = "uncompressed" if compression == "none" else compression
            found[f"Parquet, {packed}, row groups of {group:,}"] = str(path), "in place"
    feather.write_feather(table, folder / "x.feather", compression="uncompressed")
    found["Arrow IPC, uncompressed"] = str(folder / "x.feather"), "in place"
    np.save(folder / "x.npy", x)
    found["npy"] = str(folder / "x.npy"), "in place"
    lk.ingest(x, folder / "x.zarr", progress=False)
    found["Zarr of `ingest`"] = str(folder / "x.zarr"), "in place"
    return found


def rows_per_second(path: str) -> float:
    """Read all chunks in order, three times."""
    seconds = []
    for _ in range(READINGS):
        begun = time.process_time()
        rows = lk.open_rows(path)
        total = sum(float(rows.read(i).sum()) for i in range(rows.n_chunks))
        seconds.append(time.process_time() - begun)
        assert np.isfinite(total)
    return N / statistics.median(seconds)


def labelling() -> float:
    """Label rows by random centres on one thread."""
    x = np.random.default_rng(1).standard_normal((8_192, D), np.float32)
    centers = np.random.default_rng(2).standard_normal((K, D), np.float32)
    model = lk.KMeans(K, init=centers, max_iter=1, n_init=1, n_threads=1).fit(x).model_
    model.predict(x, n_threads=1)
    begun = time.process_time()
    model.predict(x, n_threads=1)
    return len(x) / (time.process_time() - begun)


def table(result: dict[str, Any]) -> str:
    """Format the result."""
    lines = [
        (one["format"], one["use"], f"{one['rate']:,.0f}", f"{one['rate'] * D * 4 / 1e6:,.0f}")
        for one in result["records"]
    ]
    head = ("format", "use", "rows per second", "MB/s")
    return "\n".join(table_of(head, lines)) + (
        f"\n\n{N:,} × {D} float32, decoded by one thread; sums of all values included. CPU "
        f"seconds; the last line is a pass that labels rows by {K:,} random centres. Processor: "
        f"{result['cpu']}. This table was made by `python -m benchmarks.formats --write`."
    )


def main() -> None:
    """Measure all formats."""
    args = parse(new_parser(__doc__))
    with tempfile.TemporaryDirectory() as folder:
        records = [
            {"format": name, "use": use, "rate": rows_per_second(path)}
            for name, (path, use) in files(Path(folder)).items()
        ]
    name = f"labels of {K:,} clusters, any format"
    records.append({"format": name, "use": "", "rate": labelling()})
    result = {"cpu": cpu_description(), "records": records}
    publish("formats", rounded(result, 4), write=args.write)


if __name__ == "__main__":
    main()
