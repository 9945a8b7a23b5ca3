"""Makes sentences of the patterns, and three splits of them: no sentence twice, none shared, and
held-out patterns in test alone."""

from __future__ import annotations

import hashlib
import os
import random
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from sample_corpus.clause import NP
from sample_corpus.lexicon import TABLES, Phrase, indexed
from sample_corpus.sampler import Misfit, Sampler, Value

PATTERNS = TABLES.parent / "patterns.toml"
ORDERS = ("first", "final", "bare", "gerund", "zu")
SHORTEST, LONGEST, MAX_TRIES = 4, 25, 300
HELD_OUT_SHARE = 0.25


@dataclass(frozen=True)
class Pattern:
    """A sentence on both sides; `parts` says how to draw what its braces name, in order."""

    name: str
    en: str
    de: str
    parts: dict[str, str | dict[str, str]]
    weight: float = 1.0
    held_out: bool = False

    def draw(self, sampler: Sampler) -> tuple[str, str]:
        """Both sides; raises Misfit where the parts that were drawn do not go together."""
        parts: dict[str, Value] = {}
        for name, wanted in self.parts.items():
            if isinstance(wanted, str):
                parts[name] = sampler.phrase(wanted)
            elif "verb" in wanted:
                parts[name] = sampler.clause(wanted, parts)
            else:
                parts[name] = sampler.who(wanted["who"], parts)
        return fill(self.en, parts, "en"), fill(self.de, parts, "de")


def load() -> list[Pattern]:
    """A table of the file is a pattern; its keys in capitals are the parts."""
    patterns = []
    for name, row in tomllib.loads(PATTERNS.read_text(encoding="utf-8")).items():
        parts = {key: row.pop(key) for key in list(row) if key.isupper()}
        patterns.append(Pattern(name, parts=parts, **row))
    return patterns


def fill(template: str, parts: dict[str, Value], side: str) -> str:
    """`{A}`, `{A final}`, `{A first perfect}`: a part in an order and, if named, another tense.
    A capital at the start, and no comma before another mark."""

    def one(match: re.Match[str]) -> str:
        part, arguments = parts[match[1]], match[2].split()
        if isinstance(part, Phrase):
            return getattr(part, side)
        if isinstance(part, NP):
            return part.en if side == "en" else part.case((*arguments, "nom")[0])
        order = next((a for a in arguments if a in ORDERS), "main")
        for tense in set(arguments) - {order}:
            part = replace(part, tense=indexed("tenses")[tense])
        return part.english(order) if side == "en" else part.german(order)

    text = re.sub(r",(?=\s*[,.?!])", "", re.sub(r"\{(\w+)([^}]*)\}", one, template))
    return text[0].upper() + text[1:]


class Sentence(NamedTuple):
    structure: str
    en: str
    de: str


Corpus = dict[str, list[Sentence]]  # by split: train, dev, test


def draw(sampler: Sampler, options: list[Pattern], seen: set[str]) -> Sentence:
    """A sentence of which neither side has been seen; it is added to those."""
    for _ in range(MAX_TRIES):
        chosen = sampler.rng.choices(options, [option.weight for option in options])[0]
        try:
            pair = chosen.draw(sampler)
        except Misfit:
            continue
        fits = all(SHORTEST <= len(text.split()) <= LONGEST for text in pair)
        if fits and seen.isdisjoint(pair):
            seen.update(pair)
            return Sentence(chosen.name, *pair)
    raise RuntimeError(f"no new sentence in {MAX_TRIES} tries; ask for fewer pairs")


def generate(seed: int, sizes: dict[str, int], report: Callable[[str, int, int], None]) -> Corpus:
    """The whole corpus; `report(split, done, wanted)` is called as it grows."""
    sampler, seen = Sampler(random.Random(seed)), set()
    known, unseen = ([p for p in load() if p.held_out == held] for held in (False, True))
    corpus = Corpus()
    for split, wanted in sizes.items():
        num_known = wanted - (round(wanted * HELD_OUT_SHARE) if split == "test" else 0)
        corpus[split] = []
        for done in range(1, wanted + 1):
            corpus[split].append(draw(sampler, known if done <= num_known else unseen, seen))
            report(split, done, wanted)
    sampler.rng.shuffle(corpus["test"])
    return corpus


def write(corpus: Corpus, folder: Path) -> str:
    """Write every file beside its name and rename it; returns the SHA-256 of all of them."""
    known = {s.structure for s in corpus["train"]}
    rows = ["line\tstructure\tseen_in_training"]
    for line, s in enumerate(corpus["test"], start=1):
        rows.append(f"{line}\t{s.structure}\t{'yes' if s.structure in known else 'no'}")
    files = {f"{split}.{side}": [getattr(s, side) for s in sentences]
             for split, sentences in corpus.items() for side in ("en", "de")}  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    for name, lines in (files | {"structures.tsv": rows}).items():
        data = "".join(f"{line}\n" for line in lines).encode("utf-8")
        digest.update(data)
        partial = folder / f".{name}.partial"
        partial.write_bytes(data)
        os.replace(partial, folder / name)
    return digest.hexdigest()
