"""The verifier against a full forward pass of each row alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from specdec_plugins.decoding.batch import collate
from specdec_plugins.decoding.contract import Draft, Prefix, Round, SourceBatch, Verdict
from specdec_plugins.decoding.networks import Transformer
from specdec_plugins.decoding.requests import Request
from specdec_plugins.decoding.verifier import TransformerVerifier
from tests.decoding import toys
from tests.decoding.networks.toys import EOS, PAD, full_logits, random_ids, transformer
from tests.decoding.toys import CPU, SPECIAL, draft_of, forbid_waiting

POISON = 1e6


@dataclass
class Row:
    source: list[int]
    tokens: list[int]  # start token included


def batch(rows: list[Row]) -> SourceBatch:
    jobs = [Request("a", row.source, forced_ids=row.tokens[1:]) for row in rows]
    return collate(jobs, PAD, EOS, CPU)


def prefix_of(rows: list[Row]) -> Prefix:
    return toys.prefix_of([row.tokens[1:] for row in rows], room=60)


class Driver:
    """Rows that are scored, committed, dropped and joined; every score is checked."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.network = transformer(seed, positions=("learned", "sinusoidal", "none")[seed % 3])
        self.verifier = TransformerVerifier(self.network, SPECIAL)
        self.rows: list[Row] = []

    def ids(self, at_least: int, at_most: int) -> list[int]:
        return random_ids(self.generator, self.rng.randint(at_least, at_most))

    def admit(self, num_rows: int, max_forced: int) -> None:
        new = [
            Row([*self.ids(0, 7), EOS], [EOS, *self.ids(0, max_forced)]) for _ in range(num_rows)
        ]
        self.verifier.admit(batch(new))
        self.rows += new

    def round(self, num_drafted: int) -> None:
        """Score a ragged draft, check every row, keep some of it and a token more."""
        drafts = [self.ids(0, num_drafted) for _ in self.rows]
        prefix = prefix_of(self.rows)
        draft = draft_of(drafts, num_drafted)
        scores = self.verifier.score(prefix, draft)
        assert scores.logits.shape[1] == draft.tokens.shape[1] + 1
        for b, row in enumerate(self.rows):
            self.check(scores.logits[b], row, drafts[b])
            self.rows[b].tokens = row.tokens + drafts[b][: self.rng.randint(0, len(drafts[b]))]
            self.rows[b].tokens += self.ids(1, 1)
        none = torch.zeros(len(self.rows), dtype=torch.int64)
        self.verifier.commit(prefix_of(self.rows), Round(draft, scores, Verdict(none, none)))
        self.poison()

    def check(self, logits: Tensor, row: Row, draft: list[int]) -> None:
        target = torch.tensor([row.tokens + draft])
        expected = full_logits(self.network, torch.tensor([row.source]), target)
        first = len(row.tokens) - 1
        torch.testing.assert_close(
            logits[: len(draft) + 1], expected[0, first:], rtol=0, atol=1e-10
        )

    def select(self) -> None:
        order = self.rng.sample(range(len(self.rows)), self.rng.randint(0, len(self.rows)))
        self.rows = [self.rows[i] for i in order]
        self.verifier.select(torch.tensor(order).long())

    def poison(self) -> None:
        """What lies behind the committed tokens must not matter."""
        cache = self.verifier._cache
        with torch.inference_mode():
            stale = torch.arange(cache.capacity) >= cache.lengths[:, None]
            cache.storage[:, stale] = POISON


@pytest.mark.parametrize("seed", range(6))
def test_every_row_is_scored_as_if_alone(seed: int) -> None:
    """Rows join others that are far along, and a batch that is empty again."""
    driver = Driver(seed)
    for _ in range(14):
        action = driver.rng.choice(["round", "admit", "select"])
        if action == "admit" or not driver.rows:
            driver.admit(driver.rng.randint(1, 2), max_forced=driver.rng.choice([0, 20]))
        elif action == "select" or max(len(row.tokens) for row in driver.rows) > 40:
            driver.select()
        else:
            driver.round(driver.rng.randint(0, 4))


def test_the_device_is_never_asked_while_scoring(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(seed=9)
    driver.admit(3, max_forced=2)
    prefix = prefix_of(driver.rows)
    draft = Draft(torch.full((3, 4), 5), torch.tensor([4, 0, 2]))
    none = torch.zeros(3, dtype=torch.int64)

    forbid_waiting(monkeypatch)
    scores = driver.verifier.score(prefix, draft)
    driver.verifier.commit(prefix, Round(draft, scores, Verdict(none, none)))


def test_junk_past_the_position_table_is_harmless() -> None:
    """A row near its limit stands beside one that drafts far: only its junk is out of range."""
    network: Transformer = transformer(max_positions=8)
    verifier = TransformerVerifier(network, SPECIAL)
    rows = [Row([5, EOS], [EOS, *range(4, 10)]), Row([6, 7, EOS], [EOS])]
    verifier.admit(batch(rows))
    draft = Draft(torch.full((2, 6), 5), torch.tensor([1, 6]))
    scores = verifier.score(prefix_of(rows), draft)
    expected = full_logits(network, torch.tensor([[5, EOS]]), torch.tensor([[*rows[0].tokens, 5]]))
    torch.testing.assert_close(scores.logits[0, :2], expected[0, -2:], rtol=0, atol=1e-10)
