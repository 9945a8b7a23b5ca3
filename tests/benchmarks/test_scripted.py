"""The scripted drafter against its script."""

from __future__ import annotations

from unittest.mock import Mock

import torch
from torch import Tensor

from benchmarks.engines.scripted import ScriptedDrafter
from specdec_plugins.decoding.batch import collate, open_prefix
from specdec_plugins.decoding.contract import Draft, DraftRequest, Prefix
from specdec_plugins.decoding.requests import DecodeParams, Request
from specdec_plugins.decoding.sampling import HashRandom

EOS = 2
CPU = torch.device("cpu")


def drafted(acceptance: float, keep: list[int], num_words: int = 25) -> tuple[Draft, Tensor]:
    """What is drafted at the very beginning for these rows, and the script of so many words."""
    params = [DecodeParams(seed=n) for n in range(300)]
    requests = [Request(str(n), [n + 3, EOS], params[n]) for n in range(300)]
    answers = {(n + 3, EOS): [n + 3 + i for i in range(num_words)] + [EOS] for n in range(300)}
    source = collate(requests, 1, EOS, CPU)
    # It drafts nothing of use, and ends it after a token.
    nothing = torch.zeros(len(keep), 1, dtype=torch.int64)
    inner = Mock(max_block_size=25)
    inner.propose.return_value = Draft(nothing, torch.ones(len(keep), dtype=torch.int64))
    drafter = ScriptedDrafter(inner, answers, acceptance, EOS)
    drafter.admit(source)
    drafter.select(torch.tensor(keep))
    rows = DecodeParams.stack([params[n] for n in keep], CPU)
    prefix = open_prefix(source, 30)
    prefix = Prefix(prefix.tokens[keep], prefix.lengths[keep], prefix.active[keep], 1)
    budget = torch.full((len(keep),), 25)
    draft = drafter.propose(DraftRequest(prefix, budget, 25, rows, HashRandom(rows.seed)))
    assert inner.select.call_args.args[0].tolist() == keep
    return draft, torch.tensor([answers[n + 3, EOS][:25] for n in keep])


def test_each_token_is_right_with_the_given_probability() -> None:
    draft, script = drafted(0.7, list(range(300)))
    right = (draft.tokens == script).double()
    assert abs(right.mean() - 0.7) < 0.02
    assert (right.mean(0) - 0.7).abs().max() < 0.12
    assert not (draft.tokens == EOS).any()


def test_rows_keep_their_scripts() -> None:
    for acceptance in (0.0, 1.0):
        draft, script = drafted(acceptance, [7, 3, 250])
        assert ((draft.tokens == script) == bool(acceptance)).all()


def test_a_draft_ends_where_the_script_does() -> None:
    """And not where the drafter that computes beside it would have ended it."""
    for num_words, length in ((25, 25), (3, 4)):
        draft, script = drafted(1.0, [7, 3], num_words)
        assert draft.lengths.tolist() == [length, length]
        assert torch.equal(draft.tokens[:, :length], script[:, :length])
