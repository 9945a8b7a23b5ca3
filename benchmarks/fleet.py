"""How many cores a load takes: rounds of a server, replayed from what they cost on this machine.

First it measures, for batches of 1 to 64 rows in 8 bits on one thread, what a round costs with and
without drafts, and what it costs that sentences join. Then it simulates engines of one core each,
which decode as `specdec serve` does. Sentences arrive at random (Poisson) and go to the engine that
has the fewest. An engine takes in all that wait, up to 64 rows, and does a round for all of them;
it drafts in batches of at most as many rows as the bundle says (`few_rows`). Clients that send a
sentence whenever they have the last one are simulated, too, to compare with a real server.
"""

from __future__ import annotations

import heapq
import random
import statistics
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.reports import ROOT, Columns, command, describe, in_words, number, table, write
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.app.types import Sentence
from specdec_plugins.corpus import scoring
from specdec_plugins.corpus.cli import CommandLine, option
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.requests import Request
from specdec_plugins.formats.bundle import read_bundle
from specdec_plugins.formats.output import check_output

SIZES = (1, 2, 4, 8, 16, 32, 64)  # rows of a batch, as many as a server decodes at once
RATES = (10, 1000, 100_000)  # sentences a second
BOUNDS = (0.05, 0.1, 0.25, 1.0)  # seconds, of the 99th percentile
PAIR = "data/models/en-de-small"
MOST_ENGINES = 16  # that are simulated; of more, each does as well as with these


@dataclass(frozen=True)
class Text:
    """What decoding took for one sentence."""

    words: int
    tokens: int
    emitted: Sequence[int]  # of each round with drafts


@dataclass(frozen=True)
class Costs:
    """Seconds, by `SIZES`."""

    plain: Sequence[float]  # a round without drafts
    drafted: Sequence[float]
    joining: Sequence[float]  # of sentences that join together
    most_rows: int  # of a batch that drafts


def between(costs: Sequence[float], rows: int) -> float:
    """The cost of any number of rows up to the largest of `SIZES`."""
    above = bisect_left(SIZES, rows)
    if SIZES[above] == rows:
        return costs[above]
    share = (rows - SIZES[above - 1]) / (SIZES[above] - SIZES[above - 1])
    return costs[above - 1] * (1 - share) + costs[above] * share


@dataclass
class Row:
    text: Text
    arrived: float
    done: int = 0  # tokens
    rounds: int = 0  # with drafts

    def advance(self, drafts: bool) -> bool:
        """One round; returns whether it was the last."""
        if drafts:
            self.done += self.text.emitted[self.rounds % len(self.text.emitted)]
            self.rounds += 1
        else:
            self.done += 1
        return self.done >= self.text.tokens


@dataclass
class Engine:
    costs: Costs
    waiting: deque[Row] = field(default_factory=deque)
    rows: list[Row] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.rows)

    def round(self) -> tuple[float, list[Row]]:
        """Seconds of the next round, and the rows that it ends."""
        joining = min(len(self.waiting), SIZES[-1] - len(self.rows))
        self.rows += [self.waiting.popleft() for _ in range(joining)]
        drafts = len(self.rows) <= self.costs.most_rows
        costs = self.costs.drafted if drafts else self.costs.plain
        seconds = between(costs, len(self.rows))
        seconds += between(self.costs.joining, joining) if joining else 0
        ended = [row for row in self.rows if row.advance(drafts)]
        self.rows = [row for row in self.rows if row.done < row.text.tokens]
        return seconds, ended


@dataclass(frozen=True)
class Load:
    """What a simulation showed: seconds of each answered sentence, and of all of it."""

    latencies: Sequence[float]
    seconds: float
    words: int
    tokens: int

    def percentile(self, share: float) -> float:
        return sorted(self.latencies)[int(share * (len(self.latencies) - 1))]


def simulate(
    costs: Costs, texts: Sequence[Text], num_engines: int, rate: float, clients: int, count: int
) -> Load:
    """``count`` sentences, at ``rate`` a second or, where that is 0, from ``clients`` in a loop."""
    draw = random.Random(1)
    engines = [Engine(costs) for _ in range(num_engines)]
    # Time, then an engine whose round ends, or -1 for an arrival.
    events = [(draw.expovariate(rate) if rate else 0.0, -1) for _ in range(clients or 1)]
    rounds: dict[int, list[Row]] = {}  # the rows that a running round ends
    latencies: list[float] = []
    words = tokens = 0
    now = 0.0
    while len(latencies) < count:
        now, number = heapq.heappop(events)
        if number < 0:
            number = min(range(num_engines), key=lambda index: len(engines[index]))
            engines[number].waiting.append(Row(draw.choice(texts), now))
            if rate:
                heapq.heappush(events, (now + draw.expovariate(rate), -1))
        else:
            for row in rounds.pop(number):
                latencies.append(now - row.arrived)
                words, tokens = words + row.text.words, tokens + row.text.tokens
                if not rate:
                    heapq.heappush(events, (now, -1))
        if number not in rounds and len(engines[number]):
            seconds, rounds[number] = engines[number].round()
            heapq.heappush(events, (now + seconds, number))
    return Load(latencies, now, words, tokens)


