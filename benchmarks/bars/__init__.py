"""Every bar for the project's speed, measured in one run and written as one page.

    python -m benchmarks.bars --output benchmarks/results/bars

On a machine unlike the one that the bars were set on, the criterion is the improvement over an
older commit, measured in the same run: `--before CHECKOUT`, a checkout of that commit with its
kernels built. The same command resumes an interrupted run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import compare
from benchmarks.pair import Pair
from benchmarks.reports import (
    Columns,
    Record,
    command,
    commit_of,
    describe,
    in_words,
    ratios,
    spread,
    table,
)
from benchmarks.results import Results, speed_ups, table_of
from benchmarks.run import grown_folder, run
from benchmarks.serving import load
from benchmarks.shapes import grow, grown_size
from benchmarks.systems import EXACT, GREEDY, Options, System
from specdec_plugins.app import convert
from specdec_plugins.app.loading import settings_from_files
from specdec_plugins.corpus import cli
from specdec_plugins.corpus.reading import BadLines, ParallelFile, read_pairs
from specdec_plugins.corpus.resume import Log
from specdec_plugins.decoding.networks.cpu.ops import best_set
from specdec_plugins.errors import require
from specdec_plugins.formats.bundle import read_bundle
from specdec_plugins.formats.output import check_output

THREADS = (1, 2)
OWN, GROWN, HINTS, SERVER = "bundled size", "grown", "hints", "server"  # what is measured
SIZES = (GROWN, OWN)
BEFORE_BLOCK = 4  # tokens; the older commit's best in both precisions
ENOUGH = 1.5  # required factor over the older commit, on a machine of another kind
BLOCK, HINT = "block", "hint"
WAYS = [{"name": BLOCK}, {"name": HINT, "drafter": "hint", "block_size": 12}]
# Runs, one precision after the other, since all systems of one are in memory: bar, size, precision,
# and the wanted speed of exact decoding relative to our greedy decoding.
RUNS = (
    ("1", GROWN, "float32", 2.2),
    ("2", GROWN, "int8", 1.6),
    ("3", OWN, "float32", 1.5),
    ("3", OWN, "int8", 1.25),
)
AGAINST_PEER = (("float32", 4.0), ("int8", 3.0))
# Pages with the profile of a missed bar, and what was tried.
PAGES = {
    "1": "sequential-head.md",
    "2": "sequential-head.md",
    "3": "sequential-head.md",
    "4": "kernels.md",
    "6": "head-ablation.md",
    "7": "hints.md",
    "8": "adaptive.md",
}
_TRAINING = "recorded: [head-ablation.md](head-ablation.md#head-or-bigrams)"


class Bar(NamedTuple):
    """One line of the table."""

    number: str
    what: str
    wanted: float
    values: Sequence[float]  # by repetition; empty = not measured in this run
    before: Sequence[float] = ()  # the same of the older commit
    at_most: bool = False  # a share, for which `wanted` is an upper limit
    told: str = ""  # in place of a verdict

    @property
    def against_before(self) -> list[float]:
        """How much better than the older commit, by repetition."""
        pair = (self.before, self.values) if self.at_most else (self.values, self.before)
        return ratios(*pair) if self.before else []

    def factor(self, absolute: bool) -> float:
        """The reached share of the criterion; the bar is met at 1 or more."""
        if self.before and not absolute:
            return statistics.median(self.against_before) / ENOUGH
        middle = statistics.median(self.values)
        return self.wanted / middle if self.at_most else middle / self.wanted

    def verdict(self, absolute: bool) -> str:
        if not self.values:
            return self.told or "not measured"
        factor = self.factor(absolute)
        if factor >= 1:
            return "met"
        anyway = ", though the wanted value is met" if self.factor(True) >= 1 else ""
        return f"**missed**: {factor:.2f} of the bar{anyway}"


def systems(
    dtype: str, with_peer: bool, with_before: bool, block_sizes: Sequence[int]
) -> list[System]:
    """Greedy and exact of ours and of the older commit, and CTranslate2 greedy, by threads."""
    found = []
    for threads in THREADS:
        fewer = {"threads": threads} if threads < max(THREADS) else {}
        if with_peer:
            found.append(System("ctranslate2", GREEDY, dtype, fewer))
        found.append(System("ours", GREEDY, dtype, fewer))
        for size in ({}, *({"k": size} for size in block_sizes)):
            found.append(System("ours", EXACT, dtype, {**size, **fewer}))
        if with_before:
            found.append(System("before", GREEDY, dtype, fewer))
            options = {"k": BEFORE_BLOCK, **fewer}
            found.append(System("before", EXACT, dtype, options))
    return found


# --- measuring ------------------------------------------------------------------------------------


def parts(args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """The measurements, in order."""
    options = Options(
        *(f"{args.work}/bars", args.pair, args.test, args.sentences),
        work=args.work,
        repeats=args.repeats,
        threads=(max(THREADS),),
    )
    grown = Options(**{**vars(options), "grow": args.grow})
    sizes = {GROWN: (grown, True), OWN: (options, False)}

    def decode(size: str, dtype: str) -> Record:
        options, larger = sizes[size]
        chosen = systems(dtype, larger, args.before is not None, args.block_sizes)
        return run(options, chosen, older(args, larger))

    found: dict[str, Callable[[], Any]] = {
        f"{size}, {dtype}": partial(decode, size, dtype) for _, size, dtype, _ in RUNS
    }
    return {**found, HINTS: lambda: hints(args, grown_folder(grown)), SERVER: lambda: server(args)}


def older(args: argparse.Namespace, grown: bool) -> tuple[str, Mapping[str, Any]]:
    """The older commit for `Workload.before`, with its own pair or `--before-pair`.

    A grown or given pair may be in a format that it cannot read, so the pair is written as fairseq
    checkpoints, which every commit reads. A grown pair's verifier then has the same weights as
    ours.
    """
    if args.before is None:
        return "", {}
    folder = Path(args.before_pair or Path(args.before, args.pair)).resolve()
    if not grown and not args.before_pair:
        return args.before, {"data": str(folder)}
    pair = Pair.of(folder, None, None)
    both = pair.dictionaries()
    if grown:
        folder = Path(args.work, "before").resolve()
        grow(pair, grown_size(args.grow), folder)
    written = Path(args.work, "before.grown" if grown else "before.own").resolve()
    status = convert.main(["fairseq", str(folder), "--output", str(written), "--force"])
    require(status == 0, f"{folder}: could not be converted for {args.before}.")
    languages = {"source_lang": both.source_lang, "target_lang": both.target_lang}
    return args.before, settings_from_files(written, {"data": str(written), **languages})


def hints(args: argparse.Namespace, folder: Path) -> list[Record]:
    """Drafter `hint` beside `block` on one thread, by hint and precision."""
    found = []
    ways = Path(args.work, "ways.json")
    ways.write_text(json.dumps(WAYS), encoding="utf-8")
    torch.set_num_threads(1)
    for hint in args.hints[1:]:
        for dtype, _ in AGAINST_PEER:
            flags = {
                **{"ways": ways, "repeats": args.repeats, "threads": 1, "chunk": 5},
                **{"dtype": dtype, "input-path": args.hints[0], "hint-file": hint},
                **{"sentences": min(args.sentences or args.hinted, args.hinted)},
            }
            words = [f"--{flag}={value}" for flag, value in flags.items()]
            given = compare.comparison_parser().parse_known_args([str(folder), "--cpu", *words])
            rows = {row["name"]: row for row in compare.run(*given)}
            found.append({"hint": Path(hint).stem, "dtype": dtype, "rows": rows})
    return found


def server(args: argparse.Namespace) -> Record:
    """Speculation off and adaptive, by number of clients."""
    texts = Path(args.work, "texts.txt")
    pairs = read_pairs(ParallelFile.parse(args.test, columns=(1, 2)), BadLines())
    lines = [source for source, _ in islice(pairs, args.sentences)]
    texts.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    flags = {"texts": texts, "seconds": args.seconds, "repeats": args.repeats, "threads": 1}
    flags |= {"modes": "off,adaptive", "concurrency": ",".join(map(str, args.clients))}
    given = load.COMMAND.parse(args.pair, *(f"--{flag}={value}" for flag, value in flags.items()))
    reference = load.reference_of(given)
    results = load.run(given, reference)
    return {"plain": reference.tokens_per_second, "results": results}


# --- reporting ------------------------------------------------------------------------------------


def bars(record: Mapping[str, Any]) -> Iterator[Bar]:
    """All bars, in order; those of parts that are not in the record have no values."""
    runs = {name: Results(found) for name, found in record.items() if name.startswith(SIZES)}
    for bar, size, dtype, wanted in RUNS:
        for threads in THREADS:
            find = partial(_fastest, runs.get(f"{size}, {dtype}"), threads=threads)
            now = speed_ups(find("ours", EXACT), find("ours", GREEDY))
            before = speed_ups(find("before", EXACT), find("before", GREEDY))
            what = f"exact against our greedy, {dtype}, {size}, threads {threads}"
            yield Bar(bar, what, wanted, now, before)
    for dtype, wanted in AGAINST_PEER:
        find = partial(_fastest, runs.get(f"{GROWN}, {dtype}"))
        peer = find("ctranslate2", GREEDY)
        now, before = (speed_ups(find(engine, EXACT), peer) for engine in ("ours", "before"))
        yield Bar("4", f"exact against CTranslate2 greedy, {dtype}, grown", wanted, now, before)
    yield Bar("5", "accepted tokens, head against bigrams", 1.4, (), told=_TRAINING)
    for threads in THREADS:
        find = partial(_fastest, runs.get(f"{GROWN}, int8"), role=EXACT, threads=threads)
        now, before = ((find(engine) or {}).get("drafting", []) for engine in ("ours", "before"))
        what = f"drafting's share of exact decoding, int8, grown, threads {threads}"
        yield Bar("6", what, 0.12, now, before, at_most=True)
    for one in record.get(HINTS) or [{"hint": "any", "dtype": "any precision", "rows": {}}]:
        what = f"hints ({one['hint']}) against the block drafter, {one['dtype']}, grown"
        rows = one["rows"]
        yield Bar(
            "7", what, 1.25, ratios(rows[BLOCK]["total"], rows[HINT]["total"]) if rows else ()
        )
    speeds: dict[int, dict[str, list[float]]] = {}
    for one in record.get(SERVER, {"results": []})["results"]:
        by_mode = speeds.setdefault(one["load"]["concurrency"], {})
        by_mode.setdefault(one["load"]["mode"], []).append(one["tokens_per_second"])
    for clients, by_mode in speeds.items():
        wanted = 1.15 if clients < 8 else 0.98
        what = f"server, adaptive against off, clients {clients}"
        yield Bar("8", what, wanted, ratios(by_mode["adaptive"], by_mode["off"]))


def _fastest(
    results: Results | None, engine: str, role: str, threads: int | None = None
) -> Record | None:
    """An engine's fastest cell on that many threads, or on any; None if it was not measured."""
    rows = [(cell, cell["row"]) for cell in results.cells] if results else []
    found = [
        cell
        for cell, row in rows
        if (row["engine"], row["role"]) == (engine, role)
        and threads in (None, row["options"].get("threads", cell["threads"]))
    ]
    return min(found, key=lambda cell: statistics.median(cell["seconds"]), default=None)


