"""``largek export``: write the centres of a model to a file for a vector index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import command, emit, option_force, option_storage, output

if TYPE_CHECKING:
    from largek_dask.model import Model


def _faiss(model: Model) -> bytes:
    index = model.to_faiss()
    import faiss

    return bytes(faiss.serialize_index(index))


def _npy(model: Model) -> bytes:
    import numpy as np

    from largek_dask.model.index import index_centers

    np.save(file := BytesIO(), index_centers(model))
    return file.getvalue()


def _lance(model: Model) -> bytes:
    from largek_dask.data.stores import require
    from largek_dask.model.index import index_centers

    centers = index_centers(model)
    pa = require("pyarrow", "parquet", "centres for Lance")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(centers.ravel()), centers.shape[1])
    table = pa.table({"centroids": lists})
    with pa.ipc.new_file(file := BytesIO(), table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


def _parquet(model: Model) -> bytes:
    from largek_dask.data.stores import require
    from largek_dask.model.index import index_centers

    centers = index_centers(model)
    pq = require("pyarrow.parquet", "parquet", ".parquet files")
    import pyarrow as pa

    k = len(centers)
    columns = {
        "id": pa.array(range(k), pa.int32()),
        "parent": pa.nulls(k, pa.int32()),
        "vector": pa.array(list(centers), pa.list_(pa.float32())),
    }
    pq.write_table(pa.table(columns), file := BytesIO())
    return file.getvalue()


FORMATS: Mapping[str, Callable[[Model], bytes]] = {
    "faiss": _faiss,
    "lance": _lance,
    "parquet": _parquet,
    "npy": _npy,
}
"""Functions that convert a model to the bytes of a file, by name of the format."""


@command("largek export run --to faiss --out run.faiss")
@click.argument("model_url", metavar="MODEL")
@click.option(
    "--to",
    "kind",
    required=True,
    type=click.Choice(list(FORMATS)),
    help="faiss: an empty IVF index; lance: an Arrow file for ivf_centroids; parquet: id, parent, "
    "vector, as VectorChord takes them; npy: an array.",
)
@click.option("--out", required=True, metavar="FILE", help="Path or URL of the file to write.")
@option_force
@option_storage
def export(
    model_url: str, kind: str, out: str, force: bool, storage_options: dict[str, Any] | None
) -> None:
    """Write the centres of a model to a file for a vector index.

    MODEL is the store of a model or the folder of a fit; mixtures are not supported. An index with
    these centres needs no training. Centres are written in float32. If the model normalises rows,
    its faiss index compares inner products, so normalise rows before adding them to the index.
    """
    from largek_dask.driver.storage import Folder
    from largek_dask.errors import OutputError
    from largek_dask.model import load_model

    out, more = output(out, model_url, storage_options)
    folder, name = Folder(out, more).parent()
    if folder.exists(name) and not force:
        raise OutputError(f"{out} already exists; choose another --out, or use --force")
    model = load_model(model_url, storage_options=storage_options)
    data = FORMATS[kind](model)
    folder.publish(name, data)
    shape = {"n_clusters": model.n_clusters, "n_features": model.n_features}
    emit({"out": out, "format": kind, **shape, "bytes": len(data)})
