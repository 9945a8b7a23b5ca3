"""`specdec translate FILE -o FILE`: documents, of which the texts are translated as lines are."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from specdec_plugins.app.files import FileOptions
from specdec_plugins.app.main import Run, Worker
from specdec_plugins.app.types import Sentence
from specdec_plugins.corpus.cli import check, option
from specdec_plugins.documents import BILINGUAL, FORMATS, read
from specdec_plugins.documents.job import CHOICES, Job, read_memory
from specdec_plugins.errors import located, require, telling
from specdec_plugins.formats.output import check_output, is_file, is_same_place, written_whole

_BREAK = re.compile(r"(\r\n|[\r\n])")
_SHOWN = 60  # characters of a text in a message


@dataclass(frozen=True)
class DocumentOptions:
    """A document, and what of it is translated."""

    # fmt: off
    file: str | None = option(None,
        f"a document to translate ({' '.join(FORMATS)}), or another file, of lines; -o names the "
        "translation. Without a FOLDER, the first name may be this one", "FILE", positional=True,
        group="files")
    units: str = option("untranslated", "of a document that holds translations: what has none "
        "(default), or fuzzy ones and those, or all", choices=tuple(CHOICES), group="files")
    memory: str | None = option(None, "translation memory (.tmx), whose translations of whole "
        "texts of a document are used as they are", "FILE", group="files")
    # fmt: on

    def __post_init__(self) -> None:
        check(self)


def parted(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a command line with the names of files where they belong.

    A name that is no folder's is a document's or, without an ending that is known, that of lines.
    """
    named = dict(given)
    is_file = os.path.isfile(name := str(given.get("data", "")))
    if "file" not in given and not os.path.isdir(name) and (is_file or _is_document(name)):
        named["file"] = named.pop("data")
    if "file" in named and not _is_document(named["file"]) and "input_path" not in given:
        named["input_path"] = named.pop("file")
    return named


def _is_document(name: str) -> bool:
    return PurePath(name).suffix.lower() in FORMATS


def tell_of_lines(name: str, files: FileOptions) -> None:
    """Say that a document which was given as lines is read as such, with its markup."""
    path = files.input_path
    if _is_document(path) and not path.lower().endswith(".txt") and not files.quiet:
        sys.stderr.write(
            f"{name}: {path}: is translated line by line, markup and all, as --input-path says; "
            "without that flag it is translated as a document.\n"
        )


@dataclass
class DocumentRun:
    """A document that is being translated.

    Its lines are written to OUTPUT.lines, from which a run that is interrupted goes on.
    """

    name: str  # of the command
    how: DocumentOptions
    worker: Worker
    files: FileOptions
    given: Mapping[str, Any]
    path: str = field(init=False)

    def run(self) -> int:
        files, self.path = self.files, self.how.file or ""
        output = files.output_path
        asked = ("prefix_file", "json_path", "n_best")
        beside = [name for name in asked if name in self.given]
        told = "a document takes no prefixes and gives no lists and no reports on lines; omit "
        told += "--prefix-file, --json-path and --n-best."
        require(not beside, f"{self.path}: {told}")
        told = f"{self.path} is read as FILE, which excludes --input-path; a model is its folder."
        require("input_path" not in self.given, told)
        require(is_file(output), "a document is written whole; name the file to write with -o.")
        has_both = PurePath(self.path).suffix.lower() in BILINGUAL
        source = None if has_both and is_same_place(self.path, output) else self.path
        check_output(output, inputs=[source, self.how.memory, *self.worker.reads])
        with telling(self.path, "cannot be read", "; check the name."):
            data = Path(self.path).read_bytes()
        with located(self.path):
            memory = read_memory(self.how.memory, *self._languages()) if self.how.memory else None
            job = Job(read(self.path, data), self.how.units, memory)
        parts = {text: _BREAK.split(text) for text in job.texts}
        texts = [*dict.fromkeys(line for some in parts.values() for line in some if line.strip())]
        lines = f"{output}.lines"
        try:
            status = self._translate(texts, lines) if texts else 0
        except KeyboardInterrupt as error:
            told = f"what is translated is in {lines}, and --resume goes on."
            is_begun = os.path.exists(lines)
            error.args = (f"interrupted; {told if is_begun else 'nothing is translated yet.'}",)
            raise
        done = Path(lines).read_text(encoding="utf-8").split("\n")[:-1] if texts else []
        said = dict(zip(texts, done, strict=True))
        whole = {text: "".join(said.get(line, line) for line in some)
                 for text, some in parts.items() if all(said.get(s, s) for s in some)}  # fmt: skip
        self._write(job, whole, output)
        Path(lines).unlink(missing_ok=True)
        return 1 if job.lost else status

    def _languages(self) -> tuple[str | None, str | None]:
        own, given = getattr(self.worker, "settings", None), self.given  # a server has none here
        source = getattr(own, "source_lang", given.get("source_lang"))
        return source, getattr(own, "target_lang", given.get("target_lang"))

    def _translate(self, texts: Sequence[str], output: str) -> int:
        sentences = [
            Sentence(number, text, where=f"{self.path}, text {number} ({text[:_SHOWN]!r})")
            for number, text in enumerate(texts, 1)
        ]
        files = replace(self.files, output_path=output, input_path=self.path)
        return Run(self.worker, files, self.name, sentences).run()

    def _write(self, job: Job, translations: Mapping[str, str], output: str) -> None:
        language = self.worker.target_lang if job.texts else self._languages()[1]
        with written_whole(Path(os.path.realpath(output))) as part, located(self.path):
            part.write_bytes(job.written(translations, language))
        for text in job.lost:
            self._say(f"{text[:_SHOWN]!r}: stays, as its translation would have lost markup.")
        if not self.files.quiet:
            count = f"{len(job.document.units)} texts: {len(job.units)} to translate"
            self._say(f"{output}: {count}, {job.num_known} known before, {len(job.lost)} left.")

    def _say(self, message: str) -> None:
        sys.stderr.write(f"{self.name}: {message}\n")
