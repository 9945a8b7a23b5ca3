"""Documents are read, translated and written in place."""

from __future__ import annotations

import io
import re
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specdec_plugins.documents import FORMATS, read
from specdec_plugins.documents.job import Job, label_of, read_memory
from specdec_plugins.errors import UserError
from tests.refusals import refused

SAMPLES = sorted((Path(__file__).parent / "samples").iterdir())
BILINGUAL = {".po", ".pot", ".xliff", ".xlf", ".ts"}  # hold translations beside the texts
KEPT = re.compile(r"(</?[gx]+\d+/?>|%[\w$@]+|\{+\w*\}+)")


def upper(text: str) -> str:
    """A translation that keeps tags and placeholders."""
    return "".join(p if i % 2 else p.upper() for i, p in enumerate(KEPT.split(text)))


def translated(name: str, data: bytes, units: str = "untranslated") -> bytes:
    job = Job(read(name, data), units)
    made = job.written({text: upper(text) for text in job.texts})
    assert not job.lost
    return made


def changed(before: bytes, after: bytes) -> list[str]:
    """The lines that are new."""
    old = before.decode().splitlines()
    return [line.strip() for line in after.decode().splitlines() if line not in old]


# The lines that translating a sample changes; all others stay.
EXPECTED = {
    "app.arb": ['"greeting": "GOOD MORNING",'],
    "app.json": [
        '"title":   "WELCOME BACK",',
        r'"nested": {"hello": "HELLO {{name}}, YOU HAVE \"{{count}}\" MESSAGES.\nREAD THEM.", '
        '"list": ["ONE", null, "TWO/THREE"]}',
    ],
    "app.po": [
        'msgstr[0] "%d FILE WAS COPIED."',
        'msgstr[1] "%d FILES WERE COPIED."',
        r'"THE FOLDER IS EMPTY.\n"',
        '"DROP FILES HERE TO ADD THEM, OR CHOOSE THE BUTTON ABOVE TO MAKE A NEW FOLDER."',
    ],
    "app.properties": [
        "title = WELCOME BACK",
        "long : THE FIRST PART AND THE SECOND PART.",
        "format=IT''S {0} O''CLOCK",
        r"key\ with\ spaces \u00c4 TEXT",
    ],
    "app.resx": ["<value>WELCOME BACK &amp; HELLO</value>"],
    "app.strings": [
        '"title" = "WELCOME BACK";',
        r'"count" = "YOU HAVE %d \"NEW\" MESSAGES.\nREAD THEM.";',
        'unquoted.key="GO";',
    ],
    "app.ts": [
        '<translation>&amp;OPEN THE FILE "%1"</translation>',
        "<translation>",
        *["<numerusform>%n FILE(S) FOUND</numerusform>"] * 2,
    ],
    "app.xlf": ['<target>CHOOSE A <pc id="1">COLOUR</pc>.</target>'],
    "app.xliff": [
        '<target>OPEN THE <g id="1" ctype="bold">FOLDER</g> FIRST.</target>',
        '<target state="translated">PRESS <x id="1"/> TO GO ON &amp; WAIT.</target>',
    ],
    "film.srt": [
        "GOOD MORNING. I HAVE",
        "<i>NEVER</i> BEEN HERE BEFORE.",
        r"{\an8}- WHERE IS THE STATION?",
        "- OVER THERE.",
    ],
    "film.vtt": ["<v Ann>GOOD MORNING.", "WHERE IS <c.loud>THE <b>STATION</b></c>?"],
    "page.html": [
        '<meta name="description" content="A PAGE &amp; A GUIDE">'
        "<meta property='og:title' content='A PAGE'>",
        "<title>WELCOME &amp; HELLO</title>",
        "<h1>GETTING STARTED</h1>",
        "<p>READ <a href=\"guide.html?a=1&amp;b=2\" title='A &gt; B'>THE <em>GUIDE</em></a> FIRST, "
        "THEN RUN <code>make <b>demo</b></code>.<br>IT TAKES&nbsp;A MINUTE.</p>",
        '<ul><li>ONE<li>TWO <img src="x.png" alt="A PICTURE"></ul>',
        '<p translate="no">Specdec</p><p>UNCLOSED <b>BOLD',
    ],
    "page.md": [
        "# GETTING *STARTED*",
        "INSTALL THE PACKAGE WITH `pip install specdec` AND READ [THE **GUIDE**]"
        '(https://example.com/a_(b)?c=1 "A TITLE") FIRST.',
        "> A QUOTE OF TWO LINES.",
        "* FIRST ITEM",
        "* SECOND ITEM WITH ![A PICTURE](a.png) THAT GOES ON",
        "1. RUN IT:",
        "| NAME | WHAT IT DOES |",
        "| `a`  | OPENS THE FILE |",
        "SETEXT HEADING",
        '<div class="note">SOME <b>HTML</b> HERE.</div>',
        "LAST LINE\\",
        "WITH A BREAK, A <kbd>KEY</kbd> AND 2 * 3 * 4.",
    ],
    "page.txt": ["HELLO, WORLD!", "AN INDENTED LINE.", "NO END OF LINE"],
    "strings.xml": [
        r'<string name="title">DON\'T <b>CLOSE</b> THE WINDOW, '
        '<xliff:g id="name" example="Ann">%1$s</xliff:g>!</string>',
        r"""<string name="quoted">"  TWO SPACES BEFORE IT\'S HERE"</string>""",
        '<string name="page"><![CDATA[READ THE <A HREF="HELP">HELP</A> & GO.]]></string>',
        '<string-array name="days"><item>MONDAY</item><item>TUESDAY</item></string-array>',
        '<item quantity="one">%d FILE</item>',
        '<item quantity="other">%d FILES</item>',
    ],
}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.name)
def test_a_sample_changes_where_it_is_translated_and_nowhere_else(path: Path) -> None:
    data = path.read_bytes()
    made = translated(path.name, data)
    assert changed(data, made) == EXPECTED[path.name]
    windows = re.sub(b"\r?\n", b"\r\n", data)
    assert re.sub(b"\r?\n", b"\r\n", made) == re.sub(
        b"\r?\n", b"\r\n", translated(path.name, windows)
    )
    if path.suffix in BILINGUAL:
        assert Job(read(path.name, made)).texts == []


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.name)
def test_a_file_that_is_not_translated_keeps_every_byte(path: Path) -> None:
    for data in (
        path.read_bytes(),
        path.read_bytes().replace(b"\n", b"\r\n").replace(b"\r\r", b"\r"),
    ):
        job = Job(read(path.name, data))
        assert job.document.written([]) == data
        if path.suffix not in BILINGUAL:
            assert job.written({text: text for text in job.texts}) == data


