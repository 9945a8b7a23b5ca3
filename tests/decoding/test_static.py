"""Rounds of fixed shapes give the plain path's rounds, also when records of them are repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from specdec_plugins.decoding import static
from specdec_plugins.decoding.constraints import FREE, Constraints
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.engine import EngineConfig, SpeculativeDecoder
from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.requests import FinishReason, Request
from specdec_plugins.decoding.verifier import TransformerVerifier
from tests.decoding.networks.toys import block_drafter, fast_drafter, sentences, t5, transformer
from tests.decoding.toys import SPECIAL, forbid_waiting, method_of
from tests.gpu.test_simulated import head_drafter
from tests.refusals import refused

NETWORKS: dict[str, Callable[[], nn.Module] | None] = {
    "none": None,
    "block": lambda: block_drafter(block_size=12),
    "block, fast": lambda: fast_drafter(transformer()),
    "block, head": lambda: head_drafter(shortlist=False),
    "block, shortlist": lambda: head_drafter(shortlist=True),
}


class Record(TorchDispatchMode):
    """The operations of a round, with their tensors: what a CUDA graph holds."""

    def __init__(self, compute: Callable[[], static.Told], pool: Any) -> None:
        super().__init__()
        self.steps: list[tuple[Any, ...]] = []
        held = [(tensor, tensor.clone()) for tensor in pool._tensors.values()]
        with pytest.MonkeyPatch.context() as patch, self:
            forbid_waiting(patch)
            self.told = compute()
        for tensor, before in held:  # recording computes nothing
            tensor.copy_(before)
        self.num_repeats = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        assert operation is not torch.ops.aten.lift_fresh.default, "what is uploaded is not kept"
        made = operation(*args, **(kwargs or {}))
        self.steps.append((operation, args, kwargs or {}, made))
        return made

    def __call__(self) -> static.Told:
        """Compute them once more, in place where they were in place, without the round's Python."""
        now: dict[int, Tensor] = {}
        self.num_repeats += 1

        def known(x: Any) -> Any:
            return now.get(id(x), x)

        for operation, *given, made in self.steps:
            args, kwargs = pytree.tree_map(known, given)
            again = pytree.tree_leaves(operation(*args, **kwargs))
            now |= {id(x): y for x, y in zip(pytree.tree_leaves(made), again, strict=True)}
        told, parts = self.told
        return now[id(told)], parts


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Those made from here on. Lengths cross a bucket, and no kernel is hidden from records."""
    made = list[Record]()

    def recorded(compute: Callable[[], static.Told], pool: Any, device: torch.device) -> Record:
        made.append(Record(compute, pool))
        return made[-1]

    monkeypatch.setattr(static, "recorded", recorded)
    monkeypatch.setattr(static, "_TEXT", 16)
    monkeypatch.setattr(static, "_SOURCE", 4)
    monkeypatch.setattr(ops, "native", None)
    return made


def decoder_of(name: str, rule: str, is_static: bool, **given: Any) -> SpeculativeDecoder:
    """Few rows, so that some join and leave."""
    verifier, make = TransformerVerifier(transformer(), SPECIAL), NETWORKS[name]
    drafter = make and DRAFTERS.build("block", DraftContext(verifier, make()), options={})
    config = EngineConfig(5, compact_at=0.3, static=is_static)
    return SpeculativeDecoder(verifier, method_of(drafter, rule), replace(config, **given))


# fairseq's greedy search bans padding, and eos as the first token; then all that a model can ask
FAIRSEQ = {"config": {"constraints": FREE.banning(SPECIAL.pad)}, "min_len": 1}
ALL = Constraints(
    ((SPECIAL.pad,), (7,), (5, 6), (4, 5)),
    no_repeat_ngram_size=3,
    forced_last=SPECIAL.eos,
    banned_first=(4, 9),
    repetition_penalty=1.2,
)


def jobs_of(rule: str, **given: Any) -> list[Request]:
    """Some with a forced beginning, longer than a block, or with a limit within a block."""
    tolerance = {"beta": 3, "tau": 1.0} if rule == "top_beta" else {}
    given = {"max_len": lambda i: 40 - 7 * (i % 5), **tolerance, **given}
    return sentences(10, lambda i: i % 3 * 6, **given)


MIXED = {"block_size": lambda i: i % 3 * 4}
CASES = [(name, "exact", MIXED) for name in NETWORKS]
CASES += [(name, "top_beta", {"block_size": 12}) for name in ("block", "block, shortlist")]
CASES += [("block, fast", "exact", {"block_size": 1})]
# What only some rows ask for: by the plain path, then by records
CASES += [
    ("block, fast", "exact", {"block_size": 4, "banned": lambda i: (7,) * (i == 3), **FAIRSEQ}),
    ("block", "exact", {"block_size": 4, "min_len": lambda i: 6 * (i == 3),
                        "with_scores": lambda i: i == 5}),
]  # fmt: skip
CASES += [("none", "exact", FAIRSEQ), ("block", "top_beta", {"block_size": 12, **FAIRSEQ})]
CASES += [("block, fast", "exact", {**MIXED, "config": {"constraints": ALL}})]
CASES += [("block, shortlist", "top_beta",
           {"block_size": 5, "min_len": 6, "config": {"constraints": ALL}})]  # fmt: skip
# Rounds alike but for the last token, which is within reach of the later rows alone
CASES += [("none", "exact", {"max_len": lambda i: 40 if i < 5 else 14, "length": lambda i: 5,
                             "config": {"constraints": ALL, "compact_at": 1.0}})]  # fmt: skip


@pytest.mark.parametrize(("name", "rule", "given"), CASES)
def test_repeated_records_are_the_plain_rounds(
    name: str, rule: str, given: dict[str, Any], records: list[Record]
) -> None:
    given = dict(given)
    own = given.pop("config", {})
    jobs = jobs_of(rule, **given)
    expected = decoder_of(name, rule, False, **own).decode(jobs)
    assert {r.finish_reason for r in expected} == {FinishReason.EOS, FinishReason.LENGTH}
    decoder = decoder_of(name, rule, True, **own)
    for _ in range(2):  # two sessions; the second has the records of the first
        found = decoder.decode(jobs)
        # Wider products may add up in another order, which is another on each processor.
        scores = [result.token_scores for result in expected]
        assert [result.token_scores for result in found] == [
            pytest.approx(s, rel=1e-12) for s in scores
        ]
        for result, own in zip(found, scores, strict=True):
            result.token_scores = own
        assert found == expected
    assert sum(r.num_repeats for r in records) > 20


def test_parts_without_fixed_shapes_are_refused() -> None:
    for told, make in {
        "rules that sample": lambda: decoder_of("none", "speculative_sampling", True),
        "relative positions": lambda: SpeculativeDecoder(
            TransformerVerifier(t5(), SPECIAL), method_of(None), EngineConfig(static=True)
        ),
        "schedules other": lambda: SpeculativeDecoder(
            TransformerVerifier(transformer(), SPECIAL),
            method_of(None, schedule="few_rows"),
            EngineConfig(static=True),
        ),
    }.items():
        refused(rf"--cuda-graphs does not support .*{told}", make)
