"""Command line of ``scripts/recipe.sh``: parallel text to a bundle, in one call or in many."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specdec_plugins.errors import Parser, UserError, refuse
from specdec_plugins.training.pipeline import UNFINISHED, Paused, Pipeline
from specdec_plugins.training.presets import PRESETS, make_preset
from specdec_plugins.training.recipe_steps import Job, steps

ROOT = Path(__file__).resolve().parent.parent.parent
INTERRUPTED = 130
NO_END = "0"  # of the variable DEADLINE


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="recipe.sh",
        description="Train a verifier and a block drafter: mix, prepare, train a teacher, distil, "
        "train the verifier and the drafter on what it says, average, bundle, report. Run again, "
        "it goes on where it stopped. Run it in the root of the repository.",
        epilog=f"Exit status: 0 done, 2 bad input or settings, {UNFINISHED} time is up and the "
        "same command goes on.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="small", help="sizes (default: %(default)s)")
    add("--set", nargs="+", default=[], metavar="NAME=VALUE", help="change values of the preset")
    add("--pair", default="en-de", help="languages (default: %(default)s)")
    add("--train", nargs="+", default=[], metavar="CORPUS", help="files, or folders of train.*")
    add("--valid", default="", metavar="CORPUS", help="dev set; FILE:FROM-TO takes some lines")
    add("--test", nargs="+", default=[], metavar="CORPUS", help="test sets")
    add("--research-data", action="store_true", help="take Multi30k too, which is left out")
    add("--prepared", default="", metavar="DIR", help="instead: OUT of a preparation script")
    add("--out", required=True, metavar="DIR", help="where everything is kept")
    _add_work(parser)
    add("--list", action="store_true", help="say the steps and do nothing")
    add("--debug", action="store_true", help="show where an error was raised")
    return parser


def _add_work(parser: argparse.ArgumentParser) -> None:
    """How, where and for how long to train, and what to report."""
    add = parser.add_argument
    add(
        "--minutes",
        type=float,
        metavar="N",
        help="train and distil for so long in this call; loading and validation come on top",
    )
    add("--workers", type=int, metavar="N", help="GPUs, or processes on CPUs")
    add(
        "--precision",
        choices=["fp32", "fp16", "bf16"],
        default="",
        help="of the trainings (default: fp16 on GPUs, fp32 on CPUs)",
    )
    add(
        "--drafter-arch",
        choices=["block", "block_fast"],
        default="block",
        help="block: as published (default); block_fast: the cheaper one of scripts/train.sh",
    )
    add("--cpu", action="store_true", help="use no GPU")
    add("--ray", default="", metavar="ADDRESS", help="distil on this Ray cluster, or on 'local'")
    add("--report-flags", default="", metavar="FLAGS", help="of scripts/reproduce.sh, in one word")


def job_of(args: argparse.Namespace) -> Job:
    """Raises UserError where flags do not go together."""
    source, dash, target = args.pair.partition("-")
    if not (source and dash and target):
        raise UserError(f"--pair {args.pair}: expected two languages, such as en-de.")
    if bool(args.prepared) == bool(args.train):
        raise UserError("give either --train and --valid, or --prepared.")
    if args.train and not args.valid:
        raise UserError("--train needs a dev set; give --valid.")
    if args.minutes is not None and args.minutes <= 0:
        raise UserError(f"--minutes {args.minutes:g}: must be more than 0.")
    return Job(
        out=args.out,
        source=source,
        target=target,
        preset=make_preset(args.preset, args.set),
        train=[item for word in args.train for item in _split(word)],
        valid=args.valid,
        tests=[item for word in args.test for item in _split(word)],
        prepared=args.prepared,
        research_data=args.research_data,
        cpu=args.cpu,
        workers=args.workers,
        precision=args.precision,
        drafter_arch=args.drafter_arch,
        ray=args.ray,
        report_flags=args.report_flags,
    )


def _split(word: str) -> list[str]:
    """A list of TSV files behind commas; two plain sides of one corpus stay together."""
    parts = word.split(",")
    return parts if all(".tsv" in part or Path(part).is_dir() for part in parts) else [word]


def pieces(out: Path) -> dict[str, Any]:
    """How each training was cut: its pieces, as ``corpus.pieces`` records them."""
    found = {}
    for name in ("teacher", "verifier", "drafter"):
        record = out / name / "pieces.json"
        if record.is_file():
            found[name] = json.loads(record.read_text(encoding="utf-8"))
    return found


def write_record(job: Job, command: Sequence[str], seconds: float) -> None:
    """``recipe.json``: the settings, every call and how long it took, and the pieces."""
    path = Path(job.out) / "recipe.json"
    before = json.loads(path.read_text(encoding="utf-8"))["calls"] if path.is_file() else []
    calls = [*before, {"command": list(command), "seconds": round(seconds, 1)}]
    record = {"pair": job.pair, "preset": asdict(job.preset), "calls": calls}
    record["pieces"] = pieces(Path(job.out))
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    job = job_of(args)
    if args.list:
        for step in steps(job):
            sys.stdout.write(f"{step.title}\n    {step.command}\n")
        return 0
    began = time.time()
    deadline = NO_END if args.minutes is None else str(int(began + 60 * args.minutes))
    environment = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "DEADLINE": deadline}
    try:
        Path(job.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {job.out}: cannot be written ({error.strerror}).") from error
    status = 0
    try:
        Pipeline(Path(job.out), environment).run(steps(job))
    except Paused as paused:
        sys.stdout.write(f"recipe: time is up in: {paused}; the same command goes on\n")
        status = UNFINISHED
    finally:
        write_record(job, argv, time.time() - began)
    if status == 0:
        sys.stdout.write(f"recipe: done; the bundle is {job.path('bundle')}\n")
    return status


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    parser = make_parser()
    args = parser.parse_args(words)
    try:
        if Path.cwd() != ROOT:
            raise UserError(f"run it in {ROOT}, where the scripts are that its steps name.")
        return run(args, words)
    except UserError as error:
        if args.debug:
            raise
        return refuse(parser.prog, error)
    except KeyboardInterrupt:
        sys.stderr.write("\nrecipe.sh: stopped; the same command goes on\n")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
