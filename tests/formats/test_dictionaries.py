"""Dictionaries: what is read of their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_plugins.decoding.contract import SpecialTokens
from specdec_plugins.formats.dictionaries import Dictionary, dictionary_of, order_of, ours, start_of
from tests.refusals import refused

LINES = "the 50\nof@@ 40\n, 30\nÄrger 20\nthe 5 #fairseq:overwrite\nmadeupword0000 0\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "dict.en.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.fairseq
def test_reads_and_encodes_as_fairseq_does(tmp_path: Path) -> None:
    from fairseq.data import Dictionary as FairseqDictionary

    path = write(tmp_path, LINES)
    mine, theirs = Dictionary.load(path), FairseqDictionary.load(str(path))
    assert mine.symbols == theirs.symbols
    assert mine.special == SpecialTokens(theirs.eos(), theirs.pad(), theirs.eos(), theirs.unk())
    for line in ("the of@@ Ärger", "  ,\tno\u00a0such \n", "", "<pad> the </s>", "madeupword0000"):
        expected = theirs.encode_line(line, add_if_not_exist=False)
        assert mine.encode_line(line) == expected.tolist()
        assert mine.string(mine.encode_line(line)) == theirs.string(expected)
    assert mine.encode_line("the", append_eos=False) == [theirs.index("the")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 5\nb\n", "line 2: expected a symbol, a space and its count"),
        ("a five\n", "line 1: expected a symbol"),
        ("a ²\n", "line 1: expected a symbol"),
        ("a 5\n\n", "line 2: expected a symbol"),
        ("a 5\na 4\n", "line 2: the symbol 'a' is defined already"),
        ("<pad> 5\n", "line 1: the symbol '<pad>' is defined already"),
    ],
)
def test_a_malformed_line_is_named(text: str, message: str, tmp_path: Path) -> None:
    refused(f"dict.en.txt, {message}", Dictionary.load, write(tmp_path, text))


def test_a_dictionary_is_its_symbols_in_their_order(tmp_path: Path) -> None:
    texts = ("a 5\nb 3\n", "a 9\nb 1\n", "b 5\na 3\n")
    first, same, other = (Dictionary.load(write(tmp_path, text)) for text in texts)
    assert first == same != other
    assert first.digest == same.digest != other.digest


def test_characters_that_were_hardly_seen_are_known(tmp_path: Path) -> None:
    lines = [
        "the 4000000",
        "ø 39",
        "ø@@ 41",
        "² 1",
        "§ 40",
        "→ 999",
        "× 1000",
        "ы@@ 2",
        "q 1",
        "æs 1",
    ]
    read = Dictionary.load(write(tmp_path, "".join(f"{line}\n" for line in lines)))
    # Letters that fewer than ten tokens of a million have, and signs that were there a few times;
    # letters of other scripts, ASCII and longer pieces may be read.
    assert {read.symbols[i] for i in read.rare} == {"ø", "²", "§", "→"}
    assert not Dictionary.load(write(tmp_path, "ø 1\n→ 1\n")).rare  # nobody counted


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    refused("nowhere.txt: the dictionary cannot be read", Dictionary.load, tmp_path / "nowhere.txt")
    path = tmp_path / "dict.txt"
    path.write_bytes(b"a 5\n\xff 4\n")
    refused("dict.txt: the dictionary cannot be read .*position 4", Dictionary.load, path)


def test_a_model_that_counts_as_fairseq_does_keeps_its_ids() -> None:
    assert order_of(6, pad=1, eos=2, unk=3, start=2) == [0, 1, 2, 3, 4, 5]
    dictionary = dictionary_of({"<s>": 0, "a": 4}, range(6), start=2)
    assert dictionary.symbols[4:] == ["a", "madeupword0005"]
    assert dictionary.special.start == dictionary.eos


def test_special_symbols_come_first_and_the_start_is_a_copy() -> None:
    """As MarianMT has it: `</s>` first, `<pad>` last, and the target begins with padding."""
    order = order_of(5, pad=4, eos=0, unk=1, start=4)
    assert order == [4, 4, 0, 1, 2, 3]
    assert ours(order) == {4: 1, 0: 2, 1: 3, 2: 4, 3: 5}
    assert start_of(order, 4) == 0
    vocabulary = {"</s>": 0, "<unk>": 1, "▁a": 2, "b": 3, "<pad>": 4}
    dictionary = dictionary_of(vocabulary, order, start=4)
    assert dictionary.symbols == ["<s>", "<pad>", "</s>", "<unk>", "▁a", "b"]
    assert dictionary.special.start == 0
