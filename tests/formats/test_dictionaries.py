from __future__ import annotations

from pathlib import Path

import pytest

from specdec_plugins.decoding.types import SpecialTokens
from specdec_plugins.errors import UserError
from specdec_plugins.formats.dictionaries import Dictionary

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
        ("a 5\na 4\n", "line 2: the symbol 'a' is there already"),
        ("<pad> 5\n", "line 1: the symbol '<pad>' is there already"),
    ],
)
def test_a_malformed_line_is_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"dict.en.txt, {message}"):
        Dictionary.load(write(tmp_path, text))


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere.txt: the dictionary cannot be read"):
        Dictionary.load(tmp_path / "nowhere.txt")
    path = tmp_path / "dict.txt"
    path.write_bytes(b"a 5\n\xff 4\n")
    with pytest.raises(UserError, match=r"dict.txt: the dictionary is not UTF-8 \(byte 4\)"):
        Dictionary.load(path)


def test_compares_symbols_in_their_order() -> None:
    assert Dictionary(["a", "b"]) == Dictionary(["a", "b"])
    assert Dictionary(["a", "b"]) != Dictionary(["b", "a"])


def test_maps_ids_to_another_dictionary() -> None:
    assert Dictionary(["a", "b"]).ids_in(Dictionary(["b", "c"])) == [0, 1, 2, 3, 3, 4]
