"""The text pipeline: what it writes, what it reads back, and what it refuses."""

from __future__ import annotations

import io
import sys
import time
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdec_plugins.formats.text import Bpe, TextPipeline
from tests.bundles import BUNDLED
from tests.programs import python
from tests.refusals import refused

BUNDLED_CODES = BUNDLED / "bpe.codes"
CODES = "#version: 0.2\nH a\nu s</w>\nHa us</w>\n"


@pytest.fixture
def codes(tmp_path: Path) -> Path:
    return stored(tmp_path, CODES)


def stored(folder: Path, text: str) -> Path:
    path = folder / "bpe.codes"
    path.write_text(text, encoding="utf-8")
    return path


def words(source: str, target: str, **settings: bool) -> TextPipeline:
    return TextPipeline(source, target, bpe=None, **settings)


def test_each_side_follows_its_own_language() -> None:
    pipeline = words("en", "de")
    # An abbreviation keeps its full stop in its own language alone.
    assert pipeline.encode("bzw. Ein") == "bzw . Ein"
    assert pipeline.encode_target("bzw. Ein") == "bzw. Ein"
    assert pipeline.encode('It\'s "fine", he said.') == (
        "It &apos;s &quot; fine , &quot; he said ."
    )


@pytest.mark.parametrize("name", ["de_DE", "de-AT", "DE", "deu_Latn"])
def test_a_language_has_many_names(name: str) -> None:
    assert words(name, "en").encode("bzw. Ein, am 19. Mai") == "bzw. Ein , am 19. Mai"
    assert words("en", name).encode_target("bzw. Ein") == "bzw. Ein"


def test_bpe_is_applied_and_undone(codes: Path) -> None:
    pipeline = TextPipeline("de", "de", codes=codes)
    assert pipeline.encode("Haus, Ha.") == "Haus , H@@ a ."
    assert pipeline.decode("Haus , H@@ a .") == "Haus, Ha."
    assert pipeline.decode("Haus H@@") == "Haus H"


MERGES = st.lists(
    st.tuples(*[st.text("ab", min_size=1, max_size=4)] * 2, st.sampled_from(["", "</w>"])),
    min_size=1,
    max_size=20,
)


@given(st.sampled_from(["", "#version: 0.1\n", "#version: 0.2\n"]), MERGES, st.text("abc "))
def test_bpe_is_that_of_subword_nmt(
    header: str, merges: list[tuple[str, str, str]], words: str
) -> None:
    apply_bpe = pytest.importorskip("subword_nmt.apply_bpe")
    codes = header + "".join(f"{left} {right}{end}\n" for left, right, end in merges)
    if header != "#version: 0.2\n":
        codes += "a </w>\nab </w>\n"
    reference = apply_bpe.BPE(io.StringIO(codes))
    assert Bpe(codes.split("\n")).segment(words) == reference.segment(words)


def test_bpe_remembers_no_more_words_than_fit(codes: Path) -> None:
    bpe = TextPipeline("de", "de", None, codes=codes)._bpe
    assert bpe is not None
    for number in range(50_100):
        bpe.segment(str(number))
    num_words = bpe._remembered.cache_info().currsize
    bpe.segment("1" * 1000)
    assert bpe._remembered.cache_info().currsize == num_words <= 50_000


def word_of_many_merges(codes: Path) -> str:
    """A word that needs as many different merges as 20,000 characters can hold."""
    pairs = (line.split() for line in codes.read_text(encoding="utf-8").splitlines()[1:])
    return "".join(a + b for a, b in pairs if b.isalpha() and a.isalpha())[:20_000]


