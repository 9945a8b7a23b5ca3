"""The experiments of the SpecDec paper on one pair of models and one test set.

Beam 5, greedy, exact decoding, and relaxed decoding over a grid of block sizes, betas and taus:
quality, accepted tokens, speed, the paired bootstrap against beam 5, and all of it by sentence
length. The networks are loaded once, and the ways take turns on each sentence, or each batch.

    python -m benchmarks.reproduce data/models/en-de --input test.en --reference test.de \\
        --output benchmarks/results/NAME

writes NAME.json, NAME.md and plots as NAME.PLOT.svg. Stop it whenever you like: the same command
goes on from the turns in NAME.turns.jsonl.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.machine import describe
from benchmarks.reproduction import GREEDY, Point, Result, figures, report
from benchmarks.reproduction_plots import draw
from benchmarks.turn_log import TurnLog
from benchmarks.turns import Contender, decode_in_turns, hushed, search_settings, variant
from specdec_plugins.app.bundles import make_settings
from specdec_plugins.app.settings import Settings, choose_device
from specdec_plugins.app.translator import load_translator, number_sentences
from specdec_plugins.app.types import Sentence
from specdec_plugins.corpus import scoring
from specdec_plugins.corpus.cli import INTERRUPTED, at_least
from specdec_plugins.corpus.resume import fingerprint
from specdec_plugins.errors import Parser, UserError, refuse
from specdec_plugins.formats.bundle import read_bundle

BEAM_SIZE = 5
# Those of fairseq's search for all: no <pad>, no empty translation, at most 200 tokens.
COMMON: dict[str, Any] = {"greedy_like": "fairseq", "strategy": "specdec"}


def grid(sizes: Sequence[int], betas: Sequence[int], taus: Sequence[float]) -> list[Point]:
    """Every setting of speculation; at beta 1 tau means nothing, and stands there once."""
    points = []
    for size in sizes:
        for beta in betas:
            points += [Point(size, beta, tau) for tau in (taus if beta > 1 else [0.0])]
    return points


def load_ways(settings: Settings, points: Sequence[Point]) -> list[Contender]:
    """Beam 5, greedy, and every point, the networks of the engine loaded once."""
    base = load_translator(settings)
    with tempfile.TemporaryDirectory() as folder:
        beam = load_translator(replace(search_settings(settings, folder), beam=BEAM_SIZE))
    ways = [
        Contender(f"fairseq beam {BEAM_SIZE}", beam),
        Contender(GREEDY, variant(base, strategy="AR", drafter_checkpoint=None, beta=1, tau=0.0)),
    ]
    for point in points:
        changes = {"block_size": point.block_size, "beta": point.beta, "tau": point.tau}
        ways.append(Contender(point.name, variant(base, **changes)))
    return ways


def block_sizes(settings: Settings, wanted: Sequence[int] | None) -> list[int]:
    """Those asked for, else those of the paper that the drafter was trained for."""
    trained = load_translator(settings).limits.block_size
    if wanted is None:
        return [size for size in (5, 10, 15, 20, 25, 30) if size <= trained] or [trained]
    too_long = [size for size in wanted if size > trained]
    if too_long:
        raise UserError(
            f"--block-sizes {too_long[0]}: the drafter was trained for blocks of {trained} tokens; "
            "ask for at most that"
        )
    return list(wanted)


def read_test(args: argparse.Namespace) -> tuple[list[Sentence], list[str]]:
    lines = {str(path): scoring.read_lines(path) for path in (args.input, args.reference)}
    scoring.check_same_length(lines)
    sources, references = (found[: args.sentences] for found in lines.values())
    return number_sentences(sources), references


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="reproduce.sh", description=__doc__.split("\n")[0])
    add, number = parser.add_argument, at_least(1)
    add("data", metavar="BUNDLE", help="folder of a bundle")
    add("--input", type=Path, required=True, metavar="FILE", help="raw sources, one a line")
    add("--reference", type=Path, required=True, metavar="FILE", help="raw references, one a line")
    add("--output", required=True, metavar="NAME", help="writes NAME.json, NAME.md, NAME.*.svg")
    add("--sentences", type=number, metavar="N", help="only the first N (default: all)")
    add("--block-sizes", type=number, nargs="+", metavar="K", help="default: 5 10 15 20 25 30")
    add("--betas", type=number, nargs="+", default=[1, 3, 5], metavar="B", help="default: 1 3 5")
    taus = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    add("--taus", type=float, nargs="+", default=taus, metavar="T", help="default: 0.5 to 3 by 0.5")
    add("--batch", type=number, default=1, metavar="N", help="sentences at once (default: 1)")
    add("--samples", type=number, default=1000, metavar="N", help="of the bootstrap")
    add("--title", default="", help="of the report (default: of the bundle and the test set)")
    add("--training", type=Path, metavar="DIR", help="--out of the recipe, to tell its pieces")
    add("--dtype", default="float32", help="of the networks (default: float32)")
    add("--threads", type=number, metavar="N", help="of torch")
    add("--cpu", dest="device", action="store_const", const="cpu", help="leave a GPU alone")
    add("--debug", action="store_true", help="show where an error was raised")
    return parser


def open_log(
    args: argparse.Namespace, ways: Sequence[Contender], sentences: Sequence[Sentence]
) -> TurnLog:
    """The turns of this very run that are decoded already. Raises UserError where it is another."""
    texts = json.dumps([(sentence.text, sentence.prefix) for sentence in sentences])
    about = {
        "bundle": fingerprint(Path(args.data)),
        "input": hashlib.sha256(texts.encode()).hexdigest(),
        "grid": [way.name for way in ways],
        "batch": args.batch,
        "dtype": args.dtype,
        "number of threads": torch.get_num_threads(),
        "machine": describe(choose_device(args.device).type),
    }
    return TurnLog(Path(f"{args.output}.turns.jsonl"), about)


def run(args: argparse.Namespace) -> tuple[dict[str, Any], TurnLog]:
    """All figures, as JSON has them, and the turns that they come from."""
    read_bundle(args.data)  # says in a sentence where it is none
    given = {"data": args.data, "device": args.device, "dtype": args.dtype, "batch": args.batch}
    # Loaded for the longest blocks that there are, whatever the bundle's default is.
    settings = replace(make_settings({**given, **COMMON}), beta=1, tau=0.0, block_size=None)
    sentences, references = read_test(args)
    points = grid(block_sizes(settings, args.block_sizes), args.betas, args.taus)
    ways = load_ways(settings, points)
    log = open_log(args, ways, sentences)
    with tqdm(total=len(ways) * len(sentences), unit=" translations", file=sys.stderr) as bar:
        decodings = decode_in_turns(ways, sentences, bar.update, args.batch, log)
    keys = [None, None, *points]
    results = [Result(key, decoding) for key, decoding in zip(keys, decodings, strict=True)]
    sources = [sentence.text for sentence in sentences]
    language = settings.target_lang or ""
    record = {
        "title": args.title or f"{Path(args.data).name} on {args.input.name}",
        "command": shlex.join(["scripts/reproduce.sh", *map(_shown, sys.argv[1:])]),
        "machine": describe(choose_device(settings.device).type),
        "batch": args.batch,
        "threads": torch.get_num_threads(),
        "dtype": settings.dtype,
        "pair": f"{settings.source_lang}-{language}",
        "bootstrap_samples": args.samples,
        "training": read_pieces(args.training) if args.training else {},
        **figures(results, sources, references, language, args.samples),
    }
    return record, log


def read_pieces(folder: Path) -> dict[str, Any]:
    """How each training of a recipe was cut, as it recorded it; nothing where it was not."""
    records = sorted(folder.glob("*/pieces.json"))
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in records}


def _shown(argument: str) -> str:
    """Paths as a reader can use them: relative to the checkout where they lie in it."""
    path = Path(argument)
    return os.path.relpath(path) if path.is_absolute() else argument


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 bad input or settings, 130 stopped."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        with hushed():
            record, log = run(args)
    except UserError as error:
        if args.debug:
            raise
        return refuse(parser.prog, error)
    except KeyboardInterrupt:
        print(f"{parser.prog}: stopped; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    Path(f"{args.output}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    plots = draw(record, args.output)
    text = report(record, [path.name for path in plots])
    Path(f"{args.output}.md").write_text(text, encoding="utf-8")
    log.remove()
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
