"""What holds for every drafter. A lossless rule hides a broken one, so each is watched alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdec_plugins.decoding.batch import collate
from specdec_plugins.decoding.contract import (
    Draft,
    Drafter,
    DraftRequest,
    Prefix,
    Round,
    SourceBatch,
)
from specdec_plugins.decoding.drafters import DRAFTERS
from specdec_plugins.decoding.requests import Request
from tests.decoding.drafters.factories import FACTORIES, SCRIPTED, WITH_MEMORY
from tests.decoding.toys import (
    CPU,
    SPECIAL,
    TableVerifier,
    history,
    method_of,
    random_table,
    requests,
)
from tests.refusals import refused

ALL = {**FACTORIES, **SCRIPTED}
TABLE = random_table()


def jobs(seed: int = 0) -> list[Request]:
    return requests(
        9,
        num_forced=lambda i: i % 3,
        block_size=lambda i: 1 + 2 * (i % 3),
        max_len=20,
        seed=lambda i: seed + i,
    )


JOBS = jobs()


class Watched:
    """A drafter whose every proposal is checked."""

    def __init__(self, name: str, verifier: TableVerifier) -> None:
        self.name = name
        self.verifier = verifier
        self.inner: Drafter = ALL[name](verifier)
        self.sources: list[list[int]] = []
        self.num_proposals = 0
        self.num_ends = 0  # of sentences that were drafted
        self.with_probs: set[bool] = set()  # whether drafts came with their distribution

    max_positions = None

    @property
    def max_block_size(self) -> int | None:
        return self.inner.max_block_size

    def admit(self, source: SourceBatch) -> None:
        rows = zip(source.tokens.tolist(), source.lengths.tolist(), strict=True)
        self.sources += [row[:length] for row, length in rows]
        self.inner.admit(source)

    def commit(self, prefix: Prefix, last: Round) -> None:
        self.inner.commit(prefix, last)

    def select(self, rows: Tensor) -> None:
        self.sources = [self.sources[i] for i in rows.tolist()]
        self.inner.select(rows)

    def propose(self, asked: DraftRequest) -> Draft:
        prefix = asked.prefix
        before = (prefix.tokens.clone(), prefix.lengths.clone(), prefix.active.clone())
        draft = self.inner.propose(asked)
        self.num_proposals += 1
        for kept, now in zip(before, (prefix.tokens, prefix.lengths, prefix.active), strict=True):
            assert torch.equal(kept, now)
        self.check_form(draft, asked.budget, asked.width)
        if self.name not in WITH_MEMORY:
            self.check_against_fresh(draft, asked)
        return draft

    def check_form(self, draft: Draft, budget: Tensor, width: int) -> None:
        assert draft.tokens.shape[1] <= width
        assert (draft.lengths <= budget).all()
        assert (draft.lengths >= 0).all()
        assert (draft.lengths <= draft.tokens.shape[1]).all()
        if self.name in FACTORIES:
            ends = (draft.tokens == self.verifier.special.eos) & draft.mask
            self.num_ends += int(ends.sum())
            behind = ends.cumsum(1) > ends.long()
            assert not (behind & draft.mask).any()  # it could never be kept
        if draft.lengths.any():
            self.with_probs.add(draft.probs is not None)
        proposed = draft.tokens[draft.mask]
        assert ((proposed >= 0) & (proposed < self.verifier.vocab_size)).all()
        if draft.probs is not None:
            distributions = draft.probs[draft.mask]
            assert draft.probs.dtype is torch.float32
            assert torch.allclose(distributions.sum(-1), torch.ones(len(distributions)), atol=1e-5)
            assert (distributions.gather(-1, proposed[:, None]) > 0).all()

    def check_against_fresh(self, draft: Draft, asked: DraftRequest) -> None:
        prefix = asked.prefix
        verifier = TableVerifier(self.verifier.table)
        fresh = ALL[self.name](verifier)
        rows = [Request("", ids) for ids in self.sources]
        # Junk behind each row's end is poison enough: the session's prefix has it.
        source = replace(
            collate(rows, SPECIAL.pad, SPECIAL.start, CPU),
            forced=prefix.tokens.clone(),
            forced_lengths=prefix.lengths.clone(),
        )
        verifier.admit(source)
        fresh.admit(source)
        again = fresh.propose(asked)
        active = prefix.active
        assert draft.lengths[active].tolist() == again.lengths[active].tolist()
        mask = draft.mask & active[:, None]
        assert draft.tokens[mask].tolist() == again.tokens[mask].tolist()


@pytest.mark.parametrize("schedule", ["constant", "target_confidence"])
@pytest.mark.parametrize("name", sorted(ALL))
def test_proposals_are_well_formed_and_those_of_a_fresh_drafter(name: str, schedule: str) -> None:
    """Through rows that join and leave, and through rounds without a draft."""
    watched = Watched(name, TableVerifier(TABLE))
    history(watched.verifier, method_of(watched, schedule=schedule), JOBS, max_rows=4)
    assert watched.num_proposals > 10
    if name in FACTORIES and not name.startswith("lookup"):
        assert watched.num_ends > 0  # or nothing could be drafted behind them
    if name in FACTORIES and schedule == "constant":
        assert watched.with_probs == {"sampling" in name}


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_rows_drafts_depend_on_its_seed_where_it_draws_and_never_on_its_batch(name: str) -> None:
    """A rule that samples takes a draft without its distribution for certain, so one that was drawn
    in secret would bend the verifier's."""

    def told(jobs: list[Request], max_rows: int = 4) -> dict[str, list[tuple[list[int], int]]]:
        verifier = TableVerifier(TABLE)
        return history(verifier, method_of(ALL[name](verifier)), jobs, max_rows=max_rows)

    together = told(JOBS)
    for job in JOBS:
        assert told([job], max_rows=1)[job.id] == together[job.id]
    assert (told(jobs(seed=1000)) == together) == ("sampling" not in name)


NGRAMS = "min_ngram must be from 1 to max_ngram"
CONFIDENCE = "confidence must be within 0..1"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("lookup", {"min_ngram": 0}, NGRAMS),
        ("lookup", {"min_ngram": 4}, NGRAMS),
        ("lookup", {"max_ngram": 0}, NGRAMS),
        ("block", {"candidates": 0}, "candidates must be at least 1, not 0"),
        ("assistant", {"encoder": "mine"}, "encoder must be 'own' or 'verifier', not 'mine'"),
        ("assistant", {"confidence": 1.5}, CONFIDENCE),
        ("early_exit", {"confidence": 2}, CONFIDENCE),
    ],
)
def test_impossible_options_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    refused(words, DRAFTERS.configure, name, options)
