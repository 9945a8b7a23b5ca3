"""The routes, implemented in service.py and stream.py; docs/serving.md explains them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.datastructures import Headers

import specdec_plugins
from specdec_plugins.app.planning import Translated
from specdec_plugins.app.report import kernels_in_use
from specdec_plugins.documents import FORMATS, read
from specdec_plugins.documents.job import Job
from specdec_plugins.documents.pages import read_html
from specdec_plugins.formats.pretrained.languages import name_of
from specdec_plugins.serving import documents, schemas, stream
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.planning import most_tokens
from specdec_plugins.serving.schemas import M, Parameters
from specdec_plugins.serving.service import Service, Subscription
from specdec_plugins.text.detection import Guess

Endpoint = Callable[[Request], Awaitable[Response]]

_CODES = (400, 403, 413, 415, 422, 429, 500, 503, 504)
router = APIRouter(responses={code: {"model": schemas.ErrorResponse} for code in _CODES})


def _post(
    path: str, body: dict[str, Any], answer: Any, kind: type[Response] = JSONResponse
) -> Callable[[Endpoint], Endpoint]:
    """Adds a route whose body and answer FastAPI describes, and does not read or check again."""
    return router.post(path, openapi_extra=body, response_model=answer, response_class=kind)


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


async def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


TheService = Annotated[Service, Depends(service_of)]


async def _read(request: Request, model: type[M]) -> tuple[Service, M]:
    """The server, and the body of a request that has the server's key. Raises ServiceError."""
    service, body = await service_of(request), await schemas.read(request, model)
    if bearer(request.headers) is None:  # others are checked before their bodies are read
        service.check_key((getattr(body, "api_key", None) or "").encode())
    return service, body


def bearer(headers: Headers) -> bytes | None:
    """The key in the headers, if any."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    # Starlette decodes headers as Latin-1; this gives back the bytes that were sent.
    return token.strip().encode("latin-1") if scheme.lower() == "bearer" else None


@_post("/generate", schemas.schema_of(schemas.GenerateRequest), schemas.GenerateResponse)
async def post_generate(request: Request) -> Response:
    """Translate a text, in the shape of text-generation-inference."""
    service, body = await _read(request, schemas.GenerateRequest)
    return _json(await _generate(request, service, body))


async def _generate(
    request: Request, service: Service, body: schemas.GenerateRequest
) -> schemas.GenerateResponse:
    async with service.until(service.deadline(), request.receive):
        return await stream.generate(service, body.inputs, body.parameters)


@_post(
    "/generate_stream", schemas.schema_of(schemas.GenerateRequest), schemas.StreamResponse, Response
)
async def post_generate_stream(request: Request) -> Response:
    """Translate a text and stream each round's tokens as server-sent events."""
    return await _stream(*await _read(request, schemas.GenerateRequest))


async def _stream(service: Service, body: schemas.GenerateRequest) -> Response:
    # The events have every detail anyway.
    deadline, options = service.deadline(), body.parameters.model_copy(update={"details": True})
    async with service.until(deadline):
        plan = await service.plan([body.inputs], options)
    # Submitted before the answer begins, so that a full queue still answers 429.
    subscription = Subscription(service.worker, plan.requests, streams=True)
    events = stream.events_of(service, plan, options, subscription)
    return stream.EventStream(service, stream.written(service, events, deadline), subscription)


@_post("/", schemas.schema_of(schemas.RootRequest), list[schemas.RootResponse])
async def post_root(request: Request) -> Response:
    """The route that text-generation-inference clients call if given only an address."""
    service, body = await _read(request, schemas.RootRequest)
    if body.stream:
        return await _stream(service, body)
    answer = (await _generate(request, service, body)).model_dump()
    return JSONResponse([{**answer, "translation_text": answer["generated_text"]}])


@_post("/translate", schemas.schema_of(schemas.TranslateRequest), schemas.TranslateResponse)
async def post_translate(request: Request) -> Response:
    """Translate a text or a list of texts, in the shape of LibreTranslate."""
    service, body = await _read(request, schemas.TranslateRequest)
    num, limit = body.alternatives, service.settings.max_alternatives
    if num > limit:
        message = f"{num} alternatives exceed this server's limit of {limit}."
        raise ServiceError(413, message)
    texts = [body.q] if isinstance(body.q, str) else body.q
    async with service.until(service.deadline(), request.receive):
        jobs = [await _job(text) for text in texts if body.format == "html"]
        said = [one for job in jobs for one in job.texts] if jobs else texts
        source, guesses = await service.source_of(body.source, said)
        options = Parameters(
            source_lang=source, target_lang=body.target, glossary=body.glossary, details=body.scores
        )
        if jobs:
            answer = await _pages(service, jobs, options, num)
        else:
            answer = await _texts(service, texts, options, num)
    answer.detectedLanguage = [_detected(guesses[0])] * len(texts) if guesses else None
    if isinstance(body.q, str):
        for name in schemas.TranslateResponse.model_fields.keys() - {"note"}:
            value = getattr(answer, name)
            setattr(answer, name, value and value[0])
    return _json(answer)


