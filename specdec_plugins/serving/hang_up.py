"""Work for a client that may hang up: it is cancelled then, so that its rows are freed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specdec_plugins.serving.faults import Gone

T = TypeVar("T")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises Gone, after cancelling it, where the client hangs up first."""
    try:
        return await _first(work, request.receive)
    except Gone:
        request.state.hung_up = True
        raise


async def _first(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    task = asyncio.ensure_future(work)
    listener = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, listener}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone("The client hung up.")
        return task.result()
    finally:
        for future in (task, listener):
            future.cancel()
        await asyncio.gather(task, listener, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events; each item of the generator is written at once.

    Starlette's own streaming notices a hang-up only when it next writes, which may be long after
    for a request that waits in line.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None], close: Callable[[], None]) -> None:
        """close: called when the stream is over, however it ends, even before it began."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _first(self._write(send), receive)
        except (Gone, OSError):
            scope["state"]["hung_up"] = True
        finally:
            self._close()

    async def _write(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with aclosing(self._events) as events:
            await send(start)
            async for text in events:
                body = text.encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
