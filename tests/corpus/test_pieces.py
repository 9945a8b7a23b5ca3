"""What goes from one piece of a training to the next, on checkpoints of the shape of fairseq's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_plugins.corpus import checkpoints
from specdec_plugins.corpus.checkpoints import close_piece, open_piece, read_pieces
from specdec_plugins.corpus.cli import UNFINISHED
from specdec_plugins.formats.checkpoints import load_checkpoint, save_checkpoint


def checkpoint(updates: int, seconds: float = 0.0) -> dict[str, Any]:
    table = torch.arange(6.0).reshape(2, 3) / 7
    return {
        "model": {"embed": table, "output": table, "version": torch.tensor([3])},
        "optimizer_history": [{"num_updates": updates, "lr_scheduler_state": {"best": None}}],
        "extra_state": {"previous_training_time": seconds},
        "last_optimizer_state": {"state": {0: {"exp_avg": table}}, "param_groups": [{"lr": 1.0}]},
    }


def hours(flags: list[str]) -> float:
    assert flags[0] == "--stop-time-hours"
    return float(flags[1])


def test_a_piece_without_an_end_has_no_flags(tmp_path: Path) -> None:
    assert open_piece(tmp_path, until=0, now=100.0) == []
    assert read_pieces(tmp_path)[0]["start"] == "fresh"


def test_the_end_counts_what_earlier_pieces_took(tmp_path: Path) -> None:
    save_checkpoint(checkpoint(50, seconds=7200), tmp_path / "checkpoint_last.pt")
    flags = open_piece(tmp_path, until=100 + 360, now=100.0)
    assert hours(flags) == pytest.approx(2.1)
    assert read_pieces(tmp_path)[0]["start"] == "continued"


def test_no_piece_begins_when_time_is_up(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        open_piece(tmp_path, until=101, now=100.0)
    assert stopped.value.code == UNFINISHED
    assert list(tmp_path.iterdir()) == []


def test_weights_travel_in_half_and_the_optimizer_starts_anew(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    save_checkpoint(checkpoint(50), here / "checkpoint_last.pt")
    save_checkpoint(checkpoint(40), here / "checkpoint_2_40.pt")
    open_piece(here, until=200, now=100.0)
    assert close_piece(here, updates=80, now=160.0) == UNFINISHED
    for name in ("weights.pt", "pieces.json"):
        there.mkdir(exist_ok=True)
        (there / name).write_bytes((here / name).read_bytes())

    open_piece(there, until=0, now=300.0)
    begun = load_checkpoint(there / "checkpoint_last.pt")
    weights = begun["model"]
    assert weights["embed"].dtype == torch.float16
    assert weights["version"].dtype == torch.int64
    assert weights["embed"].data_ptr() == weights["output"].data_ptr()  # still one table
    assert begun["last_optimizer_state"] == {"state": {}, "param_groups": [{"lr": 1.0}]}
    assert begun["optimizer_history"][-1]["lr_scheduler_state"]["restarted_at"] == 50
    first, second = read_pieces(there)
    assert (first["start"], first["first_update"], first["last_update"]) == ("continued", 50, 50)
    assert first["seconds"] == 60
    assert (second["start"], second["first_update"]) == ("optimizer restarted", 50)

    kept = load_checkpoint(here / "checkpoint_2_40.pt")
    assert kept["last_optimizer_state"] is None
    assert kept["model"]["embed"].dtype == torch.float16
    # Where training stands, its own checkpoint stays whole.
    assert load_checkpoint(here / "checkpoint_last.pt")["last_optimizer_state"]["state"]


def test_weights_that_are_further_than_what_is_here_win(tmp_path: Path) -> None:
    save_checkpoint(checkpoint(50), tmp_path / "checkpoint_last.pt")
    save_checkpoint(checkpoints.portable(checkpoint(70)), tmp_path / "weights.pt")
    open_piece(tmp_path, until=0, now=1.0)
    assert read_pieces(tmp_path)[0]["first_update"] == 70
    assert close_piece(tmp_path, updates=70, now=2.0) == 0