def page(record: Mapping[str, Any]) -> str:
    """The whole report in Markdown."""
    found, absolute = list(bars(record)), bool(record["absolute"])
    before = record["before"] or "an older commit"
    missed = {bar.number for bar in found if bar.values and bar.factor(absolute) < 1}
    links = [f"* {bar}: [{PAGES[bar]}]({PAGES[bar]})" for bar in sorted(missed)]
    beside = f"{ENOUGH} times what {before} reaches in the same run, where that was measured"
    if record.get("before_pair"):
        beside += f", decoding {record['before_pair']}"
    counts = "the wanted value" if absolute or not record["before"] else beside
    columns: Columns = {
        "bar": lambda bar: bar.number,
        "what": lambda bar: bar.what,
        "wanted": lambda bar: ("at most " * bar.at_most) + _shown([bar.wanted], bar.at_most),
        "measured": lambda bar: _shown(bar.values, bar.at_most),
        f"{before} beside it": lambda bar: _shown(bar.before, bar.at_most),
        "better by": lambda bar: _shown(bar.against_before),
        "verdict": lambda bar: bar.verdict(absolute),
    }
    sections = [
        "# The project's speed bars",
        f"`{record['command']}`",
        f"{in_words(record['machine'])}; kernels for {record['instruction_set']}. Pinned cores, "
        "one sentence at a time, exact mode; medians of the repetitions with their range in "
        "brackets, ratios within one repetition. The fastest block size counts; in float32 the "
        f"drafter is in int8. On this machine the bar is {counts}.",
        table(columns, found),
        *(["Missed: where the time goes, and what was tried:", "\n".join(links)] if links else []),
        *(_decodings(name, Results(record[name])) for name in record if name.startswith(SIZES)),
        *_hints_and_server(record),
    ]
    return "\n\n".join(sections)


