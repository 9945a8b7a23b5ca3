"""Validation of a verifier by our beam search."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.tasks.translation import TranslationTask

from specdec_plugins.tasks.evaluation import BeamEvaluation, verifier_twin
from tests.fairseq_models import build_verifier
from tests.tasks.test_translation_lev_modified import make_task

pytestmark = pytest.mark.fairseq

SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, 1, 1], [11, 12, 13, 2, 1]])
LENGTHS = torch.tensor([5, 3, 4])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam": 3, "max_len_a": 1, "max_len_b": 4, "lenpen": 0.3, "unkpen": -9},
        {"beam": 4, "max_len_b": 9, "min_len": 3, "unnormalized": True},
    ],
)
def test_a_verifier_is_searched_as_by_fairseq(options: dict[str, Any]) -> None:
    """Its weights of the moment; sources padded on the left, as fairseq's task has them."""
    task = make_task()
    model, _ = build_verifier(max_target_positions=12, max_source_positions=12)
    model.eval()
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
