"""Text to ids and back."""

from __future__ import annotations

import pytest

from specdec_plugins.app.codec import Codec, join_subwords
from specdec_plugins.formats.dictionaries import Dictionary
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

    def decode(self, tokens: str, source: str) -> str:
        return tokens.replace(" ", "").upper() + source


def test_raw_text_goes_through_its_pipeline() -> None:
    it = Codec(DICTIONARY, Dictionary(["z", "a", "b"]), Shouting())
    assert it.source_ids("A B") == [4, 5, DICTIONARY.eos]
    assert it.target_ids("A B") == [6, 5]
    assert it.text(["a", "b"]) == "AB"
    assert it.text(["a", "b"], "?") == "AB?"
