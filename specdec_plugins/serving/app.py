"""The web application: connections, limits, routes, errors, the page, and the worker's lifetime."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

import specdec_plugins
from specdec_plugins.errors import INTERRUPTED
from specdec_plugins.serving.errors import HUNG_UP, KINDS, STOPPED, ServiceError
from specdec_plugins.serving.model import ServedModel
from specdec_plugins.serving.request_ids import RequestIds, current_id
from specdec_plugins.serving.routes import Endpoint, bearer, router
from specdec_plugins.serving.schemas import FORM, PARTS, content_type
from specdec_plugins.serving.service import Service
from specdec_plugins.serving.settings import ServerSettings

log = logging.getLogger("specdec.serving")

_JSON = "application/json"
_MONITORED = ("/health", "/metrics")
_BODY_HAS_KEY = ("/translate", "/translate_file", "/detect")  # may have it
_PATIENCE = 8  # a body is read up to so many times its limit before the connection is closed
_LONGEST_HEAD = 65_536  # bytes
_PAGE = Path(__file__).parent / "page"
# The page loads nothing from elsewhere and must not be framed.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def create_app(
    model: ServedModel, settings: ServerSettings, when_failed: Callable[[], None] = lambda: None
) -> FastAPI:
    """An application around a loaded model; its worker lives from start-up to shutdown.

    when_failed: called on another thread if the worker dies before that.
    """
    service = Service(model, settings, when_failed)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        await asyncio.to_thread(service.close)

    app: FastAPI = FastAPIOffline(
        redoc_url=None,
        title="specdec",
        summary="Machine translation by speculative decoding",
        version=specdec_plugins.__version__,
        lifespan=lifespan,
    )
    app.state.service = service
    app.include_router(router)
    _add_page(app)
    app.add_exception_handler(ServiceError, _answer)
    app.add_exception_handler(HTTPException, _answer)
    routes = frozenset(getattr(route, "path", "") for route in (*router.routes, *app.routes))
    own = [route for route in router.routes if isinstance(route, APIRoute)]
    posts = {route.path: route.endpoint for route in own if "POST" in (route.methods or ())}
    app.add_middleware(Gate, service=service, posts=posts)
    app.add_middleware(RequestLog, service=service, routes=routes)
    _allow(app, settings.origins)
    app.add_middleware(RequestIds)  # added last, so it comes first
    return app


def _allow(app: FastAPI, origins: list[str]) -> None:
    """Let pages of these origins read answers."""
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )


def _add_page(app: FastAPI) -> None:
    for name in ("index.html", "page.css", "page.js", "icon.svg"):

        async def get(request: Request, name: str = name) -> Response:
            return FileResponse(_PAGE / name, headers=_PAGE_HEADERS)

        app.add_route("/" if name == "index.html" else f"/{name}", get)


class Connection(HttpToolsProtocol):
    """uvicorn's, with limits: of their number, of heads, and of the time that a client is idle."""

    def __init__(self, settings: ServerSettings, **given: Any) -> None:
        super().__init__(**given)
        self._most, self._patience = settings.max_connections, settings.body_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._num_unread = 0  # bytes that were neither a whole head nor a body

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._most:
            transport.abort()
        else:
            self._wait_for(self._next_request)

    def data_received(self, data: bytes) -> None:
        self._num_unread += len(data)
        super().data_received(data)
        if self._num_unread > _LONGEST_HEAD:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        self._num_unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_unread = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for(self._next_request)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for(self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    def _wait_for(self, too_late: Callable[[], object]) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(self._patience, too_late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _next_request(self) -> None:
        """Close the connection if none has begun; `Gate` waits for what follows its head."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class Server(uvicorn.Server):
    """uvicorn's, which goes on serving for a while after SIGTERM, and ends at a second ctrl-C.

    While it goes on, /health says 503, so that whoever distributes requests sends no more of them.
    """

    def __init__(self, app: FastAPI, settings: ServerSettings, **given: Any) -> None:
        """given: to uvicorn's `Config`."""
        config: dict[str, Any] = {
            "loop": "uvloop",
            "http": partial(Connection, settings),
            "log_config": None,
            "access_log": False,
            "server_header": False,
            "timeout_graceful_shutdown": math.ceil(settings.shutdown_timeout),
        }
        super().__init__(uvicorn.Config(app, **config, **given))
        self._service: Service = app.state.service
        self._drain_timeout = settings.drain_timeout
        self._drained_at: float | None = None

    def handle_exit(self, sig: int, frame: Any) -> None:
        is_first, self._service.is_stopping = not self._service.is_stopping, True
        if is_first and sig == signal.SIGTERM and self._drain_timeout:
            log.info("stopping; going on to serve for %g seconds", self._drain_timeout)
            self._drained_at = time.monotonic() + self._drain_timeout
        elif is_first or sig != signal.SIGINT:
            super().handle_exit(sig, frame)
        else:
            # Not by an exception: threads at work would keep the interpreter from ending.
            os.write(2, b"specdec serve: interrupted twice; accepted work is lost.\n")
            os._exit(INTERRUPTED)

    async def on_tick(self, counter: int) -> bool:
        if self._drained_at is not None and time.monotonic() >= self._drained_at:
            self.should_exit = True
        return await super().on_tick(counter)


class Gate:
    """ASGI middleware, inside `RequestLog`: refuses what it can, and reads bodies of bounded size.

    Headers decide before a body is read, and its size before anything is done with it. Then the
    routes that have bodies are called from here: FastAPI's way to them takes longer than they do.
    """

    def __init__(self, app: ASGIApp, service: Service, posts: dict[str, Endpoint]) -> None:
        """posts: those routes, by path."""
        self._app = app
        self._service = service
        self._posts = posts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        settings = self._service.settings
        most = settings.max_file if scope["path"] == "/translate_file" else settings.max_body
        try:
            self._check(scope["path"], Headers(scope=scope))
        except ServiceError:
            await self._body(receive, most, keeps=False)
            raise
        body = await self._body(receive, most, keeps=True)
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def received() -> Message:
            return next(messages, None) or await receive()

        endpoint = self._posts.get(scope["path"])
        if endpoint is None:
            await self._app(scope, received, send)
        else:
            answer = await endpoint(Request(scope, received))
            await answer(scope, received, send)

    def _check(self, path: str, headers: Headers) -> None:
        """Raises ServiceError for what the headers alone decide."""
        key, origin, kind = bearer(headers), headers.get("origin"), content_type(headers)
        if key is not None or path not in _BODY_HAS_KEY:
            self._service.check_key(key or b"")
        # A page may send these types to any address without asking; its own server is no stranger.
        allowed = {"*", origin} & {*self._service.settings.origins}
        is_own = not origin or urlsplit(origin).netloc == headers.get("host")
        if origin and not (is_own or allowed or kind == _JSON):
            raise ServiceError(403, f"A page of {origin[:100]} must send its request as {_JSON}.")
        if (coding := headers.get("content-encoding") or "identity") != "identity":
            raise ServiceError(415, f"A body in {coding[:100]} is not read; send it uncompressed.")
        if kind.startswith("multipart/") and kind != PARTS:
            told = f"A body of {kind[:100]} is not read; send {_JSON}, {FORM} or {PARTS}."
            raise ServiceError(415, told)

    async def _body(self, receive: Receive, most: int, keeps: bool) -> bytes:
        """Read a body of bounded size in bounded time, also one that is not kept.

        most: bytes. A client that still writes when the connection closes never sees the answer.
        """
        num_bytes, parts, more = 0, list[bytes](), True
        try:
            async with asyncio.timeout(self._service.settings.body_timeout):
                while more and num_bytes < _PATIENCE * most:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    part, more = message.get("body", b""), message.get("more_body", False)
                    num_bytes += len(part)
                    if keeps and num_bytes <= most:
                        parts.append(part)
        except TimeoutError as error:
            raise ServiceError(408, "The body did not arrive in time.") from error
        if keeps and num_bytes > most:
            raise ServiceError(413, f"The body is larger than {most} bytes.")
        return b"".join(parts)


class RequestLog:
    """ASGI middleware, inside `RequestIds`: counts requests, and answers errors outside of routes.

    A HEAD is answered as a GET, whose body the server leaves out, and a slash at a path's end is
    ignored.
    """

    def __init__(self, app: ASGIApp, service: Service, routes: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        plain = {"method": "GET" if method == "HEAD" else method}
        scope = {**scope, **plain, "path": scope["path"].rstrip("/") or "/"}
        begin, code, hung_up = time.monotonic(), None, False

        async def send_noted(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        self._service.metrics.active.inc()
        try:
            await self._app(scope, receive, send_noted)
        except ClientDisconnect:
            hung_up = True
        except (Exception, asyncio.CancelledError) as error:
            told = self._told(error)
            hung_up = told is None
            if told is None or code is not None:
                raise
            answer = await _answer(Request(scope), told)
            await answer(scope, receive, send_noted)
        finally:
            seen = HUNG_UP if code is None or hung_up else code
            self._count(method, scope["path"], seen, time.monotonic() - begin)

    def _told(self, error: BaseException) -> Exception | None:
        """How the client is told; None if nobody waits any more."""
        if isinstance(error, (ServiceError, HTTPException)):  # of `Gate`, and what it calls
            return error
        if isinstance(error, asyncio.CancelledError):
            if not self._service.is_stopping:
                return None
            self._service.has_lost_work = True
            return ServiceError(*STOPPED)
        log.error("request_id=%s failed", current_id.get(), exc_info=error)  # unexpected
        message = "The server failed; its log has the reason under this request's id."
        return ServiceError(500, message)

    def _count(self, method: str, path: str, code: int, seconds: float) -> None:
        # Unknown paths must not become labels.
        route = path if path in self._routes else "other"
        metrics = self._service.metrics
        metrics.active.dec()
        if code == HUNG_UP:
            metrics.failures.labels(KINDS[HUNG_UP]).inc()
        metrics.requests.labels(route, code).inc()
        metrics.request_seconds.labels(route).observe(seconds)
        # Monitors would fill the log.
        level = logging.DEBUG if path in _MONITORED and code == 200 else logging.INFO
        asked = f"method={method} path={path[:200]!r}"
        done = f"status={code} ms={seconds * 1000:.1f}"
        log.log(level, f"request_id={current_id.get()} {asked} {done}")


async def _answer(request: Request, error: Exception) -> Response:
    """Turn what FastAPI and the routes raise into an `ErrorResponse`."""
    if isinstance(error, HTTPException):
        message = error.detail
        if message == HTTPStatus(error.status_code).phrase:
            asked = f"{request.method} {request.url.path}"
            message = f"{asked}: {message}; GET /docs lists the routes."
        error = ServiceError(error.status_code, message, error.headers)
    assert isinstance(error, ServiceError)
    record = request.app.state.service.refusal(error)
    return JSONResponse(record.model_dump(), error.status, error.headers)
