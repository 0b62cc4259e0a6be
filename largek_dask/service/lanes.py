"""Work on the folders of many jobs by one thread, which no folder that hangs can stop.

A call to a network file system may never return. So each job's work runs in a thread of its own,
is waited for only for a while, and is not begun again before it has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Lanes"]

WAIT_SECONDS, WAIT_AGAIN_SECONDS = 2.0, 0.1
"""How long work is waited for, and how long while other work hangs."""
MOST_LANES = 64
"""Threads of which none may have ended."""


class Lanes:
    """Threads by job: at most one each.

    Parameters
    ----------
    name : str
        Begins the names of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._busy: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    def run(self, job_id: str, work: Callable[[], object]) -> bool:
        """Do the work of a job and wait for its end, for a while.

        Parameters
        ----------
        job_id : str
        work : callable
            Handles its own errors.

        Returns
        -------
        bool
            False if it has not ended: it goes on, or has not begun as earlier work still hangs, of
            this job or of very many others.
        """
        with self._lock:
            hanging = {name: one for name, one in self._busy.items() if one.is_alive()}
            self._busy = hanging
            if job_id in hanging or len(hanging) >= MOST_LANES:
                return False
            thread = threading.Thread(target=work, name=f"{self._name}-{job_id}", daemon=True)
            hanging[job_id] = thread
            thread.start()
            seconds = WAIT_SECONDS if len(hanging) == 1 else WAIT_AGAIN_SECONDS
        thread.join(seconds)
        return not thread.is_alive()
