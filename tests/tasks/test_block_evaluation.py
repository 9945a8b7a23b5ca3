"""Validation by decoding: the verifier's own output, counted by the published convention."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdec_plugins.errors import UserError
from specdec_plugins.formats.checkpoints import save_checkpoint

pytestmark = pytest.mark.fairseq

SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, 1, 1], [11, 12, 13, 2, 1]])
LENGTHS = torch.tensor([5, 3, 4])
SAMPLE = {"net_input": {"src_tokens": SOURCE, "src_lengths": LENGTHS}}


def _verifier(path: Path) -> Any:
    """Written to a file; positions bound what a model without training decodes."""
    from tests.fairseq_models import build_verifier

    model, args = build_verifier(max_target_positions=12, max_source_positions=12)
    save_checkpoint({"model": model.state_dict(), "args": args, "cfg": None}, path)
    return model.eval()


def _evaluation(path: Path | None, num_types: int = 30, **settings: Any) -> Any:
    from specdec_plugins.formats.vocabularies import numbered_vocabularies
    from specdec_plugins.tasks.block_evaluation import BlockEvaluation, EvaluationSettings

    both = numbered_vocabularies(num_types, num_types)
    return BlockEvaluation(
        EvaluationSettings(path and str(path), block_size=3, **settings),
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
    from tests.fairseq_models import build_drafter

    model = _verifier(tmp_path / "v.pt")
    evaluation = _evaluation(tmp_path / "v.pt")
    evaluation.refresh(build_drafter())
    hypotheses = evaluation.generate(None, SAMPLE)
    expected = [_greedy(model, row) for row in range(3)]
    assert [h[0]["tokens"].tolist() for h in hypotheses] == expected
    assert evaluation.stats.emitted == sum(len(tokens) for tokens in expected)


def test_refresh_takes_the_weights_of_the_moment(tmp_path: Path) -> None:
    """With every token tolerated, the output is the drafter's: it must follow its weights."""
    from tests.fairseq_models import build_drafter

    _verifier(tmp_path / "v.pt")
    evaluation = _evaluation(tmp_path / "v.pt", beta=30, tau=1e6)
    outputs = []
    for seed in (0, 1):
        evaluation.refresh(build_drafter(seed=seed, apply_bert_init=False))
        outputs.append([h[0]["tokens"].tolist() for h in evaluation.generate(None, SAMPLE)])
    assert outputs[0] != outputs[1]


def test_without_a_verifier_the_drafter_decodes_alone() -> None:
    """The first block of each row, against the network that is being trained."""
    from tests.fairseq_models import build_drafter

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
            states = model.decoder(masks, encoded, *model._copy_source(source, encoded))
            block = model.decoder.output_layer(states)[0].argmax(-1).tolist()
        until_end = block[: block.index(2) + 1] if 2 in block else block
        assert hypothesis["tokens"].tolist()[:3] == until_end
    bleu = SimpleNamespace(sys_len=3, ref_len=4, counts=[1, 0, 0, 0], totals=[3, 2, 1, 0])
    figures = evaluation.figures(bleu)
    assert figures["_bleu_ref_len"] == 4
    assert not any(name.startswith("_block") for name in figures)


def test_counts_of_workers_are_joined() -> None:
    from fairseq.logging import metrics

    from specdec_plugins.tasks.block_evaluation import log_figures

    def figures(**counts: int) -> dict[str, int]:
        orders = {f"_bleu_{kind}_{n}": 4 - n for kind in ("counts", "totals") for n in range(4)}
        return {f"_block_{k}": v for k, v in counts.items()} | orders | {
            "_bleu_sys_len": 4, "_bleu_ref_len": 4,
        }  # fmt: skip

    logs = [figures(rounds=10, emitted=21, eos=1), figures(rounds=6, emitted=31, eos=3), {}]
    with metrics.aggregate(new_root=True) as values:
        log_figures(logs)
    smoothed = values.get_smoothed_values()
    assert smoothed["accepted"] == (52 - 4) / 16
    assert smoothed["bleu"] == 100


def test_figures_add_up_with_a_real_score(tmp_path: Path) -> None:
    import sacrebleu

    _verifier(tmp_path / "v.pt")
    evaluation = _evaluation(tmp_path / "v.pt")
    evaluation.stats = SimpleNamespace(rounds=3, emitted=9, eos=2)
    figures = evaluation.figures(sacrebleu.corpus_bleu(["a b c d"], [["a b c e"]]))
    assert (figures["_block_rounds"], figures["_block_emitted"], figures["_block_eos"]) == (3, 9, 2)
    assert [figures[f"_bleu_counts_{n}"] for n in range(4)] == [3, 2, 1, 0]
    assert [figures[f"_bleu_totals_{n}"] for n in range(4)] == [4, 3, 2, 1]


def test_training_batches_log_none_of_it() -> None:
    from fairseq.logging import metrics

    from specdec_plugins.tasks.block_evaluation import log_figures

    with metrics.aggregate(new_root=True) as values:
        log_figures([{"loss": 1.0}])
    assert "accepted" not in values.get_smoothed_values()


def test_impossible_settings_are_refused_when_the_run_starts(tmp_path: Path) -> None:
    _verifier(tmp_path / "v.pt")
    with pytest.raises(UserError, match="beta must be 1 or more"):
        _evaluation(tmp_path / "v.pt", beta=0)
    with pytest.raises(UserError, match="30 source symbols"):
        _evaluation(tmp_path / "v.pt", num_types=31)
    with pytest.raises(UserError, match="no such checkpoint"):
        _evaluation(tmp_path / "none.pt")


INPUT = torch.tensor([[11, 3, 12, 3, 3], [13, 3, 3, 1, 1]])
SCORED = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scale_encoder_embedding": True},
        {"src_embedding_copy": False},
        {"share_all_embeddings": False},
        {"cached_prefix": True},
        {"cached_prefix": True, "scale_decoder_embedding": True, "freeze_encoder": True},
        {"encoder_learned_pos": False, "decoder_learned_pos": False, "activation_fn": "relu"},
    ],
)
def test_logits_agree(changes: dict[str, Any]) -> None:
    from specdec_plugins.decoding.cache import SourceMemory
    from specdec_plugins.tasks.block_evaluation import inference_twin
    from tests.fairseq_models import build_drafter

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
    from specdec_plugins.tasks.block_evaluation import inference_twin
    from tests.fairseq_models import build_drafter

    model = build_drafter().bfloat16()
    twin = inference_twin(model, block_size=2)
    assert {weight.dtype for weight in twin.parameters()} == {torch.float32}
    before = twin.encoder.embedding.tokens.weight.clone()
    with torch.no_grad():
        model.encoder.embed_tokens.weight += 1
    assert torch.equal(twin.encoder.embedding.tokens.weight, before)
