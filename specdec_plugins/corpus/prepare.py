"""Any parallel text to a data-bin: collect, tokenise and clean, BPE, binarise.

    OUT/raw/SPLIT.LANG     as it came (references for scoring; never cleaned, never tokenised)
    OUT/tok/SPLIT.LANG     normalised, tokenised; training cleaned by length and ratio
    OUT/bpe/SPLIT.LANG     with BPE, and OUT/bpe.codes
    OUT/data-bin/          for fairseq, with dict.LANG.txt and bpe.codes

Each of these is a step of ``steps.Steps``: run again, the command resumes.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.binarising import Dictionaries, latin_vocabulary, preprocess
from specdec_plugins.corpus.cleaning import LengthRules, RandomSplit
from specdec_plugins.corpus.cli import logger
from specdec_plugins.corpus.reading import (
    Faults,
    Pair,
    ParallelFile,
    check_file,
    count_lines,
    read_pairs,
)
from specdec_plugins.corpus.resume import Steps, locked, read_json, write_json
from specdec_plugins.corpus.tokenising import (
    TextSettings,
    Work,
    learn_codes,
    read_prepared,
    write_clean,
    writing,
)
from specdec_plugins.errors import UserError
from specdec_plugins.formats.text import load_codes


@dataclass(frozen=True)
class PreparationSettings:
    """Everything that decides what a prepared corpus holds."""

    text: TextSettings
    train: Sequence[ParallelFile]
    valid: Sequence[ParallelFile] = ()  # empty: split off
    tests: Sequence[ParallelFile] = ()  # each is a test set of its own: test, test1, ...
    split_valid: int = 0  # pairs
    split_test: int = 0  # pairs
    rules: LengthRules = field(default_factory=lambda: LengthRules(1, 250, 3.0))
    bpe: bool = True
    num_merges: int = 10_000
    codes: Path | None = None  # None: learn them
    dictionaries: Dictionaries = field(default_factory=Dictionaries)
    cover_latin: bool = False  # learn a joint dictionary in which every Latin character is a type
    max_subwords: int | None = None  # a side of a training pair; None: any number
    skip_bad_lines: bool = False  # of the training text; dev and test are always whole
    num_workers: int = 1

    def __post_init__(self) -> None:
        if not self.train:
            raise UserError("no training text; give --train FILE [FILE ...]")
        if bool(self.valid) == bool(self.split_valid):
            raise UserError("give either --valid FILE or --split-valid N (and not 0)")
        if self.tests and self.split_test:
            raise UserError("give either --test FILE or --split-test N, not both")
        if self.text.source_lang == self.text.target_lang:
            raise UserError(f"source and target are both {self.text.source_lang!r}; they differ")
        if self.cover_latin and self.dictionaries.paths:
            raise UserError("give either --cover-latin or --dict")
        self._check_files()

    def _check_files(self) -> None:
        for path in self.dictionaries.paths:
            check_file(path, "a dictionary, a token and its count on each line")
        if self.codes is not None:
            check_file(self.codes, "a file of BPE codes")
            load_codes(self.codes)

    @property
    def splits(self) -> list[str]:
        num_tests = len(self.tests) or int(self.split_test > 0)
        return ["train", "valid", *(f"test{i or ''}" for i in range(num_tests))]


class Preparation:
    """Runs the steps of one preparation in one folder."""

    def __init__(self, settings: PreparationSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._steps = Steps(folder)
        self._codes = folder / "bpe.codes"
        self._vocabulary = folder / "bpe" / "dict.txt"

    def run(self) -> None:
        with locked(self._folder):
            self._collect()
            for split in self._settings.splits:
                self._tokenise(split)
            self._learn()
            for split in self._settings.splits:
                self._segment(split)
            self._binarise()
        references = [str(self._pair("raw", split)[1]) for split in self._settings.splits[1:]]
        logger.info("ready: %s", self._folder / "data-bin")
        logger.info("references for scoring: %s", ", ".join(references))

    def _pair(self, kind: str, split: str) -> list[Path]:
        text = self._settings.text
        return [self._folder / kind / f"{split}.{x}" for x in (text.source_lang, text.target_lang)]

    def _collect(self) -> None:
        settings = self._settings
        split_off = {"valid": settings.split_valid, "test": settings.split_test}
        here = ["train", *(split for split, number in split_off.items() if number)]
        self._collect_step(here, settings.train, Faults(settings.skip_bad_lines))
        if settings.valid:
            self._collect_step(["valid"], settings.valid, Faults())
        for split, corpus in zip(settings.splits[2:], settings.tests, strict=False):
            self._collect_step([split], [corpus], Faults())

    def _collect_step(
        self, splits: Sequence[str], corpora: Sequence[ParallelFile], faults: Faults
    ) -> None:
        settings = self._settings
        training = splits[0] == "train"

        def collect(parts: Sequence[Path]) -> None:
            held = RandomSplit((), ())
            if len(splits) > 1:
                first = _all_pairs(corpora, Faults(faults.skip), "choosing held-out pairs")
                held = RandomSplit.choose(first, settings.split_valid, settings.split_test)
            pairs = _all_pairs(corpora, faults, f"reading {splits[0]}")
            sides = zip(parts[::2], parts[1::2], strict=True)
            dropped = _write_splits(dict(zip(splits, sides, strict=True)), pairs, held)
            if faults.skipped:
                logger.warning("%d bad lines skipped; the first: %s", faults.skipped, faults.first)
            if dropped:
                logger.info("%d pairs repeat a held-out sentence: left out", dropped)

        self._steps.run(
            f"collect-{splits[0]}",
            collect,
            inputs=[path for corpus in corpora for path in corpus.paths],
            outputs=[path for split in splits for path in self._pair("raw", split)],
            settings={
                "columns": [corpus.columns for corpus in corpora],
                "parts": [(corpus.first, corpus.last) for corpus in corpora],
                "split-valid": settings.split_valid if training else 0,
                "split-test": settings.split_test if training else 0,
                "skip-bad-lines": faults.skip,
            },
        )

    def _tokenise(self, split: str) -> None:
        settings = self._settings
        raw = self._pair("raw", split)
        rules = settings.rules if split == "train" else None
        counts = self._folder / "tok" / f"{split}.counts.json"
        work = Work(settings.text, None, settings.num_workers)

        def tokenise(parts: Sequence[Path]) -> None:
            pairs = work.over(read_prepared(raw), count_lines(raw[0]), f"tokenising {split}")
            found = write_clean(parts, pairs, rules)
            write_json(parts[2], dict(found))

        self._steps.run(
            f"tokenise-{split}",
            tokenise,
            inputs=raw,
            outputs=[*self._pair("tok", split), counts],
            settings={**asdict(settings.text), **(asdict(rules) if rules else {})},
        )
        found = dict(read_json(counts))
        dropped = ", ".join(f"{n} {reason}" for reason, n in sorted(found.items()) if n)
        logger.info("%s pairs: %s", split, dropped)

    def _learn(self) -> None:
        settings = self._settings
        if not settings.bpe:
            return
        tokenised = self._pair("tok", "train")
        given = settings.codes

        def learn(parts: Sequence[Path]) -> None:
            if given is not None:
                shutil.copyfile(given, parts[0])
            else:
                learn_codes(tokenised, parts[0], settings.num_merges)

        self._steps.run(
            "codes",
            learn,
            inputs=tokenised if given is None else [given],
            outputs=[self._codes],
            settings={"merges": settings.num_merges if given is None else "given"},
        )

    def _segment(self, split: str) -> None:
        settings = self._settings
        tokenised = self._pair("tok", split)
        work = Work(settings.text, self._codes, settings.num_workers)
        limit = settings.max_subwords if split == "train" else None
        covers = settings.cover_latin and split == "train"

        def segment(parts: Sequence[Path]) -> None:
            pairs = read_prepared(tokenised)
            if settings.bpe:
                pairs = work.over(pairs, count_lines(tokenised[0]), f"applying BPE to {split}")
            tokens: Counter[str] = Counter()
            rules = LengthRules(1, limit, math.inf) if limit else None
            write_clean(parts, _counted(pairs, tokens) if covers else pairs, rules)
            if covers:
                lines = (f"{token} {number}\n" for token, number in latin_vocabulary(tokens))
                parts[2].write_text("".join(lines), encoding="utf-8")

        self._steps.run(
            f"bpe-{split}",
            segment,
            inputs=[*tokenised, *([self._codes] if settings.bpe else [])],
            outputs=[*self._pair("bpe", split), *([self._vocabulary] if covers else [])],
            settings={"bpe": settings.bpe, "max-subwords": limit, "cover-latin": covers},
        )

    def _binarise(self) -> None:
        settings = self._settings
        text = settings.text
        inputs = [path for split in settings.splits for path in self._pair("bpe", split)]
        codes = self._codes if settings.bpe else None
        largest = max(count_lines(path) for path in inputs)
        given = Dictionaries(self._vocabulary) if settings.cover_latin else settings.dictionaries
        workers = min(settings.num_workers, 1 + largest // 10_000)
        command = ["--source-lang", text.source_lang, "--target-lang", text.target_lang]
        command += ["--workers", str(workers), *given.arguments()]
        for flag in ("train", "valid", "test"):
            prefixes = [self._folder / "bpe" / s for s in settings.splits if s.startswith(flag)]
            if prefixes:
                command += [f"--{flag}pref", ",".join(map(str, prefixes))]
        log = self._folder / "preprocess.log"
        self._steps.run(
            "binarise",
            lambda parts: preprocess(command, parts[0], log, codes),
            inputs=[*inputs, *given.paths, *([codes] if codes else [])],
            outputs=[self._folder / "data-bin"],
            settings={"splits": settings.splits, "dictionaries": len(given.paths)},
        )


def _counted(pairs: Iterable[Pair], tokens: Counter[str]) -> Iterator[Pair]:
    for pair in pairs:
        for side in pair:
            tokens.update(side.split())
        yield pair


def _all_pairs(corpora: Sequence[ParallelFile], faults: Faults, name: str) -> tqdm[Pair]:
    pairs = (pair for corpus in corpora for pair in read_pairs(corpus, faults))
    return tqdm(pairs, desc=name, unit=" pairs", mininterval=0.5)


def _write_splits(
    outputs: dict[str, Sequence[Path]], pairs: Iterable[Pair], held: RandomSplit
) -> int:
    """Write each pair to its split (the first one, unless held out); returns how many have none."""
    dropped = 0
    with ExitStack() as stack:
        write = {split: stack.enter_context(writing(paths)) for split, paths in outputs.items()}
        write["train"] = next(iter(write.values()))
        for pair in pairs:
            place = held.place(pair)
            if place is None:
                dropped += 1
            else:
                write[place](pair)
    return dropped


def shared_flags(num_merges: int, max_ratio: float) -> tuple[cli.Flag, ...]:
    """The flags that every preparation script has, with the script's own defaults."""
    number, yes_or_no = cli.at_least(1), ("yes", "no")
    return (
        ("--out", cli.REQUIRED, Path, "folder to write"),
        ("--merges", num_merges, number, "joint BPE merges"),
        ("--codes", None, Path, "reuse these BPE codes instead of learning"),
        ("--dict", None, Path, "reuse this dictionary (for both sides)"),
        ("--dict-tgt", None, Path, "the target's own dictionary, with --dict"),
        ("--cover-latin", False, bool, "learn a joint dictionary that can spell every printable "
         "Latin character, and drops rare characters of other scripts"),
        ("--max-subwords", None, number, "a side, training, behind BPE (default: any number)"),
        ("--min-length", 1, number, "words a side, training"),
        ("--max-length", 250, number, "words a side, training"),
        ("--max-ratio", max_ratio, cli.at_least(1, float), "longer/shorter side"),
        ("--lowercase", "no", yes_or_no, "both sides"),
        ("--strip-diacritics", "no", yes_or_no, "Romanian without marks"),
        ("--dash-splits", "auto", ("auto", "yes", "no"), "write a-b as a @-@ b; auto: where the "
         "given dictionary has it"),
        ("--bad-lines", "refuse", ("refuse", "skip"), "training lines that are not UTF-8 or have "
         "a wrong shape"),
        ("--workers", len(os.sched_getaffinity(0)), number, "processes at once"),
    )  # fmt: skip


