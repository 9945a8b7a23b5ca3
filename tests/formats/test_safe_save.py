"""A checkpoint is written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdec_plugins.errors import UserError
from specdec_plugins.formats.safe_save import save_checkpoint


def test_folders_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.pt"
    save_checkpoint({"model": {}}, path)
    assert [p.name for p in path.parent.iterdir()] == ["a.pt"]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pt"
    save_checkpoint({"model": {"w": 1}}, path)
    before = path.read_bytes()

    def fill_disk(checkpoint: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fill_disk)
    with pytest.raises(UserError, match=r"a\.pt: cannot be written \(No space left"):
        save_checkpoint({"model": {"w": 2}}, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        save_checkpoint({"model": {}}, tmp_path / "file" / "a.pt")
