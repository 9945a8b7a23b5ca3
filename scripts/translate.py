"""Translate what is typed, or a pipe, with the bundled pair of models: `make translate`.

At a terminal the blocks of the drafter are marked. In a pipe there is one line out for each line
in: `echo "Good morning." | scripts/translate.py`. inference.py has all the other ways.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specdec_plugins.app.bundles import make_settings  # noqa: E402
from specdec_plugins.app.files import STANDARD, open_input, read_lines  # noqa: E402
from specdec_plugins.app.prompt import Prompt, translate_pipe  # noqa: E402
from specdec_plugins.app.translator import (
    SpeculativeTranslator,  # noqa: E402
    load_translator,  # noqa: E402
)
from specdec_plugins.errors import Parser, UserError, refuse  # noqa: E402
from specdec_plugins.formats.bundle import read_bundle  # noqa: E402

INTERRUPTED, BROKEN_PIPE = 130, 141


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="translate.py", description=__doc__.split("\n")[0], argument_default=argparse.SUPPRESS
    )
    add = parser.add_argument
    add("data", nargs="?", metavar="BUNDLE", help="folder of a bundle (default: the bundled pair)")
    add("--beta", type=int, metavar="N", help="accept among the N best tokens (1: exact)")
    add("--tau", type=float, metavar="X", help="and at most X nats under the best")
    add("--block-size", type=int, metavar="N", help="tokens drafted a round")
    add("--cpu", dest="device", action="store_const", const="cpu", help="leave a GPU alone")
    add("--debug", action="store_true", help="show where an error was raised")
    return parser


def main() -> int:
    given = vars(make_parser().parse_args())
    debug = given.pop("debug", False)
    try:
        if "data" in given:
            read_bundle(given["data"])  # says in a sentence where it is none
        # Exact unless asked otherwise, whatever a bundle was tuned to.
        run(load_translator(make_settings({"beta": 1, "tau": 0.0, **given, "strategy": "specdec"})))
    except UserError as error:
        if debug:
            raise
        return refuse("translate.py", error)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has enough; Python would flush standard output once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return 0


def run(translator: SpeculativeTranslator) -> None:
    if sys.stdin.isatty():
        import readline  # noqa: F401  (lines can be edited and recalled)

        plain = bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()
        Prompt(translator, sys.stdout, colours=not plain).run(input)
        return
    with open_input(STANDARD) as stream:
        translate_pipe(translator, read_lines(stream, "standard input"), sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
