"""Beam search over a verifier's cached steps, in batches that sentences join and leave.

A row of the verifier is a sentence, and its hypotheses are tokens of that row that do not see each
other. So they share the memory of the source, and nothing moves in the cache when hypotheses branch
or are dropped: each knows the places of its own tokens, and a new token takes a place that no
hypothesis needs any more. `hypotheses.py` decides what goes on; here is what the device computes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from specdec_plugins.decoding.batch import to_host
from specdec_plugins.decoding.constraints import FREE, Constraints, constrain, has_own
from specdec_plugins.decoding.contract import Draft, Prefix, Verifier
from specdec_plugins.decoding.engine import EngineConfig, Method, Session, SpeculativeDecoder
from specdec_plugins.decoding.hypotheses import Candidate, Open, Search, reason_of
from specdec_plugins.decoding.lane import TorchLane
from specdec_plugins.decoding.native import native_searches
from specdec_plugins.decoding.networks.cpu.ops import largest, log_total, on_device
from specdec_plugins.decoding.requests import (
    DecodeParams,
    FinishReason,
    Hypothesis,
    Request,
    RowEvent,
    RowResult,
)
from specdec_plugins.decoding.rules.exact import Exact
from specdec_plugins.decoding.schedules.constant import Constant
from specdec_plugins.decoding.stats import PartTimer
from specdec_plugins.errors import require

_BITS = 64  # places of a number of `Branching.score_at`


class Branching(Verifier, Protocol):
    """A verifier that can score several continuations of a row at once, as a beam search does."""

    def score_at(self, tokens: Tensor, positions: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        """Logits [B, n, V] after `tokens` [B, n] int64, each at a position and a place of its own.

        What a token is computed to goes to its place in the row's cache, [B, n] int64, and stays
        there until another token is given it. A token sees the places whose bits are set in its
        `seen` [B, n, W] int64, 64 places a number, the lowest bit first; its own is one of them.
        """


class BeamSession(Session):
    """A running batch of searches; each reports once, when it is over."""

    def _open_lanes(self) -> list[Any]:
        banned, native = _only_banned(self._config.constraints), None
        if banned is not None:
            opening = self._config.constraints.num_opening
            native = native_searches(self.verifier, banned, opening, self._timer)
        torches = TorchSearches(self.verifier, self.method, self._config, self._timer)
        return [torches] if native is None else [native, torches]

    def add(self, requests: Iterable[Request]) -> None:
        """As `Session.add`; refuses phrases that cannot be written, too."""
        requests, num, eos = list(requests), self.verifier.vocab_size, self.verifier.special.eos
        for one in requests:
            require(
                all(0 <= t < num and t != eos for phrase in one.required_ids for t in phrase),
                f"Request {one.id!r}: the phrases that it requires must hold token ids below {num} "
                f"and no end of sentence ({eos}).",
            )
        super().add(requests)

    def _round(self, lane: Any, most: int) -> list[RowEvent]:
        return [self._end(*one) for one in lane.search(most)]

    def _end(self, row: RowResult, hypotheses: list[Hypothesis], steps: int) -> RowEvent:
        """Report a finished search."""
        row.hypotheses, emitted = hypotheses, list[int]()
        if hypotheses:
            best, num_forced = hypotheses[0], len(row.request.forced_ids)
            emitted = best.token_ids[num_forced:]
            row.token_ids = best.token_ids
            row.token_scores = best.token_scores[num_forced:]
            forces_end = self._config.constraints.forced_last is not None
            eos = self.verifier.special.eos
            row.finish_reason = reason_of(row.request, best, eos, forces_end)
        else:
            row.finish_reason, row.token_ids = FinishReason.ERROR, []
        row.rounds = steps
        event = RowEvent(row.id, [], 0, emitted, row, row.token_scores)
        self.stats.observe(event)
        self.stats.rounds += steps - 1  # of which it has counted one
        return event


class TorchSearches(TorchLane):
    """Searches that Python advances, over the logits of any verifier."""

    def __init__(
        self, verifier: Verifier, method: Method, config: EngineConfig, timer: PartTimer
    ) -> None:
        super().__init__(verifier, method, config, timer)
        banned = _only_banned(config.constraints)
        self._reads_texts = banned is None  # the constraints do, or there is much to ban
        self._skipped = banned or frozenset[int]()
        self._searches = list[Search]()  # one of each row

    def admit(self, requests: Sequence[Request], now: float) -> None:
        super().admit(requests, now)
        special, opening = self.verifier.special, self._config.constraints.num_opening
        self._searches += [Search(r, special.start, special.eos, opening) for r in requests]

    def _select(self, keep: Sequence[int]) -> None:
        super()._select(keep)
        self._searches = [self._searches[row] for row in keep]

    @torch.inference_mode()
    def search(self, most: int) -> list[tuple[RowResult, list[Hypothesis], int]]:
        """A step of all; see `NativeSearches.search`."""
        found = {i: self._searches[i] for i, row in enumerate(self.rows) if not row.finished}
        with self._timer.part("verify"):
            logits = self._score(found, len(self.rows))
        with self._timer.part("rest"):
            best = self._best([*found.values()], logits)
            for search, candidates in zip(found.values(), best, strict=True):
                search.advance(candidates)
        return [(self.rows[i], own.result(), own.steps) for i, own in found.items() if own.is_over]

    def _score(self, searches: Mapping[int, Search], num_rows: int) -> Tensor:
        """[M, V] logits after each open hypothesis of the searches of some rows, in their order."""
        feeds: list[list[Open]] = []
        ends = list[int]()
        width = max(len(search.feeds) for search in searches.values())
        for index in range(num_rows):
            search = searches.get(index)
            feeds.append([] if search is None else search.feeds)
            if search is not None:
                stop = index * width + len(search.feeds)
                ends += range(stop - len(search.open), stop)
        told = self._read(feeds, width)
        self._count_forced({index: s for index, s in searches.items() if s.counts_forced}, told)
        flat = told.flatten(0, 1)
        return flat if len(ends) == len(flat) else flat[_index(ends, flat)]

    def _read(self, feeds: Sequence[Sequence[Open]], width: int) -> Tensor:
        """[B, width, V] logits after the tokens fed to each row, and junk after fewer of them."""
        most = max(feed.seen for own in feeds for feed in own).bit_length()
        has_junk = any(len(own) < width for own in feeds)
        num_words = -(-(most + has_junk) // _BITS)
        # Junk has a place of its own, for which there is room if there is junk.
        place = num_words * _BITS - 1
        junk = [Open(None, self.verifier.special.pad, 0, 0.0, place, 1 << place)]
        cells = [feed for own in feeds for feed in (*own, *junk * (width - len(own)))]
        numbers = [[c.token for c in cells], [c.position for c in cells], [c.place for c in cells]]
        bits = bytearray(b"".join(c.seen.to_bytes(8 * num_words, "little") for c in cells))
        device, shape = self.verifier.device, (len(feeds), width)
        tokens, positions, places = on_device(numbers, device).view(3, *shape)
        seen = torch.frombuffer(bits, dtype=torch.int64).view(*shape, num_words)
        verifier = cast(Branching, self.verifier)
        logits = verifier.score_at(tokens, positions, places, seen.to(device, non_blocking=True))
        return logits.float() if logits.itemsize < 4 else logits  # scores are long sums

    def _count_forced(self, searches: Mapping[int, Search], logits: Tensor) -> None:
        """logits: [B, N, V], of which the first are those of a row's forced tokens."""
        if not searches:
            return
        forced = {index: search.request.forced_ids for index, search in searches.items()}
        rows = [index for index, ids in forced.items() for _ in ids]
        places = [place for ids in forced.values() for place in range(len(ids))]
        tokens = [token for ids in forced.values() for token in ids]
        own = logits[_index(rows, logits), _index(places, logits)]  # [N, V]
        chosen = own.gather(1, _index(tokens, logits)[:, None])[:, 0].double()
        told = iter((chosen - log_total(own).double()).tolist())
        for index, search in searches.items():
            search.count_forced([next(told) for _ in forced[index]])

    def _best(self, searches: Sequence[Search], logits: Tensor) -> list[Sequence[Candidate] | None]:
        """The candidates of each search, best first; None where logits are no numbers."""
        totals = self._constrain(searches, logits)
        self._adjust([search for search in searches for _ in search.open], logits)
        count = 2 * max(search.beam.size for search in searches) + len(self._skipped) + 1
        scores, tokens = largest(logits, min(count, logits.shape[1]))
        asked, wanted = self._wanted(searches, logits)
        told = [scores.double(), tokens, totals.double(), wanted.double()]
        rows = zip(*to_host(told), strict=True)
        eos, found = self.verifier.special.eos, list[Sequence[Candidate] | None]()
        for search in searches:
            banned = self._skipped | {eos} if search.length < search.min_len else self._skipped
            parts = [next(rows) for _ in search.open]
            own = [(part[0], part[1], part[2]) for part in parts]
            if search.phrases is None:
                found.append(_merged(search, own, banned))
            else:
                more = [dict(zip(next(asked), part[3], strict=False)) for part in parts]
                found.append(_with_phrases(search, own, more, banned, eos))
        return found

    def _wanted(
        self, searches: Sequence[Search], logits: Tensor
    ) -> tuple[Iterator[list[int]], Tensor]:
        """Tokens that help each hypothesis of a search for phrases, and the logits of these.

        Logits: [M, N], a row for each hypothesis of any search, with junk after fewer tokens.
        """
        owners = [(search, one) for search in searches for one in search.open]
        asked = [[*search.wanted(one)] if search.phrases else [] for search, one in owners]
        most = max(map(len, asked))
        columns = [tokens + [0] * (most - len(tokens)) for tokens in asked]
        wanted = logits.gather(1, _index(columns, logits)) if most else logits[:, :0]
        return (own for own, (s, _) in zip(asked, owners, strict=True) if s.phrases), wanted

    def _constrain(self, searches: Sequence[Search], logits: Tensor) -> Tensor:
        """Apply the constraints in place; returns the log of the sum of all probabilities, [M].

        As in fairseq and transformers, what is banned keeps its share of the probabilities, unless
        the model asks for another normalisation. A few tokens that are always banned, and an early
        end, are left to `_merged`.
        """
        constraints, eos = self._config.constraints, self.verifier.special.eos
        totals = log_total(logits)
        if self._reads_texts or any(has_own(search.request.params) for search in searches):
            owners = [search for search in searches for _ in search.open]
            asked = [replace(s.request.params, min_len=s.min_len) for s in owners]
            logits -= totals[:, None]
            params = DecodeParams.stack(asked, logits.device)
            nothing = Draft.empty(len(owners), logits.device)
            constrain(logits[:, None], self._texts(searches), nothing, params, eos, constraints)
            totals = torch.zeros_like(totals)
        return log_total(logits) if constraints.renormalizes else totals

    def _adjust(self, owners: Sequence[Search], logits: Tensor) -> None:
        """Penalise unknown words, and leave only the end where a text has to end."""
        special = self.verifier.special
        penalties = [search.beam.unknown_penalty for search in owners]
        if any(penalties):
            logits[:, special.unk] -= on_device(penalties, logits.device, logits.dtype)
        if last := [i for i, search in enumerate(owners) if search.must_end]:
            rows = _index(last, logits)
            ends = logits[rows, special.eos]
            logits[rows] = -math.inf
            logits[rows, special.eos] = ends

    def _texts(self, searches: Sequence[Search]) -> Prefix:
        """The open hypotheses as the constraints read them."""
        start, device = self.verifier.special.start, self.verifier.device
        texts = [[start, *search.text(one)[0]] for search in searches for one in search.open]
        lengths, width = [len(text) for text in texts], max(map(len, texts))
        tokens = on_device([text + [0] * (width - len(text)) for text in texts], device)
        active = torch.ones(len(texts), dtype=torch.bool, device=device)
        return Prefix(tokens, on_device(lengths, device), active, width)


