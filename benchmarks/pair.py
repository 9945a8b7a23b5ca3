"""What is measured with: a pair of models, a test file, and the tokens that all engines read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from specdec_plugins.app.codec import Codec
from specdec_plugins.app.loading import (
    DRAFTER,
    VERIFIER,
    make_settings,
    settings_from_files,
    text_pipeline,
)
from specdec_plugins.app.settings import Settings
from specdec_plugins.corpus.reading import BadLines, ParallelFile, read_pairs
from specdec_plugins.errors import require
from specdec_plugins.formats.bundle import CODES, is_bundle
from specdec_plugins.formats.dictionaries import Dictionaries, load_dictionaries
from specdec_plugins.formats.models import read_model
from specdec_plugins.formats.text import TextPipeline

ASSISTANT = "assistant.pt"
NOTE = "note.txt"  # a sentence that every result of the pair repeats


@dataclass(frozen=True)
class Sentence:
    """One source sentence, in both forms that engines take."""

    number: int  # of its line, from 1
    tokens: list[str]  # subwords, without the end of the sentence
    ids: list[int]  # in the source dictionary, the end of the sentence included


@dataclass(frozen=True)
class Pair:
    """The models of one folder. Paths and settings alone, so that it goes between processes."""

    settings: Settings  # as the command line would have them, for text
    assistant: str | None = None  # checkpoint of a smaller model with the same dictionaries

    @classmethod
    def of(cls, folder: Path, source_lang: str | None, target_lang: str | None) -> Pair:
        """The pair in a folder. Raises UserError where a file is missing."""
        languages = {"source_lang": source_lang, "target_lang": target_lang}
        given: dict[str, Any] = {"data": str(folder), **languages}
        if not is_bundle(folder):
            given = settings_from_files(folder, given)
            require(
                "verifier" in given,
                f"{folder}: holds no {VERIFIER}; give a bundle, or a folder with {VERIFIER}, "
                f"{DRAFTER}, dict.<lang>.txt and {CODES}.",
            )
        settings = make_settings(given)
        assistant = folder / ASSISTANT
        return cls(settings, str(assistant) if assistant.is_file() else None)

    @property
    def name(self) -> str:
        """Of the folder."""
        return Path(self.settings.data).resolve().name

    @property
    def verifier(self) -> str:
        """Its file."""
        assert self.settings.verifier is not None  # Settings refuses it
        return self.settings.verifier

    @property
    def drafter(self) -> str | None:
        """Registered name of the pair's drafter; None where it has none."""
        return self.settings.drafter if self.settings.drafts else None

    def describe(self) -> dict[str, Any]:
        """Sizes of both models as people read them, the drafter's number of weights, and a note.

        The note is what every result must say of the pair; mostly nothing.
        """
        drafter, num_weights = self.drafter or "none", 0
        if self.drafter is not None and self.settings.drafter_checkpoint is not None:
            model = read_model(self.settings.drafter_checkpoint)
            drafter, num_weights = f"{drafter}, {model.describe()}", model.num_weights
        note = Path(self.settings.data) / NOTE
        return {
            "verifier": read_model(self.verifier).describe(),
            "drafter": drafter,
            "drafter_weights": num_weights,
            "note": note.read_text(encoding="utf-8").strip() if note.is_file() else "",
        }

    def dictionaries(self) -> Dictionaries:
        settings = self.settings
        return load_dictionaries(settings.data, settings.source_lang, settings.target_lang)

    def codec(self) -> Codec:
        """Between ids and the dictionaries' symbols."""
        found = self.dictionaries()
        return Codec(found.source, found.target)

    def text(self) -> TextPipeline:
        """Between raw lines and subwords."""
        return text_pipeline(self.settings, self.dictionaries())

    def token_settings(self) -> Settings:
        """The same for input that is tokens, with the bans of fairseq's search."""
        no_text: dict[str, Any] = {"tokenizer": None, "bpe": None, "bpe_codes": None}
        no_text |= {"lowercase": False, "dash_splits": False, "strip_diacritics": False}
        return replace(self.settings, **no_text, greedy_like="fairseq", max_len_a=0.0)


@dataclass(frozen=True)
class TestSet:
    """Sentences, and how their translations are scored."""

    name: str
    sentences: Sequence[Sentence]
    references: Sequence[str] | None  # None = there are none, and no scores
    text: TextPipeline | None = None  # None = tokens are no text

    __test__ = False  # no class of tests, whatever pytest thinks of its name

    def decode(self, tokens: Sequence[str]) -> str:
        """The line that a user reads."""
        line = " ".join(tokens)
        return line if self.text is None else self.text.decode(line)


def read_test_set(path: str, pair: Pair, limit: int | None = None) -> TestSet:
    """Raw parallel text, tokenised once for everyone.

    path: a TSV whose first two columns are source and target, or SOURCE,TARGET; plain, .gz or .xz.
    limit: the first so many pairs. Pairs with an empty source are left out. Raises UserError where
    a line is bad.
    """
    corpus = ParallelFile.parse(path, columns=(1, 2))
    lines = list(islice(read_pairs(corpus, BadLines()), limit))
    text, dictionary = pair.text(), pair.dictionaries().source
    encoded = [(number, text.encode(source)) for number, (source, _) in enumerate(lines, 1)]
    sentences = [
        Sentence(number, line.split(), dictionary.encode_line(line))
        for number, line in encoded
        if line
    ]
    require(bool(sentences), f"{path}: holds no sentence.")
    return TestSet(
        Path(path.split(",")[0]).name, sentences, [lines[s.number - 1][1] for s in sentences], text
    )
