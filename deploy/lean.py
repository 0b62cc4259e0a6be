"""Take from shared libraries what only debuggers read; the Dockerfile runs this where it builds.

Wheels ship symbols and debug information: a tenth of all bytes of the image. There are no
binutils in a Python image, whose ``strip`` would do the same: what the loader maps comes first in a
file, and what it does not look at is cut off behind it. Run as ``python3 lean.py FOLDER``.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

ELF64 = b"\x7fELF\x02\x01"
"""How a file of 64 bits, little-endian, begins: whatever else there is stays as it is."""
SECTIONS_AT = 40
"""Where a header says at which byte the table of sections is, which the loader does not need."""
PROGRAM_HEADER = "<IIQQQQ"
"""Type, flags, offset, two addresses, and bytes in the file."""


def needed(data: bytes) -> int:
    """How many bytes of a file its loader maps: the table of segments, and each of them."""
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    ends = [table + size * count]
    for at in range(table, table + size * count, size):
        _, _, offset, _, _, length = struct.unpack_from(PROGRAM_HEADER, data, at)
        ends.append(offset + length)
    return max(ends)


def stripped(data: bytes) -> bytes:
    """A file without what comes behind its segments; as it is if nothing does."""
    length = needed(data) if data.startswith(ELF64) else len(data)
    if length >= len(data):
        return data
    lean = bytearray(data[:length])
    struct.pack_into("<Q", lean, SECTIONS_AT, 0)
    # Number of sections, and which of them has their names.
    struct.pack_into("<HH", lean, 60, 0, 0)
    return bytes(lean)


def main(folder: str) -> None:
    """Strip all libraries in a folder, and say what that has saved."""
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
