"""The kernels' lane against the one of torch's operations, over shapes, limits and parameters."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from specdec_plugins.decoding import engine
from specdec_plugins.decoding.batch import collate
from specdec_plugins.decoding.constraints import FREE
from specdec_plugins.decoding.contract import Drafter
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.engine import EngineConfig, Session
from specdec_plugins.decoding.greedy import greedy
from specdec_plugins.decoding.native import NativeLane
from specdec_plugins.decoding.networks import Transformer, TransformerConfig
from specdec_plugins.decoding.networks.config import StackConfig
from specdec_plugins.decoding.networks.cpu import products
from specdec_plugins.decoding.networks.cpu.products import with_fast_products
from specdec_plugins.decoding.requests import DecodeParams, Request
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.rules.mixed import MixedRule
from specdec_plugins.decoding.verifier import TransformerVerifier
from tests.decoding.networks.toys import VOCAB, block_drafter, randomise, sentences
from tests.decoding.toys import CPU, SPECIAL, method_of

pytestmark = pytest.mark.usefixtures("no_gradients")
Events = dict[str, list[Any]]


class Case:
    """A random pair of networks, and what is asked of it."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        heads = rng.choice([1, 2, 3])
        dim = heads * rng.choice([5, 8, 16, 17])
        normalize_before = rng.random() < 0.5
        stack = StackConfig(
            num_layers=2,
            dim=dim,
            ffn_dim=rng.choice([3, 24, 65]),
            num_heads=heads,
            vocab_size=VOCAB,
            max_positions=48,
            normalize_before=normalize_before,
            positions=rng.choice(["learned", "sinusoidal"]),
            final_norm=normalize_before,
        )
        config = TransformerConfig(encoder=stack, decoder=stack, norm_embedding=rng.random() < 0.5)
        verifier = Transformer(config)
        randomise(verifier, seed)
        self.int8 = rng.random() < 0.5
        network = with_fast_products(verifier.float(), self.int8)
        assert isinstance(network, Transformer)
        self.verifier = TransformerVerifier(network, SPECIAL)
        self.drafter = self._drafter(seed) if seed % 4 else None

    def _drafter(self, seed: int) -> Drafter:
        network = block_drafter(
            seed,
            copy_source=self.rng.random() < 0.5,
            cached_prefix=True,
            sequential_head=12,
            head_attention=self.rng.choice([0, 2]),
            shortlist_common=2,
            shortlist_types=2 * VOCAB,
        ).float()
        listed = network.decoder.shortlist
        assert listed is not None
        listed.common[:] = torch.tensor([SPECIAL.eos, 4])
        listed.starts[:] = 2 * torch.arange(VOCAB + 1)
        listed.types[:] = torch.arange(2 * VOCAB) * 7 % VOCAB
        choices: list[dict[str, float]] = [{}, {"confidence": 0.1}, {"candidates": 3}]
        options = self.rng.choice(choices)
        context = DraftContext(self.verifier, with_fast_products(network, self.int8))
        return DRAFTERS.build("block", context, options=options)

    def jobs(self, **options: Any) -> list[Request]:
        rng = self.rng
        return sentences(
            *(9, lambda i: i % 3),
            **{"block_size": lambda i: i % 7, "max_len": lambda i: 12 + 3 * i, **options},
            min_len=lambda i: 5 * (i % 2),
            banned=lambda i: (7,) * (i % 2),
            with_scores=lambda i: i % 3 == 0,
            ends_loops=lambda i: rng.random() < 0.5,
        )


def said(case: Case, jobs: list[Request], most: int, native: bool, **options: Any) -> Events:
    """All events of each request, and its result."""
    method = method_of(
        case.drafter, options.pop("rule", "exact"), options.pop("schedule", "constant")
    )
    method = replace(method, rule=options.pop("own_rule", method.rule))
    session = Session(case.verifier.fresh(), method, EngineConfig(**options))
    if case.drafter is not None:
        own = case.drafter.fresh(session.verifier)
        session = Session(session.verifier, replace(method, drafter=own), EngineConfig(**options))
    assert isinstance(session._lanes[0], NativeLane)
    session._lanes = session._lanes[not native :]
    session.add(jobs)
    told: Events = {}
    for event in session.run(most):
        drafted = (event.draft_ids, event.num_accepted, event.emitted_ids)
        told.setdefault(event.id, []).append(drafted)
        if event.result is not None:
            scores = [round(score, 3) for score in event.result.token_scores]
            told[event.id] += [event.result.token_ids, event.result.finish_reason, scores]
    session.close()
    return told


WORDS = replace(FREE, bad_words=((5,), (9,)), banned_first=(4, 6), num_opening=2, forced_last=2)


@pytest.mark.parametrize("seed", range(12))
def test_both_lanes_say_the_same(
    seed: int, threads_kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed > 5:  # with tables of tokens in 8 bits, where products are
        monkeypatch.setattr(products, "LARGE_TABLE", 0)
    case = Case(seed)
    torch.set_num_threads(1 + seed % 2)
    tolerance: dict[str, Any] = {}
    if seed % 3 == 0:
        tolerance = {"beta": lambda i: 1 + i % 3, "tau": lambda i: i / 2}
    jobs = case.jobs(**tolerance)
    options = {
        "rule": "top_beta" if tolerance else "exact",
        "schedule": ("constant", "few_rows")[seed % 5 == 1],
        "constraints": (FREE, WORDS)[seed % 2],
        "max_rows": (4, 1, 32)[seed % 3],
    }
    expected = said(case, jobs, 1, native=False, **options)
    assert said(case, jobs, 1, native=True, **options) == expected
    for own in (said(case, jobs, 99, native=True, **options) for _ in range(2)):
        assert own == expected
    assert len({str(event) for event in expected.values()}) > 5  # or the test could not fail


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_speculating_lane_is_greedy_decoding(seed: int) -> None:
    case = Case(seed)
    jobs = [replace(job, params=replace(job.params, banned=())) for job in case.jobs()]
    jobs = [replace(job, params=replace(job.params, ends_loops=False)) for job in jobs]
    source = collate(jobs, SPECIAL.pad, SPECIAL.start, CPU)
    params = DecodeParams.stack([job.params for job in jobs], CPU)
    told = said(case, jobs, 99, native=True, max_rows=4)
    expected = greedy(case.verifier, source, params)
    assert [told[job.id][-3] for job in jobs] == expected


def test_what_a_lane_cannot_do_decodes_beside_it() -> None:
    """Sampling, penalties and n-grams go to the other lane of the same session."""
    case = Case(1)
    plain, drawn, penalised = case.jobs(top_k=lambda i: 5 * (i == 1) + (i != 1))[:3]
    penalised = replace(penalised, params=replace(penalised.params, repetition_penalty=1.3))
    jobs = [plain, drawn, penalised]
    both = said(case, jobs, 99, native=True, own_rule=MixedRule())
    assert both == said(case, jobs, 1, native=False, own_rule=MixedRule())


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


def test_parts_of_other_kinds_need_torch() -> None:
    case = Case(1)
    for rule in RULES.names():
        session = Session(case.verifier.fresh(), method_of(None, rule), EngineConfig())
        assert isinstance(session._lanes[0], NativeLane) == (rule in ("exact", "top_beta"))
    ngrams = EngineConfig(constraints=replace(FREE, no_repeat_ngram_size=2))
    session = Session(case.verifier.fresh(), method_of(None), ngrams)
    assert not isinstance(session._lanes[0], NativeLane)
