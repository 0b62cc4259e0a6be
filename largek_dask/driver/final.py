"""Label all rows and compute exact sums, in one pass.

The problem (``algorithms.problem``) defines labels and sums. This module groups chunks, keeps
labels in memory or storage, and resumes a killed run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.algorithms.parts.totals import Additive
from largek_dask.algorithms.problem import Labelled, Labelling
from largek_dask.driver.formatting import short_number
from largek_dask.driver.labels import GROUP_CHUNKS, LabelStore, LabelWriter, group_chunks
from largek_dask.driver.storage import sha256_of
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.passes.base import BasePasses
from largek_dask.passes.chunks import ChunkView

TRIAL_ROWS = 2_048
"""Number of rows in a timing trial of the last pass; the fastest of several trials is used."""
TRIALS = 3
BINS = 32
"""Number of bins in a histogram of cluster sizes."""
MORE = 1.25
"""Factor in the time estimate that allows for reading rows and storing labels; not tuned."""


@dataclass
class LabelTotal(Additive):
    """Labels of each chunk, and named sums of a labelling."""

    labels: dict[int, NDArray[Any]]
    sums: dict[str, ExactSums]

    @classmethod
    def of(cls, lengths: Mapping[str, int]) -> LabelTotal:
        sums = {name: ExactSums(length) for name, length in lengths.items()}
        sums["n_bad"] = ExactSums(1)
        return cls({}, sums)


def label_chunk(
    chunk: Chunk,
    total: LabelTotal,
    label: Callable[..., NDArray[Any]],
    skipped: float,
    keep_labels: bool,
    writer: LabelWriter | None,
    *model: Any,
) -> None:
    """Label the rows of a chunk, add them to the sums, and write or keep their labels."""
    labels = label(chunk, total.sums, *model)
    chunk.keep(labels=labels)
    if chunk.bad is not None:
        labels = np.where(chunk.bad, labels.dtype.type(skipped), labels)
        total.sums["n_bad"].add(chunk.bad.astype(np.float64))
    if writer is not None:
        writer.write(chunk.start, labels)
    elif keep_labels:
        total.labels[chunk.index] = labels


def label_rows(
    passes: BasePasses,
    labelling: Labelling,
    *,
    labels: bool = True,
    out: LabelStore | None = None,
    report: Callable[[int], None] | None = None,
) -> Labelled:
    """Label all rows in one pass; with ``labels=False``, compute only the sums.

    If ``out`` is given, labels are written to it and an interrupted run is continued; otherwise
    labels are returned. ``report`` is called after each group of chunks with the number of rows
    done.
    """
    table = passes.rows.chunk_table
    done, first = LabelTotal.of(labelling.sums), 0
    if out is not None:
        model = " ".join(model_hashes(labelling).values())
        first, sums = passes.retry(lambda: out.begin(model))
        done.sums.update(sums)
    in_memory = np.empty(passes.n_rows, labelling.values.dtype) if labels and out is None else None
    writer = None if out is None else out.writer
    sent = labels and writer is None
    # Small groups would leave many workers without a chunk.
    least = 1 if sent else max(1, GROUP_CHUNKS * passes.worker_threads)
    for group in group_chunks(table[first:], least=least):
        chunks = [first + i for i in group]
        total: LabelTotal = passes.reduce(
            label_chunk,
            labelling.chunk_fn,
            labelling.values.skipped,
            labels,
            writer,
            *labelling.broadcast,
            start=partial(LabelTotal.of, labelling.sums),
            combine=LabelTotal.combine,
            state=labelling.state,
            chunks=chunks,
        )
        start, stop = int(table[chunks[0]]), int(table[chunks[-1] + 1])
        if total.labels:
            together = np.concatenate([total.labels.pop(i) for i in chunks])
            if in_memory is not None:
                in_memory[start:stop] = together
            elif out is not None:
                passes.retry(partial(out.local_writer.write, start, together))
        done.merge(total)
        if out is not None:
            passes.retry(partial(out.record, chunks[-1] + 1, done.sums))
        if report is not None:
            report(stop)
    return Labelled(in_memory, done.sums)


def model_hashes(labelling: Labelling) -> dict[str, str]:
    """Return hashes of the arrays that identify the model of a labelling."""
    return {name: sha256_of(array) for name, array in labelling.marks.items()}


def sizes_of(counts: NDArray[np.float64]) -> dict[str, Any]:
    """Return the fields of the event "sizes"; empty if all counts are 0.

    Examples
    --------
    >>> sizes = sizes_of(np.array([0.0, 1.0, 10.0, 1000.0]))
    >>> sizes["n_empty"], sizes["least"], sizes["median"], sizes["most"]
    (1, 1, 10, 1000)
    >>> len(sizes["edges"]), sum(sizes["counts"])
    (33, 3)
    """
    found = np.asarray(counts, np.float64)
    found = found[np.isfinite(found) & (found > 0)]
    if not len(found):
        return {}
    least, most = float(found.min()), float(found.max())
    edges = np.geomspace(least, most if most > least else 2 * least, BINS + 1)
    # Rounding must not put a cluster outside all bins.
    edges[0], edges[-1] = least, max(most, edges[-1])
    binned, _ = np.histogram(found, edges)
    return {
        "n_empty": len(counts) - len(found),
        "least": short_number(least),
        "median": short_number(float(np.median(found))),
        "mean": short_number(float(found.mean())),
        "most": short_number(most),
        "edges": [short_number(float(edge)) for edge in edges],
        "counts": [int(n) for n in binned],
    }


def seconds_of_last_pass(passes: BasePasses, labelling: Labelling) -> float:
    """Estimate the time of :func:`label_rows` by trials on a few rows.

    The fastest of several trials is used, because the first also prepares
    ``kernels.bounds.pruned``.
    """
    if labelling.expect is not None:
        labelling.expect(passes.n_rows, *labelling.broadcast)
    x = passes.take(_rows_of_trial(passes)).x
    chunk = ChunkView(0, 0, x, None)
    seconds = []
    for _ in range(TRIALS):
        total = LabelTotal.of(labelling.sums)
        begun = time.monotonic()
        labelling.chunk_fn(chunk, total.sums, *labelling.broadcast)
        seconds.append(time.monotonic() - begun)
    return MORE * min(seconds) * passes.n_rows / len(x) / passes.threads.n


def _rows_of_trial(passes: BasePasses) -> NDArray[np.int64]:
    """Return indices of rows for a timing trial; stored rows are taken from the first chunk."""
    here = passes.n_rows if passes.in_one_piece() is not None else int(passes.chunk_table[1])
    here = min(max(here, TRIAL_ROWS), passes.n_rows)
    n = min(here, TRIAL_ROWS)
    return np.arange(n) * here // n
