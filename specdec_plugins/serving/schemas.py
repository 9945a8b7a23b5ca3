"""The schemas of requests and answers, and how bodies are read into them."""

from __future__ import annotations

import urllib.parse
from codecs import BOM_UTF8
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError
from starlette.datastructures import Headers, UploadFile
from starlette.requests import Request

from specdec_plugins.app import types
from specdec_plugins.app.settings import Settings
from specdec_plugins.corpus.cli import declared
from specdec_plugins.decoding.requests import LEAST, SEEDS, BeamParams
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.settings import ServerSettings

M = TypeVar("M", bound=BaseModel)

Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Beam = Annotated[int, Field(ge=1, le=16)]
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]
Term = Annotated[str, Field(max_length=200)]  # a longer one takes long to look for
Terms = Annotated[dict[Term, str], Field(max_length=10_000)]

_NEUTRAL: tuple[Any, ...] = (None, False, [], {}, "", 0)


def _refused(name: str, why: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "'{name}' {why}", {"name": name, "why": why})


class Refusing(BaseModel, extra="allow"):
    """Accepts unknown fields only if they ask for nothing.

    Clients of other servers send many fields as null. A field with a value must not be ignored
    silently.
    """

    @model_validator(mode="after")
    def _refuse_unknown(self) -> Refusing:
        for name, value in (self.model_extra or {}).items():
            if value not in _NEUTRAL:
                raise _refused(name, "is not supported here; omit it")
        return self


def _field(description: str, default: Any = None, **bounds: Any) -> Any:
    return Field(default=default, description=description, **bounds)


def _setting(name: str, record: type = ServerSettings) -> Any:
    """An optional field with the description and bounds of the operator's setting of that name."""
    setting = declared(record, name)
    return _field(setting.help, **setting.bounds)


_LANGUAGE = "for a model with several languages: one of GET /languages; null = the server's default"


def _language(*names: str) -> Any:
    """names: ours, and huggingface_hub's."""
    return Field(default=None, description=_LANGUAGE, validation_alias=AliasChoices(*names))


class Parameters(Refusing):
    """How to decode. Omitted fields take the server's defaults."""

    max_new_tokens: Count | None = _setting("max_new_tokens")
    do_sample: bool = _field("sample tokens instead of taking the best one", False)
    temperature: Finite | None = _setting("temperature")
    top_k: Count | None = _field("sample from the k best tokens; null = from all")
    top_p: Finite | None = _setting("top_p")
    seed: Seed | None = _field("seed of samples; null = a new one, reported in details")
    details: bool = _field("add tokens, scores, rounds and timings to the answer", False)
    use_drafter: bool | None = _field("false = decode without drafts, one token a step")
    block_size: Count | None = _setting("block_size", Settings)
    beta: Count | None = _setting("beta")
    tau: Finite | None = _setting("tau")
    num_beams: Beam | None = _field("search with a beam of this size; null = greedy decoding")
    n_best: Beam | None = _field("the best N translations of the search, of num_beams or fewer")
    glossary: Terms | None = _field("terms and the translations that they must have, found by a "
                                    "beam search of 5 unless num_beams is given")  # fmt: skip
    no_repeat_ngram_size: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = _field(
        "no so many tokens in a row occur twice; 0 = off"
    )
    repetition_penalty: Finite | None = _field(
        "above 1: tokens that a sentence has become less likely in it", ge=LEAST
    )
    split_sentences: bool = _field("false = every line is one sentence", True)
    protect: bool = _field("false = read placeholders, tags and addresses as words", True)
    protect_numbers: bool = _field("keep numbers that have units, too", False)
    source_lang: str | None = _language("source_lang", "src_lang")
    target_lang: str | None = _language("target_lang", "tgt_lang")

    @model_validator(mode="after")
    def _sampling(self) -> Parameters:
        for name in ("temperature", "top_k", "top_p"):
            if getattr(self, name) is not None and not self.do_sample:
                raise _refused(name, "applies only to sampling; add do_sample")
        if self.do_sample and self.size > 1:
            name = "glossary" if self.glossary else "num_beams"
            raise _refused(name, "is for a search without samples; omit it, or do_sample")
        if (self.n_best or 1) > self.size:
            raise _refused("n_best", "must be at most num_beams")
        if self.glossary and self.size == 1:
            raise _refused("glossary", "needs a beam; omit num_beams, or ask for more")
        if self.protect_numbers and not self.protect:
            raise _refused("protect_numbers", "needs protect; omit one of them")
        return self

    @property
    def size(self) -> int:
        """Of the beam; 1 = greedy decoding, or samples."""
        return self.num_beams or (BeamParams.size if self.glossary else 1)


class GenerateRequest(Refusing):
    """A request as text-generation-inference takes it."""

    inputs: str = Field(description="source text, of any number of sentences and lines")
    parameters: Annotated[
        Parameters, BeforeValidator(lambda given: {} if given is None else given)
    ] = Field(default_factory=Parameters)


