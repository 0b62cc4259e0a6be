"""Close connections of Dask that nobody closed before they are collected.

Tornado drops a connection that is cancelled in the turn of the event loop in which it was
established, and one that is pending when its loop ends. The garbage collector finds its unclosed
socket later and issues a ResourceWarning, which fails whichever test is running. Dask closes
dropped connections in the same way as here, but only from its handshake on.
"""

from __future__ import annotations

import weakref
from typing import Any

from tornado.tcpclient import TCPClient

_create_stream = TCPClient._create_stream


def _create_finalized(self: TCPClient, *args: Any, **kwargs: Any) -> Any:
    stream, connected = _create_stream(self, *args, **kwargs)
    if stream.socket is not None:
        weakref.finalize(stream, stream.socket.close).atexit = False
    return stream, connected


TCPClient._create_stream = _create_finalized  # type: ignore[method-assign]
