"""Decodes one text with several translators in this process, and tabulates the results."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

from sacrebleu.metrics.bleu import BLEU

from benchmarks.measure import interleave
from benchmarks.reports import Columns, number, place, table
from specdec_plugins.app.files import in_buffers
from specdec_plugins.app.loading import build_decoder, read_words
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.app.types import Limits, Sentence
from specdec_plugins.corpus.resume import Log
from specdec_plugins.decoding.engine import Method, SpeculativeDecoder
from specdec_plugins.decoding.rules.exact import Exact
from specdec_plugins.decoding.schedules.constant import Constant
from specdec_plugins.errors import require

NUM_WARM_UP = 5  # sentences that every translator decodes first, not counted
FAIRSEQ_BEAM, FAIRSEQ_GREEDY, BEAM, GREEDY, EXACT, RELAXED = (
    "fairseq beam 5",
    "fairseq greedy",
    "ours, beam 5",
    "AR greedy",
    "SpecDec exact",
    "SpecDec relaxed",
)


@dataclass(frozen=True)
class Decoding:
    """All results of one system."""

    name: str
    # As from `Translation.to_dict`, but the time is an even share of the batch's.
    translations: Sequence[Mapping[str, Any]]

    def select(self, chosen: Sequence[int]) -> Decoding:
        """The decoding of some sentences, counted from 0."""
        return Decoding(self.name, [self.translations[i] for i in chosen])

    @property
    def texts(self) -> list[str]:
        return [one["text"] for one in self.translations]

    @property
    def mean_accepted_tokens(self) -> float | None:
        """Tokens a round, eos not counted (Xia et al. 2023); None where there are no rounds."""
        drafted = [one for one in self.translations if one["emitted"]]  # a search has none
        rounds = sum(len(one["emitted"]) for one in drafted)
        ends = sum(one["finish_reason"] == "eos" for one in drafted)
        tokens = sum(sum(one["emitted"]) for one in drafted)
        return (tokens - ends) / rounds if rounds else None

    @property
    def seconds_per_sentence(self) -> float:
        milliseconds = [one["milliseconds"] for one in self.translations]
        return sum(milliseconds) / 1000 / len(milliseconds)

    def speed_against(self, other: Decoding) -> float:
        """How many times faster."""
        return other.seconds_per_sentence / self.seconds_per_sentence

    def differing(self, other: Decoding) -> list[int]:
        """The sentences, counted from 0, whose tokens differ."""
        pairs = zip(self.translations, other.translations, strict=True)
        return [i for i, (mine, others) in enumerate(pairs) if mine["tokens"] != others["tokens"]]


def decode(
    systems: Mapping[str, SpeculativeTranslator],
    sentences: Sequence[Sentence],
    size: int,
    log: Log | None = None,
) -> list[Decoding]:
    """Decode every sentence with every system, `size` at a time; see `measure.interleave`."""
    for translator in systems.values():
        translator.translate_sentences(sentences[:NUM_WARM_UP])
    calls = [partial(_timed, translator) for translator in systems.values()]
    made = interleave(calls, list(in_buffers(sentences, size)), log=log)
    decodings = []
    for name, [parts] in zip(systems, made, strict=True):
        records = [record for part in parts for record in part["translations"]]
        decodings.append(Decoding(name, sorted(records, key=itemgetter("id"))))
    return decodings


def _timed(translator: SpeculativeTranslator, sentences: Sequence[Sentence]) -> dict[str, Any]:
    """Translations as `Translation.to_dict` has them, for JSON."""
    translations = translator.translate_sentences(sentences)
    share = max(t.seconds for t in translations) / len(sentences)
    return {"translations": [replace(t, seconds=share).to_dict() for t in translations]}


def same_networks(translator: SpeculativeTranslator, **changes: Any) -> SpeculativeTranslator:
    """The same networks under other settings: strategy AR, a tolerance, a shorter block.

    translator: one of strategy specdec. Raises UserError for an impossible setting.
    """
    settings = replace(translator.settings, **changes)
    decoder, limits = translator.decoder, translator.limits
    assert isinstance(decoder, SpeculativeDecoder)
    method = decoder.method
    if settings.drafts:
        method = replace(method, rule=settings.acceptance)
    else:
        method = Method(None, Exact(), Constant(Constant.Config()))
    require(
        (settings.block_size or 0) <= limits.block_size,
        f"--block-size {settings.block_size} is more than the {limits.block_size} that the "
        "drafter was loaded for.",
    )
    limits = replace(limits, block_size=settings.block_size or limits.block_size)
    built = build_decoder(settings, decoder.verifier, method, decoder.config.constraints)
    return SpeculativeTranslator(settings, translator.codec, built, limits)


def by_fairseq(settings: Settings, beam: int) -> SpeculativeTranslator:
    """A translator that finds the best hypothesis of fairseq's own search, by the same verifier.

    Its settings are of greedy decoding, which plans the same requests.
    """
    from benchmarks.engines.fairseq import FairseqSearch  # which takes seconds to import

    plain = replace(settings, strategy="AR", drafter_checkpoint=None, rule=None, beta=1, tau=0.0)
    search = FairseqSearch(plain, beam, plain.max_lens[1], plain.minimum)
    limits = Limits(search.max_source_positions, search.max_target_tokens, 0)
    return SpeculativeTranslator(plain, read_words(plain).codec, search, limits)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide messages that fairseq and the libraries below it write for developers."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=UserWarning)
            yield
    finally:
        logging.disable(before)


def summary(
    decodings: Iterable[Decoding], references: Sequence[str], relaxed: tuple[int, float]
) -> str:
    """The demos' summary of the systems named above: a table, and its meaning in a sentence."""
    named = {decoding.name: decoding for decoding in decodings}
    beta, tau = relaxed
    bleu = BLEU()
    shown = table(_columns(named, references, bleu), named.values())
    return (
        f"{len(references)} sentences, one at a time, on {place()}:\n\n"
        f"{shown}\n\n{_meaning(named)}\n\n"
        f"BLEU: {bleu.get_signature()}\n"
        "accepted tokens: mean per round, with the verifier's own, without the end of sentence\n"
        "limits of all systems: 200 tokens, no <pad>, no empty translation; "
        f"relaxed: beta {beta}, tau {tau:g}"
    )


