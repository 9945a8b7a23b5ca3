"""The command line of inference.py: flags, and the two records that they become."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from specdec_plugins.app.bundles import make_settings
from specdec_plugins.app.file_flags import add_files, add_published, add_reports
from specdec_plugins.app.file_options import FileOptions
from specdec_plugins.app.settings import BPES, DTYPES, GREEDY_LIKE, STRATEGIES, TOKENIZERS, Settings
from specdec_plugins.decoding.drafters import DRAFTERS
from specdec_plugins.decoding.networks import KERNELS
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.schedules import SCHEDULES
from specdec_plugins.errors import Parser, require

DESCRIPTION = """\
Translate lines of text with a fairseq Transformer (the verifier), faster through a drafter that
proposes blocks of tokens. With --beta 1 the output is exactly the verifier's greedy output.
"""

EPILOG = """\
One line in gives one line out, in the same order; an empty line gives an empty line. Exit status: 0
done, 1 an error of this program, 2 bad input or settings, 130 interrupted. Whatever happens, the
output holds complete lines only; --resume continues it.
"""


def json_object(text: str) -> dict[str, Any]:
    """The value of a flag that takes a JSON object; for argparse's `type`."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error}): {text!r}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object such as {{}}, not {text!r}")
    return value


def _or_none(text: str) -> str | None:
    return None if text == "none" else text


def make_parser() -> argparse.ArgumentParser:
    """The parser; every destination is a field of `Settings` or `FileOptions`."""
    parser = Parser(
        prog="inference.py",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,  # the records hold the defaults
    )
    _add_models(parser)
    _add_machine(parser)
    _add_method(parser)
    _add_limits(parser)
    _add_text(parser)
    _add_prefix(parser)
    add_files(parser)
    add_reports(parser)
    add_published(parser)
    return parser


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data",
        nargs="?",
        metavar="FOLDER",
        help="a bundle, which brings models, languages and codes (flags override them), or a "
        "folder with dict.<lang>.txt (default: the bundled pair)",
    )
    group = parser.add_argument_group("models")
    add = group.add_argument
    add("--AR-path", dest="verifier", metavar="FILE", help="checkpoint of the verifier")
    add("--path", dest="drafter_checkpoint", metavar="FILE", help="checkpoint of the drafter")
    add(
        "--drafter-data",
        metavar="FOLDER",
        help="dict.<lang>.txt of an assistant whose source dictionary is another (default: "
        "the positional FOLDER); symbols are found by name, and the target dictionary must be the "
        "same",
    )
    add("--source-lang", "-s", metavar="LANG", help="default: from the names of the dictionaries")
    add("--target-lang", "-t", metavar="LANG", help="default: from the names of the dictionaries")


def _add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machine")
    add = group.add_argument
    add(
        "--cpu",
        dest="device",
        action="store_const",
        const="cpu",
        help="do not use a GPU (default: use one where there is one)",
    )
    precision = group.add_mutually_exclusive_group()
    precision.add_argument(
        "--dtype",
        choices=DTYPES,
        help="of the networks (default: float32); int8: products of 8-bit integers, CPU only",
    )
    precision.add_argument(
        "--fp16", dest="dtype", action="store_const", const="float16", help="--dtype float16"
    )
    add(
        "--drafter-dtype",
        choices=["int8"],
        help="of the network that drafts (default: the verifier's); what it drafts is checked, so "
        "exact mode stays exact, CPU only",
    )
    add(
        "--kernels",
        choices=KERNELS,
        help="whose products a CPU computes in float32 and 8 bits: native, this project's own, "
        "where they were built (default), or torch's",
    )


