from __future__ import annotations

import pytest

from specdec_plugins.decoding.types import DecodeParams, Request, RowResult
from specdec_plugins.errors import UserError


def test_a_request_needs_a_source_and_room_to_decode() -> None:
    with pytest.raises(UserError, match="'a' has an empty source"):
        Request("a", [])
    with pytest.raises(UserError, match="'a'.*prefix of 2 tokens leaves nothing.*max_len 2"):
        Request("a", [2], DecodeParams(max_len=2), [5, 6])
    assert Request("a", [2], DecodeParams(max_len=3), [5, 6]).forced_ids == [5, 6]


def test_a_result_adds_up_its_rounds() -> None:
    result = RowResult(Request("a", [2]), [9])
    result.observe(3, 2, [5, 6, 7])
    result.observe(0, 0, [2])
    assert result.token_ids == [9, 5, 6, 7, 2]
    assert result.rounds == 2
    assert result.drafted_per_round == [3, 0]
    assert result.accepted_per_round == [2, 0]
    assert result.emitted_per_round == [3, 1]
