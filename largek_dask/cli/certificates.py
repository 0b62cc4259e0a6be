"""Certificates for ``largek cluster slurm``, made by the script of ``deploy/tls``."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import subprocess
import tempfile
from datetime import UTC, datetime, timedelta
from importlib.resources import as_file, files
from pathlib import Path

from largek_dask.errors import ClusterError, OutputError

__all__ = ["FOLDER", "provide"]

FOLDER = "tls"
"""The folder of certificates in ``--home``."""
NAMES = ("ca.pem", "node.pem", "node.key")
DAYS = 3650
"""Days that certificates are valid, as the authority is: SLURM queues jobs again for years."""
LEAST = timedelta(days=30)
"""Certificates that end sooner are replaced at a submit."""
INSECURE = (
    "or give --insecure: no TLS, so whoever has an account on the network of the nodes can run "
    "code as you"
)


def provide(home: str) -> str | None:
    """See to it that a folder has certificates that its owner alone can read.

    Valid ones stay as they are, also those that the owner has put there. The folder itself is
    closed to others: whoever can write there can run code as its owner.

    Parameters
    ----------
    home : str
        Absolute path; nothing of it runs at the moment.

    Returns
    -------
    str or None
        What has changed, to be printed; None if nothing has.

    Raises
    ------
    OutputError
        The folder is somebody else's, or its file system keeps no permissions.
    ClusterError
        There is no openssl, or it cannot do it.
    """
    folder = Path(home) / FOLDER
    try:
        os.chmod(home, 0o700)
        why = _why_not_valid(folder)
        if why is not None:
            _make(home, folder)
        os.chmod(folder, 0o700)
        for path in folder.iterdir():
            if path.is_file():
                os.chmod(path, 0o600)
        opened = [path for path in (Path(home), folder / "node.key") if path.stat().st_mode & 0o77]
    except OSError as error:
        raise OutputError(
            f"certificates cannot be kept in {folder} ({error.strerror or error}): give a --home "
            f"of your own, {INSECURE}"
        ) from error
    if opened:
        raise OutputError(
            f"{opened[0]} can be read by others, as its file system keeps no permissions: give a "
            f"--home in another one, {INSECURE}"
        )
    return None if why is None else f"New certificates in {folder} ({why})"


def _why_not_valid(folder: Path) -> str | None:
    """Why certificates cannot be used for the next weeks; None if they can."""
    if absent := [name for name in NAMES if not (folder / name).is_file()]:
        return "there were none" if absent == [*NAMES] else f"there was no {absent[0]}"
    authority, certificate, key = (str(folder / name) for name in NAMES)
    try:
        ends = _end_of(authority, certificate, key)
    except (ssl.SSLError, ValueError) as error:
        return f"the ones before were of no use: {getattr(error, 'verify_message', error)}"
    if ends < datetime.now(UTC) + LEAST:
        return f"the ones before end on {ends:%Y-%m-%d}"
    return None


def _end_of(authority: str, certificate: str, key: str) -> datetime:
    """Return when the authority or the certificate ends, whichever is first.

    A client with this authority accepts a server with this certificate, in memory.

    Raises
    ------
    ssl.SSLError
        It does not, or the files are no certificates.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A key with a password is refused, and nobody asked for it.
    server.load_cert_chain(certificate, key, lambda: "")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(authority)
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = client.wrap_bio(here, there), server.wrap_bio(there, here, server_side=True)
    for side in sides * 2:
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    known = [*client.get_ca_certs(), sides[0].getpeercert() or {}]
    ends = min(ssl.cert_time_to_seconds(str(each["notAfter"])) for each in known)
    return datetime.fromtimestamp(ends, UTC)


def _make(home: str, folder: Path) -> None:
    """Replace the certificates of a folder by new ones of a new authority."""
    if shutil.which("openssl") is None:
        raise ClusterError(
            f"there is no openssl on PATH, which makes certificates for TLS: load or install it, "
            f"{INSECURE}"
        )
    with (
        tempfile.TemporaryDirectory(prefix=".largek-tls-", dir=home) as name,
        as_file(files("largek_dask.cli") / "templates") as templates,
    ):
        done = subprocess.run(
            ["bash", str(templates / "make.sh"), "--out", name, "--at", str(folder),
             "--days", str(DAYS), "largek"],
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            words = " ".join((done.stderr or done.stdout).split())
            raise ClusterError(f"no certificates could be made: {words}. Mend that, {INSECURE}")
        made = Path(name)
        (made / "ca.key").rename(made / "largek" / "ca.key")
        if folder.exists():
            folder.rename(folder.with_name(f"{FOLDER}.{datetime.now(UTC):%Y%m%dT%H%M%S}"))
        (made / "largek").rename(folder)
