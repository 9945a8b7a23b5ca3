"""Decode a file with several systems (drafter, rule, schedule): one table, one picture.

    python scripts/compare_ways.py FOLDER --AR-path V.pt --input-path test.en \\
        --ways systems.json --reference test.de --report results/NAME

Takes the flags of inference.py, which apply to all systems. The systems are a JSON list of objects,
each with a "name" and its own settings, under their Python names:

    [{"name": "block", "drafter": "block", "drafter_checkpoint": "drafter.pt"},
     {"name": "lookup, 4 at most", "drafter": "lookup", "block_size": 4, "schedule": "heuristic"}]

Paths are relative to the folder of the file. Greedy decoding by each verifier alone is added.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU

from benchmarks.decodings import Decoding, decode
from benchmarks.plots import draw_comparison, pyplot
from benchmarks.reports import (
    Columns,
    Record,
    command,
    describe,
    number,
    ratios,
    spread,
    table,
    write,
)
from specdec_plugins.app.files import FileOptions, open_sentences
from specdec_plugins.app.loading import make_settings
from specdec_plugins.app.main import given_settings, make_parser
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import load_translator
from specdec_plugins.app.types import Sentence
from specdec_plugins.corpus import scoring
from specdec_plugins.corpus.cli import at_least
from specdec_plugins.decoding.types import Guarantee
from specdec_plugins.errors import Parser, UserError, located, require, run_command
from specdec_plugins.formats.output import check_output

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
PARTS = ("total", "draft", "verify")  # of the time of a decoding
_PATHS = ("verifier", "drafter_checkpoint", "drafter_data", "bigrams")
# The settings that define a system. All others, such as text and limits, are common to all systems.
CHOICES = (
    *("strategy", "drafter", "drafter_dtype", "drafter_options"),
    *("rule", "schedule", "schedule_options"),
    *("beam", "beta", "block_size", "exit_layer", "seed", "tau", "temperature", "top_k", "top_p"),
    "tree",
    *_PATHS,
)


def guarantee(settings: Settings) -> str:
    """The guarantee about the output relative to the verifier's own, in a word."""
    if settings.strategy not in ("specdec", "AR"):
        return Guarantee.NONE.name.lower()
    return settings.acceptance.guarantee(settings.beta).name.lower()


def read_systems(path: Path, given: Mapping[str, Any]) -> dict[str, Settings]:
    """The systems of a JSON list of objects, each with a "name" and some of CHOICES.

    given: fields of `Settings`, which each object may override. Paths are relative to the folder of
    the file. Raises UserError, naming the file and the object, for malformed or refused input.
    """
    try:
        objects = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); correct the file.") from error
    is_list = isinstance(objects, list) and bool(objects)
    require(is_list, f"{path}: expected a JSON list of systems, each an object with a name.")
    systems: dict[str, Settings] = {}
    for at, one in enumerate(objects, 1):
        where = f"{path}, system {at}"
        is_named = isinstance(one, dict) and isinstance(one.get("name"), str)
        example = '{"name": "lookup"}'
        require(is_named, f"{where}: expected an object with a name, such as {example}.")
        name = one.pop("name")
        is_new = name not in systems
        require(is_new, f"{path}: two systems are named {name!r}; give each a name of its own.")
        unknown = next(iter(sorted(one.keys() - set(CHOICES))), None)
        require(
            unknown is None,
            f"{where}: {unknown!r} is not a setting of a system; use: {', '.join(CHOICES)}.",
        )
        paths = {key: str(path.parent / one[key]) for key in _PATHS if one.get(key) is not None}
        with located(f"{where}, {name!r}"):
            try:
                systems[name] = make_settings({**given, **one, **paths})
            except TypeError as error:
                raise UserError(f"a setting has a value of the wrong type ({error}).") from error
    return systems


def with_baselines(systems: Mapping[str, Settings]) -> tuple[dict[str, Settings], dict[str, str]]:
    """All systems, with greedy decoding by each verifier before the first system compared to it.

    Also each system's baseline, by name. A verifier is one system, however many drafters it has,
    so its systems share one baseline. Raises UserError if no system has a verifier.
    """
    verifiers = list(dict.fromkeys(s.verifier for s in systems.values() if s.verifier))
    require(bool(verifiers), "None of the systems has a verifier to compare with; add --AR-path.")
    together: dict[str, Settings] = {}
    baseline_of: dict[str, str] = {}
    for name, settings in systems.items():
        verifier = settings.verifier or verifiers[0]
        greedy = "AR greedy" if len(verifiers) == 1 else f"AR greedy, {Path(verifier).stem}"
        if greedy not in together:
            common = {key: value for key, value in vars(settings).items() if key not in CHOICES}
            together[greedy] = Settings(**common, strategy="AR", verifier=verifier)
            baseline_of[greedy] = greedy
        together[name], baseline_of[name] = settings, greedy
    return together, baseline_of


