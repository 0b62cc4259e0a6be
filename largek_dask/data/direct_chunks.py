"""Read and decode chunks of a local Zarr array without Zarr's own pipeline.

Zarr's pipeline takes about 0.3 ms per chunk, which is most of the read time if chunks are small.
The pipeline is used only for layouts that this module does not support.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import google_crc32c
import numpy as np
from numcodecs.zstd import Zstd
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.codecs.sharding import ShardingCodecIndexLocation
from zarr.storage import LocalStore

from largek_dask.data.stores import metadata_key, name_chunk

Reader = Callable[[int, int, int], bytes]
"""Function ``reader(file, n_bytes, offset)`` that reads a part of an open file."""
Decoder = Callable[[bytes], bytes]

ABSENT = 2**64 - 1
"""Offset that marks a missing chunk in the index of a shard."""
MOST_BYTES = 1 << 30
"""Maximum size of a chunk in bytes, because larger chunks may need several reads."""


class DirectChunks:
    """Reader of a local two-dimensional Zarr array whose chunks contain full rows.

    ``reader`` reads stored bytes and verifies the checksum, if there is one. If ``shard`` is None,
    each chunk is a separate file.
    """

    def __init__(
        self,
        array: Any,
        reader: Reader = os.pread,
        decompress: Decoder | None = None,
        shard: ShardingCodec | None = None,
    ) -> None:
        self._array = array
        self._read = reader
        self._decompress = decompress
        self._folder = os.path.join(os.fspath(array.store.root), array.path)
        self._dtype = array.dtype
        self._shape = tuple(array.chunks)
        self._bytes = int(np.prod(self._shape)) * self._dtype.itemsize
        self._per_file = 1 if shard is None else array.shards[0] // array.chunks[0]
        self._shard = shard

    @classmethod
    def of(cls, array: Any) -> DirectChunks | None:
        """Return a reader for an array; None for layouts that only Zarr can read."""
        dtype = array.dtype
        little = dtype.itemsize == 1 or dtype.newbyteorder("=") == dtype.newbyteorder("<")
        if not isinstance(array.store, LocalStore) or array.ndim != 2 or not little:
            return None
        if array.chunks[1] != array.shape[1]:
            return None
        if array.chunks[0] * array.chunks[1] * dtype.itemsize > MOST_BYTES:
            return None
        if array.metadata.zarr_format == 2:
            plain = not array.compressors and not array.filters and array.order == "C"
            return cls(array) if plain and dtype.isnative else None
        codecs = array.metadata.codecs
        if not isinstance(codecs[0], ShardingCodec):
            decoding = _decoding(codecs)
            return None if decoding is None else cls(array, *decoding)
        shard = codecs[0]
        decoding = _decoding(shard.codecs)
        whole = len(codecs) == 1 and array.shards[1] == array.shape[1]
        checked = [type(codec) for codec in shard.index_codecs] == [BytesCodec, Crc32cCodec]
        return cls(array, *decoding, shard) if whole and checked and decoding is not None else None

    def _key(self, row: int) -> str:
        key: str = self._array.metadata.encode_chunk_key((row // self._per_file, 0))
        return key

    def path(self, row: int) -> str:
        return os.path.join(self._folder, self._key(row))

    def name(self, row: int) -> str:
        """Return the name and the path of a stored chunk, for messages."""
        return name_chunk(self._array, self._key(row))

    def read(self, begin: int, end: int) -> Iterator[NDArray[Any] | None]:
        """Yield the stored chunks ``begin`` to ``end`` (exclusive); None for a missing chunk.

        Raises OSError if the store is gone, and ValueError if a file is damaged.
        """
        row = begin
        while row < end:
            stop = min(end, (row // self._per_file + 1) * self._per_file)
            try:
                with open(self.path(row), "rb", buffering=0) as file:
                    number = file.fileno()
                    n_bytes = os.fstat(number).st_size
                    if self._shard is None:
                        yield self._decode(number, n_bytes, 0)
                    else:
                        first = row % self._per_file
                        yield from self._inside(number, n_bytes, first, first + stop - row)
            except FileNotFoundError:
                self._refuse_gone(row)
                yield from [None] * (stop - row)
            except (ValueError, RuntimeError) as error:
                # Codecs raise ValueError or RuntimeError if data are damaged.
                raise ValueError(f"{self.name(row)} is damaged ({error})") from error
            row = stop

    def _refuse_gone(self, row: int) -> None:
        if not os.path.exists(os.path.join(self._folder, metadata_key(self._array))):
            raise FileNotFoundError(errno.ENOENT, "the store is gone", self._folder)
        if os.path.exists(self.path(row)):
            raise OSError(errno.EIO, "was missing for a moment", self.path(row))

    def _inside(
        self, file: int, file_bytes: int, begin: int, end: int
    ) -> Iterator[NDArray[Any] | None]:
        assert self._shard is not None
        size = 16 * self._per_file + 4
        if file_bytes < size:
            raise ValueError(
                f"the file has {file_bytes} bytes, but the index of a shard needs {size}"
            )
        at_end = self._shard.index_location == ShardingCodecIndexLocation.end
        table = _checked(file, size, file_bytes - size if at_end else 0)
        index = np.frombuffer(table, "<u8").reshape(-1, 2)
        for offset, n_bytes in index[begin:end].tolist():
            yield None if offset == ABSENT else self._decode(file, n_bytes, offset)

    def _decode(self, file: int, n_bytes: int, offset: int) -> NDArray[Any]:
        data = self._read(file, n_bytes, offset)
        if self._decompress is not None:
            data = self._decompress(data)
        if len(data) != self._bytes:
            raise ValueError(f"the chunk has {len(data)} bytes instead of {self._bytes}")
        return np.frombuffer(data, self._dtype).reshape(self._shape)


def _decoding(codecs: Any) -> tuple[Reader, Decoder | None] | None:
    """Return functions that read and decompress chunks; None if a codec is unknown."""
    first, *rest = codecs
    if not isinstance(first, BytesCodec):
        return None
    if getattr(first.endian, "value", first.endian) not in ("little", None):
        return None
    reader, decoder = os.pread, None
    if rest and isinstance(rest[-1], Crc32cCodec):
        reader = _checked
        rest.pop()
    if rest and isinstance(rest[-1], ZstdCodec):
        decoder = Zstd().decode
        rest.pop()
    return None if rest else (reader, decoder)


def _checked(file: int, n_bytes: int, offset: int) -> bytes:
    body = os.pread(file, n_bytes - 4, offset)
    checksum = os.pread(file, 4, offset + n_bytes - 4)
    if google_crc32c.value(body) != int.from_bytes(checksum, "little"):
        raise ValueError("the checksum (crc32c) does not match the data")
    return body
