"""The web application: routes, limits, errors, the page, and the worker's life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi_offline import FastAPIOffline

from specdec_plugins.serving.answers import add_error_handlers
from specdec_plugins.serving.envelope import Envelope
from specdec_plugins.serving.metrics import Metrics
from specdec_plugins.serving.model import ServedModel
from specdec_plugins.serving.request_ids import RequestIds
from specdec_plugins.serving.routes import router
from specdec_plugins.serving.service import Service, version
from specdec_plugins.serving.settings import ServerSettings
from specdec_plugins.serving.worker import BatchWorker, WorkerConfig

# Not "auto": the server is the same whatever other packages install beside uvicorn.
UVICORN: dict[str, Any] = {"loop": "asyncio", "http": "h11"}
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
    config = WorkerConfig(settings.max_rows, settings.max_waiting)
    worker = BatchWorker(model.new_session, config, metrics, when_failed=when_failed)
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
    app.add_middleware(Envelope, settings=settings, metrics=metrics, routes=routes)
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
