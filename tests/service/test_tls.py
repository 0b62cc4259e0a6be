"""A cluster that accepts only TLS connections, with certificates made here."""

import datetime
import ipaddress
from contextlib import ExitStack

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed.security import Security

import largek_dask as lk
from largek_dask.errors import ClusterError
from largek_dask.passes.cluster import EMBED_BYTES
from tests.conftest import make_client


def certificates(folder):
    """A certificate authority, and one certificate signed by it: paths of ca, cert, key."""
    now = datetime.datetime.now(datetime.UTC)
    keys, made = {}, {}
    for name in ("ca", "node"):
        keys[name] = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
        addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(keys[name].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        )
        made[name] = builder.sign(keys["ca"], hashes.SHA256())
    paths = {name: str(folder / f"{name}.pem") for name in ("ca", "cert", "key")}
    pem = serialization.Encoding.PEM
    contents = {
        "ca": made["ca"].public_bytes(pem),
        "cert": made["node"].public_bytes(pem),
        "key": keys["node"].private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }
    for name, path in paths.items():
        with open(path, "wb") as file:
            file.write(contents[name])
    return paths


def test_tls__a_job_from_beginning_to_end(tmp_path):
    pem = certificates(tmp_path)
    k, d = 50, 400
    # Such a model is sent on its own, from one worker to the other.
    assert 4 * k * d * 2 > EMBED_BYTES
    rows_url = str(tmp_path / "x.zarr")
    x = np.random.default_rng(0).standard_normal((600, d)).astype(np.float32)
    lk.ingest(x, rows_url, chunk_rows=100, progress=False)
    options = {f"tls_{role}_cert": pem["cert"] for role in ("client", "scheduler", "worker")}
    options |= {f"tls_{role}_key": pem["key"] for role in ("client", "scheduler", "worker")}
    security = Security(tls_ca_file=pem["ca"], require_encryption=True, **options)
    with ExitStack() as stack:
        client = make_client(stack, 2, processes=False, protocol="tls://", security=security)
        service = lk.connect(client, store=str(tmp_path / "store"))
        job = service.submit(
            rows_url, n_clusters=k, algorithm=lk.Lloyd(), output=str(tmp_path / "out")
        )
        model = job.result("120s")
        address = client.scheduler.address
        with pytest.raises(ClusterError, match="no Dask scheduler answers"):
            lk.connect(address.replace("tls", "tcp"), timeout="2s")
    assert address.startswith("tls://")
    km = lk.KMeans(k, algorithm=lk.Lloyd(), random_state=0).fit(lk.open_rows(rows_url))
    assert model.digest() == km.model_.digest()
