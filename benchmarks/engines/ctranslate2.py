"""CTranslate2, configured as its documentation recommends for latency."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.engines import Engine, Workload
from benchmarks.pair import Sentence
from benchmarks.systems import BEAM, System


def load(system: System, workload: Workload, threads: int) -> Engine:
    """One translator of all threads, or with the option "workers" as many of one thread each.

    It is loaded in a thread that has ended when translating begins. Loading opens a team of OpenMP
    threads where it is called, and translating opens another in a thread of its own; if both lived,
    libgomp would count more threads than cores, stop spinning, and sleep after every product.
    """
    import ctranslate2

    workers = system.options.get("workers", 1)
    load = partial(
        ctranslate2.Translator,
        str(workload.converted("ctranslate2")),
        device=workload.device,
        compute_type=system.dtype,
        inter_threads=workers,
        intra_threads=threads // workers,
    )
    with ThreadPoolExecutor(1) as pool:
        translator = pool.submit(load).result()
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
        share = -(-len(sources) // workers)  # each worker takes one batch of that size
        results = translator.translate_batch(sources, max_batch_size=share, **options)
        return [result.hypotheses[0] for result in results]

    return Engine(decode)
