"""A round waits for a GPU once, a join once more: seen on the simulated accelerator, which also
refuses what a GPU refuses, and gives the CPU's texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from specdec_plugins.decoding import static
from specdec_plugins.decoding.beam import BeamDecoder
from specdec_plugins.decoding.constraints import FREE, Constraints
from specdec_plugins.decoding.contract import SCHEDULES
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.engine import EngineConfig, Method, SpeculativeDecoder
from specdec_plugins.decoding.networks import MedusaConfig, MedusaHeads
from specdec_plugins.decoding.requests import BeamParams, Request
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.verifier import TransformerVerifier
from tests.decoding.networks.toys import (
    VOCAB,
    block_drafter,
    fast_drafter,
    randomise,
    sentences,
    transformer,
)
from tests.decoding.toys import SPECIAL
from tests.gpu.conftest import SIMULATED

ALL = bool(torch.version.cuda)
pytestmark = pytest.mark.skipif(not SIMULATED, reason="DEVICE is not simulated")
CONSTRAINTS = Constraints(((1,), (5, 6), (4, 5)), no_repeat_ngram_size=2, forced_last=2)


def head_drafter(shortlist: bool) -> nn.Module:
    sizes = {"shortlist_common": 3, "shortlist_types": 2 * VOCAB} if shortlist else {}
    made = {"cached_prefix": True, "sequential_head": 12, "head_attention": 2, **sizes}
    network = block_drafter(copy_source=False, **made)
    if (lists := network.decoder.shortlist) is not None:
        lists.common[:] = torch.arange(2, 5)
        lists.starts[:] = 2 * torch.arange(VOCAB + 1)
        lists.types[:] = torch.arange(2 * VOCAB) * 5 % VOCAB
    return network


def heads() -> nn.Module:
    return randomise(MedusaHeads(MedusaConfig(num_heads=4, dim=16)), seed=1)


# By name: the network, and what else the drafter is built from.
BUILT: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "none": ("", None, {}),
    "block": ("block", block_drafter, {}),
    "block, fast": ("block", lambda: fast_drafter(transformer()), {}),
    "block, head": ("block", lambda: head_drafter(False), {"confidence": 0.3}),
    "block, shortlist": ("block", lambda: head_drafter(True), {}),
    "assistant": ("assistant", lambda: transformer(5), {"confidence": 0.2}),
    "assistant, reading": ("assistant", lambda: transformer(5), {"encoder": "verifier"}),
    "medusa": ("medusa", heads, {}),
    "early_exit": ("early_exit", None, {"exit_layer": 1}),
    "lookup": ("lookup", None, {}),
}
GIVEN = {"top_beta": {"beta": 3, "tau": 1.0}, "speculative_sampling": {"top_k": 4, "seed": 3}}
LISTED = "block, shortlist"
STATIC = "constant, in rounds of fixed shapes"
FIXED = [name for name, (drafter, *_) in BUILT.items() if drafter in ("", "block")]
NGRAM = {"no_repeat_ngram_size": 2, "banned": (7,), "with_scores": True}


def cases() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Drafter, rule or `beam`, schedule, and parameters; with CUDA's own rules all of them."""
    rules, schedules = RULES.names(), SCHEDULES.names()
    for name, rule, schedule in product(BUILT, rules, schedules):
        plain = (rule == "exact") + (schedule == "constant")
        first = name == LISTED or (name == "assistant" and schedule == "constant")
        if ALL or plain == 2 or (first and plain == 1):
            yield name, rule, schedule, GIVEN.get(rule, {})
        if schedule == "constant" and rule in ("exact", "top_beta") and name in FIXED:
            yield name, rule, STATIC, GIVEN.get(rule, {})
    yield "block", "exact", "constant", NGRAM
    for size in (1, 3):
        yield "none", "beam", "constant", {"beam": BeamParams(size)}
    yield "none", "beam", "constant", {"beam": BeamParams(3, unknown_penalty=1.0), **NGRAM}


