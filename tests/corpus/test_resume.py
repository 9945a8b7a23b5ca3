"""Hashes of contents, files that are replaced whole, locks, and logs that resume."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from specdec_plugins.corpus.resume import Log, Watch, content, content_hash, locked
from specdec_plugins.formats.output import written_whole
from tests.refusals import refused


def test_a_hash_is_of_the_whole_content_or_of_parts_all_over_it(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def noticed(size: int) -> list[int]:
        """At which places another byte makes another hash."""

        def hash_of(data: bytes) -> str:
            path.write_bytes(data)
            return content_hash(path, most=64)

        data = bytes(size)
        same = hash_of(data)
        return [i for i in range(size) if hash_of(data[:i] + b"x" + data[i + 1 :]) != same]

    assert noticed(60) == [*range(60)]
    some = noticed(200)
    assert (len(some), some[0], some[-1]) == (64, 0, 199)
    assert max(b - a for a, b in pairwise(some)) == 4
    refused(r"none: cannot be read \(No such file", content_hash, tmp_path / "none")


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    for name in ("old", "new"):
        with written_whole(target) as part:
            part.mkdir()
            (part / name).touch()
    assert [path.name for path in target.iterdir()] == ["new"]
    with pytest.raises(FileNotFoundError), written_whole(target) as part:
        (part / "no folder").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_two_runs_cannot_share_a_folder_and_one_that_cannot_be_made_is_named(
    tmp_path: Path,
) -> None:
    for _ in "12":
        with locked(tmp_path):
            refused("another run is writing here", locked(tmp_path).__enter__)
    (tmp_path / "file").touch()
    refused("cannot be written", locked(tmp_path / "file" / "x").__enter__)


def test_what_a_file_or_a_folder_holds(tmp_path: Path) -> None:
    (folder := tmp_path / "a" / "b").mkdir(parents=True)
    (folder / "weights").write_text("1")
    whole = content(tmp_path / "a")
    (tmp_path / "a").rename(other := tmp_path / "c")
    (other / "README.md").touch()
    (other / ".cache").mkdir()
    (other / ".cache" / "file").touch()
    assert content(other) == whole
    (other / "b" / "weights").write_text("2")
    assert content(other) not in (whole, content(other / "b"), content(other / "b" / "weights"))
    (other / "b" / "weights").write_text("1")
    (other / "b" / "weights").rename(other / "b" / "others")
    assert content(other) != whole


def test_a_log_keeps_its_whole_entries(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log"
    log = Log(path, {"lines": 3, "ways": ("a", "b")})
    log.add({"seconds": 1.5})
    with path.open("a") as file:
        file.write('{"seconds": 2')  # killed while it wrote
    log = Log(path, {"lines": 3, "ways": ["a", "b"]})
    assert log.entries == [{"seconds": 1.5}]
    log.add([1])
    assert Log(path, {"lines": 3, "ways": ["a", "b"]}).entries == [{"seconds": 1.5}, [1]]
    refused("started with a different value of lines", Log, path, {"lines": 4, "ways": ["a", "b"]})
    log.remove()
    assert Log(path, {"lines": 4}).entries == []
    for text in ("no JSON\n", "[1]\n", ""):
        path.write_text(text)
        refused("damaged", Log, path, {"lines": 3})


def test_a_watch_counts_work_and_what_is_usual_beside_it() -> None:
    watch, began = Watch(), time.process_time()
    time.sleep(0.5)  # as good as stopped
    assert watch.seconds < 0.2
    while time.process_time() < began + 0.2:
        pass
    assert watch.seconds > 0.5