async def _job(page: str) -> Job:
    """Of HTML, whose attributes stay as they are."""
    return await documents.job_of(partial(read_html, attributes=False), page.encode("utf-8-sig"))


async def _texts(
    service: Service, texts: list[str], options: Parameters, num: int
) -> schemas.TranslateResponse:
    best, others = await service.translate(texts, options, num)
    return _translated([one.text for one in best], [[one] for one in best], others, options, num)


async def _pages(
    service: Service, jobs: list[Job], options: Parameters, num: int
) -> schemas.TranslateResponse:
    done = [await documents.translate_document(service, job, options, num) for job in jobs]
    pages = [one.data.decode("utf-8-sig") for one in done]
    others = [[other.decode("utf-8-sig") for other in one.others] for one in done]
    answer = _translated(pages, [one.texts for one in done], others, options, num)
    answer.note = next((one.note for one in done if one.note), answer.note)
    return answer


def _translated(
    made: list[str],
    done: Sequence[Sequence[Translated]],
    others: list[list[str]],
    options: Parameters,
    num: int,
) -> schemas.TranslateResponse:
    """made: the translations; done: what became of the texts of each; others: its alternatives."""
    score = schemas.SentenceScore.with_tokens
    scores = [[score(one) for text in texts for one in text.scores] for texts in done]
    told = f"Some texts have fewer than {num} alternatives, because a search finds no others."
    return schemas.TranslateResponse(
        translatedText=made,
        alternatives=others if num else None,
        truncated=[any(text.is_cut for text in texts) for texts in done],
        unreadable=[next((text.fault for text in texts if text.fault), None) for texts in done],
        scores=scores if options.details else None,
        note=told if any(len(found) < num for found in others) else None,
    )


def _detected(guess: Guess) -> schemas.Detected:
    return schemas.Detected(language=guess.code, confidence=round(100 * guess.share, 1))


@_post("/detect", schemas.schema_of(schemas.DetectRequest), list[schemas.Detected])
async def post_detect(request: Request) -> Response:
    """The languages that a text may be in, the most probable first, in LibreTranslate's shape."""
    service, body = await _read(request, schemas.DetectRequest)
    languages = service.model.codec.languages
    known = dict.fromkeys((*languages.sources, *languages.targets))
    text = body.q if isinstance(body.q, str) else "\n".join(body.q)
    found = await service.detect(text, [*known])
    return JSONResponse([_detected(guess).model_dump() for guess in found])


@_post(
    "/translate_file", schemas.schema_of(schemas.FileRequest, schemas.PARTS), schemas.FileResponse
)
async def post_translate_file(request: Request) -> Response:
    """Translate a document; the answer says where the translation can be fetched for a while."""
    service, body = await _read(request, schemas.FileRequest)
    name, data = body.file.filename or "", await body.file.read()
    async with service.until(service.deadline(), request.receive):
        job = await documents.job_of(partial(read, name), data)
        source, _ = await service.source_of(body.source, job.texts)
        options = Parameters(source_lang=source, target_lang=body.target)
        done = await documents.translate_document(service, job, options)
    kept = await asyncio.to_thread(documents.keep, name, done.data)
    address = f"{request.base_url}download_file/{quote(kept)}"
    return _json(schemas.FileResponse(translatedFileUrl=address, note=done.note))


@router.get("/download_file/{name}", response_class=Response)
async def get_download_file(name: str) -> Response:
    """A file that was translated; browsers save it, whatever it is."""
    own, path = documents.kept_file(name)
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    return FileResponse(path, 200, headers, "application/octet-stream", filename=own)


@router.get("/frontend/settings")
async def get_frontend_settings(service: TheService) -> schemas.FrontendSettings:
    """What LibreTranslate's clients ask before they show anything."""
    model, settings = service.model, service.settings
    languages, needs_key = await get_languages(service), settings.api_key is not None
    names = {language.code: language.name for language in languages}
    source = model.codec.source_lang or languages[0].code
    target = model.codec.target_lang or next(iter(languages[0].targets), source)
    return schemas.FrontendSettings(
        charLimit=settings.max_characters,
        apiKeys=needs_key,
        keyRequired=needs_key,
        supportedFilesFormat=[*FORMATS],
        language={
            side: {"code": code, "name": names.get(code, code)}
            for side, code in (("source", source), ("target", target))
        },
    )


@router.get("/languages")
async def get_languages(service: TheService) -> list[schemas.Language]:
    """Which languages can be translated into which."""
    codec = service.model.codec
    sources = codec.languages.sources or (codec.source_lang or "source",)
    targets = codec.languages.targets or (codec.target_lang or "target",)
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
        max_alternatives=settings.max_alternatives,
        version=specdec_plugins.__version__,
        source=model.codec.source_lang,
        target=model.codec.target_lang,
        drafter=model.drafter_name,
        schedule=model.settings.schedule,
        block_size=model.limits.block_size,
        max_block_size=method.drafter.max_block_size if method.drafter else None,
        beta=settings.beta,
        tau=settings.tau,
        guarantee=method.rule.guarantee(settings.beta).value,
        needs_api_key=settings.api_key is not None,
    )


@router.get("/metrics", response_class=Response)
async def get_metrics(service: TheService) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)
