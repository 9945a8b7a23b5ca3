"""The subject of a run: a pair of models, a test file, and the tokens that all engines read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from specdec_plugins.app.codec import Codec
from specdec_plugins.app.defaults import make_settings, settings_from_files
from specdec_plugins.app.loading import Words, read_words, text_pipeline
from specdec_plugins.app.settings import DRAFTER, VERIFIER, Settings
from specdec_plugins.corpus.reading import BadLines, ParallelFile, read_pairs
from specdec_plugins.errors import require
from specdec_plugins.formats.bundle import CODES, PRETRAINED, is_bundle
from specdec_plugins.formats.dictionaries import Dictionaries
from specdec_plugins.formats.models import read_model
from specdec_plugins.formats.pretrained.config import is_pretrained, model_name, read_config
from specdec_plugins.formats.text import TextPipeline

ASSISTANT = "assistant.pt"
_PEERS = "transformers reads the MarianMT folder as it is, CTranslate2 through its converter."


@dataclass(frozen=True)
class Sentence:
    """One source sentence, in both forms that engines take."""

    number: int  # of its line, from 1
    tokens: list[str]  # subwords, without the end of the sentence
    ids: list[int]  # in the source dictionary, the end of the sentence included


@dataclass(frozen=True)
class Pair:
    """The models of one folder, as paths and settings only, so that it can go between processes."""

    settings: Settings  # as the command line would have them, for text
    assistant: str | None = None  # a smaller model with the same dictionaries, kept as the verifier
    model: str | None = None  # MarianMT folder that the verifier was read from; peers read it, too

    @classmethod
    def of(cls, folder: Path, source_lang: str | None, target_lang: str | None) -> Pair:
        """The pair in a folder. Raises UserError where a file is missing."""
        require(
            is_bundle(folder) or not is_pretrained(folder),
            f"{folder}: this is a transformers model; name it with --model, beside a bundle that "
            "specdec drafter or specdec convert bundle made from it.",
        )
        languages = {"source_lang": source_lang, "target_lang": target_lang}
        given: dict[str, Any] = {"data": str(folder), **languages, "schedule": "constant"}
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

    def beside(self, model: Path) -> Pair:
        """The same pair, but peers read the MarianMT folder that its bundle was made of.

        Raises UserError if they do not belong together.
        """
        kind = read_config(model).model_type
        require(
            kind == "marian",
            f"{model}: expected a MarianMT folder, found a model of type {kind!r}.",
        )
        theirs = read_words(make_settings({"data": str(model), "strategy": "AR"})).dictionaries
        mine = self.dictionaries()
        require(
            (theirs.source, theirs.target) == (mine.source, mine.target),
            f"{model}: its symbols differ from those of {self.settings.data}; give the folder that "
            "this bundle was made from.",
        )
        return replace(self, model=str(model), assistant=None)

    @property
    def name(self) -> str:
        return model_name(Path(self.settings.data))

    @property
    def verifier(self) -> str:
        """The verifier's file."""
        assert self.settings.verifier is not None  # Settings refuses it
        return self.settings.verifier

    @property
    def drafter(self) -> str | None:
        """Registered name of the pair's drafter; None where it has none."""
        return self.settings.drafter if self.settings.drafts else None

    def describe(self) -> dict[str, Any]:
        """Readable sizes of both models, and the drafter's number of weights."""
        drafter, num_weights = self.drafter or "none", 0
        if self.drafter is not None and self.settings.drafter_checkpoint is not None:
            model = read_model(self.settings.drafter_checkpoint)
            drafter, num_weights = f"{drafter}, {model.describe()}", model.num_weights
        return {
            "verifier": read_model(self.verifier).describe(),
            "drafter": drafter,
            "drafter_weights": num_weights,
            "model": _PEERS if self.model is not None else "",
        }

    def words(self) -> Words:
        """Converts between ids and tokens, or lines for a transformers model."""
        return read_words(self.token_settings())

    def dictionaries(self) -> Dictionaries:
        return self.words().dictionaries

    def orders(self) -> tuple[Sequence[int], Sequence[int]]:
        """Map our source and target ids to the ids of transformers' files."""
        words = self.words()
        if self.model is not None:
            return words.orders
        both = words.dictionaries  # exported models have the same ids
        return range(len(both.source)), range(len(both.target))

    def codec(self) -> Codec:
        """Converts between ids and the dictionaries' symbols."""
        return self.words().codec

    def reader(self) -> Codec:
        """Converts between raw lines and ids."""
        return read_words(self.settings).codec

    def text(self) -> TextPipeline:
        """Converts between raw lines and subwords."""
        return text_pipeline(self.settings, self.dictionaries())

    def token_settings(self) -> Settings:
        """The settings for input that is tokens, with the bans of fairseq's search."""
        own = PRETRAINED if self.settings.tokenizer == PRETRAINED else None  # also has the symbols
        no_text: dict[str, Any] = {"tokenizer": own, "bpe": None, "bpe_codes": None}
        no_text |= {"lowercase": False, "dash_splits": False, "strip_diacritics": False}
        return replace(self.settings, **no_text, greedy_like="fairseq", max_len_a=0.0)


@dataclass(frozen=True)
class TestSet:
    """Sentences, and how their translations are scored."""

    name: str
    sentences: Sequence[Sentence]
    references: Sequence[str] | None  # None = there are none, and no scores
    reader: Codec | None = None  # None = tokens are not text

    __test__ = False  # not a test class, despite its name

    def decode(self, tokens: Sequence[str]) -> str:
        """The line that a user reads."""
        return " ".join(tokens) if self.reader is None else self.reader.text(tokens)


def read_test_set(path: str, pair: Pair, limit: int | None = None) -> TestSet:
    """Raw parallel text, tokenised once for all engines.

    path: a TSV whose first two columns are source and target, or SOURCE,TARGET; plain, .gz or .xz.
    limit: only that many first pairs. Pairs with an empty source are left out. Raises UserError if
    a line is bad.
    """
    corpus = ParallelFile.parse(path, columns=(1, 2))
    lines = list(islice(read_pairs(corpus, BadLines()), limit))
    reader, symbols = pair.reader(), pair.dictionaries().source.symbols
    encoded = [(number, reader.source_ids(source)) for number, (source, _) in enumerate(lines, 1)]
    sentences = [
        Sentence(number, [symbols[i] for i in ids[:-1]], ids)
        for number, ids in encoded
        if len(ids) > reader.num_framing
    ]
    require(bool(sentences), f"{path}: every source is empty; give a file with sentences.")
    references = [lines[s.number - 1][1] for s in sentences]
    return TestSet(Path(path.split(",")[0]).name, sentences, references, reader)
