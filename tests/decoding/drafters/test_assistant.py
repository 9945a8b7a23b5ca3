from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdec_plugins.decoding.contract import (
    Draft,
    Drafter,
    DraftRequest,
    Prefix,
    Round,
    Scores,
    SpecialTokens,
    Verdict,
)
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.requests import RowResult
from specdec_plugins.decoding.sampling import HashRandom, warp
from specdec_plugins.decoding.verifier import TransformerVerifier
from specdec_plugins.errors import UserError
from tests.decoding.drafters.test_lookup import sources
from tests.decoding.networks.toys import sentences, transformer
from tests.decoding.toys import (
    CPU,
    SPECIAL,
    TableVerifier,
    decode_with,
    draft_of,
    history,
    method_of,
    oracle,
    prefix_of,
    random_table,
    requests,
    row_params,
)

TABLE = random_table()


class Counting(TableVerifier):
    """Counts what it reads."""

    num_tokens = 0
    widest = 0  # columns of a draft

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        self.widest = max(self.widest, draft.tokens.shape[1])
        self.num_tokens += int(((1 + draft.lengths) * prefix.active).sum())
        return super().score(prefix, draft)


def run(
    assistant: TableVerifier,
    schedule: str = "constant",
    options: dict[str, Any] | None = None,
    max_rows: int = 4,
    **params: Any,
) -> list[RowResult]:
    verifier = TableVerifier(TABLE)
    drafter = DRAFTERS.build(
        "assistant", DraftContext(verifier, assistant=assistant), options=options
    )
    method = method_of(drafter, schedule=schedule)
    jobs = requests(9, num_forced=lambda i: i % 3, max_len=30, **params)
    results = decode_with(verifier, method, jobs, max_rows=max_rows)
    assert [r.token_ids for r in results] == [oracle(TABLE, job) for job in jobs]
    return results


def test_nothing_is_read_twice_but_what_was_rejected() -> None:
    """With every token right, it reads each once: all but the last of a row, which nobody needs."""
    assistant = Counting(TABLE)
    results = run(assistant, block_size=4, max_rows=1)
    num_read = sum(len(r.token_ids) for r in results)  # the start token in place of the last one
    num_forced = sum(i % 3 for i in range(9))  # in the cache from the beginning
    assert assistant.num_tokens <= num_read - num_forced + 4 * len(results)
    assert assistant.num_passes == sum(
        max(r.drafted_per_round[i], 0) for r in results for i in range(r.rounds)
    )


@pytest.mark.parametrize("schedule", ["constant", "target_confidence"])
def test_it_catches_up_after_rounds_without_a_draft(schedule: str) -> None:
    """The gate lets the verifier go on alone; drafts afterwards still see the whole prefix."""
    results = run(TableVerifier(TABLE), schedule, block_size=4)
    assert any(0 in r.drafted_per_round[1:-1] for r in results) == (schedule != "constant")
    for result in results:  # the assistant is the verifier's twin, so every draft is right
        assert result.accepted_per_round[:-1] == result.drafted_per_round[:-1]


def proposal(
    drafter: Drafter, prefixes: list[list[int]], budget: list[int], **params: Any
) -> Draft:
    rows = row_params(len(prefixes), **params)
    random = HashRandom(rows.seed)
    asked = (prefix_of(prefixes), torch.tensor(budget), max(budget), rows, random)
    return drafter.propose(DraftRequest(*asked))


def opened(
    assistant: TableVerifier,
    keys: Sequence[int] = (1, 4, 7),
    sampling: bool = False,
    **options: Any,
) -> Drafter:
    context = DraftContext(TableVerifier(TABLE), assistant=assistant, sampling=sampling)
    drafter = DRAFTERS.build("assistant", context, options=options)
    drafter.admit(sources([[key] for key in keys]))
    return drafter


def test_a_new_batch_does_not_catch_up_with_the_last_one() -> None:
    """Rounds without a draft leave much unread; once all rows have left, nothing of it is read."""
    assistant = Counting(TABLE)
    drafter = opened(assistant, [1])
    logits = torch.zeros(1, 1, TABLE.shape[-1])
    for length in range(1, 9):
        verdict = Verdict(torch.tensor([0]), torch.tensor([4]))
        drafter.commit(prefix_of([[4] * length]), Round(draft_of([[]]), Scores(logits), verdict))
    drafter.select(torch.zeros(0, dtype=torch.int64))
    drafter.admit(sources([[1]]))
    proposal(drafter, [[]], [1])
    assert assistant.widest == 0


def test_it_stops_where_it_is_not_confident() -> None:
    """Best probabilities by place: row 0 .9 .6 .9, row 1 .4 .9, row 2 always .9."""
    table = torch.zeros(12, 64, 9, 9, dtype=torch.float64)
    wanted = {1: [0.9, 0.6, 0.9, 0.9], 4: [0.4, 0.9, 0.9, 0.9], 7: [0.9] * 4}
    for key, values in wanted.items():
        for place, p in enumerate(values):
            table[key, place + 1, :, 5] = torch.tensor(p / (1 - p) * 8).log()
    for sampling in (False, True):
        lengths = [
            proposal(
                opened(TableVerifier(table), sampling=sampling, confidence=c),
                [[], [], []],
                [4, 4, 3],
                temperature=5.0,
            ).lengths.tolist()
            for c in (0.0, 0.3, 0.5, 0.7, 0.95)
        ]
        assert lengths == [[4, 4, 3], [4, 4, 3], [4, 0, 3], [1, 0, 3], [0, 0, 0]]


