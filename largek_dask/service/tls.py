"""Find out why no scheduler answers at an address: no TLS on one side, or a refused certificate."""

from __future__ import annotations

import socket
import ssl

from distributed.comm.addressing import parse_host_port
from distributed.security import Security

__all__ = ["why_no_answer"]

CHECK = "check the address and that `dask scheduler` runs there"
CONNECT_SECONDS = 3.0
"""Timeout of the connection and of its handshake."""


def why_no_answer(address: str, security: Security | None = None) -> str:
    """Return why a connection to an address fails, and what to do.

    Dask says only that it timed out. One TLS handshake tells whether the other side speaks TLS,
    and which certificate was refused.

    Parameters
    ----------
    address : str
    security : Security, optional
        Certificates of this process; those of Dask's settings by default.
    """
    scheme, _, place = address.rpartition("://")
    if scheme not in ("tcp", "tls"):
        return CHECK
    try:
        context = _context(scheme, security or Security())
        host, port = parse_host_port(place)
        reached = (host, int(port))
        with (
            socket.create_connection(reached, timeout=CONNECT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            if scheme == "tls":
                # The other side refuses a certificate only after the handshake.
                connection.recv(1)
    except ssl.SSLError as error:
        is_tls = isinstance(error, ssl.SSLCertVerificationError) or "ALERT" in (error.reason or "")
        if scheme == "tls" and is_tls:
            return (
                f"{address} speaks TLS, and a certificate is refused ({error}): use certificates "
                "of one authority on all machines (`largek cluster certificates` makes and renews "
                "them), and look at them with `openssl s_client`"
            )
        if scheme == "tls":
            return (
                f"{address} answers without TLS ({error}): use tcp://{place}, or start the "
                "scheduler with --protocol tls and certificates"
            )
        if not is_tls:
            return CHECK
    except OSError:
        return CHECK
    except ValueError as error:
        return str(error)
    if scheme == "tls":
        return "TLS works there: look at the log of the scheduler"
    return (
        f"{address} speaks TLS: use tls://{place}, and set DASK_CONFIG to the folder of a tls.yaml "
        "that names certificates"
    )


def _context(scheme: str, security: Security) -> ssl.SSLContext:
    """Return Dask's context of a client, or for a plain address one that accepts anything.

    Raises
    ------
    ValueError
        Dask's settings name no certificates, or files that cannot be read.
    """
    if scheme == "tls":
        names = {"ca-file": security.tls_ca_file, "client.cert": security.tls_client_cert}
        if lacking := [
            f"distributed.comm.tls.{name}" for name, value in names.items() if not value
        ]:
            raise ValueError(
                f"this process has no certificates ({lacking[0]} is not set): set DASK_CONFIG to "
                "the folder of a tls.yaml that names them"
            )
        files = security.get_tls_config_for_role("client")
        try:
            context: ssl.SSLContext = security.get_connection_args("client")["ssl_context"]
        except OSError as error:
            # A file's content may be given instead of its path.
            paths = [path for path in files.values() if path and "\n" not in path]
            raise ValueError(
                f"the certificates of this process cannot be read ({', '.join(paths)}): {error}; "
                "correct the paths in tls.yaml, and let this user read those files"
            ) from error
        return context
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
