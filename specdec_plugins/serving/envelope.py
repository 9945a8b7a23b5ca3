"""Around every request: its limits, its errors, a line in the log, and the counting."""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec_plugins.serving.answers import bug_response
from specdec_plugins.serving.faults import Gone
from specdec_plugins.serving.metrics import Metrics
from specdec_plugins.serving.request_ids import ID_HEADER
from specdec_plugins.serving.settings import ServerSettings

log = logging.getLogger("specdec.serving")

_OTHER = "other"  # route of addresses that do not exist: they must not become labels
_PATIENCE = 8  # a body is read up to so many times its limit before the connection is closed


class Envelope:
    """ASGI middleware, inside `RequestIds`. The id stands in `scope["state"]["request_id"]`."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, metrics: Metrics, routes: frozenset[str]
    ) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = Headers(scope=scope)[ID_HEADER]
        scope.setdefault("state", {})["request_id"] = request_id
        begin, code = time.monotonic(), Gone.status

        async def send_noted(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        self._metrics.active.inc()
        try:
            await self._run(scope, self._limited(scope, receive), send_noted)
        except asyncio.CancelledError:
            code = Gone.status
            raise
        finally:
            if scope["state"].get("hung_up"):
                code = Gone.status
            self._count(scope, request_id, code, time.monotonic() - begin)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application; what it did not foresee is logged and answered with 500."""
        has_begun = False

        async def send_noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except ClientDisconnect:
            scope["state"]["hung_up"] = True
        except Exception as error:
            log.error("request_id=%s failed", scope["state"]["request_id"], exc_info=error)
            if has_begun:
                raise
            answer = bug_response(Request(scope))
            await answer(scope, receive, send_noted)

    def _count(self, scope: Scope, request_id: str, code: int, seconds: float) -> None:
        route = scope["path"] if scope["path"] in self._routes else _OTHER
        self._metrics.active.dec()
        if code == Gone.status:
            self._metrics.failures.labels(Gone.kind).inc()
        self._metrics.requests.labels(route, code).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        log.info(
            "request_id=%s method=%s path=%r status=%d ms=%.1f",
            request_id,
            scope["method"],
            scope["path"][:200],
            code,
            seconds * 1000,
        )

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """Receives a body of bounded size in bounded time."""
        limit, num_bytes, complete = self._settings.max_body, 0, False
        too_large = HTTPException(413, f"The body is larger than {limit} bytes.")
        given = Headers(scope=scope).get("content-length", "")
        declared = int(given) if given.isdecimal() else 0
        end = time.monotonic() + self._settings.body_timeout

        async def next_part() -> Message:
            nonlocal num_bytes, complete
            try:
                message = await asyncio.wait_for(receive(), max(0.0, end - time.monotonic()))
            except TimeoutError as error:
                raise HTTPException(408, "The body did not arrive in time.") from error
            num_bytes += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            return message

        async def limited() -> Message:
            if complete:
                return await receive()
            message = None if declared > limit else await next_part()
            if message is not None and num_bytes <= limit:
                return message
            # A client that is still writing when the connection closes never sees the answer.
            while not complete and num_bytes < _PATIENCE * limit:
                await next_part()
            raise too_large

        return limited
