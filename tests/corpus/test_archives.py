"""Archives: resumed downloads, checks, what is said without a network. All addresses are local."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from specdec_plugins.corpus.wmt import Archive, Store, open_member
from specdec_plugins.errors import UserError

ARCHIVE = Archive("a.tgz", "http://127.0.0.1:9/a.tgz", ("x.en", "x.de"))
CONTENT = {"training/x.en": b"one\n" * 400, "training/x.de": b"eins\n" * 400}


def write_tgz(path: Path, content: dict[str, bytes] = CONTENT) -> None:
    with tarfile.open(path, "w:gz") as packed:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    folder = tmp_path / "mirror"
    folder.mkdir()
    write_tgz(folder / "a.tgz")
    return folder


@pytest.fixture
def store(tmp_path: Path, mirror: Path) -> Store:
    return Store(tmp_path / "store", mirror.as_uri())


def test_fetch_check_record(store: Store, tmp_path: Path) -> None:
    path = store.get(ARCHIVE)
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
    assert store.get(ARCHIVE).read_bytes() == whole


def test_a_whole_part_needs_no_network(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    write_tgz(folder / "a.tgz.part")
    assert Store(folder).get(ARCHIVE) == folder / "a.tgz"


def test_without_a_network_the_address_and_the_place_are_said(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        Store(tmp_path / "store").get(ARCHIVE)
    assert "http://127.0.0.1:9/a.tgz by hand" in str(caught.value)
    assert str(tmp_path / "store" / "a.tgz") in str(caught.value)


def test_an_archive_put_there_by_hand_is_checked_and_then_recorded(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(UserError, match="damaged or cut off"):
        Store(tmp_path).get(ARCHIVE)
    write_tgz(path, {"x.en": b"one\n"})
    with pytest.raises(UserError, match=r"does not hold x\.de"):
        Store(tmp_path).get(ARCHIVE)
    write_tgz(path)
    assert Store(tmp_path).get(ARCHIVE) == path
    assert (tmp_path / "archives.json").is_file()


def test_an_archive_that_changed_since_is_refused(store: Store) -> None:
    path = store.get(ARCHIVE)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="not the archive that was accepted before"):
        store.get(ARCHIVE)


@pytest.mark.parametrize("cut", [1, 30])
def test_a_damaged_download_is_removed(
    store: Store, mirror: Path, tmp_path: Path, cut: int
) -> None:
    whole = (mirror / "a.tgz").read_bytes()
    (mirror / "a.tgz").write_bytes(whole[:-cut])
    with pytest.raises(UserError, match="damaged or cut off"):
        store.get(ARCHIVE)
    assert not list((tmp_path / "store").iterdir())


def test_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("x.en", "one\n")
        packed.writestr("x.de", "eins\n")
    path = Store(tmp_path).get(Archive("a.zip", "", ("x.en", "x.de")))
    with open_member(path, "x.en") as file:
        assert file.read() == b"one\n"
