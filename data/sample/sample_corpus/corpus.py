"""Draws the three splits: no sentence twice, none shared, held-out structures in test alone."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sample_corpus import (
    coordination,
    held_out,
    infinitives,
    lexicon,
    nominal,
    passives,
    quantities,
    questions,
    relatives,
    simple,
    subordinate,
)
from sample_corpus.sampler import Sampler
from sample_corpus.structures import REGISTER, Structure

MODULES = (
    simple, passives, nominal, quantities, relatives, questions,
    subordinate, coordination, infinitives, held_out,
)  # fmt: skip
SHORTEST, LONGEST = 4, 25
HELD_OUT_SHARE = 0.25
MAX_TRIES = 200
LONGER = {
    "subordinate": 2.0,
    "coordination": 2.0,
    "relatives": 2.0,
    "infinitives": 1.6,
}  # weight of long sentences
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Sentence:
    structure: str
    en: str
    de: str


@dataclass
class Corpus:
    train: list[Sentence] = field(default_factory=list)
    dev: list[Sentence] = field(default_factory=list)
    test: list[Sentence] = field(default_factory=list)

    def splits(self) -> dict[str, list[Sentence]]:
        return {"train": self.train, "dev": self.dev, "test": self.test}


def fits(text: str) -> bool:
    return SHORTEST <= len(text.split()) <= LONGEST


def emphasis(option: Structure) -> float:
    module = option.build.__module__.rpartition(".")[2]
    return option.weight * LONGER.get(module, 1.0)


class Drawer:
    """Draws new sentences; it remembers both sides of everything drawn before."""

    def __init__(self, seed: int) -> None:
        self.sampler = Sampler(random.Random(seed), lexicon.load())
        self.seen_en: set[str] = set()
        self.seen_de: set[str] = set()

    def draw(self, options: list[Structure]) -> Sentence:
        weights = [emphasis(option) for option in options]
        for _ in range(MAX_TRIES):
            chosen = self.sampler.rng.choices(options, weights)[0]
            en, de = chosen.build(self.sampler)
            new = en not in self.seen_en and de not in self.seen_de
            if new and fits(en) and fits(de):
                self.seen_en.add(en)
                self.seen_de.add(de)
                return Sentence(chosen.name, en, de)
        raise RuntimeError(
            f"no new sentence in {MAX_TRIES} tries after {len(self.seen_en)}; ask for fewer pairs"
        )


def generate(seed: int, train: int, dev: int, test: int, report: Report) -> Corpus:
    """The whole corpus; `report(split, done, wanted)` is called as it grows."""
    drawer, corpus = Drawer(seed), Corpus()
    seen = [s for s in REGISTER.values() if not s.held_out]
    unseen = [s for s in REGISTER.values() if s.held_out]
    num_unseen = round(test * HELD_OUT_SHARE)
    wanted = {"train": train, "dev": dev, "test": test}
    for split, sentences in corpus.splits().items():
        for done in range(wanted[split]):
            is_unseen = split == "test" and done >= test - num_unseen
            sentences.append(drawer.draw(unseen if is_unseen else seen))
            report(split, done + 1, wanted[split])
    drawer.sampler.rng.shuffle(corpus.test)
    return corpus


def files(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """(name, text) of every file of the corpus."""
    for split, sentences in corpus.splits().items():
        yield f"{split}.en", "".join(f"{s.en}\n" for s in sentences)
        yield f"{split}.de", "".join(f"{s.de}\n" for s in sentences)
    known = {s.structure for s in corpus.train}
    rows = ["line\tstructure\tseen_in_training\n"]
    for line, sentence in enumerate(corpus.test, start=1):
        answer = "yes" if sentence.structure in known else "no"
        rows.append(f"{line}\t{sentence.structure}\t{answer}\n")
    yield "structures.tsv", "".join(rows)


def write(corpus: Corpus, folder: Path) -> str:
    """Write every file beside its name and rename it; returns the SHA-256 of all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    for name, text in files(corpus):
        data = text.encode("utf-8")
        digest.update(data)
        partial = folder / f".{name}.partial"
        partial.write_bytes(data)
        os.replace(partial, folder / name)
    return digest.hexdigest()


def word_types(lines: list[str]) -> set[str]:
    """Lower-cased words without the marks around them."""
    found = (word.strip(".,;!?").lower() for line in lines for word in line.split())
    return {word for word in found if word}


def summary(corpus: Corpus) -> list[str]:
    """What was made, in lines for a reader."""
    lines = []
    for split, sentences in corpus.splits().items():
        num_structures = len({s.structure for s in sentences})
        lines.append(f"{split}: {len(sentences)} pairs, {num_structures} structures")
    for side in ("en", "de"):
        texts = [getattr(s, side) for s in corpus.train]
        mean = sum(len(text.split()) for text in texts) / max(len(texts), 1)
        num_types = len(word_types(texts))
        lines.append(f"train.{side}: {num_types} word types, {mean:.1f} words a sentence")
    known = {s.structure for s in corpus.train}
    num_new = sum(s.structure not in known for s in corpus.test)
    share = 100 * num_new / max(len(corpus.test), 1)
    lines.append(f"test: {num_new} pairs ({share:.1f} %) of structures that training never saw")
    return lines
