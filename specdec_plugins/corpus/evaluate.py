"""Command line of ``scripts/evaluate.sh`` and ``scripts/ref.sh``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from specdec_plugins.corpus import cli, scoring
from specdec_plugins.corpus.resume import write_json
from specdec_plugins.errors import UserError
from specdec_plugins.formats.output import check_output
from specdec_plugins.formats.text import TextPipeline, join_bpe


def evaluate_parser() -> argparse.ArgumentParser:
    parser = cli.parser("Score translations: all scores and a test.", prog="evaluate.sh")
    add = parser.add_argument
    add("output", type=Path, help="translations, one a line")
    add("reference", type=Path, help="raw references, one a line")
    add("--baseline", type=Path, help="other translations: paired bootstrap")
    add("--src", required=True, help="source language, such as en")
    add("--tgt", required=True, help="target language, such as de")
    add(
        "--tokenized",
        action="store_true",
        help="output and baseline are Moses tokens (BPE joined or not): detokenise them first",
    )
    add("--samples", type=cli.at_least(100), default=1000, help="of the bootstrap")
    add("--json", type=Path, help="write the scores here, too")
    return parser


def ref_parser() -> argparse.ArgumentParser:
    parser = cli.parser("Compound-split BLEU as published.", prog="ref.sh")
    parser.add_argument("log", type=Path, help="log of fairseq-generate: its T- lines")
    parser.add_argument("output", type=Path, help="tokenised translations, one a line")
    return parser


def ref(args: argparse.Namespace) -> None:
    lines = {
        str(args.log): scoring.references_of_log(args.log),
        str(args.output): [join_bpe(line) for line in scoring.read_lines(args.output)],
    }
    scoring.check_same_length(lines)
    references, outputs = (list(map(scoring.split_compounds, found)) for found in lines.values())
    sys.stdout.write(scoring.fairseq_score(outputs, references) + "\n")


def _detokenised(path: Path, args: argparse.Namespace) -> list[str]:
    lines = scoring.read_lines(path)
    if not args.tokenized:
        return lines
    pipeline = TextPipeline(args.src, args.tgt, bpe=None)
    return [pipeline.decode(join_bpe(line)) for line in lines]


def evaluate(args: argparse.Namespace) -> None:
    if args.json is not None:
        check_output(args.json, "--json", replaced=True)
    lines = {str(args.reference): scoring.read_lines(args.reference)}
    for path in (args.output, args.baseline):
        if path is not None:
            lines[str(path)] = _detokenised(path, args)
    scoring.check_same_length(lines)
    references, outputs = lines[str(args.reference)], lines[str(args.output)]

    scores = scoring.score(outputs, references)
    if (args.src, args.tgt) == ("en", "de"):
        scores.append(scoring.compound_bleu(outputs, references, args.tgt))
    comparisons: Sequence[scoring.Comparison] = []
    if args.baseline is not None:
        baseline = lines[str(args.baseline)]
        comparisons = scoring.bootstrap(outputs, baseline, references, args.samples)

    for found in scores:
        sys.stdout.write(f"{found.metric:<20} {found.value:6.2f}   {found.signature}\n")
    for found_test in comparisons:
        sys.stdout.write(
            f"{found_test.metric:<20} {found_test.output - found_test.baseline:+6.2f}   against "
            f"the baseline's {found_test.baseline:.2f}, p = {found_test.p_value:.4f} (paired "
            f"bootstrap, {args.samples} samples)\n"
        )
    if args.json is not None:
        plain = {"scores": list(map(asdict, scores)), "tests": list(map(asdict, comparisons))}
        _write(args.json, plain)


def _write(path: Path, value: object) -> None:
    try:
        write_json(path, value)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error


COMMANDS = {"evaluate": (evaluate_parser, evaluate), "ref": (ref_parser, ref)}

if __name__ == "__main__":
    make_parser, work = COMMANDS[sys.argv[1]]  # given by the script that the user runs
    sys.exit(cli.run(make_parser(), work, sys.argv[2:]))
