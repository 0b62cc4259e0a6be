"""What a submit looks at before a job is kept: nothing that could be known fails later."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from largek_dask import config
from largek_dask.algorithms.auto import Choice
from largek_dask.data.rows import Rows
from largek_dask.data.sources import open_rows
from largek_dask.driver.checkpoint import check_place
from largek_dask.driver.events import Event
from largek_dask.driver.fit import checked
from largek_dask.driver.plan import FitMemory, fit_memory, footprint_of, space_needed
from largek_dask.driver.space import check_space
from largek_dask.driver.stopping import ENDS
from largek_dask.errors import LargekError, NotEnoughMemoryError, OutputError, ParameterError
from largek_dask.passes.worker_selection import use_selection
from largek_dask.redaction import Redactor
from largek_dask.service.credentials import missing, options_of, output_folder
from largek_dask.service.job_state import JobState
from largek_dask.service.job_table import JobTable
from largek_dask.service.lease import claimed_for, reserve
from largek_dask.service.places import Places, place_of
from largek_dask.service.sizing import Cluster, Standing, cannot_fit, worker_memory
from largek_dask.service.spec import JobSpec
from largek_dask.service.store import Record, Records
from largek_dask.service.tenure import Tenure

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Check", "Submissions"]

Check = Callable[["Client", Rows, float], None]
"""Asks the workers whether they can take part."""


class Submissions:
    """New jobs: looked at, their outputs reserved, and kept.

    Parameters
    ----------
    table : JobTable
        Takes them in.
    tenure : Tenure
    owner : str
        This scheduler's name, for the claims of outputs.
    connect : callable
        Gives the client whose cluster computes; None as its value: threads of this process.
    tell : callable
        Called with every event of every job.
    workers : callable, optional
        Gives the workers of the cluster; None as its value: nobody knows.
    """

    def __init__(
        self,
        table: JobTable,
        tenure: Tenure,
        owner: str,
        connect: Callable[[], Client | None],
        tell: Callable[[Event], None],
        workers: Callable[[], Collection[Standing] | None] = lambda: None,
    ) -> None:
        self._table = table
        self._tenure = tenure
        self._owner = owner
        self._connect = connect
        self._tell = tell
        self._workers = workers
        self._store = place_of(tenure.records.url)
        self._under_way: list[Places] = []
        """Places of jobs that are just being submitted."""

    def take(
        self, spec: JobSpec, secrets: Mapping[str, Any], owner: str, check: Check | None
    ) -> JobState:
        """Make a job of it, which runs from now on when its turn has come.

        Raises
        ------
        LostJobError
            Another scheduler has taken the store meanwhile; says whether it may have the job.
        LargekError
            It could not be done; nothing has been written.
        """
        if absent := missing(spec, secrets):
            raise ParameterError(f"storage_options has no value for {', '.join(absent)}: give it.")
        options = options_of(spec, secrets)
        places = Places.of(spec)
        with self._reserved(places):
            try:
                with use_selection(None if spec.workers is None else spec.workers.pick()):
                    takes = self.check(spec, options, check)
                records = self._tenure.records
                record = self._create(records, spec, options, owner, takes)
            except Exception as error:
                raise _without_secrets(error, Redactor(options)) from None
            job = JobState(record, places, secrets, self._tell, True, self._table.shelf)
            # Told before anybody can begin it, so that this is its first event.
            job.tell({"event": "queued", "run": record.run, "owner": owner})
            self._table.add(job, records)
        return job

    @contextlib.contextmanager
    def _reserved(self, places: Places) -> Iterator[None]:
        """No other job is submitted to the same output meanwhile.

        Raises
        ------
        OutputError
            There is one already, or it is no place for an output.
        """
        self._table.wait_until_ready()
        with self._table.changed:
            self._check_free(places)
            self._under_way.append(places)
        try:
            yield
        finally:
            with self._table.changed:
                self._under_way.remove(places)

    def _check_free(self, wanted: Places) -> None:
        """Refuse an output that is in the way of something else, or it in that one's."""
        output, url = wanted.output, wanted.url
        if output.overlaps(self._store):
            raise OutputError(
                f"{url} is where the scheduler keeps its jobs ({self._tenure.records.url}): "
                "choose another output."
            )
        if any(output.overlaps(data) for data in wanted.data):
            raise OutputError(f"{url} is in the job's own data: choose a folder of its own.")
        if any(output.overlaps(other.output) for other in self._under_way):
            raise OutputError(
                f"{url} is the output of a job that is just being submitted: choose another."
            )
        for job in self._table.jobs():
            job_id, other = job.record.id, job.places
            if output.overlaps(other.output):
                raise OutputError(
                    f"{url} overlaps {other.url}, the output of job {job_id}: choose another."
                )
            if job.state not in ENDS and any(output.is_within(data) for data in other.data):
                raise OutputError(
                    f"{url} is in the data of job {job_id}, which has not ended: choose another "
                    "output."
                )

    def check(self, spec: JobSpec, options: dict[str, Any], check: Check | None) -> FitMemory:
        """Look at data, numbers, memory, output and workers; what it takes of these."""
        client = self._connect()
        # Chunks that the store lacks are counted, and told, where the job runs.
        rows = open_rows(
            spec.data,
            sample_weight=spec.sample_weight,
            storage_options=options,
            missing="fill",
        )
        asked = spec.fit_options()
        rows, choice = checked(rows, asked, n_threads=None, client=client)
        takes = self._check_size(spec, rows, choice)
        folder = output_folder(spec, options)
        folder.check_writable()
        if (job_id := claimed_for(folder)) is not None:
            raise OutputError(f"{folder.url} is the output of job {job_id}: choose another.")
        advice = "Choose another output, or go on with its job by submit(resume=id)."
        check_place(folder, advice, may_be_begun=False)
        footprint = footprint_of(rows, choice.algorithm)
        needed = space_needed(
            rows, spec.n_clusters, footprint, n_init=choice.n_init, labels=spec.labels
        )
        check_space(folder, needed, "model, labels and checkpoints")
        if check is not None and client is not None:
            check(client, rows, float(config.get("service.check-seconds")))
        return takes

    def _check_size(self, spec: JobSpec, rows: Rows, choice: Choice) -> FitMemory:
        """What it takes of workers' memory; refuse what those that there are can never have.

        Raises
        ------
        NotEnoughMemoryError
            With the figures.
        """
        takes = fit_memory(rows, spec.n_clusters, footprint_of(rows, choice.algorithm))
        workers = self._workers()
        memory = worker_memory(spec, takes, None if workers is None else Cluster(workers))
        if (why := cannot_fit(memory)) is not None:
            raise NotEnoughMemoryError(
                f"the job can never begin on these workers: {why}. Ask for fewer clusters or a "
                "smaller memory_limit, use fewer threads a worker, or workers with more memory."
            )
        return takes

    def _create(
        self, records: Records, spec: JobSpec, options: dict[str, Any], owner: str, takes: FitMemory
    ) -> Record:
        """Keep a new job, and make its output its own.

        The record comes first: of a crash between both remains a job that goes on, and not a
        folder that nobody can have.
        """
        record = records.create(spec, owner, time.time(), takes)
        try:
            reserve(output_folder(spec, options), record.id, self._owner)
        except BaseException:
            records.remove(record.id)
            raise
        return record


def _without_secrets(error: Exception, redact: Callable[[Any], Any]) -> Exception:
    """The error with nothing in its text that must not be read."""
    text, told = str(error), redact(str(error))
    if told == text and not isinstance(error, OSError):
        return error
    kind = type(error) if isinstance(error, LargekError) else OutputError
    try:
        return kind(told)
    except TypeError:
        return ParameterError(told)
