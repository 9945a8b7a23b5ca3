"""The kernels' lane against the one of torch's operations, over shapes, limits and parameters."""

from __future__ import annotations

import os
import random
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_plugins.decoding import engine
from specdec_plugins.decoding.beam import BeamDecoder
from specdec_plugins.decoding.constraints import FREE
from specdec_plugins.decoding.contract import Draft, Drafter, DraftRequest
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.drafters.lookup import LookupDrafter
from specdec_plugins.decoding.engine import EngineConfig, Session
from specdec_plugins.decoding.native import NativeLane
from specdec_plugins.decoding.networks import (
    BlockConfig,
    BlockDrafter,
    MedusaConfig,
    MedusaHeads,
    StackConfig,
    Transformer,
    TransformerConfig,
)
from specdec_plugins.decoding.networks.config import ACTIVATIONS
from specdec_plugins.decoding.networks.cpu import products
from specdec_plugins.decoding.networks.cpu.ops import instruction_sets
from specdec_plugins.decoding.networks.cpu.products import with_fast_products
from specdec_plugins.decoding.requests import BeamParams, Request
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.rules.mixed import MixedRule
from specdec_plugins.decoding.verifier import TransformerVerifier
from tests.decoding.greedy import greedy
from tests.decoding.networks.toys import T5, UNK, VOCAB, full_logits, randomise, sentences
from tests.decoding.toys import CPU, SPECIAL, method_of

pytestmark = pytest.mark.usefixtures("no_gradients")
Events = dict[str, list[Any]]
# FUZZ=1000 tries more shapes. 55: a norm outside of the layers, in 8 bits.
SEEDS = [*range(int(os.environ.get("FUZZ", "16"))), 55]


class Rounded(nn.Linear):
    """Weights and inputs in 8 bits, as the kernels round them."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(_in_8_bits(x), _in_8_bits(self.weight), self.bias)


def _in_8_bits(rows: Tensor) -> Tensor:
    step = (rows.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
    return (rows / step).round() * step


def _store_in_8_bits(network: nn.Module) -> None:
    """Gives linear layers weights as a bundle has them; kernels multiply these as whole numbers."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = _in_8_bits(module.weight.float()).to(module.weight.dtype)


