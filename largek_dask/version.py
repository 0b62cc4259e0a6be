"""Version of the package, and the check of formats written by other versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__version__ = "0.1.0"


def check_format(
    document: Mapping[str, Any], where: str, error: type[Exception], reads: int = 1
) -> None:
    """Raise an error if the format number of a document is not supported.

    Parameters
    ----------
    document : mapping
        ``format`` is the format number (default 1); ``version`` is the version of the package that
        wrote the document.
    where : str
        Location of the document, for the message.
    error : type
        Class of the error.
    reads : int
        Latest format that is supported.
    """
    number = document.get("format", 1)
    if type(number) is int and number <= reads:
        return
    version = str(document.get("version", ""))[:40]
    by = f", written by largek_dask {version}," if version.isprintable() and version else ""
    raise error(
        f"{where}: format {str(number)[:40]!r}{by} is not supported, because largek_dask "
        f"{__version__} reads only formats up to {reads}; upgrade with pip install -U largek_dask."
    )
