"""``largek demo``: the main job from end to end on real input, without any set-up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import command, emit, wants_json
from largek_dask.driver.formatting import human_seconds

if TYPE_CHECKING:
    import numpy as np
    from distributed import Client
    from numpy.typing import NDArray

    from largek_dask.model import CentersModel

__all__ = ["demo"]

MAX_ITER = 12
"""Steps: more lower the cost by less than a thousandth."""
ROW = 8 * 8 * 3
"""Numbers of a patch."""
FILES = {
    "data": "patches.zarr",
    "model": "model.zarr",
    "labels": "labels.zarr",
    "picture": "codebook.png",
}


@command("largek demo --out largek-demo")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("largek-demo"),
    show_default=True,
    metavar="DIR",
    help="Folder for what is written; an earlier demo's files there are replaced.",
)
@click.option(
    "-k", "--n-clusters", type=click.IntRange(min=1), default=256, show_default=True, metavar="K"
)
@click.option(
    "--stride",
    type=click.IntRange(1, 8),
    default=2,
    show_default=True,
    help="Pixels between patches: 1 gives 531,720 rows, 2 gives 133,140, 8 gives 8,480.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def demo(out: Path, n_clusters: int, stride: int, seed: int) -> None:
    """Cluster patches of two photographs: all of it in one command.

    Cuts the photographs that scikit-learn ships into 8 × 8 colour patches, stores them as Zarr,
    compiles kernels, starts a local Dask cluster, learns a codebook, and rebuilds the photographs
    from it.
    """

    def say(text: str) -> None:
        if not wants_json():
            click.echo(text, err=True)

    begun = perf_counter()
    prepare_folder(out)
    # Absolute: workers have other working directories.
    paths = {name: out.resolve() / file for name, file in FILES.items()}
    with second_compiler(n_clusters):
        # Imported while the other process compiles.
        import numpy as np

        from largek_dask.cli.photographs import patches, sample_photographs
        from largek_dask.data.ingest import ingest
        from largek_dask.estimators.kmeans import KMeans
        from largek_dask.kernels.compiling import compiled

        before = compiled()
        photographs = sample_photographs()
        tables = [patches(image, stride) for image in photographs.values()]
        table = np.concatenate(tables)
        say(f"1. {len(table):,} patches of {len(tables)} photographs, {ROW} numbers each")
        # A quarter of the rows a chunk, so that two workers share them evenly.
        chunk_rows = -(-len(table) // 4)
        ingest(table, str(paths["data"]), chunk_rows=chunk_rows, progress=False)
        say(f"2. stored in {paths['data']}")
        compile_kernels(str(paths["data"]), n_clusters, seed)
    seconds_compiling = compiled().since(before).seconds
    client = local_client()
    # The cluster ends in the background: seconds would go there.
    with ThreadPoolExecutor(1) as background:
        try:
            say(f"3. a local Dask cluster; its dashboard: {client.dashboard_link}")
            say(f"4. clustering to {n_clusters} codewords")
            begun_fit = perf_counter()
            km = KMeans(
                n_clusters,
                max_iter=MAX_ITER,
                random_state=seed,
                client=client,
                verbose=not wants_json(),
            ).fit(paths["data"])
            seconds_fit = perf_counter() - begun_fit
            model = km.model_
            model.save(str(paths["model"]))
            model.predict(paths["data"], out=str(paths["labels"]), client=client)
        finally:
            background.submit(client.close)
        say("5. drawing what the codewords make of the photographs")
        decibels, picture = draw(model, photographs, tables, km.labels_, stride, paths["picture"])
    payload: dict[str, Any] = {
        "out": str(out),
        "n_rows": len(table),
        "n_features": table.shape[1],
        "n_clusters": n_clusters,
        "n_iter": km.n_iter_,
        "stop_reason": km.stop_reason_,
        "inertia": km.inertia_,
        "psnr": decibels,
        "digest": model.digest(),
        "seconds_compiling": seconds_compiling,
        "seconds_fit": seconds_fit,
        "seconds": perf_counter() - begun,
        "files": {name: str(path) for name, path in paths.items() if path.exists()},
    }
    emit(payload, lambda: summary(payload, picture))
    if km.stop_reason_ == "interrupted":
        raise KeyboardInterrupt


def prepare_folder(out: Path) -> None:
    """Make the folder; remove files of an earlier demo and nothing else.

    Raises
    ------
    OutputError
        It cannot be made, or holds other things only.
    """
    import shutil

    from largek_dask.errors import OutputError

    try:
        out.mkdir(parents=True, exist_ok=True)
        there = sorted(out.iterdir())
        earlier = [path for path in there if path.name in FILES.values()]
        if there and not earlier:
            raise OutputError(f"{out} holds other things ({there[0].name!r}): choose another --out")
        for path in earlier:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    except PermissionError as error:
        raise OutputError(f"{out} cannot be written: choose another --out") from error


def second_compiler(n_clusters: int) -> AbstractContextManager[None]:
    """Have a second process compile kernels as well, if a core is free for it."""
    import numpy as np

    from largek_dask.driver.parallel_compile import compiles_in_parallel, is_possible

    if not is_possible():
        return nullcontext()
    return compiles_in_parallel(np.dtype(np.float32), ROW, n_clusters)


def compile_kernels(data: str, n_clusters: int, seed: int) -> None:
    """Compile what the job needs, for workers to load that start later, by the same fit here.

    Without compiling it takes half a second. On one thread: the second compiler has the other core.
    """
    from largek_dask.estimators.kmeans import KMeans

    km = KMeans(n_clusters, max_iter=MAX_ITER, random_state=seed, n_threads=1).fit(data)
    if km.stop_reason_ == "interrupted":
        raise KeyboardInterrupt


def local_client() -> Client:
    """A client that owns a cluster of two workers of one thread each, or one on one core."""
    import logging

    import dask.system
    from distributed import Client

    return Client(
        n_workers=min(2, dask.system.CPU_COUNT),
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        # Workers import before the first task.
        preload="largek_dask.passes.cluster",
        set_as_default=False,
        # What matters of it arrives as an exception; a worker slow to end is no news.
        silence_logs=logging.CRITICAL,
    )


def draw(
    model: CentersModel,
    photographs: dict[str, NDArray[np.uint8]],
    tables: list[NDArray[np.uint8]],
    labels: NDArray[np.int32],
    stride: int,
    path: Path,
) -> tuple[dict[str, float], str]:
    """Draw the photographs as rebuilt from the codewords.

    Returns
    -------
    decibels : dict
        PSNR by photograph.
    picture : str
        Where the picture is, or what to install to get it.
    """
    import numpy as np

    from largek_dask.cli.photographs import codeword_mosaic, psnr, rebuild
    from largek_dask.errors import MissingDependencyError
    from largek_dask.plots.pictures import codebook_figure

    codewords = model.centers.astype(np.float64)
    decibels, pairs, begin = {}, [], 0
    for (name, image), rows in zip(photographs.items(), tables, strict=True):
        own = labels[begin : begin + len(rows)]
        begin += len(rows)
        again = rebuild(codewords, own, image.shape[:2], stride)
        decibels[name] = psnr(image, again)
        pairs.append((name, image, again, decibels[name]))
    title = f"{begin:,} colour patches of 8 × 8 pixels in {len(codewords)} clusters"
    try:
        figure = codebook_figure(codeword_mosaic(codewords, model.counts), pairs, title)
    except MissingDependencyError as error:
        return decibels, f"not drawn: {error}"
    figure.savefig(path)
    return decibels, str(path)


def summary(of: dict[str, Any], picture: str) -> dict[str, str]:
    """Return the outcome, where it is, and what to try next."""
    out, time = of["out"], {name: human_seconds(of[name]) for name in of if "seconds" in name}
    data, model = f"{out}/{FILES['data']}", f"{out}/{FILES['model']}"
    return {
        "rows": f"{of['n_rows']:,} × {of['n_features']}",
        "clusters": f"{of['n_clusters']:,} after {of['n_iter']} steps ({of['stop_reason']})",
        "cost": f"{of['inertia']:.6g}",
        "rebuilt (PSNR)": ", ".join(f"{name} {db:.1f} dB" for name, db in of["psnr"].items()),
        "time": f"{time['seconds']}, of which compiling {time['seconds_compiling']} and "
        f"clustering {time['seconds_fit']}",
        "picture": picture,
        "data": data,
        "model": model,
        "labels": f"{out}/{FILES['labels']}",
        "try next": f"largek fit {data} -k 1000 --out run",
        "": f"largek predict {model} {data} --out labels.zarr",
        " ": f"largek doctor --data {data}",
    }
