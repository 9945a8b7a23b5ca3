"""The loop that trains a drafter: what it learns from, that it goes on as if never stopped."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, multiprocessing
from torch.nn import functional as F

from specdec_plugins.decoding.networks import BlockDrafter, Transformer
from specdec_plugins.decoding.networks.transformer import same_encoder
from specdec_plugins.errors import Stopped
from specdec_plugins.formats.checkpoints import load_checkpoint
from specdec_plugins.formats.indexed import SentenceWriter
from specdec_plugins.formats.models import read_model
from specdec_plugins.training import drafter as loop
from specdec_plugins.training import networks
from specdec_plugins.training.drafter import Encoded, Plan, Training
from specdec_plugins.training.objective import (
    LIKELY,
    Likely,
    Objective,
    ProjectedLoss,
    Teacher,
    cut_blocks,
    draw_starts,
)
from tests.bundles import BUNDLED, ROOT, WITHOUT_FAIRSEQ
from tests.decoding.networks.toys import full_logits, transformer
from tests.formats.pretrained.measured import memory
from tests.refusals import refused

VERIFIER = ROOT / "tests" / "regression" / "earlier" / "verifier.pt"
NUM_TYPES, CPU = 16, torch.device("cpu")
MASK, PAD, EOS = 3, 1, 2


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """21 sentences of 1 to 7 tokens, and their reversals, in batches of 4."""
    data = tmp_path / "data"
    data.mkdir()
    for side in ("source", "target"):
        symbols = "".join(f"{n} 1\n" for n in range(4, NUM_TYPES))
        (data / f"dict.{side}.txt").write_text(symbols)
        with SentenceWriter(data / f"train.source-target.{side}", NUM_TYPES) as writer:
            for n in range(21):
                ids = [4 + (n * 5 + k * k) % 12 for k in range(n % 7 + 1)]
                writer.add([*(ids if side == "source" else ids[::-1]), EOS])
    settings: dict[str, Any] = {"precision": "fp32", "device": "cpu", "rows": 4, "block_size": 3}
    return Plan(VERIFIER, data, tmp_path / "training", EOS, 1.0, updates=9, **settings)


def measured(path: Path) -> dict[str, float]:
    assert path.is_file()
    return {"accepted": 1.0}


def fresh(block_size: int = 3) -> BlockDrafter:
    """A drafter whose head and copying do something."""
    made = networks.new_drafter(read_model(VERIFIER), block_size, seed=1)
    chance = torch.Generator().manual_seed(2)
    for weight in made.parameters():
        if weight.requires_grad:
            weight.data += 0.1 * torch.randn(weight.shape, generator=chance)
    return made


TARGETS = torch.tensor([[5, 6, 7, 3, 9, 10, 2], [8, 9, 2, 1, 1, 1, 1], [11, 12, 13, 14, 2, 1, 1]])
SOURCES = torch.tensor([[5, 6, 7, 2, 1], [8, 9, 3, 5, 2], [4, 2, 1, 1, 1]])
STARTS = torch.tensor([[0, 1, 3, 5], [0, 1, 2, 0], [3, 0, 1, 2]])


def test_the_loss_is_half_of_the_targets_and_half_of_what_is_likely() -> None:
    """The value for the targets is that of fairseq's modules with these weights and blocks."""
    objective = Objective(fresh())
    encoded, given = objective.network.encoder(SOURCES), (STARTS, 3, MASK, PAD, EOS)
    chance = torch.Generator().manual_seed(3)
    others = torch.randint(4, NUM_TYPES, TARGETS.shape, generator=chance)

    def loss(types: Tensor, targets: Tensor = TARGETS) -> float:
        """Where the second of two tokens has no chance."""
        likely = Likely(torch.stack([types, others], -1), torch.tensor([1.0, 0]).expand(3, 7, 2))
        blocks = cut_blocks(TARGETS, *given)._replace(answers=cut_blocks(targets, *given).answers)
        return float(objective(SOURCES, encoded, blocks, likely))

    assert loss(TARGETS) == pytest.approx(4.554405, abs=1e-5)
    ends = torch.where(TARGETS == PAD, PAD, others)
    assert loss(others) == pytest.approx((loss(TARGETS) + loss(others, ends)) / 2, abs=1e-5)


def test_what_is_likely_is_what_the_verifier_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_plugins.training.objective._ROWS", {"cpu": 4})
    monkeypatch.setattr("specdec_plugins.training.objective._LOGITS", {"cpu": 0})
    network = transformer().eval()
    states, padding_mask = network.encoder(SOURCES)
    types, chances = Teacher(network, EOS)((states, padding_mask), TARGETS)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        source, target = source[source != PAD], target[target != PAD]
        before = torch.cat([torch.tensor([EOS]), target[:-1]])[None]
        wanted = full_logits(network, source[None], before)[0].softmax(-1).topk(LIKELY)
        shares = wanted.values / wanted.values.sum(-1, keepdim=True)
        torch.testing.assert_close(chances[row, : len(target)].double(), shares.double())
        assert torch.equal(types[row, : len(target)], wanted.indices)


