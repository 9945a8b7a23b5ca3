"""Sentences that do not fit: in pieces where they can be divided, told of where they cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specdec_plugins.app.codec import Codec
from specdec_plugins.app.planning import How, Part, joined
from specdec_plugins.app.report import Flaws
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.app.types import Sentence
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.requests import DecodeParams, FinishReason, RowResult
from specdec_plugins.errors import UnreadableError
from specdec_plugins.text.sentences import halves
from tests.app.toys import DICTIONARY, ScriptedVerifier, codec, translated, translator
from tests.refusals import refused

LONG = " ".join("abcdefghijklmnopqrst"[i % 20] for i in range(60))  # 121 target tokens, of 90


class PickyCodec(Codec):
    """Cannot read a text of which every word begins with z."""

    def source_ids(self, line: str) -> list[int]:
        if line and all(word.startswith("z") for word in line.split()):
            raise UnreadableError(f"no letter of {line!r} is known.")
        return super().source_ids(line)


class RawCodec(PickyCodec):
    """Reads raw text."""

    @property
    def reads_raw(self) -> bool:
        return True


def picky(**settings: Any) -> SpeculativeTranslator:
    made = translator(**settings)
    made.codec = PickyCodec(DICTIONARY, DICTIONARY)
    return made


def halved(text: str) -> str:
    """The right answer to a text of words that is translated in two pieces."""
    words = text.split()
    middle = len(words) // 2
    return f"{translated(' '.join(words[:middle]))} {translated(' '.join(words[middle:]))}"


def endless(it: SpeculativeTranslator) -> SpeculativeTranslator:
    """With a verifier that repeats the first word for ever."""
    assert isinstance(it.decoder, SpeculativeDecoder)
    assert isinstance(it.decoder.verifier, ScriptedVerifier)
    it.decoder.verifier.answer = lambda ids: [ids[0]] * 999
    return it


@pytest.mark.parametrize("strategy", ["specdec", "AR", "drafter"])
def test_a_sentence_that_reaches_its_limit_is_translated_in_pieces(strategy: str) -> None:
    it = translator(strategy, source=99)
    before, [short, long, other] = [], it.translate(["a b c", LONG, "d"])
    assert (short.text, other.text) == (translated("a b c"), "d d")
    assert (long.text, long.finish_reason) == (halved(LONG), "eos")
    assert long.tokens == long.text.split()
    assert sum(long.emitted) == len(long.tokens) + 2
    it.translate_sentences([Sentence(4, LONG), Sentence(5, "")], lambda: before.append(1))
    assert len(before) == 2
    assert [*it.stream(LONG)][-1] == long.text


def test_a_limit_that_was_asked_for_is_one() -> None:
    for bounded in ({"max_len_b": 90}, {"max_len_a": 2.0, "max_len_b": 0}):
        [done] = translator(source=99, **bounded).translate([LONG])
        assert (done.tokens, done.finish_reason) == (translated(LONG).split()[:90], "length")


def test_what_cannot_be_divided_stays_cut_and_is_said_to_be() -> None:
    it = endless(translator())
    [word, two, _] = it.translate(["a", "a b", ""])
    assert (word.finish_reason, len(word.tokens)) == ("length", 90)
    # Each word is tried alone, but no longer for ever: three tokens each and twenty.
    assert (two.finish_reason, two.text.split()) == ("length", ["a"] * 26 + ["b"] * 26)
    [tokens] = it.translate_tokens([["a", "b"]])
    assert (tokens.finish_reason, len(tokens.tokens)) == ("length", 90)


def test_repeating_itself_costs_a_bounded_number_of_tokens() -> None:
    it = endless(translator("AR", source=99))
    num_words = 32
    it.translate(["a " * num_words])
    depth = num_words.bit_length()
    assert it.stats.emitted <= 90 + depth * (3 + 23) * 2 * num_words


def test_raw_text_that_repeats_itself_ends_at_once_and_is_said_to() -> None:
    it = endless(translator("AR", protect=True, no_repeat_ngram_size=50))
    plain = it.translate("a b")
    it.codec = RawCodec(DICTIONARY, DICTIONARY)
    done = it.translate("a b")
    assert (done.text.split(), done.finish_reason) == (["a"] * 6 + ["b"] * 6, "repetition")
    assert (done.is_cut, done.repeats, plain.finish_reason) == (True, True, "length")
    said = list[str]()
    flaws = Flaws(said.append)
    flaws.add(1, "line 1", done)
    flaws.sum_up()
    cut = "cut as it repeats itself, so the end is missing."
    assert said == [f"line 1: is {cut}", f"line 1: {cut}"]
    for number in range(2, 13):
        flaws.add(number, f"line {number}", done)
    flaws.sum_up()
    assert said[-1] == f"lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more: {cut}"


def test_a_source_that_is_too_long_is_read_in_pieces() -> None:
    it = translator(source=5)
    [done] = it.translate(["a b c d e f"])
    assert (done.text, done.finish_reason) == ("c c b b a a f f e e d d", "eos")
    assert [*it.stream("a b c d e f")][-1] == done.text
    assert it.prepare(Sentence(1, "a b c d e f")) is None
    [forced] = it.translate_sentences([Sentence(1, "a b c d e f", prefix="p")])
    assert forced.text == "p c b b a a f f e e d d"
    tokens = [["a"], [*"abcdef"]]  # which are not divided
    refused("sentence 2: has 6 tokens, more than the 4 that", strict(it).translate_tokens, tokens)
    assert it.translate_tokens(tokens)[1].finish_reason == "unreadable"


def strict(it: SpeculativeTranslator) -> SpeculativeTranslator:
    """Refuses what it cannot read."""
    settings = replace(it.settings, on_unreadable="fail")
    return SpeculativeTranslator(settings, it.codec, it.decoder, it.limits)


def test_what_cannot_be_read_is_copied_and_the_others_are_translated() -> None:
    it = picky()
    one, bad, two = it.translate(["a", "z zb", "c"])
    assert (one.text, two.text) == ("a a", "c c")
    assert (bad.text, bad.finish_reason, bad.score) == ("z zb", "unreadable", None)
    assert bad.fault == "no letter of 'z zb' is known."
    assert [*it.stream("z zb")] == ["z zb"]
    refused("sentence 2: no letter of 'z' is known", strict(it).translate, ["a", "z"])
    # Only what is too long is divided, and only its unreadable piece is copied.
    it.limits = translator(source=4).limits
    [mixed] = it.translate(["a b c z z z"])
    assert (mixed.text, mixed.finish_reason) == ("c c b b a a z z z", "unreadable")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two, three four.", ("One two,", " ", "three four.")),
        ("Is it? Yes, it is, indeed.", ("Is it?", " ", "Yes, it is, indeed.")),
        ("a, much longer sentence than it was", ("a, much longer", " ", "sentence than it was")),
        ("你好，我很好。", ("你好，", "", "我很好。")),
        ("one\u3000two", ("one", "\u3000", "two")),
        ("word", None),
        (" word", None),
        ("", None),
    ],
)
def test_where_a_sentence_is_cut(text: str, expected: tuple[str, str, str] | None) -> None:
    assert halves(text, Codec(DICTIONARY, DICTIONARY, None, None).separates) == expected


@pytest.mark.parametrize(
    ("mark", "text", "expected"),
    [
        ("@@ ", "a b@@ c@@ d", "a"),
        ("@@ ", "a@@ b", None),
        ("sentencepiece", "\u2581a b c \u2581d", "\u2581a b c"),
    ],
)
def test_no_word_is_cut_between_its_subwords(mark: str, text: str, expected: str | None) -> None:
    found = halves(text, codec(mark).separates)
    assert (found[0] if found else None) == expected


@pytest.mark.parametrize(
    ("first", "gap", "expected"),
    [("one,", "", "one, x"), ("one,", "\t", "one,\tx"), ("你好，", " ", "你好，x")],
)
def test_pieces_are_joined_as_their_language_is_written(
    first: str, gap: str, expected: str
) -> None:
    how = How(codec(), DecodeParams(), 9, lambda num_source: num_source)
    parts = [Part[RowResult](first, how), Part[RowResult]("x", how, gap=gap, continues=True)]
    assert joined(parts) == expected
    parts[1].continues = False  # a sentence of its own
    assert joined(parts) == first + gap + "x"


def test_unknown_words_and_loops_are_decoded_once_more() -> None:
    """With what they show banned, as often as that helps; and never what was asked for so."""
    how: How = replace(picky()._how(Sentence(1, "a"), codec()), protects=True, mends=True)

    def again(part: Part[RowResult], ids: list[int]) -> Part[RowResult]:
        assert part.request is not None
        reason = FinishReason.EOS
        part.result = RowResult(part.request, ids, rounds=1, finish_reason=reason)
        [new] = part.settled()
        return new

    [part] = how.parts("a b c", "1", seed=5)
    first = again(part, [5, 6, 3, 7, 2])
    assert first.request is not None
    assert (first.request.params.banned, first.request.params.seed) == ((3,), 5)
    assert first.request.id != "1"
    second = again(first, [4, *[6, 7] * 6, 2])
    assert second.request is not None
    assert second.request.params == replace(first.request.params, no_repeat_ngram_size=4)
    assert again(second, [4, *[6, 7] * 6, 2]) is second
    [part] = how.parts(" ".join(["a b"] * 9), "1", seed=5)
    assert again(part, [*[6, 7] * 9, 2]) is part  # as the source does
    plain: list[Part[RowResult]] = replace(how, mends=False).parts("a b", "1", seed=5)
    assert again(plain[0], [3, 2]) is plain[0]
