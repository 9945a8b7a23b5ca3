"""Ways to decode: read from a file, measured in turns, tabulated and drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import side_by_side
from benchmarks.chart import draw, plotting
from benchmarks.side_by_side import Figures, figures, measure, spread, table
from benchmarks.ways import Way, baselines, read_ways
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.strategies import EngineDecoder
from specdec_plugins.app.translator import SpeculativeTranslator, number_sentences
from specdec_plugins.errors import UserError
from tests.app.toys import translated, translator

GIVEN = {"data": "data", "verifier": "v.pt", "max_len_b": 50, "batch": 3}
LINES = ["a b c", "d", "", "e f g h i", "j k"]


def written(folder: Path, ways: Any) -> Path:
    path = folder / "ways.json"
    path.write_text(ways if isinstance(ways, str) else json.dumps(ways), encoding="utf-8")
    return path


def test_ways_have_what_is_common_and_what_is_their_own(tmp_path: Path) -> None:
    entries = [
        {"name": "lookup", "drafter": "lookup", "drafter_options": {"max_ngram": 2}},
        {"name": "other", "verifier": "w.pt", "drafter": "lookup", "beta": 3, "tau": 1.0},
        {"name": "alone", "strategy": "drafter", "verifier": None, "drafter_checkpoint": "d.pt"},
        {"name": "random", "strategy": "AR", "rule": "speculative_sampling", "temperature": 0.5},
        {"name": "cut", "strategy": "early-exit", "exit_layer": 1},
    ]
    ways = read_ways(written(tmp_path, entries), GIVEN)
    assert [way.name for way in ways] == [entry["name"] for entry in entries]
    lookup = Settings(
        "data", "v.pt", drafter="lookup", drafter_options={"max_ngram": 2}, max_len_b=50, batch=3
    )
    assert ways[0].settings == lookup
    assert ways[1].settings.verifier == str(tmp_path / "w.pt")  # from the folder of the file
    assert ways[2].settings.verifier is None
    promised = ["greedy", "none", "none", "distribution", "none"]
    assert [way.guarantee for way in ways] == promised
    alone = baselines(ways)
    assert {name: way.name for name, way in alone.items()} == {
        "lookup": "AR greedy, v",
        "other": "AR greedy, w",
        "alone": "AR greedy, v",
        "random": "AR greedy, v",
        "cut": "AR greedy, v",
    }
    plain = Settings("data", "v.pt", strategy="AR", max_len_b=50, batch=3)
    assert alone["random"].settings == alone["cut"].settings == plain
    assert baselines(ways[:1])["lookup"].name == "AR greedy"


@pytest.mark.parametrize(
    ("ways", "message"),
    [
        ("[", "ways.json: not JSON"),
        ([], "expected a JSON list of ways"),
        ({"name": "x"}, "expected a JSON list of ways"),
        ([{"drafter": "lookup"}], "way 1: expected an object with a name"),
        ([{"name": "x", "batch": 3}], "way 1: 'batch' is no choice of a way; choose of: strategy"),
        ([{"name": "x", "drafter": "block"}], "way 1, 'x': --strategy specdec needs the drafter's"),
        ([{"name": "x", "drafter": "lookup", "beta": "3"}], "way 1, 'x': a value of the wrong"),
        ([{"name": "x", "drafter": "lookup"}] * 2, "two ways are named 'x'"),
        ([{"name": "x", "drafter": "lookup", "temperature": 2.0}], "is for rules that sample"),
    ],
)
def test_what_is_malformed_is_named(tmp_path: Path, ways: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_ways(written(tmp_path, ways), GIVEN)
    with pytest.raises(UserError, match="none.json: cannot be read"):
        read_ways(tmp_path / "none.json", GIVEN)


def test_a_verifier_is_needed_to_compare_with(tmp_path: Path) -> None:
    alone = {"name": "x", "strategy": "drafter", "verifier": None, "drafter_checkpoint": "d"}
    with pytest.raises(UserError, match="None of the ways has a verifier"):
        baselines(read_ways(written(tmp_path, [alone]), GIVEN))


class Clock:
    """Every reading is a second later than the one before."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def scripted(monkeypatch: pytest.MonkeyPatch) -> list[Way]:
    """Three ways over scripted models; the third is cut after two tokens."""
    ways = [
        Way("AR", Settings("data", "v", strategy="AR")),
        Way("drafted", Settings("data", "v", drafter="lookup")),
        Way("short", Settings("data", "v", drafter="lookup", max_len_b=2)),
    ]
    made: dict[str, SpeculativeTranslator] = {
        "AR": translator("AR"),
        "drafted": translator("specdec"),
        "short": translator("specdec", max_len_b=2),
    }
    names = {id(way.settings): way.name for way in ways}
    monkeypatch.setattr(side_by_side, "load_translator", lambda s: made[names[id(s)]])
    return ways


