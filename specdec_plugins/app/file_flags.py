"""Flags of inference.py about files and reports, and those that change nothing."""

from __future__ import annotations

import argparse


def add_files(parser: argparse.ArgumentParser) -> None:
    """Where lines come from and go to."""
    add = parser.add_argument_group("files").add_argument
    add("--input-path", metavar="FILE", help="UTF-8 lines; '-', the default: standard input")
    add("--output-path", metavar="FILE", help="'-', the default: standard output")
    add(
        "--json-path",
        metavar="FILE",
        help="a JSON line for each line: id, text, tokens, score, rounds, drafted, accepted and "
        "emitted tokens a round, finish reason, milliseconds",
    )
    add(
        "--buffer-size",
        type=int,
        metavar="LINES",
        help="lines that are read, sorted by length, decoded and written together (default: 1000, "
        "and 1 at a terminal)",
    )
    add(
        "--resume",
        action="store_true",
        help="continue an output that was interrupted: its complete lines are kept and as many "
        "lines of the input skipped. OUTPUT.resume, which stands beside an unfinished output, "
        "tells whether it came from the same input and settings; without it the count has to do",
    )


def add_reports(parser: argparse.ArgumentParser) -> None:
    """What is told about a run."""
    add = parser.add_argument_group("reports (standard error)").add_argument
    add(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="a progress bar (default: at a terminal)",
    )
    add("--quiet", action="store_true", help="no summary")
    add(
        "--diagnose",
        action="store_true",
        help="explain the speed: acceptance by position, time by part, and a comparison with plain "
        "decoding on a sample (--strategy specdec only)",
    )
    add(
        "--diagnose-targets",
        metavar="FILE",
        help="targets that the drafter was trained on, as BPE text, parallel to the input: how "
        "well they match what the verifier says",
    )
    add("--debug", action="store_true", help="show where an error was raised")


def add_published(parser: argparse.ArgumentParser) -> None:
    """Flags of the published command that change nothing here; other values are refused."""
    add = parser.add_argument_group(
        "accepted so that published commands run; they change nothing here"
    ).add_argument
    add("--user-dir", metavar="FOLDER")
    add("--task", choices=("translation_lev_modified", "translation"))
    add("--gen-subset", metavar="NAME")
    add("--max-sentences", "--batch-size", type=int, metavar="N", help="see --batch")
    add("--iter-decode-max-iter", type=int, choices=(0,))
    add("--iter-decode-eos-penalty", type=float, choices=(0.0,))
    add("--iter-decode-with-beam", type=int, choices=(1,))
