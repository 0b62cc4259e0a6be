"""Shuffle a stream of rows by a seed, with bounded memory.

Each row is written to a random bucket (an unnamed temporary file). Each bucket is then read,
permuted and returned. All permutations are equally likely (Rao 1961; Sanders 1998). A bucket has 64
MB, or 1/256 of the data if that is more; one bucket and one block are in memory. The temporary
files are as large as the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

BUCKET_BYTES = 64 << 20
MAX_BUCKETS = 256


def n_buckets_for(n_bytes: int) -> int:
    """Return the number of buckets for data of this size."""
    return min(max(1, -(-n_bytes // BUCKET_BYTES)), MAX_BUCKETS)


def shuffled(
    blocks: Iterable[NDArray[Any]], *, seed: int, n_buckets: int, folder: str | None = None
) -> Iterator[NDArray[Any]]:
    """Yield the rows of all blocks in a permutation that depends on ``seed`` and ``n_buckets``.

    The division into blocks does not affect the result. Temporary files are created in ``folder``,
    or in the system's temporary folder if None.
    """
    choose = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(0,))))
    with ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile(dir=folder)) for _ in range(n_buckets)]
        width, dtype = 0, np.dtype(np.float32)
        for block in blocks:
            width, dtype = block.shape[1], block.dtype
            # Draw one number per row, so that the result does not depend on the blocks.
            bucket = (choose.random(len(block)) * n_buckets).astype(np.intp)
            order = np.argsort(bucket, kind="stable")
            ends = np.cumsum(np.bincount(bucket, minlength=n_buckets)).tolist()
            for file, begin, end in zip(files, [0, *ends[:-1]], ends, strict=True):
                if end > begin:
                    file.write(block[order[begin:end]].tobytes())
        for number, file in enumerate(files):
            file.seek(0)
            rows = np.frombuffer(file.read(), dtype)
            file.truncate(0)
            if len(rows) == 0:
                continue
            rows = rows.reshape(-1, width)
            key = np.random.SeedSequence(seed, spawn_key=(1, number))
            permutation = np.random.Generator(np.random.Philox(key)).permutation(len(rows))
            yield rows[permutation]
