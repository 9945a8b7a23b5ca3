"""The task: what it refuses, what it masks, what it never loses, and validation by decoding."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from fairseq.data import ListDataset
from fairseq.data.language_pair_dataset import LanguagePairDataset
from fairseq.logging import metrics
from fairseq.tasks.translation import TranslationTask
from sacrebleu import corpus_bleu

from specdec_plugins.decoding.networks.cache import SourceMemory
from specdec_plugins.decoding.requests import DecodeParams
from specdec_plugins.formats.checkpoints import save_checkpoint
from specdec_plugins.models.block_decoder import Layout
from specdec_plugins.tasks.evaluation import (
    BeamEvaluation,
    BlockEvaluation,
    inference_twin,
    log_figures,
    verifier_twin,
)
from specdec_plugins.tasks.translation_lev_modified import (
    BlockTranslationConfig,
    BlockTranslationTask,
)
from specdec_plugins.training.initialise import numbered_dictionaries
from tests.fairseq_models import build_drafter, build_verifier
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
        ({"noise": "random_delete"}, "--noise is random_delete, expected one of: block_mask"),
        ({"start_p": 0.1, "minus_p": 0.2}, "--start-p 0.1 is below --minus-p 0.2"),
        ({"start_p": 1.1}, "--start-p is 1.1"),
        ({"minus_p": -0.1}, "--minus-p is -0.1"),
        ({"total_up": 0}, "--total-up is 0"),
        ({"left_pad_source": True}, "--left-pad-source"),
        ({"eval_bleu": True}, "--eval-bleu"),
        ({"verifier_path": "v.pt"}, "--verifier-path needs --eval-block-decoding"),
        ({"eval_beta": 3}, "--eval-beta"),
        ({"eval_block_decoding": True, "eval_tau": 1.0}, "--eval-tau set what a verifier"),
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


SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, 1, 1], [11, 12, 13, 2, 1]])
LENGTHS = torch.tensor([5, 3, 4])
SAMPLE = {"net_input": {"src_tokens": SOURCE, "src_lengths": LENGTHS}}


def _verifier(path: Path) -> Any:
    """Written to a file; positions bound what a model without training decodes."""
    model, args = build_verifier(max_target_positions=12, max_source_positions=12)
    save_checkpoint({"model": model.state_dict(), "args": args, "cfg": None}, path)
    return model.eval()


def _evaluation(path: Path | None, num_types: int = 30, **settings: Any) -> Any:
    both = numbered_dictionaries(num_types, num_types)
    return BlockEvaluation(
        path and str(path),
        DecodeParams(3, **settings),
        both.source_dictionary,
        both.target_dictionary,
    )


def _greedy(model: Any, row: int) -> list[int]:
    """One token at a time, by fairseq's own modules."""
    source = SOURCE[row : row + 1, : LENGTHS[row]]
    tokens = [2]
    with torch.no_grad():
        encoded = model.encoder(source, LENGTHS[row : row + 1])
        while len(tokens) == 1 or (tokens[-1] != 2 and len(tokens) <= 12):
            logits = model.decoder(torch.tensor([tokens]), encoder_out=encoded)[0]
            tokens.append(int(logits[0, -1].argmax()))
    return tokens[1:]


def test_with_beta_1_the_output_is_the_verifier_s(tmp_path: Path) -> None:
    model = _verifier(tmp_path / "v.pt")
    evaluation = _evaluation(tmp_path / "v.pt")
    evaluation.refresh(build_drafter())
    hypotheses = evaluation.generate(None, SAMPLE)
    expected = [_greedy(model, row) for row in range(3)]
    assert [h[0]["tokens"].tolist() for h in hypotheses] == expected
    assert evaluation.stats.emitted == sum(len(tokens) for tokens in expected)


def test_refresh_takes_the_weights_of_the_moment(tmp_path: Path) -> None:
    """With every token tolerated, the output is the drafter's: it must follow its weights."""
    _verifier(tmp_path / "v.pt")
    evaluation = _evaluation(tmp_path / "v.pt", beta=30, tau=1e6)
    outputs = []
    for seed in (0, 1):
        evaluation.refresh(build_drafter(seed=seed, apply_bert_init=False))
        outputs.append([h[0]["tokens"].tolist() for h in evaluation.generate(None, SAMPLE)])
    assert outputs[0] != outputs[1]


