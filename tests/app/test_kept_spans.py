"""Real and made strings of ten formats: each span arrives unchanged, as often as it was there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdec_plugins.app.convert import MARIAN
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.text.spans import spans_of
from tests.bundles import BUNDLED
from tests.text import test_spans

LINES = (Path(__file__).parent.parent / "text/strings.txt").read_text("utf-8").splitlines()
STRINGS = [line for line in LINES if not line.startswith("# ")]
SPANS = [span for found in test_spans.SPANS.values() for span in found] + ["[1]", "☃"]
WORDS = [
    *["The cat", "sleeps", "on the table", "and", "I", "see", ",", ".", "(", ")", " ", "\n", "  "]
]


def loaded(folder: str) -> SpeculativeTranslator:
    how: dict[str, Any] = {"scores": False, "device": "cpu", "dtype": "int8", "batch": 32}
    return SpeculativeTranslator.from_pretrained(folder, **how)


@pytest.fixture(scope="module", params=["bundled", "marian"])
def model(
    request: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SpeculativeTranslator]:
    folder = str(BUNDLED)
    if request.param == "marian":  # it never saw a symbol
        pytest.importorskip("transformers")
        folder = str(tmp_path_factory.mktemp("export") / "marian")
        assert MARIAN.run([str(BUNDLED), "--output", folder]) == 0
    return loaded(folder)


def lost(source: str, translation: str) -> list[str]:
    spans = [source[begin:end] for begin, end in spans_of(source)]
    return [span for span in spans if translation.count(span) != source.count(span)]


def test_strings_keep_their_spans(model: SpeculativeTranslator) -> None:
    assert len(STRINGS) == 400
    done = model.translate(STRINGS)
    assert all(spans_of(string) for string in STRINGS)
    losses = {s: str(one) for s, one in zip(STRINGS, done, strict=True) if lost(s, str(one))}
    assert not losses
    changed = sum(str(one) != string for string, one in zip(STRINGS, done, strict=True))
    assert changed > 380  # they are translated, not copied


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(pieces=st.lists(st.sampled_from(SPANS + WORDS), max_size=12))
def test_made_strings_keep_their_spans(model: SpeculativeTranslator, pieces: list[str]) -> None:
    source = " ".join(pieces)
    done = model.translate(source)
    assert not lost(source, done.text)
    assert done.text.count("☃") == source.count("☃")
    assert [*map(str.isspace, done.text)][:1] == [*map(str.isspace, source)][:1]
    streamed = [*model.stream(source)]
    assert streamed[-1] == done.text


def test_markup_changes_no_word() -> None:
    model = loaded(str(BUNDLED))
    lines = [
        "Click <b>Save</b> and then <i>Close</i>.",
        "Please **do not** close the <a href='x'>window</a>.",
        "Open <b>the file {{name}} now</b> and read it.",
        "<p>The <b><i>red</i> car</b> is mine.</p>",
        "I <b>ate</b> too much yesterday.",
    ]
    bare = [re.sub(r"</?[abip]\b[^>]*>|\*\*", "", line) for line in lines]
    plain, done = ([*map(str, model.translate(texts))] for texts in (bare, lines))
    assert [re.sub(r"</?[abip]\b[^>]*>|\*\*", "", text) for text in done] == plain
    for line, text in zip(lines, done, strict=True):
        assert not lost(line, text), text
        assert [*model.stream(line)][-1] == text
    assert "<b>Speichern</b>" in done[0]


def test_signs_that_the_text_of_a_training_hardly_had_are_copied() -> None:
    model = loaded(str(BUNDLED))
    lines = ["→ Click here.", "This is Microsoft™ Word.", "LiveRamp® is ready.", "It costs €6."]
    for line, done in zip(lines, map(str, model.translate(lines)), strict=True):
        assert [c for c in done if c in "→™®€"] == [c for c in line if c in "→™®€"], done
    assert "Microsoft™ Word" in str(model.translate(lines[1]))


def test_words_with_letters_that_the_text_of_a_training_hardly_had_are_copied() -> None:
    model = loaded(str(BUNDLED))
    words = ("Søren", "Åse", "Łukasz", "Erdoğan", "São", "Tromsø", "50 m²", "½", "§5")
    for word in words:
        line = f"I read about {word} yesterday."
        assert word in str(model.translate(line)), word
        assert word in [*model.stream(line)][-1]
    alone = model.translate("Søren")  # there is nothing to translate, and that is no fault
    assert (str(alone), alone.fault) == ("Søren", "")
    terms = {"façade": "Fassade", "你好": "Hallo"}
    said = model.translate("The façade of the 你好 café.", beam=3, glossary=terms)
    assert all(term in str(said) for term in terms.values())
    # Letters that the model knows from other words are read as they are.
    assert "Café" in str(model.translate("The café is open."))


def test_capitals_are_translated() -> None:
    model = loaded(str(BUNDLED))
    quiet = ["The cat sleeps on the table.", "Open {name} and read the text."]
    quiet += ["If I were you, I'd run an A/B test.", "Plan B is that we don't use C++."]
    loud = ["THE CAT SLEEPS ON THE TABLE.", "OPEN {name} AND READ THE TEXT."]
    loud += ["IF I WERE YOU, I'D RUN AN A/B TEST.", "PLAN B IS THAT WE DON'T USE C++."]
    said = [str(one).upper() for one in model.translate(quiet)]
    said[1] = said[1].replace("{NAME}", "{name}")
    assert [str(one) for one in model.translate(loud)] == said
    assert str(model.translate("USB.")) == "USB."


def test_numbers_with_units_are_kept_where_that_is_asked_for(model: SpeculativeTranslator) -> None:
    settings = replace(model.settings, protect_numbers=True)
    keeping = SpeculativeTranslator(settings, model.codec, model.decoder, model.limits)
    text = "The update needs 1,250.5 MB, and costs $3.50 a month."
    done, plain = keeping.translate(text).text, model.translate(text).text
    assert all(done.count(measure) == 1 for measure in ("1,250.5 MB", "$3.50"))
    assert done != plain


@pytest.mark.parametrize(
    ("letters", "forms"),
    [
        ("caf\u00e9", "cafe\u0301"),
        ("first office", "\ufb01rst o\ufb03ce"),
        ("red", "\uff52\U0001d41ed"),
    ],
)
def test_forms_of_letters_are_read_as_letters(
    letters: str, forms: str, model: SpeculativeTranslator
) -> None:
    whole, apart = (f"The {one} with %s is open. ☃" for one in (letters, forms))
    assert model.translate(apart).text == model.translate(whole).text


@pytest.mark.parametrize(("end", "is_fault"), [("☃", False), ("🎉 ♪", False), ("你好", True)])
def test_only_letters_are_said_to_be_copied(
    model: SpeculativeTranslator, end: str, is_fault: bool
) -> None:
    done = model.translate(f"The cat sleeps. {end}")
    assert (done.text.split(". ", 1)[1], bool(done.fault)) == (end, is_fault)
