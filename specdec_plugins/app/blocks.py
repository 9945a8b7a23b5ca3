"""One translation with its blocks: which parts of the text were drafted and accepted."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.app.types import Sentence, Translation
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.types import RowEvent
from specdec_plugins.errors import UserError


@dataclass(frozen=True)
class Piece:
    """A part of the text that one round added."""

    text: str  # spaces included: all pieces together are the translation
    is_drafted: bool  # accepted from the draft, and not the verifier's own


@dataclass(frozen=True)
class BlockTranslation:
    """A translation and how it grew."""

    pieces: list[Piece]
    num_tokens: int  # eos left out
    rounds: int
    seconds: float

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def marked(self, opening: str, closing: str) -> str:
        """The text with these marks around what was drafted and accepted."""
        return "".join(
            f"{_space(p.text)}{opening}{p.text.lstrip()}{closing}" if p.is_drafted else p.text
            for p in self.pieces
        )


def translate_in_blocks(translator: SpeculativeTranslator, line: str) -> BlockTranslation:
    """Translate a line and tell its blocks.

    Raises UserError where the line is longer than the model's positions, or where the strategy
    has no rounds.
    """
    strategy = translator.decoder
    if not isinstance(strategy, SpeculativeDecoder):
        raise UserError(f"--strategy {translator.settings.strategy} has no blocks; use specdec.")
    began = time.perf_counter()
    prepared = translator.prepare(Sentence(1, line))
    if isinstance(prepared, Translation):
        return BlockTranslation([], 0, 0, 0.0)
    events = list(strategy.events([prepared]))
    seconds = time.perf_counter() - began
    ids = [token for event in events for token in event.emitted_ids]
    num_tokens = len(translator.codec.tokens(ids))
    return BlockTranslation(_pieces(translator, events), num_tokens, len(events), seconds)


def _pieces(translator: SpeculativeTranslator, events: list[RowEvent]) -> list[Piece]:
    ids = [token for event in events for token in event.emitted_ids]
    codec = translator.codec
    whole = codec.text(codec.tokens(ids))
    pieces: list[Piece] = []
    num_ids, at = 0, 0
    for event in events:
        for count, is_drafted in (
            (event.num_accepted, True),
            (len(event.emitted_ids) - event.num_accepted, False),
        ):
            num_ids += count
            so_far = codec.text(codec.tokens(ids[:num_ids]))
            # What comes later may change an end: then less of the text is sure so far.
            end = len(whole) if num_ids == len(ids) else _num_common(so_far, whole)
            if end > at:
                pieces.append(Piece(whole[at:end], is_drafted))
                at = end
    return pieces


def _num_common(a: str, b: str) -> int:
    return len(os.path.commonprefix([a, b]))


def _space(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]
