"""Dictionaries and bigrams: what is read of their files."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec_plugins.decoding.bigrams import Bigrams
from specdec_plugins.decoding.contract import SpecialTokens
from specdec_plugins.errors import UserError
from specdec_plugins.formats.bigrams import read_bigrams, write_bigrams
from specdec_plugins.formats.dictionaries import Dictionary, dictionary_of, order_of, ours, start_of
from tests.refusals import refused

LINES = "the 50\nof@@ 40\n, 30\nÄrger 20\nthe 5 #fairseq:overwrite\nmadeupword0000 0\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "dict.en.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_ids_start_after_the_special_symbols(tmp_path: Path) -> None:
    dictionary = Dictionary.load(write(tmp_path, "a 5\nb 3\n"))
    assert dictionary.symbols == ["<s>", "<pad>", "</s>", "<unk>", "a", "b"]
    assert (len(dictionary), dictionary.index("b"), dictionary.index("c")) == (6, 5, 3)
    assert dictionary.special == SpecialTokens(start=2, pad=1, eos=2, unk=3)


@pytest.mark.fairseq
def test_reads_and_encodes_as_fairseq_does(tmp_path: Path) -> None:
    from fairseq.data import Dictionary as FairseqDictionary

    path = write(tmp_path, LINES)
    mine, theirs = Dictionary.load(path), FairseqDictionary.load(str(path))
    assert mine.symbols == theirs.symbols
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
        ("a 5\n\n", "line 2: expected a symbol"),
        ("a 5\na 4\n", "line 2: the symbol 'a' is defined already"),
        ("<pad> 5\n", "line 1: the symbol '<pad>' is defined already"),
    ],
)
def test_a_malformed_line_is_named(text: str, message: str, tmp_path: Path) -> None:
    refused(f"dict.en.txt, {message}", Dictionary.load, write(tmp_path, text))


def test_the_digest_is_of_symbols_and_their_order(tmp_path: Path) -> None:
    made = [Dictionary.load(write(tmp_path, t)) for t in ("a 5\nb 3\n", "a 9\nb 1\n", "b 5\na 3\n")]
    digests = [dictionary.digest for dictionary in made]
    assert (digests[0] == digests[1], digests[0] == digests[2]) == (True, False)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    refused("nowhere.txt: the dictionary cannot be read", Dictionary.load, tmp_path / "nowhere.txt")
    path = tmp_path / "dict.txt"
    path.write_bytes(b"a 5\n\xff 4\n")
    refused("dict.txt: the dictionary cannot be read .*position 4", Dictionary.load, path)


def test_symbols_count_in_their_order_and_map_to_another_dictionary() -> None:
    assert Dictionary(["a", "b"]) == Dictionary(["a", "b"]) != Dictionary(["b", "a"])
    assert Dictionary(["a", "b"]).ids_in(Dictionary(["b", "c"])) == [0, 1, 2, 3, 3, 4]


VOCAB = 9
TARGET = Dictionary([f"s{i}" for i in range(VOCAB - 4)])


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    write_bigrams(counted(), tmp_path / "bigrams.safetensors")
    return tmp_path / "bigrams.safetensors"


def counted() -> Bigrams:
    return Bigrams.count([[4, 5, 2], [4, 5, 6, 2]], VOCAB, 2)


def test_they_come_back(stored: Path) -> None:
    found, expected = read_bigrams(stored, TARGET), counted()
    for name in (f.name for f in fields(Bigrams)):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_what_is_none_is_refused(stored: Path, tmp_path: Path) -> None:
    refused(
        "counts 9 symbols, but the target dictionary has 5", read_bigrams, stored, Dictionary(["a"])
    )
    with pytest.raises(
        UserError, match=r"nowhere: cannot be read as bigrams .*specdec convert bigrams"
    ):
        read_bigrams(tmp_path / "nowhere", TARGET)
    (tmp_path / "text").write_text("w1 w2\n")
    refused("text: cannot be read as bigrams", read_bigrams, tmp_path / "text", TARGET)
    save_file({"weight": torch.zeros(2)}, tmp_path / "weights")
    refused(r"weights: not bigrams \(it holds weight\)", read_bigrams, tmp_path / "weights", TARGET)
    refused("cannot be written", write_bigrams, counted(), tmp_path / "no" / "folder")


def test_bigrams_of_another_dictionary_are_refused(stored: Path) -> None:
    other = Dictionary(reversed(TARGET.symbols[4:]))
    read_bigrams(stored, other)  # written before the dictionary was recorded
    write_bigrams(counted(), stored, TARGET)
    read_bigrams(stored, TARGET)
    refused("counts 9 symbols, but .* has others, or another order", read_bigrams, stored, other)


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("starts", -1, 999),
        ("starts", 3, -5),
        ("starts", 5, 10**6),
        ("tokens", 0, VOCAB),
        ("tokens", 0, -1),
        ("frequencies", 2, float("nan")),
    ],
)
def test_what_points_outside_is_refused(stored: Path, name: str, at: int, value: float) -> None:
    tensors = load_file(stored)
    save_file({**tensors, "log_probs": tensors["log_probs"][:-1].clone()}, stored)
    refused("damaged", read_bigrams, stored, TARGET)  # a part that is too short
    tensors[name][at] = value
    save_file(tensors, stored)
    refused("damaged; count the bigrams again", read_bigrams, stored, TARGET)


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
