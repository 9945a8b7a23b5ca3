"""Trees of drafts: the likeliest nodes, the path that is accepted, rounds as in decoding."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import trees
from benchmarks.pair import Pair
from benchmarks.trees import Node, best_first, num_accepted, replays
from specdec_plugins.app.translator import SpeculativeTranslator
from tests.bundles import captions
from tests.refusals import told

BUNDLED = Path(__file__).resolve().parents[2] / "data" / "models" / "en-de"
LINES = ["The garden is full of birds.", "Restart the server after the update.", "Who is there?"]


def choose(place: int, before: int) -> tuple[Tensor, Tensor]:
    """Token 2 `before` with probability 0.6, the one behind it with 0.4."""
    return torch.tensor([2 * before, 2 * before + 1]), torch.tensor([0.6, 0.4]).log()


def test_the_likeliest_nodes_of_all_are_taken_parents_first() -> None:
    nodes = best_first(choose, last=1, length=3, size=5, branches=2)
    # 0.6, 0.4, 0.36, 0.24 twice: the one that was seen first
    assert nodes == [Node(1, 2, -1), Node(1, 3, -1), Node(2, 4, 0), Node(2, 5, 0), Node(2, 6, 1)]


def test_a_tree_of_one_branch_is_the_chain_of_best_tokens() -> None:
    nodes = best_first(choose, last=1, length=3, size=9, branches=1)
    assert nodes == [Node(1, 2, -1), Node(2, 4, 0), Node(3, 8, 1)]


@pytest.mark.parametrize(
    ("expected", "accepted"), [([2, 5, 10], 2), ([3, 6], 2), ([3, 7], 1), ([9], 0), ([], 0)]
)
def test_the_longest_path_as_expected_is_accepted(expected: list[int], accepted: int) -> None:
    nodes = best_first(choose, last=1, length=3, size=5, branches=2)
    assert num_accepted(nodes, expected) == accepted


@torch.inference_mode()
def test_a_replayed_chain_takes_the_rounds_of_decoding_and_a_tree_no_more() -> None:
    exact = SpeculativeTranslator.from_pretrained(BUNDLED, device="cpu", block_size=6)
    for line, (replay, output) in zip(
        LINES, replays(Pair.of(BUNDLED, None, None), LINES), strict=True
    ):
        before = exact.stats.rounds
        exact.translate([line])
        assert replay.num_rounds(output, 6, branches=1) == exact.stats.rounds - before
        assert replay.num_rounds(output, 16, branches=5) <= exact.stats.rounds - before
        assert math.ceil(len(output) / 9) <= replay.num_rounds(output, 16, branches=5)


def test_the_table_and_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.en").write_text("\n".join(LINES), encoding="utf-8")
    flags = [str(tmp_path / "text.en"), "--sentences", "1", "--sizes", "1", "4"]
    assert trees.main([str(BUNDLED), *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines] == ["nodes", "-----", "1", "4"]
    _, _, chain, tree, _ = lines[2].split("|")
    assert float(chain) == float(tree)
    headless = [str(captions(tmp_path / "captions")), *flags]
    assert "has no block drafter" in told(capsys, trees.main, headless)
