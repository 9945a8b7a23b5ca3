"""Text to ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdec_plugins.app.codec import Codec, RunningText, join_subwords
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.text import TextPipeline
from tests.app.toys import DICTIONARY, codec

CASES = ["a@@ b c", "a@@ b@@", "a b", "", "@@ a", "a@@", "▁a b ▁c"]


@pytest.mark.fairseq
@pytest.mark.parametrize("tokens", CASES)
@pytest.mark.parametrize("symbol", ["@@ ", "subword_nmt", "sentencepiece", None])
def test_subwords_join_as_in_fairseq(tokens: str, symbol: str | None) -> None:
    from fairseq.data.data_utils import post_process

    assert join_subwords(tokens, symbol) == post_process(tokens, symbol)


def test_the_mark_without_its_space_means_the_same() -> None:
    # fairseq would remove the mark and leave the space.
    assert join_subwords("a@@ b c", "@@") == "ab c"


def test_ids_and_tokens() -> None:
    it = codec()
    unk, eos = DICTIONARY.unk, DICTIONARY.eos
    assert it.source_ids("a  b\tzz") == [4, 5, unk, eos]
    assert it.target_ids("a zz") == [4, unk]
    assert it.tokens([4, DICTIONARY.bos, unk, DICTIONARY.pad, eos, 5]) == ["a", "<unk>", "<pad>"]


def test_a_line_stays_one_line() -> None:
    assert "\n" not in codec(remove_bpe=None).text(["a\nb", "c\rd"])


class Shouting:
    """Raw text in which every letter is a token."""

    def encode(self, line: str) -> str:
        return " ".join(line.lower().replace(" ", ""))

    def encode_target(self, line: str) -> str:
        return " ".join(line.lower().replace(" ", "")[::-1])

    def decode(self, tokens: str) -> str:
        return tokens.replace(" ", "").upper()


def test_raw_text_goes_through_its_pipeline() -> None:
    it = Codec(DICTIONARY, Dictionary(["z", "a", "b"]), Shouting())
    assert it.source_ids("A B") == [4, 5, DICTIONARY.eos]
    assert it.target_ids("A B") == [6, 5]
    assert it.token_ids("a b") == [5, 6]
    assert it.text(["a", "b"]) == "AB"


WORDS = [
    *("aus", "der", "gab@@", "e", "s'", "l'", "'s", "ß:", "EU:", ":", "ssa", "5", "中", "&amp;"),
    *("&apos;", "&quot;", "&quot;@@", "“", "„", "'", ",", ".", "@-@", "(", "$"),
]


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("codes") / "bpe.codes"
    path.write_text("#version: 0.2\na u</w>\n", encoding="utf-8")
    return path


class Recorded:
    """The texts of a pipeline, and how many tokens were read for each."""

    def __init__(self, pipeline: TextPipeline) -> None:
        self.settled = pipeline.settled
        self.num_read: list[int] = []
        self._pipeline = pipeline

    def text(self, tokens: Sequence[str]) -> str:
        self.num_read.append(len(tokens))
        return self._pipeline.decode(" ".join(tokens))


@pytest.mark.parametrize("language", ["en", "de", "fr", "fi", "cs"])
@settings(max_examples=150, deadline=None)
@given(groups=st.lists(st.lists(st.sampled_from(WORDS), max_size=4), max_size=12))
@example(groups=[["aus", "&apos;"], ["&apos;", "aus", "aus"], ["der", "&apos;"]])
def test_growing_text_is_that_of_all_tokens(
    language: str, codes: Path, groups: list[list[str]]
) -> None:
    codec = Recorded(TextPipeline("en", language, codes=codes))
    running, tokens = RunningText(codec), list[str]()
    for group in groups:
        tokens += group
        assert running.add(group) == codec.text(tokens)


def test_growing_text_is_not_read_again_and_again(codes: Path) -> None:
    codec = Recorded(TextPipeline("en", "de", codes=codes))
    running = RunningText(codec)
    sentence = ["Er", "rief", "&quot;", "Haus", "!", "&quot;", "in", "den", "Gar@@", "ten", "."]
    for token in sentence * 5:
        running.add([token])
    assert max(codec.num_read) <= 10
    assert running.add([]) == codec.text(sentence * 5)