def figures(
    decodings: Sequence[Decoding],
    systems: Mapping[str, Settings],
    baseline_of: Mapping[str, str],
    references: Sequence[str] | None = None,
) -> list[Record]:
    """A record of each decoding, for JSON; times are seconds a sentence, one per repetition."""
    named = {decoding.name: decoding for decoding in decodings}
    found = []
    for name, decoding in named.items():
        other, total = named[baseline_of[name]], len(decoding.texts)
        bleu = None  # where no reference was given
        if references is not None:
            bleu = BLEU().corpus_score(decoding.texts, [references]).score
        each, others = (
            {part: [seconds[part] / total for seconds in one.seconds] for part in PARTS}
            for one in (decoding, other)
        )
        record: Record = {
            "name": name,
            "guarantee": guarantee(systems[name]),
            "baseline": other.name,
            "num_sentences": total,
            "num_same": total - len(decoding.differing(other)),
            "bleu": bleu,
            "accepted": decoding.mean_accepted_tokens,
        }
        found.append({**record, **each, "speed": ratios(others["total"], each["total"])})
    return found


def _median(seconds: Sequence[float]) -> str:
    """The median in milliseconds."""
    middle = 1000 * statistics.median(seconds)
    return f"{middle:.1f}" if middle else "-"


# The printed table: medians, and the spread of the speed in brackets.
COLUMNS: Columns = {
    "decoding": lambda row: row["name"],
    "guarantee": lambda row: row["guarantee"],
    "same as greedy": lambda row: f"{row['num_same']} of {row['num_sentences']}",
    "BLEU": lambda row: number(row["bleu"]),
    "accepted tokens": lambda row: number(row["accepted"]),
    "ms a sentence": lambda row: _median(row["total"]),
    "of these drafter": lambda row: _median(row["draft"]),
    "verifier": lambda row: _median(row["verify"]),
    "against AR greedy": lambda row: spread(row["speed"]),
}


def comparison_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="compare_ways.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add, number = parser.add_argument, at_least(1)
    add("--ways", type=Path, required=True, metavar="FILE", help="JSON list of systems")
    add("--reference", type=Path, metavar="FILE", help="reference translations to score against")
    add("--report", metavar="PATH", help="write PATH.json, PATH.md and PATH.png")
    add("--no-picture", action="store_true", help="write no PATH.png, which needs matplotlib")
    add("--repeats", type=number, default=3, metavar="N", help="median of N runs (default: 3)")
    add("--chunk", type=number, default=20, metavar="N", help="sentences per turn (default: 20)")
    add("--sentences", type=int, metavar="N", help="only the first N lines (default: all)")
    add("--threads", type=number, default=torch.get_num_threads(), metavar="N", help="CPU threads")
    add(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: the CPU time of this process, for machines in use by others (default: wall)",
    )
    return parser


def _sentences(rest: list[str], limit: int | None) -> list[Sentence]:
    given = vars(make_parser().parse_args(rest))
    names = ("input_path", "hint_file", "hint_column")
    files = FileOptions(**{name: given[name] for name in names if name in given})
    with open_sentences(files) as lines:
        sentences = list(lines)[:limit]
    require(bool(sentences), f"{files.input_path}: empty; expected one sentence a line.")
    return sentences


def run(args: argparse.Namespace, rest: list[str]) -> list[Record]:
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
    decodings = decode(loaded, sentences, args.chunk, args.repeats, clock=CLOCKS[args.clock])
    return figures(decodings, systems, baseline_of, references)


def main() -> int:
    """Exit status: 0 done, 2 bad input or settings."""
    args, rest = comparison_parser().parse_known_args()
    torch.set_num_threads(args.threads)
    on_gpu = torch.cuda.is_available() and "--cpu" not in rest
    # Taken now, because the checkout may change during the run.
    machine = {**describe("cuda" if on_gpu else "cpu"), "threads": torch.get_num_threads()}
    logging.getLogger("fairseq").setLevel(logging.WARNING)

    def work() -> None:
        # Checked before the long decoding.
        kinds = ("json", "md") if args.no_picture else ("json", "md", "png")
        for kind in kinds if args.report is not None else ():
            check_output(f"{args.report}.{kind}", inputs=(args.ways, args.reference))
        if args.report is not None and not args.no_picture:
            pyplot()
        rows = run(args, rest)
        page = table(COLUMNS, rows)
        if args.report is not None:
            told = {"command": command("python", "scripts/compare_ways.py"), "machine": machine}
            record = {**told, "clock": args.clock, "repeats": args.repeats, "rows": rows}
            write(args.report, record, page)
            if not args.no_picture:
                draw_comparison(rows, Path(f"{args.report}.png"))
        print(page)

    return run_command("compare_ways.py", work, False, "interrupted; nothing was written.")
