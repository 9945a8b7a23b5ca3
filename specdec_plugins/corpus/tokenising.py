"""What preparation does to text, on all cores and in order: tokens, codes, types, binary data."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from joblib import Parallel, delayed
from tqdm import tqdm

from specdec_plugins.corpus.cleaning import LengthRules
from specdec_plugins.corpus.cli import logger
from specdec_plugins.corpus.reading import Pair
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.indexed import Sentences, SentenceWriter
from specdec_plugins.formats.text import PROTECTED, TextPipeline

CHUNK = 2000  # pairs sent to a worker at once: large enough to hide the overhead of sending

# Unknown tokens, in per cent. Above the first, something was made for other text; above the second,
# a model would learn next to nothing.
_SUSPICIOUS, _USELESS = 2.0, 20.0

# Minimum counts in the training text: of a type, and of a non-Latin character.
_MIN_COUNT, _MIN_FOREIGN = 5, 20


@dataclass(frozen=True)
class TextSettings:
    """The settings of tokenisation, apart from the BPE codes."""

    source_lang: str
    target_lang: str
    tokenizer: Literal["moses"] | None = "moses"
    lowercase: bool = False
    dash_splits: bool = False
    strip_diacritics: bool = False

    def pipeline(self, codes: Path | None) -> TextPipeline:
        bpe: Literal["subword_nmt"] | None = None if codes is None else "subword_nmt"
        return TextPipeline(**vars(self), bpe=bpe, codes=codes)


@dataclass(frozen=True)
class Work:
    """One pass of the pipeline over pairs: tokenise (codes None), or apply BPE."""

    settings: TextSettings
    codes: Path | None
    num_workers: int

    def over(self, pairs: Iterable[Pair], total: int, name: str) -> Iterator[Pair]:
        """The transformed pairs in order, with a progress bar; ``total`` is their number."""
        source = iter(pairs)
        chunks = iter(lambda: list(islice(source, CHUNK)), [])
        # Starting workers for a few chunks would cost more.
        parallel = Parallel(1 if total <= 2 * CHUNK else self.num_workers, return_as="generator")
        done = parallel(delayed(self.transform)(chunk) for chunk in chunks)
        with tqdm(total=total, desc=name, unit=" pairs") as bar:
            try:
                for chunk in done:
                    bar.update(len(chunk))
                    yield from chunk
            except BrokenProcessPool as error:
                raise UserError(
                    "a worker process was killed, perhaps for lack of memory; run the command "
                    "again with fewer --workers"
                ) from error

    def transform(self, chunk: list[Pair]) -> list[Pair]:
        """The transformed pairs of a chunk, in order; repeated pairs are computed once."""
        pipeline = _pipeline(self)
        made = {}
        for pair in set(chunk):
            if self.codes is None:
                source = pipeline.tokenize(pair[0], "source")
                made[pair] = (source, pipeline.tokenize(pair[1], "target"))
            else:
                made[pair] = (pipeline.segment(pair[0]), pipeline.segment(pair[1]))
        return [made[pair] for pair in chunk]


@lru_cache(maxsize=1)
def _pipeline(work: Work) -> TextPipeline:
    """Made once in each process."""
    return work.settings.pipeline(work.codes)


def read_prepared(paths: Sequence[Path]) -> Iterator[Pair]:
    """The pairs of two files that this package wrote."""
    for source, target in zip(*map(_lines, paths), strict=True):
        yield source.removesuffix("\n"), target.removesuffix("\n")


def write_clean(
    paths: Sequence[Path], pairs: Iterable[Pair], rules: LengthRules | None
) -> Counter[str]:
    """Write both sides; ``rules`` None keeps every pair. Returns the count of each verdict."""
    counts: Counter[str] = Counter()
    with (
        paths[0].open("w", encoding="utf-8", newline="\n") as sources,
        paths[1].open("w", encoding="utf-8", newline="\n") as targets,
    ):
        for source, target in pairs:
            reason = rules.verdict(source, target) if rules else None
            counts[reason or "kept"] += 1
            if reason is None:
                sources.write(f"{source}\n")
                targets.write(f"{target}\n")
    if rules and not counts["kept"]:
        raise UserError(
            f"cleaning kept no training pair ({dict(counts)}); check that the two sides belong "
            "together, or widen --min-length, --max-length, --max-ratio"
        )
    return counts


def learn_codes(paths: Sequence[Path], output: Path, num_merges: int) -> None:
    """Learn joint BPE of tokenised files (Sennrich et al. 2016) and write the codes."""
    from subword_nmt import learn_bpe

    counts = _counts(paths)
    if all(len(word) == 1 for word in counts):  # subword-nmt would fail
        raise UserError("the training text has no words to learn BPE from; add text, or --codes")
    words = [f"{word} {count}" for word, count in counts.items()]
    with output.open("w", encoding="utf-8") as file:
        learn_bpe.learn_bpe(words, file, num_merges, is_dict=True)


def _latin() -> list[str]:
    """Printable characters of Basic Latin, Latin-1, Latin Extended-A, and common signs."""
    blocks = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x180)]
    return [*map(chr, blocks), *"ȘșȚțẞ‐‑‒–—‘’‚“”„•…‰′″‹›€™←→−"]


def latin_vocabulary(counts: Counter[str]) -> list[tuple[str, int]]:
    """A joint vocabulary that can spell any text in Latin letters, frequent types first.

    Every character of ``_latin`` is a type, within a word and at its end, and so is each symbol
    that stands for a protected span. Rare types, and rare characters of other scripts, would waste
    embeddings and are left out.
    """
    types = {
        token: number
        for token, number in counts.items()
        if number >= (_MIN_FOREIGN if _is_foreign(token.removesuffix("@@")) else _MIN_COUNT)
    }
    for character in _latin():
        for token in (character, f"{character}@@"):
            types.setdefault(token, counts[token] or 1)
    for symbol in PROTECTED:
        types.setdefault(symbol, counts[symbol] or 1)
    return sorted(types.items(), key=lambda item: (-item[1], item[0]))


def _is_foreign(token: str) -> bool:
    return len(token) == 1 and ord(token) > 0x24F


def write_dictionary(paths: Iterable[Path], output: Path) -> None:
    """A joint dictionary, as fairseq-preprocess makes it: the number of types divides by eight."""
    counts, special = _counts(paths), Dictionary().symbols
    types = [(token, number) for token, number in counts.items() if token not in special]
    types.sort(key=lambda item: (-item[1], item[0]))
    types += [(f"madeupword{i:04d}", 0) for i in range(-(len(special) + len(types)) % 8)]
    output.write_text("".join(f"{token} {n}\n" for token, n in types), encoding="utf-8")


def binarise(
    splits: Mapping[str, Sequence[Path]],  # the source's and the target's tokens
    languages: Sequence[str],
    given: Sequence[Path],  # dictionaries: one serves both sides; without any, they share a new one
    output: Path,
    force: bool,
) -> None:
    """Write a folder as fairseq-preprocess does, to the byte.

    Raises UserError (without `force`) if a dictionary lacks much of a text.
    """
    output.mkdir()
    names = [output / f"dict.{language}.txt" for language in languages]
    if not given:
        write_dictionary(splits["train"], names[0])
        shutil.copyfile(names[0], names[1])
    for path, name in zip(given if len(given) == 2 else [*given, *given], names, strict=False):
        shutil.copyfile(path, name)
    sides = [Dictionary.load(name) for name in names]
    for split, paths in splits.items():
        for path, language, dictionary in zip(paths, languages, sides, strict=True):
            stem, num_unknown = output / f"{split}.{'-'.join(languages)}.{language}", 0
            with SentenceWriter(stem, len(dictionary)) as writer:
                for line in tqdm(_lines(path), f"binarising {path.name}", unit=" lines"):
                    ids = dictionary.encode_line(line)
                    num_unknown += ids.count(dictionary.unk)
                    writer.add(ids)
            sizes = Sentences(stem).sizes
            told = f"{path.name}: {len(sizes)} lines, {sizes.sum()} tokens"
            say_unknown(told, 100 * num_unknown / max(1, sizes.sum()), language, force)


def _counts(paths: Iterable[Path]) -> Counter[str]:
    """How often each word, or token, is in some files."""
    lines = (tqdm(_lines(path), f"counting words of {path.name}", unit=" lines") for path in paths)
    return Counter(word for line in chain.from_iterable(lines) for word in line.split())


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        yield from file


def say_unknown(told: str, percent: float, language: str, force: bool) -> None:
    """Say what was binarised. Raises UserError if much of it is unknown, unless `force`."""
    told += f", {percent:.1f} % unknown"
    if percent <= _SUSPICIOUS:
        logger.info("%s", told)
        return
    told += (
        f" to the dictionary; check that it is text in {language}, and that dictionary and "
        "BPE codes were made together, for these languages and this tokenisation"
    )
    require(force or percent <= _USELESS, f"{told}; --force binarises it all the same")
    logger.warning("%s", told)
