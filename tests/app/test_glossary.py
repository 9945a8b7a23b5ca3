"""Which terms of a glossary a text has, and glossaries that cannot be."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.app.codec import Codec
from specdec_plugins.app.glossary import Glossary
from specdec_plugins.formats.dictionaries import Dictionary
from tests.app.toys import WORDS
from tests.refusals import refused

CODEC = Codec(Dictionary(WORDS), Dictionary(WORDS))
TERMS = {"file": "a", "file name": "b", "name of": "c", "US": "d", "C#": "e", "数据": "f"}


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("The File, a profile and files: FILE.", "a a"),
        ("file  name of\tname of", "b c"),  # the first of those that overlap, and the longest
        ("the US, and us; C# not C", "d e"),
        ("读取数据。数据文件", "f f"),
        ("", ""),
    ],
)
def test_the_terms_of_a_text(text: str, targets: str) -> None:
    assert Glossary.of(TERMS, CODEC).targets(text) == targets.split()


def test_of_two_terms_that_fit_the_first_counts() -> None:
    terms = {"us": "a", "US": "b"}
    assert Glossary.of(terms, CODEC).targets("US us") == ["a", "a"]
    assert Glossary.of(dict(reversed(terms.items())), CODEC).targets("US us") == ["b", "a"]


def test_terms_that_begin_alike_are_not_tried_one_by_one() -> None:
    glossary = Glossary.of({f"a b{number}": "c" for number in range(5000)}, CODEC)
    began = time.process_time()
    assert glossary.targets("a b4999 " * 5000) == ["c"] * 5000
    assert time.process_time() - began < 3.0  # 10 s if they are


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("a\tb\n\nfile a\n", "line 3: has 0 tabs; give a source term, a tab, and its translation"),
        ("a\tb\tc\n", "line 1: has 2 tabs"),
        ("\ta\n", "line 1: the source term is empty"),
        ("a\t \n", "line 1: the translation is empty"),
        ("a\tb\na\tb\na\tc\n", "line 3: 'a' is 'b' in .*, line 1; remove one of them"),
        ("a\tz\n", "line 1: translation 'z': has what the model cannot write"),
        ("\n", "has no terms"),
    ],
)
def test_glossaries_that_cannot_be(lines: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text(lines, encoding="utf-8")
    refused(message, Glossary.of, path, CODEC)


@pytest.mark.parametrize("terms", [{"a": 3}, {3: "a"}, {"a": None}])
def test_terms_must_be_strings(terms: Any) -> None:
    refused("glossary: must be terms with translations, or a file", Glossary.of, [terms], CODEC)
    refused("glossary, .*: a term and its translation must be strings", Glossary.of, terms, CODEC)
