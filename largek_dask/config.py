"""Defaults, kept in ``dask.config`` under the key ``largek``.

Any of them can be set as ``dask.config.set({"largek.kernels.tile": "avx2"})``, in a YAML file
that Dask reads, or by environment (``DASK_LARGEK__KERNELS__TILE=avx2``).
"""

from __future__ import annotations

from typing import Any

import dask.config

__all__ = ["DEFAULTS", "get"]

DEFAULTS: dict[str, Any] = {
    "kernels": {
        # register tile of the dense kernels: auto | avx512 | avx2 | plain
        "tile": "auto",
        # where compiled code is kept; None: the user's cache folder
        "cache-dir": None,
    },
    "data": {
        # bytes of one chunk of an in-memory array (bounded by rows below)
        "memory-chunk-bytes": 1 << 21,
        # bytes to which small stored chunks are grouped on reading
        "read-chunk-bytes": 16 << 20,
        # rows of one chunk of a store that `ingest` writes
        "ingest-chunk-rows": 65_536,
    },
    "passes": {
        # bytes of row state a process may keep; None: a quarter of its memory
        "row-state-bytes": None,
        # bytes of chunks a process may keep between passes instead of reading them again
        "cache-bytes": 512 << 20,
        # a task gives its worker thread back after this many seconds; with more than 200 workers
        # after as many times that as there are 200
        "slice-seconds": 2.0,
        # above this many bytes of partial results together, reduce in a tree over workers
        "tree-bytes": 64 << 20,
        # a worker that gives no sign for so many seconds is not waited for any longer
        "silent-seconds": 60.0,
        # a worker is a straggler after so many seconds, if others needed less than a quarter of it
        "straggler-seconds": 10.0,
        # how often one chunk may fail with its worker before the job fails with its name
        "chunk-retries": 4,
        # where rows that live in one process are written for a cluster; None: the temporary
        # folder, which does where workers run on the same machine
        "spill-folder": None,
    },
    "stores": {
        # how often a read or a write is tried that a file system or a network fails
        "tries": 4,
        # pause before the second try; doubles with every further one
        "pause-seconds": 0.2,
        # how long a fit waits for storage that is away nevertheless
        "patience-seconds": 60.0,
    },
    "checkpoints": {
        # how many of the last ones are kept
        "keep": 3,
        # seconds between two of them, at least
        "seconds": 30.0,
    },
    # where a scheduler keeps its jobs (a URL); None: a folder of the user who runs it
    "store": None,
    "service": {
        # jobs that run at the same time; others wait
        "concurrent-jobs": 4,
        # how often a scheduler shows that it still has its store, and each of its jobs
        "beat-seconds": 3.0,
        # a scheduler that has not shown it for so long has lost them to whoever claims them; at
        # least twice the beat
        "patience-seconds": 20.0,
        # how long a job that waits (for storage, credentials that fit, workers of its version) is
        # tried again before it fails
        "retry-hours": 24.0,
        # longest pause between two such tries
        "retry-seconds": 300.0,
        # how long a scheduler that is shut down waits for its jobs' last checkpoints
        "shutdown-seconds": 25.0,
        # how long a submit waits for workers to say whether they can open the data
        "check-seconds": 20.0,
    },
    "observe": {
        # whether a scheduler's dashboard has a page of its jobs, at /largek
        "dashboard": True,
        # whether whoever can open that page may cancel jobs: Dask's dashboard has no login
        "actions": False,
        # further host names under which that page answers, such as those of a hub or a proxy:
        # hub.example.org, .example.org with all names below it, or "*" for any (then a web site
        # may read the page through the browser of whoever can reach it)
        "hosts": [],
    },
}

dask.config.update_defaults({"largek": DEFAULTS})


def get(key: str) -> Any:
    """The value of ``largek.<key>``, e.g. ``get("kernels.tile")``."""
    return dask.config.get(f"largek.{key}")
