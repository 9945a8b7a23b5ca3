"""This project's engine: one token at a time, or with the pair's drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks.engines import Engine, Output, Workload
from benchmarks.engines.scripted import ScriptedDrafter
from benchmarks.pair import Sentence
from benchmarks.systems import BEAM, GREEDY, System
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import SpeculativeTranslator, load_translator
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.errors import require


class Ours(Engine):
    """The translator that the command line would load, given token ids."""

    def __init__(self, translator: SpeculativeTranslator) -> None:
        assert isinstance(translator.decoder, SpeculativeDecoder)
        self.decoder = translator.decoder
        self._translator = translator

    def translate(self, batch: Sequence[Sentence]) -> Output:
        """Decode the batch in a session of its own."""
        self.decoder.stats = DecodeStats()
        codec = self._translator.codec
        tokens = [codec.tokens(ids) for ids in self.target_ids(batch)]
        return Output(tokens, self.decoder.stats)

    def target_ids(self, batch: Sequence[Sentence]) -> list[list[int]]:
        """The translations as ids of the target dictionary, the end of the sentence included."""
        requests = [self.request(sentence) for sentence in batch]
        done = {result.id: result for result in self.decoder.run(requests)}
        return [done[request.id].token_ids for request in requests]

    def parts(self, batch: Sequence[Sentence]) -> dict[str, float]:
        """Seconds by part; every part waits for the device."""
        usual = self.decoder.config
        self.decoder.config = replace(usual, measure_time=True)
        self.translate(batch)
        self.decoder.config = usual
        return self.decoder.stats.seconds

    def request(self, sentence: Sentence) -> Request:
        """The request to the engine. Raises UserError if the sentence is too long."""
        settings, limits = self._translator.settings, self._translator.limits
        require(
            len(sentence.ids) <= limits.source,
            f"sentence {sentence.number}: has {len(sentence.ids)} tokens, more than the "
            f"{limits.source} that the models have positions for.",
        )
        max_len = settings.max_len(len(sentence.ids), limits.target)
        # The number seeds the randomness of a scripted draft.
        params = settings.decode_params(max_len, sentence.number, limits.block_size)
        return Request(str(sentence.number), sentence.ids, params)


def load(system: System, workload: Workload, threads: int) -> Ours:
    """Raises UserError where the system drafts and the pair has no drafter."""
    torch.set_num_threads(threads)
    settings = settings_of(system, workload)
    engine = Ours(load_translator(settings))
    acceptance = system.options.get("acceptance")
    if acceptance is not None:
        greedy = Ours(load_translator(_plain(settings)))
        eos = engine.decoder.verifier.special.eos
        answers = {tuple(s.ids): greedy.target_ids([s])[0] for s in workload.sentences}
        method = engine.decoder.method
        assert method.drafter is not None
        drafter = ScriptedDrafter(method.drafter, answers, acceptance, eos)
        engine.decoder.method = replace(method, drafter=drafter)
    return engine


def settings_of(system: System, workload: Workload) -> Settings:
    """Raises UserError where the system drafts and the pair has no drafter."""
    pair, lengths, options = workload.pair, workload.lengths, system.options
    settings = replace(
        pair.token_settings(),
        dtype=system.dtype,
        device=workload.device,
        cuda_graphs=options.get("graphs", False),
        batch=workload.max_batch,
        min_len=lengths.min_len,
        max_len_b=lengths.max_len,
    )
    if system.role in (BEAM, GREEDY):
        return replace(_plain(settings), beam=5 if system.role == BEAM else None)
    require(
        pair.drafter is not None,
        f"{pair.settings.data}: holds no drafter, which {system.name!r} needs.",
    )
    return replace(
        settings,
        rule=None,
        block_size=options.get("k", settings.block_size),
        beta=options.get("beta", 1),
        tau=options.get("tau", 0.0),
    )


def _plain(settings: Settings) -> Settings:
    """The settings without a drafter."""
    return replace(settings, strategy="AR", beta=1, tau=0.0)
