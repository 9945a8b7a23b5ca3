"""Folders that hold files under their usual names and no settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_plugins.app.bundles import DRAFTER, VERIFIER, folder_settings
from specdec_plugins.formats.bundle import BIGRAMS, CODES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (VERIFIER, DRAFTER, BIGRAMS, CODES):
        (tmp_path / name).touch()
    return tmp_path


def test_every_file_is_found(folder: Path) -> None:
    assert folder_settings(folder, {}) == {
        "verifier": str(folder / VERIFIER),
        "drafter_checkpoint": str(folder / DRAFTER),
        "bigrams": str(folder / BIGRAMS),
        "tokenizer": "moses",
        "bpe": "subword_nmt",
        "bpe_codes": str(folder / CODES),
    }


def test_what_is_given_counts(folder: Path) -> None:
    found = folder_settings(folder, {"verifier": "v", "bigrams": None, "batch": 3})
    assert (found["verifier"], found["bigrams"], found["batch"]) == ("v", None, 3)


def test_text_is_tokenised_wherever_its_codes_lie(folder: Path) -> None:
    (folder / CODES).unlink()
    assert "tokenizer" not in folder_settings(folder, {})
    found = folder_settings(folder, {"bpe_codes": "elsewhere"})
    assert (found["tokenizer"], found["bpe"], found["bpe_codes"]) == (
        "moses",
        "subword_nmt",
        "elsewhere",
    )


def test_bigrams_are_the_block_drafters(folder: Path) -> None:
    assert "bigrams" not in folder_settings(folder, {"drafter": "lookup"})
    (folder / DRAFTER).unlink()
    assert "bigrams" not in folder_settings(folder, {})


def test_without_a_drafter_decoding_is_plain(folder: Path) -> None:
    (folder / DRAFTER).unlink()
    assert folder_settings(folder, {})["strategy"] == "AR"
    assert "strategy" not in folder_settings(folder, {"drafter": "lookup"})
    assert "strategy" not in folder_settings(folder, {"drafter_checkpoint": "d"})
