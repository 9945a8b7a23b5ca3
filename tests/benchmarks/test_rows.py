"""Which rows a run has."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.engines import ENGINES
from benchmarks.options import check, choose, parser
from benchmarks.rows import PRECISIONS, Choice
from specdec_plugins.errors import UserError


def flags(*words: str) -> argparse.Namespace:
    return parser().parse_args(["--output", "out", *words])


def test_no_two_rows_share_a_name_and_a_precision() -> None:
    choice = Choice(("float32", "int8"), block_sizes=(4, 8), scripted=(0.5,), assistant=True)
    rows = choice.rows()
    assert len({(row.name, row.dtype) for row in rows}) == len(rows)
    assert {row.engine for row in rows} == set(ENGINES) == set(PRECISIONS)


def test_each_engine_has_the_precisions_that_it_computes_in() -> None:
    rows = Choice(("float32", "int8")).rows()
    assert {row.engine for row in rows if row.dtype == "int8"} >= {"ctranslate2"}
    assert not [row for row in rows if row.dtype == "int8" and row.engine == "fairseq"]


def test_without_a_drafter_nobody_speculates() -> None:
    roles = {row.role for row in Choice(drafter=None).rows()}
    assert roles == {"greedy", "beam 5", "prompt lookup"}


def test_only_the_block_drafter_is_published_and_scripted() -> None:
    rows = Choice(drafter="lookup", scripted=(0.5,)).rows()
    assert {"exact", "relaxed"} <= {row.role for row in rows if row.engine == "ours"}
    assert not [row for row in rows if row.engine == "published" or row.role == "scripted"]


def test_engines_that_a_second_thread_may_slow_down_get_one_as_well() -> None:
    pair = ("--pair", "p", "--test", "t", "--dtypes", "int8", "--relaxed")
    names = [row.name for row in choose(flags(*pair, "--threads", "1", "2"), "block", False)]
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
    for words in (("--threads", "1"), ("--threads", "2", "--device", "cuda")):
        rows = choose(flags(*pair, *words), "block", False)
        assert not [row for row in rows if "threads" in row.options]


def test_other_blocks_are_drafted_in_8_bits_as_well() -> None:
    args = flags("--rows", "ours exact*", "--block-sizes", "4", "--relaxed", "--threads", "1")
    names = [row.name for row in choose(args, "block", assistant=False)]
    of_float32 = ["ours exact", "ours exact (drafter bits 8)"]
    of_float32 += ["ours exact (k 4)", "ours exact (drafter bits 8, k 4)"]
    assert names == [*of_float32, "ours exact", "ours exact (k 4)"]


def test_patterns_choose_rows() -> None:
    args = flags("--rows", "ours *", "--relaxed", "2:0.5", "--dtypes", "float32")
    names = [row.name for row in choose(args, "block", assistant=False)]
    assert names == [
        "ours greedy",
        "ours greedy (threads 1)",
        "ours exact",
        "ours exact (threads 1)",
        "ours relaxed (beta 2, tau 0.5)",
    ]
    with pytest.raises(UserError, match="there are: .*ours greedy"):
        choose(flags("--rows", "theirs"), "block", assistant=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --pair and --test"),
        (("--pair", "p", "--test", "t", "--random-weights", "1x64x40"), "leave the others out"),
        (("--pair", "p", "--test", "t", "--batches", "4", "0"), "--batches: every number"),
        (("--pair", "p", "--test", "t", "--repeats", "0"), "--repeats must be 1 or more"),
        (("--pair", "p", "--test", "t", "--scripted-acceptance", "2"), "from 0 to 1"),
    ],
)
def test_flags_that_do_not_fit_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(flags(*words))


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="torch sees no GPU"):
        check(flags("--pair", "p", "--test", "t", "--device", "cuda"))


def test_every_flag_is_explained() -> None:
    assert all(action.help for action in parser()._actions if action.option_strings)
