"""The simulation of servers, against what can be computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import fleet
from benchmarks.fleet import SIZES, Costs, Text, cores, most_per_core, simulate

# 12 tokens, three a round: 4 rounds of 2 ms with drafts or 12 of 1 ms, and 1 ms for each to join.
COSTS = Costs([0.001] * 7, [0.002] * 7, [0.001 * size for size in SIZES], 1)
TEXTS = [Text(10, 12, [3, 3, 3, 3])]


def test_a_client_alone_waits_for_its_rounds_and_a_batch_for_those_of_all() -> None:
    (one, *others) = (simulate(COSTS, TEXTS, 1, 0, n, 640) for n in (1, 64))
    assert one.percentile(0) == pytest.approx(0.009) == one.percentile(1)
    assert one.words / one.seconds == pytest.approx(10 / 0.009)
    # The others join together, since they end together, and do not draft.
    assert others[0].percentile(0.5) == pytest.approx(0.064 + 0.012, abs=0.003)


def test_a_core_bears_less_with_a_tighter_bound_and_a_fleet_more_a_core() -> None:
    tight, loose = (most_per_core(COSTS, TEXTS, 1, bound) for bound in (0.02, 0.2))
    assert 0 < tight < loose < 1000  # a sentence takes 1 ms at least
    assert most_per_core(COSTS, TEXTS, 1, 0.008) == 0
    assert cores(COSTS, TEXTS, 1, 0.008)[0] == 0
    assert cores(COSTS, TEXTS, 10, 0.05)[0] == 1
    number, each = cores(COSTS, TEXTS, 100_000, 0.05)
    assert number == pytest.approx(100_000 / each, abs=1)
    assert each > most_per_core(COSTS, TEXTS, 1, 0.05)  # the engine with the fewest is chosen


def test_drafts_are_made_in_small_batches_only() -> None:
    never = Costs(COSTS.plain, COSTS.drafted, COSTS.joining, 0)
    for num_clients, is_same in ((1, False), (8, True)):
        found = [simulate(each, TEXTS, 1, 0, num_clients, 64).seconds for each in (COSTS, never)]
        assert (found[0] == pytest.approx(found[1], rel=0.1)) is is_same


@pytest.mark.integration
def test_the_command_measures_in_any_folder_and_writes_a_page_in_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fleet, "SIZES", (1, 2))
    monkeypatch.setattr(fleet, "RATES", (10,))
    Path("raw.en").write_text("Two dogs run.\n\nA man sits on a bench.\n", encoding="utf-8")
    assert fleet.COMMAND.run(["--input", "raw.en", "--output", "new/out"]) == 0
    record = json.loads(Path("new/out.json").read_text())
    assert [text["words"] for text in record["texts"]] == [3, 6]
    assert all(cost > 0 for name in ("plain", "drafted") for cost in record["costs"][name])
    assert "| 99 % within, s |" in Path("new/out.md").read_text()
