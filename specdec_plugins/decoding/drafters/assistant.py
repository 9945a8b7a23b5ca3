"""A smaller model drafts token by token, with a cache of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdec_plugins.decoding.drafters.base import DRAFTERS, DraftContext, Needs
from specdec_plugins.decoding.extend import append
from specdec_plugins.decoding.networks.transformer import Transformer
from specdec_plugins.decoding.rules.base import at
from specdec_plugins.decoding.sampling import best_probability, draft_token
from specdec_plugins.decoding.types import (
    Draft,
    Prefix,
    ReadsEncoderOutput,
    Round,
    RowParams,
    RowRandom,
    SourceBatch,
    SupportsEncoderOutput,
    Verdict,
    Verifier,
)
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.errors import UserError, require

_OWN, _VERIFIERS = "own", "verifier"


@DRAFTERS.register("assistant")
class AssistantDrafter:
    """Any `Verifier` as drafter (Leviathan et al. 2023; assisted generation of transformers).

    Under a rule that samples it draws from its own law q, temperature, top-k and top-p applied as
    to p, and hands q on; otherwise it drafts its argmax. A row stops behind an end of sentence, and
    where the assistant's best token has less than `confidence` probability. This looks at the best
    token and not at the drawn one: leaving out what was drawn would bend the law of what is kept.

    The assistant sees a prefix of its own: the committed one and what it has drafted so far. It is
    at most `behind` tokens short of the committed one, and reads those with its first pass.

    It encodes the source itself, its symbols found by name where its source dictionary is another;
    or its decoder was trained on the verifier's encoder and reads what that has computed
    (`--arch assistant_transformer`).
    """

    needs = Needs(Transformer, verifier=False, own_source=True)
    max_block_size: int | None = None

    @dataclass(frozen=True)
    class Config:
        confidence: float = 0.0  # probability, 0..1, of its best token, or it stops; 0 = never
        encoder: str = _OWN  # "own" or "verifier": whose encoding of the source it reads

        def __post_init__(self) -> None:
            require(
                self.encoder in (_OWN, _VERIFIERS),
                f"encoder must be {_OWN!r} or {_VERIFIERS!r}, not {self.encoder!r}.",
            )
            require(
                0 <= self.confidence <= 1,
                f"confidence must be within 0..1, not {self.confidence}.",
            )

    def __init__(self, config: Config, context: DraftContext) -> None:
        self._config = config
        self._model = checked_assistant(context)
        device, table = context.verifier.device, context.source_to_assistant
        self._source_ids = None if table is None else table.to(device)
        self._encodings = _shared_encoder(config, context)
        self._sampling = context.sampling
        # Waiting for the device is cheaper than passes that nobody needs, where rows stop often.
        self._asks = config.confidence > 0 or device.type == "cpu"
        # [B] int64, the assistant has read known - 1 tokens of each row, and all of them stand
        self._known = torch.zeros(0, dtype=torch.int64, device=device)
        self._behind = 0  # host-side bound of prefix.lengths - known
        self._model.select(self._known)

    def admit(self, source: SourceBatch) -> None:
        if self._encodings is not None:
            verifier, reader = self._encodings
            states, padding_mask = verifier.encoder_output()
            # The verifier has admitted these rows already, behind the others; and may be wider.
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

    def commit(self, prefix: Prefix, last: Round) -> None:
        # A draft that was kept whole ends in a token that the assistant proposed but never read.
        self._behind = 1 if last.draft.tokens.shape[1] else self._behind + 1
        self._known = torch.minimum(self._known, prefix.lengths)
        read = Prefix(prefix.tokens, self._known, prefix.active, prefix.width)
        self._model.commit(read, last)

    def propose(
        self, prefix: Prefix, budget: Tensor, width: int, params: RowParams, random: RowRandom
    ) -> Draft:
        own = Prefix(prefix.tokens.clone(), self._known.clone(), prefix.active, prefix.width)
        unread = self._unread(prefix)
        going = prefix.active & (budget > 0)
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        for i in range(width):
            scores = self._model.score(own, unread)
            logits = at(scores.logits, unread.lengths)  # [B, V]
            confident = best_probability(logits) >= self._config.confidence
            going = going & (i < budget) & confident
            place = prefix.lengths + i
            token, law = draft_token(logits, params, random, place, self._sampling)
            tokens.append(token)
            laws += [] if law is None else [law]
            own.lengths += unread.lengths
            append(own, token[:, None], going.long())
            own.active, own.width = going, own.width + 1
            self._model.commit(own, Round(unread, scores, Verdict(unread.lengths, token)))
            unread = Draft.empty(len(budget), budget.device)
            going = going & (token != self._model.special.eos)  # nothing behind it can be kept
            if self._asks and not bool(going.any()):
                break
        return self._finish(prefix, own, tokens, laws)

    def _unread(self, prefix: Prefix) -> Draft:
        """The committed tokens that the assistant has not read but for the first of them."""
        columns = torch.arange(self._behind, device=self._known.device)
        places = (self._known[:, None] + columns).clamp(max=prefix.tokens.shape[1] - 1)
        return Draft(prefix.tokens.gather(1, places), prefix.lengths - self._known)

    def _finish(
        self, prefix: Prefix, own: Prefix, tokens: list[Tensor], laws: list[Tensor]
    ) -> Draft:
        self._known = own.lengths
        return Draft(
            tokens=torch.stack(tokens, 1),
            lengths=own.lengths - prefix.lengths,
            probs=torch.cat(laws, 1) if laws else None,
        )


def checked_assistant(context: DraftContext) -> Verifier:
    """The assistant model. Raises UserError where there is none or it cannot serve."""
    assistant, verifier = context.assistant, context.verifier
    if isinstance(context.network, Transformer):
        assistant = TransformerVerifier(context.network, verifier.special)
    if assistant is None:
        raise UserError("The drafter 'assistant' needs a smaller model; name its checkpoint.")
    require(
        assistant.vocab_size == verifier.vocab_size and assistant.special == verifier.special,
        f"The assistant has a target dictionary of {assistant.vocab_size} symbols and the "
        f"verifier one of {verifier.vocab_size}: they must be the same.",
    )
    require(
        assistant.max_target_positions >= verifier.max_target_positions,
        f"The assistant has {assistant.max_target_positions} target positions, fewer than the "
        f"verifier's {verifier.max_target_positions}: take one with as many.",
    )
    return assistant


def _shared_encoder(
    config: AssistantDrafter.Config, context: DraftContext
) -> tuple[SupportsEncoderOutput, ReadsEncoderOutput] | None:
    """Who encodes and who reads it; None = the assistant encodes itself.

    Raises UserError where one cannot give, or the other not take, an encoding.
    """
    verifier, assistant = context.verifier, context.assistant
    if config.encoder == _OWN:
        return None
    if not isinstance(verifier, SupportsEncoderOutput):
        raise UserError(
            "The assistant is to read the verifier's encoding of the source, and this verifier "
            f"gives none; use encoder {_OWN!r}."
        )
    if not isinstance(assistant, ReadsEncoderOutput):
        raise UserError(
            "This assistant cannot read another model's encoding of the source; use encoder "
            f"{_OWN!r}."
        )
    require(
        assistant.encoder_dim == verifier.encoder_dim,
        f"The assistant reads encodings of {assistant.encoder_dim} numbers and the verifier gives "
        f"{verifier.encoder_dim}; take an assistant that was trained on this verifier's encoder, "
        f"or use encoder {_OWN!r}.",
    )
    return verifier, assistant
