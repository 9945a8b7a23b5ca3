"""Decode a file with several systems, drafters with rules and schedules: one table, one picture.

    python scripts/compare_ways.py FOLDER --AR-path V.pt --input-path test.en \\
        --ways systems.json --reference test.de --report results/NAME

Takes the flags of inference.py, which all systems have in common. The systems are a JSON list of
objects, each with a "name" and what is special about it, under the names that Python uses:

    [{"name": "block", "drafter": "block", "drafter_checkpoint": "drafter.pt"},
     {"name": "lookup, 4 at most", "drafter": "lookup", "block_size": 4, "schedule": "heuristic"}]

Paths count from the folder of the file. Each verifier alone, greedily, is added by itself.
"""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU
from tqdm import tqdm

from benchmarks.decodings import Decoding, decode, in_parts
from benchmarks.machine import describe, shown
from benchmarks.plots import draw_comparison, pyplot
from benchmarks.results import markdown, spread
from specdec_plugins.app.files import STANDARD, FileOptions, open_sentences
from specdec_plugins.app.loading import make_settings
from specdec_plugins.app.main import given_settings, make_parser, run_command
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import load_translator
from specdec_plugins.app.types import Sentence
from specdec_plugins.corpus import scoring
from specdec_plugins.corpus.cli import at_least
from specdec_plugins.decoding.types import Guarantee
from specdec_plugins.errors import Parser, UserError, located, require
from specdec_plugins.formats.output import check_output

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
HEADER = (
    *("decoding", "guarantee", "same as greedy", "BLEU", "accepted tokens"),
    *("ms a sentence", "of these drafter", "verifier", "against AR greedy"),
)
_PATHS = ("verifier", "drafter_checkpoint", "drafter_data", "bigrams")
# What makes a system. The rest, text and limits above all, must be the same for all of them.
CHOICES = (
    *("strategy", "drafter", "drafter_options", "rule", "schedule", "schedule_options"),
    *("beam", "beta", "block_size", "exit_layer", "seed", "tau", "temperature", "top_k", "top_p"),
    *_PATHS,
)
_SHORT = {
    Guarantee.GREEDY: "greedy",
    Guarantee.DISTRIBUTION: "distribution",
    Guarantee.NONE: "none",
}


def guarantee(settings: Settings) -> str:
    """In a word, what is promised about the output against the verifier's own."""
    if settings.strategy not in ("specdec", "AR"):
        return _SHORT[Guarantee.NONE]
    return _SHORT[settings.acceptance.guarantee(settings.beta)]


def read_systems(path: Path, given: Mapping[str, Any]) -> dict[str, Settings]:
    """The systems of a JSON list of objects, each with a "name" and some of CHOICES.

    given: fields of `Settings` that all have unless they say otherwise. Paths count from the folder
    of the file. Raises UserError, naming the file and the object, for what is malformed or refused.
    """
    try:
        objects = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); correct the file.") from error
    if not isinstance(objects, list) or not objects:
        raise UserError(f"{path}: expected a JSON list of systems, each an object with a name.")
    systems: dict[str, Settings] = {}
    for number, one in enumerate(objects, 1):
        where = f"{path}, system {number}"
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise UserError(
                f'{where}: expected an object with a name, such as {{"name": "lookup"}}.'
            )
        name = one["name"]
        if name in systems:
            raise UserError(f"{path}: two systems are named {name!r}; give each a name of its own.")
        systems[name] = _settings(one, where, path.parent, given)
    return systems


def _settings(
    one: Mapping[str, Any], where: str, folder: Path, given: Mapping[str, Any]
) -> Settings:
    chosen = {key: value for key, value in one.items() if key != "name"}
    unknown = sorted(chosen.keys() - set(CHOICES))
    if unknown:
        raise UserError(
            f"{where}: {unknown[0]!r} is no choice of a system; choose of: {', '.join(CHOICES)}."
        )
    for key in _PATHS:
        if chosen.get(key) is not None:
            chosen[key] = str(folder / chosen[key])
    where = f"{where}, {one['name']!r}"
    with located(where):
        try:
            return make_settings({**given, **chosen})
        except TypeError as error:
            raise UserError(f"a value of the wrong type ({error}).") from error


def with_baselines(
    systems: Mapping[str, Settings],
) -> tuple[dict[str, Settings], dict[str, str]]:
    """All systems, each verifier alone and greedy before the first that is measured against it.

    And by each system's name that of its baseline. A verifier is one system however many draft for
    it, so its decodings compare as one does. Raises UserError where no system has a verifier.
    """
    verifiers = list(dict.fromkeys(s.verifier for s in systems.values() if s.verifier))
    if not verifiers:
        raise UserError("None of the systems has a verifier to compare with; add --AR-path.")
    together: dict[str, Settings] = {}
    baseline_of: dict[str, str] = {}
    for name, settings in systems.items():
        verifier = settings.verifier or verifiers[0]
        greedy = "AR greedy" if len(verifiers) == 1 else f"AR greedy, {Path(verifier).stem}"
        if greedy not in together:
            kept = {f.name: getattr(settings, f.name) for f in fields(Settings)}
            kept = {field: value for field, value in kept.items() if field not in CHOICES}
            together[greedy] = Settings(**{**kept, "strategy": "AR", "verifier": verifier})
            baseline_of[greedy] = greedy
        together[name], baseline_of[name] = settings, greedy
    return together, baseline_of


