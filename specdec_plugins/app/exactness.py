"""Where a decoding differs from greedy decoding: whether rounding explains it.

Two computations of the same logits differ by rounding, so an argmax may fall on the other of two
tokens that are almost equally good. The gap between the two, in float64, tells such a near-tie
from a mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from specdec_plugins.app.comparison import Decoding
from specdec_plugins.app.loading import load_translator
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.strategies import EngineStrategy
from specdec_plugins.app.translator import Sentence
from specdec_plugins.decoding.batch import collate, open_prefix
from specdec_plugins.decoding.constraints import strike
from specdec_plugins.decoding.interfaces import Draft, Verifier
from specdec_plugins.decoding.request import Request

NEAR_TIE = 1e-4  # nats; float32 rounding stays below it on models of ordinary size


@dataclass(frozen=True)
class Difference:
    """The first token at which one sentence leaves the greedy output."""

    number: int  # of the sentence, from 1
    position: int  # in the target, from 1
    gap: float  # between the verifier's two best logits there, nats

    def __str__(self) -> str:
        kind = "a near-tie" if self.gap < NEAR_TIE else "no near-tie: this is a mistake"
        return (
            f"sentence {self.number} differs from token {self.position} on, where the verifier's "
            f"two best logits are {self.gap:.2e} apart in float64 ({kind})"
        )


def explain(
    settings: Settings, sources: Sequence[str], greedy: Decoding, other: Decoding
) -> list[Difference]:
    """The gap behind each sentence that differs; settings: those of the greedy decoding.

    The verifier is loaded in float64, and only if something differs.
    """
    differing = other.differing(greedy)
    if not differing:
        return []
    translator = load_translator(replace(settings, strategy="AR", dtype="float64"))
    assert isinstance(translator.strategy, EngineStrategy)
    differences = []
    for index in differing:
        request = translator.prepare(Sentence(index + 1, sources[index]))
        assert isinstance(request, Request)  # an empty line has one translation, which is empty
        ids = [translator.codec.token_ids(" ".join(d.tokens[index])) for d in (greedy, other)]
        shared = common_length(*ids)
        request = replace(request, forced_ids=ids[0][:shared])
        gap = gap_after(translator.strategy.verifier, request, settings.ban_pad)
        differences.append(Difference(index + 1, shared + 1, gap))
    return differences


@torch.inference_mode()
def gap_after(verifier: Verifier, request: Request, ban_pad: bool) -> float:
    """Between the two best logits of the token after the request's forced ids, nats.

    Leaves the verifier empty.
    """
    device, special = verifier.device, verifier.special
    nobody = torch.zeros(0, dtype=torch.int64, device=device)
    verifier.select(nobody)
    source = collate([request], special.pad, special.start, device)
    verifier.admit(source)
    prefix = open_prefix(source, len(request.forced_ids) + 1)
    logits = verifier.score(prefix, Draft.empty(1, device)).logits
    verifier.select(nobody)
    min_len = torch.tensor([request.params.min_len], device=device)
    strike(logits, prefix.lengths, min_len, special, ban_pad)
    best, second = logits[0, 0].double().topk(2).values.tolist()
    gap: float = best - second
    return gap


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids at the start are the same."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
