"""The command `specdec`: its subcommands, each of which is imported when it is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import specdec_plugins
from specdec_plugins.errors import forget_no_columns, refuse, run_command, run_program

if TYPE_CHECKING:
    from cyclopts import App

NAME = "specdec"
# Where each command is, and what --help says of it. A second word is a command of the first.
COMMANDS = {
    "translate": ("serving.translate:main", "Translate files, pipes, or what is typed."),
    "serve": ("serving.cli:main", "Serve translations over HTTP."),
    "drafter": ("app.drafter:COMMAND.run", "Train a drafter for an existing model."),
    "prepare": ("corpus.prepare:COMMAND.run", "Make parallel text into training data."),
    "prepare mix": (
        "corpus.decontaminate:COMMAND.run",
        "Merge training files without the sentences of dev and test sets.",
    ),
    "prepare masks": ("corpus.masks:COMMAND.run", "Put symbols in place of spans to copy."),
    "prepare wmt": ("corpus.wmt:COMMAND.run", "Fetch and prepare a published data set."),
    "distill": ("corpus.distill:COMMAND.run", "Translate training data with a verifier."),
    "train verifier": ("training.run:VERIFIER.run", "Train a Transformer by fairseq."),
    "train drafter": ("training.run:DRAFTER.run", "Train a drafter as published, by fairseq."),
    "train average": ("corpus.checkpoints:COMMAND.run", "Average checkpoints of one training."),
    "train recipe": ("training.recipe:COMMAND.run", "Train a pair from parallel text alone."),
    "evaluate": ("corpus.scoring:EVALUATE.run", "Score translations."),
    "evaluate ref": ("corpus.scoring:REF.run", "Score with compound splitting, as published."),
    "evaluate exactness": ("app.exactness:main", "Explain where drafts change the output."),
    "convert bundle": ("app.convert:BUNDLE.run", "Make a bundle of models."),
    "convert fairseq": ("app.convert:FAIRSEQ.run", "Make fairseq checkpoints of a bundle."),
    "convert marian": ("app.convert:MARIAN.run", "Make a MarianMT model of a verifier."),
    "convert ctranslate2": ("app.convert:CTRANSLATE2.run", "Make a CTranslate2 model of one."),
    "bench": ("benchmarks.run:COMMAND.run", "Measure all engines side by side."),
    "bench fleet": ("benchmarks.fleet:COMMAND.run", "Say how many cores a load takes."),
    "bench sizes": ("benchmarks.sizes:COMMAND.run", "Measure models of known sizes."),
    "bench reproduce": ("benchmarks.reproduce:COMMAND.run", "Run the paper's experiments."),
}
# Commands of earlier versions, and what to do instead
REMOVED = {
    "convert bigrams": "the head of a drafter that specdec drafter trains does more than bigrams"
}
# Names that are commands only with a second word.
GROUPS = {"train": ("", "Train models."), "convert": ("", "Convert models and their data.")}


def app(has_flags: bool = False) -> App:
    """All commands by name; they are imported only to know their flags, for completion and docs."""
    from cyclopts import App  # a command that is found does not need it

    groups = {"": App(NAME, version=specdec_plugins.__version__)}
    groups[""].help = "Speculative translation. specdec COMMAND --help explains a command."
    for name, (where, told) in {**GROUPS, **COMMANDS}.items():
        *group, last = name.split()
        groups[name] = App(last, help=told)
        if where and has_flags and _is_here(where):
            module, function = _place(where)
            found = attrgetter(function.rpartition(".")[0] or "COMMAND")(import_module(module))
            groups[name].default(found.app.default_command)
        groups["".join(group)].command(groups[name])
    groups[""].register_install_completion_command(help="Complete commands and flags in a shell.")
    return groups[""]


def _place(where: str) -> tuple[str, str]:
    """A command's module and function."""
    module, _, function = where.partition(":")
    return ("" if module.startswith("benchmarks.") else "specdec_plugins.") + module, function


def _is_here(where: str) -> bool:
    """False for a benchmark without a clone, which alone has them. It makes them importable."""
    folder, _, name = _place(where)[0].rpartition(".")
    clone = Path(specdec_plugins.__file__).resolve().parents[1]
    if folder == "benchmarks" and str(clone) not in sys.path:
        sys.path.insert(0, str(clone))  # the program specdec finds only what is installed
    return folder != "benchmarks" or (clone / folder / f"{name}.py").is_file()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Seconds between two states of a progress bar: few in a log. tqdm reads it when imported.
    is_log = sys.stderr is None or not sys.stderr.isatty()
    os.environ.setdefault("TQDM_MININTERVAL", "10" if is_log else "0.5")
    for name in (" ".join(words[:2]), *words[:1]):
        if name in COMMANDS:
            if not _is_here(COMMANDS[name][0]):
                return refuse(NAME, f"{name} is in a clone of the project alone; install that: "
                              "make setup there")  # fmt: skip
            return run_program(*_place(COMMANDS[name][0]), words[len(name.split()) :])
        if name in REMOVED:
            return refuse(NAME, f"{name} was removed: {REMOVED[name]}.")
    from cyclopts import CycloptsError

    forget_no_columns()
    read = partial(app("--install-completion" in words), words, result_action="return_value")
    show = partial(read, exit_on_error=False, print_error=False)
    try:
        return run_command(NAME, show, debug=False, interrupted="stopped")
    except CycloptsError as error:
        return refuse(NAME, f"{error} {NAME} --help lists the commands")


def _renamed(old: str, new: str) -> int:
    sys.stderr.write(f"{old}: is called {NAME} {new} now; this name goes with the next version\n")
    return main([new, *sys.argv[1:]])


def serve() -> int:
    """The earlier command specdec-serve."""
    return _renamed("specdec-serve", "serve")


def translate() -> int:
    """The earlier command specdec-translate."""
    return _renamed("specdec-translate", "translate")


if __name__ == "__main__":
    sys.exit(main())