def figures(
    decodings: Sequence[Decoding],
    systems: Mapping[str, Settings],
    baseline_of: Mapping[str, str],
    references: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """A record of each, for JSON; times are seconds a sentence, one for each repetition."""
    named = {decoding.name: decoding for decoding in decodings}
    found = []
    for name, decoding in named.items():
        other = named[baseline_of[name]]
        num_sentences = len(decoding.texts)
        bleu = None  # where no reference was given
        if references is not None:
            bleu = BLEU().corpus_score(decoding.texts, [list(references)]).score
        pairs = zip(decoding.seconds, other.seconds, strict=True)
        found.append(
            {
                "name": name,
                "guarantee": guarantee(systems[name]),
                "baseline": other.name,
                "num_sentences": num_sentences,
                "num_same": num_sentences - len(decoding.differing(other)),
                "bleu": bleu,
                "accepted": decoding.mean_accepted_tokens,
                **{
                    part: [seconds[part] / num_sentences for seconds in decoding.seconds]
                    for part in ("total", "draft", "verify")
                },
                "speed": [theirs["total"] / own["total"] for own, theirs in pairs],
            }
        )
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What people read: medians, and the spread of the speed in brackets."""
    return markdown(HEADER, [_cells(row) for row in rows])


def _cells(row: Mapping[str, Any]) -> list[str]:
    def milliseconds(values: Sequence[float]) -> str:
        middle = 1000 * statistics.median(values)
        return f"{middle:.1f}" if middle else "-"

    return [
        row["name"],
        row["guarantee"],
        f"{row['num_same']} of {row['num_sentences']}",
        *("-" if row[name] is None else f"{row[name]:.2f}" for name in ("bleu", "accepted")),
        *(milliseconds(row[name]) for name in ("total", "draft", "verify")),
        spread(row["speed"]),
    ]


def comparison_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="compare_ways.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add, number = parser.add_argument, at_least(1)
    add("--ways", type=Path, required=True, metavar="FILE", help="JSON list of systems")
    add("--reference", type=Path, metavar="FILE", help="translations to score against")
    add("--report", metavar="PATH", help="writes PATH.json, PATH.md and PATH.png")
    add("--no-picture", action="store_true", help="no PATH.png, which needs matplotlib")
    add("--repeats", type=number, default=3, metavar="N", help="default: 3; medians are printed")
    add("--chunk", type=number, default=20, metavar="N", help="sentences at a time (default: 20)")
    add("--sentences", type=int, metavar="N", help="only the first N lines (default: all)")
    add("--threads", type=number, default=torch.get_num_threads(), metavar="N", help="of the CPU")
    add(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu counts this process's own time, for machines that others use (default: wall)",
    )
    return parser


def _sentences(rest: list[str], limit: int | None) -> list[Sentence]:
    path = vars(make_parser().parse_args(rest)).get("input_path", STANDARD)
    with open_sentences(FileOptions(input_path=path)) as lines:
        sentences = list(lines)[:limit]
    require(bool(sentences), f"{path}: is empty; expected one sentence a line.")
    return sentences


def run(args: argparse.Namespace, rest: list[str]) -> list[dict[str, Any]]:
    """Records of all systems."""
    systems, baseline_of = with_baselines(read_systems(args.ways, given_settings(rest)))
    sentences = _sentences(rest, args.sentences)
    references = None
    if args.reference is not None:
        references = scoring.read_lines(args.reference)[: args.sentences]
        scoring.check_same_length(
            {"the input": [s.text for s in sentences], str(args.reference): references}
        )
    loaded = {name: load_translator(settings) for name, settings in systems.items()}
    total = args.repeats * len(systems) * len(sentences)
    with tqdm(total=total, unit="sentence", disable=None, file=sys.stderr) as bar:
        decodings = decode(
            loaded,
            in_parts(sentences, args.chunk),
            args.repeats,
            on_done=bar.update,
            clock=CLOCKS[args.clock],
        )
    return figures(decodings, systems, baseline_of, references)


def write(args: argparse.Namespace, machine: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """JSON, Markdown and a picture."""
    record: dict[str, Any] = {
        "command": shlex.join(["python", "scripts/compare_ways.py", *map(shown, sys.argv[1:])]),
        "machine": machine,
        "clock": args.clock,
        "repeats": args.repeats,
        "rows": rows,
    }
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    Path(f"{args.report}.json").write_text(text, encoding="utf-8")
    Path(f"{args.report}.md").write_text(table(rows) + "\n", encoding="utf-8")
    if not args.no_picture:
        draw_comparison(rows, Path(f"{args.report}.png"))


def main() -> int:
    """Exit status: 0 done, 2 bad input or settings."""
    args, rest = comparison_parser().parse_known_args()
    torch.set_num_threads(args.threads)
    on_gpu = torch.cuda.is_available() and "--cpu" not in rest
    # Of the code that runs, which may change while it does.
    machine = {**describe("cuda" if on_gpu else "cpu"), "threads": torch.get_num_threads()}
    logging.getLogger("fairseq").setLevel(logging.WARNING)

    def work() -> None:
        if args.report is not None:
            for kind in ("json", "md") if args.no_picture else ("json", "md", "png"):
                check_output(f"{args.report}.{kind}")
            if not args.no_picture:
                pyplot()  # asked before decoding takes its time
        rows = run(args, rest)
        if args.report is not None:
            write(args, machine, rows)
        print(table(rows))

    return run_command("compare_ways.py", work, False, "interrupted; nothing was written.")
