"""Whether there is room for what is going to be written."""

from __future__ import annotations

import errno
import os
import shutil
from typing import Any

from largek_dask.driver.formatting import human_bytes
from largek_dask.driver.storage import Folder
from largek_dask.errors import OutputError

__all__ = ["check_space", "room_of"]


def room_of(folder: Folder) -> Any:
    """``shutil.disk_usage`` of a folder, which may not exist yet; None if it is remote."""
    if not folder.is_local:
        return None
    place = folder.root
    while not os.path.isdir(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    return shutil.disk_usage(place)


def check_space(folder: Folder, n_bytes: int, what: str) -> None:
    """Find out before computing that there is no room for what is going to be written.

    Local disks alone tell; what is written elsewhere meanwhile is not known either.

    Raises
    ------
    OutputError
        With the figures.
    """
    if (room := room_of(folder)) is not None and n_bytes > room.free:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder.url)
        raise OutputError(
            f"{what} take about {human_bytes(n_bytes)}, and {folder.url} has "
            f"{human_bytes(room.free)} free. Make room, or choose another folder."
        ) from full
