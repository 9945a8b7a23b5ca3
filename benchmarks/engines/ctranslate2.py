"""CTranslate2, the engine to beat, as its documentation recommends it for latency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.engines import CTRANSLATE2, Job, Lengths, Output, converted
from benchmarks.pair import Sentence
from benchmarks.systems import BEAM


class CTranslate2:
    """One translator: all its threads work on one batch."""

    def __init__(self, translator: Any, beam: int, lengths: Lengths) -> None:
        self._translator = translator
        self._options = {
            "beam_size": beam,
            "min_decoding_length": lengths.min_len,
            "max_decoding_length": lengths.max_len,
            "max_input_length": 0,  # cut nothing
        }

    def translate(self, batch: Sequence[Sentence]) -> Output:
        sources = [sentence.tokens for sentence in batch]
        results = self._translator.translate_batch(sources, **self._options)
        return Output([result.hypotheses[0] for result in results])

    def parts(self, batch: Sequence[Sentence]) -> dict[str, float]:
        return {}


def load(job: Job, threads: int) -> CTranslate2:
    import ctranslate2

    translator = ctranslate2.Translator(
        str(converted(CTRANSLATE2, job)),
        device=job.device,
        compute_type=job.system.dtype,
        inter_threads=1,
        intra_threads=threads,
    )
    return CTranslate2(translator, 5 if job.system.role == BEAM else 1, job.lengths)
