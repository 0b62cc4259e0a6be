"""Record a fit on one thread as the parts that several threads or workers would share.

The fit divides its work as for many threads, but one thread computes all parts in turn. Each part
is timed. Private names of the package are patched, all of them in :func:`recording`.
"""

from __future__ import annotations

import functools
import math
import pickle
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, NamedTuple
from unittest import mock

from largek_dask.algorithms.truncated.passes import pass_chunk
from largek_dask.driver.fit import fit
from largek_dask.driver.options import FitOptions
from largek_dask.kernels import team, threads
from largek_dask.passes.base import BasePasses, scan_chunk
from largek_dask.passes.chunks import JOINED
from largek_dask.passes.engine import Engine
from largek_dask.passes.prefetch import Block, ChunkSource
from largek_dask.passes.subset import Subset

clock = time.process_time
"""Clock of CPU seconds of all threads, because Zarr decompresses chunks on its own threads."""
STATE_BYTES = 16
"""Bytes of the label and bounds of a row."""
STAGES: dict[str, tuple[str, ...]] = {
    "scan": (),
    "samples": ("passes.subset.Subsets.find", "passes.base.BasePasses.take"),
    "start": (
        "algorithms.truncated.search.TruncatedSearch.init",
        "algorithms.truncated.search.TruncatedSearch.start",
    ),
    "directions": (
        "algorithms.truncated.projected.ProjectedSearch.init",
        "algorithms.truncated.projected.ProjectedSearch.step",
    ),
    "lists": (
        "algorithms.truncated.search.with_neighbours",
        "algorithms.truncated.search.next_pass",
        "algorithms.truncated.passes.pack_centers",
    ),
    "pass": ("algorithms.truncated.search.pass_over",),
    "order": ("algorithms.truncated.passes.order_by_label",),
    "count": ("algorithms.truncated.passes.count_rows",),
    "means": ("algorithms.truncated.search.TruncatedSearch.step",),
    "probe": ("algorithms.truncated.search.probe_sample",),
    "labels": ("driver.starts.Starts._last_pass",),
    "driver": (),
}
"""Functions of each stage. Time belongs to the innermost stage, and all other time to "driver"."""


class Region(NamedTuple):
    """Divided work, and the CPU seconds of each part."""

    stage: str
    parts: list[float]
    pause: float
    """Seconds for which other threads have waited in compiled code; infinity if they begin in
    Python."""


class PassCost(NamedTuple):
    """One pass, which contains the regions ``begin`` to ``end``."""

    begin: int
    end: int
    moved: float
    """Minimum number of bytes of rows and row state that the pass reads."""
    of_table: bool
    """False for a pass over rows that the driver holds."""
    sent: int
    """Bytes of the broadcast."""
    returned: int
    """Bytes of the total of each worker."""
    gathered: int
    """Bytes that workers add to their totals, all together, such as rows of a sample."""


