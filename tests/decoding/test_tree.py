"""Trees of drafts: how they grow, which path is kept, what each rule says on them."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdec_plugins.decoding.constraints import Constraints, constrain
from specdec_plugins.decoding.drafters.base import grow
from specdec_plugins.decoding.extend import _path, judge
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.rules.mixed import MixedRule
from specdec_plugins.decoding.sampling import HashRandom
from specdec_plugins.decoding.types import AcceptanceRule, Case, Draft, RowParams, Scores, Tree
from tests.decoding.drafters.factories import FACTORIES, SCRIPTED
from tests.decoding.toys import (
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
    tree_of,
)

EOS, VOCAB = SPECIAL.eos, 9
Nodes = list[tuple[int, int]]  # tokens, and the nodes before them, counted from 1


def random_nodes(rng: random.Random, size: int, height: int) -> Nodes:
    nodes: Nodes = []
    depths = [0]
    while len(nodes) < size:
        parent = rng.randrange(len(nodes) + 1)
        token = rng.randrange(VOCAB)
        if depths[parent] < height and (token, parent) not in nodes:
            nodes.append((token, parent))
            depths.append(depths[parent] + 1)
    return nodes


def way_to(node: int, nodes: Nodes) -> list[int]:
    return [] if node == 0 else [*way_to(nodes[node - 1][1], nodes), node]


@pytest.fixture(name="rows")
def some_rows() -> list[Nodes]:
    rng = random.Random(0)
    return [random_nodes(rng, size, 4) for size in (12, 0, 1, 7, 12, 12)]


def test_each_node_sees_its_way_and_itself(rows: list[Nodes]) -> None:
    tree = tree_of(rows, height=4).tree
    assert tree is not None
    for row, nodes in enumerate(rows):
        for node in range(len(nodes) + 1):
            assert tree.seen_mask[row, node].nonzero()[:, 0].tolist() == [0, *way_to(node, nodes)]


def test_the_kept_path_is_the_longest_and_goes_on_to_the_first_deepest_leaf() -> None:
    #       0: 1 (2, 3 (4, 5)), 6 (7)
    nodes = [(5, 0), (6, 1), (7, 1), (5, 3), (6, 3), (8, 0), (5, 6)]
    tree = tree_of([nodes], height=5).tree
    assert tree is not None
    for kept, path, counts in (
        ([], [1, 3, 4], (0, 3)),
        ([1], [1, 3, 4], (1, 3)),
        ([1, 2], [1, 2], (2, 2)),
        ([1, 3, 5], [1, 3, 5], (3, 3)),
        ([3, 5], [1, 3, 4], (0, 3)),  # whose parent is not kept
        ([6], [6, 7], (1, 2)),
    ):
        is_kept = torch.zeros(1, 8, dtype=torch.bool)
        is_kept[0, [0, *kept]] = True
        found, num_kept, length = _path(tree, is_kept)
        assert found[0, : len(path)].tolist() == path
        assert (int(num_kept), int(length)) == counts


def likeliest(
    law: Tensor, candidates: Tensor, last: int, budget: int, size: int
) -> list[tuple[float, list[int]]]:
    """Best first, by a heap: the slow twin. Log-probabilities, and the tokens on each way."""
    found: list[tuple[float, list[int]]] = []
    waiting: list[tuple[float, list[int]]] = [(0.0, [])]
    while waiting and len(found) <= size:
        cost, way = heapq.heappop(waiting)
        found.append((-cost, way))
        if len(way) == budget or (way and way[-1] == EOS):
            continue
        scores = law[len(way), way[-1] if way else last]
        for token, score in zip(candidates[len(way)].tolist(), scores.tolist(), strict=True):
            if score > -math.inf:
                heapq.heappush(waiting, (cost - score, [*way, token]))
    return found[1:]


@pytest.mark.parametrize("size", [1, 3, 8, 30, 400])
def test_the_likeliest_nodes_of_all_are_taken(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    law = torch.randn(4, 3, VOCAB, 5, generator=generator, dtype=torch.float64) * 2
    law[:, :, :, 4] = -math.inf  # what may not be drafted
    law = law.log_softmax(-1)  # [K, B, token before, C]
    shuffled = [torch.randperm(VOCAB, generator=generator)[:5] for _ in range(12)]
    candidates = torch.stack(shuffled).view(3, 4, 5)
    last, budget = torch.tensor([4, 5, 6]), torch.tensor([4, 0, 3])

    def choose(place: int, before: Tensor) -> Tensor:
        return law[place, torch.arange(3)[:, None], before]

    tokens, lengths, tree = grow(choose, candidates, last, budget, size, EOS)
    assert tokens.shape[1] <= size
    for row in range(3):
        nodes = list(zip(tokens[row].tolist(), tree.parents[row, 1:].tolist(), strict=True))
        ways = [
            [nodes[n - 1][0] for n in way_to(node, nodes)]
            for node in range(1, int(lengths[row]) + 1)
        ]
        expected = likeliest(law[:, row], candidates[row], int(last[row]), int(budget[row]), size)
        assert ways == [way for _, way in expected]
        assert tree.depths[row, 1 : 1 + len(ways)].tolist() == [len(way) for way in ways]


def test_what_overflowed_is_no_node() -> None:
    law = torch.zeros(1, 3, 5).log_softmax(-1)
    law[0, 1] = math.nan

    def choose(place: int, before: Tensor) -> Tensor:
        return law[:, :1] if place == 0 else law[:, before[0] % 2]  # behind odd tokens

    some = torch.arange(5).expand(1, 3, 5) + 3
    tokens, lengths, tree = grow(choose, some, torch.tensor([4]), torch.tensor([3]), 9, EOS)
    assert 0 < int(lengths) <= 9
    for node in range(1, int(lengths) + 1):
        way = tree.seen_mask[0, node].nonzero()[1:, 0]
        assert not (tokens[0, way[:-1] - 1] % 2).any()


def case_of(rows: Sequence[Nodes], params: RowParams, seed: int) -> Case:
    draft = tree_of(rows, height=4)
    generator = torch.Generator().manual_seed(seed)
    shape = (len(rows), draft.tokens.shape[1] + 1, VOCAB)
    logits = torch.randint(0, 4, shape, generator=generator).double()  # many ties
    first = torch.arange(len(rows)) + 1
    return Case(draft, Scores(logits), params, HashRandom(params.seed), first)


def one_by_one(rule: AcceptanceRule, case: Case, nodes: Nodes, row: int) -> tuple[list[int], int]:
    """The path through a tree, each child judged as a draft of one token: the slow twin."""
    node, path = 0, list[int]()
    params = case.params.select([row], torch.tensor([row]))
    while True:
        logits = case.scores.logits[row : row + 1, node : node + 1].expand(1, 2, VOCAB)
        first, random = case.first[row : row + 1] + len(path), HashRandom(params.seed)
        own = Draft.empty(1, first.device)
        alone = rule.judge(Case(own, Scores(logits[:, :1]), params, random, first)).next_tokens
        children = [n for n, (_, parent) in enumerate(nodes, 1) if parent == node]
        if rule.samples:
            accepted = [n for n in children if nodes[n - 1][0] == int(alone)]
        else:
            drafts = {n: draft_of([[nodes[n - 1][0]]]) for n in children}
            cases = {n: Case(d, Scores(logits), params, random, first) for n, d in drafts.items()}
            accepted = [n for n, one in cases.items() if int(rule.judge(one).num_accepted)]
        if not accepted:
            return path, int(alone)
        node = min(accepted, key=lambda n: (-float(logits[0, 0, nodes[n - 1][0]]), nodes[n - 1][0]))
        path.append(node)


@pytest.mark.parametrize("rule", [*(RULES.get(name)() for name in RULES.names()), MixedRule()])
@pytest.mark.parametrize("seed", range(8))
def test_a_tree_is_judged_as_its_children_are_one_by_one(
    rule: AcceptanceRule, seed: int, rows: list[Nodes]
) -> None:
    betas = [1, 2, 5, 5, 9, 3] if isinstance(rule, MixedRule) or not rule.samples else [1] * 6
    top_k = [1, 1, 1, 1, 1, 1] if seed % 2 and isinstance(rule, MixedRule) else [0, 1, 3, 1, 0, 1]
    options = {"top_k": top_k} if rule.samples else {}
    taus = [0.0, 1.0, 1.0, 2.0, 9.0, 1.0]
    params = row_params(6, beta=betas, tau=taus, seed=[seed + i for i in range(6)], **options)
    case = case_of(rows, params, seed)
    last = judge(rule, case)
    assert last.path is not None
    for row, nodes in enumerate(rows):
        own = rule
        if isinstance(rule, MixedRule):
            own = rule.sampling if top_k[row] != 1 else rule.tolerant
        path, following = one_by_one(own, case, nodes, row)
        num_accepted = int(last.verdict.num_accepted[row])
        assert last.path[row, :num_accepted].tolist() == path
        assert int(last.verdict.next_tokens[row]) == following
        # What is left is a chain to a leaf, with the scores along it.
        length = int(last.draft.lengths[row])
        way = last.path[row, :length].tolist()
        assert way == way_to(([0] + way)[-1], nodes)
        assert not any(parent == ([0] + way)[-1] for _, parent in nodes)
        assert last.draft.tokens[row, :length].tolist() == [nodes[n - 1][0] for n in way]
        kept = case.scores.logits[row, [0, *way]]
        assert torch.equal(last.scores.logits[row, : length + 1], kept)


TABLE = random_table(seed=3)


@pytest.mark.parametrize("name", [n for n in {**FACTORIES, **SCRIPTED} if "tree" in n])
def test_a_row_that_samples_says_what_it_says_without_a_draft(name: str) -> None:
    """More than the same distribution: the very same text, whatever the tree."""
    jobs = requests(12, lambda i: i % 3, block_size=6, seed=lambda i: i, temperature=1.5, top_k=7)
    texts = []
    for build in ({**FACTORIES, **SCRIPTED}[name], lambda verifier: None):
        verifier = TableVerifier(TABLE)
        method = method_of(build(verifier), "speculative_sampling")
        texts.append([r.token_ids for r in decode_with(verifier, method, jobs, max_rows=5)])
    assert texts[0] == texts[1]


def test_the_right_way_through_a_tree_takes_as_few_rounds_as_a_right_chain() -> None:
    jobs, verifier = requests(9, block_size=4), TableVerifier(TABLE)
    drafter = SCRIPTED["scripted:trees, always"](verifier)
    told = history(verifier, method_of(drafter), jobs, max_rows=4)
    for job in jobs:
        assert len(told[job.id]) == math.ceil(len(oracle(TABLE, job)) / 5)
        assert all(num_accepted == len(draft) for draft, num_accepted in told[job.id][:-1])


def test_each_node_is_constrained_by_its_own_text(rows: list[Nodes]) -> None:
    prefix = prefix_of([[4, 5], [], [5], [7, 8, 7], [4], [5, 4]])
    params = row_params(6, max_len=[6, 30, 4, 5, 6, 4], min_len=[4, 1, 0, 5, 0, 2])
    asked = Constraints(((5, 4), (3,), (4, 5, 6)), no_repeat_ngram_size=2, forced_last=6)
    draft = tree_of(rows, height=4)
    logits = torch.zeros(6, draft.tokens.shape[1] + 1, VOCAB)
    draft = replace(draft, tokens=draft.tokens.masked_fill(~draft.mask, 0))
    constrain(logits, prefix, draft, params, EOS, asked)
    for row, nodes in enumerate(rows):
        for node in range(len(nodes) + 1):
            way = [nodes[n - 1][0] for n in way_to(node, nodes)]
            alone = torch.zeros(1, len(way) + 1, VOCAB)
            own = prefix_of([prefix.tokens[row, 1 : prefix.lengths[row]].tolist()])
            one = params.select([row], torch.tensor([row]))
            constrain(alone, own, draft_of([way]), one, EOS, asked)
            assert torch.equal(logits[row, node], alone[0, -1])


@pytest.mark.parametrize("rule", [*(RULES.get(name)() for name in RULES.names()), MixedRule()])
def test_nothing_waits_for_a_device(rule: AcceptanceRule) -> None:
    """On tensors without data, waiting raises."""
    meta, num_rows = torch.device("meta"), 3

    def integers(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=meta)

    tokens, lengths, tree = grow(
        lambda place, before: torch.zeros(*before.shape, 5, device=meta),
        *(integers(num_rows, 4, 5), integers(num_rows), integers(num_rows), 7, EOS),
    )
    assert isinstance(tree, Tree)
    params = row_params(num_rows)
    columns = {name: getattr(params, name).to(meta) for name in ("beta", "tau", "temperature")}
    params = replace(params, **columns, top_k=integers(num_rows), seed=integers(num_rows))
    scores = Scores(torch.zeros(num_rows, 8, VOCAB, device=meta))
    case = Case(Draft(tokens, lengths, tree=tree), scores, params, HashRandom(params.seed), lengths)
    last = judge(rule, case)
    assert last.path is not None
    assert last.path.shape == last.draft.tokens.shape == (num_rows, 4)
