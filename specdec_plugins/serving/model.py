"""What a server serves: the parts that decode, and the way from text to tokens and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specdec_plugins.decoding.engine import EngineConfig, Method, Session
from specdec_plugins.decoding.types import Verifier
from specdec_plugins.serving.segments import Split


class Codec(Protocol):
    """Text to token ids and back."""

    def source_ids(self, line: str) -> list[int]:
        """Ids of a source sentence, eos at the end."""
        ...

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The target's symbols of some ids, up to eos."""
        ...

    def text(self, tokens: Sequence[str]) -> str:
        """What a user reads."""
        ...


@dataclass(frozen=True)
class ServedModel:
    """A loaded pair of models. One thread decodes with it."""

    name: str
    source_lang: str
    target_lang: str
    codec: Codec
    split: Split  # a line of source text into sentences
    verifier: Verifier
    method: Method
    engine: EngineConfig
    max_source: int  # source tokens, eos included
    max_target: int  # target tokens, eos included
    block_size: int  # tokens drafted a round where a request does not say; 0 without a drafter
    drafter_name: str | None = None
    schedule_name: str = "constant"
    dtype: str = "float32"
    kernels: str | None = None  # whose products are computed, where there is a choice

    def new_session(self) -> Session:
        """An empty batch. The parts hold rows, so a new session ends every earlier one."""
        return Session(self.verifier, self.method, self.engine)

    @property
    def can_sample(self) -> bool:
        return self.method.rule.samples
