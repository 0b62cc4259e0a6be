"""Connect to a scheduler, wherever it is at the moment."""

from __future__ import annotations

import asyncio
import time

import distributed
from dask.utils import parse_timedelta
from distributed.security import Security

from largek_dask.retry import retry
from largek_dask.service.scheduler_file import Finder

__all__ = ["Client", "connect_to", "new_client"]

TRY_SECONDS = 5.0
"""Timeout of one attempt at an address from a file, which may name another one by then."""
PAUSE_SECONDS = 0.1


class Client(distributed.Client):  # type: ignore[misc]
    """Dask's client, with a timeout also for a server that accepts a connection and is silent."""

    async def _ensure_connected(self, timeout: float | None = None) -> None:
        await asyncio.wait_for(super()._ensure_connected(timeout), timeout)


def new_client(address: str, seconds: float, security: Security | None = None) -> Client:
    """Return a client of the scheduler at this address, separate from other work of the process.

    Parameters
    ----------
    address : str
    seconds : float
        Timeout of this connection, and of each one after it is lost. A frozen scheduler takes
        longer.
    security : Security, optional
        Certificates; those of Dask's settings by default.

    Raises
    ------
    OSError
        Nothing answers there.
    ValueError
        Such as a protocol that Dask does not know.
    """
    return Client(address, timeout=seconds, set_as_default=False, security=security)


def connect_to(finder: Finder, timeout: float | str = "10s") -> Client:
    """Return a new client of the scheduler that is found.

    Parameters
    ----------
    finder : Finder
    timeout : float or str
        Of the connection: seconds, or such as "10s".

    Raises
    ------
    SchedulerAwayError
        Nothing answers there.
    ClusterError, ParameterError
        The file is missing, or not that of a scheduler; or there are no certificates for it.
    """
    seconds = float(parse_timedelta(timeout))
    until = time.monotonic() + seconds

    def connect() -> Client:
        address = finder.find()
        security = finder.security()
        left = min(max(until - time.monotonic(), PAUSE_SECONDS), TRY_SECONDS)
        try:
            return new_client(address, left if finder.is_file else seconds, security)
        except (TypeError, ValueError) as error:
            # A TypeError without certificates.
            raise finder.nobody(error) from None

    def limit(error: Exception) -> float | None:
        return seconds if finder.is_file and isinstance(error, OSError) else None

    try:
        return retry(connect, limit, pause=PAUSE_SECONDS)
    except OSError as error:
        raise finder.nobody(error) from None
