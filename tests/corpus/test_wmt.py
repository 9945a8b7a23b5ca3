"""The WMT recipes, on tiny archives of the same shape from a local folder."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from specdec_plugins.corpus import wmt
from specdec_plugins.corpus.prepare import Preparation
from tests.corpus.conftest import Script

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
def test_wmt16_from_archives_to_a_data_bin(tmp_path: Path, wmt16: Path, script: Script) -> None:
    flags = ["--mirror", wmt16.as_uri(), "--out", "out", "--merges", 20, "--direction", "ro-en"]
    done = script("prepare-wmt16-en-ro.sh", *flags, "--strip-diacritics", "yes")
    assert done.returncode == 0, done.stderr
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
    again = script("prepare-wmt16-en-ro.sh", "--mirror", "http://127.0.0.1:9", *flags[2:],
                   "--strip-diacritics", "yes")  # fmt: skip
    assert again.returncode == 0, again.stderr
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
        wmt.main(wmt._parser().parse_args([str(flag) for flag in flags]))
        assert (out / "raw" / "train.de").read_bytes() == plain(GERMAN * 3)
        assert (out / "raw" / "valid.en").read_bytes() == plain(ENGLISH)
        assert (out / "raw" / "test.de").read_bytes() == plain(GERMAN[:3])


@pytest.mark.integration
def test_without_a_network(tmp_path: Path, script: Script) -> None:
    flags = ["--mirror", "http://127.0.0.1:9/x", "--out", "out"]
    done = script("prepare-wmt14-en-de.sh", *flags)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "fetch http://127.0.0.1:9/x/training-parallel-europarl-v7.tgz by hand" in last
    assert str(tmp_path / "out" / "archives" / "training-parallel-europarl-v7.tgz") in last
    assert "Traceback" not in done.stderr
    wrong = script("prepare-wmt14-en-de.sh", *flags, "--direction", "de-ro")
    assert "has en-de or de-en" in wrong.stderr
