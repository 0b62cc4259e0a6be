"""Find a scheduler by its address or by the file in its store, and connect to it.

``STORE/scheduler.json`` says which scheduler has the store. It is replaced as a whole, and nobody
removes it: a scheduler that ends late would remove that of the next one. A client that has lost its
connection reads it again. ``dask worker --scheduler-file`` reads the same file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import distributed
from dask.utils import parse_timedelta
from distributed.comm.addressing import parse_host_port
from distributed.security import Security
from fsspec import available_protocols
from fsspec.core import split_protocol
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

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
from largek_dask.service.lease import Tenure
from largek_dask.version import __version__

__all__ = [
    "NAME",
    "Client",
    "Finder",
    "SchedulerFile",
    "Sign",
    "connect_to",
    "new_client",
    "why_no_answer",
]

logger = logging.getLogger(__name__)

NAME = "scheduler.json"
"""The file's name in a store."""
FORMAT: Literal[1] = 1
MOST_BYTES = 1 << 16
"""Bytes of such a file; of a larger one no more is read."""
COMMS = ("tcp", "tls", "ucx", "ucxx", "ws", "wss", "inproc")
"""Protocols of Dask's addresses; any other one is that of a file."""

Text = Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[\x21-\x7e]+$")]
FilePath = Annotated[str, Field(max_length=4096, pattern=r"^/[\x20-\x7e]*$")]


