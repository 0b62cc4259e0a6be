"""Strip symbols and debug information from shared libraries; the Dockerfile runs this script.

Symbols and debug information in wheels are a tenth of the image's size. Python images do not
contain binutils, so this script replaces ``strip``: it cuts off everything behind the segments that
the loader maps. Usage: ``python3 lean.py FOLDER``.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

ELF64 = b"\x7fELF\x02\x01"
"""First bytes of a 64-bit little-endian ELF file; other files are not changed."""
SECTIONS_AT = 40
"""Position in the header of the section table's offset; the loader does not need this table."""
PROGRAM_HEADER = "<IIQQQQ"
"""Format of a program header: type, flags, offset, two addresses, and size in the file."""


def needed(data: bytes) -> int:
    """Return the number of bytes that the loader needs: up to the end of the last segment."""
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    ends = [table + size * count]
    for at in range(table, table + size * count, size):
        _, _, offset, _, _, length = struct.unpack_from(PROGRAM_HEADER, data, at)
        ends.append(offset + length)
    return max(ends)


def stripped(data: bytes) -> bytes:
    """Return the content of a file without any bytes behind its segments."""
    length = needed(data) if data.startswith(ELF64) else len(data)
    if length >= len(data):
        return data
    lean = bytearray(data[:length])
    struct.pack_into("<Q", lean, SECTIONS_AT, 0)
    # Set the number of sections, and the index of the section names, to 0.
    struct.pack_into("<HH", lean, 60, 0, 0)
    return bytes(lean)


def main(folder: str) -> None:
    """Strip all libraries in a folder, and print their total size before and after."""
    before = after = 0
    for path in sorted(Path(folder).rglob("*.so*")):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            lean = stripped(data)
            if len(lean) < len(data):
                path.write_bytes(lean)
            before, after = before + len(data), after + len(lean)
    print(f"libraries: {before / 1e6:.0f} MB, now {after / 1e6:.0f} MB")


if __name__ == "__main__":
    main(sys.argv[1])