def test_every_format_has_a_sample() -> None:
    assert {p.suffix for p in SAMPLES} | {".docx"} == FORMATS.keys() - {".pot", ".htm"}


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_file_is_refused_or_keeps_what_is_not_translated(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(SAMPLES))
    content = path.read_bytes()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        cut = data.draw(st.integers(0, 20))
        new = data.draw(st.sampled_from(
            [b"", *b"< > \" \\ \n & { ] <b> --> \xc3\xa4 \xff".split(b" ")]
        ))  # fmt: skip
        content = content[:at] + new + content[at + cut :]
    try:
        job = Job(read(path.name, content), "all")
    except UserError:
        return
    made = job.written({text: text for text in job.texts})
    if path.suffix not in BILINGUAL:
        assert made == content
    again = Job(read(path.name, made), "all")
    assert len(again.units) == len(job.units)


TEMPLATES = {
    "a.json": b'{"key": "Text"}',
    "a.properties": b"key=Text\n",
    "a.strings": b'"key" = "Text";\n',
    "a.po": b'msgid "Text"\nmsgstr ""\n',
    "strings.xml": b'<resources><string name="a">Text</string></resources>',
    "a.resx": b'<root><data name="a"><value>Text</value></data></root>',
    "a.xliff": b"<xliff><trans-unit><source>Text</source></trans-unit></xliff>",
    "a.html": b"<p>Text</p>",
    "a.txt": b"Text\n",
}
LETTERS = st.text(alphabet="aé漢😀\"'\\<>&%{}#@?!=:;/-_$`*[]", min_size=1)


@pytest.mark.parametrize("name", TEMPLATES)
@given(words=st.lists(LETTERS, min_size=1))
@settings(max_examples=60, deadline=None)
def test_any_translation_is_read_again_as_it_was_written(name: str, words: list[str]) -> None:
    said = " ".join(["Ein", *words])
    made = Job(read(name, TEMPLATES[name])).written({"Text": said})
    (unit,) = read(name, made).units
    if name.endswith((".po", ".xliff")):
        assert unit.target == said
    else:
        assume(name != "a.properties" or "''" not in said)  # which means one apostrophe
        assert unit.source == said