class TlsFiles(BaseModel):
    """Absolute paths of the certificates of a scheduler, which others of its user take, too."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    ca_file: FilePath
    cert: FilePath
    key: FilePath

    @classmethod
    def of(cls, security: Security) -> TlsFiles | None:
        """Return the files of a scheduler; None if it has none, or has them in memory."""
        settings = security.get_tls_config_for_role("scheduler")
        files = {name: settings.get(name) for name in cls.model_fields}
        # Never the content of a key, which Dask's settings may hold instead of a path.
        if any(not path or "\n" in path for path in files.values()):
            return None
        try:
            return cls(**{name: os.path.abspath(path) for name, path in files.items()})
        except ValidationError:
            # Paths of other letters: clients are given their own by DASK_CONFIG.
            return None

    def security(self) -> Security | None:
        """Return settings to connect with; None if a file cannot be read here."""
        if not all(os.access(path, os.R_OK) for path in (self.ca_file, self.cert, self.key)):
            return None
        return Security(
            require_encryption=True,
            tls_ca_file=self.ca_file,
            tls_client_cert=self.cert,
            tls_client_key=self.key,
        )


class SchedulerFile(BaseModel):
    """What the file says."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    format: Literal[1] = FORMAT
    type: Literal["Scheduler"] = "Scheduler"
    """As Dask's own file says it."""
    address: Annotated[str, Field(max_length=300, pattern=rf"^({'|'.join(COMMS)})://[\x21-\x7e]+$")]
    dashboard: Text | None = None
    started: AwareDatetime
    """Time at which it began to take up the store."""
    token: Annotated[int, Field(ge=1)]
    """Number of its claim of the store: who comes later has a higher one."""
    version: Text = __version__
    slurm_job: Text | None = None
    """Id of the SLURM job that it runs in; None outside."""
    tls: TlsFiles | None = None
    """Files with which clients and workers connect; None without TLS, or where it has none."""

    def dumped(self) -> bytes:
        """Return the file's content."""
        absent = {"tls"} if self.tls is None else None
        return self.model_dump_json(indent=2, exclude=absent).encode() + b"\n"

    @classmethod
    def parsed(cls, data: bytes, where: str) -> SchedulerFile:
        """Return what a file says; ``where`` is its URL, for errors."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            wrong = sorted({str(one["loc"][0]) if one["loc"] else "JSON" for one in error.errors()})
            raise ParameterError(
                f"{where} is no {NAME} of a scheduler with jobs for largek_dask {__version__} "
                f"(wrong or missing: {', '.join(wrong)}): give the one in its store, or its "
                "address (tcp://host:8786)."
            ) from None


class Finder:
    """Finds a scheduler, again each time that it is asked.

    ``place`` is an address ("tcp://host:8786"), or the path or URL of a file that says one.
    ``found`` is what the file said when :meth:`find` read it last.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.is_file = is_file(place)
        self.place = normalize(place) if self.is_file else str(place)
        self.found: SchedulerFile | None = None
        if self.is_file:
            self._folder, self._name = Folder(self.place, storage_options).parent()

    def find(self) -> str:
        """Return the scheduler's address as it is now; a missing file is a ClusterError."""
        if not self.is_file:
            return self.place
        self.found = self._read()
        return self.found.address

    def security(self) -> Security | None:
        """Return what to connect with: files that were found, or None for Dask's own settings."""
        told = self.found
        if told is None or not told.address.startswith("tls://"):
            return None
        found = None if told.tls is None else told.tls.security()
        if found is None and not Security().tls_client_cert:
            files = "names none" if told.tls is None else f"names {told.tls.cert}, unreadable here"
            raise ClusterError(
                f"{self.place} says {told.address}, which asks for certificates, and {files}: be "
                "the user who has started the scheduler, or set DASK_CONFIG to the folder of a "
                "tls.yaml with certificates of your own"
            )
        return found

    def has_moved(self) -> bool:
        """Return whether the file names another scheduler than when it was read last."""
        if not self.is_file:
            return False
        try:
            return self._read() != self.found
        except (LargekError, OSError):
            # It says nothing: then what it said before stands.
            return False

    def _read(self) -> SchedulerFile:
        try:
            data = self._folder.read(self._name, MOST_BYTES)
        except FileNotFoundError:
            raise ClusterError(
                f"there is no {self.place}: a scheduler writes it into its store "
                "(--largek-store) once it has its jobs; check the path, and that one runs"
            ) from None
        except DamagedError:
            raise ParameterError(
                f"{self.place} is larger than {MOST_BYTES:,} bytes, and no {NAME} is: give the one "
                "in the store of a scheduler"
            ) from None
        except OSError as error:
            raise ClusterError(
                f"{self.place} cannot be read ({type(error).__name__}: {error}): check the path "
                "and its permissions, or give the scheduler's address"
            ) from error
        return SchedulerFile.parsed(data, self.place)

    def nobody(self, error: BaseException, now: datetime | None = None) -> SchedulerAwayError:
        """Return the error for an address that does not answer; ``error`` was raised instead."""
        if self.found is None:
            quoted = ": ".join(filter(None, (type(error).__name__, str(error))))
            return SchedulerAwayError(
                f"no Dask scheduler answers at {self.place!r} ({quoted}): "
                f"{why_no_answer(self.place)}. Try `largek doctor --scheduler {self.place}`."
            )
        told, now = self.found, datetime.now(UTC) if now is None else now
        # As clocks on the wall say it, here.
        since, today = told.started.astimezone(), now.astimezone().date()
        when = f"{since:%H:%M}" if since.date() == today else f"{since:%Y-%m-%d %H:%M}"
        what = "it" if told.slurm_job is None else f"job {printable(told.slurm_job)} of SLURM"
        return SchedulerAwayError(
            f"{self.place} says {told.address} since {when}, nobody answers there: is {what} still "
            "running? If not, start it again: its jobs go on then"
        )


def is_file(place: str | os.PathLike[str]) -> bool:
    """Return whether this is the path or URL of a file, and not an address of Dask's."""
    if not isinstance(place, str):
        return True
    protocol = split_protocol(place)[0]
    if protocol is not None:
        return protocol not in COMMS and protocol in available_protocols()
    return place.endswith(".json") or os.sep in place or os.path.exists(place)


