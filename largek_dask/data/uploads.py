"""Uploads to S3 that end when the server takes nothing any more.

A driver's ``read_timeout`` begins when the whole request has been written: never, if the server
lets an upload wait before the body (botocore asks for a ``100 Continue`` first) or in the middle
of it. Here it counts from the last piece that was taken, so a slow upload may take its time.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiobotocore.httpsession import AIOHTTPSession
from botocore.exceptions import ReadTimeoutError

BLOCK = 1 << 20
"""Bytes that are asked of a body at once."""
PIECE = 1 << 16
"""Bytes that are handed on at once: as many as are taken or not."""


class UploadSession(AIOHTTPSession):  # type: ignore[misc]
    """Send requests of botocore; ``http_session_cls`` of a client's configuration.

    An upload raises ``ReadTimeoutError`` if no piece of it was taken, and no answer came, for as
    long as connecting and answering may take together.
    """

    def __init__(self, *args: Any, timeout: Any = None, **options: Any) -> None:
        super().__init__(*args, timeout=timeout, **options)
        limits = timeout if isinstance(timeout, (list, tuple)) else (timeout, timeout)
        self._silence = None if None in limits else float(sum(limits))

    async def send(self, request: Any) -> Any:
        """Return the answer to a request."""
        # Only bodies that can be read are long, and only with these the server is asked first.
        if self._silence is None or not hasattr(request.body, "read"):
            return await super().send(request)
        silence, now = self._silence, asyncio.get_running_loop().time
        watched = copy.copy(request)
        try:
            async with asyncio.timeout(silence) as limit:
                watched.body = _Pieces(request.body, lambda: limit.reschedule(now() + silence))
                return await super().send(watched)
        except TimeoutError as error:
            raise ReadTimeoutError(endpoint_url=request.url, error=error) from error


class _Pieces:
    """Body in small pieces; ``taken`` is called when the next piece is asked for."""

    def __init__(self, body: Any, taken: Callable[[], None]) -> None:
        self._body = body
        self._taken = taken

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        while block := await self._block():
            for start in range(0, len(block), PIECE):
                self._taken()
                yield block[start : start + PIECE]

    async def _block(self) -> memoryview:
        found = self._body.read(BLOCK)
        return memoryview(await found if inspect.isawaitable(found) else found)
