"""From any parallel text to a data-bin: collect, tokenise and clean, BPE, binarise.

    OUT/raw/SPLIT.LANG     as given (references for scoring; never cleaned, never tokenised)
    OUT/tok/SPLIT.LANG     normalised, tokenised; training cleaned by length and ratio
    OUT/bpe/SPLIT.LANG     with BPE, and OUT/bpe.codes
    OUT/data-bin/          for fairseq, with dict.LANG.txt and bpe.codes

Steps (``steps.Runner``) write these, so the command resumes when it is run again.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar

from joblib import cpu_count
from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cleaning import LengthRules
from specdec_plugins.corpus.cli import logger, option
from specdec_plugins.corpus.reading import (
    BadLines,
    Pair,
    ParallelFile,
    count_lines,
    read_pairs,
    warn_of_repeats,
)
from specdec_plugins.corpus.resume import written_together
from specdec_plugins.corpus.steps import Command, Runner, flags
from specdec_plugins.corpus.tokenising import (
    TextSettings,
    Work,
    binarise,
    latin_vocabulary,
    learn_codes,
    read_prepared,
    write_clean,
)
from specdec_plugins.errors import UserError, imported, require
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.output import check_output
from specdec_plugins.formats.pretrained.languages import code_of
from specdec_plugins.formats.text import load_codes

_MERGES = 10_000  # learnt unless another number is given


class Preparation:
    """The steps of one preparation, in the folder ``args.out``."""

    def __init__(
        self,
        args: PrepareOptions,  # the flags of specdec prepare, except its corpora
        train: Sequence[ParallelFile],
        valid: Sequence[ParallelFile],
        tests: Sequence[ParallelFile],  # one test set each: test, test1, ...
    ) -> None:
        """Raises UserError if flags conflict or a file is missing."""
        _check_flags(args)
        _check_output(args, [*train, *valid, *tests])
        self._args = args
        self._folder = args.out.resolve()
        self._dictionaries = [path.resolve() for path in (args.dict, args.dict_tgt) if path]
        known = [Dictionary.load(path).symbols for path in self._dictionaries]
        has_dashes = bool(known) and "@-@" in known[0]
        self._given_codes = args.codes and args.codes.resolve()
        if self._given_codes:
            load_codes(self._given_codes)
        self.text = TextSettings(
            args.src,
            args.tgt,
            "moses" if args.tokenizer == "moses" else None,
            lowercase=args.lowercase == "yes",
            dash_splits=args.dash_splits == "yes" or (args.dash_splits == "auto" and has_dashes),
            strip_diacritics=args.strip_diacritics == "yes",
        )
        self._rules = LengthRules(args.min_length, args.max_length, args.max_ratio)
        self._corpora = {"train": train, "valid": valid}
        self._corpora |= {f"test{number or ''}": [test] for number, test in enumerate(tests)}
        # Path of the codes; None: no BPE.
        self._codes = None if args.bpe == "none" else self._folder / "bpe.codes"

    def run(self) -> None:
        splits = [*self._corpora]
        steps = [self._collect(split) for split in splits]
        steps += [self._tokenise(split) for split in splits]
        steps += [self._learn()] if self._codes else []
        steps += [self._segment(split) for split in splits]
        Runner(self._folder, {}, sys.stderr, can_redo=False).run([*steps, self._binarise()])
        data = self._folder / "data-bin"
        require(data.is_dir(), f"{data}: is gone; remove {self._folder}, to prepare it again")
        references = [str(self._pair("raw", split)[1]) for split in splits[1:]]
        logger.info("ready: %s", data)
        logger.info("references for scoring: %s", ", ".join(references))

    def _pair(self, kind: str, split: str) -> list[Path]:
        languages = (self.text.source_lang, self.text.target_lang)
        return [self._folder / kind / f"{split}.{language}" for language in languages]

    def _step(
        self,
        title: str,
        write: Callable[[Sequence[Path]], object],
        outputs: Sequence[Path],
        reads: Iterable[Path] = (),
        given: Iterable[Path] = (),
        **settings: object,
    ) -> Command:
        """A step of this process. write: to temporary names, one for each output.

        reads: outputs of other steps; given: files of the user; settings: what else matters.
        """

        def act() -> None:
            with written_together(outputs) as parts:
                write(parts)

        words = ["prepare", *map(str, (*reads, *given)), *flags(**settings)]
        return Command(title, words, list(map(str, outputs)), inputs=list(map(str, given)), act=act)

    def _collect(self, split: str) -> Command:
        corpora, training = self._corpora[split], split == "train"
        bad = BadLines(training and self._args.bad_lines == "skip", can_skip=training)

        def collect(parts: Sequence[Path]) -> None:
            pairs = (pair for corpus in corpora for pair in read_pairs(corpus, bad))
            write_clean(parts, tqdm(pairs, f"reading {split}", unit=" pairs"), None)
            bad.warn()

        return self._step(
            f"collect {split}",
            collect,
            self._pair("raw", split),
            given=[path for corpus in corpora for path in corpus.paths],
            columns=[str(corpus.columns) for corpus in corpora],
            parts=[f"{corpus.first}-{corpus.last or ''}" for corpus in corpora],
            skip_bad_lines=bad.skip,
        )

    def _tokenise(self, split: str) -> Command:
        raw = self._pair("raw", split)
        rules = self._rules if split == "train" else None
        work = Work(self.text, None, self._args.workers)

        def tokenise(parts: Sequence[Path]) -> None:
            pairs = work.over(read_prepared(raw), count_lines(raw[0]), f"tokenising {split}")
            found = write_clean(parts, pairs, rules)
            told = ", ".join(f"{n} {reason}" for reason, n in sorted(found.items()) if n)
            logger.info("%s pairs: %s", split, told)

        settings = {**asdict(self.text), **(asdict(rules) if rules else {})}
        return self._step(f"tokenise {split}", tokenise, self._pair("tok", split), raw, **settings)

    def _learn(self) -> Command:
        tokenised, given = self._pair("tok", "train"), self._given_codes
        merges = self._args.merges or _MERGES
        title, outputs = "learn codes", [self._folder / "bpe.codes"]
        if given:
            copy = lambda parts: shutil.copyfile(given, parts[0])  # noqa: E731
            return self._step(title, copy, outputs, given=[given])
        learn = lambda parts: learn_codes(tokenised, parts[0], merges)  # noqa: E731
        return self._step(title, learn, outputs, tokenised, merges=merges)

    def _segment(self, split: str) -> Command:
        args, tokenised = self._args, self._pair("tok", split)
        work = Work(self.text, self._codes, args.workers)
        limit = args.max_subwords if split == "train" else None
        covers = args.cover_latin and split == "train"

        def segment(parts: Sequence[Path]) -> None:
            pairs = read_prepared(tokenised)
            if self._codes:
                pairs = work.over(pairs, count_lines(tokenised[0]), f"applying BPE to {split}")
            tokens: Counter[str] = Counter()
            rules = LengthRules(1, limit, math.inf) if limit else None
            write_clean(parts, _counted(pairs, tokens) if covers else pairs, rules)
            if covers:
                lines = (f"{token} {number}\n" for token, number in latin_vocabulary(tokens))
                parts[2].write_text("".join(lines), encoding="utf-8")

        return self._step(
            f"segment {split}",
            segment,
            [*self._pair("bpe", split), *([self._vocabulary] if covers else [])],
            [*tokenised, *([self._codes] if self._codes else [])],
            max_subwords=limit,
            cover_latin=covers,
        )

    @property
    def _vocabulary(self) -> Path:
        """The dictionary of --cover-latin."""
        return self._folder / "bpe" / "dict.txt"

    def _binarise(self) -> Command:
        splits = {split: self._pair("bpe", split) for split in self._corpora}
        learnt = [self._vocabulary] if self._args.cover_latin else []
        codes = [self._codes] if self._codes else []
        given, languages = self._dictionaries, (self.text.source_lang, self.text.target_lang)

        def write(parts: Sequence[Path]) -> None:
            binarise(splits, languages, learnt or given, parts[0], self._args.force)
            for path in codes:
                shutil.copyfile(path, parts[0] / path.name)

        reads = [*chain(*splits.values()), *learnt, *codes]
        return self._step("binarise", write, [self._folder / "data-bin"], reads, given)


def _check_flags(args: PrepareOptions) -> None:
    require(args.src != args.tgt, f"--src and --tgt are both {args.src!r}; they must differ")
    for flag, language in (("--src", args.src), ("--tgt", args.tgt)):
        require(
            "-" not in language,
            f"{flag} {language}: fairseq's file names have '-' between languages; write "
            f"{language.replace('-', '_')}",
        )
        if args.tokenizer == "moses":
            _check_language(flag, language)
    require(args.bpe != "none" or not args.codes, "give either --codes or --bpe none, not both")
    learns = args.bpe != "none" and not args.codes
    require(learns or not args.merges, "--merges is for codes that are learnt here; omit it")
    told = "--dash-splits is for text that is tokenised here; omit it, or --tokenizer none"
    require(args.tokenizer == "moses" or args.dash_splits != "yes", told)
    require(not (args.cover_latin and args.dict), "give either --cover-latin or --dict, not both")
    require(
        bool(args.dict or not args.dict_tgt), "--dict-tgt needs --dict, the source's dictionary"
    )


def _check_output(args: PrepareOptions, corpora: Sequence[ParallelFile]) -> None:
    """Raises UserError if a preparation would overwrite its own input."""
    inputs = [path for corpus in corpora for path in corpus.paths]
    inputs += filter(None, (args.codes, args.dict, args.dict_tgt))
    for name in ("raw", "tok", "bpe", "data-bin"):
        check_output(args.out / name, "--out", inputs=inputs, folder=True)
    check_output(args.out / "bpe.codes", "--out", inputs=inputs, replaced=True)


def _check_language(flag: str, language: str) -> None:
    """Raises UserError for what is no language code; warns if the tokeniser does not know it."""
    known = imported("sacremoses.corpus", "text").NonbreakingPrefixes().available_langs
    if code_of(language, flag) not in known:
        logger.warning(
            "%s %s: the tokeniser has no abbreviations of this language and takes the English ones",
            flag,
            language,
        )


def _counted(pairs: Iterable[Pair], tokens: Counter[str]) -> Iterator[Pair]:
    for pair in pairs:
        for side in pair:
            tokens.update(side.split())
        yield pair


@dataclass(kw_only=True)
class PreparationOptions:
    """The flags that every preparation has."""

    # fmt: off
    merges: int | None = option(None, "joint BPE merges (default: 10000)", least=1)
    codes: Path | None = option(None, "reuse these BPE codes instead of learning them")
    dict: Path | None = option(None, "reuse this dictionary (for both sides)")
    dict_tgt: Path | None = option(None, "the target's own dictionary, with --dict")
    cover_latin: bool = option(False, "learn a joint dictionary that can spell every printable "
        "Latin character, and drops rare characters of other scripts")
    max_subwords: int | None = option(None, "most subwords per side, training (default: no limit)",
        least=1)
    min_length: int = option(1, "fewest words per side, training", least=1)
    max_length: int = option(250, "most words per side, training", least=1)
    max_ratio: float = option(3.0, "longer/shorter side, training", least=1)
    lowercase: str = option("no", "lowercase both sides", choices=("yes", "no"))
    strip_diacritics: str = option("no", "remove Romanian diacritics", choices=("yes", "no"))
    dash_splits: str = option("auto", "write a-b as a @-@ b; auto: if the given dictionary has @-@",
        choices=("auto", "yes", "no"))
    bad_lines: str = option("refuse", "what to do with training lines that are not UTF-8 or have "
        "the wrong number of columns", choices=("refuse", "skip"))
    force: bool = option(False, "go on although more than a fifth of a text is unknown to the "
        "dictionary")
    workers: int = option(cpu_count(), "parallel processes", least=1)
    # fmt: on


def _columns(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    numbers = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if len(numbers) != 2 or min(numbers) < 1 or numbers[0] == numbers[1]:
        raise UserError(f"--columns {text}: expected two different numbers from 1, such as 2,1")
    return numbers[0], numbers[1]


def main(args: PrepareOptions) -> None:
    columns = _columns(args.columns)
    train, valid, tests = (
        [ParallelFile.parse(item, columns) for item in items]
        for items in (args.train, args.valid, args.test)
    )
    told = "--columns is for TSV files, and each corpus is two files; omit it"
    require(not columns or any(len(one.paths) == 1 for one in (*train, *valid, *tests)), told)
    warn_of_repeats(train, [*valid, *tests])
    Preparation(args, train, valid, tests).run()


@dataclass(kw_only=True)
class PrepareOptions(PreparationOptions):
    """Prepare any parallel text for fairseq.

    A corpus is a TSV file or SOURCE_FILE,TARGET_FILE (plain, .gz or .xz); FILE:FROM-TO takes only
    those lines. The command resumes when it is run again.
    """

    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("--split-valid", "--split-test"),
        "give lines of the training file: --train FILE:2001- --valid FILE:1-1000 "
        "--test FILE:1001-2000; specdec prepare mix keeps what is held out from training",
    )

    # fmt: off
    src: str = option(MISSING, "source language, such as en")
    tgt: str = option(MISSING, "target language, such as de")
    train: Sequence[str] = option(MISSING, "training corpora", "CORPUS")
    valid: Sequence[str] = option(MISSING, "dev set", "CORPUS")
    test: Sequence[str] = option((), "test sets, one per corpus", "CORPUS")
    columns: str | None = option(None, "source and target column of TSV files, such as 2,1 "
        "(default: the only two)")
    tokenizer: str = option("moses", "none: the text is tokenised already",
        choices=("moses", "none"))
    bpe: str = option("subword_nmt", "none: the text has BPE already, or needs none",
        choices=("subword_nmt", "none"))
    out: Path = option(MISSING, "folder to write")
    # fmt: on


COMMAND = cli.CommandLine("specdec prepare", main, PrepareOptions)  # fmt: skip
