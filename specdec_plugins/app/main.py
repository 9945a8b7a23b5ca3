"""Command lines that translate: inference.py for files, scripts/translate.py interactively."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from specdec_plugins.app.files import (
    FileOptions,
    Journal,
    check_places,
    count_lines,
    in_buffers,
    open_sentences,
    progress_bar,
)
from specdec_plugins.app.loading import make_settings, origin
from specdec_plugins.app.options import add_options, build, given_to
from specdec_plugins.app.report import Diagnosis, Flaws, Tally, peak_memory, summary
from specdec_plugins.app.settings import EXACT, Settings, choose_device
from specdec_plugins.app.translator import SpeculativeTranslator, load_translator
from specdec_plugins.app.types import BlockTranslation, Sentence, Translation
from specdec_plugins.errors import Parser, UserError, require, run_command
from specdec_plugins.formats.bundle import read_bundle
from specdec_plugins.formats.output import LineWriter, is_file
from specdec_plugins.formats.pretrained.config import is_pretrained

INCOMPLETE = 1  # some line is cut, copied or empty

INTERRUPTED = "interrupted; the output holds complete lines only"
RESUME = ", and --resume continues it"
MIB = 2**20

PROMPT = "> "
BRACKETS = ("[", "]")
COLOURS = ("\033[1;32m", "\033[0m")  # bold green

EXPLANATION = (
    "Type a sentence and press Enter; an empty line or ctrl-D ends. Text marked {marked}\n"
    "was drafted in one block and accepted; the rest is the verifier's own.\n"
)


DESCRIPTION = """\
Translate lines of text with a Transformer (the verifier), sped up by a drafter
that proposes blocks of tokens. With --beta 1 the output is exactly the
verifier's greedy output.
"""

EPILOG = """\
examples:
  %(prog)s --input-path raw.en --output-path raw.de       # the bundled pair
  %(prog)s models/mine --batch 16 < raw.en > raw.de       # a bundle
  %(prog)s data-bin --AR-path verifier.pt --path drafter.pt \\
      --beta 3 --tau 1.0 < test.bpe.en > test.de               # fairseq's

One line in gives one line out, in the same order; an empty line gives an empty
line. Whatever happens, the output holds complete lines only; --resume continues
it. Exit status: 0 done, 1 a line is cut, copied or empty (which is said) or an
error of this program, 2 bad input or settings, 130 interrupted.
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser; every destination is a field of `Settings` or `FileOptions`."""
    parser = Parser(
        prog="inference.py",
        usage="%(prog)s [FOLDER] [flags]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser, Settings, FileOptions, first=("files",))
    _add_published(parser)
    return parser


def _add_published(parser: argparse.ArgumentParser) -> None:
    """Flags of the published command that change nothing here; other values are refused."""
    add = parser.add_argument_group(
        "accepted for compatibility with published commands; no effect here"
    ).add_argument
    add("--user-dir", metavar="FOLDER")
    add("--task", choices=("translation_lev_modified", "translation"))
    add("--gen-subset", metavar="NAME")
    add("--max-sentences", "--batch-size", type=int, metavar="N", help="see --batch")
    add("--iter-decode-max-iter", type=int, choices=(0,))
    add("--iter-decode-eos-penalty", type=float, choices=(0.0,))
    add("--iter-decode-with-beam", type=int, choices=(1,))


def given_settings(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Fields of `Settings` that a command line gives, not validated.

    Exits with status 2 for flags that do not exist.
    """
    return given_to(Settings, vars(make_parser().parse_args(argv)))


def parse_options(argv: Sequence[str] | None = None) -> tuple[Settings, FileOptions]:
    """Settings and files of a command line.

    Raises UserError for invalid values; exits with status 2 for flags that do not exist.
    """
    given = vars(make_parser().parse_args(argv))
    settings = make_settings(given_to(Settings, given))
    files = build(FileOptions, given)
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


