"""Table and plots of runs with round figures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import plots
from benchmarks.reports import command
from benchmarks.results import Results, page
from benchmarks.systems import System
from tests.benchmarks.records import cell, results

FAIRSEQ = System("fairseq", "greedy", "float32")
PEER, PEER_INT8 = (System("ctranslate2", "greedy", dtype) for dtype in ("float32", "int8"))
PEER_INT8_ALONE = System("ctranslate2", "greedy", "int8", {"threads": 1})
GREEDY, EXACT = (System("ours", role, "float32") for role in ("greedy", "exact"))
GREEDY_INT8 = System("ours", "greedy", "int8")
RELAXED = System("ours", "relaxed", "float32", {"beta": 3, "tau": 1.0})


def on_cpu() -> Results:
    shares = {"encode": 0.1, "draft": 0.4, "verify": 0.3, "rest": 0.2}
    fast = {"acceptance_by_position": [0.9, 0.5], "accepted_tokens": 3.5, "shares": shares}
    cells = [
        cell(FAIRSEQ, [8.0, 16.0]),
        cell(PEER, [4.0, 4.0]),
        cell(PEER_INT8, [9.0, 9.0]),
        cell(PEER_INT8_ALONE, [2.0, 2.0]),
        cell(GREEDY, [5.0, 5.0]),
        cell(GREEDY_INT8, [4.0, 4.0]),
        cell(EXACT, [2.0, 2.0], differs_from_fairseq_greedy=[3], **fast),
        cell(RELAXED, [1.0, 1.0], bleu=29.0, **fast),
        cell(GREEDY, [1.0, 1.0], batch=8),
        cell(EXACT, [0.5, 0.5], batch=8),
    ]
    return results(cells)


def rows_of(text: str) -> list[list[str]]:
    """The cells of all tables of a page."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[part.strip() for part in line.strip("| ").split("|")] for line in lines]


def test_table_takes_ratios_run_by_run() -> None:
    text = page(on_cpu())
    exact = next(row for row in rows_of(text) if row[0] == "ours exact")
    # Ratios of 4 and 8 in the two repetitions; the median of both is not the ratio of medians.
    assert "6.00x (4.00 to 8.00)" in exact
    assert "2.00x (2.00 to 2.00)" in exact
    assert "2.50x (2.50 to 2.50)" in exact
    assert exact[3:5] == ["3 of 4", "4 of 4"]
    assert "3.50" in exact
    assert exact[-1] == "10 / 40 / 30 / 20"
    assert "## Batch 8, 2 threads" in text


def test_ratios_of_a_run_without_float32_are_those_of_its_precision() -> None:
    fairseq, exact = (System(*row, "float16") for row in (("fairseq", "greedy"), ("ours", "exact")))
    recorded = System("ours", "greedy", "float16", {"graphs": True})
    cells = [cell(fairseq, [9.0]), cell(exact, [1.0]), cell(recorded, [2.0])]
    rows = {row[0]: row for row in rows_of(page(results(cells)))}
    assert rows["ours exact"].count("9.00x") == rows["ours exact"].count("2.00x") == 1
    assert "4.50x" in rows["ours greedy (graphs)"]


def test_plots_are_pictures_and_those_without_figures_left_out(tmp_path: Path) -> None:
    written = plots.draw(on_cpu(), str(tmp_path / "run"))
    assert {path.name for path in written} == {f"run.{name}.png" for name in plots.PLOTS}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    written = plots.draw(results([cell(FAIRSEQ, [8.0], bleu=None)]), str(tmp_path / "run"))
    assert {path.name for path in written} == {"run.latency-by-length.png"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["bench", "reproduce", "pair"], "specdec bench reproduce pair"),
        (["bench", "--pair", "pair"], "specdec bench --pair pair"),
        (["--pair", "/elsewhere/pair", "a b"], "python -m benchmarks --pair pair 'a b'"),
    ],
)
def test_a_command_is_told_as_a_reader_can_type_it(
    words: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/specdec", *words])
    assert command() == told
