"""A smaller model drafts token by token, with a cache of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdec_plugins.decoding.contract import (
    Draft,
    DraftRequest,
    Prefix,
    Round,
    SourceBatch,
    Target,
    Verdict,
    Verifier,
)
from specdec_plugins.decoding.drafters.base import (
    DRAFTERS,
    ContextDrafter,
    DraftContext,
    Needs,
    SupportsEncoderOutput,
    TokenByToken,
    check_confidence,
)
from specdec_plugins.decoding.extend import append
from specdec_plugins.decoding.networks.cpu.ops import at
from specdec_plugins.decoding.networks.transformer import Transformer
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.errors import UserError, require

_OWN, _VERIFIERS = "own", "verifier"


@DRAFTERS.register("assistant")
class AssistantDrafter(ContextDrafter):
    """Any `Verifier` as drafter (Leviathan et al. 2023; assisted generation of transformers).

    It drafts as described in `TokenByToken`, so a row stops where the assistant's best token has
    less than `confidence` probability.

    The assistant has a prefix of its own: the committed one and what it has drafted so far. It lags
    the committed one by at most `behind` tokens, which it reads with its first pass.

    It encodes the source itself, and finds symbols by name if its source dictionary differs; or its
    decoder was trained on the verifier's encoder and reads that encoder's output
    (`--arch assistant_transformer`).
    """

    needs = Needs(Transformer, verifier=False, own_source=True)

    @dataclass(frozen=True)
    class Config:
        confidence: float = 0.0  # stops below this probability, 0..1, of its best token; 0 = never
        encoder: str = _OWN  # "own" or "verifier": whose encoding of the source it reads

        def __post_init__(self) -> None:
            require(
                self.encoder in (_OWN, _VERIFIERS),
                f"encoder must be {_OWN!r} or {_VERIFIERS!r}, not {self.encoder!r}.",
            )
            check_confidence(self.confidence)

    def __init__(self, config: Config, context: DraftContext) -> None:
        super().__init__(config, context)
        self._model = checked_assistant(context)
        device, table = context.verifier.device, context.source_to_assistant
        self._source_ids = None if table is None else table.to(device)
        self._encodings = _shared_encoder(config, context.verifier, self._model)
        self._drafting = TokenByToken(context.verifier, context.sampling, config.confidence)
        # [B] int64, the assistant has read known - 1 tokens of each row, all of them committed
        self._known = torch.zeros(0, dtype=torch.int64, device=device)
        self._behind = 0  # host-side bound of prefix.lengths - known
        self._model.select(self._known)

    def admit(self, source: SourceBatch) -> None:
        if self._encodings is not None:
            verifier, reader = self._encodings
            states, padding_mask = verifier.encoder_output()
            # The verifier has already admitted these rows, after the others; it may be wider.
            rows, columns = slice(-len(source), None), slice(source.tokens.shape[1])
            reader.admit_encoded(source, states[rows, columns], padding_mask[rows, columns])
        elif self._source_ids is not None:
            self._model.admit(replace(source, tokens=self._source_ids[source.tokens]))
        else:
            self._model.admit(source)
        self._known = torch.cat([self._known, source.forced_lengths])

    def select(self, rows: Tensor) -> None:
        self._model.select(rows)
        self._known = self._known[rows]
        if rows.numel() == 0:
            self._behind = 0

    def narrow(self, longest: int, is_padded: bool) -> None:
        self._model.narrow(longest, is_padded)

    def commit(self, prefix: Prefix, last: Round) -> None:
        # A fully accepted draft ends in a token that the assistant proposed but never read.
        self._behind = 1 if last.draft.tokens.shape[1] else self._behind + 1
        self._known = torch.minimum(self._known, prefix.lengths)
        read = Prefix(prefix.tokens, self._known, prefix.active, prefix.width)
        self._model.commit(read, last)

    def propose(self, asked: DraftRequest) -> Draft:
        prefix = asked.prefix
        own = Prefix(prefix.tokens.clone(), self._known.clone(), prefix.active, prefix.width)
        reader = _Ahead(self._model, own, self._unread(prefix))
        draft = self._drafting.draft(reader, asked)
        self._known = own.lengths
        return draft

    def _unread(self, prefix: Prefix) -> Draft:
        """The committed tokens that the assistant has not read, except the first of them."""
        columns = torch.arange(self._behind, device=self._known.device)
        places = (self._known[:, None] + columns).clamp(max=prefix.tokens.shape[1] - 1)
        return Draft(prefix.tokens.gather(1, places), prefix.lengths - self._known)


@dataclass
class _Ahead:
    """The assistant on its own prefix, which includes what it drafts."""

    model: Verifier
    prefix: Prefix
    unread: Draft  # committed tokens that it has not read, except the first of them

    def logits(self) -> Tensor:
        self.scores = self.model.score(self.prefix, self.unread)
        return at(self.scores.logits, self.unread.lengths)

    def take(self, token: Tensor, going: Tensor) -> None:
        own, num_read = self.prefix, self.unread.lengths
        own.lengths += num_read
        append(own, token[:, None], going.long())
        own.active, own.width = going, own.width + 1
        self.model.commit(own, Round(self.unread, self.scores, Verdict(num_read, token)))
        self.unread = Draft.empty(len(token), token.device)


def checked_assistant(context: DraftContext) -> Verifier:
    """The assistant model. Raises UserError where it cannot serve."""
    assistant, verifier = context.assistant, context.verifier
    if isinstance(context.network, Transformer):
        assistant = TransformerVerifier(context.network, verifier.special)
    assert assistant is not None
    require(
        assistant.vocab_size == verifier.vocab_size and assistant.special == verifier.special,
        f"The assistant's target dictionary ({assistant.vocab_size} symbols) is not the verifier's "
        f"({verifier.vocab_size} symbols); use an assistant with the same one.",
    )
    require(
        assistant.max_target_positions >= verifier.max_target_positions,
        f"The assistant has {assistant.max_target_positions} target positions, fewer than the "
        f"verifier's {verifier.max_target_positions}; use one with as many.",
    )
    return assistant


def _shared_encoder(
    config: AssistantDrafter.Config, verifier: Target, assistant: Verifier
) -> tuple[SupportsEncoderOutput, SupportsEncoderOutput] | None:
    """The model that encodes and the one that reads it; None = the assistant encodes itself.

    Raises UserError if the assistant's decoder cannot read the encoding.
    """
    if config.encoder == _OWN:
        return None
    if not isinstance(verifier, SupportsEncoderOutput):
        raise UserError(
            "This verifier gives no encoding of the source for the assistant to read; use encoder "
            f"{_OWN!r}."
        )
    assert isinstance(assistant, SupportsEncoderOutput)
    require(
        assistant.encoder_dim == verifier.encoder_dim,
        f"The assistant reads encodings of width {assistant.encoder_dim}, but the verifier's have "
        f"width {verifier.encoder_dim}; use an assistant trained on this verifier's encoder, or "
        f"encoder {_OWN!r}.",
    )
    return verifier, assistant
