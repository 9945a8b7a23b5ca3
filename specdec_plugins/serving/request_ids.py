"""One id for each request: in its headers, its answer's headers, and its log lines."""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ID_HEADER = "X-Request-ID"
_HARMLESS = re.compile(r"[A-Za-z0-9._:-]{1,64}")

current_id: ContextVar[str] = ContextVar("request_id", default="-")


class RequestIds:
    """ASGI middleware: keeps the caller's id if it is a harmless word, else makes a new one.

    asgi-correlation-id is no substitute: if the header is set already, as by Ray's proxy, it adds a
    second one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = MutableHeaders(scope=scope)
        given = headers.get(ID_HEADER, "")
        request_id = given if _HARMLESS.fullmatch(given) else uuid.uuid4().hex
        headers[ID_HEADER] = request_id
        current_id.set(request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Inner layers may have set it already: replace it, do not add another.
                MutableHeaders(scope=message)[ID_HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def proxy_middlewares() -> list[Middleware]:
    """For the HTTP proxy of Ray Serve, which adds its own id to every answer."""
    return [Middleware(RequestIds)]
