"""The verifier: a Transformer with a cache, scoring a block of drafted tokens in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_plugins.decoding.contract import (
    Draft,
    Prefix,
    Round,
    Scores,
    SourceBatch,
    SpecialTokens,
)
from specdec_plugins.decoding.networks.cache import KVCache, Pool, SourceMemory
from specdec_plugins.decoding.networks.transformer import Encoder, Transformer, same_encoder


class TransformerVerifier:
    """Scores drafts with one forward pass a round (SpecDec, Xia et al. 2023, section 3.2).

    Between rounds the cache holds each row's prefix without its last token, whose keys and values
    are computed together with those of the next draft. Rows may have different lengths.
    """

    def __init__(
        self, network: Transformer, special: SpecialTokens, with_hidden: bool = False
    ) -> None:
        """`network` is in eval mode; `with_hidden` adds its last states to the scores."""
        self.network = network
        self.with_hidden = with_hidden
        self.special = special
        self.device = network.decoder.embedding.tokens.weight.device
        config = network.config
        self.source_vocab_size = config.encoder.vocab_size
        self.vocab_size = config.decoder.vocab_size
        self.num_layers = config.decoder.num_layers
        self.encoder_dim, self.hidden_dim = config.encoder.dim, config.output_dim
        self.max_source_positions = config.encoder.max_positions
        self.max_target_positions = config.decoder.max_positions
        self._cache = self._new_cache(0)
        self._memory: SourceMemory | None = None
        self._ahead: list[Tensor] = []  # [B, 1, D] each: outputs of the exit layer in this round
        self._exit_layer = 0  # number of layers that computed these
        self.pool = Pool()

    def fresh(self) -> TransformerVerifier:
        return TransformerVerifier(self.network, self.special, self.with_hidden)

    def keep_hidden(self) -> None:
        self.with_hidden = True

    def project(self, states: Tensor) -> Tensor:
        """Logits [..., V] of last states [..., D]."""
        return self.network.decoder.logits(states)

    @torch.inference_mode()
    def admit(self, source: SourceBatch) -> None:
        self.admit_encoded(source, *self.network.encoder(source.tokens))

    @torch.inference_mode()
    def admit_encoded(self, source: SourceBatch, states: Tensor, padding_mask: Tensor) -> None:
        """`admit` rows whose encoder states [B, S, D] and padding [B, S] bool are known."""
        memory = SourceMemory(
            lengths=source.lengths,
            padding_mask=padding_mask,
            keys_values=self.network.decoder.layers.keys_values(states),
            extras=(states,),
        ).trimmed()
        cache = self._new_cache(len(source))
        num_prefilled = source.forced.shape[1] - 1
        if num_prefilled:
            window = cache.window(num_prefilled, width=0)
            self.network.decoder(source.forced[:, :-1], window, memory)
            cache.crop(source.forced_lengths - 1)
        self._cache.append(cache)
        self._memory = memory if self._memory is None else self._memory.append(memory)

    @torch.inference_mode()
    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        assert self._memory is not None, "score before admit"
        # Padding replaces the junk after a shorter draft, which may not be a token id.
        tokens = prefix.last()[:, None]
        if draft.tokens.shape[1]:
            drafted = torch.where(draft.mask, draft.tokens, self.special.pad)
            tokens = torch.cat([tokens, drafted], 1)
        states = self._read(tokens, self._memory, prefix.width - 1)
        logits = self.network.decoder.logits(states)
        return Scores(logits, hidden=states if self.with_hidden else None)

    @torch.inference_mode()
    def score_at(self, tokens: Tensor, positions: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        """See `Branching`."""
        assert self._memory is not None, "score before admit"
        decoder, window = self.network.decoder, self._cache.window_at(positions, places, seen)
        return decoder.logits(decoder(tokens, window, self._memory))

    def _read(self, tokens: Tensor, memory: SourceMemory, width: int) -> Tensor:
        """Last states [B, n, D] of tokens [B, n] int64; resumes those that `run_ahead` began."""
        decoder, num_ahead, num_new = self.network.decoder, len(self._ahead), tokens.shape[1]
        if num_ahead == 0:
            window = self._cache.window(num_new, width)
            states: Tensor = decoder(tokens, window, memory)
            return states
        parts, self._ahead = self._ahead, []
        if num_ahead < num_new:
            window = self._cache.window(num_new - num_ahead, width, skip=num_ahead)
            x = decoder.embedding(tokens[:, num_ahead:], window.positions)
            parts.append(decoder.through(x, window, memory, stop=self._exit_layer))
        window = self._cache.window(num_new, width)
        x = decoder.through(torch.cat(parts, 1), window, memory, start=self._exit_layer)
        return decoder.finish(x)

    @torch.inference_mode()
    def run_ahead(self, prefix: Prefix, tokens: Tensor, exit_layer: int) -> Tensor:
        """[B, V] logits of the first layers for the token after `tokens` [B] int64."""
        assert self._memory is not None, "run_ahead before admit"
        decoder, self._exit_layer = self.network.decoder, exit_layer
        window = self._cache.window(1, width=prefix.width - 1, skip=len(self._ahead))
        x = decoder.embedding(tokens[:, None], window.positions)
        x = decoder.through(x, window, self._memory, stop=exit_layer)
        self._ahead.append(x)
        return decoder.logits(decoder.finish(x))[:, 0]

    @torch.inference_mode()
    def commit(self, prefix: Prefix, last: Round) -> None:
        self._cache.crop(prefix.lengths - 1)

    @torch.inference_mode()
    def select(self, rows: Tensor) -> None:
        self._ahead = []  # left by a round that was abandoned
        if rows.numel() == 0:
            self._cache, self._memory = self._new_cache(0), None
            return
        assert self._memory is not None, "select before admit"
        self._cache.select(rows)
        self._memory = self._memory.select(rows)

    @torch.inference_mode()
    def narrow(self, longest: int, is_padded: bool) -> None:
        if self._memory is not None:
            self._memory = self._memory.narrowed(longest, is_padded)

    @torch.inference_mode()
    def fix(self, num_rows: int, num_sources: int, num_targets: int) -> None:
        """Move the state into `pool`, with so many rows and positions; new rows hold nothing."""
        assert self._memory is not None, "fix before admit"
        self._cache = self.pool.cache("verifier", self._cache, num_rows, num_targets)
        self._memory = self.pool.memory("verifier", self._memory, num_rows, num_sources)

    def encoder_output(self) -> tuple[Tensor, Tensor]:
        assert self._memory is not None, "encoder_output before admit"
        return self._memory.extras[0], self._memory.padding_mask

    def encodes_like(self, encoder: Encoder) -> bool:
        return same_encoder(self.network.encoder, encoder)

    def _new_cache(self, num_rows: int) -> KVCache:
        dtype = self.network.decoder.layers.attention_dtype
        return KVCache(self.network.config.decoder, num_rows, self.device, dtype)
