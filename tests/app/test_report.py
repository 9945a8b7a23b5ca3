"""What is said about a run."""

from __future__ import annotations

import pytest
import torch

from specdec_plugins.app.report import Tally, peak_memory, percentile, summary
from specdec_plugins.app.types import Sentence, Translation
from specdec_plugins.decoding.networks import best_set
from tests.app.toys import translator


def test_percentiles_are_nearest_ranks() -> None:
    hundred = [float(i) for i in range(1, 101)]
    assert [percentile(hundred, share) for share in (0.5, 0.95, 1.0)] == [50.0, 95.0, 100.0]
    assert (percentile([2.0, 1.0], 0.5), percentile([], 0.5)) == (1.0, 0.0)


def test_millions_of_latencies_take_no_memory() -> None:
    tally, seconds = Tally(), [1.0005**i / 1e3 for i in range(20_000)]  # from 1 ms to 22 s
    tally.add([Translation(n, "", seconds=one) for n, one in enumerate(seconds)])
    assert len(tally.latencies) < 4000
    for share in (0.1, 0.5, 0.95):
        exact = percentile(seconds, share)
        assert percentile(tally.latencies, share) == pytest.approx(exact, rel=0.005)


def report(strategy: str, seconds: float = 2.0, **changes: object) -> tuple[list[str], Tally]:
    it = translator(strategy, **changes)
    tally = Tally()
    lines = ["a b c", "", "d"]
    done = it.translate_sentences([Sentence(n, line) for n, line in enumerate(lines, 1)])
    tally.add(done)
    text = summary(tally, it.decoder.stats, it.settings, it.limits, seconds)
    return text.splitlines(), tally


def test_a_summary() -> None:
    assert "tau 0 accepts only ties; try --tau 1" in report("specdec", beta=3)[0][3]
    lines, tally = report("specdec", beta=3, tau=0.5)
    assert (tally.sentences, tally.tokens, tally.latencies.total()) == (3, 8, 2)
    assert lines[0] == "3 sentences (1 empty)"
    assert lines[1].startswith("8 tokens in 2.00 s: 4.0 tokens/s, 0.6667 s a sentence; latency p50")
    kernels = f"native kernels ({best_set()})"
    method = "strategy specdec, batch 3, float32, drafter block, blocks of 4"
    assert lines[2] == f"{method}, {kernels}"
    assert report("specdec")[0][2] == f"{method}, drafting in int8, {kernels}"
    assert lines[3] == (
        "rule top_beta (beta 3, tau 0.5): may differ from the verifier's greedy output; greedy "
        "means plain argmax, at most 200 or 3 * source tokens (90 positions)"
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
    assert lines[3] == "unverified; at most 200 or 3 * source tokens"
    lines, _ = report("specdec")
    assert ", drafter block, blocks of 4, " in lines[2]
    lines, _ = report("early-exit", exit_layer=2)
    assert lines[2].startswith("strategy early-exit, batch 3, float32, decoder cut after layer 2")
    assert lines[3] == "unverified; at most 200 or 3 * source tokens"


def test_nothing_divides_by_zero() -> None:
    it = translator()
    tally, rest = Tally(), (it.decoder.stats, it.settings, it.limits, 0.0)
    assert summary(tally, *rest).startswith("0 sentences\n0 tokens in 0.00 s")
    tally.add([Translation(1, "")])
    assert summary(tally, *rest).startswith("1 sentence (1 empty)\n")


def test_memory_is_that_of_this_process() -> None:
    assert 2**24 < peak_memory(torch.device("cpu")) < 2**40
