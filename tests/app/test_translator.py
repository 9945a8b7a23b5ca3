"""Sentences in, translations out, over scripted models: order, limits, prefixes, streams."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import numpy
import pytest

from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.app.types import Sentence
from specdec_plugins.errors import UserError
from tests.app.toys import translated, translator
from tests.refusals import refused

LINES = ["a b c", "", "d", "e f g h i", "  ", "j k", "c"]
ANSWERS = [translated(line) if line.strip() else line for line in LINES]
STRATEGIES = ["specdec", "AR", "drafter"]


def texts(it: SpeculativeTranslator, lines: Sequence[str]) -> list[str]:
    return [translation.text for translation in it.translate(lines)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("count", "batch"), [(1, 8), (7, 1), (7, 3), (7, 20), (20, 8), (1003, 8)])
def test_every_line_comes_back_in_its_place(strategy: str, count: int, batch: int) -> None:
    lines = [LINES[i % 7] for i in range(count)]
    assert texts(translator(strategy, batch), lines) == [ANSWERS[i % 7] for i in range(count)]


def test_counts_of_a_sentence() -> None:
    [one, empty, _, _, _, _, _] = translator().translate_sentences(
        [Sentence(n, line) for n, line in enumerate(LINES, 1)]
    )
    # Seven tokens with eos, in blocks of four and the verifier's own.
    assert (one.rounds, one.drafted, one.accepted, one.emitted) == (2, [4, 4], [4, 2], [5, 2])
    assert one.finish_reason == "eos"
    assert one.tokens == ["c", "c", "b", "b", "a", "a"]
    assert one.seconds > 0
    assert (empty.text, empty.tokens, empty.finish_reason) == ("", [], "empty")
    keys = "id text tokens score mean_score least_token least_score token_scores rounds drafted"
    assert " ".join(one.to_dict()) == f"{keys} accepted emitted finish_reason milliseconds"
    assert one.to_dict()["milliseconds"] == round(one.seconds * 1000, 3)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_len_b": 4}, "c c b b"),
        ({"max_len_b": 5}, "c c b b a"),
        ({"max_len_b": 1}, "c"),
        # Four source tokens with eos.
        ({"max_len_a": 0.5, "max_len_b": 1}, "c c b"),
        ({"max_len_b": 6}, "c c b b a a"),
        ({"max_len_b": 7}, "c c b b a a"),
        ({"max_len_a": 1e300, "max_len_b": 7}, "c c b b a a"),
    ],
)
def test_length_limits(strategy: str, changes: dict[str, float], expected: str) -> None:
    it = translator(strategy, **changes)
    [done] = it.translate_sentences([Sentence(1, "a b c")])
    assert done.text == expected
    assert done.finish_reason == ("eos" if it.settings.max_len_b == 7 else "length")


@pytest.mark.parametrize(("minimum", "emitted"), [(0, 3), (2, 3), (3, 4), (4, 5)])
def test_min_len_bans_the_end(minimum: int, emitted: int) -> None:
    it = translator("AR", min_len=minimum, max_len_b=9)
    [done] = it.translate_sentences([Sentence(1, "d")])
    # Where eos was the script's choice another id stands until it is free.
    assert (done.text, sum(done.emitted), done.finish_reason) == ("d d", emitted, "eos")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_prefix_is_kept_and_continued(strategy: str) -> None:
    sentences = [
        Sentence(1, "a b c", "x"),
        Sentence(2, "a b c", "p q r"),
        Sentence(3, "a b c"),
        Sentence(4, "", "x"),
    ]
    done = [t.text for t in translator(strategy).translate_sentences(sentences)]
    # x is no word of the dictionary; an empty line stays empty whatever it was to begin with.
    assert done == ["<unk> c b b a a", "p q r b a a", "c c b b a a", ""]


@pytest.mark.parametrize(
    ("size", "expected", "reason"),
    [
        *((0, "p q b b a a", "eos"), (1, "p c b b a a", "eos"), (2, "p q b b a a", "eos")),
        (3, "p q", "forced"),  # its end, too
    ],
)
def test_the_first_tokens_of_a_reference(size: int, expected: str, reason: str) -> None:
    [done] = translator(prefix_size=size).translate_sentences([Sentence(1, "a b c", "p q")])
    assert (done.text, done.finish_reason) == (expected, reason)


def test_what_does_not_fit_is_named_before_anything_is_decoded() -> None:
    it = translator(source=4, on_unreadable="fail")
    long = Sentence(2, "a b c d", where="in.txt, line 2", tokens=[*"abcd"])
    sentences = [Sentence(1, "a"), long]
    refused("in.txt, line 2: has 4 tokens, more than the 3", it.translate_sentences, sentences)
    assert it.decoder.stats.rounds == 0
    assert texts(it, ["a b c"]) == ["c c b b a a"]
    prefixed = translator(max_len_b=3)
    with pytest.raises(UserError, match="line 9: its target prefix has 3 tokens, but at most 2"):
        prefixed.translate_sentences([Sentence(9, "a", "p q r", "line 9")])


def test_truncation_keeps_the_first_tokens() -> None:
    assert texts(translator(source=4, truncate_source=True), ["a b c d e"]) == ["c c b b a a"]


def test_tokens_in_and_out() -> None:
    it = translator()
    done = it.translate_tokens([["b", "a"], [], ["c"]])
    assert [t.tokens for t in done] == [["a", "a", "b", "b"], [], ["c", "c"]]
    assert [str(t) for t in done] == [t.text for t in done] == ["a a b b", "", "c c"]
    assert [t.number for t in done] == [1, 2, 3]


def test_a_string_is_one_text_and_any_iterable_is_taken() -> None:
    it = translator()
    one = it.translate("a b c")
    assert (one.text, one.number) == (translated("a b c"), 1)
    expected = [translated("a b c"), translated("d")]
    texts = ["a b c", "d"]
    for lines in (tuple(texts), iter(texts), dict.fromkeys(texts), numpy.array(texts)):
        assert [t.text for t in it.translate(lines)] == expected
        assert [t.text for t in asyncio.run(it.atranslate(lines))] in (expected, [])
    assert asyncio.run(it.atranslate("d")).text == "d d"
    assert it.translate([]) == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a", None], "sentence 2: must be a string, not None"),
        (["a", 3], "sentence 2: must be a string, not 3"),
        ([b"a"], "sentence 1: must be a string, not b'a'"),
        (b"a", "the lines must be strings, not b'a'"),
        (None, "the lines must be strings, not None"),
        (["a", "b\0"], "sentence 2: holds a NUL character"),
        (["\ud800 abc"], r"sentence 1: holds half a surrogate pair \('\\ud800'\)"),
    ],
)
def test_what_is_no_text_is_refused(lines: Any, message: str) -> None:
    it = translator()
    refused(message, it.translate, lines)
    if isinstance(lines, list):
        refused(message.replace("sentence 2", "sentence 1"), lambda: [*it.stream(lines[-1])])
    for tokens in ("abc", b"abc", None, [1]):
        told = f"sentence 1: must be a list of tokens, not {tokens!r}"
        refused(re.escape(told), it.translate_tokens, [tokens])
    refused("must be lists of tokens, not None", it.translate_tokens, None)
    assert it.stats.rounds == 0


def test_the_statistics_are_those_of_all_calls() -> None:
    it = translator()
    first = it.translate(["a b c"])[0]
    it.translate(["d"])
    assert it.stats.rows == 2
    assert it.stats.rounds > first.rounds == 2
    assert it.stats.mean_accepted_tokens == 8 / it.stats.rounds
    assert sum([it.stats, it.stats]).rounds == 2 * it.stats.rounds
    assert sum([it.stats]) == it.stats


@pytest.mark.parametrize("strategy", ["specdec", "AR", "drafter"])
def test_a_stream_ends_in_the_translation(strategy: str) -> None:
    parts = list(translator(strategy).stream("a b c"))
    assert parts[-1] == translated("a b c")
    first = {"specdec": "c c b b a", "AR": "c", "drafter": "c c b b"}[strategy]
    assert (parts[0], len(parts)) == (first, 7 if strategy == "AR" else 2)
    assert list(translator(strategy).stream("")) == [""]
    without_rounds = translator(strategy)
    without_rounds.decoder = object()  # type: ignore[assignment]
    refused("cannot stream", lambda: next(without_rounds.stream("a")))