class Sign:
    """Has the file in a store say where this scheduler is, for as long as it has the store."""

    def __init__(self, tenure: Tenure, made: Callable[[int], SchedulerFile]) -> None:
        self._tenure = tenure
        self._made = made
        self._trouble = ""

    def tend(self) -> None:
        """Write the file if it is not there, or says something else.

        A process that was stopped just before it wrote may do so when another one has the store
        already: the holder looks again and again.
        """
        records = self._tenure.records
        token = records.token
        if token is None or not self._tenure.is_held:
            return
        trouble = ""
        try:
            wanted = self._made(token).dumped()
            if self._standing(records.folder) != wanted:
                records.post(NAME, wanted)
        except LostJobError:
            # The scheduler that has the store now writes its own.
            return
        except (LargekError, OSError) as error:
            trouble = records.reason(error)
            if trouble != self._trouble:
                logger.warning("%s/%s cannot be written yet: %s", records.url, NAME, trouble)
        self._trouble = trouble

    @staticmethod
    def _standing(folder: Folder) -> bytes:
        """Return what the file says now; empty if there is none."""
        try:
            return folder.read(NAME, MOST_BYTES)
        except (FileNotFoundError, DamagedError):
            return b""


TRY_SECONDS = 5.0
"""Timeout of one attempt at an address from a file, which may name another one by then."""
PAUSE_SECONDS = 0.1


class Client(distributed.Client):  # type: ignore[misc]
    """Dask's client, with a timeout also for a server that accepts a connection and is silent."""

    async def _ensure_connected(self, timeout: float | None = None) -> None:
        await asyncio.wait_for(super()._ensure_connected(timeout), timeout)


def new_client(address: str, seconds: float, security: Security | None = None) -> Client:
    """Return a client of the scheduler at this address, separate from other work of the process.

    ``seconds`` is the timeout of this connection, and of each one after it is lost. OSError:
    nothing answers. ValueError: such as a protocol that Dask does not know.
    """
    return Client(address, timeout=seconds, set_as_default=False, security=security)


def connect_to(finder: Finder, timeout: float | str = "10s") -> Client:
    """Return a new client of the scheduler that is found, or raise ClusterError."""
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


CHECK = "check the address and that `dask scheduler` runs there"
CONNECT_SECONDS = 3.0


def why_no_answer(address: str, security: Security | None = None) -> str:
    """Return why a connection to an address fails, and what to do.

    Dask says only that it timed out. One TLS handshake tells whether the other side speaks TLS, and
    which certificate was refused.
    """
    scheme, _, place = address.rpartition("://")
    if scheme not in ("tcp", "tls"):
        return CHECK
    is_tls = scheme == "tls"
    try:
        context = _context(scheme, security or Security())
        host, port = parse_host_port(place)
        with (
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            if is_tls:
                # The other side refuses a certificate only after the handshake.
                connection.recv(1)
        speaks = True
    except ssl.SSLError as error:
        speaks = isinstance(error, ssl.SSLCertVerificationError) or "ALERT" in (error.reason or "")
        if is_tls and speaks:
            return (
                f"{address} speaks TLS, and a certificate is refused ({error}): use certificates "
                "of one authority on all machines, and look at them with `openssl s_client`"
            )
    except OSError:
        return CHECK
    except ValueError as error:
        return str(error)
    if is_tls and speaks:
        return "TLS works there: look at the log of the scheduler"
    if is_tls:
        return f"{address} answers without TLS: use tcp://{place}, or start the scheduler with TLS"
    if speaks:
        return f"{address} speaks TLS: use tls://{place}, and certificates that DASK_CONFIG names"
    return CHECK


def _context(scheme: str, security: Security) -> ssl.SSLContext:
    """Return Dask's context of a client, or for a plain address one that accepts anything."""
    context: ssl.SSLContext
    if scheme == "tcp":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    names = {"ca-file": security.tls_ca_file, "client.cert": security.tls_client_cert}
    if absent := [name for name, value in names.items() if not value]:
        raise ValueError(
            f"this process has no certificates (distributed.comm.tls.{absent[0]} is not set): set "
            "DASK_CONFIG to the folder of a tls.yaml that names them"
        )
    try:
        context = security.get_connection_args("client")["ssl_context"]
    except OSError as error:
        # A file's content may be given instead of its path.
        files = security.get_tls_config_for_role("client").values()
        paths = ", ".join(path for path in files if path and "\n" not in path)
        raise ValueError(
            f"the certificates of this process cannot be read ({paths}): {error}; correct the "
            "paths in tls.yaml, and let this user read those files"
        ) from error
    return context