def _only_banned(constraints: Constraints) -> frozenset[int] | None:
    """Tokens that are never emitted, if the constraints are nothing else and ban a few."""
    words = constraints.bad_words
    plain = replace(FREE, bad_words=words, num_opening=constraints.num_opening)
    if constraints != plain or len(words) > 4 or any(len(word) > 1 for word in words):
        return None
    return frozenset(word[0] for word in words)


def _index(rows: Sequence[Any], like: Tensor) -> Tensor:
    return on_device(rows, like.device, torch.int64)


def _merged(
    search: Search, rows: Sequence[tuple[list[float], list[int], float]], banned: Collection[int]
) -> list[Candidate] | None:
    """The best candidates, given each hypothesis' best logits, their tokens, and the total.

    Of equal ones the first: results must not depend on how many candidates others asked for.
    """
    found, kept = list[Candidate](), list[Candidate]()
    for parent, (scores, tokens, total) in enumerate(rows):
        if not total < math.inf:  # or no number
            return None
        before = search.open[parent].total - total
        found += [
            (before + score, parent, token) for score, token in zip(scores, tokens, strict=True)
        ]
    found.sort(key=itemgetter(0), reverse=True)
    for one in found:
        if len(kept) == 2 * search.beam.size or one[0] == -math.inf:
            break
        if one[2] not in banned:
            kept.append(one)
    return kept


