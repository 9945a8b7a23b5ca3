"""What trees of drafts would bring: tokens a round of trees and of chains of as many nodes.

`python -m benchmarks.trees data/models/en-de SOURCE` replays the greedy output of the first
`--sentences` lines of a text, round by round: a block drafter with a sequential head drafts behind
what stands, and the longest path of its tree that goes on as the greedy output does is accepted,
with the verifier's own token behind it. No tree is verified; what that costs is a pass over a node
more than the tree has, which `benchmarks.kernels` times. See benchmarks/results/trees.md.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.pair import Pair
from benchmarks.reports import Columns, table
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.decoding.networks.block import BlockDrafter
from specdec_plugins.decoding.networks.cache import SourceMemory
from specdec_plugins.errors import Parser, require, run_command
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.models import read_model

CANDIDATES = 16  # of a position, as decoding has them
Chooser = Callable[[int, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Node:
    """A drafted token and the way to it."""

    depth: int  # tokens on that way
    token: int
    parent: int  # where it stands among the nodes; -1 = the last committed token


def best_first(choose: Chooser, last: int, length: int, size: int, branches: int) -> list[Node]:
    """The `size` likeliest nodes of all of depth `length` at most, parents before children.

    `choose(place, before)` gives tokens, the best first, and their log-probabilities. Of each node
    the best `branches` children are looked at; with one, the tree is a chain.
    """
    nodes: list[Node] = []
    waiting: list[tuple[float, int, Node]] = []

    def look_behind(index: int, depth: int, token: int, log_prob: float) -> None:
        if depth < length:
            tokens, scores = choose(depth, token)
            found = zip(tokens[:branches].tolist(), scores[:branches].tolist(), strict=True)
            for own, score in found:
                entry = (-log_prob - score, len(nodes) * branches + len(waiting))
                heapq.heappush(waiting, (*entry, Node(depth + 1, own, index)))

    look_behind(-1, 0, last, 0.0)
    while waiting and len(nodes) < size:
        cost, _, node = heapq.heappop(waiting)
        nodes.append(node)
        look_behind(len(nodes) - 1, node.depth, node.token, -cost)
    return nodes


def num_accepted(nodes: Sequence[Node], expected: Sequence[int]) -> int:
    """Tokens of the longest path that goes on as expected."""
    on_path = {-1}
    for index, node in enumerate(nodes):
        as_expected = node.depth <= len(expected) and node.token == expected[node.depth - 1]
        if node.parent in on_path and as_expected:
            on_path.add(index)
    return max((nodes[index].depth for index in on_path if index >= 0), default=0)


class Replay:
    """Rounds over a known output, with the drafts of one sentence's drafter."""

    def __init__(self, network: BlockDrafter, source: Tensor) -> None:
        """Of a source [S] int64 that ends in eos."""
        self._network, self._decoder = network, network.decoder
        states, padding_mask = network.encoder(source[None])
        self._memory = SourceMemory(
            lengths=torch.tensor([len(source)]),
            padding_mask=padding_mask,
            keys_values=network.decoder.layers.keys_values(states),
            extras=network.copied(source[None]),
        ).trimmed()
        size, shortlist = len(network.decoder.tokens.weight), network.decoder.shortlist
        self._listed = (
            torch.arange(size) if shortlist is None else shortlist.of(source, size).long()
        )

    def states(self, committed: Sequence[int], length: int) -> Tensor:
        """[length, D] of a block behind the committed tokens."""
        masks = [self._network.config.mask] * length
        tokens = torch.tensor([[*committed, *masks]])
        columns = torch.arange(len(committed), tokens.shape[1])[None]
        lengths = torch.tensor([len(committed)])
        states: Tensor = self._decoder(tokens, self._memory, columns, lengths)
        return states[0]

    def chooser(self, states: Tensor) -> Chooser:
        """By the head, over the candidates of a position, as `SequentialHead.draft` chooses."""
        head, embeddings = self._decoder.head, self._decoder.tokens.weight
        assert head is not None
        own = embeddings[self._listed]
        candidates = self._listed[(states @ own.t()).topk(min(CANDIDATES, len(own))).indices]
        told, known = head.state(states), head.table(embeddings)

        def choose(place: int, before: int) -> tuple[Tensor, Tensor]:
            corrected = states[place] + head.out(F.relu(told[place] + known[before]))
            scores = F.log_softmax(embeddings[candidates[place]] @ corrected, 0)
            order = scores.argsort(descending=True)
            return candidates[place][order], scores[order]

        return choose

    def num_rounds(self, output: Sequence[int], size: int, branches: int) -> int:
        """That decoding `output`, eos included, takes with trees of `size` nodes."""
        length = min(size, self._network.config.block_size)
        done = rounds = 0
        while done < len(output):
            choose = self.chooser(self.states(output[:done], length))
            last = output[done - 1] if done else Dictionary.eos  # which begins a sentence
            nodes = best_first(choose, last, length, size, branches)
            done += num_accepted(nodes, output[done : len(output) - 1]) + 1
            rounds += 1
        return rounds


def drafter_of(pair: Pair) -> BlockDrafter:
    """Raises UserError where the pair has no block drafter with a sequential head."""
    path = pair.settings.drafter_checkpoint
    found = None if path is None else read_model(path)
    network = None if found is None else found.network(torch.float32, torch.device("cpu"))
    has_head = isinstance(network, BlockDrafter) and network.decoder.head is not None
    require(has_head, f"{pair.name} has no block drafter with a sequential head.")
    assert isinstance(network, BlockDrafter)
    return network


def replays(pair: Pair, lines: Sequence[str]) -> Iterator[tuple[Replay, list[int]]]:
    """Each sentence, with its greedy output."""
    network, target = drafter_of(pair), pair.dictionaries().target
    greedy = SpeculativeTranslator.from_pretrained(
        pair.settings.data, scores=False, strategy="AR", device="cpu", batch=16
    )
    for line, made in zip(lines, greedy.translate(lines), strict=True):
        source = torch.tensor(greedy.codec.source_ids(line))
        yield Replay(network, source), [*(target.index(token) for token in made.tokens), target.eos]


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.trees", description="Replay trees of drafts.")
    parser.add_argument("pair", help="a bundle whose drafter has a sequential head")
    parser.add_argument("source", help="raw text, a sentence a line")
    parser.add_argument("--sentences", type=int, default=200, help="from its beginning")
    parser.add_argument("--sizes", type=int, nargs="+", default=(4, 6, 8, 12, 16), help="nodes")
    parser.add_argument("--branches", type=int, default=5, help="children of a node")
    args = parser.parse_args(argv)
    return run_command(parser.prog, lambda: _run(args), False, "interrupted")


@torch.inference_mode()
def _run(args: argparse.Namespace) -> None:
    lines = Path(args.source).read_text(encoding="utf-8").splitlines()[: args.sentences]
    found = list(replays(Pair.of(Path(args.pair), None, None), lines))
    tokens = sum(len(output) for _, output in found)
    columns: Columns = {"nodes": str}
    for title, branches in (("chain", 1), ("tree", args.branches)):

        def tokens_a_round(size: int, branches: int = branches) -> str:
            rounds = sum(replay.num_rounds(output, size, branches) for replay, output in found)
            return f"{tokens / rounds:.2f}"

        columns = {**columns, title: tokens_a_round}
    print(table(columns, args.sizes))


if __name__ == "__main__":
    sys.exit(main())
