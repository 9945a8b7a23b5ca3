"""fairseq's beam search, called as the engine is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdec_plugins.app.types import Clock
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.types import FinishReason, Request, RowResult

if TYPE_CHECKING:  # fairseq takes seconds to import
    from specdec_plugins.formats.fairseq_search import FairseqSearch


@dataclass
class BeamSearch:
    """The best hypothesis of fairseq's search; it has no rounds, so it counts none."""

    search: FairseqSearch
    max_rows: int = 1  # sentences decoded at once
    clock: Clock = time.perf_counter
    stats: DecodeStats = field(default_factory=DecodeStats)

    def run(self, requests: Sequence[Request]) -> Iterator[RowResult]:
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
                result = RowResult(request, best.token_ids, seconds=seconds)
                result.score = best.score * len(best.token_ids) ** self.search.config.lenpen
                result.finish_reason = FinishReason.LENGTH if is_cut else FinishReason.EOS
                yield result
