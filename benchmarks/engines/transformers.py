"""transformers' MarianMT with the verifier's weights: greedy, and its assisted generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.engines import Engine, Workload
from benchmarks.pair import Sentence
from benchmarks.systems import ASSISTED, PROMPT_LOOKUP, System
from specdec_plugins.app.settings import DTYPES
from specdec_plugins.formats.dictionaries import Dictionary, ours
from specdec_plugins.formats.exports import load_marian

_NUM_LOOKED_UP = 10  # tokens, as in the library's documentation


def load(system: System, workload: Workload, threads: int) -> Engine:
    """`generate` without a beam."""
    torch.set_num_threads(threads)

    def load_model(name: str) -> Any:
        loaded: Any = load_marian(workload.converted(name), dtype=DTYPES[system.dtype])
        return loaded.to(workload.device).eval()

    model, words = load_model("transformers"), workload.pair.words()
    source_order, target_order = workload.pair.orders()
    pad, our_ids = source_order[Dictionary.pad], ours(target_order)
    options: dict[str, Any] = {
        "num_beams": 1,
        "do_sample": False,
        "max_new_tokens": workload.lengths.max_len,
        "min_new_tokens": workload.lengths.min_len,
        "suppress_tokens": [target_order[Dictionary.pad]],  # as fairseq's search bans it
    }
    if system.role == PROMPT_LOOKUP:
        options["prompt_lookup_num_tokens"] = _NUM_LOOKED_UP
    if system.role == ASSISTED:
        options["assistant_model"] = load_model(ASSISTED)

    @torch.inference_mode()
    def decode(batch: Sequence[Sentence]) -> list[list[str]]:
        width = max(len(sentence.ids) for sentence in batch)
        ids = [[source_order[i] for i in sentence.ids] for sentence in batch]
        rows = [row + [pad] * (width - len(row)) for row in ids]
        tokens = torch.tensor(rows, device=model.device)
        mask = (tokens != pad).long()
        found = model.generate(input_ids=tokens, attention_mask=mask, **options)
        # Column 0 is the start token, which may also be the end of a sentence.
        return [words.codec.tokens([our_ids[i] for i in row[1:]]) for row in found.tolist()]

    return Engine(decode)
