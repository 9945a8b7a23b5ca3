"""Which systems a run compares."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.engines import ENGINES
from benchmarks.run import Options, choose, parser
from benchmarks.systems import PRECISIONS, Choice
from specdec_plugins.app.options import build
from specdec_plugins.errors import UserError


def flags(*words: str) -> dict[str, Any]:
    return vars(parser().parse_args(["--output", "out", *words]))


def test_no_two_systems_share_a_name_and_a_precision() -> None:
    choice = Choice(("float32", "int8"), block_sizes=(4, 8), scripted=(0.5,), assistant=True)
    systems = choice.systems()
    assert len({(one.name, one.dtype) for one in systems}) == len(systems)
    assert {one.engine for one in systems} == set(ENGINES) == set(PRECISIONS)


def test_each_engine_has_the_precisions_that_it_computes_in() -> None:
    systems = Choice(("float32", "int8")).systems()
    assert {one.engine for one in systems if one.dtype == "int8"} >= {"ctranslate2"}
    assert not [one for one in systems if one.dtype == "int8" and one.engine == "fairseq"]


def test_without_a_drafter_nobody_speculates() -> None:
    roles = {one.role for one in Choice(drafter=None).systems()}
    assert roles == {"greedy", "beam 5", "prompt lookup"}


def test_only_the_block_drafter_is_published_and_scripted() -> None:
    systems = Choice(drafter="lookup", scripted=(0.5,)).systems()
    assert {"exact", "relaxed"} <= {one.role for one in systems if one.engine == "ours"}
    assert not [one for one in systems if one.engine == "published" or one.role == "scripted"]


def test_engines_that_a_second_thread_may_slow_down_get_one_as_well() -> None:
    pair = ("--pair", "p", "--test", "t", "--dtypes", "int8", "--relaxed")
    names = [one.name for one in choose(flags(*pair, "--threads", "1", "2"), "block", False, 2)]
    assert names == [
        "ctranslate2 beam 5",
        "ctranslate2 beam 5 (threads 1)",
        "ctranslate2 greedy",
        "ctranslate2 greedy (threads 1)",
        "ours greedy",
        "ours greedy (threads 1)",
        "ours exact",
        "ours exact (threads 1)",
    ]
    systems = choose(flags(*pair), "block", False, 1)
    assert not [one for one in systems if "threads" in one.options]


def test_other_blocks_are_drafted_in_8_bits_as_well() -> None:
    args = flags("--rows", "ours exact*", "--block-sizes", "4", "--relaxed", "--threads", "1")
    names = [one.name for one in choose(args, "block", False, 1)]
    of_float32 = ["ours exact", "ours exact (drafter bits 8)"]
    of_float32 += ["ours exact (k 4)", "ours exact (drafter bits 8, k 4)"]
    assert names == [*of_float32, "ours exact", "ours exact (k 4)"]


def test_patterns_choose_systems() -> None:
    args = flags("--rows", "ours *", "--relaxed", "2:0.5", "--dtypes", "float32")
    names = [one.name for one in choose(args, "block", False, 2)]
    assert names == [
        "ours greedy",
        "ours greedy (threads 1)",
        "ours exact",
        "ours exact (threads 1)",
        "ours relaxed (beta 2, tau 0.5)",
    ]
    with pytest.raises(UserError, match="there are: .*ours greedy"):
        choose(flags("--rows", "theirs"), "block", False, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --pair and --test"),
        (("--pair", "p", "--test", "t", "--random-weights", "1x64x40"), "leave the others out"),
    ],
)
def test_flags_that_do_not_fit_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(Options, flags(*words))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--batches", "4", "0"), "--batches: expected a whole number of 1 or more"),
        (("--repeats", "0"), "--repeats: expected a whole number of 1 or more"),
        (("--scripted-acceptance", "2"), "from 0 to 1"),
        (("--relaxed", "3"), "expected BETA:TAU"),
    ],
)
def test_values_that_cannot_be_are_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        flags(*words)
    assert message in capsys.readouterr().err


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="torch sees no GPU"):
        build(Options, flags("--pair", "p", "--test", "t", "--device", "cuda"))
