from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.engine import Method
from specdec_plugins.decoding.networks import Transformer
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.verifier import TransformerVerifier
from tests.decoding.drafters.test_lookup import sources
from tests.decoding.networks.toys import EOS, full_logits, sentences, transformer
from tests.decoding.toys import SPECIAL, decode_with, events_of, method_of, prefix_of
from tests.refusals import refused

NETWORKS = {
    "post-norm": transformer(seed=3, num_layers=3),
    "pre-norm": transformer(seed=4, num_layers=3, normalize_before=True, final_norm=True),
}


def truncated(network: Transformer, num_layers: int) -> Transformer:
    """The model of the first decoder layers only."""
    stack = replace(network.config.decoder, num_layers=num_layers)
    short = Transformer(replace(network.config, decoder=stack)).double().eval()
    names = short.state_dict().keys()
    short.load_state_dict({n: t for n, t in network.state_dict().items() if n in names})
    return short


def jobs(**params: Any) -> list[Request]:
    """Rows of different sources, prefixes and, unless told otherwise, block sizes."""
    options = {"max_len": 14, "block_size": lambda i: 1 + 2 * (i % 3), **params}
    return sentences(5, lambda i: i % 3, lambda i: 1 + i, **options)


def early_exit(network: Transformer, **options: Any) -> tuple[TransformerVerifier, Method]:
    verifier = TransformerVerifier(network, SPECIAL)
    drafter = DRAFTERS.build("early_exit", DraftContext(verifier), options=options)
    return verifier, method_of(drafter)


def greedy(network: Transformer, request: Request) -> list[int]:
    """By definition: everything is computed anew for every token."""
    tokens = list(request.forced_ids)
    while len(tokens) < request.params.max_len:
        target = torch.tensor([[EOS, *tokens]])
        logits = full_logits(network, torch.tensor([request.source_ids]), target)
        tokens.append(int(logits[0, -1].argmax()))
        if tokens[-1] == EOS:
            break
    return tokens


OPTIONS = [{}, {"exit_layer": 2}, {"exit_layer": 2, "confidence": 0.2}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", NETWORKS)
def test_drafts_are_the_truncated_models_and_the_text_is_the_whole_ones(
    name: str, options: dict[str, Any]
) -> None:
    """In every round of every row, whatever its neighbours draft."""
    network = NETWORKS[name]
    short = truncated(network, options.get("exit_layer", 1))
    requests = {job.id: job for job in jobs()}
    num_compared = 0
    for event in events_of(*early_exit(network, **options), jobs(), max_rows=3):
        request = requests[event.id]
        now = len(request.forced_ids)
        alone = greedy(short, request)[now : now + len(event.draft_ids)]
        # Behind an end of sentence the exit drafts on, and nobody reads it.
        assert event.draft_ids[: len(alone)] == alone
        num_compared += len(alone)
        if event.result is None:
            forced_ids = [*request.forced_ids, *event.emitted_ids]
            requests[event.id] = replace(request, forced_ids=forced_ids)
        else:
            assert event.result.token_ids == greedy(network, request)
    assert num_compared > 20  # or nothing would be said


@pytest.mark.parametrize("options", OPTIONS)
def test_no_layer_computes_a_position_twice(options: dict[str, Any]) -> None:
    """Each round reads a row's last token and its draft: once in every layer."""
    network = NETWORKS["post-norm"]
    counts: Counter[int] = Counter()

    def counting(layer: int) -> Any:
        def count(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            counts[layer] += args[0].shape[1]

        return count

    hooks = [m.register_forward_hook(counting(i)) for i, m in enumerate(network.decoder.layers)]
    results = decode_with(*early_exit(network, **options), jobs(block_size=4), max_rows=1)
    for hook in hooks:
        hook.remove()
    drafted = [n for result in results for n in result.drafted_per_round]
    assert max(drafted) == 4
    num_forced = sum(len(job.forced_ids) for job in jobs())
    assert counts == dict.fromkeys(range(3), sum(drafted) + len(drafted) + num_forced)
    if "confidence" in options:
        assert 0 in drafted
        assert {1, 2, 3} & set(drafted)


def test_a_round_that_is_given_up_leaves_nothing_behind() -> None:
    verifier, method = early_exit(NETWORKS["post-norm"])
    verifier.admit(sources([[5]]))
    verifier.run_ahead(prefix_of([[]]), torch.tensor([EOS]), 1)
    verifier.select(torch.zeros(0, dtype=torch.int64))  # as a session does that is closed
    results = decode_with(verifier, method, jobs())
    assert [r.token_ids for r in results] == [greedy(NETWORKS["post-norm"], job) for job in jobs()]


@pytest.mark.parametrize("exit_layer", [-1, 0, 3, 7])
def test_an_exit_that_does_not_exist_is_refused(exit_layer: int) -> None:
    told = f"exit after layer {exit_layer} of .* 3 .* from 1 to 2"
    refused(told, early_exit, NETWORKS["post-norm"], exit_layer=exit_layer)


def test_a_single_layer_cannot_be_left_early() -> None:
    refused("single decoder layer", early_exit, transformer(num_layers=1))
