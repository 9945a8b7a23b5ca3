"""The table of decodings, by hand-made JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.comparison import HEADER, Comparison, Decoding, markdown, share
from specdec_plugins.errors import UserError


def record(text: str, emitted: list[int], milliseconds: float, reason: str = "eos") -> str:
    fields: dict[str, Any] = {"text": text, "tokens": text.split(), "emitted": emitted}
    return json.dumps({**fields, "milliseconds": milliseconds, "finish_reason": reason})


def decoding(folder: Path, name: str, *records: str) -> Decoding:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in records))
    return Decoding.load(name, path)


def test_accepted_tokens_leave_out_each_end_of_sentence_once(tmp_path: Path) -> None:
    # 3 + 2 tokens with eos in two rounds, and 4 tokens cut by the limit in one: (5 - 1 + 4) / 3.
    made = decoding(
        tmp_path, "mine", record("a b c d", [3, 2], 5), record("a b c d", [4], 7, "length")
    )
    assert made.mean_accepted_tokens == pytest.approx(8 / 3)


def test_plain_decoding_scores_l_of_l_plus_one(tmp_path: Path) -> None:
    made = decoding(tmp_path, "AR", record("a b c", [1, 1, 1, 1], 5))
    assert made.mean_accepted_tokens == pytest.approx(3 / 4)


def test_a_search_without_rounds_has_no_accepted_tokens(tmp_path: Path) -> None:
    assert decoding(tmp_path, "beam", record("a b c", [], 5)).mean_accepted_tokens is None


def test_rows_measure_against_both_greedy_decodings(tmp_path: Path) -> None:
    text = "the cat sat on the mat"
    greedy = decoding(tmp_path, "AR", record(text, [1] * 7, 30), record("b c", [1] * 3, 10))
    fairseq = decoding(tmp_path, "fairseq", record(text, [], 60), record("b c", [], 20))
    other = decoding(tmp_path, "mine", record(text, [7], 6), record("b d", [3], 2))
    rows = Comparison([other, greedy], greedy, fairseq, [text, "b c"]).rows()
    assert rows[0][0] == "mine"
    assert rows[0][2:] == ["1/2 (50 %)", "4.00", "0.0040", "10.00x", "5.00x"]
    assert rows[1][1] == "100.00"
    assert rows[1][2:] == ["2/2 (100 %)", "0.80", "0.0200", "2.00x", "1.00x"]
    assert len(rows[0]) == len(HEADER)


def test_texts_that_look_alike_may_differ_in_tokens(tmp_path: Path) -> None:
    fields = json.loads(record("ab", [2], 1))
    joined = decoding(tmp_path, "1", json.dumps({**fields, "tokens": ["ab"]}))
    split = decoding(tmp_path, "2", json.dumps({**fields, "tokens": ["a@@", "b"]}))
    assert joined.differing(split) == [0]


@pytest.mark.parametrize("line", ["{", "[]", '{"text": "a"}'])
def test_foreign_lines_are_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(UserError, match=r"out, line 2: expected"):
        decoding(tmp_path, "out", record("a", [1, 1], 5), line)


def test_lost_sentences_are_refused(tmp_path: Path) -> None:
    short = decoding(tmp_path, "short", record("a", [1, 1], 5))
    with pytest.raises(UserError, match="short: 1 translations of 2 sentences"):
        Comparison([short], short, short, ["a", "b"])


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(1999, 2000, "99.9 %"), (2000, 2000, "100 %"), (0, 7, "0 %"), (0, 0, "0 %")],
)
def test_only_all_of_them_are_100_percent(part: int, whole: int, text: str) -> None:
    assert share(part, whole) == text


def test_markdown_aligns_figures_right() -> None:
    table = markdown(["name", "figure"], [["a", "1"], ["longer", "22"]])
    assert table.splitlines() == [
        "| name   | figure |",
        "| ------ | -----: |",
        "| a      |      1 |",
        "| longer |     22 |",
    ]