class RootRequest(GenerateRequest):
    """A `GenerateRequest` at text-generation-inference clients' default address."""

    stream: bool = False


class TranslateRequest(Refusing):
    """A request as LibreTranslate takes it."""

    q: str | list[str] = Field(description="a text, or a list of texts")
    scores: bool = _field("add how probable each sentence and token is", False)
    source: str = Field(description="language code, or 'auto' to detect it")
    target: str
    format: Literal["text", "html"] = _field("html: tags and their attributes are kept", "text")
    alternatives: int = _field("other translations, the best of a beam search", 0, ge=0)
    glossary: Terms | None = _field("terms and the translations that they must have, of this "
                                    "server alone")  # fmt: skip
    api_key: str | None = None
    seed: Seed | None = _field("has no effect: nothing is drawn")


class DetectRequest(Refusing):
    """A request as LibreTranslate takes it."""

    q: str | list[str] = Field(description="a text, or a list of texts in one language")
    api_key: str | None = None


class FileRequest(Refusing, arbitrary_types_allowed=True):
    """A file to translate, as a form of several parts, as LibreTranslate takes it."""

    file: Annotated[UploadFile, WithJsonSchema({"type": "string", "format": "binary"})] = Field(
        description="the file, whose name says what it is"
    )
    source: str
    target: str
    api_key: str | None = None


class Subword(BaseModel):
    """A token as the model has it, including the mark that its word continues."""

    id: int
    text: str


class Token(Subword):
    """A token and what it adds to the text."""

    logprob: float | None = None  # the model's; null = copied
    special: bool


class ScoredToken(BaseModel):
    text: str  # as the model has it
    logprob: float  # nats, over the tokens that were allowed there


class Score(BaseModel):
    """How probable the model finds its translation; see docs/translate.md for what that says."""

    logprob: float  # of all tokens, the end included
    mean_logprob: float  # of one token
    least: ScoredToken  # the least probable one

    @classmethod
    def of(cls, score: types.Score, **more: Any) -> Self:
        text, logprob = score.least
        least = ScoredToken(text=text, logprob=logprob)
        return cls(logprob=score.total, mean_logprob=score.mean, least=least, **more)


class SentenceScore(Score):
    tokens: list[ScoredToken]

    @classmethod
    def with_tokens(cls, score: types.Score) -> SentenceScore:
        tokens = [ScoredToken(text=text, logprob=logprob) for text, logprob in score.tokens]
        return cls.of(score, tokens=tokens)


class Speculation(BaseModel):
    """Decoding statistics of a sentence; lists have one entry per round."""

    rounds: int
    drafted: list[int]
    accepted: list[int]
    emitted: list[int]
    queue_ms: float
    decode_ms: float
    score: Score | None = None


class Details(BaseModel):
    finish_reason: str  # eos_token, length or repetition
    generated_tokens: int
    seed: int | None = None  # of samples
    score: Score | None = None  # of all sentences
    prefill: list[Token] = Field(default_factory=list)
    tokens: list[Token] | None = None  # null in a stream, which has sent them already
    speculation: list[Speculation] = Field(description="an entry a sentence")


class Lacks(BaseModel):
    """What a translation lacks."""

    truncated: bool = False  # a sentence has no end: it reached its limit, or repeated itself
    unreadable: str | None = None  # why a sentence was copied: the model cannot read it


class Hypothesis(BaseModel):
    """A translation that a beam search has found."""

    generated_text: str
    score: float  # of its sentences: log-probability / length ** length_penalty, summed up
    logprob: float  # of all its tokens


class GenerateResponse(Lacks):
    generated_text: str
    n_best: list[Hypothesis] | None = None  # best first, if n_best was asked for
    details: Details | None = None


class RootResponse(GenerateResponse):
    """With the text under the name that huggingface_hub's `translation` reads."""

    translation_text: str


class RoundInfo(BaseModel):
    """What one round did; part of the round's first token event."""

    sentence: int
    index: int
    drafted: list[Subword]
    accepted: int  # of the drafted
    emitted: list[Subword]  # the accepted ones, then the model's own
    own: str | None  # kind of the last one: bonus, correction or step; null = drafted
    text: str  # of the sentence so far
    ms: float  # since the request was queued
    queue_ms: float
    batch_size: int


class StreamResponse(BaseModel):
    """One server-sent event of a stream."""

    index: int
    token: Token
    generated_text: str | None = None  # on the last event only, as are the next three
    details: Details | None = None
    truncated: bool | None = None
    unreadable: str | None = None
    round: RoundInfo | None = None


class Detected(BaseModel):
    confidence: float  # percent
    language: str


class FileResponse(BaseModel):
    translatedFileUrl: str  # LibreTranslate's name
    note: str | None = None  # what is not translated, and why


