"""Find the table files given by a path, pattern, folder or list of paths."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsspec.core import split_protocol

from largek_dask.data.stores import filesystem, is_local, normalize
from largek_dask.data.svmlight import SVMLIGHT
from largek_dask.errors import DataError

PACKED = ("", ".gz", ".bz2", ".xz", ".zst", ".zip")
CSV = tuple(end + packed for end in (".csv", ".tsv", ".txt") for packed in PACKED)
TEXT = (*CSV, *(end + packed for end in (".dat", ".data", ".tab") for packed in PACKED))
"""Suffixes of text files. In a folder, only files with a suffix in ``CSV`` are read."""
PARQUET = (".parquet", ".pq")
HDF5 = (".h5", ".hdf5", ".h5ad", ".he5", ".nc", ".nc4")
ONE_FILE = (*TEXT, *PARQUET, *HDF5, *SVMLIGHT)
"""Suffixes of files that are read as a stream."""
ZARR_FILES = ("zarr.json", ".zarray", ".zgroup")
OTHERS = (".zarr", ".npy", ".npz")
WILD = "*?["
TEXTS = ".csv .tsv .txt .dat .data .tab, also packed as .gz .bz2 .xz .zst .zip"


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Several files with the same columns."""

    where: str
    location: str | None
    """Folder that contains the files, if the source is a folder."""
    urls: tuple[str, ...]
    ends: tuple[str, ...]


def check_readable(url: str) -> None:
    """Raise DataError if a local file has an unknown format."""
    if not (is_local(url) and os.path.isfile(url)):
        return
    problem = f"{url} is a file, but a Zarr store is a folder: give the folder's address."
    if url.lower().endswith(".zip"):
        raise DataError(
            f"{problem} To open a store in a zip archive, pass zip://::{url}, or unpack the "
            "archive."
        )
    raise DataError(
        f"{problem} The suffix determines the format of a file: .npy, or, with largek ingest, "
        f"{TEXTS}; {' '.join(PARQUET)}; {' '.join(HDF5)}; {' '.join(SVMLIGHT)}. Rename or convert "
        "the file."
    )


def is_paths(source: Any) -> bool:
    return (
        isinstance(source, (list, tuple))
        and bool(source)
        and all(isinstance(path, (str, os.PathLike)) for path in source)
    )


def find_table_files(
    source: Any, storage_options: Mapping[str, Any] | None = None
) -> TableFiles | None:
    """Return the files of a list of paths, a pattern or a folder; None for other sources.

    The files of a pattern, or of a folder and its subfolders, are sorted by path. Names that begin
    with a dot or an underscore are skipped; in folders, files of other formats are skipped as well.
    Raises DataError if a pattern matches no file, or if files have different formats.
    """
    if is_paths(source):
        urls = [normalize(path) for path in source]
        return _of_one_format("the list of files", None, urls)
    if not isinstance(source, (str, os.PathLike)):
        return None
    url = normalize(source)
    if split_protocol(url)[0] in ("http", "https"):
        return None  # Files on HTTP servers cannot be listed.
    if any(sign in url for sign in WILD) and not (is_local(url) and os.path.exists(url)):
        fs, path = filesystem(url, storage_options)
        names = [name for name in sorted(fs.glob(path)) if not _is_hidden(name.split("/")[-1:])]
        found = [str(fs.unstrip_protocol(name)) for name in names]
        if not found:
            raise DataError(f"no file matches {url}; use a pattern such as folder/*.parquet.")
        return _of_one_format(url, None, [normalize(name) for name in found])
    return _in_folder(url, storage_options)


def _in_folder(url: str, storage_options: Mapping[str, Any] | None) -> TableFiles | None:
    if url.lower().endswith(OTHERS) or (is_local(url) and not os.path.isdir(url)):
        return None
    if not is_local(url) and url.lower().endswith((*TEXT, *HDF5, *SVMLIGHT)):
        return None
    fs, path = filesystem(url, storage_options)
    try:
        if not is_local(url) and fs.isfile(path):
            return None
        if any(fs.exists(f"{path}/{name}") for name in ZARR_FILES):
            return None
        names = sorted(fs.find(path))
    except (OSError, NotImplementedError, ValueError):
        # The error is reported when the source is opened as a store.
        return None
    inside = [(name, name.removeprefix(path).strip("/").split("/")) for name in names]
    kept = [
        normalize(str(fs.unstrip_protocol(name)))
        for name, parts in inside
        if not _is_hidden(parts) and name.lower().endswith((*CSV, *PARQUET))
    ]
    return _of_one_format(url, url, kept) if kept else None


def _is_hidden(parts: Sequence[str]) -> bool:
    """Return True if a path is hidden, like the marker files of Spark."""
    return any(part.startswith((".", "_")) for part in parts)


def _of_one_format(where: str, location: str | None, urls: Sequence[str]) -> TableFiles:
    for url in urls:
        if not url.lower().endswith((*TEXT, *PARQUET)):
            raise DataError(
                f"{where}: {url} does not have the suffix of a CSV or Parquet file ({TEXTS}; "
                f"{', '.join(PARQUET)}); only such files can be read together."
            )
    parquet = [url for url in urls if url.lower().endswith(PARQUET)]
    if parquet and len(parquet) < len(urls):
        other = next(url for url in urls if url not in parquet)
        raise DataError(
            f"{where} contains both CSV and Parquet files ({other}, {parquet[0]}); select one "
            "format, e.g. by a pattern such as folder/*.parquet."
        )
    return TableFiles(where, location, tuple(urls), PARQUET if parquet else TEXT)