def say(message: str) -> None:
    """Print a message to standard error."""
    sys.stderr.write(f"inference.py: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run inference.py; returns the exit status."""
    debug = "--debug" in (sys.argv if argv is None else argv)
    return run_command(
        "inference.py", lambda: Run(*parse_options(argv)).run(), debug, "interrupted."
    )


def translate(argv: Sequence[str] | None = None) -> int:
    """Run scripts/translate.py: interactively or in a pipe, by default with a bundle."""
    parser = Parser(
        prog="translate.py",
        description="Translate typed or piped lines with a bundle or a transformers model. At a "
        "terminal, accepted blocks of the drafter are marked. inference.py has all other options.",
    )
    languages = ("source_lang", "target_lang")
    add_options(parser, Settings, only=("data", *languages, "device", *EXACT, "block_size"))
    add_options(parser, FileOptions, only=("debug",))
    given = vars(parser.parse_args(argv))

    def work() -> int | None:
        asked = {**EXACT, **given_to(Settings, given)}  # exact unless asked otherwise
        if "data" not in given or not is_pretrained(given["data"]):
            asked["strategy"] = "specdec"
            if "data" in given:
                read_bundle(given["data"])  # raises a clear error if it is no bundle
        settings = make_settings(asked)
        if sys.stdin is None or not sys.stdin.isatty():
            return Run(settings, FileOptions(buffer_size=1, progress=False, quiet=True)).run()
        import readline  # noqa: F401  (lines can be edited and recalled)

        plain = bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()
        Prompt(load_translator(settings), sys.stdout, colours=not plain).run(input)
        return None

    return run_command("translate.py", work, "debug" in given, "interrupted.")


class Run:
    """One run over one input."""

    def __init__(self, settings: Settings, files: FileOptions) -> None:
        self.settings = settings
        self.files = files
        self.tally, self.flaws = Tally(), Flaws(say)
        self._advice = RESUME if all(map(is_file, files.outputs)) else ""
        made_from = origin(settings) if is_file(files.output_path) else {}
        self.journal = Journal(files.output_path, made_from, self._advice)

    def run(self) -> int:
        """Do the cheap checks, load, then decode buffer by buffer; returns the exit status."""
        try:
            return self._run()
        except KeyboardInterrupt as error:
            error.args = (f"{INTERRUPTED}{self._advice}.",)
            raise

    def _run(self) -> int:
        with ExitStack() as stack:
            sentences = stack.enter_context(open_sentences(self.files))
            kept = self._check_outputs()
            settings, path = self.settings, self.settings.drafter_checkpoint
            if path is not None and settings.drafts and settings.needs.network is None:
                say(f"--path {path} is unused: drafter {settings.drafter} reads no checkpoint.")
            if not self.files.debug:
                logging.getLogger("fairseq").setLevel(logging.WARNING)
            translator = load_translator(self.settings, with_scores=bool(self.files.json_path))
            diagnosis = Diagnosis(translator) if self.files.diagnose else None
            self.journal.skip(sentences, kept)
            writers = [
                stack.enter_context(LineWriter(path, kept, self._advice))
                for path in self.files.outputs
            ]
            stack.callback(self.flaws.sum_up)
            start, source = time.perf_counter(), self.files.input_path
            bar = stack.enter_context(progress_bar(source, self.files.progress, kept))
            size = self.files.buffer_size
            for buffer in in_buffers(sentences, size, sentences.is_awaited):
                done = translator.translate_sentences(buffer, bar.update)
                self._write(writers, buffer, done)
                self.journal.record(buffer)
                if diagnosis is not None:
                    diagnosis.observe(buffer)
            self._write(writers, [], [])
            seconds = time.perf_counter() - start
            self.journal.remove()
        self._report(translator, seconds, diagnosis)
        return INCOMPLETE if self.flaws.lines else 0

    def _check_outputs(self) -> int:
        """Lines of earlier outputs to keep. Raises UserError before models are loaded."""
        files = self.files
        check_places(files.inputs, files.outputs)
        if not files.resume:
            return 0
        kept = min(count_lines(path) for path in files.outputs)
        if not self.journal.read(kept) and kept:
            say(
                f"{files.output_path}: no record of what it was made from; "
                f"continuing after its {kept} complete lines."
            )
        return kept

    def _write(
        self, writers: Sequence[LineWriter], buffer: Sequence[Sentence], done: Sequence[Translation]
    ) -> None:
        """Write the texts and, if asked for, the JSON lines."""
        writers[0].write([t.text + s.end for t, s in zip(done, buffer, strict=True)])
        for records in writers[1:]:
            records.write([json.dumps(t.to_dict(), ensure_ascii=False) for t in done])
        self.tally.add(done)
        for line, one in zip(buffer, done, strict=True):
            self.flaws.add(one.number, line.where, one)

    def _report(
        self, translator: SpeculativeTranslator, seconds: float, diagnosis: Diagnosis | None
    ) -> None:
        if not self.files.quiet:
            stats, limits = translator.decoder.stats, translator.limits
            peak = peak_memory(choose_device(self.settings.device)) / MIB
            text = summary(self.tally, stats, self.settings, limits, seconds)
            sys.stderr.write(f"{text}\npeak memory {peak:.0f} MiB\n")
        if diagnosis is not None:
            sys.stderr.write(f"{diagnosis.report()}\n")


@dataclass(frozen=True)
class Prompt:
    """Interactive translation at a terminal."""

    translator: SpeculativeTranslator
    out: TextIO
    colours: bool = False  # mark blocks by colour, not by brackets

    @property
    def _marks(self) -> tuple[str, str]:
        return COLOURS if self.colours else BRACKETS

    def run(self, ask: Callable[[str], str]) -> None:
        """Translate lines from `ask`, which is `input`, until an empty line or its end."""
        self._say(EXPLANATION.format(marked="like this".join(self._marks)))
        with suppress(EOFError):
            while line := ask(PROMPT).strip():
                try:
                    self._say(self.answer(self.translator.translate_in_blocks(line)))
                except UserError as error:
                    self._say(f"  {error}")
            return
        self._say("")

    def answer(self, done: BlockTranslation) -> str:
        """The output for one translation."""
        text = done.marked(*self._marks)
        each = done.num_tokens / done.rounds if done.rounds else 0.0
        rounds = "round" if done.rounds == 1 else "rounds"
        cut = ", cut at the length limit" if done.is_cut else ""
        return (
            f"  {text}\n  {done.num_tokens} tokens in {done.rounds} {rounds}, {each:.1f} a round, "
            f"{1000 * done.seconds:.0f} ms{cut}"
        )

    def _say(self, text: str) -> None:
        self.out.write(text + "\n")
        self.out.flush()
