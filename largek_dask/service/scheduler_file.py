"""Find a scheduler by its address or by the file in its store, and connect to it.

``STORE/scheduler.json`` contains the address of the scheduler that holds the store. The file is
replaced atomically and is never removed, because a scheduler that ends late would remove the file
of the next scheduler. A client that has lost its connection reads the file again. ``dask worker
--scheduler-file`` also reads this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

import distributed
from dask.utils import parse_timedelta
from distributed.comm import parse_host_port
from distributed.security import Security
from fsspec import available_protocols
from fsspec.core import split_protocol

from largek_dask.data.stores import normalize
from largek_dask.driver.formatting import printable
from largek_dask.driver.storage import DamagedError, Folder
from largek_dask.errors import (
    ClusterError,
    LargekError,
    LostJobError,
    ParameterError,
    SchedulerAwayError,
)
from largek_dask.retry import retry
from largek_dask.service.lease import StoreLease

NAME = "scheduler.json"
"""Name of the file with the scheduler's address, in a store."""
MOST_BYTES = 1 << 16
COMMS = ("tcp", "tls", "ucx", "ucxx", "ws", "wss", "inproc")
"""Protocols of Dask addresses; a URL with any other protocol is a file."""
PROBE_SECONDS = 3.0
"""Timeout for checking whether an address uses TLS, in seconds."""


def tls_files(security: Security) -> dict[str, str] | None:
    """Return the paths of a scheduler's certificate files, for processes of the same user.

    Returns None if the scheduler has no certificates, or has them only in memory.
    """
    settings = security.get_tls_config_for_role("scheduler")
    files = {name: settings.get(name) for name in ("ca_file", "cert", "key")}
    # Do not return keys: Dask's settings may contain the key itself instead of its path.
    if any(not path or "\n" in path for path in files.values()):
        return None
    return {name: os.path.abspath(path) for name, path in files.items()}


class Finder:
    """Find the current address of a scheduler.

    ``place`` is an address ("tcp://host:8786"), or the path or URL of a file with an address.
    ``found`` is the content of this file when :meth:`find` last read it.
    """

    def __init__(
        self, place: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self.is_file = is_file(place)
        self.place = normalize(place) if self.is_file else str(place)
        self.found: dict[str, Any] = {}
        if self.is_file:
            self._folder, self._name = Folder(self.place, storage_options).parent()

    def find(self) -> str:
        """Return the scheduler's current address; raise ClusterError if the file is missing."""
        if not self.is_file:
            return self.place
        self.found = self._read()
        return str(self.found["address"])

    def security(self) -> Security | None:
        """Return the certificates named in the file; None to use Dask's settings."""
        files = self.found.get("tls")
        if not isinstance(files, dict) or not self.found["address"].startswith("tls://"):
            return None
        if not all(os.access(str(path), os.R_OK) for path in files.values()):
            return None
        return Security(
            require_encryption=True,
            tls_ca_file=files.get("ca_file"),
            tls_client_cert=files.get("cert"),
            tls_client_key=files.get("key"),
        )

    def has_moved(self) -> bool:
        """Return whether the file names a different scheduler than at the last :meth:`find`."""
        if not self.is_file:
            return False
        try:
            return self._read() != self.found
        except (LargekError, OSError):
            return False

    def _read(self) -> dict[str, Any]:
        try:
            about: dict[str, Any] = json.loads(self._folder.read(self._name, MOST_BYTES))
            is_right = split_protocol(about["address"])[0] in COMMS
        except OSError as error:
            raise ClusterError(
                f"{self.place} cannot be read ({type(error).__name__}: {error}): a scheduler "
                "writes this file to its store (--largek-store) after loading its jobs; check the "
                "path, or give the scheduler's address"
            ) from error
        except (ValueError, LookupError, TypeError, RecursionError, DamagedError):
            is_right = False
        if not is_right:
            raise ParameterError(
                f"{self.place} is not the {NAME} of a scheduler: give the path of this file in the "
                "store, or the scheduler's address (tcp://host:8786)."
            )
        return about

    def no_answer(self, error: BaseException) -> SchedulerAwayError:
        """Make the error for an address that does not answer; ``error`` was raised by Dask."""
        # Dask raises a timeout error; its cause is at the end of the exception chain.
        while (cause := error.__cause__) is not None:
            error = cause
        quoted = ": ".join(filter(None, (type(error).__name__, str(error))))
        if not self.found:
            return SchedulerAwayError(
                f"no Dask scheduler answers at {self.place!r} ({quoted}): "
                f"{why_no_answer(self.place)}. Try `largek doctor --scheduler {self.place}`."
            )
        about = {name: printable(text) for name, text in self.found.items() if text is not None}
        what = f"job {about['slurm_job']} of SLURM" if "slurm_job" in about else "it"
        return SchedulerAwayError(
            f"the scheduler at {about['address']}, which {self.place} names since "
            f"{about.get('started')}, does not answer ({quoted}): check that {what} is running, "
            "or start it again; its jobs continue then"
        )


def why_no_answer(address: str) -> str:
    """Diagnose why an address does not answer: check whether only one side uses TLS.

    This check is needed because Dask itself reports only a timeout.
    """
    scheme, _, place = address.rpartition("://")
    is_tls = scheme in ("tls", "wss")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Accept any certificate, because only the protocol is checked.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection(parse_host_port(place), PROBE_SECONDS) as plain,
            context.wrap_socket(plain),
        ):
            speaks_tls = True
    except ssl.SSLError as error:
        speaks_tls = "ALERT" in (error.reason or "")
    except (OSError, ValueError):
        return "check the address, and that `dask scheduler` runs there"
    if speaks_tls and is_tls:
        return "both sides speak TLS: check the certificates that DASK_CONFIG names"
    if speaks_tls:
        return f"it speaks TLS: use tls://{place}, and certificates that DASK_CONFIG names"
    if is_tls:
        return f"it does not speak TLS: use tcp://{place}, or start the scheduler with TLS"
    return "neither side speaks TLS: check the log of the scheduler"