def _add_method(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("decoding").add_argument
    add(
        "--strategy",
        choices=STRATEGIES,
        help="fairseq: its beam search; AR: one token at a time; specdec: drafter and verifier "
        "(default); drafter: the drafter's blocks as they are, unverified; early-exit: one token "
        "at a time with the first --exit-layer decoder layers alone, unverified",
    )
    add("--exit-layer", type=int, metavar="N", help="of --strategy early-exit")
    add("--batch", type=int, metavar="N", help="sentences at once (default: 1)")
    add("--beam", type=int, metavar="N", help="of --strategy fairseq (default: 5)")
    add("--beta", type=int, metavar="N", help="accept among the verifier's N best (default: 1)")
    add("--tau", type=float, metavar="X", help="and at most X nats under its best (default: 0)")
    add(
        "--block-size",
        type=int,
        metavar="N",
        help="tokens drafted a round (default: what the drafter was trained for)",
    )
    add("--drafter", choices=DRAFTERS.names(), help="how to draft (default: block)")
    add("--drafter-options", type=json_object, metavar="JSON", help="settings of the drafter")
    add(
        "--bigrams",
        metavar="FILE",
        help="of scripts/count-bigrams.sh: drafted tokens are chosen to go together, too",
    )
    add("--rule", choices=RULES.names(), help="default: exact for beta 1, else top_beta")
    add("--schedule", choices=SCHEDULES.names(), help="how many to draft (default: constant)")
    add("--schedule-options", type=json_object, metavar="JSON", help="settings of the schedule")
    add("--temperature", type=float, metavar="X", help="for rules that sample (default: 1)")
    add("--top-k", type=int, metavar="N", help="for rules that sample (default: 0, all)")
    add("--top-p", type=float, metavar="X", help="for rules that sample (default: 1, all)")
    add("--seed", type=int, metavar="N", help="of rules that sample; line n draws with N + n")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits and fairseq's search").add_argument
    add(
        "--greedy-like",
        choices=GREEDY_LIKE,
        help="published: the plain argmax (default); fairseq: never <pad>, and no end of sentence "
        "as first token, as fairseq's own search has it",
    )
    add(
        "--max-len-a",
        type=float,
        metavar="A",
        help="at most A * source tokens + B target tokens; each sentence's own source counts, its "
        "end included, and never more than the model has positions for (default: 0)",
    )
    add("--max-len-b", type=int, metavar="B", help="default: 200")
    add("--min-len", type=int, metavar="N", help="no end of sentence before N target tokens")
    add("--lenpen", type=float, metavar="X", help="--strategy fairseq only (default: 1)")
    add("--unkpen", type=float, metavar="X", help="--strategy fairseq only (default: 0)")
    add("--no-repeat-ngram-size", type=int, metavar="N", help="--strategy fairseq only")


def _add_text(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("text").add_argument
    add(
        "--tokenizer",
        type=_or_none,
        metavar="NAME",
        help=f"raw text in and out, with --bpe and --bpe-codes: {', '.join(TOKENIZERS)}, or none",
    )
    add(
        "--bpe",
        type=_or_none,
        metavar="NAME",
        help=f"how words become tokens: {', '.join(BPES)}, or none",
    )
    add("--bpe-codes", metavar="FILE", help="of subword-nmt learn-bpe")
    add("--lowercase", action="store_true", help="raw text of models trained on lower case")
    add("--dash-splits", action="store_true", help="of models trained on a @-@ b for a-b")
    add("--strip-diacritics", action="store_true", help="of Romanian models trained without them")
    add(
        "--remove-bpe",
        "--post-process",
        nargs="?",
        const="@@ ",
        type=_or_none,
        metavar="SYMBOL",
        help="how to join subwords where the input is BPE text: the mark between them, or "
        "'sentencepiece' (default: '@@ '); 'none' leaves them apart. A bundle's input is BPE text "
        "where this is given, raw text where it is not",
    )


def _add_prefix(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("forced beginnings, and long lines").add_argument
    add(
        "--prefix-file",
        metavar="FILE",
        help="line n is what the translation of line n must begin with, in the form of the input",
    )
    add(
        "--prefix-column",
        action="store_true",
        help="the same after a tab in each line of the input",
    )
    add(
        "--prefix-size",
        type=int,
        metavar="N",
        help="force only the first N tokens of each prefix, which is then taken for a whole "
        "reference whose end counts as a token, as in fairseq",
    )
    add(
        "--truncate-source",
        action="store_true",
        help="cut lines that are longer than the model's positions (default: refuse them)",
    )


def given_settings(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Fields of `Settings` that a command line gives; whether they can be is not asked yet.

    Exits with status 2 for flags that do not exist.
    """
    return _fields_of(Settings, make_parser().parse_args(argv))


def _fields_of(record: Any, given: argparse.Namespace) -> dict[str, Any]:
    names = {f.name for f in fields(record)}
    return {name: value for name, value in vars(given).items() if name in names}


def parse_options(argv: Sequence[str] | None = None) -> tuple[Settings, FileOptions]:
    """Settings and files of a command line.

    Raises UserError for values that cannot be; exits with status 2 for flags that do not exist.
    """
    given = make_parser().parse_args(argv)
    settings = make_settings(_fields_of(Settings, given))
    files = FileOptions(**_fields_of(FileOptions, given))
    require(
        not (settings.prefix_size and not (files.prefix_file or files.prefix_column)),
        "--prefix-size counts tokens of a reference; give one with --prefix-file or "
        "--prefix-column.",
    )
    require(
        not files.diagnose or settings.strategy == "specdec",
        "--diagnose explains speculative decoding; use it with --strategy specdec.",
    )
    return settings, files
