"""The commands that translate lines: what they share, and inference.py as published."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Protocol

from specdec_plugins.app.defaults import make_settings
from specdec_plugins.app.files import (
    FileOptions,
    Journal,
    Sentences,
    check_places,
    count_lines,
    in_buffers,
    is_typed,
    open_sentences,
    progress_bar,
)
from specdec_plugins.app.loading import origin
from specdec_plugins.app.report import Flaws, Tally, peak_memory, summary
from specdec_plugins.app.settings import Settings, choose_device, use_cores
from specdec_plugins.app.translator import SpeculativeTranslator, load_translator
from specdec_plugins.app.types import Sentence, Translation
from specdec_plugins.corpus.cli import CommandLine, Option, build, flags_of, given_to, removed_from
from specdec_plugins.errors import require, run_command
from specdec_plugins.formats.output import LineWriter, is_file

INCOMPLETE = 1  # some line is cut, copied or empty

INTERRUPTED = "interrupted; the output holds complete lines only"
NOTHING = "interrupted before a line was written"
RESUME = ", and --resume continues it"
MIB = 2**20

DESCRIPTION = """\
Translate lines of text with a Transformer (the verifier), sped up by a drafter that proposes \
blocks of tokens. With --beta 1 the output is exactly the verifier's greedy output.
"""

EPILOG = """\
examples:
  specdec translate --input-path raw.en --output-path raw.de  # the bundled pair
  specdec translate models/mine --processes 4 < raw.en > raw.de
  specdec translate app.po -o app.de.po                       # a document
  specdec translate --server http://127.0.0.1:8080 < raw.en > raw.de
  specdec translate data-bin --AR-path verifier.pt --path drafter.pt \\
      --beta 3 --tau 1.0 < test.bpe.en > test.de              # fairseq's

One line in gives one line out, in the same order, as soon as it is ready; an empty line gives an \
empty line. specdec translate splits lines of raw text into sentences unless told --no-split; \
inference.py does not unless told --split. Whatever happens, the output holds complete lines only; \
--resume continues it. Exit status: 0 done, 1 a line is cut, copied or empty (which is said) or an \
error of this program, 2 bad input or settings, 130 interrupted.
"""


FLAGS = sorted(flags_of(Settings, FileOptions), key=lambda one: one.group != "files")


def command_line(
    name: str, flags: Sequence[Option], removed: Mapping[str, str] | None = None
) -> CommandLine:
    """A command that translates lines. removed: more flags of earlier versions."""
    removed = {**removed_from(Settings, FileOptions), **(removed or {})}
    has_documents = any(flag.name == "file" for flag in flags)
    usage = f"{name} [FOLDER] {'[FILE] ' * has_documents}[flags]"
    return CommandLine(name, None, flags, DESCRIPTION, epilog=EPILOG, removed=removed, usage=usage)


_NO_EFFECT = "accepted for compatibility with published commands; no effect here"
INFERENCE = command_line("inference.py", [
    *FLAGS,
    *(
        Option(None, _NO_EFFECT, name=name, choices=allowed, group="published")
        for name, allowed in {
            "user_dir": (), "task": ("translation_lev_modified", "translation"), "gen_subset": (),
            "iter_decode_max_iter": ("0",), "iter_decode_eos_penalty": ("0", "0.0"),
            "iter_decode_with_beam": ("1",),
        }.items()
    ),
    Option(None, f"{_NO_EFFECT}, see --batch", name="max_sentences", type=int, group="published",
           flags=("--max-sentences", "--batch-size")),
])  # fmt: skip


def read_options(given: Mapping[str, Any]) -> tuple[Settings, FileOptions]:
    """Settings and files of the values of a command line. Raises UserError for invalid ones."""
    settings = make_settings(given_to(Settings, given))
    files = build(FileOptions, given)
    require(
        not settings.prefix_size or files.prefix_file is not None,
        "--prefix-size counts tokens of a reference; give one with --prefix-file.",
    )
    return settings, files


def inference(words: Sequence[str] | None = None) -> int:
    """Run inference.py; returns the exit status."""
    given = INFERENCE.given(words)

    def work() -> int:
        settings, files = read_options(given)
        return Run(Here(settings), files, INFERENCE.name).run()

    return run_command(INFERENCE.name, work, "debug" in given, "interrupted.")


# Sentences in order, some at a time
Translated = Generator[tuple[Sequence[Sentence], Sequence[Translation]]]


class Worker(Protocol):
    """What translates the lines of a run."""

    @property
    def num_best(self) -> int:
        """Translations of a line; several are written as a list."""

    def origin(self) -> dict[str, dict[str, Any]]:
        """What the lines of an output depend on; see `loading.origin`."""

    @property
    def reads(self) -> list[str]:
        """Files that it reads, which no output may be."""

    @property
    def target_lang(self) -> str | None:
        """The language of the translations, as far as it is known."""

    def start(self, files: FileOptions, say: Callable[[str], object]) -> None:
        """Get ready, after the cheap checks and before anything is written."""

    def translated(self, sentences: Sentences, on_done: Callable[[], None]) -> Translated:
        """All sentences in order, some at a time. on_done: is called for each."""

    def report(self, tally: Tally, seconds: float) -> str:
        """The summary of a run."""


class Here:
    """This process, with the models that the settings name."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._loaded: SpeculativeTranslator | None = None

    @property
    def reads(self) -> list[str]:
        own = self.settings
        paths = (own.verifier, own.drafter_checkpoint, own.bpe_codes, own.glossary)
        return [path for path in paths if path is not None]

    @property
    def target_lang(self) -> str | None:
        return self._loaded.codec.target_lang if self._loaded else self.settings.target_lang

    @property
    def _translator(self) -> SpeculativeTranslator:
        assert self._loaded is not None, "not started"
        return self._loaded

    @property
    def num_best(self) -> int:
        return self.settings.n_best

    def origin(self) -> dict[str, dict[str, Any]]:
        return origin(self.settings)

    def start(self, files: FileOptions, say: Callable[[str], object]) -> None:
        settings, path = self.settings, self.settings.drafter_checkpoint
        if path is not None and settings.drafts and settings.needs.network is None:
            say(f"--path {path} is unused: drafter {settings.drafter} reads no checkpoint.")
        self._size = files.buffer_size
        use_cores()
        self._loaded = load_translator(settings, with_scores=bool(files.json_path))

    def translated(self, sentences: Sentences, on_done: Callable[[], None]) -> Translated:
        for buffer in in_buffers(sentences, self._size, sentences.is_awaited):
            yield buffer, self._translator.translate_sentences(buffer, on_done)

    def report(self, tally: Tally, seconds: float) -> str:
        stats, limits = self._translator.stats, self._translator.limits
        peak = peak_memory(choose_device(self.settings.device)) / MIB
        text = summary(tally, stats, self.settings, limits, seconds)
        return f"{text}\npeak memory {peak:.0f} MiB"