@dataclass
class Recorder:
    """CPU seconds of a fit: serial seconds by stage, regions and passes."""

    serial: Counter[str] = field(default_factory=Counter)
    regions: list[Region] = field(default_factory=list)
    passes: list[PassCost] = field(default_factory=list)
    parts: list[float] | None = None
    """Parts of the current region; None outside regions."""
    stages: list[str] = field(default_factory=lambda: ["driver"])
    mark: float = field(default_factory=clock)
    pause: float = 0.0
    """Seconds since the last region."""

    def lap(self) -> float:
        """Return the seconds since the last call."""
        before, self.mark = self.mark, clock()
        self.pause += self.mark - before
        return self.mark - before

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge serial work to this stage."""
        if self.parts is not None:
            yield
            return
        self.serial[self.stages[-1]] += self.lap()
        self.stages.append(name)
        try:
            yield
        finally:
            self.serial[self.stages.pop()] += self.lap()

    @contextmanager
    def region(self, *, in_python: bool = True) -> Iterator[list[float]]:
        """Collect the seconds of parts, which the caller appends."""
        self.serial[self.stages[-1]] += self.lap()
        pause, self.parts = math.inf if in_python else self.pause, []
        try:
            yield self.parts
        finally:
            self.regions.append(Region(self.stages[-1], self.parts, pause))
            self.parts, self.pause = None, 0.0

    def end_pass(self, passes: BasePasses, spec: Any, begin: int, total: Any) -> None:
        """Note a pass and its bytes."""
        self.serial[self.stages[-1]] += self.lap()
        n_rows, of_table = passes.last.rows, not isinstance(passes, Subset)
        if spec.chunk_fn is pass_chunk and not spec.broadcast[0].is_anchor:
            k, listed = len(spec.broadcast[0].centers), spec.broadcast[0].listed
            n_rows = total.tally.n_evaluated // (k if listed is None else max(1, len(listed) // k))
        moved = n_rows * passes.n_features * passes.rows.dtype.itemsize
        # Only passes over the table are sent to workers.
        values = (spec.broadcast, spec.start(), total) if of_table else ()
        sent, empty, full = [len(pickle.dumps(value)) for value in values] or (0, 0, 0)
        moved += passes.n_rows * STATE_BYTES
        sizes = sent, min(empty, full), max(0, full - empty)
        self.passes.append(PassCost(begin, len(self.regions), moved, of_table, *sizes))
        self.lap()


def recorded(rows: Any, k: int, n_threads: int, driver: int = 0, **options: Any) -> Recorder:
    """Return the record of a fit whose work is divided as for ``n_threads`` threads.

    For predictions on workers, only work between passes is divided, for ``driver`` threads, and
    labels are not returned.
    """
    found = Recorder()
    with recording(found, driver):
        found.lap()
        with found.stage("driver"):
            chosen = FitOptions(n_clusters=k, algorithm="truncated", **options)
            fit(rows, chosen, n_threads=n_threads, labels=driver == 0)
    return found


@contextmanager
def recording(to: Recorder, driver: int = 0) -> Iterator[None]:
    """Patch the package so that one thread computes and times all parts."""
    shared, timed, start = threads.on_threads, BasePasses._timed, ChunkSource.start
    share = threads._share
    work, count, next_block = Engine._work, Engine._count, ChunkSource.next

    def on_threads(n: int, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        items, found = list(items), []
        if n <= 1 or len(items) <= 1 or to.parts is not None:
            return [function(item) for item in items]
        with to.region() as parts:
            for item in items:
                found.append(function(item))
                parts.append(to.lap())
        return found

    def share_kernel(
        memory: Any, begin: Any, n_parts: int, most: int, arguments: Any, check: Any
    ) -> None:
        if most == 0 or to.parts is not None:
            share(memory, begin, n_parts, 0, arguments, check)
            return
        begin(memory.control, memory.address, n_parts, 0, *arguments)
        with to.region(in_python=False) as parts:
            while not team.work(memory.control, 1, 0):
                parts.append(to.lap())
        team.end(memory.control, 1)

    def time_pass(self: BasePasses, spec: Any, *given: Any) -> Any:
        begin = len(to.regions)
        with to.stage("scan") if spec.chunk_fn is scan_chunk else nullcontext():
            total = timed(self, spec, *given)
        to.end_pass(self, spec, begin, total)
        return total

    def work_here(self: Engine, ticket: Any, *given: Any) -> None:
        with to.region() if ticket.chunks != {JOINED} else nullcontext():
            work(self, ticket, *given)

    def on_pool(self: Engine, ticket: Any, stop: Any, until: Any) -> None:
        ticket.source.start(None)
        self._work(ticket, 0, ticket.report, stop, until)

    def count_here(self: Engine, ticket: Any, *given: Any) -> None:
        count(self, ticket, *given)
        if to.parts is not None:
            to.parts.append(to.lap())

    def read_here(self: ChunkSource) -> Block | None:
        if self._stored and not (self._ready or self._stopped):
            self._ready.append(self._read(self._stored.popleft()))
        return next_block(self)

    def staged(function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            with to.stage(stage):
                return function(*args, **options)

        return call

    changes = {
        "kernels.threads._share": share_kernel,
        "passes.base.BasePasses._timed": time_pass,
        "passes.engine.Engine._work": work_here,
        "passes.engine.Engine._on_pool": on_pool,
        "passes.engine.Engine._count": count_here,
        "passes.prefetch.ChunkSource.start": lambda self, _: start(self, None),
        "passes.prefetch.ChunkSource.next": read_here,
    }
    if driver:
        own = property(lambda self: threads.Threads(driver, self.raise_if_stopped))
        changes["passes.base.BasePasses.threads"] = own
    for stage, names in STAGES.items():
        changes |= {name: staged(resolve_name(f"largek_dask.{name}"), stage) for name in names}
    with ExitStack() as stack:
        for module in list(sys.modules.values()):
            if getattr(module, "on_threads", None) is shared:
                stack.enter_context(mock.patch.object(module, "on_threads", on_threads))
        for name, changed in changes.items():
            stack.enter_context(mock.patch(f"largek_dask.{name}", changed))
        yield
