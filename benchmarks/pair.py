"""What is measured with: a pair of models, a test file, and the tokens that all engines read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from specdec_plugins.adapters.fairseq_checkpoint import load_block_drafter, load_verifier
from specdec_plugins.adapters.text import TextPipeline
from specdec_plugins.app.codec import Codec
from specdec_plugins.app.loading import Dictionaries, load_dictionaries
from specdec_plugins.app.settings import Settings
from specdec_plugins.corpus.reading import Faults, ParallelFile, read_pairs
from specdec_plugins.decoding.config import require
from specdec_plugins.decoding.networks import BlockDrafter, Transformer

VERIFIER, DRAFTER, ASSISTANT, CODES = "verifier.pt", "drafter.pt", "assistant.pt", "bpe.codes"


@dataclass(frozen=True)
class Sentence:
    """One source sentence, in both forms that engines take."""

    number: int  # of its line, from 1
    tokens: list[str]  # subwords, without the end of the sentence
    ids: list[int]  # in the source dictionary, the end of the sentence included


@dataclass(frozen=True)
class Pair:
    """The models of one folder. Paths alone, so that it goes from process to process."""

    folder: str  # holds dict.<lang>.txt of both sides and bpe.codes
    source_lang: str
    target_lang: str
    verifier: str  # checkpoint
    drafter: str | None  # checkpoint; None = the pair has none
    assistant: str | None = None  # checkpoint of a smaller model with the same dictionaries

    @classmethod
    def of(cls, folder: Path, source_lang: str | None, target_lang: str | None) -> Pair:
        """The pair in a folder. Raises UserError where a file is missing."""
        found = load_dictionaries(str(folder), source_lang, target_lang)

        def path(name: str) -> str | None:
            return str(folder / name) if (folder / name).is_file() else None

        verifier = path(VERIFIER)
        require(
            verifier is not None,
            f"{folder}: holds no {VERIFIER}; give a folder with {VERIFIER}, {DRAFTER}, "
            f"dict.<lang>.txt and {CODES}.",
        )
        assert verifier is not None
        drafter, assistant = path(DRAFTER), path(ASSISTANT)
        return cls(str(folder), found.source_lang, found.target_lang, verifier, drafter, assistant)

    @property
    def name(self) -> str:
        """Of the folder."""
        return Path(self.folder).resolve().name

    def describe(self) -> dict[str, Any]:
        """Sizes of both models, as people read them, and the drafter's number of weights."""
        found = self.dictionaries()
        verifier = load_verifier(self.verifier, found.source, found.target)
        facts: dict[str, Any] = {"verifier": _sizes(verifier), "drafter": None}
        facts["drafter_weights"] = 0
        if self.drafter is not None:
            drafter = load_block_drafter(self.drafter, found.source, found.target)
            facts["drafter"] = f"{_sizes(drafter)}, blocks of {drafter.config.block_size}"
            facts["drafter_weights"] = _count(drafter)
        return facts

    def dictionaries(self) -> Dictionaries:
        return load_dictionaries(self.folder, self.source_lang, self.target_lang)

    def codec(self) -> Codec:
        """Between ids and the dictionaries' symbols."""
        found = self.dictionaries()
        return Codec(found.source, found.target)

    def settings(self) -> Settings:
        """As the command line would have them, for token input."""
        return Settings(
            *(self.folder, self.verifier, self.drafter, self.source_lang, self.target_lang),
            greedy_like="fairseq",
            strategy="specdec" if self.drafter else "AR",
        )


def _sizes(network: Transformer | BlockDrafter) -> str:
    encoder, decoder = network.config.encoder, network.config.decoder
    return (
        f"{encoder.num_layers}+{decoder.num_layers} layers, {decoder.dim} wide, "
        f"{decoder.vocab_size:,} types, {_count(network) / 1e6:.1f} million weights"
    )


def _count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@dataclass(frozen=True)
class TestSet:
    """Sentences, and how their translations are scored."""

    name: str
    sentences: Sequence[Sentence]
    references: Sequence[str] | None  # None = there are none, and no scores
    text: TextPipeline | None = None  # None = tokens are no text

    __test__ = False  # pytest: no class of tests

    def decode(self, tokens: Sequence[str]) -> str:
        """The line that a user reads."""
        line = " ".join(tokens)
        return line if self.text is None else self.text.decode(line)


def read_test_set(path: str, pair: Pair, limit: int | None = None) -> TestSet:
    """Raw parallel text, tokenised once for everyone.

    path: a TSV of two columns, or SOURCE,TARGET; plain, .gz or .xz. limit: the first so many
    pairs. Pairs with an empty source are left out. Raises UserError where a line is bad.
    """
    files = [Path(name) for name in path.split(",")]
    require(len(files) <= 2, f"{path}: give one file, or two with a comma between them.")
    corpus = ParallelFile(files[0], files[1] if len(files) == 2 else None)
    text = TextPipeline(pair.source_lang, pair.target_lang, codes=Path(pair.folder) / CODES)
    lines = list(_first(read_pairs(corpus, Faults()), limit))
    dictionary = pair.dictionaries().source
    encoded = [(number, text.encode(source)) for number, (source, _) in enumerate(lines, 1)]
    sentences = [
        Sentence(number, line.split(), dictionary.encode_line(line))
        for number, line in encoded
        if line
    ]
    require(bool(sentences), f"{path}: holds no sentence.")
    return TestSet(files[0].name, sentences, [lines[s.number - 1][1] for s in sentences], text)


def _first(pairs: Iterator[tuple[str, str]], limit: int | None) -> Iterator[tuple[str, str]]:
    for count, pair in enumerate(pairs):
        if limit is not None and count >= limit:
            return
        yield pair
