from __future__ import annotations

from typing import Any

import torch

from specdec_plugins.decoding.extend import append, ban, extend
from specdec_plugins.decoding.types import Verdict
from tests.decoding.toys import NO_TOKEN, SPECIAL, draft_of, prefix_of, row_params

EOS = SPECIAL.eos


def outcome(
    committed: list[int],
    draft: list[int],
    num_accepted: int,
    next_token: int,
    max_len: int = 30,
    active: bool = True,
) -> tuple[list[int], int, bool, bool, bool]:
    """(row after, accepted, ended, full, active), beside a neighbour that must not change it."""
    prefix = prefix_of([[7, 7, 7], committed])
    prefix.active[1] = active
    verdict = Verdict(torch.tensor([0, num_accepted]), torch.tensor([8, next_token]))
    got = extend(
        prefix, draft_of([[8], draft], 4), verdict, row_params(2, max_len=[30, max_len]), EOS
    )
    length = int(prefix.lengths[1])
    assert prefix.tokens[0, :5].tolist() == [SPECIAL.start, 7, 7, 7, 8]
    assert prefix.tokens[1, length] == NO_TOKEN
    assert prefix.tokens[:, 0].tolist() == [SPECIAL.start] * 2
    assert length - len(committed) - 1 == int(got.lengths[1])
    emitted = got.tokens[1, : int(got.lengths[1])].tolist()
    row = prefix.tokens[1, 1:length].tolist()
    assert row == committed + emitted
    flags = bool(got.ended[1]), bool(got.full[1]), bool(prefix.active[1])
    return row, int(got.num_accepted[1]), *flags


def test_the_worked_examples() -> None:
    assert outcome([4], [5, 6, 7], 2, 9) == ([4, 5, 6, 9], 2, False, False, True)
    assert outcome([4], [5, EOS, 7], 3, 9) == ([4, 5, EOS], 2, True, False, False)


def test_boundaries() -> None:
    table: list[tuple[Any, Any]] = [
        # nothing drafted, nothing accepted, everything accepted
        (([], [], 0, 5), ([5], 0, False, False, True)),
        (([], [4, 5], 0, 6), ([6], 0, False, False, True)),
        (([], [4, 5, 6, 7], 4, 8), ([4, 5, 6, 7, 8], 4, False, False, True)),
        # eos as the next token, drafted and accepted, drafted and not accepted, behind the cut
        (([4], [5], 1, EOS), ([4, 5, EOS], 1, True, False, False)),
        (([4], [EOS], 1, 5), ([4, EOS], 1, True, False, False)),
        (([4], [EOS], 0, 5), ([4, 5], 0, False, False, True)),
        (([4], [EOS, EOS], 2, EOS), ([4, EOS], 1, True, False, False)),
        # max_len: exactly full, cut inside the draft, cut before eos, eos in the last place
        (([4], [5], 1, 6, 3), ([4, 5, 6], 1, False, True, False)),
        (([4], [5, 6, 7], 3, 8, 3), ([4, 5, 6], 2, False, True, False)),
        (([4], [5, 6, EOS], 3, 8, 3), ([4, 5, 6], 2, False, True, False)),
        (([4], [5, EOS], 2, 8, 3), ([4, 5, EOS], 2, True, False, False)),
        (([], [], 0, 5, 1), ([5], 0, False, True, False)),
        # a finished row does not move
        (([4], [5], 1, 6, 30, False), ([4], 0, False, False, False)),
    ]
    for arguments, expected in table:
        assert outcome(*arguments) == expected, arguments


def test_append_is_ragged_and_leaves_junk_alone() -> None:
    prefix = prefix_of([[4], [5, 6], []], room=6)
    new = torch.tensor([[7, 8, NO_TOKEN + 1], [NO_TOKEN + 1] * 3, [4, 5, 6]])
    append(prefix, new, torch.tensor([2, 0, 3]))
    start = SPECIAL.start
    assert prefix.tokens.tolist() == [
        [start, 4, 7, 8, NO_TOKEN, NO_TOKEN],
        [start, 5, 6, NO_TOKEN, NO_TOKEN, NO_TOKEN],
        [start, 4, 5, 6, NO_TOKEN, NO_TOKEN],
    ]
    assert prefix.lengths.tolist() == [4, 3, 4]


def banned(min_len: list[int], first: list[int], ban_pad: bool) -> torch.Tensor:
    logits = torch.zeros(len(first), 4, 6)
    same = ban(logits, torch.tensor(first), torch.tensor(min_len), SPECIAL, ban_pad)
    assert same is logits
    return logits.isinf()


def test_eos_is_banned_until_min_len_tokens_stand() -> None:
    # Row 0: two tokens stand (first = 3), four wanted: columns 0 and 1 may not end.
    got = banned([4, 0, 1], [3, 1, 1], ban_pad=False)
    assert got[..., SPECIAL.eos].int().tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    got[..., SPECIAL.eos] = False
    assert not got.any()


def test_padding_is_banned_everywhere() -> None:
    got = banned([0, 0], [1, 5], ban_pad=True)
    assert got[..., SPECIAL.pad].all()
    assert int(got.sum()) == 8
