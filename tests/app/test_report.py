"""What is said about a run: its report, and its diagnosis."""

from __future__ import annotations

import pytest
import torch

from specdec_plugins.app.report import (
    Diagnosis,
    Tally,
    Timing,
    give_advice,
    peak_memory,
    percentile,
    relative_cost,
    summary,
    useful_block_size,
)
from specdec_plugins.app.types import Sentence, Translation
from specdec_plugins.decoding.networks import best_set
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.errors import UserError
from tests.app.toys import translator


def test_percentiles_are_nearest_ranks() -> None:
    hundred = [float(i) for i in range(1, 101)]
    assert [percentile(hundred, share) for share in (0.5, 0.95, 1.0)] == [50.0, 95.0, 100.0]
    assert (percentile([2.0, 1.0], 0.5), percentile([], 0.5)) == (1.0, 0.0)


def test_millions_of_latencies_take_no_memory() -> None:
    tally, seconds = Tally(), [1.0002**i / 1e3 for i in range(50_000)]  # from 1 ms to 22 s
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
    text = summary(Tally(), it.decoder.stats, it.settings, it.limits, 0.0)
    assert text.startswith("0 sentences\n0 tokens in 0.00 s")


def test_memory_is_that_of_this_process() -> None:
    assert 2**24 < peak_memory(torch.device("cpu")) < 2**40


def stats(accepted_at: list[int], rounds: int = 100, **seconds: float) -> DecodeStats:
    return DecodeStats(
        rounds=rounds,
        drafted=rounds * len(accepted_at),
        accepted=sum(accepted_at),
        emitted=sum(accepted_at) + rounds,
        drafted_at=[rounds] * len(accepted_at),
        accepted_at=[n for n in accepted_at if n],
        seconds=seconds,
    )


def test_the_block_that_would_do_and_what_a_round_costs() -> None:
    cases = [([90, 80, 70, 60], 4), ([90, 4, 0, 0], 1), ([50, 45, 5, 0, 0], 2), ([0, 0, 0], 3)]
    for accepted_at, size in cases:
        assert useful_block_size(stats(accepted_at)) == size
    assert relative_cost(Timing(1.0, 100), Timing(2.0, 400)) == 2.0
    assert relative_cost(Timing(1.0, 100), Timing(0.0, 0)) == 0.0


GOOD = [95, 90, 85, 80]
FAST, SLOW = Timing(1.0, 100), Timing(4.0, 400)


@pytest.mark.parametrize(
    ("counts", "with_drafter", "sentence"),
    [
        (stats(GOOD, verify=5.0, draft=2.0), FAST, "Nothing stands out"),
        (stats([40, 30, 20, 15], verify=5.0), FAST, "Only 40% of first"),
        (stats([95, 1, 0, 0, 0], verify=5.0), FAST, "--block-size 1 would"),
        (stats(GOOD, verify=1.0, draft=3.0), FAST, "Drafting takes 75%"),
        (stats(GOOD, verify=1.0, encode=1.0), FAST, "Encoding takes 50%"),
        (stats(GOOD, verify=1.0), Timing(9.0, 100), "costs 9.00 plain steps and gives 4.50 tokens"),
    ],
)
def test_advice(counts: DecodeStats, with_drafter: Timing, sentence: str) -> None:
    [advice] = give_advice(counts, with_drafter, SLOW)
    assert sentence in advice
    untrained = give_advice(counts, with_drafter, SLOW, is_trained=False)
    assert advice.startswith("Only") == (untrained != [advice])


def test_a_whole_diagnosis_leaves_the_counts_of_the_run_alone() -> None:
    it = translator()
    sentences = [Sentence(n, line) for n, line in enumerate(("a b", "c", "d e f"), 1)]
    it.translate_sentences(sentences)
    diagnosis, rounds = Diagnosis(it, sample_size=2), it.decoder.stats.rounds
    assert "nothing was drafted" in Diagnosis(translator()).report()
    diagnosis.observe(sentences)
    report = diagnosis.report()
    assert "on the first 2 sentences: " in report
    assert "acceptance by position, of the rounds that drafted it: 1.00 1.00" in report
    assert it.decoder.stats.rounds == rounds
    assert it.translate(["a b"])[0].text == "b b a a"
    with pytest.raises(UserError, match="--strategy specdec"):
        Diagnosis(translator("drafter"))
