"""fairseq-generate's search, on the model that fairseq itself loads."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.engines import Job, Output
from benchmarks.pair import Sentence
from benchmarks.systems import BEAM
from specdec_plugins.app.codec import Codec
from specdec_plugins.app.settings import DTYPES
from specdec_plugins.formats.fairseq_search import (
    FairseqSearch,
    SearchConfig,
    load_fairseq_search,
)


class Fairseq:
    """The best hypothesis of its beam."""

    def __init__(self, search: FairseqSearch, codec: Codec) -> None:
        self._search = search
        self._codec = codec

    def translate(self, batch: Sequence[Sentence]) -> Output:
        found = self._search.search([sentence.ids for sentence in batch])
        return Output([self._codec.tokens(best.token_ids) for best, *_ in found])

    def parts(self, batch: Sequence[Sentence]) -> dict[str, float]:
        return {}


def load(job: Job, threads: int) -> Fairseq:
    torch.set_num_threads(threads)
    config = SearchConfig(
        beam=5 if job.system.role == BEAM else 1,
        # fairseq does not count the end of the sentence.
        max_len_b=job.lengths.max_len - 1,
        min_len=job.lengths.min_len,
    )
    dtype, device = DTYPES[job.system.dtype], torch.device(job.device)
    search = load_fairseq_search(
        job.pair.verifier, job.pair.settings.data, config, dtype=dtype, device=device
    )
    return Fairseq(search, job.pair.codec())
