"""CTranslate2, the engine to beat, as its documentation recommends it for latency."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.engines import CTRANSLATE2, Job, Peer, converted
from benchmarks.pair import Sentence
from benchmarks.systems import BEAM


def load(job: Job, threads: int) -> Peer:
    """One translator: all its threads work on one batch."""
    import ctranslate2

    translator = ctranslate2.Translator(
        str(converted(CTRANSLATE2, job)),
        device=job.device,
        compute_type=job.system.dtype,
        inter_threads=1,
        intra_threads=threads,
    )
    options = {
        "beam_size": 5 if job.system.role == BEAM else 1,
        "min_decoding_length": job.lengths.min_len,
        "max_decoding_length": job.lengths.max_len,
        "max_input_length": 0,  # cut nothing
    }

    def decode(batch: Sequence[Sentence]) -> list[list[str]]:
        sources = [sentence.tokens for sentence in batch]
        return [r.hypotheses[0] for r in translator.translate_batch(sources, **options)]

    return Peer(decode)
