"""The web application: routes, limits, errors, the page, and the worker's life."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi_offline import FastAPIOffline
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec_plugins.serving.errors import BadRequest, Failed, Gone, ServiceError, TooLarge
from specdec_plugins.serving.metrics import Metrics
from specdec_plugins.serving.model import ServedModel
from specdec_plugins.serving.request_ids import ID_HEADER, RequestIds
from specdec_plugins.serving.routes import router
from specdec_plugins.serving.schemas import ErrorResponse
from specdec_plugins.serving.service import Service, version
from specdec_plugins.serving.settings import ServerSettings
from specdec_plugins.serving.worker import BatchWorker

log = logging.getLogger("specdec.serving")

# Not "auto": the server is the same whatever other packages install beside uvicorn.
UVICORN: dict[str, Any] = {"loop": "asyncio", "http": "h11"}
_OTHER = "other"  # route of addresses that do not exist: they must not become labels
_PATIENCE = 8  # a body is read up to so many times its limit before the connection is closed
_PAGE = Path(__file__).parent / "page"
_ASSETS = ("page.css", "page.js", "icon.svg")
# The page loads nothing from elsewhere and may be framed by nobody.
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

    when_failed: called, on another thread, where the worker dies before that.
    """
    metrics = Metrics()
    worker = BatchWorker(model.new_session, settings, metrics, when_failed=when_failed)
    service = Service(model, worker, settings, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        await asyncio.to_thread(worker.close, settings.shutdown_timeout)
        service.close()

    app: FastAPI = FastAPIOffline(
        redoc_url=None,
        title="specdec",
        summary="Machine translation by speculative decoding",
        version=version(),
        lifespan=lifespan,
    )
    app.state.service = service
    app.include_router(router)
    _add_page(app)
    add_error_handlers(app)
    routes = frozenset(getattr(route, "path", "") for route in (*router.routes, *app.routes))
    app.add_middleware(RequestMiddleware, settings=settings, metrics=metrics, routes=routes)
    app.add_middleware(RequestIds)  # added last, so it comes first
    return app


def _add_page(app: FastAPI) -> None:
    def serve(path: str, name: str) -> None:
        async def get() -> FileResponse:
            return FileResponse(_PAGE / name, headers=_PAGE_HEADERS)

        app.get(path, include_in_schema=False)(get)

    serve("/", "index.html")
    for name in _ASSETS:
        serve(f"/{name}", name)


class RequestMiddleware:
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
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = Headers(scope=scope)[ID_HEADER]
        begin, code = time.monotonic(), None

        async def send_noted(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        self._metrics.active.inc()
        try:
            await self._app(scope, self._limited(scope, receive), send_noted)
        except ClientDisconnect:
            state["hung_up"] = True
        except asyncio.CancelledError:
            state["hung_up"] = True
            raise
        except Exception as error:  # nobody foresaw it
            log.error("request_id=%s failed", request_id, exc_info=error)
            if code is not None:
                raise
            message = "The server failed; its log has the reason under this request's id."
            answer = error_response(Request(scope), Failed.status, Failed.kind, message)
            await answer(scope, receive, send_noted)
        finally:
            seen = Gone.status if code is None or state.get("hung_up") else code
            self._count(scope, request_id, seen, time.monotonic() - begin)

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


def add_error_handlers(app: FastAPI) -> None:
    """What FastAPI and the routes raise becomes an `ErrorResponse`."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Gone, _gone)


def error_response(
    request: Request, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    request.app.state.service.metrics.failures.labels(kind).inc()
    body = ErrorResponse(error=message, error_type=kind, request_id=request.state.request_id)
    return JSONResponse(body.model_dump(), status, headers)


async def _service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return error_response(request, error.status, error.kind, error.message, error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kinds = {413: TooLarge.kind, 404: "not_found", 405: "method_not_allowed"}
    message = error.detail
    if message == HTTPStatus(error.status_code).phrase:
        message = f"{request.method} {request.url.path}: {message}; GET /docs lists what there is."
    kind = kinds.get(error.status_code, BadRequest.kind)
    return error_response(request, error.status_code, kind, message, error.headers)


async def _gone(request: Request, error: Exception) -> Response:
    """Nobody reads it."""
    return Response(status_code=Gone.status)
