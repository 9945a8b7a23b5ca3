"""One id for each request: in its headers, in its answer's, and in what the log says about it."""

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
    """ASGI middleware: the caller's own id where it is a harmless word, else a new one.

    asgi-correlation-id is no substitute: where another has set the header, as Ray's proxy does, it
    adds a second one.
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
                # Whoever stands between may have set it, too: it is replaced, not added.
                MutableHeaders(scope=message)[ID_HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def proxy_middlewares() -> list[Middleware]:
    """For the HTTP proxy of Ray Serve, which adds an id of its own to every answer."""
    return [Middleware(RequestIds)]