_STRING = rb'<resources><string name="a">%s</string></resources>'


@pytest.mark.parametrize(
    ("name", "data", "source"),
    [
        ("strings.xml", _STRING % rb'"\"Go\" he said \\"', '"Go" he said \\'),
        ("strings.xml", _STRING % rb"\ud83d\ude00 Go", "😀 Go"),
        ("strings.xml", _STRING % b"\n  <b>Go</b>\n on\n", "<g1>Go</g1> on"),
        ("strings.xml", _STRING % b"<![CDATA[\n <p>Go</p>\n]]>", " <p>Go</p> "),
        ("a.strings", rb'"a" = "\Ud83d\Ude00 Go";', "😀 Go"),
        ("a.properties", rb"key \=Go", "=Go"),
    ],
)
def test_escapes_are_read_and_written(name: str, data: bytes, source: str) -> None:
    job = Job(read(name, data))
    assert job.texts == [source]
    assert Job(read(name, job.written({source: f"{source}x"}))).texts == [f"{source}x"]


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("a.exe", b"", "unknown kind"),
        ("a.txt", b"\x7fELF\x00\x01", "not a text file"),
        ("a.txt", b"\x7fELF\x00\x01\xff", "not a text file"),
        ("a.txt", "text".encode("utf-32"), "not a text file"),
        ("a.txt", b"good\nb\xe4d\n", "line 2: is not utf-8"),
        ("a.po", b'msgid "a"\nmsgstr "b\n', "line 2: is neither"),
        ("a.po", b'msgid "a"\n', "within a message"),
        ("a.po", b'msgstr "a"\n', "without msgid"),
        ("a.po", b'"a"\n', "without a keyword"),
        ("a.json", b'{"a": "b",\n}', "line 2: is not JSON"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.json", b"1" * 5_000, "too long a number"),
        ("a.strings", b'"a" = "b"\n"c" = "d";', "line 1: expected"),
        ("a.xliff", b"<xliff><source>", "line 1: is not XML"),
        ("a.resx", b'<?xml version="1.0" encoding="klingon"?><a/>\xff', "unknown encoding"),
        ("a.srt", b"Hello", "no cues"),
        ("a.docx", b"PK\x03\x04 broken", "no .docx"),
        ("a.docx", b"", "no .docx"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(name: str, data: bytes, told: str) -> None:
    refused(re.escape(told), read, name, data)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt", b"word " * 10**6),
        ("a.html", b"<p>" + b"word " * 10**6),
        ("a.html", b'<a "' * 40_000 + b">"),
        ("a.html", b"<b>" * 30_000 + b"word"),
        ("a.html", b"<code>" * 30_000),
        ("a.html", b"<p>" + b"word <b>x</b> <img> " * 10**4),
        ("a.html", b"<!--" * 10**6),
        ("a.md", b"[" * 10**4 + b"word"),
        ("a.md", b"*a " * 10**4),
        ("a.md", b"`a ``b " * 3000),
        ("a.po", b'msgid ""\nmsgstr ""\n\n' + b'msgid "word %d"\nmsgstr ""\n\n' * 10_000),
        ("a.json", b"[" + b'"word", ' * 15_000 + b'"word"]'),
        ("a.strings", b'"a" = "word";\n' * 15_000),
        ("a.properties", b"\\" * 10**6),
        ("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\nword\n" * 4_000),
        ("strings.xml", b"<r>" + b"<string>" * 5000 + b"word" + b"</string>" * 5000 + b"</r>"),
        ("a.resx", b"<r>" + b"<data name='a'><value>w&amp;</value></data>" * 4_000 + b"</r>"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_a_large_file_takes_the_time_that_its_size_explains(name: str, data: bytes) -> None:
    began = time.process_time()
    job = Job(read(name, data))
    job.written({text: text + "!" for text in job.texts})
    assert time.process_time() - began < 5


def test_units_are_chosen_by_their_state() -> None:
    path = SAMPLES[[p.name for p in SAMPLES].index("app.po")]
    document = read(path.name, path.read_bytes())
    assert "Save the file" not in Job(document).texts  # as another message has it
    assert "Delete the file %s?" not in Job(document).texts
    assert "Delete the file %s?" in Job(document, "fuzzy").texts
    assert "Save the file" in Job(document, "all").texts
    made = translated(path.name, path.read_bytes(), "fuzzy").decode()
    assert '#, c-format\n#| msgid "Delete %s?"' in made
    assert 'msgstr "DELETE THE FILE %s?"' in made


def test_a_translation_that_loses_markup_is_not_written() -> None:
    data = b"<p>Read <b>this</b> now.</p><p>Go.</p>"
    job = Job(read("a.html", data))
    made = job.written({"Read <g1>this</g1> now.": "Lies <g1>das jetzt.", "Go.": "Los."})
    assert made == b"<p>Read <b>this</b> now.</p><p>Los.</p>"
    assert job.lost == ["Read <g1>this</g1> now."]


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("See [the list] and [a b][].", "SEE [THE LIST][the list] AND [A B][a b]."),
        ("See [the list][a b] and [c] d.", "SEE [THE LIST][a b] AND [C] D."),
        ("So ![a b] and ![a b][] are ![c].", "SO ![A B][a b] AND ![A B][a b] ARE ![c]."),
        (r"So ![a \[b\] [c]](x_(1).png).", r"SO ![A \[B\] \[C\]](x_(1).png)."),
        ('[![a](b.svg \'it"s\')](c "d").', '[![A](b.svg \'IT"S\')](c "D").'),
        ('![a "b"](c "d") e', '![A "B"](c "D") E'),
        ("So <img alt='a'> `![b](c)`", "SO <img alt='A'> `![b](c)`"),
    ],
)
def test_links_and_images_of_markdown_keep_their_targets(written: str, made: str) -> None:
    targets = "\n\n[the list]: x\n[A  b]: y\n"
    assert translated("a.md", (written + targets).encode()).decode() == made + targets


def test_attributes_that_are_shown_are_translated_wherever_their_tags_go() -> None:
    tag = "<img src=a alt='It\"s' title=\"A 'b' &amp; c\">"
    data = f"<p>See {tag} and <a title=Go href=b>this</a>.</p><meta title='x'>{tag}".encode()
    job = Job(read("a.html", data))
    assert job.texts == ['It"s', "A 'b' & c", "See <x1/> and <g2>this</g2>."]
    made = job.written({'It"s': "<e>", "A 'b' & c": '"', job.texts[2]: "<g2>Das</g2> und <x1/>."})
    new = "<img src=a alt='&lt;e&gt;' title=\"&quot;\">"
    wanted = f"<p><a title=Go href=b>Das</a> und {new}.</p><meta title='x'>{new}"
    assert made.decode() == wanted
    assert job.written({"A 'b' & c": "x"}).count(b'title="x"') == 2


@pytest.mark.parametrize(
    ("text", "mark", "said", "wanted"),
    [
        ("&Save %s", "&", "%s speichern", "%s &speichern"),
        ("E&xit", "&", "Beenden", "&Beenden"),
        ("_Open…", "&_", "打开…", "打开(_O)…"),
        ("P_aste", "&_", "Einfügen", "_Einfügen"),
        ("Save &as...", "&", "Als Kopie", "&Als Kopie"),
        *((t, "&_", "x", "x") for t in ("AT&T", "Tom & Jerry", "a && b", "my_file", "x &amp; y")),
    ],
)
def test_the_key_of_a_label_is_marked_in_its_translation(
    text: str, mark: str, said: str, wanted: str
) -> None:
    label = label_of(text, mark)
    assert (label.text != text) == (wanted != said)
    assert label.marked(said) == wanted


@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        (
            "a.po",
            'msgid ""\nmsgstr ""\n"Language:{}\\n"\n\nmsgid "&Text"\nmsgstr "{}"\n',
            (" de", "&Satz"),
        ),
        (
            "a.xliff",
            '<xliff><file source-language="en"{}><trans-unit><source>&amp;Text</source>'
            "<target>{}</target></trans-unit></file></xliff>",
            (' target-language="de"', "&amp;Satz"),
        ),
        (
            "a.ts",
            '<TS version="2.1"{}><context><message><source>&amp;Text</source>'
            '<translation type="unfinished">{}</translation></message></context></TS>',
            (' language="de"', "&amp;Satz"),
        ),
    ],
)
def test_a_file_names_the_language_that_it_is_translated_to(
    name: str, data: str, wanted: tuple[str, str]
) -> None:
    attribute, said = wanted
    for before in ("", attribute.replace("de", "fr"), attribute.replace("de", "de_AT")):
        job = Job(read(name, data.format(before, "").encode()))
        assert job.texts == ["Text"]
        after = before if "AT" in before else attribute
        made = job.written({"Text": "Satz"}, "deu_Latn").decode()
        assert made.replace(' type="unfinished"', "") == data.format(after, said).replace(
            ' type="unfinished"', ""
        )
        assert job.written({}, "fr").decode() == data.format(before, "")


