"""What a Dask address speaks, plain or TLS, whose certificate it shows, and what keeps us out.

Dask says of all this only that nobody answers. So whoever could not connect looks again by a
handshake of its own, which asks for nothing and sends nothing but this process's certificate.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from distributed.comm.addressing import parse_host_port
from distributed.security import Security

__all__ = ["Certificate", "Look", "certificates_in", "look_at", "why_no_answer"]

LOOK_SECONDS = 3.0
"""How long an address may take to answer."""
SILENT_SECONDS = 1.0
"""A plain Dask process speaks first, at once; one that speaks TLS waits for us."""

COMMON_NAME = bytes.fromhex("550403")
ALTERNATIVE_NAMES = bytes.fromhex("551d11")
SEQUENCE, UTC_TIME, VERSION, EXTENSIONS = 0x30, 0x17, 0xA0, 0xA3
DNS_NAME, IP_ADDRESS = 0x82, 0x87

EXPIRED = 10
"""OpenSSL's codes of what is wrong with a certificate."""
NOT_YET_VALID = 9
OTHER_NAME = (62, 64)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says of itself."""

    subject: str
    """The name of whom it is for."""
    issuer: str
    """The name of whom it is signed by."""
    begins: datetime
    ends: datetime
    names: tuple[str, ...]
    """Hosts and addresses that it is for."""

    @classmethod
    def parse(cls, der: bytes) -> Certificate:
        """Read the fields above from a certificate in DER.

        Raises
        ------
        ValueError
            These bytes are no certificate.
        """
        try:
            [(_, body)] = _items(der)
            fields = list(_items(next(_items(body))[1]))
            if fields[0][0] == VERSION:
                fields = fields[1:]
            _, _, (_, issuer), (_, validity), (_, subject), *rest = fields
            begins, ends = (_time(tag, value) for tag, value in _items(validity))
            names = next((_names(value) for tag, value in rest if tag == EXTENSIONS), ())
            return cls(_common_name(subject), _common_name(issuer), begins, ends, names)
        except (IndexError, StopIteration) as error:
            raise ValueError("no certificate: it is cut off") from error


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The values that stand side by side in DER, each with its tag."""
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise ValueError("no certificate: it is cut off")
        yield tag, data[at : at + length]
        at += length


def _time(tag: int, value: bytes) -> datetime:
    text = value.decode("ascii")
    if tag == UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _common_name(name: bytes) -> str:
    for _, one in _items(name):
        for _, pair in _items(one):
            (_, kind), (_, value) = _items(pair)
            if kind == COMMON_NAME:
                return _shown(value)
    return "(no name)"


def _names(extensions: bytes) -> tuple[str, ...]:
    [(_, listed)] = _items(extensions)
    for _, extension in _items(listed):
        (_, kind), *_, (_, value) = _items(extension)
        if kind == ALTERNATIVE_NAMES:
            [(_, names)] = _items(value)
            return tuple(
                _shown(name) if tag == DNS_NAME else str(ipaddress.ip_address(name))
                for tag, name in _items(names)
                if tag in (DNS_NAME, IP_ADDRESS)
            )
    return ()


def _shown(value: bytes) -> str:
    """Text of somebody else's certificate, without what would move a terminal's cursor."""
    text = value.decode("utf-8", "replace")
    return "".join(letter for letter in text if letter.isprintable())


def certificates_in(pem: str) -> list[Certificate]:
    """The certificates of a PEM file, or of its contents, as Dask's settings may give them.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        There is no certificate in it.
    """
    text = pem if "\n" in pem else Path(pem).read_text(errors="replace")
    _, *blocks = text.split("-----BEGIN CERTIFICATE-----")
    if not blocks:
        raise ValueError("no certificate: no line 'BEGIN CERTIFICATE' in it")
    end = "-----END CERTIFICATE-----"
    ders = [
        ssl.PEM_cert_to_DER_cert(f"-----BEGIN CERTIFICATE-----{block.partition(end)[0]}{end}\n")
        for block in blocks
    ]
    return [Certificate.parse(der) for der in ders]


@dataclass(frozen=True, slots=True)
class Look:
    """What an address has shown."""

    speaks: Literal["tls", "tcp", "nothing"]
    """``nothing``: nobody is there or says anything; also an address that is neither."""
    certificate: Certificate | None = None
    """Whatever certificate it has shown, right or wrong."""
    problem: str = ""
    """What keeps this process from talking to it, as a sentence without its end; empty: nothing."""
    advice: str = ""
    """What to do about that."""
    other_name: bool = False
    """The certificate is for other hosts than this one. Dask does not look at that."""


def look_at(address: str, seconds: float = LOOK_SECONDS, security: Security | None = None) -> Look:
    """Look at who answers at an address.

    Parameters
    ----------
    address : str
        Such as ``"tls://host:8786"``. Others than ``tls`` and ``tcp`` are not looked at.
    seconds : float
        How long it may take to answer.
    security : Security, optional
        Certificates of this process; those of its Dask settings by default.

    Returns
    -------
    Look
        Nothing is raised: what is wrong is its ``problem``.
    """
    scheme, _, place = address.rpartition("://")
    if scheme not in ("tcp", "tls"):
        return Look("nothing")
    try:
        host, port = parse_host_port(place)
        reached = (host, int(port))
        with socket.create_connection(reached, timeout=seconds):
            pass
    except (OSError, ValueError) as error:
        return Look("nothing", problem=f"nobody answers at {address}: {error}")
    if scheme == "tls":
        return _look_by_tls(address, reached, seconds, security or Security())
    if _speaks_first(reached, SILENT_SECONDS):
        return Look("tcp")
    try:
        with _shaken(reached, seconds):
            speaks_tls = True
    except OSError as error:
        # It may refuse a client that shows no certificate, but by TLS.
        speaks_tls = "ALERT" in (getattr(error, "reason", None) or "")
    if speaks_tls:
        return Look(
            "tls",
            problem=f"{address} speaks TLS, and this is a plain address",
            advice=f"say tls://{place}, and set DASK_CONFIG to the folder of a tls.yaml that "
            "names certificates",
        )
    if _speaks_first(reached, seconds):
        return Look("tcp")
    return Look("nothing", problem=f"whoever is at {address} does not speak as Dask does")


