"""Table, bars and plots of runs with round figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bars, plots
from benchmarks.results import Results, page
from benchmarks.systems import System
from tests.benchmarks.records import cell, results
from tests.refusals import told

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


def test_bars_are_met_or_missed_by_so_much() -> None:
    text = bars.table(on_cpu())
    assert [cells[-2:] for cells in rows_of(text)[2:]] == [
        ["0.80x (0.80 to 0.80)", "missed: 0.89 of it"],  # greedy against the peer's
        # The peer is as fast as its best number of threads makes it.
        ["0.50x (0.50 to 0.50)", "missed: 0.71 of it"],  # the same in int8
        ["2.00x (2.00 to 2.00)", "met"],  # exact
        ["", "not measured"],
        ["2.50x (2.50 to 2.50)", "met"],  # exact against our greedy
        ["", "not measured"],
        ["6.00x (4.00 to 8.00)", "met"],  # against fairseq
    ]


def on_gpu() -> Results:
    greedy, exact = (System("ours", role, "float16") for role in ("greedy", "exact"))
    slow, fast, wrong = (
        System("ours", "relaxed", "float16", {"beta": beta, "tau": 1.0}) for beta in (2, 3, 5)
    )
    cells = [
        cell(System("fairseq", "beam 5", "float16"), [90.0], bleu=30.0),
        cell(System("fairseq", "greedy", "float16"), [60.0]),
        cell(greedy, [6.0], peak_memory_mib=100.0),
        cell(exact, [2.0], peak_memory_mib=171.0),
        cell(slow, [1.5], bleu=29.9),
        cell(fast, [1.2], bleu=29.7),
        cell(wrong, [0.5], bleu=29.0),
        cell(greedy, [6.0], batch=32),
        cell(exact, [5.0], batch=32, peak_memory_mib=170.0),
    ]
    pair = {"name": "toys", "verifier": "", "drafter": "", "drafter_weights": 25 * 2**20}
    return results(cells, device="cuda", pair=pair)


def test_bars_of_a_gpu() -> None:
    found = rows_of(bars.table(on_gpu()))[2:]
    assert [(number, verdict) for number, *_, verdict in found] == [
        ("5", "met"),  # 30 times
        ("5", "met"),  # 3 times
        ("6", "met"),  # the fastest row that scores well enough: 5 times
        ("7", "not measured"),
        ("8", "missed: 0.92 of it"),  # 1.2 times at batch 32
        ("9", "missed: 1.01 of it"),  # 171 MiB against 100 * 1.2 + 50
        ("9", "met"),
    ]
    assert found[2][3] == "5.00x"


def test_plots_are_pictures_and_those_without_figures_left_out(tmp_path: Path) -> None:
    written = plots.draw(on_cpu(), str(tmp_path / "run"))
    assert {path.name for path in written} == {f"run.{name}.png" for name in plots.PLOTS}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    written = plots.draw(results([cell(FAIRSEQ, [8.0], bleu=None)]), str(tmp_path / "run"))
    assert {path.name for path in written} == {"run.latency-by-length.png"}


def test_the_fastest_stands_for_all_that_say_the_same(tmp_path: Path) -> None:
    slow, fast = (System("ours", "exact", "float32", {"k": k}) for k in (8, 4))
    cells = [cell(slow, [3.0, 3.0]), cell(fast, [1.0, 1.0]), *on_cpu().cells]
    figure, axes = plots.pyplot().subplots()
    plots.PLOTS["speed-against-bleu"](results(cells), axes)
    assert [text.get_text() for text in axes.texts] == ["k 4", "beta 3, tau 1"]
    plots.pyplot().close(figure)


def test_bins_hold_equally_many_sentences() -> None:
    bins = plots._binned([(n, n / 1000) for n in range(12)])
    assert bins == [pytest.approx((start + 0.5, start + 0.5)) for start in range(0, 12, 2)]


def test_a_file_that_is_no_result_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "error: expected one argument, RESULT.json" in told(capsys, bars.main, [])
    (path := tmp_path / "bad.json").write_text('{"rows": []}', encoding="utf-8")
    assert "not a result of this harness" in told(capsys, bars.main, [str(path)])