def _shown(values: Sequence[float], share: bool = False) -> str:
    if not values:
        return ""
    return spread([100 * value for value in values], " %", 0) if share else spread(values)


def _decodings(name: str, results: Results) -> str:
    """Every row of a run, including greedy decoding of both commits."""
    record, shown = results.record, table_of(results, results.settings[0])
    told = (
        f"{record['num_sentences']} sentences, {record['setting']['repeats']} repetitions, two "
        f"threads unless a row names others. Verifier: {record['pair']['verifier']}. Drafter: "
        f"{record['pair']['drafter']}."
    )
    return f"## {name.capitalize()}\n\n{told}\n\n{shown}"


def _hints_and_server(record: Mapping[str, Any]) -> Iterator[str]:
    for one in record.get(HINTS, ()):
        shown = table(compare.COLUMNS, one["rows"].values())
        yield f"## Hints ({one['hint']}), {one['dtype']}\n\nGrown pair, one thread.\n\n{shown}"
    if not record.get(HINTS, ["not reached"]):
        yield "Hints were not measured: `--hints` was not given. The project has no such text."
    if SERVER in record:
        results = record[SERVER]["results"]
        shown = load.timed_table(results, record[SERVER]["plain"])
        yield f"## Server\n\n{shown}\n\n{load.verdict(results)}"


