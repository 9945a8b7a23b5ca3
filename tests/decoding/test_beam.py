"""Beam search: fairseq's and transformers' hypotheses, and each sentence as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from specdec_plugins.decoding import beam as sessions
from specdec_plugins.decoding.beam import BeamDecoder
from specdec_plugins.decoding.constraints import FREE, Constraints
from specdec_plugins.decoding.engine import EngineConfig, SpeculativeDecoder
from specdec_plugins.decoding.networks import Transformer, with_fast_products
from specdec_plugins.decoding.requests import (
    FINISHING,
    BeamParams,
    DecodeParams,
    FinishReason,
    Hypothesis,
    Request,
    RowResult,
)
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.formats.dictionaries import Dictionary
from tests.decoding.networks.toys import random_ids, t5, trained_pair, transformer
from tests.decoding.toys import SPECIAL, TableVerifier, method_of, oracle, random_table, requests
from tests.fairseq_checkpoints import SHAPES
from tests.refusals import refused

NO_PAD = Constraints(bad_words=((Dictionary.pad,),))


def search(
    verifier: Any, jobs: Sequence[Request], max_rows: int = 4, constraints: Constraints = FREE
) -> list[RowResult]:
    return BeamDecoder(verifier, EngineConfig(max_rows, constraints=constraints)).decode(jobs)


def with_beam(jobs: Sequence[Request], **options: Any) -> list[Request]:
    beam = BeamParams(**options)
    return [replace(job, params=replace(job.params, beam=beam)) for job in jobs]


def texts(results: Sequence[RowResult]) -> list[list[list[int]]]:
    return [[h.token_ids for h in result.hypotheses] for result in results]


# Against other implementations


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[nn.Module, Any]]:
    """fairseq's random model of each shape, and our network with its weights."""
    made: dict[str, tuple[nn.Module, Any]] = {}

    def of(shape: str) -> tuple[nn.Module, Any]:
        if shape not in made:
            folder = tmp_path_factory.mktemp("model")
            both = trained_pair("transformer", Transformer, SHAPES[shape], folder)
            for output in (both[0].decoder.output_projection, both[1].decoder.output):  # type: ignore[union-attr]
                random = torch.Generator().manual_seed(5)
                ends = torch.randn(output.weight.shape[1], generator=random)
                output.weight.data[Dictionary.eos] = 3 * ends  # so that texts end
            made[shape] = both
        return made[shape]

    return of


