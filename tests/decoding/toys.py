"""Scripted parts for decoding tests: every row of a batch has another right answer, and what lies
past a length is poison, so that a mix-up of rows or a forgotten mask cannot go unseen.

Imported by the other tests of this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self, TypeVar

import pytest
import torch
from torch import Tensor

from specdec_plugins.decoding.constraints import FREE, Constraints
from specdec_plugins.decoding.contract import (
    Draft,
    Drafter,
    DraftRequest,
    Prefix,
    Round,
    Scores,
    SourceBatch,
    SpecialTokens,
    Stateful,
    Verifier,
)
from specdec_plugins.decoding.engine import EngineConfig, Method, Session
from specdec_plugins.decoding.networks.cpu import ops
from specdec_plugins.decoding.requests import DecodeParams, Request, RowEvent, RowParams, RowResult
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.sampling import draft_token
from specdec_plugins.decoding.schedules import SCHEDULES

T = TypeVar("T")
SPECIAL = SpecialTokens(start=2, pad=1, eos=2, unk=3)
CPU = torch.device("cpu")
NO_TOKEN = 10**6  # stands where no token may be read


def random_table(
    vocab_size: int = 9, num_sources: int = 12, num_positions: int = 64, seed: int = 0
) -> Tensor:
    """Logits [source, position, last token, V] float64; every third source hardly ever ends."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_sources, num_positions, vocab_size, vocab_size)
    logits = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    logits[::3, :, :, SPECIAL.eos] -= 10
    return logits


def perturbed(table: Tensor, noise: float, seed: int = 1) -> Tensor:
    """A distribution near `table`: what a smaller model might have learnt."""
    generator = torch.Generator().manual_seed(seed)
    return table + noise * torch.randn(table.shape, generator=generator, dtype=table.dtype)


class Rows(Stateful):
    """Stateful base: the first source token of each row names its distribution."""

    max_positions: int | None = None

    def __init__(self) -> None:
        self.keys = torch.zeros(0, dtype=torch.int64)  # [B]

    def fresh(self, *_: Any) -> Self:
        """One without rows; of what is counted, each has its own."""
        made = copy(self)
        made.select(torch.zeros(0, dtype=torch.int64))
        return made

    def admit(self, source: SourceBatch) -> None:
        self.keys = torch.cat([self.keys, source.tokens[:, 0]])

    def select(self, rows: Tensor) -> None:
        self.keys = self.keys[rows]


