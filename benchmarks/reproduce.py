"""The experiments of the SpecDec paper on one pair of models and one test set.

Beam 5, greedy, exact decoding, and relaxed decoding over a grid of block sizes, betas and taus:
quality, accepted tokens, speed, the paired bootstrap against beam 5, and all of it by sentence
length. The networks are loaded once, and all systems decode each sentence, or batch, in turn.

    specdec bench reproduce data/models/en-de-small --input test.en --reference test.de \\
        --output benchmarks/results/NAME

writes NAME.json, NAME.md and plots as NAME.PLOT.svg. It can be stopped at any time: the same
command resumes from NAME.turns.jsonl.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.decodings import BEAM, GREEDY, Decoding, decode, quiet_libraries, same_networks
from benchmarks.plots import chosen_rows, draw_reproduction, span
from benchmarks.reports import Columns, Record, command, describe, in_words, number, table, write
from specdec_plugins.app.defaults import make_settings
from specdec_plugins.app.settings import choose_device
from specdec_plugins.app.translator import SpeculativeTranslator, load_translator, number_sentences
from specdec_plugins.app.types import Sentence
from specdec_plugins.corpus import cli, scoring
from specdec_plugins.corpus.cleaning import keys_of
from specdec_plugins.corpus.cli import option
from specdec_plugins.corpus.reading import BadLines, ParallelFile, read_pairs
from specdec_plugins.corpus.resume import Log, content
from specdec_plugins.errors import require
from specdec_plugins.formats.bundle import read_bundle

# The limits of fairseq's search for all: no <pad>, no empty translation, at most 200 tokens. Drafts
# in batches, too.
COMMON: dict[str, Any] = dict(greedy_like="fairseq", strategy="specdec", schedule="constant")
LENGTHS = ((1, 10), (11, 20), (21, 30), (31, None))  # words of the source, both ends included

PUBLISHED = """\
Published (Xia et al. 2023; WMT14 English-German, 6+6 layers, 512 wide, k = 25, one NVIDIA P100):
about 3x in exact mode and 5x relaxed with the quality of beam search; on three sentences of its
README 3.55 accepted tokens in exact mode and 6.18 with beta 5, tau 3. Its speeds are against
fairseq's beam 5 on a GPU; here they are against our own greedy decoding and our own beam 5.
"""


@dataclass(frozen=True)
class Point:
    """A setting of speculation."""

    block_size: int  # tokens
    beta: int
    tau: float  # nats

    @property
    def name(self) -> str:
        if self.beta == 1:
            return f"k {self.block_size}, exact"
        return f"k {self.block_size}, beta {self.beta}, tau {self.tau:g}"


def grid(sizes: Sequence[int], betas: Sequence[int], taus: Sequence[float]) -> list[Point]:
    """Every setting of speculation; at beta 1, where tau has no effect, only one."""
    points = []
    for size in sizes:
        for beta in betas:
            points += [Point(size, beta, tau) for tau in (taus if beta > 1 else [0.0])]
    return points


def load_systems(
    base: SpeculativeTranslator, points: Sequence[Point]
) -> dict[str, SpeculativeTranslator]:
    """Beam 5, greedy, and every point, with the networks of `base`."""
    plain = {"strategy": "AR", "drafter_checkpoint": None, "beta": 1, "tau": 0.0}
    beam, greedy = same_networks(base, **plain, beam=5), same_networks(base, **plain)
    return {BEAM: beam, GREEDY: greedy} | {
        point.name: same_networks(base, **vars(point)) for point in points
    }


def block_sizes(trained: int, wanted: Sequence[int] | None) -> Sequence[int]:
    """The requested sizes, else those of the paper that the drafter was trained for."""
    return wanted or [size for size in (5, 10, 15, 20, 25, 30) if size <= trained] or [trained]


def read_test(args: ReproduceOptions) -> tuple[list[Sentence], list[str]]:
    files = [args.input, args.reference] if args.input and args.reference else []
    require(bool(files) != bool(args.test), "give either --test, or --input and --reference.")
    if args.test:
        pairs = read_pairs(ParallelFile.parse(args.test, (1, 2)), BadLines())
        sources, references = map(list, zip(*pairs, strict=True))
    else:
        lines = {str(path): scoring.read_lines(path) for path in files if path}
        scoring.check_same_length(lines)
        sources, references = lines.values()
    return number_sentences(sources[: args.sentences]), references[: args.sentences]


def seen_in_training(file: Path, sources: Sequence[str], references: Sequence[str]) -> Record:
    """How many sentences of each side of the test set the training text has."""
    keys = list(map(keys_of, zip(sources, references, strict=True)))
    wanted = [{pair[side] for pair in keys if pair[side]} for side in (0, 1)]
    seen: list[set[str]] = [set(), set()]
    for pair in read_pairs(ParallelFile(file), BadLines()):
        for side, found in enumerate(keys_of(pair)):
            if found in wanted[side]:
                seen[side].add(found)
    numbers = (sum(pair[side] in seen[side] for pair in keys) for side in (0, 1))
    return dict(zip(("sources", "targets"), numbers, strict=True))


def open_log(args: ReproduceOptions, systems: Sequence[str], texts: Sequence[str]) -> Log:
    """The log of what this run has already decoded. Raises UserError if it is of another run."""
    about = {
        "bundle": content(Path(args.data)),
        "input": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
        "grid": systems,
        "batch": args.batch,
        "dtype": args.dtype,
        "number of threads": torch.get_num_threads(),
        "machine": describe(choose_device(args.device).type),
    }
    return Log(Path(f"{args.output}.turns.jsonl"), about)


def run(args: ReproduceOptions) -> tuple[Record, Log]:
    """All figures, for JSON, and the log that they come from."""
    read_bundle(args.data)  # raises UserError if it is none
    given = {"data": args.data, "device": args.device, "dtype": args.dtype, "batch": args.batch}
    # Load for the longest blocks, trained or requested, whatever the bundle's default is.
    longest = max(args.block_sizes or [0]) or None
    settings = replace(make_settings({**given, **COMMON}), beta=1, tau=0.0, block_size=longest)
    if settings.drafter == "block":  # whole blocks, as published
        settings = replace(settings, drafter_options={**settings.drafter_options, "confidence": 0})
    sentences, references = read_test(args)
    base = load_translator(settings)
    sizes = block_sizes(base.limits.block_size, args.block_sizes)
    points = grid(sizes, args.betas, args.taus)
    systems = load_systems(base, points)
    sources = [sentence.text for sentence in sentences]
    log = open_log(args, list(systems), sources)
    # Sentences of similar length are decoded together.
    ordered = sentences if args.batch == 1 else sorted(sentences, key=lambda s: len(s.text))
    with log.held():
        decodings = decode(systems, ordered, args.batch, log=log)
    language = settings.target_lang or ""
    record = {
        "title": args.title
        or f"{Path(args.data).name} on {Path(args.test or args.input or '').name}",
        "command": command(),
        "machine": describe(choose_device(settings.device).type),
        "batch": args.batch,
        "threads": torch.get_num_threads(),
        "dtype": settings.dtype,
        "pair": f"{settings.source_lang}-{language}",
        "bootstrap_samples": args.samples,
        "seen": seen_in_training(args.seen, sources, references) if args.seen else None,
        **figures(decodings, points, sources, references, language, args.samples),
    }
    return record, log


def figures(
    decodings: Sequence[Decoding],
    points: Sequence[Point],
    sources: Sequence[str],
    references: Sequence[str],
    language: str,
    num_samples: int,
) -> Record:
    """All figures of JSON and tables. decodings: beam search, greedy, and those of the points."""
    beam, greedy = decodings[:2]
    keys = [None, None, *map(vars, points)]
    rows = []
    for key, decoding in zip(keys, decodings, strict=True):
        scores = scoring.score(decoding.texts, references)
        if language == "de":
            scores.append(scoring.compound_bleu(decoding.texts, references, language))
        tests = scoring.bootstrap(decoding.texts, beam.texts, references, num_samples)
        rows.append(
            {
                "name": decoding.name,
                "point": key,
                "scores": {score.metric: score.value for score in scores},
                "signatures": {score.metric: score.signature for score in scores},
                "against_beam": {
                    test.metric: {"difference": test.output - test.baseline, "p": test.p_value}
                    for test in tests
                },
                "differs_from_greedy": [n + 1 for n in decoding.differing(greedy)],
                **_speed(decoding, beam, greedy),
                "by_length": _by_length(decoding, beam, greedy, sources, references),
            }
        )
    return {"num_sentences": len(references), "rows": rows}


def _speed(decoding: Decoding, beam: Decoding, greedy: Decoding) -> Record:
    return {
        "accepted_tokens": decoding.mean_accepted_tokens,
        "seconds_per_sentence": decoding.seconds_per_sentence,
        "speed_against_greedy": decoding.speed_against(greedy),
        "speed_against_beam": decoding.speed_against(beam),
    }


def _by_length(
    decoding: Decoding,
    beam: Decoding,
    greedy: Decoding,
    sources: Sequence[str],
    references: Sequence[str],
) -> list[Record]:
    found = []
    lengths = [len(source.split()) for source in sources]
    for low, high in LENGTHS:
        chosen = [i for i, n in enumerate(lengths) if low <= n <= (high or n)]
        if chosen:
            part, *others = (one.select(chosen) for one in (decoding, beam, greedy))
            bleu = scoring.score(part.texts, [references[i] for i in chosen])[0].value
            about = {"from": low, "to": high, "sentences": len(chosen), "BLEU": bleu}
            found.append({**about, **_speed(part, *others)})
    return found


_ENOUGH = 100  # sentences for scores that mean something
_TOO_FEW = "**{} sentences are too few for these scores, and for p, to mean anything.**"


def report(record: Record, plots: Sequence[str]) -> str:
    """The whole report in Markdown."""
    rows, total = record["rows"], record["num_sentences"]
    signatures = rows[0]["signatures"]
    together = "one at a time" if record["batch"] == 1 else f"{record['batch']} at a time"
    by_length = [(row["name"], part) for row in chosen_rows(rows) for part in row["by_length"]]
    parts = [
        f"# {record['title']}",
        f"{total} sentences, {together}, {record['dtype']}. Limits of all systems: those of "
        "fairseq's search, at most 200 tokens.",
        f"```\n{record['command']}\n```",
        f"Machine: {in_words(record['machine'])}; torch threads {record['threads']}.",
        *([_seen(**record["seen"])] if record.get("seen") else []),
        *([PUBLISHED.strip()] if record["pair"] == "en-de" else []),
        "## All systems",
        table(_columns(list(rows[0]["scores"]), total), rows),
        "Accepted tokens: mean per round, with the verifier's own, without the end of sentence. p: "
        f"paired bootstrap of BLEU against beam 5, {record['bootstrap_samples']} samples.",
        *([_TOO_FEW.format(total)] if total < _ENOUGH else []),
        "\n".join(f"* {metric}: `{signature}`" for metric, signature in signatures.items()),
        "## By sentence length",
        table(LENGTH_COLUMNS, by_length),
    ]
    if plots:
        parts += ["## Plots", "\n".join(f"![{name}]({name})" for name in plots)]
    return "\n\n".join(parts)


def _seen(sources: int, targets: int) -> str:
    if not sources + targets:
        return "The training text has none of these sentences."
    return (
        f"The training text has {sources} of the sources and {targets} of the references, apart "
        "from case, punctuation and spaces: scores may be too good."
    )


def _columns(metrics: Sequence[str], total: int) -> Columns:
    return {
        "decoding": lambda row: row["name"],
        **{metric: partial(_score, metric) for metric in metrics},
        "BLEU - beam": lambda row: f"{row['against_beam']['BLEU']['difference']:+.2f}",
        "p": lambda row: f"{row['against_beam']['BLEU']['p']:.3f}",
        "same as greedy": lambda row: f"{total - len(row['differs_from_greedy'])} of {total}",
        "accepted tokens": lambda row: number(row["accepted_tokens"]),
        "ms a sentence": lambda row: f"{1000 * row['seconds_per_sentence']:.1f}",
        "vs greedy": lambda row: f"{row['speed_against_greedy']:.2f}x",
        "vs beam 5": lambda row: f"{row['speed_against_beam']:.2f}x",
    }


def _score(metric: str, row: Record) -> str:
    return number(row["scores"][metric])


# Each row is a system's name and its figures on sentences of a range of lengths.
LENGTH_COLUMNS: Columns = {
    "decoding": lambda found: found[0],
    "source words": lambda found: span(found[1], " to ", " or more"),
    "sentences": lambda found: str(found[1]["sentences"]),
    "BLEU": lambda found: number(found[1]["BLEU"]),
    "accepted tokens": lambda found: number(found[1]["accepted_tokens"]),
    "vs greedy": lambda found: f"{found[1]['speed_against_greedy']:.2f}x",
}


def main(args: ReproduceOptions) -> None:
    if args.threads:
        torch.set_num_threads(args.threads)
    with quiet_libraries():
        record, log = run(args)
    plots = draw_reproduction(record["rows"], str(args.output))
    page = report(record, [path.name for path in plots])
    write(str(args.output), record, page)
    log.remove()
    print(page)


@dataclass(kw_only=True)
class ReproduceOptions:
    """Run the experiments of the SpecDec paper on a bundle and a test set: tables, plots, JSON.

    The same command resumes a stopped run.
    """

    # fmt: off
    data: str = option(MISSING, "folder of a bundle", positional=True)
    input: Path | None = option(None, "raw sources, one a line")
    reference: Path | None = option(None, "raw references, one a line")
    test: str | None = option(None, "raw sources and references as a TSV file or "
        "SOURCES,REFERENCES (plain, .gz or .xz); FILE:FROM-TO takes only those lines")
    seen: Path | None = option(None, "training text, a TSV file: how many of the sentences it has")
    output: Path = option(MISSING, "writes OUTPUT.json, OUTPUT.md, OUTPUT.*.svg")
    sentences: int | None = option(None, "number of sentences, from the start (default: all)",
        least=1)
    block_sizes: Sequence[int] | None = option(None, "block sizes (default: 5 10 15 20 25 30, if "
        "trained)", least=1)
    betas: Sequence[int] = option((1, 3, 5), "beta values (default: 1 3 5)", least=1)
    taus: Sequence[float] = option((0.5, 1.0, 1.5, 2.0, 2.5, 3.0),
        "tau values (default: 0.5 to 3 by 0.5)")
    batch: int = option(1, "sentences decoded together", least=1)
    samples: int = option(1000, "samples of the bootstrap", least=1)
    title: str = option("", "title of the report (default: names of bundle and test set)")
    dtype: str = option("float32", "precision of the networks")
    threads: int | None = option(None, "torch threads", least=1)
    cpu: bool = option(False, "do not use a GPU")
    # fmt: on

    @property
    def device(self) -> str | None:
        return "cpu" if self.cpu else None


COMMAND = cli.CommandLine(
    "specdec bench reproduce",
    main,
    ReproduceOptions,
    removed={"--training": "the log of each training says how it went on"},
)