def sources(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(count)
    return [[*random_ids(generator, 1 + 3 * i % 8), Dictionary.eos] for i in range(count)]


def fairseqs(model: nn.Module, jobs: Sequence[Request]) -> list[list[Hypothesis]]:
    """What fairseq's own search finds; forced beginnings of one length at a time."""
    from fairseq.data import Dictionary as TheirDictionary
    from fairseq.search import LexicallyConstrainedBeamSearch
    from fairseq.sequence_generator import SequenceGenerator
    from fairseq.token_generation_constraints import pack_constraints

    params, beam = jobs[0].params, jobs[0].params.beam
    assert beam is not None
    phrases = [[torch.tensor(phrase) for phrase in job.required_ids] for job in jobs]
    phrases = phrases if any(phrases) else []
    words = TheirDictionary()
    for i in range(model.decoder.output_projection.out_features - len(words)):  # type: ignore[union-attr,operator]
        words.add_symbol(f"s{i}")
    generator = SequenceGenerator(
        [model],
        words,
        beam_size=beam.size,
        max_len_b=params.max_len - 1,  # the end is not counted
        min_len=params.min_len,
        len_penalty=beam.length_penalty,
        unk_penalty=beam.unknown_penalty,
        search_strategy=LexicallyConstrainedBeamSearch(words, "unordered") if phrases else None,
    )

    def padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
        width = max(map(len, rows))
        return torch.tensor([[*row, *[Dictionary.pad] * (width - len(row))] for row in rows])

    lengths = torch.tensor([len(job.source_ids) for job in jobs])
    net_input = {"src_tokens": padded([job.source_ids for job in jobs]), "src_lengths": lengths}
    forced = padded([job.forced_ids for job in jobs]) if jobs[0].forced_ids else None
    packed = pack_constraints(phrases) if phrases else None
    sample = {"net_input": net_input}
    found = generator.generate([model], sample, prefix_tokens=forced, constraints=packed)
    return [
        [
            Hypothesis(h["tokens"].tolist(), float(h["score"]), h["positional_scores"].tolist())
            for h in row
        ]
        for row in found
    ]


@pytest.mark.fairseq
@pytest.mark.parametrize("shape", SHAPES)
def test_hypotheses_are_fairseqs(shape: str, pair: Any) -> None:
    model, network = pair(shape)
    verifier = TransformerVerifier(network, SPECIAL)
    lengths, num_ended = set(), 0
    for size, lenpen, unkpen, least in (
        *((1, 1.0, 0.0, 1), (2, 0.0, 0.0, 1), (3, 0.6, 2.5, 1), (8, 1.0, 0.0, 1)),
        *((5, 1.0, 0.0, 1), (5, 1.5, -1.0, 7), (4, 0.0, 1.0, 3), (8, 2.0, 0.0, 5)),
    ):
        params = DecodeParams(max_len=14, min_len=least)
        jobs = [Request(f"{i}", row, params) for i, row in enumerate(sources(9))]
        jobs = with_beam(
            jobs, size=size, num_best=size, length_penalty=lenpen, unknown_penalty=unkpen
        )
        found, wanted = search(verifier, jobs, 4, NO_PAD), fairseqs(model, jobs)
        assert texts(found) == [[h.token_ids for h in row] for row in wanted], (size, lenpen)
        for result, row in zip(found, wanted, strict=True):
            for mine, theirs in zip(result.hypotheses, row, strict=True):
                assert mine.score == pytest.approx(theirs.score, abs=1e-4)
                assert mine.token_scores == pytest.approx(theirs.token_scores, abs=1e-4)
            lengths |= {len(h.token_ids) for h in row}
            num_ended += result.finish_reason is FinishReason.EOS
    assert len(lengths) > 2
    assert num_ended > 2


@pytest.mark.fairseq
@pytest.mark.parametrize("shape", ["shared", "pre-norm"])
def test_forced_beginnings_are_fairseqs(shape: str, pair: Any) -> None:
    """Ragged ones join one batch here; there, those of each length are searched on their own."""
    model, network = pair(shape)
    verifier, params = TransformerVerifier(network, SPECIAL), DecodeParams(max_len=12, min_len=1)
    jobs = [
        Request(f"{i}", row, params, [5 + (i + j) % 9 for j in range(i % 4)])
        for i, row in enumerate(sources(9))
    ]
    for size in (1, 4):
        jobs = with_beam(jobs, size=size, num_best=size)
        found = search(verifier, jobs, 5, NO_PAD)
        for job, result in zip(jobs, found, strict=True):
            [wanted] = fairseqs(model, [job])
            assert texts([result]) == [[h.token_ids for h in wanted]]
            for mine, theirs in zip(result.hypotheses, wanted, strict=True):
                assert mine.score == pytest.approx(theirs.score, abs=1e-4)
                assert mine.token_scores == pytest.approx(theirs.token_scores, abs=1e-4)


PHRASES = [
    *([[7]], [[7], [9, 8]], [[5, 6, 7]], [[9, 9], [9]], [[6, 5], [6, 7, 8], [4]], []),
    *([[8, 7, 8]], [[5], [5], [5]], [[10, 4], [10, 4]]),
]


@pytest.mark.fairseq
@pytest.mark.parametrize("shape", ["shared", "pre-norm", "learned"])
def test_phrases_are_required_as_by_fairseq(shape: str, pair: Any) -> None:
    """Its unordered constraints. Not at the length limit, where it lets the impossible take places,
    and not where scores are 100 nats apart, where it does not tell the banks apart.
    """
    model, network = pair(shape)
    verifier, params = TransformerVerifier(network, SPECIAL), DecodeParams(max_len=40, min_len=1)
    num_whole = 0
    for size, lenpen in ((2, 1.0), (5, 1.0), (8, 0.5)):
        own = replace(params, beam=BeamParams(size, size, lenpen))
        jobs = [
            Request(f"{i}", row, own, required_ids=PHRASES[i]) for i, row in enumerate(sources(9))
        ]
        found, wanted = search(verifier, jobs, 4, NO_PAD), fairseqs(model, jobs)
        for job, result, row in zip(jobs, found, wanted, strict=True):
            whole = [h for h in row if len(h.token_ids) < params.max_len]
            mine = [h for h in result.hypotheses if len(h.token_ids) < params.max_len]
            assert [h.token_ids for h in mine] == [h.token_ids for h in whole], (size, job.id)
            assert [h.score for h in mine] == pytest.approx([h.score for h in whole], abs=1e-4)
            num_whole += len(whole)
            for h in result.hypotheses:
                said = " ".join(map(str, ["", *h.token_ids, ""]))
                for phrase in job.required_ids:
                    assert " ".join(map(str, ["", *phrase, ""])) in said
    assert num_whole > 3


# What holds for any verifier


def test_a_beam_as_wide_as_all_texts_finds_the_best() -> None:
    table = random_table(vocab_size=6)
    jobs = with_beam(requests(5, max_len=4), size=300, num_best=1, length_penalty=0.0)
    for job, result in zip(jobs, search(TableVerifier(table), jobs), strict=True):
        log_probs = table[job.source_ids[0]].log_softmax(-1)

        def total(text: tuple[int, ...], log_probs: torch.Tensor = log_probs) -> float:
            steps = enumerate(zip((SPECIAL.start, *text), text, strict=False), 1)
            return sum(float(log_probs[at, last, token]) for at, (last, token) in steps)

        others = [token for token in range(6) if token != SPECIAL.eos]
        every = [(*text, SPECIAL.eos) for n in range(4) for text in product(others, repeat=n)]
        best = max(every, key=total)
        assert result.hypotheses[0].token_ids == list(best)
        assert sum(result.token_scores) == pytest.approx(total(best))


@pytest.mark.parametrize("finishing", FINISHING[:3])
@pytest.mark.parametrize(
    "constraints",
    [FREE, NO_PAD, Constraints(((4, 5), (6,)), no_repeat_ngram_size=2, repetition_penalty=1.2)],
)
def test_a_beam_of_one_is_greedy(finishing: str, constraints: Constraints) -> None:
    table = random_table()
    jobs = requests(14, max_len=lambda i: 3 + 3 * (i % 9), min_len=lambda i: i % 5)
    jobs = with_beam(jobs, size=1, finishing=finishing)
    # transformers' search penalises log-probabilities, its greedy decoding logits
    wanted = table.log_softmax(-1) if constraints.repetition_penalty != 1.0 else table
    num_ended = 0
    for job, result in zip(jobs, search(TableVerifier(table), jobs, 5, constraints), strict=True):
        text = oracle(wanted, job, constraints)
        if text[-1] != SPECIAL.eos and finishing == "fairseq":  # which forces the end
            text[-1] = SPECIAL.eos
            assert result.finish_reason is FinishReason.LENGTH
        assert result.token_ids == text
        num_ended += result.finish_reason is FinishReason.EOS
    assert 3 < num_ended < 14


def test_a_beam_that_the_vocabulary_cannot_fill_is_searched_whole() -> None:
    table = random_table(vocab_size=5)
    jobs = with_beam(requests(6, max_len=7), size=8, num_best=8)
    for result in search(TableVerifier(table), jobs, constraints=NO_PAD):
        assert 4 < len({*map(tuple, (h.token_ids for h in result.hypotheses))}) <= 8


@pytest.mark.parametrize("int8", [False, True])
def test_a_sentence_is_searched_to_the_last_bit_as_if_alone(int8: bool) -> None:
    """With others of other lengths, beams, constraints and forced beginnings, as they come."""
    network = with_fast_products(transformer().float(), int8)
    verifier = TransformerVerifier(network, SPECIAL)
    jobs = [
        replace(
            job,
            source_ids=[*job.source_ids[:1] * (1 + i % 6), *job.source_ids],
            params=replace(job.params, beam=BeamParams(1 + i % 6, 1 + i % 6 // 2, 0.3 * (i % 5))),
        )
        for i, job in enumerate(requests(24, lambda i: i % 3, max_len=lambda i: 5 + i))
    ]
    jobs = [replace(job, required_ids=PHRASES[i % 9]) for i, job in enumerate(jobs)]
    for constraints in (NO_PAD, Constraints(no_repeat_ngram_size=2)):
        together = search(verifier, jobs, 7, constraints)
        alone = [search(verifier, [job], 1, constraints)[0] for job in jobs]
        for one, other in zip(together, alone, strict=True):
            assert one.hypotheses == other.hypotheses
            assert (one.rounds, one.finish_reason) == (other.rounds, other.finish_reason)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("network", [transformer, t5])
def test_the_kernels_search_as_python_does(
    network: Callable[[], Transformer],
    int8: bool,
    one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the last bit, whatever is asked for; on more threads, and beside searches that they do not
    know."""
    verifier = TransformerVerifier(with_fast_products(network().float(), int8), SPECIAL)
    constraints, jobs = Constraints(bad_words=((Dictionary.pad,), (8,)), num_opening=2), []
    for i, job in enumerate(requests(40, lambda i: i % 4, max_len=lambda i: 4 + i)):
        beam = BeamParams(1 + i % 7, 1 + i % 7, 0.5 * (i % 4), i % 3 - 1.0, FINISHING[i % 4])
        params = replace(job.params, beam=beam, min_len=i % 5)
        jobs.append(replace(job, params=params, required_ids=[[7]] if i % 9 == 8 else []))
    quick, many = (search(verifier, jobs, most, constraints) for most in (7, 24))
    torch.set_num_threads(2)
    for one, other in zip(many, search(verifier, jobs, 24, constraints), strict=True):
        assert one.hypotheses == other.hypotheses
    torch.set_num_threads(1)
    monkeypatch.setattr(sessions, "native_searches", lambda *given: None)
    for job, one, other in zip(jobs, quick, search(verifier, jobs, 7, constraints), strict=True):
        assert one.hypotheses == other.hypotheses, job.params.beam
        assert (one.rounds, one.finish_reason) == (other.rounds, other.finish_reason)


@pytest.mark.parametrize("int8", [False, True])
def test_a_beam_of_one_scores_as_greedy_decoding_does(int8: bool) -> None:
    network = with_fast_products(transformer().float(), int8)
    verifier, jobs = (
        TransformerVerifier(network, SPECIAL),
        requests(9, lambda i: i % 3, block_size=0, with_scores=True),
    )
    plain = SpeculativeDecoder(verifier, method_of(None), EngineConfig(4)).decode(jobs)
    found = search(verifier, with_beam(jobs, size=1, finishing="first"))
    for one, other in zip(found, plain, strict=True):
        assert one.token_ids == other.token_ids
        assert one.token_scores == pytest.approx(other.token_scores, abs=1e-10)  # in float64


def test_no_phrase_begins_within_a_word() -> None:
    """Even where that is the likeliest way to have it."""
    table = torch.zeros(1, 20, 9, 9, dtype=torch.float64)
    table[:, :, :, 7], table[:, :, 7, 4], table[:, :, 4, SPECIAL.eos] = 3, 6, 9  # 7 joins
    [job] = with_beam(requests(1, max_len=9), size=4)
    for joining, said in (((), [7, 4, SPECIAL.eos]), ({7}, [4, SPECIAL.eos])):
        asked = replace(job, source_ids=[0], required_ids=[[4]], joining_ids=joining)
        assert texts(search(TableVerifier(table), [asked]))[0][0] == said


@pytest.mark.parametrize("finishing", FINISHING)
def test_phrases_are_kept_where_there_is_room(finishing: str) -> None:
    beam = BeamParams(3, 3, finishing=finishing)
    phrases = [[4, 5], [4], [6, 4, 5]]
    for room in (3, 30):
        jobs = [
            replace(job, params=replace(job.params, beam=beam), required_ids=phrases)
            for job in requests(9, lambda i: i % 3, max_len=room)
        ]
        for job, result in zip(jobs, search(TableVerifier(random_table()), jobs, 4), strict=True):
            [said, *_] = texts([result])[0]
            assert said[: len(job.forced_ids)] == job.forced_ids
            whole = "".join(map(str, said))
            counts = [whole.count(phrase) for phrase in ("645", "45", "4")]
            assert (counts[0] >= 1 and counts[1] >= 2 and counts[2] >= 3) == (room == 30)


def test_sentences_join_leave_and_are_cancelled() -> None:
    table = random_table()
    jobs = with_beam(requests(12, max_len=lambda i: 4 + i), size=3, num_best=2)
    wanted = {result.id: result for result in search(TableVerifier(table), jobs, 1)}
    decoder = BeamDecoder(TableVerifier(table), EngineConfig(max_rows=3))
    session, done = decoder.open(), dict[str, RowResult]()
    session.add(jobs[:5])
    for number in range(200):
        if number == 3:
            session.add(jobs[5:])
            dropped = session.cancel(["r4", "r11"])
            assert [event.result.finish_reason for event in dropped if event.result] == [
                FinishReason.CANCELLED
            ] * 2
        done |= {event.id: event.result for event in session.step() if event.result}
    assert len(session) == 0
    [lane] = session._lanes
    assert len(lane._searches) == len(lane.rows)  # of those that were cancelled nothing is kept
    session.close()
    assert done.keys() == wanted.keys() - {"r4", "r11"}
    assert all(done[name].hypotheses == wanted[name].hypotheses for name in done)
    assert decoder.stats.rows == 10
    assert decoder.stats.rounds == sum(result.rounds for result in done.values())


def test_what_is_no_number_ends_a_sentence_and_no_other() -> None:
    table = random_table()
    wanted = search(TableVerifier(table), with_beam(requests(4), size=3))
    table[1, 5:] = torch.nan
    found = search(TableVerifier(table), with_beam(requests(4), size=3))
    assert found[1].finish_reason is FinishReason.ERROR
    assert (found[1].token_ids, found[1].hypotheses) == ([], [])
    for index in (0, 2, 3):
        assert found[index].hypotheses == wanted[index].hypotheses


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "beam must be 1 to 999, not 0"),
        ({"size": 2, "num_best": 3}, "n_best must be 1 to the beam's size of 2, not 3"),
    ],
)
def test_impossible_beams_are_refused(options: dict[str, Any], message: str) -> None:
    refused(message, BeamParams, **options)
