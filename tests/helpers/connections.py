"""Close connections of Dask that are cancelled just as they are established.

Tornado closes what a cancelled ``TCPClient.connect`` has opened, but not if the connection was
established in the same turn of the event loop: the stream is then a result that no task receives.
The loop keeps it open. After the loop has ended, the garbage collector finds an unclosed socket and
issues a ResourceWarning, which fails whichever test is running.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tornado.tcpclient import _Connector

_start = _Connector.start


async def _start_or_close(self: _Connector, *args: Any, **kwargs: Any) -> Any:
    """Connect as Tornado does; close a stream that the cancelled caller will not receive."""
    connected = _start(self, *args, **kwargs)
    try:
        return await connected
    except asyncio.CancelledError:
        if not connected.cancelled() and connected.exception() is None:
            connected.result()[-1].close()
        raise


_Connector.start = _start_or_close  # type: ignore[method-assign, assignment]
