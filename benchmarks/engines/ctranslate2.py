"""CTranslate2, configured as its documentation recommends for latency."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.engines import Engine, Workload
from benchmarks.pair import Sentence
from benchmarks.systems import BEAM, System


def load(system: System, workload: Workload, threads: int) -> Engine:
    """One translator: all its threads work on one batch."""
    import ctranslate2

    translator = ctranslate2.Translator(
        str(workload.converted("ctranslate2")),
        device=workload.device,
        compute_type=system.dtype,
        inter_threads=1,
        intra_threads=threads,
    )
    options = {
        "beam_size": 5 if system.role == BEAM else 1,
        "min_decoding_length": workload.lengths.min_len,
        "max_decoding_length": workload.lengths.max_len,
        "max_input_length": 0,  # cut nothing
    }

    # Its own converter for transformers relies on the tokenizer to end a source.
    end = ["</s>"] if workload.pair.model is not None else []

    def decode(batch: Sequence[Sentence]) -> list[list[str]]:
        sources = [sentence.tokens + end for sentence in batch]
        return [r.hypotheses[0] for r in translator.translate_batch(sources, **options)]

    return Engine(decode)
