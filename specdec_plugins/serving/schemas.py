"""The shapes of requests and answers: text-generation-inference's and LibreTranslate's."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from specdec_plugins.decoding.types import SEEDS
from specdec_plugins.serving.planning import Options

Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]

_NEUTRAL: tuple[Any, ...] = (None, False, [], {}, "", 0)


class Refusing(BaseModel):
    """Fields that are unknown here may be sent as long as they ask for nothing.

    Clients of other servers send many fields as null; one with a value would be a wish that
    silently goes unheard.
    """

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _refuse_unknown(self) -> Refusing:
        for name, value in (self.model_extra or {}).items():
            if value not in _NEUTRAL:
                raise PydanticCustomError(
                    "unsupported", "'{name}' is not supported here; leave it away", {"name": name}
                )
        return self


class Parameters(Refusing):
    """How to decode. Everything left away is the server's default."""

    max_new_tokens: Count | None = Field(
        default=None, description="target tokens, the end included"
    )
    do_sample: bool = Field(
        default=False, description="draw from the model instead of its best token"
    )
    temperature: Annotated[Finite, Field(gt=0)] | None = Field(
        default=None, description="of samples"
    )
    top_k: Count | None = Field(
        default=None, description="of samples: draw from the k best; null = all"
    )
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = Field(
        default=None, description="of samples"
    )
    seed: Seed | None = Field(
        default=None, description="of samples; null = a new one, told in details"
    )
    details: bool = Field(default=False, description="add tokens, rounds and timings to the answer")
    use_drafter: bool | None = Field(default=None, description="false = one token a step")
    block_size: Count | None = Field(default=None, description="tokens drafted a round")
    beta: Count | None = Field(
        default=None,
        description="accept among the model's beta best tokens; 1 = exactly its own output",
    )
    tau: Annotated[Finite, Field(ge=0)] | None = Field(
        default=None, description="and at most tau nats below its best"
    )
    split_sentences: bool = Field(default=True, description="false = every line is one sentence")

    @model_validator(mode="after")
    def _sampling(self) -> Parameters:
        for name in ("temperature", "top_k", "top_p"):
            if getattr(self, name) is not None and not self.do_sample:
                raise PydanticCustomError(
                    "sampling", "'{name}' belongs to sampling; add do_sample", {"name": name}
                )
        return self

    def options(self) -> Options:
        names = set(Options.__dataclass_fields__) - {"sample"}
        return Options(sample=self.do_sample, **{name: getattr(self, name) for name in names})


class GenerateRequest(Refusing):
    """What text-generation-inference takes."""

    inputs: str = Field(description="source text, of any number of sentences and lines")
    parameters: Parameters = Field(default_factory=Parameters)

    @model_validator(mode="before")
    @classmethod
    def _null_parameters(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("parameters", 0) is None:
            return {key: value for key, value in data.items() if key != "parameters"}
        return data


class RootRequest(GenerateRequest):
    """The same, at the address that its clients use by default."""

    stream: bool = False


class TranslateRequest(Refusing):
    """What LibreTranslate takes."""

    q: str | list[str] = Field(description="a text, or several")
    source: str = Field(description="language code, or 'auto'")
    target: str
    format: str = Field(default="text", description="only 'text'")
    alternatives: int = Field(
        default=0, ge=0, description="samples beside the translation, none of them twice"
    )
    api_key: str | None = None
    seed: Seed | None = Field(default=None, description="of the alternatives")


class Token(BaseModel):
    id: int
    text: str
    logprob: float | None = None  # not computed
    special: bool


class Speculation(BaseModel):
    """How the tokens came about; lists have an entry a round."""

    rounds: int
    drafted: list[int]
    accepted: list[int]
    emitted: list[int]
    queue_ms: float
    decode_ms: float


class Details(BaseModel):
    finish_reason: str  # eos_token or length
    generated_tokens: int
    seed: int | None = None  # of samples
    prefill: list[Token] = Field(default_factory=list)
    tokens: list[Token] | None = None  # a stream has sent them already
    speculation: list[Speculation] = Field(description="an entry a sentence")


class GenerateResponse(BaseModel):
    generated_text: str
    details: Details | None = None


class Piece(BaseModel):
    """A token as the model has it, subword marks included."""

    id: int
    text: str


class RoundInfo(BaseModel):
    """What one round did, on the first token event that came of it."""

    sentence: int
    index: int
    drafted: list[Piece]
    accepted: int  # of the drafted
    emitted: list[Piece]  # the accepted ones, then the model's own
    own: str | None  # the last of them: bonus, correction or step; null = it was drafted
    text: str  # what stands of the sentence
    ms: float  # since the request was queued
    queue_ms: float
    batch_size: int


class StreamResponse(BaseModel):
    """One server-sent event of a stream."""

    index: int
    token: Token
    generated_text: str | None = None  # on the last event, as details
    details: Details | None = None
    round: RoundInfo | None = None


class TranslateResponse(BaseModel):
    translatedText: str | list[str]  # noqa: N815  # LibreTranslate's name
    alternatives: list[str] | list[list[str]] | None = None


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
    """What this server runs, in text-generation-inference's names and some of its own."""

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
    source: str
    target: str
    drafter: str | None
    schedule: str
    block_size: int
    max_block_size: int | None
    beta: int
    tau: float
    guarantee: str
    can_sample: bool
    needs_api_key: bool