class TableVerifier(Rows):
    """A verifier that looks its logits up, and keeps a cache of tokens to check the engine by.

    A wrong admit, commit or select of the engine fails an assertion here, as it would corrupt the
    keys and values of a network.
    """

    special = SPECIAL
    device = CPU
    num_layers = 3
    encoder_dim = 1
    with_hidden = False
    num_passes = 0

    def __init__(
        self, table: Tensor, max_target_positions: int = 60, keep_cache: bool = True
    ) -> None:
        super().__init__()
        self.keep_cache = keep_cache  # slow in batches of thousands
        self.table = table
        self.source_vocab_size, self.max_source_positions = len(table), 60
        self.vocab_size = table.shape[-1]
        self.max_target_positions = max_target_positions
        self.hidden_dim = self.vocab_size
        self.cache: list[list[int]] = []  # tokens whose states a network would hold
        self.places: list[dict[int, tuple[int, int]]] = []  # of each row, position and token
        self.exits: dict[int, Tensor] = {}  # the distributions of the first layers
        self.ahead: list[Tensor] = []  # [B] int64 each, tokens read by the first layers this round

    def admit(self, source: SourceBatch) -> None:
        super().admit(source)
        if not self.keep_cache:
            return
        forced = zip(source.forced.tolist(), source.forced_lengths.tolist(), strict=True)
        self.cache += [row[: length - 1] for row, length in forced]

    def encoder_output(self) -> tuple[Tensor, Tensor]:
        """A source's encoding is the name of its distribution."""
        return self.keys[:, None, None].double(), torch.zeros(len(self.keys), 1, dtype=torch.bool)

    def encodes_like(self, encoder: object) -> bool:
        """It has no encoder that a network's could be like."""
        return False

    def admit_encoded(self, source: SourceBatch, states: Tensor, padding_mask: Tensor) -> None:
        assert len(states) == len(padding_mask) == len(source)
        named = source.tokens.clone()
        named[:, 0] = states[:, 0, 0].long()
        self.admit(replace(source, tokens=named))

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        self.num_passes += 1
        assert prefix.width >= int(prefix.lengths.max())
        if self.keep_cache:
            self._read(prefix, draft)
        fed = torch.cat([prefix.last()[:, None], draft.tokens.masked_fill(~draft.mask, 0)], 1)
        columns = torch.arange(fed.shape[1])
        positions = (prefix.lengths[:, None] + columns).clamp(max=self.table.shape[1] - 1)
        logits = self.table[self.keys[:, None], positions, fed]  # [B, K+1, V]
        junk = (columns > draft.lengths[:, None]) | ~prefix.active[:, None]
        self._check_ahead(fed, ~junk)
        poison = torch.where(columns % 2 == 0, torch.nan, 1e9).double()
        logits = torch.where(junk[..., None], poison[:, None], logits)
        # Bans strike the logits where they are, and states have none.
        return Scores(logits, logits.clone() if self.with_hidden else None)

    def score_at(self, tokens: Tensor, positions: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        """Checks that each token sees its own text and nothing else, position by position."""
        self.num_passes += 1
        self.places += [dict() for _ in range(len(self.keys) - len(self.places))]
        for b, texts in enumerate(self.places):
            told = zip(tokens[b].tolist(), positions[b].tolist(), places[b].tolist(), strict=True)
            new = {place: (position, token) for token, position, place in told}
            texts |= new
            for i, (token, place) in enumerate(zip(tokens[b].tolist(), places[b], strict=True)):
                bits = int.from_bytes(seen[b, i].numpy().tobytes(), "little")
                own = sorted(texts[at] for at in range(bits.bit_length()) if bits >> at & 1)
                if token == SPECIAL.pad:  # junk
                    continue
                assert own[-1] == texts[int(place)] == (int(positions[b, i]), token)
                assert [position for position, _ in own] == list(range(len(own)))
        at = (positions + 1).clamp(max=self.table.shape[1] - 1)
        return self.table[self.keys[:, None], at, tokens]

    def keep_hidden(self) -> None:
        self.with_hidden = True

    def project(self, states: Tensor) -> Tensor:
        """A state is its logits."""
        return states

    def run_ahead(self, prefix: Prefix, tokens: Tensor, exit_layer: int) -> Tensor:
        """The fewer layers, the farther from the distribution."""
        positions = (prefix.lengths + len(self.ahead)).clamp(max=self.table.shape[1] - 1)
        self.ahead.append(tokens)
        if exit_layer not in self.exits:
            self.exits[exit_layer] = perturbed(self.table, 1 / exit_layer)
        logits = self.exits[exit_layer][self.keys, positions, tokens]
        return logits.masked_fill(~prefix.active[:, None], torch.nan)

    def _check_ahead(self, fed: Tensor, known: Tensor) -> None:
        """What ran ahead are the tokens [B, K+1] that are fed now, where these are `known`."""
        ahead, self.ahead = self.ahead, []
        if ahead:
            read = torch.stack(ahead, 1)
            assert read.shape[1] <= fed.shape[1]
            same = read == fed[:, : read.shape[1]]
            assert same[known[:, : read.shape[1]]].all()

    def _read(self, prefix: Prefix, draft: Draft) -> None:
        tokens, lengths = prefix.tokens.tolist(), prefix.lengths.tolist()
        for b in prefix.active.nonzero()[:, 0].tolist():
            committed = tokens[b][: lengths[b]]
            assert self.cache[b] == committed[:-1]
            self.cache[b] = committed + draft.tokens[b, : draft.lengths[b]].tolist()

    def commit(self, prefix: Prefix, last: Round) -> None:
        if not self.keep_cache:
            return
        for b, length in enumerate(prefix.lengths.tolist()):
            assert len(self.cache[b]) >= length - 1 or not prefix.active[b]
            self.cache[b] = self.cache[b][: length - 1]

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.ahead = []
        self.places = [self.places[row] for row in rows.tolist() if row < len(self.places)]
        if self.keep_cache:
            self.cache = [self.cache[row] for row in rows.tolist()]


# What a scripted drafter does: (keys [B], positions [B, K], budget [B]) -> which entries are
# wrong [B, K] bool, and how many are proposed [B].
Script = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


SCRIPTS: dict[str, Script] = {
    "always": lambda keys, positions, budget: (positions < 0, budget),
    "never": lambda keys, positions, budget: (positions >= 0, budget),
    "partly": lambda keys, positions, budget: (
        (positions * 7 + keys[:, None] * 3) % 4 == 0,
        budget,
    ),
    "ragged": lambda keys, positions, budget: (
        (positions + keys[:, None]) % 5 == 0,
        torch.minimum(budget, (positions[:, 0] * 5 + keys) % 4),
    ),
    "empty": lambda keys, positions, budget: (positions < 0, 0 * budget),
}


class ScriptedDrafter(Rows):
    """Follows the greedy path of a distribution, right and wrong where its script says so.

    With `sampling` it draws from the distribution, as many tokens as its script says, and hands the
    distribution on.
    """

    max_block_size: int | None = None

    def __init__(self, table: Tensor, script: Script, sampling: bool = False) -> None:
        super().__init__()
        self.table = table
        self.script = script
        self.sampling = sampling

    def propose(self, asked: DraftRequest) -> Draft:
        prefix, budget, width = asked.prefix, asked.budget, asked.width
        positions = prefix.lengths[:, None] + torch.arange(width)
        positions = positions.clamp(max=self.table.shape[1] - 1)
        wrong, lengths = self.script(self.keys, positions, budget)
        last, tokens, probs = prefix.last(), [], []
        for i in range(width):
            logits = self.table[self.keys, positions[:, i], last]
            last, drawn_from = draft_token(
                logits, asked.params, asked.random, prefix.lengths + i, self.sampling
            )
            if drawn_from is None:
                last = torch.where(wrong[:, i], (last + 1) % self.table.shape[-1], last)
            else:
                probs.append(drawn_from)
            tokens.append(last)
        drafted = torch.stack(tokens, 1)
        # What lies past a row's end is no token at all, or, worse, what would have been right.
        junk = torch.where(self.keys[:, None] % 2 == 0, NO_TOKEN, drafted)
        past = torch.arange(width) >= lengths[:, None]
        drawn = torch.cat(probs, 1).masked_fill(past[..., None], torch.nan) if probs else None
        return Draft(torch.where(past, junk, drafted), lengths, drawn)


def requests(
    count: int, num_forced: Callable[[int], int] = lambda i: 0, **options: Any
) -> list[Request]:
    """Requests whose sources name different tables; `options` may be functions of the index."""

    def params(i: int) -> DecodeParams:
        chosen = {k: v(i) if callable(v) else v for k, v in options.items()}
        return DecodeParams(**{"max_len": 40, **chosen})

    return [
        Request(
            id=f"r{i}",
            source_ids=[i % 12, *[(3 * i + j) % 9 for j in range(i % 4)], SPECIAL.eos],
            params=params(i),
            forced_ids=[4 + (i + j) % 5 for j in range(min(num_forced(i), params(i).max_len - 1))],
        )
        for i in range(count)
    ]


def oracle(table: Tensor, request: Request, constraints: Constraints = FREE) -> list[int]:
    """Greedy decoding by definition, one row in plain Python."""
    text, params = [SPECIAL.start, *request.forced_ids], request.params
    while len(text) <= params.max_len:
        logits = table[request.source_ids[0], len(text), text[-1]].clone()
        for token in {*text}:
            factor = constraints.repetition_penalty
            logits[token] *= factor if logits[token] < 0 else 1 / factor
        if len(text) - 1 < params.min_len:
            logits[SPECIAL.eos] = -torch.inf
        logits[banned(text, constraints)] = -torch.inf
        text.append(int(logits.argmax()))
        if len(text) > params.max_len and constraints.forced_last is not None:
            text[-1] = constraints.forced_last
        if text[-1] == SPECIAL.eos:
            break
    return text[1:]


def banned(text: list[int], constraints: Constraints) -> list[int]:
    """Tokens that may not stand behind the text, start token included."""
    words, size = constraints.bad_words, constraints.no_repeat_ngram_size
    found = [last for *firsts, last in words if text[len(text) - len(firsts) :] == firsts]
    if size:
        ngrams = [text[i : i + size] for i in range(len(text) - size + 1)]
        found += [last for *firsts, last in ngrams if text[len(text) - size + 1 :] == firsts]
    if len(text) == constraints.num_opening:
        found += constraints.banned_first
    return found


def method_of(
    drafter: Drafter | None, rule: str = "exact", schedule: str = "constant", **options: Any
) -> Method:
    """Parts by their registered names; the `options` are the schedule's."""
    if schedule == "few_rows":  # some of the rounds of small tests draft, and some do not
        options = {"rows": 2, **options}
    return Method(drafter, RULES.get(rule)(), SCHEDULES.build(schedule, options=options))


def events_of(
    verifier: Verifier, method: Method, jobs: Sequence[Request], **config: Any
) -> list[RowEvent]:
    """All that a session of these very parts says, so that what they have counted can be read."""
    session = Session(verifier, method, EngineConfig(**config))
    session.add(jobs)
    return list(session.run())


def decode_with(
    verifier: Verifier, method: Method, jobs: Sequence[Request], **config: Any
) -> list[RowResult]:
    events = events_of(verifier, method, jobs, **config)
    done = {event.id: event.result for event in events if event.result}
    return [done[job.id] for job in jobs]


def history(
    verifier: Verifier, method: Method, jobs: Sequence[Request], **config: Any
) -> dict[str, list[tuple[list[int], int]]]:
    """What each request drafted, and how much of it was kept, round by round."""
    told: dict[str, list[tuple[list[int], int]]] = {}
    for event in events_of(verifier, method, jobs, **config):
        told.setdefault(event.id, []).append((event.draft_ids, event.num_accepted))
    return told


def both(step: Callable[[], T]) -> tuple[T, T]:
    """What a step gives by the kernels, and by torch's operations in their place."""
    by_kernels = step()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "native", None)
        return by_kernels, step()