def test_without_a_verifier_the_drafter_decodes_alone() -> None:
    """The first block of each row, against the network that is being trained."""
    model = build_drafter(apply_bert_init=False)
    evaluation = _evaluation(None)
    evaluation.refresh(model)
    hypotheses = evaluation.generate(None, SAMPLE)
    model.eval()
    for row, (hypothesis,) in enumerate(hypotheses):
        source = SOURCE[row : row + 1, : LENGTHS[row]]
        masks = torch.full((1, 3), 3)
        with torch.no_grad():
            encoded = model.encoder(source, src_lengths=LENGTHS[row : row + 1])
            copied = model._copy_source(source, encoded)
            states = model.decoder(masks, encoded, *copied, Layout.find(masks == 3).columns)
            block = model.decoder.output_layer(states)[0].argmax(-1).tolist()
        until_end = block[: block.index(2) + 1] if 2 in block else block
        assert hypothesis["tokens"].tolist()[:3] == until_end


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam": 3, "max_len_a": 1, "max_len_b": 4, "lenpen": 0.3, "unkpen": -9},
        {"beam": 4, "max_len_b": 9, "min_len": 3, "unnormalized": True},
    ],
)
def test_a_verifier_is_searched_as_by_fairseq(options: dict[str, Any], tmp_path: Path) -> None:
    """Its weights of the moment; sources padded on the left, as fairseq's task has them."""
    model, task = _verifier(tmp_path / "v.pt"), make_task()
    with torch.no_grad():
        model.decoder.embed_tokens.weight[2] *= 9  # so that texts end
    rows = [row[:length] for row, length in zip(SOURCE, LENGTHS, strict=True)]
    left = torch.stack([torch.cat([row.new_ones(5 - len(row)), row]) for row in rows])
    evaluation = BeamEvaluation(verifier_twin(model), task.tgt_dict, options)
    found = evaluation.generate(None, {"net_input": {"src_tokens": left}})
    theirs = TranslationTask.build_generator(task, [model], Namespace(**options))
    for row, (hypothesis,) in zip(rows, found, strict=True):
        alone = {"src_tokens": row[None], "src_lengths": torch.tensor([len(row)])}
        [[wanted, *_]] = theirs.generate([model], {"net_input": alone})
        assert hypothesis["tokens"].tolist() == wanted["tokens"].tolist()


def logged(*logs: dict[str, Any]) -> dict[str, float]:
    with metrics.aggregate(new_root=True) as values:
        log_figures(logs)
    return values.get_smoothed_values()


def test_counts_of_workers_are_joined_and_training_batches_have_none() -> None:
    orders = {f"_bleu_{kind}_{n}": 4 - n for kind in ("counts", "totals") for n in range(4)}
    bleu = {**orders, "_bleu_sys_len": 4, "_bleu_ref_len": 4}
    first = {**bleu, "_block_rounds": 10, "_block_emitted": 21, "_block_eos": 1}
    second = {**bleu, "_block_rounds": 6, "_block_emitted": 31, "_block_eos": 3}
    found = logged(first, second, {})
    assert found["accepted"] == (52 - 4) / 16
    assert found["bleu"] == 100
    assert "accepted" not in logged({"loss": 1.0})


def test_figures_add_up_with_a_real_score(tmp_path: Path) -> None:
    _verifier(tmp_path / "v.pt")
    evaluation, bleu = _evaluation(tmp_path / "v.pt"), corpus_bleu(["a b c d"], [["a b c e"]])
    evaluation.stats = SimpleNamespace(rounds=3, emitted=9, eos=2)
    assert not any(name.startswith("_block") for name in _evaluation(None).figures(bleu))
    figures = evaluation.figures(bleu)
    assert (figures["_block_rounds"], figures["_block_emitted"], figures["_block_eos"]) == (3, 9, 2)
    assert [figures[f"_bleu_counts_{n}"] for n in range(4)] == [3, 2, 1, 0]
    assert [figures[f"_bleu_totals_{n}"] for n in range(4)] == [4, 3, 2, 1]


def test_impossible_settings_are_refused_when_the_run_starts(tmp_path: Path) -> None:
    _verifier(tmp_path / "v.pt")
    refused("beta must be 1 or more", _evaluation, tmp_path / "v.pt", beta=0)
    refused("30 source symbols", _evaluation, tmp_path / "v.pt", num_types=31)
    refused("no such checkpoint", _evaluation, tmp_path / "none.pt")


INPUT = torch.tensor([[11, 3, 12, 3, 3], [13, 3, 3, 1, 1]])
SCORED = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scale_encoder_embedding": True},
        {"src_embedding_copy": False},
        {"share_all_embeddings": False},
        {"scale_decoder_embedding": True},
        {"encoder_learned_pos": False, "decoder_learned_pos": False, "activation_fn": "relu"},
    ],
)
def test_logits_agree(changes: dict[str, Any]) -> None:
    model = build_drafter(apply_bert_init=False, **changes).eval()
    twin = inference_twin(model, block_size=2)
    with torch.no_grad():
        expected = model(SOURCE[:2], LENGTHS[:2], INPUT, INPUT, SCORED).logits
        states, padding_mask = twin.encoder(SOURCE[:2])
        memory = SourceMemory(
            lengths=LENGTHS[:2],
            padding_mask=padding_mask,
            keys_values=twin.decoder.keys_values(states),
            extras=twin.copied(SOURCE[:2]),
        ).trimmed()
        prefix_lengths = torch.tensor([3, 1])
        states = twin.decoder(INPUT, memory, prefix_lengths=prefix_lengths)
        actual = twin.decoder.logits(states[SCORED])
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_the_twin_is_a_float32_copy() -> None:
    model = build_drafter().bfloat16()
    twin = inference_twin(model, block_size=2)
    assert {weight.dtype for weight in twin.parameters()} == {torch.float32}
    before = twin.encoder.embedding.tokens.weight.clone()
    with torch.no_grad():
        model.encoder.embed_tokens.weight += 1
    assert torch.equal(twin.encoder.embedding.tokens.weight, before)
