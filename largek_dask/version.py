"""The package's version, and the check of what another version has written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["__version__", "check_format"]

__version__ = "0.1.0"


def check_format(
    document: Mapping[str, Any], where: str, error: type[Exception], reads: int = 1
) -> None:
    """Refuse a document whose format number this version does not know.

    Parameters
    ----------
    document : mapping
        With ``format``, a number; the earliest documents have none. Perhaps with ``version``, that
        of the package that wrote it.
    where : str
        Its place, to begin the message with.
    error : type
        Class of the error.
    reads : int
        The latest format that is known.
    """
    number = document.get("format", 1)
    if type(number) is int and number <= reads:
        return
    version = str(document.get("version", ""))[:40]
    by = f", written by largek_dask {version}," if version.isprintable() and version else ""
    raise error(
        f"{where}: format {str(number)[:40]!r}{by} and largek_dask {__version__} reads formats "
        f"up to {reads}: a newer largek_dask wrote it, so upgrade (pip install -U largek_dask)."
    )
