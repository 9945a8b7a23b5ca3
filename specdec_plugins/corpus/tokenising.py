"""Applies the text pipeline to whole corpora, on all cores, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal

from joblib import Parallel, delayed
from tqdm import tqdm

from specdec_plugins.corpus.cleaning import LengthRules
from specdec_plugins.corpus.reading import Pair
from specdec_plugins.errors import UserError
from specdec_plugins.formats.text import TextPipeline

CHUNK = 2000  # pairs sent to a worker at once: large enough to hide the overhead of sending


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
        with tqdm(total=total, desc=name, unit=" pairs", mininterval=0.5) as bar:
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
    with ExitStack() as stack:
        files = [stack.enter_context(p.open(encoding="utf-8", newline="\n")) for p in paths]
        for left, right in zip(*files, strict=True):
            yield left.removesuffix("\n"), right.removesuffix("\n")


@contextmanager
def writing(paths: Sequence[Path]) -> Iterator[Callable[[Pair], None]]:
    """Yields a function that writes a pair to two files, for ``read_prepared``."""
    with ExitStack() as stack:
        files = [stack.enter_context(p.open("w", encoding="utf-8", newline="\n")) for p in paths]

        def write(pair: Pair) -> None:
            for file, line in zip(files, pair, strict=True):
                file.write(line + "\n")

        yield write


def write_clean(
    paths: Sequence[Path], pairs: Iterable[Pair], rules: LengthRules | None
) -> Counter[str]:
    """Write both sides; ``rules`` None keeps every pair. Returns the count of each verdict."""
    counts: Counter[str] = Counter()
    with writing(paths[:2]) as write:
        for pair in pairs:
            reason = rules.verdict(*pair) if rules else None
            counts[reason or "kept"] += 1
            if reason is None:
                write(pair)
    if rules and not counts["kept"]:
        raise UserError(
            f"cleaning kept no training pair ({dict(counts)}); check that the two sides belong "
            "together, or widen --min-length, --max-length, --max-ratio"
        )
    return counts


def learn_codes(paths: Sequence[Path], output: Path, num_merges: int) -> None:
    """Learn joint BPE of tokenised files (Sennrich et al. 2016) and write the codes."""
    from subword_nmt import learn_bpe

    counts: Counter[str] = Counter()
    for path in paths:
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in tqdm(file, desc=f"counting words of {path.name}", unit=" lines"):
                counts.update(line.split())
    if all(len(word) == 1 for word in counts):  # subword-nmt would fail
        raise UserError("the training text has no words to learn BPE from; add text, or --codes")
    words = [f"{word} {count}" for word, count in counts.items()]
    with output.open("w", encoding="utf-8") as file:
        learn_bpe.learn_bpe(words, file, num_merges, is_dict=True)