REPEATED = st.builds(
    lambda head, part, tail: (head + part * (20_000 // len(part)) + tail)[:20_000],
    *(st.text(max_size=3), st.text("aA1.,'\"«»()&-…ß\u0301\u0323 ", min_size=1, max_size=4)),
    st.text(max_size=3),
)


@pytest.mark.parametrize("language", ["en", "de"])
@settings(max_examples=15, deadline=None)
@given(line=REPEATED)
@example(line=word_of_many_merges(BUNDLED_CODES))
@example(line="." * 20_000)
@example(line="…" * 20_000)
@example(line="'." * 10_000)
@example(line="a.b. " * 4_000)
@example(line="a" + "\u0301" * 9_999 + "\u0323" * 10_000)
def test_no_line_takes_long(language: str, line: str) -> None:
    """The server has one thread for texts, and takes 20,000 characters."""
    pipeline = pipelines(language)
    start = time.process_time()
    pipeline.encode(line)
    assert time.process_time() - start < 1


@lru_cache
def pipelines(language: str) -> TextPipeline:
    return TextPipeline(language, "de", codes=BUNDLED_CODES)


@pytest.mark.parametrize(
    "line",
    [
        "Ein Haus, 3,5% größer: \"ja\" & 'nein' - E-Mail (a/b) <x>!",
        "Der Preis stieg um 20 Euro; warum?",
        "Um 17:45 Uhr stand es 3:2.",
        "Von 8:00 bis 12:30:15 Uhr.",
        "Es gilt: 3.",
    ],
)
def test_a_line_comes_back(line: str, codes: Path) -> None:
    pipeline = TextPipeline("en", "de", codes=codes)
    assert pipeline.decode(pipeline.encode_target(line), line) == line


SPACED = [  # source, target words as Moses has them, what a user reads
    ("The A/B test, he/she", "Der A / B-Test , er / sie", "Der A/B-Test, er/sie"),
    ("Yes / No", "Ja / Nein", "Ja / Nein"),
    ("and/or 1 / 2", "und / oder 1 / 2", "und/oder 1 / 2"),
    ("24/7 and 50/50", "24 / 7", "24/7"),
    ("x/y or x / y", "x / y", "x / y"),  # one of two: which?
    ("Input/output", "Eingabe- / Ausgabe", "Eingabe-/Ausgabe"),
    ("C# courses", "C # -Kurse", "C#-Kurse"),
    ("-5°C, 20 °C", "-5 ° C , 20 ° C", "-5°C, 20 °C"),
    ("AT&T, food & drink", "AT &amp; T , Essen &amp; Trinken", "AT&T, Essen & Trinken"),
    ("Q&A, questions&answers", "Fragen &amp; Antworten", "Fragen & Antworten"),
    ("a_b is 2+2 = 4", "a _ b ist 2 + 2 = 4", "a_b ist 2+2 = 4"),
    ("It costs $300 today.", "Es kostet 300 $ heute .", "Es kostet 300 $ heute."),
    ("from €5 to €6 each", "von 5 € bis 6 € je", "von 5 € bis 6 € je"),
    ("O'Malley isn't Bob's", "O &apos;Malley ist nicht Bobs", "O'Malley ist nicht Bobs"),
    ("Thomas's house", "Thomas &apos; Haus", "Thomas' Haus"),
    ("St. Mary's", "St. Marias oder Maria &apos;s", "St. Marias oder Maria's"),
    ("see [here](x)", "siehe [ hier ] ( x )", "siehe [hier](x)"),
    ("A -> B", "A - &gt; B", "A -> B"),
    ("+49 (0)30 (@) (new)", "+ 49 ( 0 ) 30 das @ ( neu )", "+49 (0)30 das @ (neu)"),
    ("", "A / B für 3 $ mehr", "A / B für 3 $ mehr"),
]


@pytest.mark.parametrize(("source", "target", "wanted"), SPACED)
def test_signs_are_spaced_as_in_the_source(source: str, target: str, wanted: str) -> None:
    assert words("en", "de").decode(target, source) == wanted


def test_what_nobody_sees_is_not_read(codes: Path) -> None:
    pipeline = TextPipeline("de", "de", codes=codes)
    plain = "Das größere Haus: 3,5 Meter!"
    assert pipeline.encode(
        "\ufeffDas grö\u00adße\u00adre\u200b Haus: 3,5\u2060 Meter!"
    ) == pipeline.encode(plain)
    assert pipeline.encode("\u200b\u00ad") == ""


def test_lowercase_and_dash_splits_are_only_by_request() -> None:
    assert words("de", "de").encode("Ärger") == "Ärger"
    assert words("de", "de", lowercase=True).encode("Ärger") == "ärger"
    assert words("en", "en").encode("well-known") == "well-known"
    split = words("en", "en", dash_splits=True)
    assert split.encode("well-known") == "well @-@ known"
    assert split.decode("well @-@ known") == "well-known"


@pytest.mark.parametrize("breaker", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize("tokenizer", ["moses", None])
def test_nothing_that_ends_a_line_survives(
    breaker: str, tokenizer: Literal["moses"] | None
) -> None:
    pipeline = TextPipeline("en", "de", tokenizer, None)
    assert pipeline.encode(f"a{breaker}b\u3000 c{breaker}") == "a b c"


def test_an_empty_line_stays_empty_and_markers_cannot_be_smuggled_in(codes: Path) -> None:
    pipeline = TextPipeline("en", "de", codes=codes)
    for line in ("", " ", "\t \r"):
        assert pipeline.encode(line) == pipeline.encode_target(line) == ""
        assert pipeline.decode(line) == ""
    assert "</s>" not in pipeline.encode("a </s> <unk> b").split()


@pytest.mark.parametrize(
    ("raw", "expected"),
    [("Braşov, Ţara Şi ţi", "Brașov, Țara Și ți"), ("s\u0327i t\u0326i", "și ți")],
)
def test_cedilla_becomes_comma_on_both_sides(raw: str, expected: str) -> None:
    pipeline = TextPipeline("en", "ro", None, None)
    assert pipeline.encode(raw) == pipeline.encode_target(raw) == expected
    assert TextPipeline("tr", "en", None, None).encode("Beşiktaş") == "Beşiktaş"


@pytest.mark.parametrize("tokenizer", ["moses", None])
def test_letters_are_composed_on_both_sides(tokenizer: Literal["moses"] | None) -> None:
    pipeline = TextPipeline("en", "de", tokenizer, None)
    for composed in ("café", "Zürich"):
        decomposed = unicodedata.normalize("NFD", composed)
        assert pipeline.encode(decomposed) == pipeline.encode_target(decomposed) == composed


def test_diacritics_are_stripped_from_romanian_alone() -> None:
    pipeline = TextPipeline("ro", "en", None, None, strip_diacritics=True)
    assert pipeline.encode("Şi în ţară, âăÎ") == "Si in tara, aaI"
    assert pipeline.encode_target("in Brașov") == "in Brașov"


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    for arguments, options, sentence in (
        ((), {"codes": tmp_path / "none"}, "none: the BPE codes cannot be read"),
        ((), {}, "needs a file of codes"),
        (("x", None), {}, "unknown tokenizer 'x'"),
        ((None, "x"), {}, "unknown BPE 'x'"),
    ):
        refused(sentence, TextPipeline, "en", "de", *arguments, **options)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("#version: 0.2\na b\nthree sub words\n", "line 3: expected two subwords"),
        ("", "line 1: expected two subwords"),
        ("the 900\nof@@ 52\n, 51\n", "looks like a dictionary .* BPE codes"),
    ],
)
def test_what_is_no_file_of_codes_is_named(content: str, sentence: str, tmp_path: Path) -> None:
    refused(rf"bpe\.codes.*{sentence}", TextPipeline, "en", "de", codes=stored(tmp_path, content))
    TextPipeline("en", "de", codes=stored(tmp_path, "#version:\nt h\n"))
    # Codes may look like counts, too.
    figures = stored(tmp_path, "#version: 0.2\n1 9\n2 0\nt h\nth e</w>\n")
    TextPipeline("en", "de", codes=figures)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    refused(r"sacremoses is not installed; .*pip install '\.\[text\]'", words, "en", "de")
    assert TextPipeline("en", "de", None, None).encode("a  b") == "a b"


def test_the_module_alone_imports_neither_torch_nor_the_tokenisers() -> None:
    heavy = "{'fairseq', 'torch', 'sacremoses', 'subword_nmt'}"
    code = f"import sys, specdec_plugins.formats.text; print({heavy}.isdisjoint(sys.modules))"
    assert python("-c", code).stdout == "True\n"
