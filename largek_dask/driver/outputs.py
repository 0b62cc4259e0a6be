"""What a fit writes while it runs: checkpoints, labels and events, opened before the first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from largek_dask.algorithms.auto import Choice
from largek_dask.data.rows import Rows
from largek_dask.driver.checkpoint import FitFolder, forget_torn
from largek_dask.driver.event_log import open_sinks
from largek_dask.driver.events import Events, Sink
from largek_dask.driver.labels import LabelStore
from largek_dask.driver.options import FitOptions
from largek_dask.driver.plan import footprint_of, space_needed
from largek_dask.driver.provenance import identity_of, versions
from largek_dask.driver.space import check_space
from largek_dask.driver.storage import Folder

__all__ = ["Outputs"]


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a fit writes, and what it says there of itself."""

    identity: dict[str, Any]
    """What tells the job from another."""
    fingerprint: dict[str, Any]
    """The rows'."""
    job: FitFolder | None
    """The folder of checkpoints, if there is one."""
    labels: LabelStore | None
    """Where labels are written, if they are."""
    events: Events

    @classmethod
    def open(
        cls,
        rows: Rows,
        options: FitOptions,
        choice: Choice,
        *,
        checkpoint: str | Folder | None,
        labels: bool | str | Folder,
        storage_options: Mapping[str, Any] | None,
        sinks: Sequence[Sink | str],
        log: bool,
    ) -> Outputs:
        """Open all of them.

        Parameters
        ----------
        rows : Rows
        options : FitOptions
        choice : Choice
            What is run.
        checkpoint : str or Folder, optional
            Where they are written.
        labels : bool, str or Folder
            Where they are written, unless it only says whether they are wanted.
        storage_options : mapping, optional
            For both.
        sinks : sequence of callable or str
            Sinks of events, or URLs of folders for them.
        log : bool
            Whether events go to the folder of checkpoints as well.

        Raises
        ------
        OutputError, CheckpointError, DataChangedError
            As of ``driver.fit.fit``.
        """
        identity, fingerprint = identity_of(options), rows.fingerprint()
        # No part of what data are: they may be given other ones between two runs.
        names = rows.feature_names
        job = store = None
        if checkpoint is not None:
            folder = Folder.of(checkpoint, storage_options)
            folder.check_writable()
            forget_torn(folder)
            job = FitFolder(folder, identity, {**fingerprint, "feature_names": names}, versions())
            if job.is_new:
                k, n_init = options.n_clusters, choice.n_init
                footprint = footprint_of(rows, choice.algorithm)
                needed = space_needed(rows, k, footprint, n_init=n_init, labels=False)
                check_space(folder, needed, "checkpoints")
        if not isinstance(labels, bool):
            owner = {"job": identity, "data": fingerprint["content"]}
            store = LabelStore(labels, rows.chunk_table, owner, storage_options)
        events = Events(open_sinks(sinks, job.folder if job is not None and log else None))
        return cls(identity, fingerprint, job, store, events)

    @property
    def folder(self) -> Folder | None:
        """The folder of checkpoints."""
        return None if self.job is None else self.job.folder
