"""The routes, implemented in service.py and stream.py; docs/serving.md explains them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.datastructures import Headers

import specdec_plugins
from specdec_plugins.app.report import kernels_in_use
from specdec_plugins.formats.pretrained.languages import name_of
from specdec_plugins.serving import schemas, stream
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.planning import most_tokens
from specdec_plugins.serving.service import Service, Subscription

_CODES = (400, 403, 413, 415, 422, 429, 500, 503, 504)
router = APIRouter(responses={code: {"model": schemas.ErrorResponse} for code in _CODES})


def service_of(request: Request) -> Service:
    return request.app.state.service


TheService = Annotated[Service, Depends(service_of)]
GenerateBody = Annotated[schemas.GenerateRequest, Depends(schemas.body_of(schemas.GenerateRequest))]
RootBody = Annotated[schemas.RootRequest, Depends(schemas.body_of(schemas.RootRequest))]
TranslateBody = Annotated[
    schemas.TranslateRequest, Depends(schemas.body_of(schemas.TranslateRequest))
]


def bearer(headers: Headers) -> bytes | None:
    """The key in the headers, if any."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    # Starlette decodes headers as Latin-1; this gives back the bytes that were sent.
    return token.strip().encode("latin-1") if scheme.lower() == "bearer" else None


@router.post("/generate", openapi_extra=schemas.schema_of(schemas.GenerateRequest))
async def post_generate(
    request: Request, service: TheService, body: GenerateBody
) -> schemas.GenerateResponse:
    """Translate a text, in the shape of text-generation-inference."""
    async with service.until(service.deadline()):
        return await stream.while_connected(
            request, stream.generate(service, body.inputs, body.parameters)
        )


@router.post(
    "/generate_stream",
    openapi_extra=schemas.schema_of(schemas.GenerateRequest),
    response_model=schemas.StreamResponse,
    response_class=Response,
)
async def post_generate_stream(
    request: Request, service: TheService, body: GenerateBody
) -> Response:
    """Translate a text and stream each round's tokens as server-sent events."""
    deadline = service.deadline()
    async with service.until(deadline):
        plan = await service.plan([body.inputs], body.parameters)
    # Submitted before the answer begins, so that a full queue still answers 429.
    subscription = Subscription(service.worker, plan.requests)
    events = stream.events_of(service, plan, body.parameters, subscription)
    return stream.EventStream(stream.written(service, events, deadline), subscription)


@router.post("/", openapi_extra=schemas.schema_of(schemas.RootRequest), response_model=None)
async def post_root(
    request: Request, service: TheService, body: RootBody
) -> Response | list[schemas.GenerateResponse]:
    """The route that text-generation-inference clients call if given only an address."""
    if body.stream:
        return await post_generate_stream(request, service, body)
    return [await post_generate(request, service, body)]


@router.post("/translate", openapi_extra=schemas.schema_of(schemas.TranslateRequest))
async def post_translate(
    request: Request, service: TheService, body: TranslateBody
) -> schemas.TranslateResponse:
    """Translate a text or a list of texts, in the shape of LibreTranslate."""
    if bearer(request.headers) is None:
        service.check_key((body.api_key or "").encode())
    _check_translate(service, body)
    languages = (None if body.source == "auto" else body.source, body.target)
    is_one = isinstance(body.q, str)
    texts = [body.q] if isinstance(body.q, str) else body.q
    async with service.until(service.deadline()):
        work = service.translate(texts, languages, body.seed, body.alternatives)
        best, others = await stream.while_connected(request, work)
    alternatives = (others[0] if is_one else others) if body.alternatives else None
    texts, is_cut = [one.text for one in best], [one.is_cut for one in best]
    faults = [one.fault or None for one in best]
    return schemas.TranslateResponse(
        translatedText=texts[0] if is_one else texts,
        alternatives=alternatives,
        truncated=is_cut[0] if is_one else is_cut,
        unreadable=faults[0] if is_one else faults,
        note=service.note_on(others, body.alternatives),
    )


def _check_translate(service: Service, body: schemas.TranslateRequest) -> None:
    """Raises ServiceError for a request that cannot be served."""
    limit = service.settings.max_alternatives
    if body.format != "text":
        message = "Only the format 'text' is supported; send text without markup."
        raise ServiceError(400, message)
    if body.alternatives > limit:
        message = f"{body.alternatives} alternatives exceed this server's limit of {limit}."
        raise ServiceError(413, message)


@router.get("/languages")
async def get_languages(service: TheService) -> list[schemas.Language]:
    """Which languages can be translated into which."""
    model = service.model
    sources = model.codec.languages.sources or (model.source_lang or "source",)
    targets = model.codec.languages.targets or (model.target_lang or "target",)
    found = {code: [other for other in targets if other != code] for code in sources}
    found |= {code: [] for code in targets if code not in found}
    return [
        schemas.Language(code=code, name=name_of(code), targets=others)
        for code, others in found.items()
    ]


@router.get("/health", responses={503: {"model": schemas.Health}})
async def get_health(service: TheService) -> Response:
    """200 while the server can translate."""
    status = service.status
    return JSONResponse({"status": status}, 200 if status == "ok" else 503)


@router.get("/info")
async def get_info(service: TheService) -> schemas.Info:
    """Models, limits and defaults."""
    model, settings, method = service.model, service.settings, service.model.decoder.method
    return schemas.Info(
        model_id=model.name,
        model_dtype=model.settings.dtype,
        model_device_type=model.decoder.verifier.device.type,
        kernels=kernels_in_use(model.settings),
        max_concurrent_requests=settings.max_waiting,
        max_batch_size=settings.max_rows,
        max_input_tokens=model.limits.source,
        max_total_tokens=most_tokens(model, settings),
        max_input_characters=settings.max_characters,
        max_alternatives=settings.max_alternatives if model.can_sample else 0,
        version=specdec_plugins.__version__,
        source=model.source_lang,
        target=model.target_lang,
        drafter=model.drafter_name,
        schedule=model.settings.schedule,
        block_size=model.limits.block_size,
        max_block_size=method.drafter.max_block_size if method.drafter else None,
        beta=settings.beta,
        tau=settings.tau,
        guarantee=method.rule.guarantee(settings.beta).value,
        can_sample=model.can_sample,
        needs_api_key=settings.api_key is not None,
    )


@router.get("/metrics", response_class=Response)
async def get_metrics(service: TheService) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)