def is_file(place: str | os.PathLike[str]) -> bool:
    """Return whether ``place`` is the path or URL of a file, and not a Dask address."""
    if not isinstance(place, str):
        return True
    protocol = split_protocol(place)[0]
    if protocol is not None:
        return protocol not in COMMS and protocol in available_protocols()
    return place.endswith(".json") or os.sep in place or os.path.exists(place)


def publish_address(
    store_lease: StoreLease, scheduler_file: Callable[[int], Mapping[str, Any]]
) -> None:
    """Write the scheduler's address to the store, if the scheduler holds the store.

    Call this function periodically, because a suspended scheduler may overwrite the file after it
    has lost the store.
    """
    records, lease = store_lease.records, store_lease.records.lease
    if lease is None or not store_lease.is_held:
        return
    wanted = json.dumps(scheduler_file(lease.token), indent=2).encode()
    try:
        standing = records.folder.read(NAME, MOST_BYTES)
    except (FileNotFoundError, DamagedError):
        standing = b""
    if standing != wanted:
        # Another scheduler that has claimed the store writes its own address.
        with contextlib.suppress(LostJobError):
            records.folder.guarded(records.check).publish(NAME, wanted)


TRY_SECONDS = 5.0
"""Timeout of one connection attempt, in seconds, before the file is read again."""
PAUSE_SECONDS = 0.1


class Client(distributed.Client):  # type: ignore[misc]
    """Dask client with a timeout for servers that accept a connection but do not answer."""

    async def _ensure_connected(self, timeout: float | None = None) -> None:
        await asyncio.wait_for(super()._ensure_connected(timeout), timeout)


def new_client(address: str, seconds: float, security: Security | None = None) -> Client:
    """Return a new client of the scheduler at an address, separate from all other clients.

    ``seconds`` is the timeout of the first connection and of later reconnections. OSError is raised
    if there is no answer, and ValueError for errors such as an unknown protocol.
    """
    return Client(address, timeout=seconds, set_as_default=False, security=security)


def connect_to(finder: Finder, timeout: float | str = "10s") -> Client:
    """Return a new client that is connected to the scheduler, or raise ClusterError."""
    seconds = float(parse_timedelta(timeout))
    until = time.monotonic() + seconds

    def connect() -> Client:
        address = finder.find()
        security = finder.security()
        left = min(max(until - time.monotonic(), PAUSE_SECONDS), TRY_SECONDS)
        try:
            return new_client(address, left if finder.is_file else seconds, security)
        except (TypeError, ValueError) as error:
            # Dask raises TypeError if certificates are missing.
            raise finder.no_answer(error) from None

    def limit(error: Exception) -> float | None:
        return seconds if finder.is_file and isinstance(error, OSError) else None

    try:
        return retry(connect, limit, pause=PAUSE_SECONDS)
    except OSError as error:
        raise finder.no_answer(error) from None
