"""Several ways with the same networks, on scripted parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.turn_log import TurnLog
from benchmarks.turns import Contender, decode_in_turns, variant
from specdec_plugins.app.strategies import EngineDecoder
from specdec_plugins.app.translator import SpeculativeTranslator, number_sentences
from specdec_plugins.errors import UserError
from tests.app.toys import translated, translator

LINES = ["a b", "c d e", "", "f"]


def engine(made: SpeculativeTranslator) -> EngineDecoder:
    assert isinstance(made.decoder, EngineDecoder)
    return made.decoder


def test_a_variant_shares_the_networks_and_differs_in_the_method() -> None:
    exact = translator()
    greedy = variant(exact, strategy="AR", drafter_checkpoint=None)
    relaxed = variant(exact, beta=3, tau=1.0, block_size=2)
    assert engine(greedy).verifier is engine(relaxed).verifier is engine(exact).verifier
    assert engine(greedy).method.drafter is None
    assert engine(relaxed).method.drafter is engine(exact).method.drafter
    assert relaxed.limits.block_size == 2
    assert exact.settings.beta == 1
    assert [t.text for t in greedy.translate(LINES)] == [translated(line) for line in LINES]


def test_a_longer_block_than_was_loaded_is_refused() -> None:
    with pytest.raises(UserError, match="--block-size 9 is more than the 4"):
        variant(translator(), block_size=9)


def test_ways_take_turns_and_each_sees_every_sentence() -> None:
    exact = translator()
    ways = [Contender("exact", exact), Contender("short", variant(exact, block_size=1))]
    done: list[int] = []
    long, short = decode_in_turns(ways, number_sentences(LINES), lambda: done.append(1))
    assert len(done) == len(ways) * len(LINES)
    assert (long.name, short.name) == ("exact", "short")
    assert long.texts == short.texts == [translated(line) for line in LINES]
    # Rounds of four and one drafted, against one and one; the warm-up is not counted.
    assert [len(rounds) for rounds in long.emitted] == [1, 2, 0, 1]
    assert [len(rounds) for rounds in short.emitted] == [3, 4, 0, 2]


def test_batches_give_what_single_sentences_give_and_share_their_time() -> None:
    lines = [*LINES, "a b c d", "e f", "g"]
    ways = [Contender("exact", translator(batch=3))]
    done: list[int] = []
    (single,) = decode_in_turns(ways, number_sentences(lines))
    (many,) = decode_in_turns(ways, number_sentences(lines), lambda: done.append(1), batch=3)
    assert len(done) == len(lines)
    assert (many.texts, many.emitted) == (single.texts, single.emitted)
    # By length: "", "f", "g"; "a b", "e f", "c d e"; "a b c d".
    assert many.milliseconds[0] == many.milliseconds[1] == many.milliseconds[5] > 0
    assert many.milliseconds[3] == many.milliseconds[2] == many.milliseconds[6]


def test_what_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    ways = [Contender("exact", translator()), Contender("short", variant(translator(), beta=3))]
    sentences = number_sentences(LINES)

    class Stopped(Exception):
        pass

    def stop_after(number: int) -> None:
        done.append(1)
        if len(done) == number:
            raise Stopped

    done: list[int] = []
    path = tmp_path / "new" / "log"
    with pytest.raises(Stopped):
        decode_in_turns(ways, sentences, lambda: stop_after(5), log=TurnLog(path, {"of": 1}))
    with path.open("a", encoding="utf-8") as file:
        file.write('[[{"id": 4, "te')  # as it looks where a line was being written

    log, done = TurnLog(path, {"of": 1}), []
    kept = [[record["milliseconds"] for record in way] for turn in log.turns for way in turn]
    assert len(log.turns) == 3
    again = decode_in_turns(ways, sentences, lambda: done.append(1), log=log)
    assert len(done) == len(ways) * len(LINES)
    fresh = decode_in_turns(ways, sentences)
    assert [way.texts for way in again] == [way.texts for way in fresh]
    assert [way.emitted for way in again] == [way.emitted for way in fresh]
    # The turns before were taken as they were, and not decoded again.
    times = [[way.milliseconds[at]] for at in range(3) for way in again]
    assert times == kept
    assert len(TurnLog(path, {"of": 1}).turns) == len(LINES)


def test_turns_of_another_run_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    TurnLog(path, {"batch": 1, "grid": ["a"]})
    with pytest.raises(UserError, match=r"log: was begun with another grid; .*delete the file"):
        TurnLog(path, {"batch": 1, "grid": ["a", "b"]})
    for damaged in ("", "no JSON\n", "[]\n", "{}\n"):
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"log: damaged; delete it to start over"):
            TurnLog(path, {"batch": 1})