def test_blocks_share_a_prefix_as_the_example_says() -> None:
    made = cut_blocks(torch.tensor([[4, 5, 6, EOS]]), torch.tensor([[1, 2]]), 2, MASK, PAD, 9)
    assert made.tokens.tolist() == [[4, 5, 3, 3, 3, 3]]
    assert made.positions.tolist() == [[0, 1, 1, 2, 2, 3]]
    assert made.answers.tolist() == [[5, 6, 6, EOS]]
    assert made.before.tolist() == [[4, 5, 5, 6]]
    rows = ["".join(".1"[int(seen)] for seen in row) for row in made.seen_mask[0]]
    assert rows == ["1.....", "11....", "1.11..", "1.11..", "11..11", "11..11"]
    first = cut_blocks(torch.tensor([[4, EOS]]), torch.tensor([[0, 0]]), 3, MASK, PAD, 9)
    assert first.before.tolist() == [[9, 4, EOS] * 2]
    assert first.answers.tolist() == [[4, EOS, PAD] * 2]


def test_each_block_is_computed_as_in_decoding() -> None:
    network = fresh().double().eval().requires_grad_(False)
    states, padding_mask = network.encoder(SOURCES)
    memory = network.memory(SOURCES, (~padding_mask).sum(1), states, padding_mask)
    blocks = cut_blocks(TARGETS, STARTS, 3, MASK, PAD, EOS)
    mask = torch.zeros(blocks.seen_mask.shape, dtype=torch.float64)
    mask.masked_fill_(~blocks.seen_mask, -math.inf)
    together = network.decoder.through(
        blocks.tokens, blocks.positions, mask[:, None], memory, slice(5, 17)
    )
    for n, starts in enumerate(STARTS.T):
        rows = [[*row[:k], *[MASK] * 3] for row, k in zip(TARGETS.tolist(), starts, strict=True)]
        width = max(map(len, rows))
        tokens = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
        columns = starts[:, None] + torch.arange(3)
        alone = network.decoder(tokens, memory, columns, starts)
        torch.testing.assert_close(together[:, 3 * n : 3 * n + 3], alone)


def test_a_sentence_is_encoded_once_while_there_is_room() -> None:
    encoder, calls = fresh().encoder, []
    encoder.register_forward_pre_hook(lambda _, given: calls.append(len(given[0])))
    width = encoder.embedding.tokens.embedding_dim * 4  # bytes of a token
    encoded = Encoded(encoder, 8 * width)
    states, padding_mask = encoded([7, 3, 0], SOURCES, PAD)  # 4, 5 and 2 tokens
    assert padding_mask.tolist() == (SOURCES == PAD).tolist()
    again, same_mask = encoded([3, 7], SOURCES[[1, 0]], PAD)
    assert calls == [3]
    torch.testing.assert_close(again[~same_mask], states[[1, 0]][~padding_mask[[1, 0]]])
    encoded([3, 0], SOURCES[[1, 2]], PAD)  # there was no room for the last
    encoded([0], SOURCES[2:], PAD)
    assert calls == [3, 2, 1]


