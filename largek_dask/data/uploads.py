"""Time out uploads to S3 that make no progress.

botocore's ``read_timeout`` starts only after the whole request has been written, so it does not
apply if the server stalls before or during the upload of the body. Here, the timeout restarts with
each piece that the server accepts, so slow uploads still succeed.
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
"""Number of bytes that are read from a body at a time."""
PIECE = 1 << 16
"""Number of bytes that are sent at a time; each piece restarts the timeout."""


class UploadSession(AIOHTTPSession):  # type: ignore[misc]
    """HTTP session of botocore that times out uploads (``http_session_cls`` of its Config).

    An upload raises ``ReadTimeoutError`` if the server accepts no piece and sends no response for
    the sum of the connect and read timeouts.
    """

    def __init__(self, *args: Any, timeout: Any = None, **options: Any) -> None:
        super().__init__(*args, timeout=timeout, **options)
        limits = timeout if isinstance(timeout, (list, tuple)) else (timeout, timeout)
        self._silence = None if None in limits else float(sum(limits))

    async def send(self, request: Any) -> Any:
        # Only file-like bodies are large and wait for 100 Continue.
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
    """Body of a request in small pieces; calls ``on_piece`` when the next piece is requested."""

    def __init__(self, body: Any, on_piece: Callable[[], None]) -> None:
        self._body = body
        self._on_piece = on_piece

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        while block := await self._block():
            for start in range(0, len(block), PIECE):
                self._on_piece()
                yield block[start : start + PIECE]

    async def _block(self) -> memoryview:
        found = self._body.read(BLOCK)
        return memoryview(await found if inspect.isawaitable(found) else found)
