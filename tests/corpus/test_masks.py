"""Pairs in which symbols stand for what is to be copied."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specdec_plugins.corpus.masks import COMMAND, masked_pair
from specdec_plugins.formats.text import PROTECTED

SYMBOL = re.compile(f"[{PROTECTED[0]}-{PROTECTED[-1]}]")


def test_the_same_spans_get_the_same_symbols() -> None:
    made = masked_pair("Copy %s to {dir}.", "Nach {dir} wird %s kopiert.", share=0.0)
    assert made is not None
    first, second = SYMBOL.findall(made[0])
    assert made == (f"Copy {first} to {second}.", f"Nach {second} wird {first} kopiert.")


@pytest.mark.parametrize(
    ("source", "target"), [("Copy %s.", "Kopieren."), ("Good day.", "Guten Tag."), ("", "")]
)
def test_other_pairs_stay(source: str, target: str) -> None:
    assert masked_pair(source, target, share=0.0) is None


def test_symbols_are_put_into_both_sides() -> None:
    pairs = [(f"Anna has {n} books.", f"Anna hat {n} Bücher.") for n in range(10, 410)]
    made = [masked_pair(*pair, share=0.5) for pair in pairs]
    changed = [pair for pair in made if pair is not None]
    assert 150 < len(changed) < 250
    for source, target in changed:
        assert sorted(SYMBOL.findall(source)) == sorted(SYMBOL.findall(target)) != []
    words = SYMBOL.sub("S", " ".join(source for source, _ in changed))
    for form in ("S has", "SAnnaS has", "has S books", "books S.", "books (S).", "S: Anna"):
        assert form in words
    assert {*SYMBOL.findall("".join(map("".join, changed)))} == {*PROTECTED}


def test_the_command_writes_every_pair(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("Open %s\tÖffne %s\nGood day\tGuten Tag\n", encoding="utf-8")
    assert (
        COMMAND.run([str(tmp_path / "a.tsv"), "--output", str(tmp_path / "b.tsv"), "--share", "0"])
        == 0
    )
    first, second = (tmp_path / "b.tsv").read_text(encoding="utf-8").splitlines()
    symbol = SYMBOL.findall(first)[0]
    assert first == f"Open {symbol}\tÖffne {symbol}"
    assert second == "Good day\tGuten Tag"
