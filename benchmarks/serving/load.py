"""Load test of specdec-serve: latency and tokens a second by concurrency, and correct answers.

    python -m benchmarks.serving.load FOLDER -s en -t de --texts FILE --requests 500

starts a server for each mode (speculation on, off, adaptive), sends it the texts from 1 to 64
clients at once, and a mixed load at the end: clients that hang up or are killed, bodies too large
or not JSON. Every answer is compared with the plain decoding of the same text in this process;
afterwards the server must be empty and its metrics agree with the counts here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.serving.server import serving, wait_until_idle
from benchmarks.serving.traffic import Tally, Traffic
from specdec_plugins.app.comparison import markdown
from specdec_plugins.app.exactness import NEAR_TIE, logit_gap
from specdec_plugins.serving.loading import ModelOptions, load_model
from specdec_plugins.serving.local import LocalTranslator
from specdec_plugins.serving.model import ServedModel
from specdec_plugins.serving.planning import Options, make_plan
from specdec_plugins.serving.settings import ServerSettings

MODES: dict[str, tuple[str, ...]] = {
    "on": (),
    "off": ("--drafter", "none"),
    "adaptive": ("--schedule", "adaptive"),
}
HEADER = ("mode", "clients", "requests", "p50 s", "p95 s", "p99 s", "tokens/s", "tokens a round")


@dataclass
class Result:
    """One run of one mode at one concurrency."""

    mode: str
    concurrency: int
    num_requests: int
    mixed: bool
    p50: float
    p95: float
    p99: float
    tokens_per_second: float
    tokens_per_round: float
    kinds: dict[str, int]
    codes: dict[int, int]
    retries: int
    differing: list[str] = field(default_factory=list)  # near-ties
    faults: list[str] = field(default_factory=list)

    def row(self) -> list[str]:
        figures = (self.p50, self.p95, self.p99)
        mode = f"{self.mode}, mixed" if self.mixed else self.mode
        return [
            mode,
            str(self.concurrency),
            str(self.num_requests),
            *(f"{figure:.3f}" for figure in figures),
            f"{self.tokens_per_second:.0f}",
            f"{self.tokens_per_round:.2f}",
        ]


class Reference:
    """The plain decoding of every text, one after the other: right answers, and the baseline."""

    def __init__(self, model: ServedModel, texts: Sequence[str]) -> None:
        self._model = model
        self._settings = ServerSettings()
        self.texts = texts
        plain = LocalTranslator(model, self._settings, Options(use_drafter=False))
        begin = time.perf_counter()
        self.answers = [plain.translate([text])[0] for text in texts]
        self.seconds = time.perf_counter() - begin
        self.num_tokens = plain.num_tokens

    def gap(self, index: int) -> float:
        """The smallest gap of the two best logits along the plain decoding of a text."""
        options = Options(use_drafter=False)
        plan = make_plan([self.texts[index]], options, self._model, self._settings)
        smallest = math.inf
        for request, result in zip(
            plan.requests,
            LocalTranslator(self._model, self._settings, options).decode(plan),
            strict=True,
        ):
            for end in range(len(result.token_ids)):
                gap = logit_gap(self._model.verifier, request, result.token_ids[:end])
                smallest = min(smallest, gap)
        return smallest


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def measure(
    port: int, reference: Reference, mode: str, num_requests: int, concurrency: int, mixed: bool
) -> Result:
    """Send the load, wait until the server is empty, compare answers and counts."""
    before = wait_until_idle(port)
    traffic = Traffic(port, reference.texts, ServerSettings().max_body)
    tally = asyncio.run(traffic.run(num_requests, concurrency, mixed))
    after = wait_until_idle(port)

    def change(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    ties, wrong = compare(reference, tally)
    faults = [*tally.faults, *wrong]
    for code in {*tally.codes} - {499}:
        counted = change(f"specdec_requests_total:{code}")
        # An answer may have been on its way to a client that hung up: it is counted there alone.
        if counted < tally.codes[code] or (not mixed and counted != tally.codes[code]):
            faults.append(f"metrics count {counted:.0f} answers {code}, clients {tally.codes}")
    return Result(
        mode=mode,
        concurrency=concurrency,
        num_requests=num_requests,
        mixed=mixed,
        p50=percentile(tally.latencies, 0.50),
        p95=percentile(tally.latencies, 0.95),
        p99=percentile(tally.latencies, 0.99),
        tokens_per_second=change("specdec_tokens_total") / tally.seconds,
        tokens_per_round=change("specdec_tokens_total") / max(1.0, change("specdec_rounds_total")),
        kinds=dict(tally.kinds),
        codes=dict(tally.codes),
        retries=tally.retries,
        differing=ties,
        faults=faults,
    )


def compare(reference: Reference, tally: Tally) -> tuple[list[str], list[str]]:
    """Answers that differ from the plain decoding: near-ties, and faults."""
    ties: list[str] = []
    faults: list[str] = []
    for index in sorted({i for i, text in tally.answers if text != reference.answers[i]}):
        gap = reference.gap(index)
        said = f"text {index}: differs; smallest gap of its two best logits {gap:.1e}"
        (ties if gap < NEAR_TIE else faults).append(said)
    if len(tally.answers) != tally.kinds["good"]:
        faults.append(f"{tally.kinds['good']} good requests, {len(tally.answers)} answers")
    return ties, faults


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.serving.load", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("model", metavar="FOLDER")
    add("--source-lang", "-s", required=True)
    add("--target-lang", "-t", required=True)
    add("--texts", required=True, metavar="FILE", help="one text a line")
    add("--max-texts", type=int, default=1000, help="of the file, from its start")
    add("--requests", type=int, default=500, help="for each mode and concurrency")
    add("--concurrency", default="1,2,4,8,16,32,64")
    add("--modes", default=",".join(MODES), help="of: " + ", ".join(MODES))
    add("--mixed", type=int, default=0, help="requests of a mixed load at the highest concurrency")
    add("--threads", type=int, default=torch.get_num_threads(), help="of the server")
    add("--device", default=None)
    add("--output", metavar="FILE", help="JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    lines = Path(args.texts).read_text(encoding="utf-8").split("\n")
    texts = [line for line in lines if line.strip()][: args.max_texts]
    torch.set_num_threads(args.threads)
    options = ModelOptions(
        args.model,
        source_lang=args.source_lang,
        target_lang=args.target_lang,
        device=args.device,
    )
    print(f"plain decoding of {len(texts)} texts, one by one", file=sys.stderr)
    reference = Reference(load_model(options), texts)
    results = [
        result for mode in args.modes.split(",") for result in run_mode(mode, args, reference)
    ]
    baseline = reference.num_tokens / reference.seconds
    each = reference.seconds / len(texts)
    print(f"plain loop: {baseline:.0f} tokens/s, {each:.3f} s a text\n")
    print(markdown(HEADER, [result.row() for result in results]))
    for result in results:
        name = f"{result.mode}, {result.concurrency} clients"
        for line in result.differing:
            print(f"near-tie ({name}): {line}")
        for line in result.faults:
            print(f"FAULT ({name}): {line}")
    if args.output:
        record = {"plain_tokens_per_second": baseline, "results": [vars(r) for r in results]}
        Path(args.output).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(any(result.faults for result in results))


def run_mode(mode: str, args: argparse.Namespace, reference: Reference) -> list[Result]:
    """All concurrencies of one mode, against one server."""
    flags = [args.model, "-s", args.source_lang, "-t", args.target_lang, *MODES[mode]]
    flags += ["--device", args.device] if args.device else []
    loads = [(int(c), args.requests, False) for c in args.concurrency.split(",")]
    if args.mixed:
        loads.append((max(concurrency for concurrency, _, _ in loads), args.mixed, True))
    results = []
    with serving(flags, args.threads) as port:
        for concurrency, num_requests, mixed in loads:
            print(f"{mode}: {num_requests} requests, {concurrency} clients", file=sys.stderr)
            results.append(measure(port, reference, mode, num_requests, concurrency, mixed))
    return results


if __name__ == "__main__":
    sys.exit(main())
