"""Decode a file in several ways, drafters with rules and schedules, and print and plot one table.

    python scripts/compare_ways.py FOLDER --AR-path V.pt --input-path test.en \\
        --ways ways.json --reference test.de --report results/ways

Takes the flags of inference.py, which all ways have in common. The ways are a JSON list of objects,
each with a "name" and what is special about it, under the names that Python uses:

    [{"name": "block", "drafter": "block", "drafter_checkpoint": "drafter.pt"},
     {"name": "lookup, 4 at most", "drafter": "lookup", "block_size": 4, "schedule": "heuristic"}]

Paths count from the folder of the file. Each verifier alone, greedily, is added by itself.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402
from tqdm import tqdm  # noqa: E402

from benchmarks.chart import draw, plotting  # noqa: E402
from benchmarks.machine import describe  # noqa: E402
from benchmarks.side_by_side import Figures, figures, measure, table  # noqa: E402
from benchmarks.ways import Way, baselines, read_ways  # noqa: E402
from specdec_plugins.app.files import STANDARD, FileOptions, open_sentences  # noqa: E402
from specdec_plugins.app.main import given_settings, make_parser  # noqa: E402
from specdec_plugins.app.types import Sentence  # noqa: E402
from specdec_plugins.corpus import scoring  # noqa: E402
from specdec_plugins.errors import Parser, UserError, refuse, require  # noqa: E402
from specdec_plugins.formats.output import check_output  # noqa: E402

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="compare_ways.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--ways", type=Path, required=True, metavar="FILE", help="JSON list of ways")
    add("--reference", type=Path, metavar="FILE", help="translations to score against")
    add("--report", metavar="PATH", help="writes PATH.json, PATH.md and PATH.png")
    add("--no-picture", action="store_true", help="no PATH.png, which needs matplotlib")
    add("--repeats", type=int, default=3, metavar="N", help="default: 3; medians are printed")
    add("--chunk", type=int, default=20, metavar="N", help="sentences of a turn (default: 20)")
    add("--sentences", type=int, metavar="N", help="only the first N lines (default: all)")
    add("--threads", type=int, default=torch.get_num_threads(), metavar="N", help="of the CPU")
    add(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu counts this process's own time, for machines that others use (default: wall)",
    )
    return parser


def _sentences(rest: list[str], limit: int | None) -> list[Sentence]:
    given = vars(make_parser().parse_args(rest))
    path = given.get("input_path", STANDARD)
    with open_sentences(FileOptions(input_path=path)) as lines:
        sentences = list(lines)[:limit]
    require(bool(sentences), f"{path}: is empty; expected one sentence a line.")
    return sentences


def _run(args: argparse.Namespace, rest: list[str]) -> list[Figures]:
    for name in ("repeats", "chunk", "threads"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} must be 1 or more, not {getattr(args, name)}.")
    ways = read_ways(args.ways, given_settings(rest))
    alone = baselines(ways)
    sentences = _sentences(rest, args.sentences)
    references = None
    if args.reference is not None:
        references = scoring.read_lines(args.reference)[: args.sentences]
        scoring.check_same_length(
            {"the input": [s.text for s in sentences], str(args.reference): references}
        )
    together = _in_order(ways, alone)
    total = args.repeats * len(together) * len(sentences)
    with tqdm(total=total, unit="sentence", disable=None, file=sys.stderr) as bar:
        done = measure(
            together, sentences, CLOCKS[args.clock], args.repeats, args.chunk, bar.update
        )
    names = {name: way.name for name, way in alone.items()}
    names.update({way.name: way.name for way in alone.values()})
    return figures(done, names, references)


def _in_order(ways: list[Way], alone: dict[str, Way]) -> list[Way]:
    """Each verifier alone before the first way that is measured against it."""
    ordered: list[Way] = []
    for way in ways:
        for one in (alone[way.name], way):
            if one not in ordered:
                ordered.append(one)
    return ordered


def _shown(argument: str) -> str:
    """Paths as a reader can use them: their last part where they lie outside the checkout."""
    path = Path(argument)
    if not path.is_absolute():
        return argument
    relative = os.path.relpath(path)
    return path.name if relative.startswith("..") else relative


def _write(args: argparse.Namespace, machine: dict[str, Any], rows: list[Figures]) -> None:
    command = ["python", "scripts/compare_ways.py", *map(_shown, sys.argv[1:])]
    record: dict[str, Any] = {
        "command": shlex.join(command),
        "machine": machine,
        "clock": args.clock,
        "repeats": args.repeats,
        "rows": [row.to_dict() for row in rows],
    }
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    Path(f"{args.report}.json").write_text(text, encoding="utf-8")
    Path(f"{args.report}.md").write_text(table(rows) + "\n", encoding="utf-8")
    if not args.no_picture:
        draw(rows, Path(f"{args.report}.png"))


def main() -> int:
    args, rest = _parser().parse_known_args()
    torch.set_num_threads(max(args.threads, 1))
    on_gpu = torch.cuda.is_available() and "--cpu" not in rest
    # Of the code that runs, which may change while it does.
    machine = {**describe("cuda" if on_gpu else "cpu"), "threads": torch.get_num_threads()}
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    try:
        if args.report is not None:
            for kind in ("json", "md") if args.no_picture else ("json", "md", "png"):
                check_output(f"{args.report}.{kind}")
            if not args.no_picture:
                plotting()  # asked before decoding takes its time
        rows = _run(args, rest)
    except UserError as error:
        return refuse("compare_ways.py", error)
    if args.report is not None:
        _write(args, machine, rows)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
