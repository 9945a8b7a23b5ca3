"""fairseq-generate's search, on the model that fairseq itself loads."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.engines import Engine, Workload
from benchmarks.pair import Sentence
from benchmarks.systems import BEAM, System
from specdec_plugins.app.settings import DTYPES
from specdec_plugins.formats.fairseq_search import SearchConfig, load_fairseq_search


def load(system: System, workload: Workload, threads: int) -> Engine:
    """The best hypothesis of its beam."""
    torch.set_num_threads(threads)
    config = SearchConfig(
        beam=5 if system.role == BEAM else 1,
        # fairseq does not count the end of the sentence.
        max_len_b=workload.lengths.max_len - 1,
        min_len=workload.lengths.min_len,
    )
    dtype, device = DTYPES[system.dtype], torch.device(workload.device)
    pair = workload.pair
    search = load_fairseq_search(
        pair.verifier, pair.settings.data, config, dtype=dtype, device=device
    )
    codec = pair.codec()

    def decode(batch: Sequence[Sentence]) -> list[list[str]]:
        found = search.search([sentence.ids for sentence in batch])
        return [codec.tokens(best.token_ids) for best, *_ in found]

    return Engine(decode)
