"""Load test of specdec-serve: latency and tokens a second by concurrency, and correct answers.

    python -m benchmarks.serving.load FOLDER -s en -t de --texts FILE --seconds 14 --output NAME
    python -m benchmarks.serving.load FOLDER -s en -t de --texts FILE --seconds 0 --mixed 10000

starts a server for each mode (speculation on, off, adaptive). From 1 to 64 concurrent clients send
the texts to the servers in turns, for --seconds at each concurrency. --mixed adds a load over all
routes, with clients that hang up or are killed and bodies that are too large or not JSON. Every
answer is compared with the plain decoding of its text in this process. Afterwards the server must
be empty, its log must have every request once, and its metrics must agree with the counts here.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from benchmarks.measure import interleave
from benchmarks.reports import Columns, Record, describe, in_words, spread, table, write
from benchmarks.serving.reference import Reference, balance
from benchmarks.serving.server import Server, serving
from benchmarks.serving.traffic import Tally, Traffic
from specdec_plugins.app.report import percentile
from specdec_plugins.corpus import cli
from specdec_plugins.formats.output import check_output
from specdec_plugins.serving.model import load_model
from specdec_plugins.serving.settings import ModelOptions

MODES: dict[str, tuple[str, ...]] = {
    "on": (),
    "off": ("--drafter", "none"),
    "adaptive": ("--schedule", "adaptive"),
}


@dataclass(frozen=True)
class Load:
    """The load of one run: requests for `seconds`, or `mixed` requests of all kinds."""

    mode: str
    concurrency: int
    seconds: float = 0.0
    mixed: int = 0
    repeat: int = 0

    @property
    def name(self) -> str:
        """Unique among the loads of one server."""
        again = f"-{self.repeat}" if self.repeat else ""
        return f"{self.mode}-{self.concurrency}{'-mixed' if self.mixed else ''}{again}"


WARM_UP = Load("warm", concurrency=8, seconds=2.0)  # not counted


def send(server: Server, reference: Reference, load: Load) -> Tally:
    target_lang = reference.model.target_lang or ""
    traffic = Traffic(server.port, load.name, reference.texts, target_lang)
    if load.mixed:
        return asyncio.run(traffic.run_mixed(load.mixed, load.concurrency))
    return asyncio.run(traffic.run_for(load.seconds, load.concurrency))


def measure(server: Server, reference: Reference, load: Load) -> Record:
    """Send the load, wait until the server is empty, compare answers and counts."""
    before = server.wait_until_idle()
    tally = send(server, reference, load)
    after = server.wait_until_idle()
    change = {name: value - before.get(name, 0.0) for name, value in after.items()}
    near_ties, faults = reference.compare(tally)
    logged = server.logged(load.name)
    figures, wrong = balance(reference, tally, change, logged)
    num_tokens = change.get("specdec_tokens_total", 0.0)
    return {
        "load": asdict(load),
        "num_requests": sum(tally.kinds.values()),
        "seconds": tally.seconds,
        **{f"p{n}": percentile(tally.latencies, n / 100) for n in (50, 95, 99)},
        "tokens_per_second": num_tokens / tally.seconds,
        "tokens_per_round": num_tokens / max(1.0, change.get("specdec_rounds_total", 0.0)),
        "kinds": dict(tally.kinds),
        "codes": dict(Counter(chain.from_iterable(logged.values()))),
        "retries": tally.retries,
        "figures": figures,
        "near_ties": near_ties,
        "faults": [*tally.faults, *faults, *wrong],
    }


def run(args: argparse.Namespace, reference: Reference) -> list[Record]:
    """All loads of each mode; the servers of all modes run throughout and take turns."""
    given = {"-s": args.source_lang, "-t": args.target_lang, "--device": args.device}
    flags = [word for flag, value in given.items() if value for word in (flag, value)]
    flags += [args.model] if args.model else []
    numbers, repeats = list(map(int, args.concurrency.split(","))), range(args.repeats)
    loads = [Load("", number, args.seconds, repeat=n) for n in repeats for number in numbers]
    loads = loads if args.seconds > 0 else []
    if args.mixed:
        loads.append(Load("", max(numbers), mixed=args.mixed))
    with ExitStack() as stack:
        servers = {
            mode: stack.enter_context(serving([*flags, *MODES[mode]], args.threads))
            for mode in args.modes.split(",")
        }
        for server in servers.values():
            send(server, reference, WARM_UP)

        def turn(mode: str, load: Load) -> Record:
            return measure(servers[mode], reference, replace(load, mode=mode))

        calls = [partial(turn, mode) for mode in servers]
        made = interleave(calls, loads, count=lambda _: 1, unit="load")
        for server, [results] in zip(servers.values(), made, strict=True):
            results[-1]["faults"] += [f"in the log: {line}" for line in server.errors()]
    return [result for [results] in made for result in results]


def report(
    output: str | None, reference: Reference, results: Sequence[Record], arguments: Sequence[str]
) -> None:
    """Print the page; with `output`, write it and the record."""
    device = reference.model.decoder.verifier.device.type
    facts = {**describe(device), "threads": torch.get_num_threads()}
    mixed = [result for result in results if result["load"]["mixed"]]
    timed = [result for result in results if not result["load"]["mixed"]]
    page = "\n\n".join(
        [
            "# Load test of specdec-serve",
            f"`python -m benchmarks.serving.load {shlex.join(arguments)}`",
            f"{in_words(facts)}.",
            "A plain loop over the same model, one sentence after the other in one process: "
            f"{reference.tokens_per_second:.0f} tokens/s, "
            f"{reference.seconds / len(reference.texts):.4f} s a text, "
            f"{len(reference.texts)} texts.",
            *([timed_table(timed, reference.tokens_per_second)] if timed else []),
            *map(_mixed, mixed),
            verdict(results),
        ]
    )
    print(page)
    if output is not None:
        plain = {"texts": len(reference.texts), "seconds": reference.seconds}
        record = {
            "arguments": list(arguments),
            "machine": facts,
            "plain_loop": {**plain, "tokens_per_second": reference.tokens_per_second},
            "results": list(results),
        }
        write(output, record, page)


def timed_table(results: Sequence[Record], plain: float) -> str:
    """Medians of each mode's repetitions, by number of clients; plain: tokens/s of the loop."""
    groups: dict[tuple[str, int], list[Record]] = {}
    for result in results:
        key = (result["load"]["mode"], result["load"]["concurrency"])
        groups.setdefault(key, []).append(result)

    def middle(name: str, group: Sequence[Record]) -> float:
        return statistics.median(result[name] for result in group)

    columns: Columns = {
        "speculation": lambda group: group[0]["load"]["mode"],
        "clients": lambda group: str(group[0]["load"]["concurrency"]),
        "requests": lambda group: str(sum(result["num_requests"] for result in group)),
        "p50 s": lambda group: f"{middle('p50', group):.3f}",
        "p95 s": lambda group: f"{middle('p95', group):.3f}",
        "p99 s": lambda group: f"{middle('p99', group):.3f}",
        "tokens/s": lambda group: spread([r["tokens_per_second"] for r in group], "", 0),
        "against the plain loop": lambda group: (
            f"{middle('tokens_per_second', group) / plain:.2f}x"
        ),
        "tokens a round": lambda group: f"{middle('tokens_per_round', group):.2f}",
    }
    return table(columns, groups.values())