class Case:
    """A random pair of networks, and what is asked of it."""

    def __init__(self, seed: int, instruction_set: str = "") -> None:
        self.rng = random.Random(seed)
        self.int8 = self.flip()
        self.stored = seed % 3 == 0  # in 8 bits
        with pytest.MonkeyPatch.context() as patch:
            drawn = self.rng.choice(instruction_sets())
            patch.setenv("SPECDEC_INSTRUCTION_SET", instruction_set or drawn)
            if self.flip():  # beside 8-bit products, tables of tokens in 8 bits
                patch.setattr(products, "LARGE_TABLE", 0)
            self._build(seed)

    def _build(self, seed: int) -> None:
        config = TransformerConfig(
            encoder=self._stack(),
            decoder=self._stack(),
            activation=self.rng.choice(sorted(ACTIVATIONS)),
            scale_embedding=self.flip(),
            norm_embedding=self.flip(),
            tie_output=self.flip(),
        )
        if seed % 5 == 3:
            t5 = {**T5, "bias_each_layer": self.flip(), "gated": self.flip()}
            encoder, decoder = (
                replace(stack, **{**t5, "attention_dim": 7 * stack.num_heads})
                for stack in (config.encoder, config.decoder)
            )
            config = replace(config, encoder=encoder, decoder=decoder)
        if seed % 8 == 7:  # an exit needs a layer behind it
            config = replace(config, decoder=replace(config.decoder, num_layers=3))
        self.twin = Transformer(config)  # in float64, by torch's operations
        randomise(self.twin, seed)
        if self.stored:
            _store_in_8_bits(self.twin)
        network = with_fast_products(deepcopy(self.twin).float(), self.int8)
        for module in self.twin.modules() if self.int8 else ():
            if isinstance(module, nn.Linear):
                module.__class__ = Rounded
            elif isinstance(module, nn.Embedding) and products.LARGE_TABLE == 0:
                module.weight.data = _in_8_bits(module.weight)
        self.verifier = TransformerVerifier(network, SPECIAL)
        own = {0: None, 4: self._lookup, 5: self._published, 6: self._medusa, 7: self._early_exit}
        make = own.get(seed % 8, self._fast)
        self.drafter = None if make is None else make(seed)

    def flip(self) -> bool:
        return self.rng.random() < 0.5

    def _stack(self) -> StackConfig:
        choice, before = self.rng.choice, self.flip()
        return StackConfig(
            num_layers=choice([1, 2, 3]),
            num_heads=(heads := choice([1, 2, 3])),
            dim=heads * choice([5, 8, 16, 17]),
            ffn_dim=choice([3, 24, 65]),
            vocab_size=choice([VOCAB, 64, 129]),
            max_positions=80,
            positions=choice(["learned", "sinusoidal"]),
            normalize_before=before,
            final_norm=before,
        )

    def _fast(self, seed: int) -> Drafter:
        head, lists = self.rng.choice([0, 12, 33, 33]), self.rng.choice([0, 2, 2])
        return self._block(seed, cached_prefix=True, head=head, lists=head and lists)

    def _published(self, seed: int) -> Drafter:
        return self._block(seed, cached_prefix=False, head=0, lists=0)

    def _block(self, seed: int, cached_prefix: bool, head: int, lists: int) -> Drafter:
        theirs, own, copies = self.twin.config, self._stack(), self.flip()
        wide = theirs.encoder if copies else own
        own = replace(own, dim=wide.dim, num_heads=wide.num_heads, normalize_before=False)
        own = replace(own, vocab_size=theirs.decoder.vocab_size, final_norm=False)
        num_source, num_target = theirs.encoder.vocab_size, own.vocab_size
        config = BlockConfig(
            encoder=theirs.encoder,
            decoder=own,
            activation=theirs.activation,
            scale_embedding=theirs.scale_embedding,
            norm_embedding=theirs.norm_embedding,
            tie_output=True,
            mask=UNK,
            block_size=6,
            copy_source=copies,
            scale_decoder=self.flip(),
            cached_prefix=cached_prefix,
            sequential_head=head,
            head_attention=head and self.rng.choice([0, own.num_heads]),
            shortlist_common=lists,
            shortlist_types=lists * num_source,
        )
        network = BlockDrafter(config)
        randomise(network, seed).float()
        if self.stored:
            _store_in_8_bits(network)
        listed = network.decoder.shortlist
        if listed is not None:
            listed.common[:] = torch.tensor([SPECIAL.eos, 4])
            listed.starts[:] = 2 * torch.arange(num_source + 1)
            listed.types[:] = torch.arange(2 * num_source) * 7 % num_target
        if self.flip():
            network.encoder = self.verifier.network.encoder
        choices: list[dict[str, float]] = [{}, {"confidence": 0.1}, {"candidates": 3}]
        choices = choices if head else [{}]
        context = DraftContext(self.verifier, with_fast_products(network, self.int8))
        return DRAFTERS.build("block", context, options=self.rng.choice(choices))

    def _early_exit(self, seed: int) -> Drafter:
        options: list[dict[str, float]] = [{}, {"exit_layer": 2}, {"confidence": 0.1}]
        context = DraftContext(self.verifier)
        return DRAFTERS.build("early_exit", context, options=self.rng.choice(options))

    def _medusa(self, seed: int) -> Drafter:
        heads = MedusaHeads(MedusaConfig(6, self.twin.config.decoder.dim))
        return DRAFTERS.build("medusa", DraftContext(self.verifier, randomise(heads, seed).float()))

    def _lookup(self, seed: int) -> Drafter:
        """A source's types are those of the target, or every third is, or none."""
        step = self.rng.choice([1, 3, VOCAB])
        kept = torch.arange(self.twin.config.encoder.vocab_size)
        kept = kept.where(kept % step == 0, UNK).clamp(max=self.twin.config.decoder.vocab_size - 1)
        context = DraftContext(self.verifier, source_to_target=None if step == 1 else kept)
        options: list[dict[str, int]] = [{}, {"min_ngram": 2}, {"max_ngram": 1}]
        return DRAFTERS.build("lookup", context, options=self.rng.choice(options))

    def jobs(self, **options: Any) -> list[Request]:
        choice = self.rng.choice
        longest, more, loops = choice([9, 40]), choice([1, 3, 6]), choice([2, 3])
        asked = {
            "block_size": lambda i: i % 7,
            "max_len": lambda i: 12 + more * i,
            "min_len": lambda i: 5 * (i % 2),
            "banned": lambda i: (7,) * (i % 2),
            "with_scores": lambda i: i % 3 == 0,
            "no_repeat_ngram_size": lambda i: i % 4 - 1 if i % 4 else 0,
            "repetition_penalty": lambda i: 1.0 if i % 5 else 1.3,
            "ends_loops": lambda i: i % loops == 0,
        }
        return sentences(9, lambda i: i % 3, lambda i: 1 + 5 * i % longest, **{**asked, **options})


