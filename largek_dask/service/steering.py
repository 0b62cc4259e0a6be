"""What may be asked of jobs that have not ended: to pause, to go on, to come sooner.

Of all together: to end what they are doing, so that the scheduler can be stopped.
"""

from __future__ import annotations

import time
from typing import Any

from largek_dask.driver.stopping import ENDS
from largek_dask.errors import ParameterError
from largek_dask.service.known import KnownJob
from largek_dask.service.register import Register
from largek_dask.service.spec import JobSpec
from largek_dask.version import __version__

__all__ = ["Steering"]


class Steering:
    """Pauses jobs, lets them go on, changes their turn.

    All of it is in their records before it is answered where the store can be written, and as soon
    as it can otherwise.

    Parameters
    ----------
    register : Register
    """

    def __init__(self, register: Register) -> None:
        self._register = register
        self._changed = register.changed

    def pause(self, job_id: str) -> str:
        """Hold a job, which ends what it is just doing; its state now.

        One that runs keeps the last whole step, as at the end of a scheduler, and gives back its
        place and all that workers hold for it.

        Raises
        ------
        ParameterError
            It has ended, or is held already.
        """
        job = self._register.find(job_id)
        with self._changed:
            self._check_goes_on(job, "paused")
            if job.record.paused:
                raise ParameterError(
                    f"job {job_id} is paused already: use resume() to let it go on."
                )
            if job.record.cancel:
                raise ParameterError(
                    f"job {job_id} is asked to end: wait until it has; submit(resume=id) goes on."
                )
            job.change_now(paused=True)
            # Told here, as what ends it tells of that end.
            self._tell(job, "pausing" if job.running else "paused")
            if job.running:
                job.ask_to_stop("pause")
        self._register.keep(job)
        return job.state

    def resume(self, job_id: str, accept_version: bool = False) -> str:
        """Let a job that is paused go on, before others of its priority; its state now.

        Parameters
        ----------
        job_id : str
        accept_version : bool
            Whether this version may go on with what another one has computed: such a job waits for
            that, paused or not.

        Raises
        ------
        ParameterError
            It is not paused, and waits for no such word.
        """
        job = self._register.find(job_id)
        with self._changed:
            self._check_goes_on(job, "resumed")
            if is_accepted := accept_version and job.is_of_other_version:
                self._accept(job)
            elif job.state == "waiting" and job.is_of_other_version:
                raise ParameterError(
                    f"job {job_id} waits: {job.told}; give resume(accept_version=True), or go on "
                    "with it by that version."
                )
            if job.record.paused:
                job.change_now(paused=False, resumed=time.time())
                self._tell(job, "resumed")
            elif not is_accepted:
                raise ParameterError(
                    f"job {job_id} is {job.state}, not paused: use resume() only after pause()."
                )
            job.go_on()
            self._changed.notify_all()
        self._register.keep(job)
        return job.state

    def _accept(self, job: KnownJob) -> None:
        """Have this version go on with what another one has computed."""
        job.change_now(versions=(*job.record.versions, __version__))
        versions = list(job.record.versions)
        job.tell({"event": "accepted", "run": job.record.run, "versions": versions})

    def set_priority(self, job_id: str, priority: int) -> None:
        """Change the priority of a job that does not run.

        Raises
        ------
        ParameterError
            It runs, or has ended; or it is no priority.
        """
        job = self._register.find(job_id)
        with self._changed:
            self._check_goes_on(job, "given another priority")
            if job.running:
                raise ParameterError(
                    f"job {job_id} has begun: only the priority of one that does not run can be "
                    "changed; pause() it first."
                )
            spec = JobSpec.parse({**job.record.spec.dump(), "priority": priority})
            job.change_now(spec=spec)
            self._tell(job, "priority", priority=priority)
            self._changed.notify_all()
        self._register.keep(job)

    def drain(self, drained: bool) -> dict[str, Any]:
        """Begin no job from now on, also after a restart, and hold those that run; or begin again.

        Whoever is held comes first of its priority when jobs begin again.

        Returns
        -------
        dict
            See :meth:`left_to_drain`.

        Raises
        ------
        OutputError
            That cannot be kept; nothing has changed.
        """
        self._register.wait_until_ready()
        self._register.set_drained(drained)
        held = []
        if drained:
            with self._changed:
                for job in self._register.jobs():
                    if job.running and job.stopped_for is None and job.state not in ENDS:
                        job.change_now(resumed=job.record.resumed or time.time())
                        self._tell(job, "draining")
                        job.ask_to_stop("drain")
                        held.append(job)
        for job in held:
            self._register.keep(job)
        return self.left_to_drain()

    def left_to_drain(self) -> dict[str, Any]:
        """What is not on disk yet: ``running`` jobs, those of ``unkept`` records; ``draining``."""
        self._register.wait_until_ready()
        jobs = self._register.jobs()
        return {
            "draining": self._register.is_drained,
            "running": [job.record.id for job in jobs if job.running],
            "unkept": [job.record.id for job in jobs if not job.is_kept],
        }

    def _check_goes_on(self, job: KnownJob, done: str) -> None:
        if (state := job.state) in ENDS:
            raise ParameterError(
                f"job {job.record.id} is {state}: only one that has not ended can be {done}; "
                "submit(resume=id) goes on with it."
            )

    def _tell(self, job: KnownJob, kind: str, **told: int) -> None:
        job.tell({"event": kind, "run": job.record.run, **told})