def measured(monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[Any]:
    return measure(scripted(monkeypatch), number_sentences(LINES), Clock(), **options)


def test_every_way_decodes_everything_and_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    done = measured(monkeypatch, repeats=2, chunk=2, on_done=seen.append)
    assert sum(seen) == 2 * 3 * len(LINES)
    rows = figures(
        done, dict.fromkeys(["AR", "drafted", "short"], "AR"), [translated(x) for x in LINES]
    )
    plain, drafted, short = rows
    assert (plain.num_same, drafted.num_same, short.num_same) == (5, 5, 2)
    assert [row.num_sentences for row in rows] == [5, 5, 5]
    assert plain.bleu == drafted.bleu == pytest.approx(100)
    assert short.bleu is not None
    assert short.bleu < 50
    # 22 tokens: one a round and a round for each end, or blocks of four and the verifier's own.
    assert plain.accepted == 22 / 26
    assert drafted.accepted == 22 / 7
    assert all(len(row.total) == len(row.speed) == 2 for row in rows)
    assert plain.speed == [1.0, 1.0]
    assert plain.draft == [0.0, 0.0]


def test_parts_are_measured_by_the_clock_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a round is one reading long, and a repetition counts its own rounds only."""
    done = measured(monkeypatch, repeats=2, chunk=5)
    for one, rounds_of_a_batch in zip(done, (None, 5, None), strict=True):
        assert isinstance(one.translator.decoder, EngineDecoder)
        if rounds_of_a_batch is not None:
            parts = [(s["draft"], s["verify"]) for s in one.seconds]
            assert parts[0] == parts[1]
            assert parts[0][0] == parts[0][1] > 0
        assert one.seconds[0]["total"] == one.seconds[1]["total"] > 0


def test_turns_rotate(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    decode = side_by_side.Measured.decode

    def noted(self: Any, sentences: Sequence[Any], clock: Any) -> None:
        order.append(self.way.name[0] + str(sentences[0].number))
        decode(self, sentences, clock)

    monkeypatch.setattr(side_by_side.Measured, "decode", noted)
    measured(monkeypatch, repeats=2, chunk=3)
    assert order == ["A1", "d1", "s1", "d4", "s4", "A4", "d1", "s1", "A1", "s4", "A4", "d4"]


def row(name: str, **changes: Any) -> Figures:
    values: dict[str, Any] = {
        "guarantee": "greedy",
        "baseline": "AR",
        "num_sentences": 4,
        "num_same": 3,
        "bleu": 39.984,
        "accepted": 2.345,
        "total": [0.02, 0.03, 0.01],
        "draft": [0.005, 0.006, 0.004],
        "verify": [0.01, 0.011, 0.009],
        "speed": [1.5, 1.0, 2.0],
    }
    return Figures(name, **{**values, **changes})


def test_the_table_has_medians_and_spreads() -> None:
    search = row("beam", bleu=None, accepted=None, draft=[0.0], verify=[0.0], speed=[0.5])
    lines = table([row("block"), search]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    times = ["20.0", "5.0", "10.0"]
    figures_ = ["greedy", "3 of 4", "39.98", "2.35", *times, "1.50x (1.00 to 2.00)"]
    assert cells[2] == ["block", *figures_]
    assert cells[3] == ["beam", "greedy", "3 of 4", "-", "-", "20.0", "-", "-", "0.50x"]
    assert spread([3.0]) == "3.00x"


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    rows = [row("a"), row("b", guarantee="none"), row("c", guarantee="distribution")]
    draw(rows, tmp_path / "ways.png")
    assert (tmp_path / "ways.png").read_bytes().startswith(b"\x89PNG")
    plt = plotting()
    assert plt.get_fignums() == []  # nothing stays open


def test_without_matplotlib_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(UserError, match="install it with the extra 'compare', or add --no-picture"):
        plotting()
