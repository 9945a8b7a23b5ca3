"""The diagnosis: what it counts, and which advice which figures give."""

from __future__ import annotations

import pytest

from specdec_plugins.app.report import (
    Diagnosis,
    TargetMatch,
    Timing,
    give_advice,
    match_targets,
    relative_cost,
    useful_block_size,
)
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.app.types import Sentence
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.types import Request
from specdec_plugins.errors import UserError
from tests.app.toys import EOS, ScriptedVerifier, translator


def test_positions_that_the_verifier_would_choose() -> None:
    requests = [
        Request("1", [4, 5, EOS]),
        Request("2", [6, EOS], forced_ids=[9]),
        Request("3", [7, EOS]),
    ]
    right = [[5, 5, 4, 4, EOS], [6, 6, EOS], [7, 7, EOS]]
    verifier = ScriptedVerifier()
    assert match_targets(verifier, requests, right) == [5, 3, 3]
    assert match_targets(verifier, requests, [[5, 9, 4, EOS], [6, EOS], [9, 9, 9]]) == [2, 1, 0]
    assert verifier.answers == []


def test_shares() -> None:
    match = TargetMatch()
    assert (match.position_share, match.sentence_share) == (0.0, 0.0)
    match.add(3, 4)
    match.add(6, 6)
    assert (match.position_share, match.sentence_share) == (0.9, 0.5)


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


@pytest.mark.parametrize(
    ("accepted_at", "size"),
    [([90, 80, 70, 60], 4), ([90, 4, 0, 0], 1), ([50, 45, 5, 0, 0], 2), ([0, 0, 0], 3)],
)
def test_the_block_that_would_do(accepted_at: list[int], size: int) -> None:
    assert useful_block_size(stats(accepted_at)) == size


GOOD = [95, 90, 85, 80]
FAST, SLOW = Timing(1.0, 100), Timing(4.0, 400)


@pytest.mark.parametrize(
    ("counts", "timings", "targets", "sentences"),
    [
        (stats(GOOD, verify=5.0, draft=2.0), (FAST, SLOW), None, ["Nothing stands out"]),
        (stats([40, 30, 20, 15], verify=5.0), (FAST, SLOW), None, ["Only 40% of first", "distil"]),
        (stats([40, 30, 20, 15], verify=5.0), (FAST, SLOW), (60, 100), ["Only 60% of the drafter"]),
        (stats([40, 30, 20, 15], verify=5.0), (FAST, SLOW), (95, 100), ["train it longer"]),
        (stats([95, 1, 0, 0, 0], verify=5.0), (FAST, SLOW), None, ["--block-size 1 would"]),
        (stats(GOOD, verify=1.0, draft=3.0), (FAST, SLOW), None, ["Drafting takes 75%"]),
        (stats(GOOD, verify=1.0, encode=1.0), (FAST, SLOW), None, ["Encoding takes 50%"]),
        (
            stats(GOOD, verify=1.0),
            (Timing(9.0, 100), Timing(4.0, 400)),
            None,
            ["A round costs 9.00 plain steps and gives 4.50 tokens"],
        ),
    ],
)
def test_advice(
    counts: DecodeStats,
    timings: tuple[Timing, Timing],
    targets: tuple[int, int] | None,
    sentences: list[str],
) -> None:
    match = TargetMatch()
    if targets is not None:
        match.add(*targets)
    advice = give_advice(counts, *timings, match)
    assert len(advice) == 1
    assert all(sentence in advice[0] for sentence in sentences)


def test_a_drafter_that_never_learnt_is_not_sent_to_school() -> None:
    counts = stats([40, 30, 20, 15], verify=5.0)
    assert "Nothing stands out" in give_advice(counts, FAST, SLOW, TargetMatch(), False)[0]


def test_costs_are_told_in_plain_steps() -> None:
    assert relative_cost(Timing(1.0, 100), Timing(2.0, 400)) == 2.0
    assert relative_cost(Timing(1.0, 100), Timing(0.0, 0)) == 0.0


def observed(it: SpeculativeTranslator, targets: list[str | None]) -> Diagnosis:
    lines = ["a b", "c", "d e f"]
    sentences = [
        Sentence(n, line, target=target)
        for n, (line, target) in enumerate(zip(lines, targets, strict=True), 1)
    ]
    it.translate_sentences(sentences)
    diagnosis = Diagnosis(it, sample_size=2)
    diagnosis.observe(sentences)
    return diagnosis


def test_a_whole_diagnosis_leaves_the_counts_of_the_run_alone() -> None:
    it = translator()
    diagnosis = observed(it, ["b b a a", "c d", None])
    rounds = it.decoder.stats.rounds
    report = diagnosis.report()
    assert "on the first 2 sentences: " in report
    assert "acceptance by position, of the rounds that drafted it: 1.00 1.00" in report
    assert "87.5% of 8 positions are the verifier's own choice, 50.0% of 2 sentences" in report
    assert it.decoder.stats.rounds == rounds
    assert it.translate(["a b"])[0].text == "b b a a"


def test_without_targets_nothing_is_said_of_them() -> None:
    assert "training targets" not in observed(translator(), [None, None, ""]).report()
    assert "nothing was drafted" in Diagnosis(translator()).report()
    with pytest.raises(UserError, match="--strategy specdec"):
        Diagnosis(translator("drafter"))
