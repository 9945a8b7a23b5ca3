"""Several ways to decode one text, measured side by side and laid out as one table.

The text is cut into chunks. Each is decoded by every way before the next, in an order that rotates,
so that a noisy machine disturbs all of them alike. Ratios are taken within one repetition.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sacrebleu.metrics.bleu import BLEU

from benchmarks.comparison import Decoding, markdown
from benchmarks.ways import Way
from specdec_plugins.app.strategies import DrafterAlone, EngineDecoder
from specdec_plugins.app.translator import SpeculativeTranslator, load_translator
from specdec_plugins.app.types import Clock, Sentence, Translation

NUM_WARM_UP = 5  # sentences, not counted
HEADER = (
    *("decoding", "guarantee", "same as greedy", "BLEU", "accepted tokens"),
    *("ms a sentence", "of these drafter", "verifier", "against AR greedy"),
)


@dataclass
class Figures:
    """What came of one way; times are seconds a sentence, one for each repetition."""

    name: str
    guarantee: str
    baseline: str  # name of the way that it is measured against
    num_sentences: int
    num_same: int  # sentences with the baseline's tokens
    bleu: float | None  # None = no reference was given
    accepted: float | None  # tokens a round, the verifier's own counted and eos not
    total: list[float]
    draft: list[float]
    verify: list[float]
    speed: list[float]  # times the baseline's

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass
class Measured:
    """A way at work."""

    way: Way
    translator: SpeculativeTranslator
    translations: list[Translation] = field(default_factory=list)  # of the last repetition
    seconds: list[dict[str, float]] = field(default_factory=list)  # by part; one a repetition

    def begin(self) -> None:
        self.translations = []
        self.seconds.append({"total": 0.0, "draft": 0.0, "verify": 0.0})

    def decode(self, sentences: Sequence[Sentence], clock: Clock) -> None:
        before, start = dict(self.translator.stats.seconds), clock()
        self.translations += self.translator.translate_sentences(sentences)
        now = self.seconds[-1]
        now["total"] += clock() - start
        for part in ("draft", "verify"):
            now[part] += self.translator.stats.seconds.get(part, 0.0) - before.get(part, 0.0)

    def each(self, part: str) -> list[float]:
        """Seconds a sentence by repetition."""
        return [seconds[part] / len(self.translations) for seconds in self.seconds]

    def decoding(self) -> Decoding:
        return Decoding.of(self.way.name, self.translations)


def measure(
    ways: Sequence[Way],
    sentences: Sequence[Sentence],
    clock: Clock,
    repeats: int = 3,
    chunk: int = 20,
    on_done: Callable[[int], None] = lambda sentences: None,
) -> list[Measured]:
    """Decode all sentences in all ways, `repeats` times, `chunk` sentences at a turn.

    Raises UserError where a way cannot be loaded or a sentence does not fit.
    """
    at_work = [Measured(way, load_translator(way.settings)) for way in ways]
    for one in at_work:
        use_clock(one.translator, clock)
        one.translator.translate_sentences(sentences[:NUM_WARM_UP])
    chunks = [sentences[i : i + chunk] for i in range(0, len(sentences), chunk)]
    for repeat in range(repeats):
        for one in at_work:
            one.begin()
        for turn, part in enumerate(chunks):
            for index in range(len(at_work)):
                # The order rotates, so that nobody always runs in another's wake.
                at_work[(index + turn + repeat) % len(at_work)].decode(part, clock)
                on_done(len(part))
    return at_work


def use_clock(translator: SpeculativeTranslator, clock: Clock) -> None:
    """Let it measure its parts by this clock."""
    strategy = translator.decoder
    if isinstance(strategy, EngineDecoder):
        strategy.config = replace(strategy.config, clock=clock)
    elif isinstance(strategy, DrafterAlone):
        strategy.clock = clock


def figures(
    measured: Sequence[Measured],
    baseline_of: Mapping[str, str],
    references: Sequence[str] | None = None,
) -> list[Figures]:
    """One record a way. baseline_of: by the name of each way that of its baseline."""
    by_name = {one.way.name: one for one in measured}
    found = []
    for one in measured:
        other = by_name[baseline_of[one.way.name]]
        decoding, total = one.decoding(), one.each("total")
        bleu = None
        if references is not None:
            bleu = BLEU().corpus_score(decoding.texts, [list(references)]).score
        found.append(
            Figures(
                name=one.way.name,
                guarantee=one.way.guarantee,
                baseline=other.way.name,
                num_sentences=len(decoding.texts),
                num_same=len(decoding.texts) - len(decoding.differing(other.decoding())),
                bleu=bleu,
                accepted=decoding.mean_accepted_tokens,
                total=total,
                draft=one.each("draft"),
                verify=one.each("verify"),
                speed=[
                    theirs / own for own, theirs in zip(total, other.each("total"), strict=True)
                ],
            )
        )
    return found


def table(rows: Sequence[Figures]) -> str:
    """What people read: medians, and the spread of the speed in brackets."""
    return markdown(HEADER, [_cells(row) for row in rows])


def _cells(row: Figures) -> list[str]:
    def milliseconds(values: Sequence[float]) -> str:
        middle = 1000 * statistics.median(values)
        return f"{middle:.1f}" if middle else "-"

    return [
        row.name,
        row.guarantee,
        f"{row.num_same} of {row.num_sentences}",
        "-" if row.bleu is None else f"{row.bleu:.2f}",
        "-" if row.accepted is None else f"{row.accepted:.2f}",
        *(milliseconds(values) for values in (row.total, row.draft, row.verify)),
        spread(row.speed),
    ]


def spread(ratios: Sequence[float]) -> str:
    """The median, and the range where there is one."""
    middle = f"{statistics.median(ratios):.2f}x"
    return middle if len(ratios) == 1 else f"{middle} ({min(ratios):.2f} to {max(ratios):.2f})"