def decoder_of(name: str, rule: str, schedule: str, device: str, constraints: Constraints) -> Any:
    """A decoder of toys on a device."""
    drafts, make, options = BUILT[name]
    is_static, schedule = schedule == STATIC, schedule.split(",")[0]
    own = EngineConfig(max_rows=2, compact_at=0.01, constraints=constraints, static=is_static)
    verifier = TransformerVerifier(transformer().to(device), SPECIAL)
    if rule == "beam":
        return BeamDecoder(verifier, own)
    rules, drafter = RULES.get(rule)(), None
    if drafts:
        context = DraftContext(verifier, make and make().to(device), sampling=rules.samples)
        drafter = DRAFTERS.build(drafts, context, options=options)
    schedules = SCHEDULES.build(schedule, options={"rows": 1} if schedule == "few_rows" else {})
    return SpeculativeDecoder(verifier, Method(drafter, rules, schedules), own)


def walked(decoder: Any, requests: list[Request]) -> tuple[dict[str, Any], list[list[Any]]]:
    """The texts, and what was found in each round."""
    from tests.gpu.accelerator import FOUND

    texts, found = dict[str, Any](), list[list[Any]]()
    with decoder.session(requests) as session:
        FOUND.clear()
        while len(session):
            texts |= {e.id: e.result.token_ids for e in session.step() if e.result}
            found.append(FOUND.copy())
            FOUND.clear()
    return texts, found


@pytest.mark.parametrize(("name", "rule", "schedule", "given"), [*cases()], ids=str)
def test_a_round_copies_once_to_the_host_and_a_join_once_more(
    name: str, rule: str, schedule: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.gpu.accelerator import COPY, KIND, accelerator

    monkeypatch.setattr(static, "recorded", lambda compute, *_: compute)  # it has no graphs
    own = CONSTRAINTS if given is NGRAM or schedule == STATIC else FREE
    lengths = {"block_size": 3, "max_len": lambda i: 3 + i}
    jobs = sentences(3, lambda i: 2 * (i == 1), **lengths, **given)
    if "beam" in given:
        jobs[0] = replace(jobs[0], required_ids=[[9, 8]])
    here, _ = walked(decoder_of(name, rule, schedule, "cpu", own), jobs)
    place = f"{KIND}:1" if name == LISTED else KIND
    with accelerator():
        there, found = walked(decoder_of(name, rule, schedule, place, own), jobs)
    assert there == here
    for waits in found:
        assert {wait.what for wait in waits} == {COPY}, waits
        joined = [wait for wait in waits if wait.place.endswith(("admit", "_count_forced"))]
        assert len(waits) - len(joined) == 1, waits
        assert len(joined) <= 1, waits
    assert len([1 for waits in found if len(waits) > 1]) <= len(jobs)


def test_what_a_gpu_refuses_is_refused() -> None:
    from tests.gpu.accelerator import FOUND, KIND, SHAPE, UPLOAD, accelerator

    with accelerator():
        there, here, index = torch.zeros(3, device=KIND), torch.ones(3), torch.tensor([1, 2])
        FOUND.clear()
        assert there[index].device == there.device  # as on CUDA
        assert there.nonzero().shape == (0, 1)
        assert [found.what for found in FOUND] == [UPLOAD, SHAPE]
        for mix in (
            lambda: there + here,
            lambda: there + torch.zeros(3, device=f"{KIND}:1"),
            lambda: here[index.to(there.device)],
            lambda: there.index_put((index,), here[:2]),
        ):
            with pytest.raises(RuntimeError, match=r"two devices|between self|is indexed from"):
                mix()


def test_a_servers_worker_decodes_there_in_its_own_thread() -> None:
    for needed in ("fastapi", "httptools", "prometheus_client"):
        pytest.importorskip(needed)
    from specdec_plugins.serving.metrics import Metrics
    from specdec_plugins.serving.settings import ServerSettings
    from specdec_plugins.serving.worker import BatchWorker
    from tests.gpu.accelerator import KIND, in_threads
    from tests.serving.test_worker import Inbox

    jobs = sentences(3, block_size=3, max_len=4)
    here, _ = walked(decoder_of(LISTED, "exact", "constant", "cpu", FREE), jobs)
    with in_threads():
        decoder = decoder_of(LISTED, "exact", "constant", KIND, FREE)
        worker = BatchWorker(decoder.open, ServerSettings(max_rows=2), Metrics())
        inbox = Inbox(*"456")
        for row, job in zip(inbox.rows, jobs, strict=True):
            row.request = replace(job, id=row.request.id)
        worker.start()
        worker.submit(inbox)
        assert inbox.done.wait(300)
        assert worker.close(60)
    assert inbox.ids() == [here[job.id] for job in jobs]
