"""fairseq's own search on the verifier, which fairseq itself loads: as `fairseq-generate`."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.engines import Engine, Workload
from benchmarks.pair import Sentence
from benchmarks.systems import BEAM, System
from specdec_plugins.app.settings import DTYPES, Settings, choose_device
from specdec_plugins.decoding.requests import FinishReason, Request, RowResult
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.errors import imported
from specdec_plugins.formats.bundle import WEIGHTS_SUFFIX, read_bundle, read_weights
from specdec_plugins.formats.checkpoints import allow_fairseq_checkpoints
from specdec_plugins.formats.models import to_checkpoint


class FairseqSearch:
    """fairseq's SequenceGenerator, with the other decoders' interface."""

    def __init__(self, settings: Settings, beam: int, max_len: int, min_len: int) -> None:
        """max_len: target tokens at most, the end included, which fairseq does not count.

        Raises UserError if fairseq is not installed.
        """
        from fairseq.sequence_generator import SequenceGenerator

        self.stats = DecodeStats()  # the search has no rounds to count
        self._device = choose_device(settings.device)
        self._model, target = _load(settings)
        self._model.to(device=self._device, dtype=DTYPES[settings.dtype])
        self._pad = target.pad()
        self._generator = SequenceGenerator(
            [self._model], target, beam_size=beam, max_len_b=max_len - 1, min_len=min_len
        )

    @property
    def max_source_positions(self) -> int:
        """The longest source that the model reads, eos included."""
        return int(self._model.encoder.max_positions())

    @property
    def max_target_tokens(self) -> int:
        """The longest target that the model has positions for, without the eos after it."""
        return int(self._generator.max_len) - 1

    def run(self, requests: Sequence[Request]) -> Iterator[RowResult]:
        """Yields the best hypothesis of each request, searched together."""
        before = time.perf_counter()
        found = self.search([request.source_ids for request in requests])
        seconds = time.perf_counter() - before
        self.stats += DecodeStats(rows=len(requests), seconds={"search": seconds})
        for request, ids in zip(requests, found, strict=True):
            reason = FinishReason.EOS if len(ids) < request.params.max_len else FinishReason.LENGTH
            yield RowResult(request, ids, seconds=seconds, finish_reason=reason)

    def search(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """The best hypothesis of each source; ids of both end in eos."""
        rows = [torch.tensor(row, device=self._device) for row in sources]
        tokens: Tensor = pad_sequence(rows, batch_first=True, padding_value=self._pad)
        lengths = torch.tensor([len(row) for row in sources], device=self._device)
        sample = {"net_input": {"src_tokens": tokens, "src_lengths": lengths}}
        found = self._generator.generate([self._model], sample)
        return [best["tokens"].tolist() for best, *_ in found]


def _load(settings: Settings) -> tuple[Any, Any]:
    """fairseq's model and target dictionary. It can open a bundle once that is a checkpoint."""
    checkpoint_utils = imported("fairseq.checkpoint_utils", "train")
    allow_fairseq_checkpoints()
    logging.getLogger("hydra").setLevel(logging.INFO)  # else hydra's debug messages are printed
    assert settings.verifier is not None
    path, state = Path(settings.verifier), None
    if path.suffix == WEIGHTS_SUFFIX:
        bundle = read_bundle(path.parent)
        state = to_checkpoint(read_weights(path), bundle.source_lang, bundle.target_lang)
        state["args"].data = settings.data
    overrides = {"data": settings.data, "eval_bleu": False}
    overrides |= {
        side: language
        for side in ("source_lang", "target_lang")
        if (language := getattr(settings, side)) is not None
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # fairseq uses old names of hydra
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(path)], arg_overrides=overrides, state=state
        )
    return models[0].eval(), task.target_dictionary


def load(system: System, workload: Workload, threads: int) -> Engine:
    """The best hypothesis of its beam."""
    torch.set_num_threads(threads)
    pair, lengths = workload.pair, workload.lengths
    settings = replace(pair.settings, dtype=system.dtype, device=workload.device)
    beam = 5 if system.role == BEAM else 1
    search, codec = FairseqSearch(settings, beam, lengths.max_len, lengths.min_len), pair.codec()

    def decode(batch: Sequence[Sentence]) -> list[list[str]]:
        return [codec.tokens(ids) for ids in search.search([sentence.ids for sentence in batch])]

    return Engine(decode)
