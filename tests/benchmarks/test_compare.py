"""Systems read from a file, measured, tabulated and drawn."""

from __future__ import annotations

import json
import sys
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare import COLUMNS, figures, main, read_systems, with_baselines
from benchmarks.decodings import Decoding, decode
from benchmarks.plots import draw_comparison, pyplot
from benchmarks.reports import spread, table
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import number_sentences
from tests.app.toys import translated, translator
from tests.refusals import refused, told

GIVEN = {"data": "data", "verifier": "v.pt", "max_len_b": 50, "batch": 3}
LINES = ["a b c", "d", "", "e f g h i", "j k"]


def written(folder: Path, systems: Any) -> Path:
    path = folder / "systems.json"
    path.write_text(systems if isinstance(systems, str) else json.dumps(systems), encoding="utf-8")
    return path


def test_systems_have_what_is_common_and_what_is_their_own(tmp_path: Path) -> None:
    objects = [
        {"name": "lookup", "drafter": "lookup", "drafter_options": {"max_ngram": 2}},
        {"name": "other", "verifier": "w.pt", "drafter": "lookup", "beta": 3, "tau": 1.0},
        {"name": "alone", "strategy": "drafter", "verifier": None, "drafter_checkpoint": "d.pt"},
        {"name": "random", "strategy": "AR", "rule": "speculative_sampling", "temperature": 0.5},
        {"name": "cut", "strategy": "early-exit", "exit_layer": 1},
    ]
    systems = read_systems(written(tmp_path, objects), GIVEN)
    assert list(systems) == [one["name"] for one in objects]
    options = {"drafter_options": {"max_ngram": 2}, "max_len_b": 50, "batch": 3}
    lookup = Settings("data", "v.pt", drafter="lookup", **options)
    assert systems["lookup"] == lookup
    assert systems["other"].verifier == str(tmp_path / "w.pt")  # from the folder of the file
    assert systems["alone"].verifier is None
    together, baseline_of = with_baselines(systems)
    of_v, of_w = "AR greedy, v", "AR greedy, w"
    assert list(together) == [of_v, "lookup", of_w, "other", "alone", "random", "cut"]
    assert baseline_of == {
        **{of_v: of_v, of_w: of_w, "lookup": of_v, "other": of_w},
        **{"alone": of_v, "random": of_v, "cut": of_v},
    }
    assert together[of_v] == Settings("data", "v.pt", strategy="AR", max_len_b=50, batch=3)
    assert with_baselines({"lookup": lookup})[1]["lookup"] == "AR greedy"


@pytest.mark.parametrize(
    ("systems", "message"),
    [
        ("[", "systems.json: not JSON"),
        ([], "expected a JSON list of systems"),
        ({"name": "x"}, "expected a JSON list of systems"),
        ([{"drafter": "lookup"}], "system 1: expected an object with a name"),
        ([{"name": "x", "batch": 3}], "system 1: 'batch' is not a setting of a system; use: str"),
        ([{"name": "x", "drafter": "block"}], "system 1, 'x': --strategy specdec needs the"),
        (
            [{"name": "x", "drafter": "lookup", "beta": "3"}],
            "system 1, 'x': a setting has a value of the wrong",
        ),
        ([{"name": "x", "drafter": "lookup"}] * 2, "two systems are named 'x'"),
    ],
)
def test_what_is_malformed_is_named(tmp_path: Path, systems: Any, message: str) -> None:
    refused(message, read_systems, written(tmp_path, systems), GIVEN)
    refused("none.json: cannot be read", read_systems, tmp_path / "none.json", GIVEN)


def test_refusals_come_before_decoding_and_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, [{"name": "x", "drafter": "lookup", "temperature": 2.0}])
    flags = ["data", "--AR-path", "v.pt", "--ways", str(path), "--report", str(tmp_path / "report")]
    monkeypatch.setattr("sys.argv", ["compare_ways.py", *flags, "--no-picture"])
    assert "system 1, 'x': --temperature 2 is for rules that sample" in told(capsys, main)
    assert not list(tmp_path.glob("report*"))
    alone = {"name": "x", "strategy": "drafter", "verifier": None, "drafter_checkpoint": "d"}
    systems = read_systems(written(tmp_path, [alone]), GIVEN)
    refused("None of the systems has a verifier", with_baselines, systems)