def said(
    case: Case, jobs: list[Request], most: int, native: bool, digits: int = 3, **options: Any
) -> Events:
    """All events of each request, and its result; digits: of log-probabilities."""
    method = method_of(
        case.drafter, options.pop("rule", "exact"), options.pop("schedule", "constant")
    )
    method = replace(method, rule=options.pop("own_rule", method.rule))
    session = engine.SpeculativeDecoder(case.verifier, method, EngineConfig(**options)).open()
    assert isinstance(session._lanes[0], NativeLane)
    session._lanes = session._lanes[not native :]
    session.add(jobs)
    told: Events = {}
    for event in session.run(most):
        drafted = (event.draft_ids, event.num_accepted, event.emitted_ids)
        told.setdefault(event.id, []).append(drafted)
        if event.result is not None:
            scores = [round(score, digits) for score in event.result.token_scores]
            told[event.id] += [event.result.token_ids, event.result.finish_reason, scores]
    session.close()
    return told


@pytest.mark.parametrize("seed", SEEDS)
def test_instruction_sets_say_the_same_to_the_last_bit(seed: int) -> None:
    told = dict[tuple[bool, str], str]()
    for name in instruction_sets():
        case = Case(seed, name)
        jobs = case.jobs(with_scores=True)
        events = said(case, jobs, 99, native=True, digits=20)  # greedily, too: some draft nothing
        beams = [replace(job.params, beam=BeamParams(size=3), block_size=0) for job in jobs]
        jobs = [replace(job, params=params) for job, params in zip(jobs, beams, strict=True)]
        found = BeamDecoder(case.verifier, EngineConfig(4)).decode(jobs)
        if case.int8 or name != "plain":  # which rounds between a product of floats and its sum
            # Of weights stored in 8 bits, sets without products of bytes add up floats.
            adds_floats = case.stored and not case.int8 and name in ("avx2", "neon")
            told[adds_floats, name] = str((events, [result.hypotheses for result in found]))
    for kind in (False, True):
        same = {name: text[:9999] for (other, name), text in told.items() if other == kind}
        assert len(set(same.values())) <= 1, same


DRAWN = {
    "top_k": lambda i: (1, 0, 5, 1, 0)[i % 5],
    "top_p": lambda i: (1, 1, 0.7, 1, 0.8)[i % 5],
    "temperature": lambda i: 1 + i / 5,
    "seed": lambda i: 2**62 + i,
}
WORDS = replace(
    FREE,
    bad_words=((5,), (9,), (4, 6), (6, 4, 8)),
    banned_first=(4, 6),
    num_opening=2,
    forced_last=2,
)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_lanes_say_the_same(seed: int, threads_kept: None) -> None:
    case = Case(seed)
    choice, tolerance = case.rng.choice, dict[str, Any]()
    if seed % 3 == 0:
        tolerance = {"beta": lambda i: 1 + i % 3, "tau": lambda i: i / 2}
    drawn = DRAWN if seed % 4 == 2 else {}
    jobs = case.jobs(**tolerance, **drawn)
    options = {
        "rule": "top_beta" if tolerance else "exact",
        "schedule": choice(["constant", "constant", "few_rows"]),
        "constraints": choice([FREE, WORDS, replace(WORDS, no_repeat_ngram_size=3)]),
        "max_rows": choice([10, 1, 32]),
    }
    if drawn:
        options["own_rule"] = MixedRule()
    expected = said(case, jobs, 1, native=False, **options)
    assert said(case, jobs, 1, native=True, **options) == expected
    torch.set_num_threads(2)
    assert said(case, jobs, 99, native=True, **options) == expected
    assert len({str(event) for event in expected.values()}) > 5  # or the test could not fail


