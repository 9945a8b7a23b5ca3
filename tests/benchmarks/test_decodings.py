"""Translators of one process, interleaved on scripted parts, and what the demonstrations show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.decodings import (
    EXACT,
    FAIRSEQ_GREEDY,
    GREEDY,
    RELAXED,
    Decoding,
    decode,
    same_networks,
    share,
    summary,
)
from specdec_plugins.app.translator import SpeculativeTranslator, number_sentences
from specdec_plugins.corpus.resume import Log
from tests.app.toys import translated, translator
from tests.refusals import refused

LINES = ["a b", "c d e", "", "f"]


def test_the_same_networks_under_another_method() -> None:
    exact = translator()
    greedy = same_networks(exact, strategy="AR", drafter_checkpoint=None)
    relaxed = same_networks(exact, beta=3, tau=1.0, block_size=2)
    engines: list[Any] = [made.decoder for made in (exact, greedy, relaxed)]
    assert len({id(engine.verifier) for engine in engines}) == 1
    assert engines[1].method.drafter is None
    assert engines[2].method.drafter is engines[0].method.drafter
    assert (relaxed.limits.block_size, exact.settings.beta) == (2, 1)
    assert [t.text for t in greedy.translate(LINES)] == [translated(line) for line in LINES]
    refused("--block-size 9 is more than the 4", same_networks, exact, block_size=9)


def decoded(
    systems: dict[str, SpeculativeTranslator], lines: Sequence[str], **options: Any
) -> list[Decoding]:
    return decode(systems, number_sentences(lines), 1, **options)


def column(decoding: Decoding, name: str) -> list[Any]:
    return [one[name] for one in decoding.translations]


def test_batches_give_what_single_sentences_give_and_share_their_time() -> None:
    lines = [*LINES, "a b c d", "e f", "g"]
    by_length = sorted(number_sentences(lines), key=lambda sentence: len(sentence.text))
    systems = {"exact": translator(batch=3)}
    (single,) = decoded(systems, lines)
    (many,) = decode(systems, by_length, 3)
    assert many.texts == single.texts
    assert column(many, "emitted") == column(single, "emitted")
    # By length: "", "f", "g"; "a b", "e f", "c d e"; "a b c d".
    times = column(many, "milliseconds")
    assert times[0] == times[1] == times[5] > 0
    assert times[3] == times[2] == times[6]


def test_what_was_stopped_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systems = {"exact": translator(), "short": same_networks(translator(), beta=3)}
    path = tmp_path / "new" / "log"
    log = Log(path, {"of": 1})

    def add_until_the_third(entry: Any) -> None:
        if len(log.entries) == 2:
            raise InterruptedError
        Log.add(log, entry)

    monkeypatch.setattr(log, "add", add_until_the_third)
    with pytest.raises(InterruptedError):
        decoded(systems, LINES, log=log)
    log = Log(path, {"of": 1})
    assert len(log.entries) == 2
    kept = [[made["translations"][0]["milliseconds"] for made in entry] for entry in log.entries]
    again = decoded(systems, LINES, log=log)
    fresh = decoded(systems, LINES)
    assert [one.texts for one in again] == [one.texts for one in fresh]
    assert [column(one, "emitted") for one in again] == [column(one, "emitted") for one in fresh]
    # What was decoded before was taken as it was.
    assert [[column(one, "milliseconds")[at] for one in again] for at in range(2)] == kept
    assert len(Log(path, {"of": 1}).entries) == len(LINES)


def record(
    text: str, emitted: list[int], milliseconds: float, reason: str = "eos"
) -> dict[str, Any]:
    fields: dict[str, Any] = {"text": text, "tokens": text.split(), "emitted": emitted}
    return {**fields, "milliseconds": milliseconds, "finish_reason": reason}


def test_accepted_tokens_leave_out_each_end_of_sentence_once() -> None:
    def mean_of(*records: dict[str, Any]) -> float | None:
        return Decoding("x", records).mean_accepted_tokens

    # 3 + 2 tokens with eos in two rounds, and 4 tokens cut by the limit in one: (5 - 1 + 4) / 3.
    cut = record("a b c d", [4], 7, "length")
    assert mean_of(record("a b c d", [3, 2], 5), cut) == pytest.approx(8 / 3)
    # Plain decoding scores L / (L + 1), and a search without rounds has none.
    assert mean_of(record("a b c", [1, 1, 1, 1], 5)) == pytest.approx(3 / 4)
    assert mean_of(record("a b c", [], 5)) is None


def test_the_table_measures_against_both_greedy_decodings_and_says_what_it_means() -> None:
    text = "the cat sat on the mat"
    decodings = [
        Decoding(FAIRSEQ_GREEDY, [record(text, [], 60), record("b c", [], 20)]),
        Decoding(GREEDY, [record(text, [1] * 7, 30), record("b c", [1] * 3, 10)]),
        Decoding(EXACT, [record(text, [7], 6), record("b d", [3], 2)]),
        Decoding(RELAXED, [record(text, [7], 6), record("b c", [3], 4)]),
    ]
    shown = summary(decodings, [text, "b c"], (3, 1.0))
    lines = [line.strip("| ") for line in shown.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    assert cells[0][:3] == ["decoding", "BLEU", "same as greedy"]
    assert cells[3][:2] == [GREEDY, "100.00"]
    assert cells[3][2:] == ["2/2 (100 %)", "0.80", "0.0200", "2.00x", "1.00x"]
    assert cells[4][2:] == ["1/2 (50 %)", "4.00", "0.0040", "10.00x", "5.00x"]
    assert (
        "In short: SpecDec exact gave AR greedy's translation of 1 of 2 sentences, 10.00 times as "
        "fast as fairseq greedy and 5.00 times as fast as AR greedy; SpecDec relaxed (8.00 times "
        "as fast as fairseq greedy and 4.00 times as fast as AR greedy) may choose other words."
        in shown
    )


def test_only_all_of_them_are_100_percent() -> None:
    shares = [share(*of) for of in ((1999, 2000), (2000, 2000), (0, 7), (0, 0))]
    assert shares == ["99.9 %", "100 %", "0 %", "0 %"]
