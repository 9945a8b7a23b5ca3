"""Spans that a translation keeps: which they are, and how they come back."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specdec_plugins.formats.text import PROTECTED
from specdec_plugins.text.spans import around, masked, measures_of, spans_of, stand_ins, united

SPANS = {
    "{{name}}, you have %d new messages": "{{name}} | %d",
    "%(count)s of %1$s, %@ and %-5.2f%%": "%(count)s | %1$s | %@ | %-5.2f%%",
    "Page %1 of %L2, %n file(s)": "%1 | %L2 | %n",
    "{0:N2}, {user.name!r}, ${HOME}, #{x}, {}": "{0:N2} | {user.name!r} | ${HOME} | #{x} | {}",
    "{n, plural, one {# file} other {# files}} found": "{n, plural, one {# file} other {# files}}",
    "{n, plural, one {# file": "",
    "Save\x07 the \x1b[1;31mred\x1b[0m file": "\x07 | \x1b[1;31m | \x1b[0m",
    "{% if x %}Hi{% endif %}": "{% if x %} | {% endif %}",
    "See https://example.com/a?b=1&c=2, or a@b.com.": "https://example.com/a?b=1&c=2 | a@b.com",
    "(see http://a.b/c_(d))": "http://a.b/c_(d)",
    "Fish &amp; chips, a &lt; b, R&D": "&amp; | &lt;",
    "Click <b>Save</b> &nbsp;<br/>": "<b> | </b> | &nbsp;<br/>",
    "Edit /etc/hosts or ~/.config/x.ini.": "/etc/hosts | ~/.config/x.ini",
    "Edit C:\\Windows\\win.ini.": "C:\\Windows\\win.ini",
    "`--max rows`, --max-rows=5 or os.path.join().": "`--max rows` | --max-rows=5 | os.path.join()",
    "Thanks :-) I <3 it (he said ;) and a :/ b: (c)": ":-) | <3 | ;) | :/",
    "He's 5'10\", it's in report(1).docx and 5' '10'": "5'10\" | report(1).docx",
    "Use $HOME/.config/a.ini. Or %TEMP%\\log, [1..10]": "$HOME/.config/a.ini | %TEMP%\\log | 1..10",
    "It costs $price/month, see $a[0].": "$price | $a[0]",
    "up to 250'000 or 1’250’000, not 5'000's or 7'30": "250'000 | 1’250’000",
    "@anna wrote :smile: about #42, my_var and a.txt": "@anna | :smile: | #42 | my_var | a.txt",
    "%PATH%, $HOME and $row['id']": "%PATH% | $HOME | $row['id']",
    "## Do **not** call __init__": "## | ** | ** | __init__",
    "It is *very* nice, * not 2 * 3 or a*b*c.": "* | *",
    "Call my__name.": "my__name",
    "Name: ____, 2 ** 3, ~~old~~ a == b": "____ | ** | ~~ | ~~ | ==",
    # Prose has the same characters.
    "50% discount, 100% sure, 5 % of all": "",
    "I/O, and/or, 24/7, 1/2, 10:30, C#, $5, a < b > c, a = b, 2 * 3, ~5": "",
    "Note: AT&T's e-mail; see (a), [b] or {c d}.": "",
}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("It needs 5 GB of RAM, and 3.5 kg.", ["5 GB", "3.5 kg"]),
        ("20 °C or -5°C; 50% more, 1,299.00 €, $5", ["20 °C", "-5°C", "50%", "1,299.00 €", "$5"]),
        ("10–20 MB/s, 5x7 cm, 10 km/h, 1 000 kg", ["10–20 MB/s", "5x7 cm", "10 km/h", "1 000 kg"]),
        ("Chapter 5 in a book, 3 cats, 10.0.0.1, v1.2, 5%d, 16:9, 2 Bs, 3 t/a", []),
    ],
)
def test_numbers_with_units_are_found(text: str, wanted: list[str]) -> None:
    assert [text[begin:end] for begin, end in measures_of(text)] == wanted


@pytest.mark.parametrize("text", SPANS)
def test_placeholders_markup_and_addresses_are_spans(text: str) -> None:
    assert " | ".join(text[begin:end] for begin, end in spans_of(text)) == SPANS[text]


@pytest.mark.parametrize(
    ("source", "translation", "restored"),
    [
        # The spans may change places, and spaces stand as in the source.
        ("%s sees %d.", "Es sieht \ue001 der \ue000.", "Es sieht %d der %s."),
        ("Do <b>Save</b> it.", "Jetzt \ue000 Speichern \ue001 es.", "Jetzt <b>Speichern</b> es."),
        ("Open:{0}px (%s)", "Öffne: \ue000 px (\ue001)", "Öffne:{0}px (%s)"),
        # Tags around the whole are no matter of the model.
        ("<p><b>Save</b></p> ", "Speichern", "<p><b>Speichern</b></p> "),
        ("%s is missing", "fehlt", None),
        ("%s is missing", "\ue000 \ue000 fehlt", None),
        ("%s is missing", "\ue000 \ue001 fehlt", None),
        ("a <b>x</b> c", "\ue001 x \ue000", None),  # no longer closed in order
    ],
)
def test_spans_come_back_in_place_of_symbols(
    source: str, translation: str, restored: str | None
) -> None:
    made = masked(source)
    assert made.restored(translation) == restored


PIECES = ["%d", "{x}", "<b>", "</b>", "<br>", "https://a.b/c", "a@b.de", "word", " ", "\n", ". "]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join)


@given(TEXTS, st.booleans())
@example("</b> <b>", False)
@example("\ue000 was there before", False)
@example("[1] %s", True)
def test_a_text_comes_back_from_its_own_symbols(text: str, has_stand_ins: bool) -> None:
    made = masked(text, symbols=stand_ins(text) if has_stand_ins else PROTECTED)
    if len(made.symbols) < len(made.spans):
        assert not has_stand_ins
        assert len(made.spans) > len(PROTECTED)
        assert made.restored(made.text) is None
    else:
        assert made.restored(made.text) == text or "<" in text  # tags may be open in the text


@given(TEXTS)
@example('Save ("%s"), or <b>open</b> it. ')
def test_pieces_around_spans_are_the_text(text: str) -> None:
    pieces = [*around(text, spans_of(text))]
    assert "".join(gap + piece for gap, piece, _ in pieces) == text
    assert all(not gap.strip() for gap, _, _ in pieces)
    assert all(piece == piece.strip() and not spans_of(piece) for _, piece, t in pieces if t)


def test_punctuation_beside_a_span_is_not_translated() -> None:
    text = '%s, open ("{x}") or <b>close</b>.'
    pieces = [piece for _, piece, is_text in around(text, spans_of(text)) if is_text]
    assert pieces == ["open", "or", "close"]


@pytest.mark.parametrize(
    "piece",
    [".", "<", "{", "%", "a@", "/", "a/", "{a,plural,", "`", "<a ", "&a", "http://", ")", "a."]
    + [":a", "<a>", "<!--", "{{", "{%", "{a,", "$a->", "~/", " <b>", "{x} ", "a_", "--a", "("]
    + ["1", "1 ", "1,", "1 000", "1-", "$"],
)
def test_no_text_takes_long(piece: str) -> None:
    text = (piece * 20_000)[:20_000]
    began = time.thread_time()
    masked(text, united(spans_of(text), measures_of(text)))
    assert sum(1 for _ in around(text, spans_of(text)))
    assert time.thread_time() - began < 1.0
