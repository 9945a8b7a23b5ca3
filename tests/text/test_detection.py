"""The language of a text."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_plugins.formats.pretrained.languages import published
from specdec_plugins.text.detection import detect
from tests.refusals import refused

NLLB = published("nllb200")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Where is the nearest station, please?", "eng_Latn"),
        ("Wo ist bitte der nächste Bahnhof?", "deu_Latn"),
        ("Unde este cea mai apropiată gară?", "ron_Latn"),
        ("Où est la gare la plus proche ?", "fra_Latn"),
        ("最近的车站在哪里？", "zho_Hans"),
        ("一番近い駅はどこですか。", "jpn_Jpan"),
        ("أين أقرب محطة؟", "arb_Arab"),
        ("Где ближайший вокзал?", "rus_Cyrl"),
    ],
)
def test_the_language_is_told_as_the_model_calls_it(text: str, code: str) -> None:
    first, *others = detect(text, NLLB)
    assert first.code == code
    assert first.share > 0.5
    assert sum(guess.share for guess in (first, *others)) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(("text", "code"), [("Hello", "en"), ("Danke", "de"), ("Hund", "de")])
def test_a_word_is_in_a_language_of_the_model(text: str, code: str) -> None:
    assert detect(text, ["en", "de"])[0].code == code


def test_a_sentence_may_be_in_another_language() -> None:
    french = "Où est la gare la plus proche de chez toi ?"
    assert detect(french, ["en", "de"])[0].code == "fr"
    assert {guess.code for guess in detect(french, ["en", "de"], only_known=True)} <= {"en", "de"}


@pytest.mark.parametrize("text", ["", "  ", "12345", "?!", "\N{GRINNING FACE}"])
def test_no_letters_tell_no_language(text: str) -> None:
    assert detect(text, ["en", "de"]) == []


def test_a_detector_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> Any:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("importlib.import_module", without)
    refused("py3langid is not installed; it comes with the extra", detect, "Hello")
