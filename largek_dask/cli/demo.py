"""``largek demo``: the main job from end to end on real input, without any set-up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import command, emit, wants_json

if TYPE_CHECKING:
    import numpy as np
    from distributed import Client
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from largek_dask.cli.photographs import Image
    from largek_dask.model import CentersModel

__all__ = ["demo"]

MAX_ITER = 12
"""Steps: more lower the cost by less than a thousandth."""
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

    import numpy as np

    from largek_dask.cli.photographs import patches, sample_photographs
    from largek_dask.data.ingest import ingest
    from largek_dask.estimators.kmeans import KMeans
    from largek_dask.kernels.compiling import compiled

    begun, before = perf_counter(), compiled()
    prepare_folder(out)
    # Absolute: workers have other working directories.
    paths = {name: out.resolve() / file for name, file in FILES.items()}
    photographs = sample_photographs()
    tables = [patches(image, stride) for image in photographs.values()]
    table = np.concatenate(tables)
    n_rows, n_features = table.shape
    say(f"1. {n_rows:,} patches of {len(tables)} photographs, {n_features} numbers each")
    # A quarter of the rows a chunk, so that two workers share them evenly.
    ingest(table, str(paths["data"]), chunk_rows=-(-n_rows // 4), progress=False)
    say(f"2. stored in {paths['data']}")
    asked: dict[str, Any] = {"max_iter": MAX_ITER, "random_state": seed}
    # The same fit in this process compiles what workers then load; itself it takes half a second.
    if KMeans(n_clusters, **asked).fit(paths["data"]).stop_reason_ == "interrupted":
        raise KeyboardInterrupt
    seconds_compiling = compiled().since(before).seconds
    client = local_client()
    # The cluster ends in the background: seconds would go there.
    with ThreadPoolExecutor(1) as background:
        try:
            say(f"3. a local Dask cluster; its dashboard: {client.dashboard_link}")
            say(f"4. clustering to {n_clusters} codewords")
            begun_fit = perf_counter()
            km = KMeans(n_clusters, client=client, verbose=not wants_json(), **asked)
            km.fit(paths["data"])
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
        "n_rows": n_rows,
        "n_features": n_features,
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
        "picture": picture,
    }
    emit(payload, then=f"largek fit {out}/{FILES['data']} -k 1000 --out run")
    if km.stop_reason_ == "interrupted":
        raise KeyboardInterrupt


def prepare_folder(out: Path) -> None:
    """Make the folder; remove files of an earlier demo and nothing else."""
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


def local_client() -> Client:
    """Start a cluster of two workers of one thread each, or one on one core."""
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
    photographs: dict[str, Image],
    tables: list[Image],
    labels: NDArray[np.int32],
    stride: int,
    path: Path,
) -> tuple[dict[str, float], str]:
    """Draw the photographs as rebuilt from the codewords.

    Returns the PSNR by photograph, and the place of the picture or what to install to get it.
    """
    import numpy as np

    from largek_dask.cli.photographs import codeword_mosaic, psnr, rebuild
    from largek_dask.errors import MissingDependencyError

    codewords = model.centers.astype(np.float64)
    n_rows = len(labels)
    shown = [("The codewords, most used first", codeword_mosaic(codewords, model.counts))]
    decibels = {}
    for (name, image), rows in zip(photographs.items(), tables, strict=True):
        own, labels = labels[: len(rows)], labels[len(rows) :]
        again = rebuild(codewords, own, image.shape[:2], stride)
        decibels[name] = psnr(image, again)
        shown += [(f"{name}: the photograph", image),
                  (f"rebuilt, PSNR {decibels[name]:.1f} dB", again)]  # fmt: skip
    title = f"{n_rows:,} colour patches of 8 × 8 pixels in {len(codewords)} clusters"
    try:
        codebook_figure(shown, title).savefig(path)
    except MissingDependencyError as error:
        return decibels, f"not drawn: {error}"
    return decibels, str(path)


def codebook_figure(shown: list[tuple[str, Image]], title: str) -> Figure:
    """Draw the codewords, then each photograph and how it was rebuilt, with their captions."""
    from largek_dask.plots.pictures import new_figure

    n_rows = len(shown) // 2
    figure = new_figure(16, 1.0 + 3.4 * n_rows)
    figure.suptitle(title, fontsize=17)
    grid = figure.add_gridspec(n_rows, 3, width_ratios=[1.32, 1, 1])
    places = [grid[:, 0], *(grid[row, column] for row in range(n_rows) for column in (1, 2))]
    for i, (place, (caption, image)) in enumerate(zip(places, shown, strict=True)):
        axes = figure.add_subplot(place)
        axes.imshow(image, interpolation="lanczos" if i else "nearest")
        axes.set_title(caption, fontsize=13)
        axes.set_anchor("N")
        axes.set_axis_off()
    return figure