@pytest.mark.parametrize(
    ("before", "after"), [("en-US", "de"), ("de-AT", "de-AT")], ids=["another", "the same"]
)
def test_a_page_names_another_language_only(before: str, after: str) -> None:
    page = '<html class=a lang="{}"><p lang="en">{}</p></html>'
    job = Job(read("a.html", page.format(before, "Text").encode()))
    assert job.written({"Text": "Satz"}, "de").decode() == page.format(after, "Satz")


def test_markup_may_move() -> None:
    job = Job(read("a.html", b"<p>See <a href=a>one</a> and <i>two</i>.</p>"))
    made = job.written({job.texts[0]: "<g2>Zwei</g2> & <g1>eins</g1>"})
    assert made == b"<p><i>Zwei</i> &amp; <a href=a>eins</a></p>"


@pytest.mark.parametrize(
    ("said", "made"),
    [
        ("Lies <g1> das <g2> Buch </g2></g1>jetzt.", "Lies [das **Buch**](a) jetzt."),
        ("<g1> Das <g2>Buch </g2></g1>.", "[Das **Buch**](a)."),
        ("Lies<g1> <g2> das Buch</g2> </g1> jetzt", "Lies [**das Buch**](a) jetzt"),
        ("Lies <g1>das <g2>Buch</g2></g1> jetzt.", "Lies [das **Buch**](a) jetzt."),
    ],
)
def test_spaces_stay_outside_of_marks(said: str, made: str) -> None:
    job = Job(read("a.md", b"Read [the **book**](a) now.\n"))
    assert job.texts == ["Read <g1>the <g2>book</g2></g1> now."]
    assert job.written({job.texts[0]: said}).decode() == made + "\n"


