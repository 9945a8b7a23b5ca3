"""Continuing an output: only one that this input and these settings began."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specdec_plugins.app.files import Journal
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.types import Sentence
from specdec_plugins.errors import UserError


def settings(**changes: object) -> Settings:
    given = {"verifier": "v", "drafter_checkpoint": "d", **changes}
    return Settings("data", **given)  # type: ignore[arg-type]


def sentences(*texts: str) -> Iterator[Sentence]:
    return (Sentence(n, text) for n, text in enumerate(texts, 1))


@pytest.fixture
def output(tmp_path: Path) -> str:
    """An output of which two lines, from inputs a and b, are recorded."""
    path = str(tmp_path / "out")
    Journal(path, settings()).record(sentences("a", "b"))
    return path


def resume(output: str, complete: int, *texts: str, **changes: object) -> list[str]:
    journal = Journal(output, settings(**changes))
    assert journal.read(complete)
    rest = sentences(*texts)
    journal.skip(rest, complete)
    return [s.text for s in rest]


@pytest.mark.parametrize("complete", [2, 3])
def test_the_same_input_goes_on_behind_what_is_there(output: str, complete: int) -> None:
    # A third line may have been written just before the record of it could be.
    assert resume(output, complete, "a", "b", "c", "d") == ["c", "d"][complete - 2 :]


def test_another_input_is_refused(output: str) -> None:
    with pytest.raises(UserError, match="its first 2 lines came from another input"):
        resume(output, 2, "a", "x", "c")
    with pytest.raises(UserError, match="came from another input"):
        resume(output, 3, "a", "x", "c")
    with pytest.raises(UserError, match="holds 2 lines and the input only 1"):
        resume(output, 2, "a")


def test_another_prefix_is_another_input(output: str) -> None:
    journal = Journal(output, settings())
    assert journal.read(2)
    with pytest.raises(UserError, match="came from another input"):
        journal.skip(iter([Sentence(1, "a"), Sentence(2, "b", prefix="c")]), 2)


def test_other_settings_are_refused_and_speed_is_free(output: str) -> None:
    with pytest.raises(UserError, match="was begun with beta 1, not 3"):
        resume(output, 2, "a", "b", beta=3)
    assert resume(output, 2, "a", "b", "c", batch=7, device="cpu") == ["c"]


def test_an_output_that_shrank_is_refused(output: str) -> None:
    with pytest.raises(UserError, match="holds 1 complete lines .*, but 2 were written"):
        resume(output, 1, "a", "b")


def test_without_a_record_the_count_has_to_do(output: str) -> None:
    Journal(output, settings()).remove()
    journal = Journal(output, settings())
    assert not journal.read(2)
    rest = sentences("x", "y", "z")
    journal.skip(rest, 2)
    assert [s.text for s in rest] == ["z"]


@pytest.mark.parametrize("content", ["", "[]", '{"lines": 1}', '{"settings": 3, "lines": 1}'])
def test_a_damaged_record_is_said(output: str, content: str) -> None:
    Path(f"{output}.resume").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"out.resume: is damaged; delete it"):
        Journal(output, settings()).read(2)
