"""Reading parallel text: every form it comes in, every fault with its file and line."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from specdec_plugins.corpus.reading import BadLines, Pair, ParallelFile, read_pairs
from tests.refusals import refused

PAIRS = [("A house.", "Ein Haus."), ("", ""), ("Größe", "çа\u2028 b\x85 c\r d"), ("x", "")]


def tsv(pairs: list[Pair]) -> bytes:
    return "".join(f"{left}\t{right}\n" for left, right in pairs).encode()


def read(path: Path, target: Path | None = None, **settings: object) -> list[Pair]:
    return list(read_pairs(ParallelFile(path, target, **settings), BadLines()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ending", "pack"), [("tsv", bytes), ("tsv.gz", gzip.compress), ("tsv.xz", lzma.compress)]
)
def test_tsv_in_every_packing(ending: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(pack(tsv(PAIRS)))
    assert read(path) == PAIRS


def test_two_sides_and_a_last_line_without_its_end(tmp_path: Path) -> None:
    source, target = tmp_path / "a.en", tmp_path / "a.de.xz"
    source.write_text("one\n\nthree\tx", newline="")
    target.write_bytes(lzma.compress(b"eins\n\ndrei\n"))
    assert read(source, target) == [("one", "eins"), ("", ""), ("three\tx", "drei")]


def test_an_empty_line_of_a_tsv_is_a_pair_of_empties_and_columns_are_chosen(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n\nc\td\n")
    assert read(path) == [("a", "b"), ("", ""), ("c", "d")]
    path.write_text("1\tein Haus\tx\ta house\n2\tein Hut\ty\ta hat\n")
    assert read(path, columns=(4, 2)) == [("a house", "ein Haus"), ("a hat", "ein Hut")]


def test_mark_and_crlf_are_repaired_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"\xef\xbb\xbfa\tb\r\nc\td\r\n")
    assert read(path) == [("a", "b"), ("c", "d")]
    said = [record.message for record in caplog.records]
    assert len(said) == 2
    assert f"{path}, line 1: a byte-order mark" in said[0]
    assert "CRLF" in said[1]


FAULTS = [
    (b"a\tb\nc\xff\td\n", r"a\.tsv, line 2: not UTF-8 \(byte 2 of the line is 0xff\)"),
    (b"a\tb\nc\0\td\n", r"a\.tsv, line 2: holds a NUL"),
    (b"a\tb\nc\td\te\n", r"a\.tsv, line 2: expected 2 columns separated by tabs, found 3"),
    (b"a\tb\nc\n", r"a\.tsv, line 2: expected 2 columns separated by tabs, found 1"),
]


@pytest.mark.parametrize(("content", "sentence"), FAULTS)
def test_a_bad_line_is_refused_or_skipped(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(content + b"e\tf\n")
    refused(sentence, read, path)
    faults = BadLines(skip=True)
    assert list(read_pairs(ParallelFile(path), faults)) == [("a", "b"), ("e", "f")]
    assert faults.skipped == 1
    assert "line 2" in faults.first


def test_a_bad_line_of_one_side_takes_the_other_with_it(tmp_path: Path) -> None:
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_bytes(b"one\ntwo\nthree\n")
    target.write_bytes(b"eins\nz\xffwei\ndrei\n")
    pairs = list(read_pairs(ParallelFile(source, target), BadLines(skip=True)))
    assert pairs == [("one", "eins"), ("three", "drei")]


@pytest.mark.parametrize(("lines", "shorter"), [((3, 2), "de"), ((2, 3), "en")])
def test_sides_of_different_length(lines: tuple[int, int], shorter: str, tmp_path: Path) -> None:
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("x\n" * lines[0])
    target.write_text("y\n" * lines[1])
    refused(rf"a\.{shorter} ends after line 2", read, source, target)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.tsv", b"", "empty; give a file"),
        ("a.tsv", "a\tb\n".encode("utf-16"), "UTF-16; convert"),
        ("a.tsv.gz", b"a\tb\n", "damaged or not what its name says"),
        ("a.tsv.gz", gzip.compress(tsv(PAIRS * 99), mtime=0)[:-20], "damaged or not"),
        ("a.tsv.xz", lzma.compress(tsv(PAIRS * 99))[:-20], "damaged or not"),
    ],
)
def test_a_bad_file_is_named(name: str, content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    refused(sentence, read, path)
    refused("cannot be read", read, tmp_path / "none.tsv")
