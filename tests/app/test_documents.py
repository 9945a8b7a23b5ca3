"""Documents on the command line, with a translator that writes capitals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.app.documents import DocumentOptions, DocumentRun, parted
from specdec_plugins.app.files import FileOptions, Sentences
from specdec_plugins.app.report import Tally
from specdec_plugins.app.types import Sentence, Translation
from specdec_plugins.corpus.cli import build
from specdec_plugins.decoding.requests import FinishReason
from specdec_plugins.errors import Stopped, run_command
from specdec_plugins.serving import translate as command

PO = b'msgid "Save"\nmsgstr "Sichern"\n\nmsgid "Open\\nClose"\nmsgstr ""\n\nmsgid "Go"\nmsgstr ""\n'
DONE = PO.replace(
    b'msgid "Open\\nClose"\nmsgstr ""', b'msgid "Open\\nClose"\nmsgstr ""\n"OPEN\\n"\n"CLOSE"'
)
DONE = DONE.replace(b'msgid "Go"\nmsgstr ""', b'msgid "Go"\nmsgstr "GO"')


class Capitals:
    """A worker; stops before a text that is given to it, as an interrupted one does."""

    num_best = 1
    reads: Sequence[str] = ()

    def __init__(self, stop: str = "", loses: str = "") -> None:
        self.stop, self.loses = stop, loses
        self.seen = list[str]()
        self.target_lang = "de"

    def origin(self) -> dict[str, dict[str, Any]]:
        return {"values": {}, "contents": {}}

    def start(self, files: FileOptions, say: Callable[[str], object]) -> None: ...

    def translated(
        self, sentences: Sentences, on_done: Callable[[], None]
    ) -> Iterator[tuple[Sequence[Sentence], Sequence[Translation]]]:
        for one in sentences:
            if one.text == self.stop:
                raise Stopped(2)
            self.seen.append(one.text)
            text = one.text.upper().replace(self.loses.upper() or "\0", "")
            yield [one], [Translation(one.number, text, finish_reason=FinishReason.EOS.value)]

    def report(self, tally: Tally, seconds: float) -> str:
        return f"{tally.sentences} lines"


def run(worker: Any, **given: Any) -> int:
    def work() -> int:
        how, files = build(DocumentOptions, given), build(FileOptions, given)
        return DocumentRun("translate", how, worker, files, given).run()

    return run_command("translate", work, "debug" in given, "interrupted.")


@pytest.fixture
def po(tmp_path: Path) -> Path:
    path = tmp_path / "app.po"
    path.write_bytes(PO)
    return path


def test_a_document_is_written_whole(po: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, worker = po.with_name("out.po"), Capitals()
    assert run(worker, file=str(po), output_path=str(out)) == 0
    assert out.read_bytes() == DONE
    assert worker.seen == ["Open", "Close", "Go"]
    assert sorted(p.name for p in po.parent.iterdir()) == ["app.po", "out.po"]
    assert "3 texts: 2 to translate, 0 known before, 0 left." in capsys.readouterr().err


def test_a_catalogue_may_be_translated_in_place_and_a_text_may_not(
    po: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link, text = po.with_name("link.po"), po.with_name("a.txt")
    link.symlink_to(po)
    po.chmod(0o640)
    assert run(Capitals(), file=str(po), output_path=str(link)) == 0
    assert (po.read_bytes(), link.is_symlink(), po.stat().st_mode & 0o777) == (DONE, True, 0o640)
    text.write_bytes(b"word\n")
    assert run(Capitals(), file=str(text), output_path=str(text)) == 2
    assert "is an input as well" in capsys.readouterr().err


def test_a_run_that_was_interrupted_goes_on(po: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = po.with_name("out.po")
    assert run(Capitals(stop="Go"), file=str(po), output_path=str(out)) == 130
    assert "--resume goes on" in capsys.readouterr().err
    assert not out.exists()
    worker = Capitals()
    assert run(worker, file=str(po), output_path=str(out), resume=True) == 0
    assert worker.seen == ["Go"]
    assert out.read_bytes() == DONE
    assert sorted(p.name for p in po.parent.iterdir()) == ["app.po", "out.po"]


def test_a_memory_of_several_languages_is_read_in_those_that_are_asked_for(po: Path) -> None:
    """A server, too, has no settings here that would name them."""
    texts = "".join(
        f'<tuv xml:lang="{lang}"><seg>{text}</seg></tuv>'
        for lang, text in (("en", "Go"), ("de", "Los"), ("fr", "Allez"))
    )
    memory, out = po.with_name("m.tmx"), po.with_name("out.po")
    memory.write_text(
        f'<tmx version="1.4"><header srclang="en"/><body><tu>{texts}</tu></body></tmx>'
    )
    given = {"memory": str(memory), "source_lang": "en", "target_lang": "fr"}
    assert run(Capitals(), file=str(po), output_path=str(out), **given) == 0
    assert b'"Allez"' in out.read_bytes()


def test_another_document_is_not_resumed(po: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(po.with_name("out.po"))
    run(Capitals(stop="Go"), file=str(po), output_path=out)
    po.write_bytes(PO.replace(b"Open", b"Shut"))
    assert run(Capitals(), file=str(po), output_path=out, resume=True) == 2
    assert "came from another input" in capsys.readouterr().err


def test_a_text_whose_markup_is_lost_stays_and_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, out = tmp_path / "a.html", tmp_path / "b.html"
    page.write_bytes(b"<p>One <b>two</b> three<p>Four")
    assert run(Capitals(loses="</g1>"), file=str(page), output_path=str(out)) == 1
    assert out.read_bytes() == b"<p>One <b>two</b> three<p>FOUR"
    assert "would have lost markup" in capsys.readouterr().err


def test_nothing_to_translate_needs_no_model(po: Path) -> None:
    out = po.with_name("out.po")
    po.write_bytes(DONE)
    assert run(worker := Capitals(), file=str(po), output_path=str(out)) == 0
    assert not worker.seen
    assert out.read_bytes() == DONE


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"output_path": "-"}, "name the file to write with -o"),
        ({"json_path": "x"}, "omit --prefix-file"),
        ({"input_path": "x"}, "read as FILE, which excludes --input-path; a model is its folder"),
        ({"file": "nowhere.po"}, "nowhere.po: cannot be read"),
        ({"memory": "nowhere.tmx"}, "nowhere.tmx: cannot be read"),
    ],
)
def test_what_cannot_be_done_is_refused(
    po: Path, given: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = po.with_name("out.po")
    assert run(Capitals(), **{"file": str(po), "output_path": str(out), **given}) == 2
    assert told in capsys.readouterr().err
    assert not out.exists()


def test_the_first_name_may_be_that_of_the_document(po: Path, tmp_path: Path) -> None:
    assert parted({"data": str(po)}) == {"file": str(po)}
    assert parted({"data": "missing.docx"}) == {"file": "missing.docx"}
    assert parted({"data": str(tmp_path)}) == {"data": str(tmp_path)}
    assert parted({"data": "models/mine"}) == {"data": "models/mine"}
    both = {"data": str(tmp_path), "file": str(po)}
    assert parted(both) == both
    lines = tmp_path / "raw.en"
    lines.touch()
    assert parted({"data": str(lines)}) == {"input_path": str(lines)}
    assert parted({"data": "m", "file": "raw.en"}) == {"data": "m", "input_path": "raw.en"}


def test_another_file_is_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (lines := tmp_path / "raw.en").write_bytes(b"\x7fELF\0\xff")
    assert command.main([str(lines), "-o", str(tmp_path / "out"), "--quiet"]) == 2
    assert "raw.en" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "name", "is_told"),
    [(["--input-path"], "a.html", True), (["--input-path"], "a.txt", False), ([], "raw.en", False)],
)
def test_a_document_given_as_lines_is_translated_so_and_that_is_told(
    flags: list[str], name: str, is_told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("Click the button.\n", encoding="utf-8")
    out = tmp_path / "out"
    assert command.main([*flags, str(tmp_path / name), "-o", str(out)]) == 0
    assert out.read_text(encoding="utf-8") == "Klicken Sie auf die Schaltfläche.\n"
    told = f"{name}: is translated line by line, markup and all"
    assert (told in capsys.readouterr().err) == is_told


def test_the_bundled_pair_keeps_markup(tmp_path: Path) -> None:
    page, out = tmp_path / "a.html", tmp_path / "b.html"
    page.write_text('<p>Click the <b>button</b> or <a href="x">open a file</a>.', encoding="utf-8")
    assert command.main([str(page), "-o", str(out), "--quiet"]) == 0
    made = out.read_text(encoding="utf-8")
    assert made.startswith("<p>Klicken Sie auf")
    for tag in ("<b>", "</b>", '<a href="x">', "</a>"):
        assert made.count(tag) == 1
