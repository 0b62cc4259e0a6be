"""Connecting to a scheduler, wherever it is at the moment."""

from __future__ import annotations

import asyncio
import time

import distributed
from dask.utils import parse_timedelta
from distributed.security import Security

from largek_dask.service.scheduler_file import Finder

__all__ = ["Client", "new_client", "reach"]

TRY_SECONDS = 5.0
"""Longest attempt at an address from a file, which may name another one by then."""
PAUSE_SECONDS = 0.1


class Client(distributed.Client):  # type: ignore[misc]
    """Dask's client, which waits without end for one who accepts a connection and says nothing."""

    async def _ensure_connected(self, timeout: float | None = None) -> None:
        await asyncio.wait_for(super()._ensure_connected(timeout), timeout)


def new_client(address: str, seconds: float, security: Security | None = None) -> Client:
    """A client of the scheduler at this address, which is not that of other work of the process.

    Parameters
    ----------
    address : str
    seconds : float
        For this connection, and for each one after it is lost. A frozen scheduler takes longer.
    security : Security, optional
        Certificates; those of Dask's settings by default.

    Raises
    ------
    OSError
        Nobody answers there.
    ValueError
        Such as a protocol that Dask does not know.
    """
    return Client(address, timeout=seconds, set_as_default=False, security=security)


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
        The file is not there, or none of a scheduler; or there are no certificates for it.
    """
    until = time.monotonic() + (seconds := float(parse_timedelta(timeout)))
    while True:
        address = finder.find()
        security = finder.security()
        try:
            patience = min(seconds, TRY_SECONDS) if finder.is_file else seconds
            return new_client(address, patience, security)
        except (OSError, TimeoutError) as error:
            seconds = until - time.monotonic() - PAUSE_SECONDS
            if not finder.is_file or seconds <= 0:
                raise finder.nobody(error) from None
        except (TypeError, ValueError) as error:
            # A TypeError without certificates.
            raise finder.nobody(error) from None
        time.sleep(PAUSE_SECONDS)