def test_no_pass_is_spent_on_rows_that_have_all_stopped() -> None:
    assistant = TableVerifier(TABLE * 0)
    draft = proposal(opened(assistant, [1, 4], confidence=0.9), [[], []], [8, 8])
    assert assistant.num_passes == 1
    assert draft.lengths.tolist() == [0, 0]


def test_under_a_sampling_rule_it_hands_on_its_distribution() -> None:
    """That it draws from that is what keeps the verifier's (test_speculative_sampling)."""
    options = {"temperature": 0.7, "top_k": 5, "top_p": 0.875, "seed": [1, 2, 3]}
    table = TABLE / 2
    draft = proposal(opened(TableVerifier(table), sampling=True), [[]] * 3, [2] * 3, **options)
    assert draft.probs is not None
    last = torch.stack([torch.full((3,), SPECIAL.start), draft.tokens[:, 0]], 1)
    logits = table[torch.tensor([[1], [4], [7]]), torch.tensor([1, 2]), last]
    want = warp(logits, row_params(3, **options)).float()
    torch.testing.assert_close(draft.probs[draft.mask], want[draft.mask])


def test_source_symbols_are_found_by_name_where_its_dictionary_is_another() -> None:
    """A twin of the verifier that calls source symbol i by the id of i + 1."""
    to_assistant = torch.arange(1, 13) % 12
    assistant = TableVerifier(TABLE.roll(1, dims=0))

    def rounds(mapping: Tensor | None) -> list[int]:
        verifier = TableVerifier(TABLE)
        context = DraftContext(verifier, assistant=assistant, source_to_assistant=mapping)
        drafter = DRAFTERS.build("assistant", context)
        jobs = requests(9, max_len=30, block_size=5)
        results = decode_with(verifier, method_of(drafter), jobs, max_rows=4)
        least = [-(-len(r.token_ids) // 6) for r in results]
        return [r.rounds - fewest for r, fewest in zip(results, least, strict=True)]

    assert rounds(to_assistant) == [0] * 9
    assert sum(rounds(None)) > 9


def pair_with_one_encoder() -> tuple[TransformerVerifier, TransformerVerifier]:
    """A verifier and an assistant whose decoder reads the same encoder."""
    large, small = transformer(seed=3), transformer(seed=7, num_layers=1)
    small.encoder.load_state_dict(large.encoder.state_dict())
    return TransformerVerifier(large, SPECIAL), TransformerVerifier(small, SPECIAL)


@pytest.mark.parametrize("max_rows", [1, 3])
def test_reading_the_verifiers_encoder_is_encoding_the_same_again(max_rows: int) -> None:
    """The slow twin encodes itself; rows join at the end of a batch that is wider or narrower."""

    def told(**options: Any) -> tuple[Any, int]:
        """The drafts of every row, and how often the assistant encoded."""
        verifier, assistant = pair_with_one_encoder()
        encoded: list[int] = []
        assistant.network.encoder.register_forward_hook(lambda *_: encoded.append(1))
        context = DraftContext(verifier, assistant=assistant)
        method = method_of(DRAFTERS.build("assistant", context, options=options))
        return history(verifier, method, jobs, max_rows=max_rows), len(encoded)

    jobs = sentences(7, lambda i: i % 2, max_len=12, block_size=lambda i: 1 + i % 4)
    twin, num_encodings = told()
    assert num_encodings > 0
    assert told(encoder="verifier") == (twin, 0)
    assert sum(len(draft) for rounds in twin.values() for draft, _ in rounds) > 40


def twin(**changes: Any) -> TableVerifier:
    made = TableVerifier(TABLE)
    vars(made).update(changes)
    return made


BARE = SimpleNamespace(vocab_size=9, special=SPECIAL, max_target_positions=60, device=CPU)
SHIFTED = SpecialTokens(start=0, pad=1, eos=2, unk=3)


@pytest.mark.parametrize(
    ("verifier", "assistant", "encoder", "words"),
    [
        (twin(), twin(vocab_size=11), "own", r"dictionary \(11 symbols.*\(9 symbols"),
        (twin(), twin(special=SHIFTED), "own", "use an assistant with the same one"),
        (twin(), twin(max_target_positions=50), "own", "50 .* fewer than the verifier's 60"),
        (twin(encoder_dim=2), twin(), "verifier", "of width 1, but the verifier's have width 2"),
        (BARE, twin(), "verifier", "This verifier gives no encoding"),
    ],
)
def test_what_cannot_assist_is_refused(
    verifier: Any, assistant: Any, encoder: str, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        DRAFTERS.build(
            "assistant", DraftContext(verifier, assistant=assistant), options={"encoder": encoder}
        )
