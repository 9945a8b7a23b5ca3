"""The task: what it refuses, what it masks in training and validation, and what it never loses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specdec_plugins.errors import UserError

pytestmark = pytest.mark.fairseq


@pytest.fixture
def make_task() -> Any:
    from specdec_plugins.formats.vocabularies import numbered_vocabularies
    from specdec_plugins.tasks.translation_lev_modified import (
        BlockTranslationConfig,
        BlockTranslationTask,
    )

    def make(**changes: Any) -> Any:
        both = numbered_vocabularies(30, 30)
        cfg = BlockTranslationConfig(
            data="none",
            source_lang="en",
            target_lang="de",
            left_pad_target=False,
            block_size=4,
            total_up=100,
            seed=1,
            max_source_positions=40,
            max_target_positions=40,
            train_subset="train",
        )
        for name, value in changes.items():
            setattr(cfg, name, value)
        return BlockTranslationTask(cfg, both.source_dictionary, both.target_dictionary)

    return make


def _dataset(task: Any, num_sentences: int) -> Any:
    """Sentence i holds i % 9 + 1 tokens and </s>; source and target are alike."""
    from fairseq.data import ListDataset
    from fairseq.data.language_pair_dataset import LanguagePairDataset

    rows = [torch.tensor([4 + i % 20] * (i % 9 + 1) + [2]) for i in range(num_sentences)]
    sizes = [len(row) for row in rows]
    return LanguagePairDataset(
        ListDataset(rows, sizes),
        sizes,
        task.src_dict,
        ListDataset(rows, sizes),
        sizes,
        task.tgt_dict,
        left_pad_source=False,
        shuffle=False,
    )


class _Recorder:
    """Stands for criterion and optimizer: keeps the sample, trains nothing."""

    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []

    def __call__(self, model: Any, sample: dict[str, Any]) -> tuple[Any, int, dict[str, Any]]:
        self.samples.append(sample)
        return torch.zeros(()), 1, {}

    def backward(self, loss: Any) -> None:
        pass


class _Model(torch.nn.Module):
    def set_num_updates(self, update: int) -> None:
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 0}, "--block-size is 0"),
        ({"noise": "random_delete"}, "--noise is random_delete, expected one of: block_mask"),
        ({"start_p": 0.1, "minus_p": 0.2}, "--start-p 0.1 is below --minus-p 0.2"),
        ({"start_p": 1.1}, "--start-p is 1.1"),
        ({"minus_p": -0.1}, "--minus-p is -0.1"),
        ({"total_up": 0}, "--total-up is 0"),
        ({"left_pad_source": True}, "--left-pad-source"),
        ({"eval_bleu": True}, "--eval-bleu"),
        ({"verifier_path": "v.pt"}, "--verifier-path is for --eval-block-decoding"),
        ({"eval_beta": 3}, "--eval-beta"),
        ({"eval_block_decoding": True, "eval_tau": 1.0}, "--eval-tau are about what a verifier"),
    ],
)
def test_impossible_settings_are_refused(
    make_task: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_task(**changes)


def _train(task: Any, sample: dict[str, Any], *updates: int) -> list[dict[str, Any]]:
    recorder = _Recorder()
    for update in updates:
        task.train_step(sample, _Model(), recorder, recorder, update)
    return recorder.samples


def test_training_masks_anew_but_repeats_itself_after_a_restart(make_task: Any) -> None:
    task = make_task()
    dataset = _dataset(task, 60)
    sample = dataset.collater([dataset[i] for i in range(60)])
    same_update = _train(task, sample, 7, 7, 8)
    prefixes = [s["blocks"].block_mask.float().argmax(dim=1) for s in same_update]
    assert not torch.equal(prefixes[0], prefixes[1])
    assert not torch.equal(prefixes[0], prefixes[2])
    (resumed,) = _train(make_task(), sample, 8)
    assert torch.equal(resumed["blocks"].input_tokens, same_update[2]["blocks"].input_tokens)
    assert resumed["glancing"].context_p == pytest.approx(0.5 - 0.2 * 8 / 100)


def test_validation_prefixes_do_not_depend_on_the_batch(make_task: Any) -> None:
    task, recorder = make_task(), _Recorder()
    dataset = _dataset(task, 20)
    for ids in (range(20), (13, 4)):
        task.valid_step(dataset.collater([dataset[i] for i in ids]), _Model(), recorder)
    whole, part = recorder.samples
    assert "glancing" not in whole

    def starts(sample: dict[str, Any]) -> dict[int, int]:
        first = sample["blocks"].block_mask.int().argmax(dim=1).tolist()
        return dict(zip(sample["id"].tolist(), first, strict=True))

    assert starts(part).items() <= starts(whole).items()
    assert len(set(starts(whole).values())) > 3


@pytest.mark.parametrize("num_sentences", [1, 7, 20, 103])
def test_no_validation_sentence_is_lost(make_task: Any, num_sentences: int) -> None:
    task = make_task()
    dataset = _dataset(task, num_sentences)
    task.datasets["valid"] = dataset
    iterator = task.get_batch_iterator(
        dataset, max_sentences=16, required_batch_size_multiple=8, max_positions=(40, 40)
    ).next_epoch_itr(shuffle=False)
    seen = [i for batch in iterator for i in batch["id"].tolist()]
    assert sorted(seen) == list(range(num_sentences))