def docx(body: str, **others: str) -> bytes:
    made = io.BytesIO()
    word = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        document = f"<w:document {word}><w:body>{body}</w:body></w:document>"
        archive.writestr("word/document.xml", document)
        for name, inner in others.items():
            archive.writestr(f"word/{name}.xml", f"<w:ftr {word}>{inner}</w:ftr>")
    return made.getvalue()


_PO = b'msgid ""\nmsgstr "Content-Type: text/plain; charset=%s\\n"\n\nmsgid "%s"\nmsgstr ""\n'


@pytest.mark.parametrize(
    ("name", "data", "charset"),
    [
        ("a.po", _PO % (b"ASCII", b"word"), "UTF-8"),
        ("a.po", _PO % (b"ISO-8859-1", b"word"), "UTF-8"),
        ("a.po", _PO % (b"ISO-8859-1", b"w\xf6rd"), "ISO-8859-1"),
        ("a.html", b"<meta charset=iso-8859-1><p>word", "iso-8859-1"),
        ("a.resx", b'<?xml version="1.0" encoding="iso-8859-1"?><data><value>word</value></data>',
         "iso-8859-1"),
    ],
)  # fmt: skip
def test_a_file_is_written_in_the_encoding_that_it_names(
    name: str, data: bytes, charset: str
) -> None:
    job = Job(read(name, data))
    [text] = job.texts
    made = job.written({text: "W\xf6rter"}, "de").decode(charset)
    assert (charset in made, "W\xf6rter" in made) == (True, True)
    assert len(job.written({text: "Words"}, "de")) - len(data) in (1, 5)  # nothing else changes
    if b"\xf6" in data:
        refused("ISO-8859-1, which has no '„'", job.written, {text: "„W"})


@pytest.mark.parametrize("damaged", ["word/document.xml", "word/media.xml", None])
def test_a_docx_that_cannot_be_written_again_is_refused_at_once(damaged: str | None) -> None:
    """Or one that is compressed without measure."""
    data = bytearray(docx("<w:p/>" * 99, media=" " * (9_000 if damaged else 80_000_000)))
    if damaged:
        at = data.index(damaged.encode()) + len(damaged)
        data[at : at + 9] = b"\xff" * 9
    refused(r"no \.docx file", read, "a.docx", bytes(data))


