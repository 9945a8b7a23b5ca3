"""transformers' MarianMT with the verifier's weights: greedy, and its assisted generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.engines import ASSISTANT, MARIAN, Job, Lengths, Output, converted
from benchmarks.pair import Sentence
from benchmarks.systems import ASSISTED, PROMPT_LOOKUP
from specdec_plugins.app.codec import Codec
from specdec_plugins.app.settings import DTYPES
from specdec_plugins.formats.marian import load_marian

_NUM_LOOKED_UP = 10  # tokens, as the library's documentation has it


class Transformers:
    """`generate` without a beam."""

    def __init__(self, model: Any, codec: Codec, pad: int, options: dict[str, Any]) -> None:
        self._model = model
        self._codec = codec
        self._pad = pad
        self._options = options

    @torch.inference_mode()
    def translate(self, batch: Sequence[Sentence]) -> Output:
        width = max(len(sentence.ids) for sentence in batch)
        rows = [s.ids + [self._pad] * (width - len(s.ids)) for s in batch]
        tokens = torch.tensor(rows, device=self._model.device)
        mask = (tokens != self._pad).long()
        found = self._model.generate(input_ids=tokens, attention_mask=mask, **self._options)
        # Column 0 is the start token, which is the end of a sentence, too.
        return Output([self._codec.tokens(row[1:]) for row in found.tolist()])

    def parts(self, batch: Sequence[Sentence]) -> dict[str, float]:
        return {}


def load(job: Job, threads: int) -> Transformers:
    torch.set_num_threads(threads)

    def model(form: str) -> Any:
        loaded: Any = load_marian(converted(form, job), dtype=DTYPES[job.system.dtype])
        return loaded.to(job.device).eval()

    pad = job.pair.dictionaries().target.pad
    options = _limits(job.lengths, pad)
    if job.system.role == PROMPT_LOOKUP:
        options["prompt_lookup_num_tokens"] = _NUM_LOOKED_UP
    if job.system.role == ASSISTED:
        options["assistant_model"] = model(ASSISTANT)
    return Transformers(model(MARIAN), job.pair.codec(), pad, options)


def _limits(lengths: Lengths, pad: int) -> dict[str, Any]:
    return {
        "num_beams": 1,
        "do_sample": False,
        "max_new_tokens": lengths.max_len,
        "min_new_tokens": lengths.min_len,
        "suppress_tokens": [pad],  # as fairseq's search bans it
    }
