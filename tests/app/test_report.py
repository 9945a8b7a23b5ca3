"""What a run says about itself."""

from __future__ import annotations

import json

import pytest
import torch

from specdec_plugins.app.report import Tally, json_line, peak_memory, percentile, summary
from specdec_plugins.app.types import Sentence
from specdec_plugins.decoding.networks import best_set
from tests.app.toys import translator


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, 0.0),
        ([3.0], 0.95, 3.0),
        ([2.0, 1.0], 0.5, 1.0),
        ([float(i) for i in range(1, 101)], 0.95, 95.0),
        ([float(i) for i in range(1, 101)], 0.5, 50.0),
        ([1.0, 2.0, 9.0], 1.0, 9.0),
    ],
)
def test_percentiles(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def report(strategy: str, seconds: float = 2.0, **changes: object) -> tuple[list[str], Tally]:
    it = translator(strategy, **changes)
    tally = Tally()
    lines = ["a b c", "", "d"]
    done = it.translate_sentences([Sentence(n, line) for n, line in enumerate(lines, 1)])
    tally.add(done)
    text = summary(tally, it.decoder.stats, it.settings, it.limits, seconds)
    return text.splitlines(), tally


def test_a_summary() -> None:
    assert "tau 0 tolerates nothing but ties; try --tau 1" in report("specdec", beta=3)[0][3]
    lines, tally = report("specdec", beta=3, tau=0.5)
    assert (tally.sentences, tally.empty, tally.tokens, len(tally.latencies)) == (3, 1, 8, 2)
    assert lines[0] == "3 sentences (1 empty)"
    assert lines[1].startswith("8 tokens in 2.00 s: 4.0 tokens/s, 0.6667 s a sentence; latency p50")
    kernels = f"native kernels ({best_set()})"
    method = "strategy specdec, batch 3, float32, drafter block, blocks of 4"
    assert lines[2] == f"{method}, {kernels}"
    assert lines[3] == (
        "rule top_beta (beta 3, tau 0.5): may differ from the verifier's greedy output; greedy "
        "means plain argmax, at most 200 tokens (90 positions)"
    )
    # Rounds of 5, 1 and 2 tokens without eos.
    assert lines[4].startswith("mean accepted tokens 2.6667 (")
    assert "; 3.3333 with it); 3 rounds, 1.50 a sentence" in lines[4].replace("not; ", "; ")
    assert lines[5].startswith("acceptance 0.750; by position: 1.00 1.00 0.67 0.33")
    assert lines[6].startswith("time: ")


def test_which_greedy_is_said() -> None:
    lines, _ = report("AR", greedy_like="fairseq", max_len_a=1.5, max_len_b=9)
    assert lines[3] == (
        "rule exact: exactly the verifier's greedy output; greedy means no end before 1 tokens, "
        "no <pad>, at most 1.5 * source + 9 tokens"
    )
    assert not any("acceptance" in line for line in lines)
    lines, _ = report("drafter", kernels="torch")
    assert lines[2].endswith(", blocks of 4, torch's kernels")
    assert lines[3] == "unverified; at most 200 tokens"
    lines, _ = report("specdec", bigrams="b")
    assert ", drafter block with bigrams, blocks of 4, " in lines[2]
    lines, _ = report("specdec", bigrams="b", drafter_options={"bigram_weight": 0})
    assert ", drafter block, blocks of 4, " in lines[2]
    lines, _ = report("early-exit", exit_layer=2)
    assert lines[2].startswith("strategy early-exit, batch 3, float32, decoder cut after layer 2")
    assert lines[3] == "unverified; at most 200 tokens"


def test_nothing_divides_by_zero() -> None:
    it = translator()
    text = summary(Tally(), it.decoder.stats, it.settings, it.limits, 0.0)
    assert text.startswith("0 sentences\n0 tokens in 0.00 s")


def test_a_line_of_json() -> None:
    [done] = translator().translate_sentences([Sentence(7, "a")])
    record = json.loads(json_line(done))
    assert " ".join(record) == (
        "id text tokens score rounds drafted accepted emitted finish_reason milliseconds"
    )
    assert (record["id"], record["text"], record["rounds"]) == (7, "a a", 1)
    assert "\n" not in json_line(done)


def test_memory_is_that_of_this_process() -> None:
    assert 2**24 < peak_memory(torch.device("cpu")) < 2**40