def preparation_settings(
    args: argparse.Namespace, source_lang: str, target_lang: str, **own: Any
) -> PreparationSettings:
    """Of the shared flags, and of one script's own (fields of the class, and the tokenizer)."""
    if args.dict_tgt and not args.dict:
        raise UserError("--dict-tgt needs --dict, the source's dictionary")
    codes, source, target = (
        path and path.resolve() for path in (args.codes, args.dict, args.dict_tgt)
    )
    dictionaries = Dictionaries(source, target)
    dash_splits = args.dash_splits == "yes"
    if args.dash_splits == "auto" and source and source.is_file():
        dash_splits = dictionaries.has_split_dashes()
    text = TextSettings(
        source_lang,
        target_lang,
        own.pop("tokenizer", "moses"),
        lowercase=args.lowercase == "yes",
        dash_splits=dash_splits,
        strip_diacritics=args.strip_diacritics == "yes",
    )
    return PreparationSettings(
        text,
        rules=LengthRules(args.min_length, args.max_length, args.max_ratio),
        num_merges=args.merges,
        codes=codes,
        dictionaries=dictionaries,
        cover_latin=args.cover_latin,
        max_subwords=args.max_subwords,
        skip_bad_lines=args.bad_lines == "skip",
        num_workers=args.workers,
        **own,
    )