def most_per_core(costs: Costs, texts: Sequence[Text], num_engines: int, bound: float) -> float:
    """Sentences a second and engine of which 99 % take no longer than ``bound``; 0 = none."""
    low, high = 0.0, SIZES[-1] / costs.joining[-1]
    for _ in range(8):
        rate = (low + high) / 2
        found = simulate(costs, texts, num_engines, rate * num_engines, 0, 1500 + 200 * num_engines)
        low, high = (rate, high) if found.percentile(0.99) <= bound else (low, rate)
    return low


def cores(costs: Costs, texts: Sequence[Text], rate: float, bound: float) -> tuple[int, float]:
    """How many engines a load takes, and how much each then bears at most; (0, 0) = no number."""
    num_engines = 1
    while True:
        bears = most_per_core(costs, texts, min(num_engines, MOST_ENGINES), bound)
        wanted = -int(-rate // bears) if bears else 0
        if wanted <= num_engines or num_engines >= MOST_ENGINES:
            return max(wanted, 0), bears
        num_engines = min(wanted, MOST_ENGINES)


def measure(lines: Sequence[str], pair: Path) -> tuple[Costs, list[Text]]:
    """What rounds cost here, and what decoding took for each sentence."""
    most_rows = read_bundle(pair).defaults.get("few_rows", 1)
    load = partial(SpeculativeTranslator.from_pretrained, str(pair), dtype="int8", scores=False)
    fast, slow = load(), load(strategy="AR")
    sentences = [Sentence(number, line) for number, line in enumerate(lines, start=1)]
    requests = [one for one in map(fast.prepare, sentences) if one]
    texts = []
    for request in requests:
        (result,) = fast.decoder.run([request])
        emitted = result.emitted_per_round
        texts.append(Text(len(lines[int(request.id) - 1].split()), sum(emitted), emitted))
    found = [[timed(one, requests, size) for size in SIZES] for one in (slow, fast)]
    (plain, joining), (drafted, _) = (zip(*each, strict=True) for each in found)
    return Costs(plain, drafted, joining, most_rows), texts


def timed(
    translator: SpeculativeTranslator, requests: Sequence[Request], size: int
) -> tuple[float, float]:
    """Median seconds of a round of ``size`` rows, and of as many that join, of some batches."""
    decoder, draw = translator.decoder, random.Random(size)
    assert isinstance(decoder, SpeculativeDecoder)
    decoder.config = replace(decoder.config, max_rows=size)
    rounds, joins = [], []
    for _ in range(-(-64 // size) + 2):
        batch = [replace(one, id=str(i)) for i, one in enumerate(draw.choices(requests, k=size))]
        seconds = []
        with decoder.session(batch) as session:
            while len(session) == size:
                began = time.perf_counter()
                session.step()
                seconds.append(time.perf_counter() - began)
        rounds += seconds[1:]
        joins.append(seconds[0])
    middle = statistics.median(rounds)
    return middle, max(0.0, statistics.median(joins) - middle)


def page(costs: Costs, texts: Sequence[Text]) -> str:
    """Tables: the costs, what a core bears, the cores that loads take, clients in a loop."""
    without = replace(costs, most_rows=0)
    milliseconds = {
        "rows": lambda i: str(SIZES[i]),
        "round, ms": lambda i: number(1000 * costs.plain[i]),
        "with drafts": lambda i: number(1000 * costs.drafted[i]),
        "joining": lambda i: number(1000 * costs.joining[i]),
    }
    words = statistics.mean(text.words for text in texts)

    def told(rate: float, bound: float) -> str:
        num_cores, bears = cores(costs, texts, rate, bound)
        return f"{num_cores:,} ({bears * words:.0f})" if num_cores else "-"

    columns: Columns = {
        "99 % within, s": lambda bound: f"{bound:g}",
        **{f"{rate:,} a second": partial(told, rate) for rate in RATES},
        "a core alone": lambda bound: f"{most_per_core(costs, texts, 1, bound) * words:.0f}",
        "without drafts": lambda bound: f"{most_per_core(without, texts, 1, bound) * words:.0f}",
    }
    loops = {n: simulate(costs, texts, 1, 0, n, 2000) for n in (1, 8, 64)}
    clients: Columns = {
        "clients": str,
        "tokens a second": lambda n: f"{loops[n].tokens / loops[n].seconds:.0f}",
        "p50, ms": lambda n: number(1000 * loops[n].percentile(0.5)),
        "p99, ms": lambda n: number(1000 * loops[n].percentile(0.99)),
    }
    return "\n\n".join(
        [table(milliseconds, range(len(SIZES))), table(columns, BOUNDS), table(clients, loops)]
    )


@dataclass(kw_only=True)
class FleetOptions:
    """Say how many cores a load takes, by replaying what rounds cost on this machine."""

    # fmt: off
    pair: Path = option(ROOT / PAIR, f"bundle (default: {PAIR} of this project)", positional=True)
    input: Path = option(MISSING, "sentences, one a line")
    output: Path = option(MISSING, "prefix of the record and the page")
    # fmt: on


def main(options: FleetOptions) -> None:
    check_output(f"{options.output}.json", "--output", inputs=[options.input], replaced=True)
    torch.set_num_threads(1)
    lines = [line for line in scoring.read_lines(options.input) if line.strip()]
    costs, texts = measure(lines, options.pair)
    facts = describe("cpu")
    told = [f"`{command()}`", in_words(facts), page(costs, texts)]
    record = {"machine": facts, "costs": asdict(costs), "texts": list(map(asdict, texts))}
    write(str(options.output), record, "\n\n".join(["# Cores for a load", *told]))


COMMAND = CommandLine("specdec bench fleet", main, FleetOptions)