def _with_phrases(
    search: Search,
    rows: Sequence[tuple[list[float], list[int], float]],
    wanted: Sequence[Mapping[int, float]],
    banned: Collection[int],
    eos: int,
) -> Sequence[Candidate] | None:
    """As `_merged`, of a search for phrases; wanted: the logits of tokens that help, of each.

    Beside the best candidates stand the best one of each hypothesis, and those that are wanted.
    """
    found, chosen = set[Candidate](), set[Candidate]()
    for parent, ((scores, tokens, total), more) in enumerate(zip(rows, wanted, strict=True)):
        if not total < math.inf:
            return None
        one = search.open[parent]
        never, before = {*banned, eos} if search.lacks_phrases(one) else banned, one.total - total
        own = {
            (before + score, parent, token)
            for token, score in [*zip(tokens, scores, strict=True), *more.items()]
            if token not in never and score > -math.inf
        }
        found |= own
        chosen |= {*sorted(own)[-1:], *(each for each in own if each[2] in more)}
    chosen |= {*sorted(found)[-2 * search.beam.size :]}
    return search.allotted(sorted(chosen, reverse=True))


class Lanes:
    """Two running batches that take turns: of requests with a beam, and of others."""

    def __init__(self, plain: Session, searching: Session) -> None:
        self._plain, self._searching = plain, searching
        self.stats = plain.stats  # with the times of both, and the counts of `plain`

    def __len__(self) -> int:
        return len(self._plain) + len(self._searching)

    def add(self, requests: Iterable[Request]) -> None:
        """As `Session.add`."""
        requests = list(requests)
        self._searching.add(r for r in requests if r.params.beam is not None)
        self._plain.add(r for r in requests if r.params.beam is None)

    def cancel(self, ids: Collection[str]) -> list[RowEvent]:
        """As `Session.cancel`."""
        return [*self._plain.cancel(ids), *self._searching.cancel(ids)]

    def step(self, most: int = 1) -> list[RowEvent]:
        """A round of each batch; if only one runs, up to `most`, as of `Session.step`."""
        most = 1 if len(self._searching) and len(self._plain) else most
        events = [*self._plain.step(most), *self._searching.step(most)]
        theirs, own = self._searching.stats.seconds, self.stats.seconds
        own.update({name: own.get(name, 0.0) + seconds for name, seconds in theirs.items()})
        theirs.clear()
        return events

    def close(self) -> None:
        """As `Session.close`."""
        self._plain.close()
        self._searching.close()


class BeamDecoder(SpeculativeDecoder):
    """Beam search for any number of concurrent callers, each in its own session."""

    new_session = BeamSession

    def __init__(self, verifier: Branching, config: EngineConfig | None = None) -> None:
        """Requests say how to search in `DecodeParams.beam`; those that do not decode greedily."""
        super().__init__(verifier, Method(None, Exact(), Constant(Constant.Config())), config)