def _look_by_tls(
    address: str, reached: tuple[str, int], seconds: float, security: Security
) -> Look:
    plain = Look(
        "tcp",
        problem=f"{address} speaks plain TCP, no TLS",
        advice="start it with --protocol tls and certificates, or say tcp://"
        f"{address.rpartition('://')[2]} if its network may be trusted",
    )
    if _speaks_first(reached, SILENT_SECONDS):
        return plain
    settings = security.get_tls_config_for_role("client")
    authority, certificate = settings.get("ca_file"), settings.get("cert")
    for name, value in (("ca-file", authority), ("client.cert", certificate)):
        if not value:
            return Look(
                "tls",
                problem=f"this process has no certificates: distributed.comm.tls.{name} is not set",
                advice="set DASK_CONFIG to the folder of a tls.yaml that names them",
            )
    try:
        context = _context(authority)
        context.load_cert_chain(certificate, settings.get("key"))
    except OSError as error:
        return Look(
            "tls",
            problem=f"the certificates of this process cannot be read ({authority}, "
            f"{certificate}, {settings.get('key')}): {error}",
            advice="correct the paths in tls.yaml, and let this user read those files",
        )
    shown = None
    try:
        with _shaken(reached, seconds) as connection:
            der = connection.getpeercert(binary_form=True)
            shown = Certificate.parse(der) if der else None
        try:
            with _shaken(reached, seconds, context) as connection:
                connection.recv(1)
            return Look("tls", shown)
        except ssl.SSLCertVerificationError as error:
            if error.verify_code not in OTHER_NAME:
                raise
        context.check_hostname = False
        with _shaken(reached, seconds, context) as connection:
            connection.recv(1)
        return Look("tls", shown, other_name=True)
    except (OSError, ValueError) as error:
        if shown is None and _speaks_first(reached, seconds):
            return plain
        problem, advice = _said(address, error, shown, authority, certificate)
        return Look("tls", shown, problem, advice)


def _context(authority: str | None = None) -> ssl.SSLContext:
    """What the other's certificate has to be like; without an authority: anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif "\n" in authority:
        context.load_verify_locations(cadata=authority)
    else:
        context.load_verify_locations(authority)
    return context


def _shaken(
    reached: tuple[str, int], seconds: float, context: ssl.SSLContext | None = None
) -> ssl.SSLSocket:
    """A connection after its handshake."""
    plain = socket.create_connection(reached, timeout=seconds)
    try:
        return (context or _context()).wrap_socket(plain, server_hostname=reached[0])
    except BaseException:
        plain.close()
        raise


def _speaks_first(reached: tuple[str, int], seconds: float) -> bool:
    """Whether somebody greets whoever connects, as Dask does without TLS."""
    try:
        with socket.create_connection(reached, timeout=seconds) as connection:
            return bool(connection.recv(1))
    except OSError:
        return False


def _said(
    address: str,
    error: Exception,
    shown: Certificate | None,
    authority: str,
    certificate: str,
) -> tuple[str, str]:
    """In words why two do not come together, and what to do."""
    renew = "make new certificates with deploy/tls/make.sh --renew, copy them and restart it"
    if isinstance(error, ssl.SSLCertVerificationError) and shown is not None:
        if error.verify_code == EXPIRED:
            return f"the certificate of {address} ended on {shown.ends:%Y-%m-%d %H:%M} UTC", renew
        if error.verify_code == NOT_YET_VALID:
            begins = f"{shown.begins:%Y-%m-%d %H:%M} UTC"
            return (
                f"the certificate of {address} is valid from {begins} on only",
                "compare the clocks of the two machines",
            )
        return (
            f"the certificate of {address} is signed by {shown.issuer!r}, which is not the "
            f"authority in {_path(authority)}: {error.verify_message}",
            "take certificates of one authority on all machines (one run of deploy/tls/make.sh)",
        )
    reason = (getattr(error, "reason", None) or "").lower()
    if "alert" in reason:
        why = "of another authority, or not for clients"
        for mark, words in (("expired", "expired"), ("required", "missing")):
            if mark in reason:
                why = words
        return (
            f"{address} refuses the certificate of this process, {_path(certificate)}: it is "
            f"{why} ({reason.replace('_', ' ')})",
            "take a certificate of the scheduler's authority (distributed.comm.tls.client)",
        )
    return f"no TLS handshake with {address}: {error}", "look at the log of the process there"


def _path(pem: str) -> str:
    return "distributed.comm.tls (in memory)" if "\n" in pem else pem


def why_no_answer(address: str) -> str:
    """What has kept a client from connecting, and what to do, as one sentence without its end."""
    look = look_at(address)
    if look.problem and look.advice:
        return f"{look.problem}: {look.advice}"
    return "check the address and that `dask scheduler` runs there"
