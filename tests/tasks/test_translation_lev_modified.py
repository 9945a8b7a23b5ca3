"""The task: what it refuses, what it masks, what it never loses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from fairseq.data import ListDataset
from fairseq.data.language_pair_dataset import LanguagePairDataset
from fairseq.tasks.translation import TranslationTask

from specdec_plugins.tasks.translation_lev_modified import (
    BlockTranslationConfig,
    BlockTranslationTask,
)
from specdec_plugins.training.initialise import numbered_dictionaries
from tests.refusals import refused

pytestmark = pytest.mark.fairseq


def make_task(**changes: Any) -> Any:
    both = numbered_dictionaries(30, 30)
    values = {"data": "none", "source_lang": "en", "target_lang": "de", "train_subset": "train"}
    positions = {"max_source_positions": 40, "max_target_positions": 40, "left_pad_target": False}
    cfg = BlockTranslationConfig(**values, **positions, block_size=4, total_up=100, seed=1)
    for name, value in changes.items():
        setattr(cfg, name, value)
    return BlockTranslationTask(cfg, both.source_dictionary, both.target_dictionary)


def _dataset(task: Any, num_sentences: int) -> Any:
    """Sentence i holds i % 9 + 1 tokens and </s>; source and target are alike."""
    rows = [torch.tensor([4 + i % 20] * (i % 9 + 1) + [2]) for i in range(num_sentences)]
    sizes = [len(row) for row in rows]
    source, target = ((ListDataset(rows, sizes), sizes, d) for d in (task.src_dict, task.tgt_dict))
    return LanguagePairDataset(*source, *target, left_pad_source=False, shuffle=False)


def _batch(task: Any, ids: Sequence[int]) -> dict[str, Any]:
    dataset = _dataset(task, 60)
    return dataset.collater([dataset[i] for i in ids])


def _step(task: Any, sample: dict[str, Any], update: int | None = None) -> dict[str, Any]:
    """What criterion and model get in a training step, or in one of validation; none trains."""
    criterion = Mock(return_value=(torch.zeros(()), 1, {}))
    if update is None:
        task.valid_step(sample, Mock(), criterion)
    else:
        task.train_step(sample, Mock(), criterion, Mock(), update)
    return criterion.call_args.args[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 0}, "--block-size is 0"),
        ({"start_p": 0.1, "minus_p": 0.2}, "--start-p 0.1 is below --minus-p 0.2"),
        ({"start_p": 1.1}, "--start-p is 1.1"),
        ({"minus_p": -0.1}, "--minus-p is -0.1"),
        ({"total_up": 0}, "--total-up is 0"),
        ({"left_pad_source": True}, "--left-pad-source"),
        ({"eval_bleu": True}, "--eval-bleu"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    refused(message, make_task, **changes)


@pytest.mark.parametrize(("block_size", "split", "said"), [
    (10, "train", False), (11, "train", True), (11, "valid", False),
])  # fmt: skip
def test_blocks_that_no_target_fills_are_said(
    block_size: int,
    split: str,
    said: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = make_task(block_size=block_size)
    loaded = _dataset(task, 60)  # of at most 10 tokens
    monkeypatch.setattr(
        TranslationTask, "load_dataset", lambda self, *given: self.datasets.update({split: loaded})
    )
    task.load_dataset(split)
    assert ("--block-size 11: only 0.0 % of the targets" in caplog.text) == said


def test_training_masks_anew_but_repeats_itself_after_a_restart() -> None:
    task = make_task()
    sample = _batch(task, range(60))
    same_update = [_step(task, sample, update) for update in (7, 7, 8)]
    prefixes = [s["blocks"].scored_mask.float().argmax(dim=1) for s in same_update]
    assert not torch.equal(prefixes[0], prefixes[1])
    assert not torch.equal(prefixes[0], prefixes[2])
    resumed = _step(make_task(), sample, 8)
    assert torch.equal(resumed["blocks"].input_tokens, same_update[2]["blocks"].input_tokens)
    assert resumed["glancing"].context_p == pytest.approx(0.5 - 0.2 * 8 / 100)


def test_validation_prefixes_do_not_depend_on_the_batch() -> None:
    task = make_task()
    whole, part = (_step(task, _batch(task, ids)) for ids in (range(20), (13, 4)))
    assert "glancing" not in whole

    def starts(sample: dict[str, Any]) -> dict[int, int]:
        first = sample["blocks"].scored_mask.int().argmax(dim=1).tolist()
        return dict(zip(sample["id"].tolist(), first, strict=True))

    assert starts(part).items() <= starts(whole).items()
    assert len(set(starts(whole).values())) > 3


@pytest.mark.parametrize("num_sentences", [1, 7, 20, 103])
def test_no_validation_sentence_is_lost(num_sentences: int) -> None:
    task = make_task()
    dataset = _dataset(task, num_sentences)
    task.datasets["valid"] = dataset
    iterator = task.get_batch_iterator(
        dataset, max_sentences=16, required_batch_size_multiple=8, max_positions=(40, 40)
    ).next_epoch_itr(shuffle=False)
    seen = [i for batch in iterator for i in batch["id"].tolist()]
    assert sorted(seen) == list(range(num_sentences))