def _columns(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    numbers = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if len(numbers) != 2 or min(numbers) < 1 or numbers[0] == numbers[1]:
        raise UserError(f"--columns {text}: expected two different numbers from 1, such as 2,1")
    return numbers[0], numbers[1]


def _parser() -> argparse.ArgumentParser:
    split = "take so many pairs out of the training set instead of"
    return cli.parser(
        "Prepare any parallel text for fairseq. A corpus is a TSV file, or SOURCE_FILE,TARGET_FILE;"
        " plain, .gz or .xz. Run again, the command resumes.",
        ("--src", cli.REQUIRED, str, "source language, such as en"),
        ("--tgt", cli.REQUIRED, str, "target language, such as de"),
        ("--train", cli.REQUIRED, "CORPUS", "to learn from"),
        ("--valid", [], "CORPUS", "dev set"),
        ("--test", [], "CORPUS", "each becomes a test set"),
        ("--split-valid", 0, cli.at_least(0), f"{split} --valid"),
        ("--split-test", 0, cli.at_least(0), f"{split} --test"),
        ("--columns", None, str, "source and target column of TSV files, such as 2,1 (default: "
         "the two)"),
        ("--tokenizer", "moses", ("moses", "none"), "none: words are separated by spaces already"),
        ("--bpe", "subword_nmt", ("subword_nmt", "none"), "none: the text is BPE already, or is "
         "to stay words"),
        *shared_flags(num_merges=10_000, max_ratio=3.0),
        prog="prepare-tsv.sh",
    )  # fmt: skip


def main(args: argparse.Namespace) -> None:
    columns = _columns(args.columns)
    settings = preparation_settings(
        args,
        args.src,
        args.tgt,
        tokenizer="moses" if args.tokenizer == "moses" else None,
        train=[ParallelFile.parse(item, columns) for item in args.train],
        valid=[ParallelFile.parse(item, columns) for item in args.valid],
        tests=[ParallelFile.parse(item, columns) for item in args.test],
        split_valid=args.split_valid,
        split_test=args.split_test,
        bpe=args.bpe == "subword_nmt",
    )
    Preparation(settings, args.out.resolve()).run()


if __name__ == "__main__":
    sys.exit(cli.run(_parser(), main))
