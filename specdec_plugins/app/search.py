"""fairseq's own beam search as a strategy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from specdec_plugins.app.settings import DTYPES, Settings, choose_device
from specdec_plugins.app.strategies import Clock, Decoded, Strategy
from specdec_plugins.app.translator import Limits
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.types import FinishReason, Request, RowResult
from specdec_plugins.formats.fairseq_search import (
    FairseqSearch,
    SearchConfig,
    load_fairseq_search,
)


@dataclass
class BeamSearch:
    """The best hypothesis of fairseq's search; it has no rounds, so it counts none."""

    search: FairseqSearch
    max_rows: int = 1  # sentences decoded at once
    clock: Clock = time.perf_counter
    stats: DecodeStats = field(default_factory=DecodeStats)

    def run(self, requests: Sequence[Request]) -> Iterator[Decoded]:
        for start in range(0, len(requests), self.max_rows):
            rows = requests[start : start + self.max_rows]
            before = self.clock()
            found = self.search.search([r.source_ids for r in rows], [r.forced_ids for r in rows])
            seconds = self.clock() - before
            self.stats += DecodeStats(rows=len(rows), seconds={"search": seconds})
            for request, hypotheses in zip(rows, found, strict=True):
                best = hypotheses[0]
                # fairseq appends eos to what it cuts, one token behind the limit.
                is_cut = len(best.token_ids) > request.params.max_len
                result = RowResult(request.id, best.token_ids)
                result.score = best.score * len(best.token_ids) ** self.search.config.lenpen
                result.finish_reason = FinishReason.LENGTH if is_cut else FinishReason.EOS
                yield Decoded(result, seconds)


def load_beam_search(settings: Settings) -> tuple[Strategy, Limits]:
    """The search on the verifier's checkpoint. Raises UserError as `load_fairseq_search` does."""
    config = SearchConfig(
        beam=settings.beam,
        lenpen=settings.lenpen,
        max_len_a=settings.max_len_a,
        max_len_b=settings.max_len_b,
        min_len=settings.minimum,
        unkpen=settings.unkpen,
        no_repeat_ngram_size=settings.no_repeat_ngram_size,
    )
    assert settings.verifier is not None  # Settings refuses it
    search = load_fairseq_search(
        settings.verifier,
        settings.data,
        config,
        dtype=DTYPES[settings.dtype],
        device=choose_device(settings.device),
    )
    limits = Limits(search.max_source_positions, search.max_target_tokens, 0)
    return BeamSearch(search, settings.batch), limits