def _mixed(result: Record) -> str:
    load = result["load"]
    kinds = ", ".join(f"{num} {kind}" for kind, num in sorted(result["kinds"].items()))
    codes = ", ".join(f"{num} with status {code}" for code, num in sorted(result["codes"].items()))
    figures = "".join(f"\n* {figure}" for figure in result["figures"])
    return (
        f"## {result['num_requests']} mixed requests, {load['concurrency']} clients, "
        f"speculation {load['mode']}\n\n"
        f"* Sent: {kinds}; {result['retries']} retried after 429.\n"
        f"* In the log: {codes}. Time {result['seconds']:.0f} s; latency p50 {result['p50']:.3f}, "
        f"p95 {result['p95']:.3f}, p99 {result['p99']:.3f} s.{figures}"
    )


def verdict(results: Sequence[Record]) -> str:
    near_ties = {line for result in results for line in result["near_ties"]}
    faults = [
        f"* FAULT ({Load(**r['load']).name}): {line}" for r in results for line in r["faults"]
    ]
    told = "\n".join(faults) or (
        "No fault: every good request was answered, every answer equals the plain decoding of its "
        "text, no row was left in the server, the log has every answer once under its id, and the "
        "metrics agree with the clients' counts. Ranges allow for work for clients that left, and "
        "for answers that do not report their rounds."
    )
    ties = "; ".join(sorted(near_ties) or ["none"])
    return f"{told}\n\nNear-ties (two best logits less than 1e-4 apart): {ties}"


def reference_of(args: argparse.Namespace) -> Reference:
    """The right answers to the texts, by the same model as the servers'."""
    lines = args.texts.read_text(encoding="utf-8").split("\n")
    texts = [line for line in lines if line.strip()][: args.max_texts]
    torch.set_num_threads(args.threads)
    options = ModelOptions(
        args.model, source_lang=args.source_lang, target_lang=args.target_lang, device=args.device
    )
    print(f"plain decoding of {len(texts)} texts, one by one", file=sys.stderr)
    return Reference(load_model(options), texts)


def main(args: argparse.Namespace) -> int:
    """Exit status: 0 without faults, 1 with faults."""
    if args.output is not None:
        check_output(f"{args.output}.json", "--output", inputs=(args.texts,))
    reference = reference_of(args)
    results = run(args, reference)
    report(args.output, reference, results, sys.argv[1:])
    return int(any(result["faults"] for result in results))


COMMAND = cli.CommandLine(
    "python -m benchmarks.serving.load",
    "Load test of specdec-serve: latency and tokens a second by concurrency, and correct answers.",
    main,
    [
        ("model", cli.OPTIONAL, str, "folder of the pair (default: the bundled pair)"),
        ("-s --source-lang", None, str, "source language of the pair"),
        ("-t --target-lang", None, str, "target language of the pair"),
        ("--texts", cli.REQUIRED, Path, "one text a line"),
        ("--max-texts", 1000, int, "texts to use, from the start of the file"),
        ("--seconds", 14, float, "seconds for each mode and concurrency; 0 = no table"),
        ("--repeats", 1, cli.at_least(1), "repetitions of all loads; medians are reported"),
        ("--concurrency", "1,2,4,8,16,32,64", str, "numbers of concurrent clients"),
        ("--modes", ",".join(MODES), str, "modes to run"),
        ("--mixed", 0, int, "requests of a mixed load at the highest concurrency"),
        ("--threads", torch.get_num_threads(), int, "threads of the server"),
        ("--device", None, str, "device that the server computes on"),
        ("--output", None, str, "write OUTPUT.json and OUTPUT.md"),
    ],
    interrupted="interrupted; nothing was written.",
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