def _columns(named: Mapping[str, Decoding], references: Sequence[str], bleu: BLEU) -> Columns:
    total = len(references)

    def same(decoding: Decoding) -> str:
        found = total - len(decoding.differing(named[GREEDY]))
        return f"{found}/{total} ({share(found, total)})"

    against = {"vs fairseq greedy": FAIRSEQ_GREEDY, "vs our AR": GREEDY}
    return {
        "decoding": lambda one: one.name,
        "BLEU": lambda one: f"{bleu.corpus_score(one.texts, [references]).score:.2f}",
        "same as greedy": same,
        "accepted tokens": lambda one: number(one.mean_accepted_tokens),
        "s a sentence": lambda one: f"{one.seconds_per_sentence:.4f}",
        **{
            title: partial(lambda other, one: f"{one.speed_against(other):.2f}x", named[name])
            for title, name in against.items()
            if name in named
        },
    }


def _meaning(named: Mapping[str, Decoding]) -> str:
    """The table in a sentence."""
    total = len(named[GREEDY].texts)
    same = total - len(named[EXACT].differing(named[GREEDY]))
    others = [name for name in (FAIRSEQ_GREEDY, GREEDY) if name in named]

    def speeds(mine: str) -> str:
        against = {name: named[mine].speed_against(named[name]) for name in others}
        return " and ".join(f"{x:.2f} times as fast as {name}" for name, x in against.items())

    return (
        f"In short: {EXACT} gave {GREEDY}'s translation of {same} of {total} sentences, "
        f"{speeds(EXACT)}; {RELAXED} ({speeds(RELAXED)}) may choose other words."
    )


def share(part: int, whole: int) -> str:
    """A percentage, rounded down so that it is 100 % only for all of them."""
    tenths = part * 1000 // whole if whole else 0
    return f"{tenths / 10:g} %"
