"""Which systems a run compares."""

from __future__ import annotations

import pytest

from benchmarks.run import COMMAND
from benchmarks.systems import Options, System
from tests.refusals import refused, told

PAIR = ("--pair", "p", "--test", "t", "--threads", "1")


def asked(*words: str) -> Options:
    options: Options = COMMAND.parse("--output", "out", *PAIR, *words)
    return options


def names(*words: str) -> list[str]:
    return [one.name for one in asked(*words).systems("block")]


def test_what_is_compared_depends_on_the_drafter() -> None:
    without = {one.role for one in asked().systems(None)}
    assert without == {"greedy", "beam 5", "prompt lookup"}
    # Only the block drafter is published and scripted.
    systems = asked("--scripted-acceptance", "0.5").systems("lookup")
    assert {"exact", "relaxed"} <= {one.role for one in systems if one.engine == "ours"}
    assert not [one for one in systems if one.engine == "published" or one.role == "scripted"]


def test_engines_that_a_second_thread_may_slow_down_get_one_as_well() -> None:
    words = ("--dtypes", "int8", "--relaxed", "--rows", "c*", "ours *")
    plain = ["ctranslate2 beam 5", "ctranslate2 greedy", "ours beam 5", "ours greedy"]
    plain.append("ours exact")
    assert names(*words) == plain
    expected = [f"{name}{detail}" for name in plain for detail in ("", " (threads 1)")]
    found = asked(*words, "--threads", "1", "2").systems("block")
    assert [one.name for one in found if not one.only_batches] == expected
    # In batches CTranslate2 may also share a batch among translators of one thread each.
    shared = [one.name for one in found if one.only_batches]
    assert shared == [f"ctranslate2 {role} (workers 2)" for role in ("beam 5", "greedy")]


def test_patterns_choose_systems() -> None:
    found = names("--rows", "ours *", "--relaxed", "2:0.5", "--dtypes", "float32")
    assert found == [
        f"ours {n}" for n in ("beam 5", "greedy", "exact", "relaxed (beta 2, tau 0.5)")
    ]
    refused("there are: .*ours greedy", names, "--rows", "theirs")
    options = asked("--batch-rows", "ours exact")
    exact, greedy = (System("ours", role, "float32") for role in ("exact", "greedy"))
    assert options.takes(greedy, 1)
    assert options.takes(exact, 8)
    assert not options.takes(greedy, 8)
    assert not options.takes(System("ours", "exact", "float32", only_single=True), 8)
    assert not options.takes(System("ours", "exact", "float32", only_batches=True), 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--batches", "4", "0"), "--batches must be 1 or more"),
        (("--device", "cuda"), "torch sees no GPU"),
        (("--repeats", "0"), "--repeats must be 1 or more"),
        (("--scripted-acceptance", "2"), "from 0 to 1"),
        (("--relaxed", "3"), "expected BETA:TAU"),
        (("--random-weights", "1x64x40"), "was removed: give a trained pair as --pair"),
    ],
)
def test_values_that_cannot_be_are_refused(
    words: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert message in told(capsys, asked, *words)
