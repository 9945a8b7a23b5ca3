"""A training that stops and goes on is the training that never stopped."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_plugins.formats.checkpoints import load_checkpoint
from specdec_plugins.training import fairseq_train as train
from tests.refusals import refused
from tests.training.conftest import SIZES, call_train

pytestmark = [pytest.mark.fairseq, pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

COMMON = shlex.split(
    "--optimizer adam --lr 1e-2 --clip-norm 1 --dropout 0.2 --max-tokens 20 --update-freq 2 "
    "--required-batch-size-multiple 1 --disable-validation --no-epoch-checkpoints --num-workers 0 "
    "--log-format none --cpu"
)
VERIFIER = shlex.split(
    "--task translation --arch transformer --criterion label_smoothed_cross_entropy "
    "--lr-scheduler polynomial_decay --warmup-updates 3 --total-num-update 40"
)
DRAFTER = shlex.split(
    "--task translation_lev_modified --arch block --noise block_mask --block-size 3 --criterion "
    "glat_loss --lr-scheduler inverse_sqrt --warmup-updates 3 --total-up 20 "
    "--store-ema --ema-fp32 --ema-decay 0.5 --ema-update-freq 3"
)


def trained(folder: Path, *flags: object) -> dict[str, Any]:
    """The state of a training after this call."""
    assert call_train(*flags, "--save-dir", folder) == 0
    return load_checkpoint(folder / "checkpoint_last.pt")


def numbers(state: dict[str, Any]) -> dict[str, Any]:
    """Weights, their running mean, and what the optimizer knows."""
    optimizer = state["last_optimizer_state"]
    return {
        "model": state["model"],
        "moments": optimizer["state"],
        "rates": [group["lr"] for group in optimizer["param_groups"]],
        "rest": {k: v for k, v in optimizer.items() if k not in ("state", "param_groups")},
        "mean": state["extra_state"].get("ema_fp32_params"),
    }


FP16 = ["--fp16", "--fp16-scale-window", "5", "--fp16-init-scale", "9999999"]  # overflows


@pytest.mark.parametrize(
    "flags",
    [VERIFIER, [*VERIFIER, "--bf16"], [*VERIFIER, *FP16], DRAFTER],
    ids=["verifier", "bf16", "fp16", "drafter"],
)
def test_three_pieces_are_one_training(flags: list[str], tmp_path: Path, data: Path) -> None:
    """Stopped in the middle of the second and of the third epoch."""
    command = [data, *COMMON, *SIZES, *flags]
    once = trained(tmp_path / "once", *command, "--max-update", 19)
    for updates in (10, 14, 19):
        pieces = trained(tmp_path / "pieces", *command, "--max-update", updates)
    torch.testing.assert_close(numbers(pieces), numbers(once), rtol=0, atol=0)


def test_a_checkpoint_in_16_bits_holds_the_weights_in_full(tmp_path: Path, data: Path) -> None:
    """Once, though model and optimizer have them."""
    state = trained(tmp_path, data, *COMMON, *SIZES, *VERIFIER, "--bf16", "--max-update", 2)
    model, whole = state["model"], state["last_optimizer_state"]["float32"]
    kept = {weight.data_ptr() for weight in model.values()}
    assert kept.issuperset(weight.data_ptr() for weight in whole)
    weight = model["encoder.layers.0.fc1.weight"]
    assert weight.bfloat16().float().ne(weight).float().mean() > 0.9


def test_weights_in_one_tensor_as_on_a_gpu_come_back_too(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specdec_plugins.training.trainer import FP16Optimizer

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    flags = [str(data), *COMMON, *SIZES, *VERIFIER, "--fp16"]
    cfg = train._settings(train.command_line(flags, {}))
    cfg.common.fp16_no_flatten_grads = False
    weights = [torch.nn.Parameter(torch.full(size, 0.5).half()) for size in ((2, 3), (4,))]
    before, after = (FP16Optimizer.build_optimizer(cfg, weights) for _ in range(2))
    (whole,) = before.fp32_params.values()
    whole.data.copy_(torch.arange(10) / 3)
    state = before.state_dict()
    assert [tuple(weight.shape) for weight in state["float32"]] == [(2, 3), (4,)]
    after.load_state_dict(state)
    assert after.fp32_params[0].equal(whole)


class _Machine:
    """The trainers of a number of workers, without their models."""

    def __init__(self, data: Path, num_workers: int, max_tokens: int) -> None:
        from fairseq import tasks

        from specdec_plugins.training.trainer import Trainer

        flags = [str(data), *COMMON, *SIZES, *VERIFIER, "--max-tokens", str(max_tokens)]
        cfg = train._settings(train.command_line(flags, {}))
        task = tasks.setup_task(cfg.task)
        model = task.build_model(cfg.model)

        class Worker(Trainer):
            data_parallel_world_size = num_workers
            use_distributed_wrapper = False

        self.workers = []
        for number in range(num_workers):
            rank = {"data_parallel_rank": number}
            criterion = task.build_criterion(cfg.criterion)
            self.workers.append(type("Ranked", (Worker,), rank)(cfg, task, model, criterion))

    def ids(self, state: dict[str, Any], most: int) -> tuple[list[int], dict[str, Any]]:
        """The sentences of this many steps, or of those left in the epoch; the state after it."""
        found = list[int]()
        states = []
        for worker in self.workers:
            batches = worker.get_train_iterator(state["epoch"])
            batches.load_state_dict(state)
            steps = batches.next_epoch_itr()
            for _, batch in zip(range(most), steps, strict=False):
                found += batch["id"].tolist() if batch else []
            states.append(batches.state_dict())
        assert len({step["iterations_in_epoch"] for step in states}) == 1
        return found, states[0]


def test_every_sentence_is_seen_once_an_epoch_by_any_number_of_workers(data: Path) -> None:
    sizes = [(1, 20), (2, 20), (2, 20), (3, 14), (1, 20)]
    machines = {size: _Machine(data, *size) for size in sizes}
    state: dict[str, Any] = {"epoch": 1}
    for epoch in (1, 2, 3):
        seen = list[int]()
        for size in sizes:
            ids, state = machines[size].ids(state, 1)
            seen += ids
        assert 0 < len(set(seen)) == len(seen) < 41
        ids, state = machines[1, 20].ids(state, 99)
        assert sorted(seen + ids) == list(range(41))
        assert state["epoch"] == epoch + 1


def test_the_epoch_after_one_with_other_batches_has_all_sentences(data: Path) -> None:
    _, state = _Machine(data, 1, 20).ids({"epoch": 1}, 2)
    batches = _Machine(data, 1, 14).workers[0].get_train_iterator(1)
    batches.load_state_dict(state)
    numbers = [sum(len(batch["id"]) for batch in batches.next_epoch_itr()) for _ in range(2)]
    assert 0 < numbers[0] < numbers[1] == 41
    next(batches.next_epoch_itr())
    state = batches.state_dict()
    assert (state["epoch"], state["sentences"]["before"]) == (3, None)


def test_other_data_in_the_middle_of_an_epoch_is_refused(data: Path) -> None:
    machine = _Machine(data, 1, 20)
    _, state = machine.ids({"epoch": 1}, 2)
    sentences = state["sentences"]["seen"].new_zeros(40)
    state["sentences"] |= {"seen": sentences, "before": sentences}
    refused("The data has 41 sentences, and 40 where this training stopped", machine.ids, state, 1)
