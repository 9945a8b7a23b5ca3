"""What tends to follow what: counted as defined, and the best path found by every path there is."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import fields
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from specdec_plugins.decoding import bigrams as module
from specdec_plugins.decoding.bigrams import Bigrams

START, VOCAB = 2, 7
SENTENCES = [[4, 5, 2], [4, 5, 6, 2], [4, 6, 2], [5, 5, 2]]


@pytest.fixture
def bigrams() -> Bigrams:
    return Bigrams.count(SENTENCES, VOCAB, START)


def score(bigrams: Bigrams, logits: Tensor, before: int, path: tuple[int, ...], w: float) -> float:
    """Of one path through [K, V]."""
    tokens = torch.tensor([before, *path])
    own = logits[torch.arange(len(path)), tokens[1:]].sum()
    return float(own + w * bigrams.log_prob(tokens[:-1], tokens[1:]).sum())


def test_probabilities_are_those_of_the_definition(bigrams: Bigrams) -> None:
    # 13 tokens, and 0.1 more of each type: four are 5, three 4, two 6 and four 2.
    share = {2: 4.1 / 13.7, 4: 3.1 / 13.7, 5: 4.1 / 13.7, 6: 2.1 / 13.7, 3: 0.1 / 13.7}
    for before, after, pairs, firsts in (
        (START, 4, 3, 4),
        (4, 5, 2, 3),
        (5, 2, 2, 4),
        (6, 2, 2, 2),
        # Seen once or never: by frequency alone.
        (4, 6, 0, 3),
        (5, 3, 0, 4),
        (3, 3, 0, 0),
    ):
        expected = torch.tensor((pairs + 10 * share[after]) / (firsts + 10)).log()
        found = bigrams.log_prob(torch.tensor(before), torch.tensor(after))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert len(bigrams.tokens) == 4
    assert bigrams.starts.tolist() == [0, 0, 0, 1, 1, 2, 3, 4]


def counted_at_once(sentences: list[list[int]], vocab_size: int, start: int) -> Bigrams:
    """The definition, pair by pair."""
    pairs = Counter((a, b) for s in sentences for a, b in pairwise([start, *s]))
    tallies = torch.tensor([sum(s.count(t) for s in sentences) for t in range(vocab_size)])
    share = (tallies + 0.1).double() / (tallies + 0.1).sum()
    firsts = torch.zeros(vocab_size, dtype=torch.float64)
    for (before, _), number in pairs.items():
        firsts[before] += number
    kept = sorted(pair for pair, number in pairs.items() if number > 1)
    a, b = torch.tensor(kept).T
    numbers = torch.tensor([pairs[pair] for pair in kept], dtype=torch.float64)
    probs = (numbers + 10 * share[b]) / (firsts[a] + 10)
    starts = [sum(before < token for before, _ in kept) for token in range(vocab_size + 1)]
    backoffs = (10 / (firsts + 10)).log()
    made = (torch.tensor(starts), b, probs.log(), backoffs, share.log())
    return Bigrams(made[0].int(), made[1].int(), *(tensor.float() for tensor in made[2:]))


@pytest.mark.parametrize("at_once", [1, 7, 64, 10**6])
def test_in_parts_the_counts_are_the_same_to_the_last_pair(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 9, (80,), generator=generator).tolist()
    sentences = [[*torch.randint(30, (n,), generator=generator).tolist(), 1] for n in lengths]
    found, expected = Bigrams.count(sentences, 30, 2), counted_at_once(sentences, 30, 2)
    for field in fields(Bigrams):
        assert torch.equal(getattr(found, field.name), getattr(expected, field.name)), field.name


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of all tokens would be 15 MB."""
    monkeypatch.setattr(module, "_AT_ONCE", 2000)
    sentences = ([300 + i % 500 for i in range(n, n + 100)] + [2] for n in range(3000))
    tracemalloc.start()
    try:
        Bigrams.count(sentences, 800, 2)
        assert tracemalloc.get_traced_memory()[1] < 2e6
    finally:
        tracemalloc.stop()


def test_nothing_counted_leaves_frequencies() -> None:
    nothing = Bigrams.count([], VOCAB, START)
    found = nothing.log_prob(torch.tensor([2, 5]), torch.tensor([4, 3]))
    torch.testing.assert_close(found, torch.full((2,), 1 / VOCAB).log())
    assert nothing.best_path(torch.eye(VOCAB)[None], torch.tensor([2]), 0.3, 3).tolist() == [
        list(range(VOCAB))
    ]


@pytest.mark.parametrize("seed", range(8))
def test_the_best_of_all_paths_is_found(bigrams: Bigrams, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 4, VOCAB, generator=generator)
    before = torch.tensor([2, 4, 5])
    found = bigrams.best_path(logits, before, 0.7, candidates=VOCAB)
    for row in range(3):
        paths = product(range(VOCAB), repeat=4)
        best = max(paths, key=lambda p: score(bigrams, logits[row], int(before[row]), p, 0.7))
        assert found[row].tolist() == list(best)