SYSTEMS = {
    "AR": Settings("data", "v", strategy="AR"),
    "drafted": Settings("data", "v", drafter="lookup"),
    "short": Settings("data", "v", drafter="lookup", max_len_b=2),  # cut after two tokens
}


def measured(chunk: int) -> list[Decoding]:
    """Two repetitions over scripted models, which read no hints."""
    drafted, short = translator("specdec"), translator("specdec", max_len_b=2)
    loaded = {"AR": translator("AR"), "drafted": drafted, "short": short}
    clock = partial(next, count(1.0))  # every reading is a second later than the one before
    return decode(loaded, number_sentences(LINES, LINES), chunk, repeats=2, clock=clock)


def test_every_system_decodes_everything_and_is_measured() -> None:
    plain, drafted, short = figures(
        measured(2), SYSTEMS, dict.fromkeys(SYSTEMS, "AR"), [translated(x) for x in LINES]
    )
    assert [row["num_same"] for row in (plain, drafted, short)] == [5, 5, 2]
    assert [row["guarantee"] for row in (plain, drafted)] == ["greedy", "greedy"]
    assert plain["bleu"] == drafted["bleu"] == pytest.approx(100)
    assert short["bleu"] < 50
    # 22 tokens: one a round and a round for each end, or blocks of four and the verifier's own.
    assert plain["accepted"] == 22 / 26
    assert drafted["accepted"] == 22 / 7
    assert all(len(row["total"]) == len(row["speed"]) == 2 for row in (plain, drafted, short))
    assert (plain["speed"], plain["draft"]) == ([1.0, 1.0], [0.0, 0.0])


def test_parts_are_measured_by_the_clock_that_was_given() -> None:
    """Each part of a round is one reading long, and a repetition counts its own rounds only."""
    first, second = measured(5)[1].seconds
    assert first == second
    assert first["total"] > first["draft"] == first["verify"] > 0


def row(name: str, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"name": name, "guarantee": "greedy", "baseline": "AR"}
    values |= {"num_sentences": 4, "num_same": 3, "bleu": 39.984, "accepted": 2.345}
    values |= {"total": [0.02, 0.03, 0.01], "speed": [1.5, 1.0, 2.0]}
    values |= {"draft": [0.005, 0.006, 0.004], "verify": [0.01, 0.011, 0.009]}
    return {**values, **changes}


def test_the_table_has_medians_and_spreads() -> None:
    search = row("beam", bleu=None, accepted=None, draft=[0.0], verify=[0.0], speed=[0.5])
    lines = table(COLUMNS, [row("block"), search]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    times = ["20.0", "5.0", "10.0"]
    figures_ = ["greedy", "3 of 4", "39.98", "2.35", *times, "1.50x (1.00 to 2.00)"]
    assert cells[2] == ["block", *figures_]
    assert cells[3] == ["beam", "greedy", "3 of 4", "-", "-", "20.0", "-", "-", "0.50x"]
    assert spread([3.0]) == "3.00x"


def test_a_picture_is_drawn_or_it_is_said_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row("a"), row("b", guarantee="none"), row("c", guarantee="distribution"), row("d")]
    closed: list[Any] = []
    with monkeypatch.context() as watched:
        watched.setattr(pyplot(), "close", closed.append)
        draw_comparison(rows, tmp_path / "systems.png")
    assert (tmp_path / "systems.png").read_bytes().startswith(b"\x89PNG")
    [figure] = closed  # nothing stays open
    assert [len(axes.patches) for axes in figure.axes] == [len(rows), 3 * len(rows)]
    pyplot().close(figure)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused("install it with the extra 'compare'", pyplot)
