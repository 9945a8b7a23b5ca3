"""Plain greedy decoding, one token a step: the slow twin of the engine, and its oracle."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specdec_plugins.decoding.batch import collate, open_prefix
from specdec_plugins.decoding.constraints import FREE, Constraints, constrain
from specdec_plugins.decoding.contract import Draft, Round, Verdict, Verifier
from specdec_plugins.decoding.extend import append
from specdec_plugins.decoding.requests import DecodeParams, Request
from tests.decoding.toys import CPU, SPECIAL


@torch.inference_mode()
def greedy(
    verifier: Verifier, jobs: Sequence[Request], constraints: Constraints = FREE
) -> list[list[int]]:
    """Each row's argmax tokens, forced prefix and eos included, max_len tokens at most.

    "Greedy" is the plain argmax, as published, after `min_len` and `constraints` have banned
    tokens. This shares only the verifier, `open_prefix`, `constrain` and `append` with the
    engine. Finished rows stay in the batch until the last one ends.
    """
    verifier = verifier.fresh()
    source = collate(jobs, SPECIAL.pad, SPECIAL.start, CPU)
    params = DecodeParams.stack([job.params for job in jobs], CPU)
    verifier.admit(source)
    prefix = open_prefix(source, int(params.max_len.max()))
    eos = verifier.special.eos
    while bool(prefix.active.any()):
        nothing = Draft.empty(len(source), verifier.device)
        scores = verifier.score(prefix, nothing)
        constrain(scores.logits, prefix, nothing, params, eos, constraints)
        best = scores.logits[:, 0].argmax(-1)  # [B]
        append(prefix, best[:, None], prefix.active.long())
        prefix.active &= (best != eos) & (prefix.lengths - 1 < params.max_len)
        prefix.width = int(prefix.lengths.max())
        verifier.commit(prefix, Round(nothing, scores, Verdict(nothing.lengths, best)))
    return [
        row[1:length]
        for row, length in zip(prefix.tokens.tolist(), prefix.lengths.tolist(), strict=True)
    ]
