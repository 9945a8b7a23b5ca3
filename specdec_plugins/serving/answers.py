"""Every error as JSON with a sentence, the request's id, and the right status."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specdec_plugins.serving.faults import BadRequest, Failed, Gone, ServiceError, TooLarge
from specdec_plugins.serving.schemas import ErrorResponse


def add_error_handlers(app: FastAPI) -> None:
    """What FastAPI and the routes raise becomes an `ErrorResponse`."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Gone, _gone)


def error_response(
    request: Request, status: int, kind: str, message: str, headers: dict[str, str]
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
    return error_response(request, error.status_code, kind, message, dict(error.headers or {}))


async def _gone(request: Request, error: Exception) -> Response:
    """Nobody reads it."""
    return Response(status_code=Gone.status)


def bug_response(request: Request) -> Response:
    """Where an error was raised that no route knows."""
    message = "The server failed; its log has the reason under this request's id."
    return error_response(request, Failed.status, Failed.kind, message, {})
