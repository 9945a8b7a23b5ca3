"""WMT's sets: archives, SGML, and whole preparations on tiny archives from a local folder."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from specdec_plugins.corpus import wmt
from specdec_plugins.corpus.prepare import Preparation
from specdec_plugins.corpus.wmt import Store, check_same_segments, open_member, parse_sgm
from specdec_plugins.errors import UserError
from tests.programs import script
from tests.refusals import refused

ENGLISH = [f"The minister of Timișoara spoke {i} times, he said." for i in range(12)]
ROMANIAN = [f"Ministrul din Timişoara a vorbit de {i} ori în ţară." for i in range(12)]
GERMAN = [f"Der Minister sprach {i} mal, sagte er." for i in range(12)]


def plain(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def sgm(lines: list[str]) -> bytes:
    segments = "\n".join(f'<seg id="{i}">{line}</seg>' for i, line in enumerate(lines, 1))
    return f'<refset><doc docid="d">\n<p>\n{segments}\n</p></doc></refset>'.encode()


def tgz(path: Path, content: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as packed:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))


def both_ways(prefix: str, sides: dict[str, list[str]]) -> dict[str, bytes]:
    """A test set of WMT16: both directions, a source and a reference for each."""
    content = {}
    for source, target in (list(sides), list(sides)[::-1]):
        content[f"{prefix}-{source}{target}-src.{source}.sgm"] = sgm(sides[source])
        content[f"{prefix}-{source}{target}-ref.{target}.sgm"] = sgm(sides[target])
    return content


@pytest.fixture
def wmt16(tmp_path: Path) -> Path:
    folder = tmp_path / "mirror16"
    folder.mkdir()
    prefix = "training-parallel-ep-v8/europarl-v8.ro-en"
    tgz(
        folder / "training-parallel-ep-v8.tgz",
        {
            f"{prefix}.en": plain([*ENGLISH, "bad"]),
            f"{prefix}.ro": plain(ROMANIAN) + b"r\xffu\n",
            "training-parallel-ep-v8/europarl-v8.fi-en.en": b"other\n",
        },
    )
    with zipfile.ZipFile(folder / "SETIMES.en-ro.txt.zip", "w") as packed:
        packed.writestr("SETIMES.en-ro.en", plain(["Good day ."] * 2))
        packed.writestr("SETIMES.en-ro.ro", plain(["Bună ziua ."] * 2))
        packed.writestr("README", b"x")
    sides = {"en": ENGLISH[:3], "ro": ["", *ROMANIAN[:2]]}
    tgz(folder / "wmt16-dev-romanian-updated.tgz", both_ways("dev/newsdev2016", sides))
    tgz(folder / "wmt16-test.tgz", both_ways("test/newstest2016", sides))
    return folder


@pytest.mark.fairseq
@pytest.mark.integration
def test_wmt16_from_archives_to_a_data_bin(tmp_path: Path, wmt16: Path) -> None:
    flags = ["--mirror", wmt16.as_uri(), "--out", "out", "--merges", 20, "--direction", "ro-en"]
    done = script("prepare-wmt16-en-ro.sh", *flags, "--strip-diacritics", "yes", cwd=tmp_path)
    assert "1 bad lines skipped" in done.stderr
    assert "europarl-v8.ro, line 13: not UTF-8" in done.stderr
    out = tmp_path / "out"
    assert (out / "data-bin" / "test.ro-en.ro.idx").is_file()
    assert (out / "raw" / "test.ro").read_bytes() == plain(["", *ROMANIAN[:2]])
    assert (out / "raw" / "test.en").read_bytes() == plain(ENGLISH[:3])
    tokens = (out / "tok" / "train.ro").read_text().splitlines()
    assert tokens[0] == "Ministrul din Timisoara a vorbit de 0 ori in tara ."
    assert "Timișoara" in (out / "tok" / "train.en").read_text()
    assert len(tokens) == 14

    # Everything is there: a second run needs no mirror, and does nothing.
    flags = ["--mirror", "http://127.0.0.1:9", *flags[2:], "--strip-diacritics", "yes"]
    again = script("prepare-wmt16-en-ro.sh", *flags, cwd=tmp_path)
    assert "starting" not in again.stderr
    assert "doing it again" not in again.stderr


def test_wmt14_in_both_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Preparation, "_binarise", lambda self: None)
    folder = tmp_path / "archives"
    folder.mkdir()
    for archive, prefix in (
        ("training-parallel-europarl-v7.tgz", "training/europarl-v7.de-en"),
        ("training-parallel-commoncrawl.tgz", "commoncrawl.de-en"),
        ("training-parallel-nc-v9.tgz", "training/news-commentary-v9.de-en"),
        ("wmt14-dev.tgz", "dev/newstest2013"),
    ):
        tgz(folder / archive, {f"{prefix}.de": plain(GERMAN), f"{prefix}.en": plain(ENGLISH)})
    test = {
        f"test-full/newstest2014-deen-{role}.{language}.sgm": sgm(lines[:3])
        for role in ("src", "ref")
        for language, lines in (("en", ENGLISH), ("de", GERMAN))
    }
    tgz(folder / "wmt14-test-full.tgz", test)
    for direction in ("en-de", "de-en"):
        out = tmp_path / direction
        flags = ["wmt14-en-de", "--archives", folder, "--direction", direction, "--out", out]
        flags += ["--merges", 20, "--workers", 1]
        wmt.COMMAND(*flags)
        assert (out / "raw" / "train.de").read_bytes() == plain(GERMAN * 3)
        assert (out / "raw" / "valid.en").read_bytes() == plain(ENGLISH)
        assert (out / "raw" / "test.de").read_bytes() == plain(GERMAN[:3])


@pytest.mark.integration
def test_without_a_network(tmp_path: Path) -> None:
    flags = ["--mirror", "http://127.0.0.1:9/x", "--out", "out"]
    done = script("prepare-wmt14-en-de.sh", *flags, cwd=tmp_path, expect=2)
    last = done.stderr.splitlines()[-1]
    assert "fetch http://127.0.0.1:9/x/training-parallel-europarl-v7.tgz by hand" in last
    assert str(tmp_path / "out" / "archives" / "training-parallel-europarl-v7.tgz") in last
    assert "Traceback" not in done.stderr
    wrong = script("prepare-wmt14-en-de.sh", *flags, "--direction", "de-ro", cwd=tmp_path, expect=2)
    assert "has en-de or de-en" in wrong.stderr


ARCHIVE = ("a.tgz", "http://127.0.0.1:9/a.tgz", ("x.en", "x.de"))
CONTENT = {"training/x.en": b"one\n" * 400, "training/x.de": b"eins\n" * 400}


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    folder = tmp_path / "mirror"
    folder.mkdir()
    tgz(folder / "a.tgz", CONTENT)
    return folder


@pytest.fixture
def store(tmp_path: Path, mirror: Path) -> Store:
    return Store(tmp_path / "store", mirror.as_uri())


def test_fetch_check_record(store: Store, tmp_path: Path) -> None:
    path = store.get(*ARCHIVE)
    with open_member(path, "x.de") as file:
        assert file.read() == CONTENT["training/x.de"]
    recorded = json.loads((tmp_path / "store" / "archives.json").read_text())
    assert recorded["a.tgz"]["bytes"] == path.stat().st_size
    assert len(recorded["a.tgz"]["sha256"]) == 64
    assert not list((tmp_path / "store").glob("*.part"))


def test_a_download_goes_on_where_it_stopped(store: Store, mirror: Path, tmp_path: Path) -> None:
    whole = (mirror / "a.tgz").read_bytes()
    half = len(whole) // 2
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a.tgz.part").write_bytes(whole[:half])
    # The first half can no longer be fetched right: only resumption gives a whole archive.
    (mirror / "a.tgz").write_bytes(b"\0" * half + whole[half:])
    assert store.get(*ARCHIVE).read_bytes() == whole


def test_an_archive_put_there_is_checked_and_then_recorded(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    path.write_bytes(b"<html>not found</html>")
    refused("damaged or cut off", Store(tmp_path).get, *ARCHIVE)
    tgz(path, {"x.en": b"one\n"})
    refused(r"does not hold x\.de", Store(tmp_path).get, *ARCHIVE)
    tgz(path, CONTENT)
    assert Store(tmp_path).get(*ARCHIVE) == path
    assert (tmp_path / "archives.json").is_file()
    (tmp_path / "store").mkdir()
    path.rename(tmp_path / "store" / "a.tgz.part")  # all of it, so that no network is needed
    assert Store(tmp_path / "store").get(*ARCHIVE) == tmp_path / "store" / "a.tgz"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for name, content in CONTENT.items():
            packed.writestr(name, content)
    path = Store(tmp_path).get("a.zip", "", ("x.en", "x.de"))
    with open_member(path, "x.en") as file:
        assert file.read() == CONTENT["training/x.en"]


def test_an_archive_that_changed_since_is_refused(store: Store) -> None:
    path = store.get(*ARCHIVE)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    refused("not the archive that was accepted before", store.get, *ARCHIVE)


@pytest.mark.parametrize("cut", [1, 30])
def test_a_damaged_download_is_removed(
    store: Store, mirror: Path, tmp_path: Path, cut: int
) -> None:
    whole = (mirror / "a.tgz").read_bytes()
    (mirror / "a.tgz").write_bytes(whole[:-cut])
    refused("damaged or cut off", store.get, *ARCHIVE)
    assert not list((tmp_path / "store").iterdir())


SGM = """<srcset setid="x" srclang="any">
<doc sysid="src" docid="one" genre="news">
<hl>
<seg id="1">A title &amp; more</seg>
</hl>
<p>
<seg id="2"> two  lines
in one &lt;b&gt; AT&T </seg>
<seg id="3"></seg>
</p>
</doc>
<DOC docid="two"><SEG id=1>Last</SEG></DOC>
</srcset>
"""


def test_segments_in_order_and_empty_ones_stay() -> None:
    assert parse_sgm(SGM, "x") == [
        ("one", "1", "A title & more"),
        ("one", "2", "two lines in one <b> AT&T"),
        ("one", "3", ""),
        ("two", "1", "Last"),
    ]


def test_sides_must_hold_the_same_segments() -> None:
    segments = parse_sgm(SGM, "x")
    check_same_segments(segments, [(d, n, "other") for d, n, _ in segments], "x")
    refused("x: no <seg> found", parse_sgm, "<html></html>", "x")
    refused("4 source segments, 3", check_same_segments, segments, segments[:3], "x")
    with pytest.raises(UserError, match="segment 1 of document 'one' stands where"):
        check_same_segments(segments, [segments[1], segments[0], *segments[2:]], "x")