# --- the command ----------------------------------------------------------------------------------


def main(args: argparse.Namespace) -> None:
    """Measure the parts that the log lacks, and write the page after each part."""
    output = Path(f"{args.output}.md")
    check_output(output, "--output", inputs=(*args.test.split(","), *args.hints), replaced=True)
    given = len(args.hints) != 1
    require(given, "--hints: give the sources and at least one file of hints for them.")
    for path in args.hints:
        require(Path(path).is_file(), f"--hints {path}: there is no such file.")
    if args.before_pair is not None:
        require(args.before is not None, "--before-pair: add --before, the checkout that reads it.")
        read_bundle(args.before_pair)  # raises UserError if it is none
    before = args.before and commit_of(args.before)
    machine, kernels = describe("cpu"), str(best_set())
    record: Record = {
        "command": command("python", "-m", "benchmarks.bars"),
        "machine": machine,
        "instruction_set": kernels,
        "absolute": "Xeon" in str(machine["processor"]) and kernels == "avx512",
        "before": before,
        "before_pair": args.before_pair and Path(args.before_pair).name,
    }
    about = {name: str(value) for name, value in vars(args).items() if name != "debug"}
    output.parent.mkdir(parents=True, exist_ok=True)
    log = Log(Path(args.work, "bars.jsonl"), {**about, "machine": machine, "older": str(before)})
    for at, (name, measure) in enumerate(parts(args).items()):
        if at == len(log.entries):
            print(f"bars: {name}", file=sys.stderr)
            log.add(measure())
        record[name] = log.entries[at]
        output.write_text(f"{page(record)}\n", encoding="utf-8")
    log.remove()
    print(page(record))


_NUMBER = cli.at_least(1)
COMMAND = cli.CommandLine(
    "python -m benchmarks.bars",
    "Measure every speed bar of the project in one run, and write one page.",
    main,
    [
        ("--output", "benchmarks/results/bars", str, "write OUTPUT.md"),
        ("--pair", "data/models/en-de", str, "bundle, with the same path in the older checkout"),
        ("--test", "data/samples/en-de.tsv", str, "TSV of raw parallel text, or SOURCE,TARGET"),
        ("--grow", "6x512x32000", str, "size to grow the pair to, measured beside its own"),
        ("--before", None, str, "checkout of an older commit with its kernels built"),
        ("--before-pair", None, str, "bundle that the older commit can decode (default: its own)"),
        ("--hints", [], "FILE", "file of sources, then files with a hint for each line"),
        ("--hinted", 60, _NUMBER, "number of these sources to use"),
        ("--sentences", None, _NUMBER, "number of lines of every text to use (default: all)"),
        ("--repeats", 3, _NUMBER, "repetitions"),
        ("--block-sizes", [4], [_NUMBER], "block sizes of exact decoding, beside the bundle's own"),
        ("--clients", [1, 4, 8, 16, 32, 64], [_NUMBER], "numbers of concurrent clients"),
        ("--seconds", 5.0, float, "seconds of each load of the server"),
        ("--work", "runs/bars", str, "folder for grown and converted models"),
    ],
)
