"""The web application: routes, limits, errors, the page, and the worker's lifetime."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec_plugins.serving.errors import HUNG_UP, KINDS, ServiceError
from specdec_plugins.serving.model import ServedModel
from specdec_plugins.serving.request_ids import RequestIds, current_id
from specdec_plugins.serving.routes import router
from specdec_plugins.serving.service import Service, version
from specdec_plugins.serving.settings import ServerSettings

log = logging.getLogger("specdec.serving")

# Not "auto": the server must not depend on what else is installed beside uvicorn.
UVICORN: dict[str, Any] = {"loop": "asyncio", "http": "h11"}
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
        version=version(),
        lifespan=lifespan,
    )
    app.state.service = service
    app.include_router(router)
    _add_page(app)
    app.add_exception_handler(ServiceError, _answer)
    app.add_exception_handler(HTTPException, _answer)
    routes = frozenset(getattr(route, "path", "") for route in (*router.routes, *app.routes))
    app.add_middleware(RequestLog, service=service, routes=routes)
    app.add_middleware(RequestIds)  # added last, so it comes first
    return app


def _add_page(app: FastAPI) -> None:
    def serve(name: str, path: str) -> None:
        async def get() -> FileResponse:
            return FileResponse(_PAGE / name, headers=_PAGE_HEADERS)

        app.get(path, include_in_schema=False)(get)

    serve("index.html", "/")
    for name in ("page.css", "page.js", "icon.svg"):
        serve(name, f"/{name}")


class RequestLog:
    """ASGI middleware, inside `RequestIds`: counts requests, and answers unexpected errors."""

    def __init__(self, app: ASGIApp, service: Service, routes: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
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
        except asyncio.CancelledError:
            hung_up = True
            raise
        except Exception as error:  # unexpected
            log.error("request_id=%s failed", current_id.get(), exc_info=error)
            if code is not None:
                raise
            message = "The server failed; its log has the reason under this request's id."
            answer = await _answer(Request(scope), ServiceError(500, message))
            await answer(scope, receive, send_noted)
        finally:
            seen = HUNG_UP if code is None or hung_up else code
            self._count(scope, seen, time.monotonic() - begin)

    def _count(self, scope: Scope, code: int, seconds: float) -> None:
        # Unknown paths must not become labels.
        route = scope["path"] if scope["path"] in self._routes else "other"
        metrics = self._service.metrics
        metrics.active.dec()
        if code == HUNG_UP:
            metrics.failures.labels(KINDS[HUNG_UP]).inc()
        metrics.requests.labels(route, code).inc()
        metrics.request_seconds.labels(route).observe(seconds)
        asked = f"method={scope['method']} path={scope['path'][:200]!r}"
        done = f"status={code} ms={seconds * 1000:.1f}"
        log.info(f"request_id={current_id.get()} {asked} {done}")


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