def forbid_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, what makes the host wait for a device raises."""

    def refuse(*args: object) -> None:
        raise AssertionError("the host waits for the device")

    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "cpu", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, refuse)


def row_params(num_rows: int, **options: Any) -> RowParams:
    """RowParams of equal rows; a list gives each row its own value."""

    def row(i: int) -> DecodeParams:
        return DecodeParams(
            **{k: v[i] if isinstance(v, Sequence) else v for k, v in options.items()}
        )

    return DecodeParams.stack([row(i) for i in range(num_rows)], CPU)


def prefix_of(rows: Sequence[Sequence[int]], room: int = 40) -> Prefix:
    """A prefix of these committed tokens, the start token put before each; poison behind."""
    lengths = torch.tensor([len(row) + 1 for row in rows])
    tokens = torch.full((len(rows), room), NO_TOKEN)
    for b, row in enumerate(rows):
        tokens[b, : len(row) + 1] = torch.tensor([SPECIAL.start, *row])
    return Prefix(
        tokens=tokens,
        lengths=lengths,
        active=torch.ones(len(rows), dtype=torch.bool),
        width=int(lengths.max()),
    )


def draft_of(rows: Sequence[Sequence[int]], width: int | None = None) -> Draft:
    """A deterministic draft of these tokens, poison behind."""
    width = max(len(row) for row in rows) if width is None else width
    tokens = [[*row, *[NO_TOKEN] * (width - len(row))] for row in rows]
    return Draft(
        torch.tensor(tokens, dtype=torch.int64).view(len(rows), width),
        torch.tensor([len(row) for row in rows]),
    )
