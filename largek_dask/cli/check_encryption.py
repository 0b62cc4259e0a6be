"""What ``largek doctor --scheduler tls://…`` looks at: who answers, and when certificates end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from largek_dask.cli.findings import Finding, broken, note, ok
from largek_dask.passes.encryption import Certificate, certificates_in, look_at

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security

__all__ = ["check_reachable", "check_workers"]

SOON_DAYS = 30
"""A certificate with fewer days left is told as one to be renewed."""
RENEW = (
    "make new ones (deploy/tls/make.sh --renew), copy them, restart the scheduler: workers "
    "follow, and jobs go on"
)
LOOKS = 32
"""Workers that are looked at at the same time."""


def check_reachable(address: str, security: Security) -> list[Finding]:
    """Who answers at the address of a scheduler, by which certificate, and what is wrong with it.

    Of a plain scheduler that answers nothing is said.
    """
    look = look_at(address, security=security)
    if look.speaks == "nothing":
        if not look.problem:
            return []
        return [broken("cluster", look.problem, "start a scheduler there, or correct the address")]
    found: list[Finding] = []
    if look.speaks == "tls" and address.startswith("tls://"):
        found += _own_certificates(security)
    if look.problem:
        return [*found, broken("tls", look.problem, look.advice)]
    if look.certificate is not None:
        found.append(_ends(f"certificate of the scheduler, {address}", look.certificate))
        if look.other_name:
            names = ", ".join(look.certificate.names) or "nobody"
            found.append(
                note(
                    "tls",
                    f"the scheduler's certificate is for {names}, not for the name in {address}: "
                    "Dask does not compare names and works, but any machine with a certificate of "
                    "this authority could answer instead",
                    "make one with this name: deploy/tls/make.sh --renew HOST,NAME",
                )
            )
    return found


def _own_certificates(security: Security) -> Iterator[Finding]:
    """When the files end that this process connects with; what cannot be read is told later."""
    settings = security.get_tls_config_for_role("client")
    for what, pem in (
        ("authority here", settings.get("ca_file")),
        ("certificate of this process", settings.get("cert")),
    ):
        try:
            certificates = certificates_in(pem) if pem else []
        except (OSError, ValueError):
            continue
        where = "" if not pem or "\n" in pem else f", {pem}"
        # Of an authority all count; of a certificate only itself, the first.
        for certificate in certificates if what == "authority here" else certificates[:1]:
            yield _ends(what + where, certificate)


def _ends(what: str, certificate: Certificate) -> Finding:
    """When a certificate ends, and what to do when that is soon."""
    left = certificate.ends - datetime.now(UTC)
    when = f"{certificate.ends:%Y-%m-%d %H:%M} UTC"
    if left.total_seconds() <= 0:
        return broken("tls", f"{what}: ended on {when}", RENEW)
    told = f"{what}: ends on {when}, in {left.days} days"
    return ok("tls", told) if left.days >= SOON_DAYS else note("tls", told, RENEW)


def check_workers(client: Client, security: Security | None = None) -> Iterator[Finding]:
    """When the certificates of a cluster's workers end, the soonest by name."""
    addresses = [
        address
        for address in client.scheduler_info(n_workers=-1)["workers"]
        if address.startswith("tls://")
    ]
    if not addresses:
        return
    with ThreadPoolExecutor(LOOKS) as pool:
        look = partial(look_at, security=security)
        looks = dict(zip(addresses, pool.map(look, addresses), strict=True))
    shown = {address: look for address, look in looks.items() if look.certificate is not None}
    hidden = sorted(set(looks) - set(shown))
    if hidden:
        yield note(
            "tls",
            f"{len(hidden)} of {len(looks)} workers cannot be reached from here, such as "
            f"{hidden[0]}: when their certificates end is not known",
            "run this on a machine that reaches them, such as the scheduler's",
        )
    fine = []
    for address, look in shown.items():
        assert look.certificate is not None
        told = _ends(f"certificate of worker {address}", look.certificate)
        if told.level == "ok" and not look.problem:
            fine.append((look.certificate.ends, told))
        else:
            yield broken("tls", look.problem, look.advice) if look.problem else told
    if fine:
        _, first = min(fine, key=lambda pair: pair[0])
        yield ok("tls", f"{first.text} (the first of {len(fine)} workers)")
