"""Markup that a translation is made without, and put into it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_plugins.text.markup import Markup, markup_of
from specdec_plugins.text.spans import masked

LEFT_OUT = {
    "Click <b>Save</b> now.": ("Click Save now.", 'Click "Save" now.'),
    "See <a href='x'>this</a> and <i>that</i>.": ("See this and that.", 'See "this" and "that".'),
    'Say <b>"no"</b> to <i>it</i>.': ('Say "no" to it.', None),  # whose quotation marks?
    "The <b>red <i>car</i></b> is mine.": ("The red car is mine.", None),
    "The <b><i>red</i> car</b> is mine.": ("The red car is mine.", None),
    "Do **not** ~~ever~~ close it.": ("Do not ever close it.", 'Do "not" "ever" close it.'),
    "Open <b>{{file}} now</b> at last.": ("Open <b>{{file}} now</b> at last.", None),
    "Open <b>the {{file}} now</b> soon.": (
        "Open the {{file}} now soon.",
        'Open "the {{file}} now" soon.',
    ),
}
KEPT = [
    "One<br/>two, <x id='1'/> and {{three}}.",
    "A <b>bold and <i>wrong</b> one</i> here.",
    "An <b>open one.",
    "2 ** 3 is ____ or == so ==.",
    "* An item, 2 * 3 * 4 and 5*6*7.",
    "<p>All of it</p>",
    "No markup.",
]


def found(text: str) -> Markup:
    markup = markup_of(masked(text))
    assert markup is not None
    return markup


@pytest.mark.parametrize("text", LEFT_OUT)
def test_pairs_of_tags_and_signs_are_left_out(text: str) -> None:
    if (markup := markup_of(masked(text))) is not None:
        assert (markup.plain, markup.quoted) == LEFT_OUT[text]
    else:
        assert LEFT_OUT[text] == (text, None)


@pytest.mark.parametrize("text", KEPT)
def test_what_stands_alone_is_read(text: str) -> None:
    assert markup_of(masked(text)) is None


def symbols(text: str, translation: str) -> str:
    """The translation with the symbols of the text's spans in place of their numbers."""
    return re.sub(r"\[(\d)\]", lambda n: masked(text).symbols[int(n[1])], translation)


@pytest.mark.parametrize(
    ("text", "marked", "plain", "wanted"),
    [
        # Its words are those of the plain translation.
        (
            "Click <b>Save</b> now.",
            "Jetzt [0]Save[1] drücken.",
            "Jetzt Speichern drücken.",
            "Jetzt <b>Speichern</b> drücken.",
        ),
        # Another quotation mark opens in one, as a mark before it is missing.
        (
            "Click “<b>Save</b>” now.",
            "Klick “[0]Save[1]„ jetzt.",
            "Klick „Speichern“ jetzt.",
            "Klick „<b>Speichern</b>“ jetzt.",
        ),
        # The same word elsewhere
        (
            "Please **do not** close it.",
            "Bitte mach [0]nicht[1] es zu.",
            "Bitte schließe es nicht.",
            "Bitte schließe es **nicht**.",
        ),
        # Like signs in another order
        ("Do **not** go.", "Geh [1]nicht[0]!", "Geh nicht!", "Geh **nicht**!"),
        (
            "The <b><i>red</i> car</b> is mine.",
            "Der [0]rote[1] Wagen[2] ist meiner.",
            "Das rote Auto ist meins.",
            "Das <b><i>rote</i> Auto</b> ist meins.",
        ),
        (
            "The <b>red <i>car</i></b> is mine.",
            "[0]Ein rotes [1]Auto[2] ist meins.",
            "Das rote Auto ist meins.",
            "<b>Das rote <i>Auto</i></b> ist meins.",
        ),
        # One symbol is lost, with a word of the source between both.
        (
            "Tom <b>can't</b> go.",
            "Tom [0]kann es nicht.",
            "Tom kann nicht gehen.",
            "Tom <b>kann</b> nicht gehen.",
        ),
        (
            "I <b>ate</b> it.",
            "Ich aß [1]es.",
            "Ich habe es gegessen.",
            "Ich <b>habe</b> es gegessen.",
        ),
        # Both are: a guess, but what is there unchanged is no guess.
        ("I <b>ate</b> it.", "Ich aß es.", "Ich habe es gegessen.", "Ich <b>habe</b> es gegessen."),
        (
            "See <i>Tom</i> in <b>Berlin</b>.",
            "Tom",
            "In Berlin Tom sehen.",
            "In <b>Berlin</b> <i>Tom</i> sehen.",
        ),
        (
            "It is *very* nice.",
            "Es ist [0][1] sehr schön.",
            "Es ist sehr schön.",
            "Es ist *sehr* schön.",
        ),
        ("The <b>end</b>.", "", "...", None),
        ("日<b>本語</b>です", "[0]日本語[1]です", "日本語です", "<b>日本語</b>です"),
    ],
)
def test_markup_is_where_the_marked_translation_has_it(
    text: str, marked: str, plain: str, wanted: str | None
) -> None:
    assert found(text).merged(symbols(text, marked), plain, "") == wanted


def test_quotation_marks_are_read_where_symbols_are_lost() -> None:
    markup = found("Tom <b>really</b> likes this.")
    marked, plain = "Tom mag das.", "Tom mag das wirklich."
    assert markup.merged(marked, plain) is None  # the quoted text is to be translated first
    said = markup.merged(marked, plain, "Das mag Tom „wirklich“.")
    assert said == "Tom mag das <b>wirklich</b>."
    assert markup.merged(marked, plain, 'Tom mag "das.') == "Tom <b>mag</b> das wirklich."


WORDS = st.lists(st.sampled_from(["a", "b", "c", "ß", "don't", "x,"]), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(WORDS, WORDS, WORDS, WORDS, st.randoms())
def test_no_markup_is_lost_and_no_word_changed(
    before: list[str], inside: list[str], after: list[str], plain: list[str], chance: object
) -> None:
    text = " ".join([*before, f"<b>{' '.join(inside)}</b>", *after, "**z**"])
    markup, said_plain = found(text), " ".join(plain)
    marked = [*before, *inside, *after, "z"]
    for symbol in masked(text).symbols:
        marked.insert(chance.randrange(len(marked) + 1), symbol)  # type: ignore[attr-defined]
    said = markup.merged(" ".join(marked), said_plain, "")
    if said is not None:
        assert re.sub(r"</?b>|\*\*", "", said) == said_plain
        assert sorted(re.findall(r"</?b>|\*\*", said)) == ["**", "**", "</b>", "<b>"]
        assert re.search(r"<b>.+</b>", said)