def part(data: bytes, name: str = "document") -> str:
    text = zipfile.ZipFile(io.BytesIO(data)).read(f"word/{name}.xml").decode()
    return re.sub(r' xml:space="preserve"| xmlns:w="[^"]*"', "", text)


def run(text: str, format: str = "") -> str:
    return f"<w:r>{format}<w:t>{text}</w:t></w:r>"


BOLD = "<w:rPr><w:b/></w:rPr>"


LINK = '<w:hyperlink r:id="1" xmlns:r="r">{}</w:hyperlink>'
BEGIN, END = (f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "end"))
FIELD = f"{BEGIN}<w:r><w:instrText>PAGE</w:instrText></w:r>{END}"
TAB, NOISE = "<w:r><w:tab/></w:r>", '<w:proofErr w:type="spellStart"/>'


@pytest.mark.parametrize(
    ("inner", "source", "made"),
    [
        (run("Hello ") + run("world"), "Hello world", run("HELLO WORLD")),
        (
            "<w:pPr/>" + run("Read ") + run("this", BOLD) + run(" &amp; that."),
            "Read <g1>this</g1> & that.",
            "<w:pPr/>" + run("READ ") + run("THIS", BOLD) + run(" &amp; THAT."),
        ),
        (
            run("See all of ") + LINK.format(run("the page", BOLD)),
            "See all of <g1><g2>the page</g2></g1>",
            run("SEE ALL OF ") + LINK.format(run("THE PAGE", BOLD)),
        ),
        (run("No. ") + FIELD + run(" of"), "No. <x1/> of", run("NO. ") + FIELD + run(" OF")),
        (NOISE + run("One") + TAB + run("two"), "One<x1/>two", run("ONE") + TAB + run("TWO")),
    ],
)
def test_paragraphs_of_word_keep_their_formats(inner: str, source: str, made: str) -> None:
    data = docx(f"<w:p>{inner}</w:p><w:p/>", footer1=f"<w:p>{run('Foot')}</w:p>", styles="<w:p/>")
    job = Job(read("a.docx", data))
    assert job.texts == [source, "Foot"]
    assert job.written({text: text for text in job.texts}) == data
    after = job.written({text: upper(text) for text in job.texts})
    assert part(after) == f"<w:document><w:body><w:p>{made}</w:p><w:p/></w:body></w:document>"
    assert run("FOOT") in part(after, "footer1")
    assert part(after, "styles") == part(data, "styles")


def test_text_boxes_are_translated_and_stay_where_they_are() -> None:
    box = f"<w:r><w:pict><w:txbxContent><w:p>{run('Inside')}</w:p></w:txbxContent></w:pict></w:r>"
    data = docx(f"<w:p>{run('Before')}{box}{run('after')}</w:p>")
    made = part(translated("a.docx", data))
    assert made == part(
        docx(f"<w:p>{run('BEFORE')}{box.replace('Inside', 'INSIDE')}{run('AFTER')}</w:p>")
    )


UNIT = '<tu><tuv xml:lang="{}"><seg>{}</seg></tuv><tuv xml:lang="{}"><seg>{}</seg></tuv></tu>'
MEMORY = (
    '<?xml version="1.0"?><tmx version="1.4"><header srclang="en-US"/><body>'
    + UNIT.format("en-US", "Save the file", "de-DE", "Datei sichern")
    + UNIT.format("en", 'Go <bpt i="1"/>on', "de", "Weiter")
    + UNIT.format("fr", "Oui", "es", "Si")
    + "</body></tmx>"
)


def test_what_a_memory_holds_is_used_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "memory.tmx"
    path.write_text(MEMORY, encoding="utf-8")
    for pair in (("en", "de"), (None, None), ("EN", "ger")):
        assert read_memory(path, *pair) == {"Save the file": "Datei sichern"}
    job = Job(read("a.txt", b"Save the file\nOther\n"), memory=read_memory(path, "en", "de"))
    assert job.texts == ["Other"]
    assert job.written({"Other": "Anderes"}) == b"Datei sichern\nAnderes\n"
    assert job.num_known == 1
    refused("holds no translations from en to ro", read_memory, path, "en", "ro")
    path.write_text("<tmx>", encoding="utf-8")
    refused("cannot be read as a .tmx", read_memory, path, "en", "de")
