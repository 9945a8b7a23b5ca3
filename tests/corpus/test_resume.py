"""Steps are skipped when done, repeated when anything changed, never half written; logs resume."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from specdec_plugins.corpus.resume import Log, Steps, content, content_hash, locked
from specdec_plugins.formats.output import written_whole
from tests.refusals import refused


class Copy:
    """A step that copies one file to two, and can be told to fail half way."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "in"
        self.source.write_text("one")
        self.outputs = [folder / "out" / "a", folder / "out" / "b"]
        self.steps = Steps(folder)
        self.fails = False

    def action(self, parts: Sequence[Path]) -> None:
        parts[0].write_text(self.source.read_text())
        if self.fails:
            raise KeyboardInterrupt
        parts[1].write_text(self.source.read_text())

    def run(self, **settings: object) -> bool:
        return self.steps.run(
            "copy", self.action, inputs=[self.source], outputs=self.outputs, settings=settings
        )

    def read(self) -> list[str]:
        return [path.read_text() for path in self.outputs]


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


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_an_interrupted_step_leaves_nothing_and_is_done_again(copy: Copy) -> None:
    copy.fails = True
    with pytest.raises(KeyboardInterrupt):
        copy.run()
    assert not (copy.source.parent / "out").exists()
    copy.fails = False
    assert copy.run()
    assert copy.read() == ["one", "one"]
    assert not copy.run()  # it is finished


def test_an_interrupted_repetition_keeps_what_was_there(copy: Copy) -> None:
    copy.run(size=(1, 2))
    assert not copy.run(size=(1, 2))
    copy.run(size=1)
    copy.fails = True
    with pytest.raises(KeyboardInterrupt):
        copy.run(size=2)
    assert copy.read() == ["one", "one"]
    copy.fails = False
    assert not copy.run(size=1)  # still as the stamp says
    assert copy.run(size=2)


@pytest.mark.parametrize("change", ["setting", "input", "output", "missing"])
def test_whatever_changed_makes_it_run_again_and_says_so(
    copy: Copy, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    copy.run(size=1)
    caplog.set_level("INFO")
    if change == "input":
        copy.source.write_text("other")
    elif change == "output":  # or renamed when the run was stopped before its stamp was written
        copy.outputs[0].write_text("edited")
    elif change == "missing":
        copy.outputs[0].unlink()
    assert copy.run(size=2 if change == "setting" else 1)
    assert copy.read() == [copy.source.read_text()] * 2
    assert ("size was 1 and is 2" if change == "setting" else "running it again") in caplog.text


def test_what_it_did_not_write_is_not_replaced(copy: Copy) -> None:
    copy.outputs[1].parent.mkdir()
    copy.outputs[1].write_text("somebody's")
    refused("out/b: exists, and was not written by this command", copy.run)
    assert copy.outputs[1].read_text() == "somebody's"
    copy.outputs[1].unlink()
    assert copy.run()


def test_a_kill_while_the_outputs_are_renamed_is_no_obstacle(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def cut(path: Path, target: Path) -> None:
        rename(path, target)
        if target in copy.outputs:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", cut)
        with pytest.raises(KeyboardInterrupt):
            copy.run()
    assert any(path.exists() for path in copy.outputs)
    assert copy.run()
    assert copy.read() == ["one", "one"]


def test_a_moved_folder_is_not_done_again(copy: Copy, tmp_path: Path) -> None:
    copy.run()
    moved = tmp_path.with_name(tmp_path.name + "-moved")
    tmp_path.rename(moved)
    outputs = [moved / "out" / "a", moved / "out" / "b"]
    given = {"inputs": [moved / "in"], "outputs": outputs, "settings": {}}
    assert not Steps(moved).run("copy", copy.action, **given)


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