@pytest.mark.parametrize("frozen", [True, False])
def test_the_projected_loss_is_that_of_all_logits(
    frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec_plugins.training.objective._ROWS", {"cpu": 2})
    monkeypatch.setattr("specdec_plugins.training.objective._LOGITS", {"cpu": 3 * 11})
    chance = torch.Generator().manual_seed(0)
    states, weight = (torch.randn(n, 5, generator=chance).double() for n in (8, 11))
    targets = torch.randint(11, (8, 3), generator=chance)
    chances = torch.rand(8, 3, generator=chance).double().softmax(1)
    spread = torch.zeros(8, 11).double().scatter_add_(1, targets, chances)
    pairs: list[tuple[Tensor, Tensor | None, Tensor]] = []
    for compute in (
        lambda x, w: ProjectedLoss.apply(x, w, targets, chances, 0.1 / 11)[0] / 8,
        lambda x, w: F.cross_entropy(x @ w.T, spread, label_smoothing=0.1),
    ):
        x, w = states.clone().requires_grad_(), weight.clone().requires_grad_(not frozen)
        loss = compute(x, w)
        (7 * loss).backward()
        assert x.grad is not None
        pairs.append((x.grad, w.grad, loss.detach()))
    torch.testing.assert_close(*pairs)


def test_starts_leave_a_token_and_reach_every_place() -> None:
    chance = torch.Generator().manual_seed(0)
    starts = draw_starts(torch.tensor([1, 6] * 50), 4, chance)
    assert starts[::2].unique().tolist() == [0]
    assert starts[1::2].unique().tolist() == [*range(6)]


def weights(folder: Path) -> dict[str, Any]:
    state = load_checkpoint(folder / loop.LAST)
    tensors = {f"{kind} {n}": t for kind in ("model", "mean") for n, t in state[kind].items()}
    for n, moments in state["optimizer"]["state"].items():
        tensors |= {f"{n} {name}": value for name, value in moments.items()}
    return tensors


def assert_same(first: Path, second: Path) -> None:
    found, wanted = weights(first), weights(second)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


class Interrupted(Training):
    """Gets a signal during its fifth update, in the process `struck`."""

    struck = 0

    def _step(self) -> None:
        super()._step()
        if self.update == 5 and self.rank == self.struck:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_stopped_and_resumed_it_ends_as_if_never_stopped(precision: str, plan: Plan) -> None:
    plan = replace(plan, precision=precision)
    Training(plan).run(measured)
    stopped = replace(plan, folder=plan.folder.with_name("stopped"))
    with pytest.raises(Stopped) as ended:
        Interrupted(stopped).run(measured)
    assert ended.value.status == 143
    again = Training(stopped)
    assert again.update == 5
    again.run(measured)
    assert_same(stopped.folder, plan.folder)
    assert again.epoch == 1  # the interruption was in the first of two


class InOneOfTwo(Interrupted):
    struck = 1


def _worker(rank: int, kind: type[Training], plan: Plan, statuses: Tensor) -> None:
    torch.set_num_threads(1)
    store = f"file://{plan.folder.with_name('store')}"
    loop.connect("cpu", init_method=store, rank=rank, world_size=2)
    try:
        kind(plan).run(measured)
    except Stopped as stopped:
        statuses[rank] = stopped.status
    distributed.destroy_process_group()


def in_two(kind: type[Training], plan: Plan) -> list[int]:
    plan.folder.with_name("store").unlink(missing_ok=True)
    statuses = torch.zeros(2, dtype=torch.int64).share_memory_()
    # Processes of this server need not import torch anew.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", __name__])
    start = {"nprocs": 2, "start_method": "forkserver"}
    multiprocessing.start_processes(_worker, (kind, plan, statuses), **start)
    return statuses.tolist()


def test_two_processes_stop_together_and_go_on_as_if_never_stopped(plan: Plan) -> None:
    assert in_two(Training, plan) == [0, 0]
    stopped = replace(plan, folder=plan.folder.with_name("stopped"))
    assert in_two(InOneOfTwo, stopped) == [143, 143]
    assert load_checkpoint(stopped.folder / loop.LAST)["update"] == 5
    assert in_two(Training, stopped) == [0, 0]
    assert_same(stopped.folder, plan.folder)
    # They share the sentences: six batches an epoch, two of them an update.
    assert load_checkpoint(plan.folder / loop.LAST)["epoch"] == 2


def test_one_process_for_each_gpu_trains_as_torchrun_does(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    loop._spawn(plan, measured, 2)
    assert load_checkpoint(plan.folder / loop.LAST)["update"] == 9
    assert (plan.folder / loop.BEST).is_file()


def test_it_learns_and_what_it_writes_decodes(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_FROM", 20)
    training = Training(replace(plan, updates=150, lr=1e-2, warmup=10, dropout=0.0))
    losses = []
    training._step()
    losses.append(float(training.loss))
    training.run(measured)
    losses.append(float(training.loss))
    assert losses[1] < losses[0] - 1
    verifier, made = (
        read_model(path).network(torch.float32, CPU) for path in (VERIFIER, plan.folder / loop.BEST)
    )
    assert isinstance(verifier, Transformer)
    assert isinstance(made, BlockDrafter)
    assert same_encoder(verifier.encoder, made.encoder)
    assert made.config.cached_prefix
    assert made.config.shortlist_common > 0
    state = made.state_dict()
    for name, mean in training.mean.items():
        assert torch.equal(state[name], mean), name
    assert not torch.equal(state["decoder.copy.weight"], training.learnt["decoder.copy.weight"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of a process")
def test_the_process_gives_memory_back_again_afterwards(plan: Plan) -> None:
    Training(plan).run(measured)
    before = memory("VmSize")
    block = torch.empty(2**28)  # of 1 GB, which nothing writes to
    del block
    assert memory("VmSize") - before < 2**28


def listed(state: Mapping[str, Tensor]) -> set[tuple[int, int]]:
    """Source and target types of a drafter's shortlist."""
    starts, types = (state[f"decoder.shortlist.{name}"] for name in ("starts", "types"))
    rows = torch.arange(len(starts) - 1).repeat_interleave(starts.diff())
    return set(zip(rows.tolist(), types.tolist(), strict=True))


def test_it_goes_on_from_an_earlier_drafter(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Training(plan)
    first.run(measured)
    earlier = plan.folder / loop.BEST
    further = Training(replace(plan, folder=plan.folder.with_name("further"), start=earlier))
    learnt = read_model(earlier).network(torch.float32, CPU).state_dict()
    for name, weight in further.learnt.items():
        assert torch.equal(weight, learnt[name]), name
    monkeypatch.setattr(networks, "_PAIRS", 1)  # a text that lists less
    found = iter([2.0, *[1.0] * 9])  # the first is of what it starts from
    further.run(lambda path: {"accepted": next(found)})
    assert [point["updates"] for point in further.curve.entries][:2] == [0, 9]
    rates = [t.optimizer.param_groups[0]["lr"] for t in (first, further)]
    assert rates[1] < rates[0] / 2  # as more would undo what it knows
    kept = read_model(further.plan.folder / loop.BEST).network(torch.float32, CPU).state_dict()
    for name in further.learnt:
        assert torch.equal(kept[name], learnt[name]), name
    assert listed(learnt) <= listed(kept)
    refused(f"--from {BUNDLED}: its decoder", Training, replace(plan, start=BUNDLED))


@pytest.mark.parametrize(
    ("accepted", "is_over"),
    [
        ([], False),
        ([1.0, 2.0, 2.0, 2.005], False),
        ([1.0, 2.0, 2.0, 2.005, 1.9], True),  # three behind the best
        ([1.0, 2.0, 2.0, 2.1, 2.0], False),
    ],
)
def test_it_ends_where_more_training_brings_no_more(
    accepted: list[float], is_over: bool, plan: Plan
) -> None:
    training = Training(replace(plan, patience=3))
    for n, value in enumerate(accepted):
        training.curve.add({"hours": 0.2 * (n + 1), "updates": n + 1, "accepted": value})
    assert training.is_over == is_over
    assert Training(plan).curve.entries == training.curve.entries


def test_hours_end_it_too_and_the_best_is_kept(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which an update takes 0.1 s, whatever else this machine does."""
    monkeypatch.setattr(loop, "Watch", lambda: SimpleNamespace(seconds=0.1))
    plan = replace(plan, updates=None, hours=3e-4, every=1e-4)
    found = iter([1.0, 3.0, *[2.0] * 9])
    training = Training(plan)
    training.run(lambda path: {"accepted": next(found)})
    assert [point["accepted"] for point in training.curve.entries][:3] == [1.0, 3.0, 2.0]
    assert training.progress >= 1
    assert training.curve.entries[-1]["updates"] == training.update
    best = load_checkpoint(plan.folder / loop.BEST)["model"]["decoder.copy_attn.weight"]
    last = load_checkpoint(plan.folder / loop.LAST)["mean"]["decoder.copy.weight"]
    assert not torch.equal(best, last)


def test_a_diverged_training_says_so_and_keeps_what_was_saved(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    Training(replace(plan, updates=11)).run(measured)
    before = (plan.folder / loop.LAST).read_bytes()
    for last, seen in ((14, 14), (25, 20)):  # where it would be saved, or where it is shown
        training = Training(replace(plan, updates=last))
        next(iter(training.learnt.values())).data.fill_(math.nan)
        refused(f"update {seen}: the loss is NaN or infinite", training.run, measured)
        assert (plan.folder / loop.LAST).read_bytes() == before


def test_a_board_gets_the_figures_if_asked(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(plan, updates=20, tensorboard_logdir=plan.folder / "board")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    refused("tensorboard is not installed; pip install tensorboard", Training, plan)
    told = list[tuple[str, int]]()
    board = Namespace(add_scalar=lambda name, value, update: told.append((name, update)))
    module = Namespace(SummaryWriter=lambda folder: board)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    Training(plan).run(measured)
    assert told == [("loss", 10), ("lr", 10), ("loss", 20), ("lr", 20), ("accepted", 20)]


def test_data_without_sentences_is_refused(plan: Plan) -> None:
    for side in ("source", "target"):
        with SentenceWriter(plan.data / f"train.source-target.{side}", NUM_TYPES):
            pass
    refused("there is no sentence to train on", Training, plan)


def test_it_needs_no_fairseq(plan: Plan) -> None:
    verifier = ROOT / "data" / "models" / "en-ro" / "verifier.safetensors"
    code = f"""{WITHOUT_FAIRSEQ}
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from specdec_plugins.training.drafter import Plan, Training
made = Training(Plan(Path({str(verifier)!r}), Path({str(plan.data)!r}),
                     Path({str(plan.folder)!r}), 2, 1.0, updates=1, device="cpu"))
made._step()
assert made.update == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_what_a_cpu_multiplies_is_what_its_flags_say() -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    assert loop.multiplies_bfloat16() == bool({"avx512_bf16", "amx_bf16"} & set(flags))
