"""Delete jobs that have ended.

A deletion is noted in the job's record before any file goes, and the record goes last: the next
scheduler finishes one that was interrupted.
"""

from __future__ import annotations

import logging
import time
from functools import partial

from largek_dask.driver.storage import Folder
from largek_dask.errors import JobNotFoundError, LargekError
from largek_dask.service.credentials import options_of, output_folder
from largek_dask.service.fitting import JOB_FILES, LABELS, MODEL, UNFINISHED_LABELS
from largek_dask.service.job_state import JobState
from largek_dask.service.job_table import JobTable
from largek_dask.service.lanes import Lanes
from largek_dask.service.lease import claimed_for
from largek_dask.service.tenure import Tenure

__all__ = ["Deletions"]

logger = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""Interval between retries of an interrupted deletion."""


class Deletions:
    """Deletes jobs that have ended, and finishes interrupted deletions.

    Parameters
    ----------
    table : JobTable
    tenure : Tenure
    """

    def __init__(self, table: JobTable, tenure: Tenure) -> None:
        self._table = table
        self._tenure = tenure
        self._lanes = Lanes("largek-deletions")
        self._next_try = 0.0

    def delete(self, job_id: str, outputs: bool = True) -> int:
        """Delete a job that has ended: its record, checkpoints and events.

        Parameters
        ----------
        job_id : str
        outputs : bool
            Whether its model and labels are deleted as well.

        Returns
        -------
        int
            Bytes of its files.

        Raises
        ------
        ParameterError
            It has not ended (a job that waits for credentials may be cancelled), or the values of
            storage options are needed to delete its files.
        JobNotFoundError
            There is no such job.
        """
        job = self._table.find(job_id)
        with self._table.alone(job, "deleted", "cancel it first"):
            size = self._delete(job, outputs)
        job.feed({"event": "deleted", "run": job.record.run})
        return size

    def finish(self) -> None:
        """Finish interrupted deletions, if it is time to retry; called again and again."""
        if (now := time.monotonic()) < self._next_try:
            return
        self._next_try = now + RETRY_SECONDS
        for job in self._table.jobs():
            if job.record.deleting is not None:
                self._lanes.run(job.record.id, partial(self._finish, job))

    def _finish(self, job: JobState) -> None:
        job_id = job.record.id
        try:
            self.delete(job_id, job.record.deleting == "outputs")
        except JobNotFoundError:
            # A client has deleted it meanwhile.
            return
        except Exception as error:  # drivers raise errors of their own kinds
            kind = "" if isinstance(error, LargekError) else f"{type(error).__name__}: "
            logger.info("Job %s is not deleted yet: %s", job_id, job.redact(f"{kind}{error}"))
            return
        logger.info("Job %s is deleted, as was asked for before", job_id)

    def _delete(self, job: JobState, outputs: bool) -> int:
        """Delete a job that the caller has for itself; bytes of its files."""
        records, spec = self._tenure.records, job.record.spec
        # As long as the store is this scheduler's.
        folder = output_folder(spec, options_of(spec, job.secrets)).guarded(records.check)
        outputs = outputs or job.record.deleting == "outputs"
        deleting = "outputs" if outputs else "files"
        if job.record.deleting != deleting:
            job.change(records.update, deleting=deleting)
        names = _files(job, folder, outputs)
        size = sum(map(folder.size_of, names))
        for name in names:
            folder.remove(name)
        job.forget(lambda: records.remove(job.record.id))
        self._table.remove(job.record.id)
        return size


def _files(job: JobState, folder: Folder, outputs: bool) -> list[str]:
    """Files of a job in its folder, in the order in which they are deleted."""
    if claimed_for(folder) not in (None, job.record.id):
        # A job that failed because its folder belongs to another one leaves that folder alone.
        return []
    found = set(folder.names())
    if not outputs:
        # Incomplete labels are useless.
        is_whole = UNFINISHED_LABELS not in found
        found -= {MODEL, LABELS} if is_whole else {MODEL}
    return [name for name in JOB_FILES if name in found]