def test_what_a_position_costs_shortens_drafts_of_greedy_rows_alone() -> None:
    cases = map(Case, range(99))
    case = next(one for one in cases if getattr(one.drafter, "_shortlist", None) is not None)
    jobs = case.jobs(beta=lambda i: 1 + i % 2, tau=2.0, block_size=6)
    told = []
    for cost in (0.0, 0.99):
        context = DraftContext(case.verifier, case.drafter.network, position_cost=cost)
        case.drafter = DRAFTERS.build("block", context)
        told.append(said(case, jobs, 99, native=True, rule="top_beta"))
    whole, cut = told
    for job in jobs:
        kept = slice(-3, None) if job.params.beta == 1 else slice(None)
        assert whole[job.id][kept] == cut[job.id][kept]
    drafted = [sum(len(own[0]) for one in all_of.values() for own in one[:-3]) for all_of in told]
    assert drafted[1] < 0.9 * drafted[0]


def test_rows_join_a_drafter_together_whatever_thread_decodes_them(threads_kept: None) -> None:
    """The first two draw and so draft from the start; the others draft when these have ended."""
    case = Case(6)
    asked = {"top_k": lambda i: i // 2, "max_len": lambda i: 6 + 12 * (i // 2), "block_size": 3}
    jobs = sentences(4, lambda i: 0, lambda i: 1 + i, **asked)
    options = {"schedule": "few_rows", "own_rule": MixedRule(), "max_rows": 4, "compact_at": 0.01}
    expected = said(case, jobs, 1, native=False, **options)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert said(case, jobs, 1, native=True, **options) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_a_speculating_lane_is_greedy_decoding_of_the_network(seed: int) -> None:
    case, free = Case(seed), {"min_len": 0, "with_scores": True, "ends_loops": False}
    jobs = case.jobs(banned=(), no_repeat_ngram_size=0, repetition_penalty=1.0, **free)
    told = said(case, jobs, 99, native=True, max_rows=4)
    expected = greedy(case.verifier, jobs)
    assert [told[job.id][-3] for job in jobs] == expected
    for job, text in zip(jobs, expected, strict=True):
        read = torch.tensor([job.source_ids]), torch.tensor([[SPECIAL.start, *text[:-1]]])
        by_twin = full_logits(case.twin, *read)[0].log_softmax(-1)
        scores = by_twin.gather(1, torch.tensor(text)[:, None])[len(job.forced_ids) :, 0]
        found = torch.tensor(told[job.id][-1], dtype=torch.float64)
        # Where 8 bits round a number to the other side, all that follow are a little different.
        atol = 0.5 if case.int8 else 2e-3
        torch.testing.assert_close(found, scores, rtol=0, atol=atol)


def test_what_a_lane_cannot_do_decodes_beside_it() -> None:
    """A source that has padding within goes to the other lane of the same session."""
    case = Case(1)
    jobs = case.jobs()[:3]
    jobs[1] = replace(jobs[1], source_ids=[7, SPECIAL.pad, *jobs[1].source_ids])
    assert said(case, jobs, 99, native=True) == said(case, jobs, 1, native=False)


def test_rows_leave_a_lane_when_they_are_cancelled() -> None:
    case = Case(2)
    decoder = engine.SpeculativeDecoder(case.verifier, method_of(case.drafter))
    jobs = case.jobs()
    expected = {result.id: result.token_ids for result in decoder.decode(jobs)}
    session = decoder.open()
    session.add(jobs[:5])
    session.step()
    gone = {event.id for event in session.cancel(["r1", "r3"])}
    session.add(jobs[5:])
    done = {e.id: e.result.token_ids for e in session.run(99) if e.result is not None}
    session.close()
    assert gone == {"r1", "r3"}
    assert done.items() <= expected.items()
    assert sorted([*done, *gone]) == sorted(expected)


class Silent(LookupDrafter):
    """A class of a user's, of which the kernels know nothing."""

    def __init__(self, config: Any, context: Any) -> None:
        """Unlike what it inherits, it needs nothing."""

    def propose(self, asked: DraftRequest) -> Draft:
        return Draft.empty(len(asked.budget), CPU)


def test_parts_of_other_kinds_need_torch() -> None:
    case = Case(1)
    for rule in RULES.names():
        session = Session(case.verifier.fresh(), method_of(None, rule), EngineConfig())
        assert isinstance(session._lanes[0], NativeLane)
    for method in (method_of(None, "exact", "heuristic"), method_of(Silent(None, None))):
        session = Session(case.verifier.fresh(), method, EngineConfig())
        assert not isinstance(session._lanes[0], NativeLane)
