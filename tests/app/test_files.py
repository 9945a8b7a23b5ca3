"""Lines in and out: what is refused, what is kept, and what an interruption leaves."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.app.files import (
    Arriving,
    Journal,
    check_places,
    count_lines,
    in_buffers,
    is_same_place,
    open_input,
    progress_bar,
    read_lines,
)
from specdec_plugins.app.types import Sentence
from specdec_plugins.errors import UserError
from specdec_plugins.formats import output as outputs
from specdec_plugins.formats.output import LineWriter
from tests.refusals import refused


def texts(data: bytes) -> list[str]:
    return [line.text for line in read_lines(io.BytesIO(data), "in.txt")]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"\n\na", ["", "", "a"]),
        (b"a\r\n\r\nb\r", ["a", "", "b"]),
        (b"\xef\xbb\xbfa\nb", ["a", "b"]),
        ("a\u2028b\x0bc\x85d\n".encode(), ["a\u2028b\x0bc\x85d"]),
        (b"a\rb\n", ["a\rb"]),
        (b"", []),
    ],
)
def test_only_newlines_end_lines(data: bytes, expected: list[str]) -> None:
    assert texts(data) == expected


def test_a_carriage_return_is_the_end_of_its_line() -> None:
    lines = read_lines([b"a\r\n", b"b\n", b"\r\n", b"c\r"], "in.txt")
    assert [line.end for line in lines] == ["\r", "", "\r", "\r"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (gzip.compress(b"a\nb\n"), "compressed by gzip; decompress it, for example with zcat"),
        (bz2.compress(b"a\nb\n"), "compressed by bzip2; .* bzcat"),
        (lzma.compress(b"a\nb\n"), "compressed by xz; .* xzcat"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "compressed by zstd; .* zstdcat"),
        ("a\n".encode("utf-16"), "UTF-16; convert it with iconv"),
    ],
    ids=("gzip", "bzip2", "xz", "zstd", "UTF-16"),  # gzip's bytes have the time in them
)
def test_what_makes_text_of_another_file_is_said(data: bytes, told: str) -> None:
    refused(f"^in.txt: {told}", texts, data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\nb\xff\n", r"in.txt, line 3: not UTF-8 \(byte 2 of the line is 0xff\)"),
        ("a\n".encode("utf-16"), "line 2: not UTF-8"),
        ("ab\n".encode("utf-16-le"), "line 2: holds a NUL"),
    ],
)
def test_what_is_no_text_is_named_when_it_is_reached(data: bytes, message: str) -> None:
    lines = read_lines(io.BytesIO(b"good\n" + data), "in.txt")
    assert next(lines).text == "good"
    with pytest.raises(UserError, match=message):
        list(lines)


def test_lines_are_taken_as_they_arrive() -> None:
    read_end, write_end = os.pipe()
    lines = Arriving(read_end)
    buffers = in_buffers(lines, 3, lines.is_awaited)
    with open(read_end, "rb"), open(write_end, "wb", buffering=0) as pipe:
        assert lines.is_awaited()
        pipe.write(b"a\nb\nhalf ")
        assert next(buffers) == [b"a\n", b"b\n"]
        assert lines.is_awaited()
        pipe.write(b"a line\n" + b"c\n" * 3)
        assert not lines.is_awaited()
        assert next(buffers) == [b"half a line\n", b"c\n", b"c\n"]
        pipe.write(b"d" * 5000 + b"\ne")
        pipe.close()
        assert [*buffers] == [[b"c\n", b"d" * 5000 + b"\n", b"e"]]
        assert not lines.is_awaited()  # at its end


def test_a_line_that_never_ends_is_refused_before_all_of_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a\n" + bytes(64 << 20))
    with (tmp_path / "in").open("rb", 0) as file:
        lines = read_lines(Arriving(file.fileno()), "in.txt")
        assert next(lines).text == "a"
        with pytest.raises(UserError, match="^in.txt, line 2: longer than 16 MiB"):
            next(lines)
        assert file.tell() < 20 << 20


@pytest.mark.parametrize("data", [b"", b"\n", b"a", b"a\n", b"\n\na", b"ab\n" * 50_000])
def test_a_files_lines_are_those_of_python(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(data)
    with open_input(str(tmp_path / "in")) as lines:
        assert [*lines] == io.BytesIO(data).readlines()


def test_lines_are_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with LineWriter(str(path)) as writer:
        writer.write(["ä", ""])
        assert path.read_text(encoding="utf-8") == "ä\n\n"
        writer.write(["b"])
        writer.write([])
    assert path.read_text(encoding="utf-8") == "ä\n\nb\n"


def test_an_old_output_stays_until_the_first_write(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old\n", encoding="utf-8")
    with LineWriter(str(path)):
        pass
    assert path.read_text(encoding="utf-8") == "old\n"
    with LineWriter(str(path)) as writer:
        writer.write([])
    assert path.read_text(encoding="utf-8") == ""
    with LineWriter(str(tmp_path)) as writer, pytest.raises(UserError, match="Is a directory"):
        writer.write([])


@pytest.mark.parametrize(("keep", "expected"), [(0, "new\n"), (1, "é\nnew\n"), (2, "é\nb\nnew\n")])
def test_kept_lines_stay_and_the_rest_goes(tmp_path: Path, keep: int, expected: str) -> None:
    path = tmp_path / "out"
    path.write_text("é\nb\nhalf a li", encoding="utf-8")
    assert count_lines(str(path)) == 2
    with LineWriter(str(path), keep) as writer:
        writer.write(["new"])
    assert path.read_text(encoding="utf-8") == expected


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("accepted", [0, 2, 6])
def test_a_write_cut_short_leaves_complete_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, accepted: int
) -> None:
    path = tmp_path / "out"
    real = os.write

    def cut_short(fd: int, data: bytes) -> int:
        real(fd, bytes(data)[:accepted])
        raise error

    with LineWriter(str(path)) as writer:
        writer.write(["before"])
        with monkeypatch.context() as patch:
            patch.setattr(outputs.os, "write", cut_short)
            with pytest.raises((KeyboardInterrupt, UserError)) as raised:
                writer.write(["one", "two"])
        after = "before\n" + ("one\n" if accepted > 3 else "")
        assert path.read_text(encoding="utf-8") == after
        writer.write(["more"])
    assert path.read_text(encoding="utf-8") == after + "more\n"
    if isinstance(error, OSError):
        assert "No space left on device" in str(raised.value)


@pytest.mark.parametrize("advice", ["", ", and --resume continues it"])
def test_a_full_device_is_said(advice: str) -> None:
    told = rf"\(No space left on device\); what was written before is complete{advice}\.$"
    with LineWriter("/dev/full", advice=advice) as writer, pytest.raises(UserError, match=told):
        writer.write(["a"])


@pytest.mark.parametrize("fd", [0, 1])
def test_an_input_is_known_that_a_shell_has_opened(fd: int, tmp_path: Path) -> None:
    (path := tmp_path / "file").write_text("a\n")
    saved, given = os.dup(fd), os.open(path, os.O_RDWR)
    try:
        os.dup2(given, fd)
        refused("an input", check_places, *([["-"], [str(path)]] if fd == 0 else [[path], ["-"]]))
        check_places(["-"], ["-"] if fd == 0 else [str(path)])
    finally:
        os.dup2(saved, fd)
        os.close(given)


def test_two_runs_do_not_write_one_output(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    with LineWriter(path) as first, LineWriter(path, keep=1) as second:
        first.write(["a", "b"])
        refused(r"out: another run is writing it; wait for its end", second.write, ["c"])
        refused("another run is writing it", check_places, [], [path])  # before it translates
        assert count_lines(path) == 2
    check_places([], [path])
    with LineWriter(path, keep=1) as third:
        third.write(["c"])
    assert Path(path).read_text(encoding="utf-8") == "a\nc\n"


def test_an_output_without_locks_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(outputs.fcntl, "flock", no_locks)
    with LineWriter(str(tmp_path / "out")) as writer:
        writer.write(["a"])
    assert count_lines(str(tmp_path / "out")) == 1


def test_only_what_can_be_read_twice_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text("a\nb\n", encoding="utf-8")
    assert progress_bar(str(path), None).total == 2
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as stream:
        with open(write_end, "wb") as pipe:
            pipe.write(b"a\n")
        assert progress_bar(f"/dev/fd/{read_end}", None).total is None
        assert stream.read() == b"a\n"
    assert progress_bar("-", None).total is None


def test_one_place_has_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "soft").symlink_to("out")
    assert is_same_place("out", f"../{tmp_path.name}/out")
    assert is_same_place("soft", "out")
    assert not is_same_place("out", "other")
    (tmp_path / "out").touch()
    (tmp_path / "hard").hardlink_to("out")
    assert is_same_place("soft", "hard")
    assert not is_same_place("out", "other")
    (tmp_path / "-").touch()
    assert is_same_place("-", "-")
    assert not is_same_place("-", "./-")


def origin(contents: str = "", **values: object) -> dict[str, dict[str, object]]:
    flags = {f"--{name}": value for name, value in {"beta": 1, "top-k": None, **values}.items()}
    return {"values": flags, "contents": {"verifier": [contents]}}


def sentences(*texts: str) -> Iterator[Sentence]:
    return (Sentence(n, text) for n, text in enumerate(texts, 1))


@pytest.fixture
def output(tmp_path: Path) -> str:
    """An output of which two lines, from inputs a and b, are recorded."""
    path = str(tmp_path / "out")
    Journal(path, origin()).record(sentences("a", "b"))
    return path


def resume(output: str, complete: int, *texts: str, **changes: Any) -> list[str]:
    journal = Journal(output, origin(**changes))
    assert journal.read(complete)
    rest = sentences(*texts)
    journal.skip(rest, complete)
    return [s.text for s in rest]


@pytest.mark.parametrize("complete", [2, 3])
def test_the_same_input_goes_on_behind_what_is_there(output: str, complete: int) -> None:
    # A third line may have been written just before the record of it could be.
    assert resume(output, complete, *"abcd") == ["c", "d"][complete - 2 :]


@pytest.mark.parametrize(
    ("complete", "texts", "changes", "message"),
    [
        (2, "axc", {}, "its first 2 lines came from another input"),
        (3, "axc", {}, "came from another input"),
        (2, "a", {}, "holds 2 lines and the input only 1"),
        (1, "ab", {}, "holds 1 complete lines .*, but 2 were written"),
        (2, "ab", {"beta": 3}, "was started with --beta 1, not --beta 3; use the same"),
        (2, "ab", {"top-k": 5}, "was started with no --top-k, not --top-k 5"),
        (2, "ab", {"lowercase": True}, "was started with no --lowercase, not --lowercase;"),
        (2, "ab", {"contents": "c"}, "was started with other contents of the verifier; give"),
    ],
)
def test_another_input_or_output_or_other_settings_are_refused(
    output: str, complete: int, texts: str, changes: dict[str, Any], message: str
) -> None:
    refused(message, resume, output, complete, *texts, **changes)


def test_another_prefix_is_another_input(output: str) -> None:
    journal = Journal(output, origin())
    assert journal.read(2)
    with pytest.raises(UserError, match="came from another input"):
        journal.skip(iter([Sentence(1, "a"), Sentence(2, "b", prefix="c")]), 2)


def test_without_a_record_the_count_has_to_do(output: str) -> None:
    Journal(output, origin()).remove()
    journal = Journal(output, origin())
    assert not journal.read(2)
    rest = sentences("x", "y", "z")
    journal.skip(rest, 2)
    assert [s.text for s in rest] == ["z"]


def test_a_record_for_which_there_is_no_room(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = Journal(output, origin(), ", and --resume continues it")
    monkeypatch.setattr(Path, "write_text", full)
    told = r"out.resume: cannot be written \(No .*\); .*out holds 3 complete lines, and --resume c"
    refused(told, journal.record, sentences("a", "b", "c"))
    monkeypatch.undo()
    assert resume(output, 3, *"abcd") == ["d"]


@pytest.mark.parametrize(
    "content", ["", "[]", '{"lines": 1}', '{"origin": {"values": 3}, "lines": 1}']
)
def test_a_damaged_record_is_said(output: str, content: str) -> None:
    Path(f"{output}.resume").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"out.resume: is damaged, or not the record of a run"):
        Journal(output, origin()).read(2)
