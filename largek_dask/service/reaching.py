"""Connecting to a scheduler, wherever it is at the moment."""

from __future__ import annotations

import time

from dask.utils import parse_timedelta
from distributed import Client

from largek_dask.service.scheduler_file import Finder

__all__ = ["reach"]

TRY_SECONDS = 5.0
"""Longest attempt at an address from a file, which may name another one by then."""
PAUSE_SECONDS = 0.1


def reach(finder: Finder, timeout: float | str = "10s") -> Client:
    """A new client of the scheduler that is found.

    Parameters
    ----------
    finder : Finder
    timeout : float or str
        For the connection: seconds, or such as "10s".

    Raises
    ------
    SchedulerAwayError
        Nobody answers there.
    ClusterError, ParameterError
        The file is not there, or none of a scheduler.
    """
    until = time.monotonic() + (seconds := float(parse_timedelta(timeout)))
    while True:
        address = finder.find()
        try:
            patience = min(seconds, TRY_SECONDS) if finder.is_file else seconds
            return Client(address, timeout=patience, set_as_default=False)
        except (OSError, TimeoutError) as error:
            seconds = until - time.monotonic() - PAUSE_SECONDS
            if not finder.is_file or seconds <= 0:
                raise finder.nobody(error) from error
        except ValueError as error:
            # Such as a protocol that Dask does not know.
            raise finder.nobody(error) from error
        time.sleep(PAUSE_SECONDS)