class FrontendSettings(BaseModel):
    """What LibreTranslate's clients ask before they show anything; the names are its own."""

    charLimit: int
    frontendTimeout: int = 500
    apiKeys: bool
    keyRequired: bool
    suggestions: bool = False
    filesTranslation: bool = True
    supportedFilesFormat: list[str]
    language: dict[str, dict[str, str]]  # of source and target: code and name


class TranslateResponse(BaseModel):
    translatedText: str | list[str]  # LibreTranslate's name
    alternatives: list[str] | list[list[str]] | None = None
    truncated: bool | list[bool] = False  # as in `Lacks`; a list if q is one
    unreadable: str | list[str | None] | None = None
    # Of each sentence, if scores were asked for; a list of lists if q is a list.
    scores: list[SentenceScore] | list[list[SentenceScore]] | None = None
    note: str | None = None  # why there are fewer alternatives, or what is not translated
    detectedLanguage: Detected | list[Detected] | None = None


class Language(BaseModel):
    code: str
    name: str
    targets: list[str]


class Health(BaseModel):
    status: str


class ErrorResponse(BaseModel):
    error: str
    error_type: str
    request_id: str


class Info(BaseModel):
    """What this server runs, with text-generation-inference's names and some of its own."""

    model_id: str
    model_dtype: str
    model_device_type: str
    kernels: str | None
    max_concurrent_requests: int
    max_batch_size: int
    max_input_tokens: int
    max_total_tokens: int
    max_input_characters: int
    max_alternatives: int
    version: str
    source: str | None  # null = a request must name it
    target: str | None
    drafter: str | None
    schedule: str
    block_size: int
    max_block_size: int | None
    beta: int
    tau: float
    guarantee: str
    can_sample: bool = True
    needs_api_key: bool


FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data"
_LISTS = frozenset({"q"})  # form fields that may be repeated
_TYPES = ("str", "list[str]")  # of a field that may be either, in the places of errors
_NO_FILE = ("is_instance_of", "needs_python_object")  # errors of what is to be one
_NO_OBJECT = ("json_invalid", "model_type")  # errors of a body that is no JSON object


async def read(request: Request, model: type[M]) -> M:
    """The body: a JSON object, or a form, of parts or not, as the content type says.

    curl sends every body as a form unless told otherwise, so a form that begins like JSON is read
    as JSON. Raises ServiceError.
    """
    kind = content_type(request.headers)
    try:
        if kind == PARTS:
            return model.model_validate(_fields(await _parts(request)))
        body = (await request.body()).removeprefix(BOM_UTF8)
        if kind == FORM and body.lstrip()[:1] != b"{":
            return model.model_validate(_form(body))
        return model.model_validate_json(body)
    except ValidationError as error:
        # Of the types that a field may have, the one that fits best has the longest place.
        faults = error.errors(include_url=False, include_context=False)
        fault = max(faults, key=lambda one: len(one["loc"]))
        is_object = fault["loc"] or fault["type"] not in _NO_OBJECT
        raise ServiceError(422 if is_object else 400, _sentence(fault)) from error
    except ValueError as error:
        raise ServiceError(400, f"The form cannot be read ({error}).") from error


def content_type(headers: Headers) -> str:
    """Of a body, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def schema_of(model: type[BaseModel], kind: str = "application/json") -> dict[str, Any]:
    """For FastAPI's `openapi_extra`: the body that `read` reads. kind: its content type."""
    schema = model.model_json_schema()
    if "$defs" in schema:  # FastAPI has no place for the targets of references
        schema["properties"]["parameters"] = schema.pop("$defs")["Parameters"]
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema}}}}


def _form(body: bytes) -> dict[str, Any]:
    return _fields(
        urllib.parse.parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=1000
        )
    )


async def _parts(request: Request) -> list[tuple[str, Any]]:
    """The fields of a form of parts, in UTF-8."""
    # Starlette reads what it cannot decode as Latin-1 and says nothing. So it reads all as that.
    kind = f"{request.headers['content-type']}; charset=latin-1".encode("latin-1")
    scope = {**request.scope, "headers": [(b"content-type", kind)]}
    form = await Request(scope, request.receive).form(max_files=1, max_fields=1000)
    return [(_utf8(name), _utf8(value)) for name, value in form.multi_items()]


def _utf8(field: str | UploadFile) -> Any:
    if isinstance(field, str):
        return field.encode("latin-1").decode()
    field.filename = (field.filename or "").encode("latin-1").decode(errors="replace")
    return field


def _fields(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a form; of those that are repeated the last, unless they are lists."""
    fields = dict[str, list[Any]]()
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return {
        name: values if name in _LISTS and len(values) > 1 else values[-1]
        for name, values in fields.items()
    }


def _sentence(fault: ErrorDetails) -> str:
    """Where the fault is, and what it is, as a sentence."""
    where = ".".join(str(one) for one in fault["loc"] if one not in _TYPES)
    message = "send a part with a filename" if fault["type"] in _NO_FILE else fault["msg"]
    message = message[:1].upper() + message[1:]
    return (f"{where}: {message}" if where else message).rstrip(".") + "."
