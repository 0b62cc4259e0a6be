"""A cluster that accepts only TLS connections, with certificates made here."""

from contextlib import ExitStack

import dask
import numpy as np
import pytest
from distributed.security import Security

import largek_dask as lk
from largek_dask.errors import ClusterError
from largek_dask.passes.cluster import EMBED_BYTES
from tests.conftest import make_client
from tests.deploy.running import make_certificate


def test_tls__a_job_from_beginning_to_end(tmp_path):
    make_certificate(tmp_path)
    k, d = 50, 400
    # Such a model is sent on its own, from one worker to the other.
    assert 4 * k * d * 2 > EMBED_BYTES
    rows_url = str(tmp_path / "x.zarr")
    x = np.random.default_rng(0).standard_normal((600, d)).astype(np.float32)
    lk.ingest(x, rows_url, chunk_rows=100, progress=False)
    pem = {f"tls_{role}_{what}": str(tmp_path / "tls" / f"node.{file}")
           for role in ("client", "scheduler", "worker")
           for what, file in (("cert", "pem"), ("key", "key"))}  # fmt: skip
    security = Security(
        tls_ca_file=str(tmp_path / "tls" / "ca.pem"), require_encryption=True, **pem
    )
    with ExitStack() as stack:
        client = make_client(stack, 2, processes=False, protocol="tls://", security=security)
        service = lk.connect(client, store=str(tmp_path / "store"))
        job = service.submit(
            rows_url, n_clusters=k, algorithm=lk.Lloyd(), output=str(tmp_path / "out")
        )
        model = job.result("120s")
        address = client.scheduler.address
        # Nobody says so to a plain client; a probe finds it out.
        with pytest.raises(ClusterError, match=f"it speaks TLS: use {address}"):
            lk.connect(address.replace("tls", "tcp"), timeout="2s")
        tls = "distributed.comm.tls"
        stack.enter_context(
            dask.config.set(
                {
                    f"{tls}.ca-file": security.tls_ca_file,
                    f"{tls}.client.cert": pem["tls_client_cert"],
                    f"{tls}.client.key": pem["tls_client_key"],
                }
            )
        )
        plain = make_client(stack, 0, processes=False, protocol="tcp://").scheduler.address
        with pytest.raises(ClusterError, match=rf"SSL.*TLS: use {plain}"):
            lk.connect(plain.replace("tcp", "tls"), timeout="2s")
    assert address.startswith("tls://")
    km = lk.KMeans(k, algorithm=lk.Lloyd(), random_state=0).fit(lk.open_rows(rows_url))
    assert model.digest() == km.model_.digest()