class Run:
    """One run over one input."""

    def __init__(
        self,
        worker: Worker,
        files: FileOptions,
        name: str,
        sentences: Sequence[Sentence] | None = None,
    ) -> None:
        """sentences: those to translate, in place of the lines of the input."""
        self._given = sentences
        self.worker = worker
        self.files = files
        self._name = name
        self.tally, self.flaws = Tally(), Flaws(self._say)
        self._advice = RESUME if all(map(is_file, files.outputs)) else ""
        made_from = worker.origin() if is_file(files.output_path) else {}
        self.journal = Journal(files.output_path, made_from, self._advice)

    def _say(self, message: str) -> None:
        sys.stderr.write(f"{self._name}: {message}\n")

    def run(self) -> int:
        """Do the cheap checks, load, then decode buffer by buffer; returns the exit status."""
        try:
            return self._run()
        except KeyboardInterrupt as error:
            has_lines = self.tally.sentences or self.files.resume
            told = f"{INTERRUPTED}{self._advice}" if has_lines else NOTHING
            error.args = (f"{told}.",)
            raise

    def _run(self) -> int:
        with ExitStack() as stack:
            given = self._given
            opened = open_sentences(self.files) if given is None else None
            sentences = stack.enter_context(opened) if opened else Sentences(iter(given or ()), [])
            kept = self._check_outputs()
            if not self.files.debug:
                logging.getLogger("fairseq").setLevel(logging.WARNING)
            self.worker.start(self.files, self._say)
            self.journal.skip(sentences, kept)
            writers = [
                stack.enter_context(LineWriter(path, kept, self._advice))
                for path in self.files.outputs
            ]
            stack.callback(self.flaws.sum_up)
            start, source = time.perf_counter(), self.files.input_path
            total = None if given is None else len(given)
            if is_typed(source) and given is None:
                self._say("type a sentence and press Enter; ctrl-D ends.")
            bar = stack.enter_context(progress_bar(source, self.files.progress, kept, total))
            translated = self.worker.translated(sentences, bar.update)
            for buffer, done in stack.enter_context(closing(translated)):
                self._write(writers, buffer, done)
                self.journal.record(buffer)
            self._write(writers, [], [])  # an empty input makes an empty output
            seconds = time.perf_counter() - start
            self.journal.remove()
        if not self.files.quiet:
            sys.stderr.write(f"{self.worker.report(self.tally, seconds)}\n")
        return INCOMPLETE if self.flaws.lines else 0

    def _check_outputs(self) -> int:
        """Lines of earlier outputs to keep. Raises UserError before models are loaded."""
        files = self.files
        check_places([*files.inputs, *self.worker.reads], files.outputs)
        if not files.resume:
            if self.journal.exists:
                self._say(
                    f"{files.output_path}: the {count_lines(files.output_path)} lines of a run "
                    "that did not finish are replaced; --resume would have continued it."
                )
            return 0
        told = "--resume counts lines, of which --n-best writes several a line; omit one of them."
        require(self.worker.num_best == 1, told)
        kept = min(count_lines(path) for path in files.outputs)
        if not self.journal.read(kept) and kept:
            self._say(
                f"{files.output_path}: no record of what it was made from; "
                f"continuing after its {kept} complete lines."
            )
        return kept

    def _write(
        self, writers: Sequence[LineWriter], buffer: Sequence[Sentence], done: Sequence[Translation]
    ) -> None:
        """Write the texts and, if asked for, the JSON lines."""
        lists = self.worker.num_best > 1
        writers[0].write([
            text + line.end
            for one, line in zip(done, buffer, strict=True)
            for text in (one.list_lines if lists else [one.text])
        ])  # fmt: skip
        for records in writers[1:]:
            records.write([json.dumps(t.to_dict(), ensure_ascii=False) for t in done])
        self.tally.add(done)
        for line, one in zip(buffer, done, strict=True):
            self.flaws.add(one.number, line.where, one)
