"""WMT's sets: archives, SGML, and whole preparations on tiny archives from a local folder."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from specdec_plugins.corpus import wmt
from specdec_plugins.corpus.wmt import Store, open_member, plain_text
from tests.programs import script
from tests.refusals import refused

LINES = {
    "en": [f"The minister of Timișoara spoke {i} times, he said." for i in range(12)],
    "ro": [f"Ministrul din Timişoara a vorbit de {i} ori în ţară." for i in range(12)],
    "de": [f"Der Minister sprach {i} mal, sagte er." for i in range(12)],
}


def plain(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def sgm(lines: list[str]) -> bytes:
    segments = "\n".join(f'<seg id="{i}">{line}</seg>' for i, line in enumerate(lines, 1))
    return f'<refset><doc docid="d">\n<p>\n{segments}\n</p></doc></refset>'.encode()


def pack(path: Path, content: dict[str, bytes]) -> None:
    if ".zip" in path.suffixes:
        with zipfile.ZipFile(path, "w") as zipped:
            for name, data in content.items():
                zipped.writestr(name, data)
        return
    with tarfile.open(path, "w:gz") as packed:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))


def archives(folder: Path, name: str) -> Path:
    """Those of a data set, for both directions; the training text ends in a bad line."""
    folder.mkdir()
    data_set = wmt.DATA_SETS[name]
    for corpus in (*data_set.train, data_set.valid, data_set.test):
        content = {"other/README": b"x"}
        for languages in (direction.split("-") for direction in data_set.directions):
            for language, member in zip(languages, corpus.members(*languages), strict=True):
                end = b"r\xffu\n" if corpus in data_set.train else b""
                text = LINES[language]
                is_sgm = member.endswith(".sgm")
                content[f"some/{member}"] = sgm(["", *text[:2]]) if is_sgm else plain(text) + end
        pack(folder / corpus.archive_name, content)
    return folder


@pytest.mark.parametrize(
    ("name", "direction"),
    [(name, direction) for name, one in wmt.DATA_SETS.items() for direction in one.directions],
)
def test_a_data_set_in_each_direction(name: str, direction: str, tmp_path: Path) -> None:
    flags = [name, "--archives", archives(tmp_path / "archives", name), "--direction", direction]
    wmt.COMMAND(*flags, "--out", tmp_path / "out", "--workers", 1)
    stamp = json.loads((tmp_path / "out/.stamps/learn-codes.json").read_text())
    assert stamp["settings"]["--merges"] == "32000"
    num_corpora = len(wmt.DATA_SETS[name].train)
    for side in direction.split("-"):
        text, raw = LINES[side], tmp_path / "out" / "raw"
        assert (raw / f"train.{side}").read_bytes() == plain(text * num_corpora)
        assert (raw / f"test.{side}").read_bytes() == plain(["", *text[:2]])
        valid = text if name == "wmt14-en-de" else ["", *text[:2]]
        assert (raw / f"valid.{side}").read_bytes() == plain(valid)


@pytest.mark.fairseq
@pytest.mark.integration
def test_from_a_mirror_to_a_data_bin_and_again(tmp_path: Path) -> None:
    mirror = archives(tmp_path / "mirror", "wmt16-en-ro").as_uri()
    flags = ["--out", "out", "--merges", 20, "--direction", "ro-en", "--strip-diacritics", "yes"]
    done = script("prepare-wmt16-en-ro.sh", "--mirror", mirror, *flags, cwd=tmp_path)
    assert "4 bad lines skipped" in done.stderr
    assert "europarl-v8.ro, line 13: not UTF-8" in done.stderr
    out = tmp_path / "out"
    assert (out / "data-bin" / "test.ro-en.ro.idx").is_file()
    tokens = (out / "tok" / "train.ro").read_text().splitlines()
    assert tokens[0] == "Ministrul din Timisoara a vorbit de 0 ori in tara ."
    assert "Timișoara" in (out / "tok" / "train.en").read_text()
    assert len(tokens) == 24

    # Everything is there: a second run needs no mirror and no archive, and does nothing.
    (out / "archives").rename(tmp_path / "away")
    mirror, before = "http://127.0.0.1:9", (out / "data-bin").stat().st_mtime_ns
    again = script("prepare-wmt16-en-ro.sh", "--mirror", mirror, *flags, cwd=tmp_path)
    assert again.stderr.count("done already") == 4 + 3 + 3 + 1 + 3 + 1
    assert (out / "data-bin").stat().st_mtime_ns == before


def test_without_a_network(tmp_path: Path) -> None:
    name = "training-parallel-europarl-v7.tgz"
    flags = ["wmt14-en-de", "--mirror", "http://127.0.0.1:9/x", "--out", tmp_path]
    by_hand = f"fetch http://127.0.0.1:9/x/{name} by hand and put it at {tmp_path}/archives/{name}"
    refused(by_hand, wmt.COMMAND, *flags)
    refused("expected en-de or de-en", wmt.COMMAND, *flags, "--direction", "de-ro")
    refused("none: the BPE codes cannot be read", wmt.COMMAND, *flags, "--codes", "none")


ARCHIVE = ("a.tgz", "http://127.0.0.1:9/a.tgz", ("x.en", "x.de"))
CONTENT = {"training/x.en": b"one\n" * 400, "training/x.de": b"eins\n" * 400}


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    folder = tmp_path / "mirror"
    folder.mkdir()
    pack(folder / "a.tgz", CONTENT)
    return folder


@pytest.fixture
def store(tmp_path: Path, mirror: Path) -> Store:
    return Store(tmp_path / "store", mirror.as_uri())


def test_a_download_goes_on_where_it_stopped(store: Store, mirror: Path, tmp_path: Path) -> None:
    whole = (mirror / "a.tgz").read_bytes()
    half = len(whole) // 2
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a.tgz.part").write_bytes(whole[:half])
    # The first half can no longer be fetched right: only resumption gives a whole archive.
    (mirror / "a.tgz").write_bytes(b"\0" * half + whole[half:])
    assert store.get(*ARCHIVE).read_bytes() == whole
    assert not list((tmp_path / "store").glob("*.part"))


def test_an_archive_put_there_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    path.write_bytes(b"<html>not found</html>")
    refused("damaged or cut off", Store(tmp_path).get, *ARCHIVE)
    pack(path, {"x.en": b"one\n"})
    refused(r"does not hold x\.de", Store(tmp_path).get, *ARCHIVE)
    pack(path, CONTENT)
    assert Store(tmp_path).get(*ARCHIVE) == path
    (tmp_path / "store").mkdir()
    path.rename(tmp_path / "store" / "a.tgz.part")  # all of it, so that no network is needed
    assert Store(tmp_path / "store").get(*ARCHIVE) == tmp_path / "store" / "a.tgz"
    pack(tmp_path / "a.zip", CONTENT)
    path = Store(tmp_path).get("a.zip", "", ("x.en", "x.de"))
    with open_member(path, "x.en") as file:
        assert file.read() == CONTENT["training/x.en"]


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


def test_segments_stay_in_order_and_empty_ones_stay_lines() -> None:
    lines = ["A title & more", "two lines in one <b> AT&T", "", "Last"]
    assert plain_text(SGM.encode(), "x") == plain(lines)
    refused("x: no <seg> found", plain_text, b"<html></html>", "x")
