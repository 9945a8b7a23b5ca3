"""From any parallel text to a data-bin: collect, tokenise and clean, BPE, binarise.

    OUT/raw/SPLIT.LANG     as given (references for scoring; never cleaned, never tokenised)
    OUT/tok/SPLIT.LANG     normalised, tokenised; training cleaned by length and ratio
    OUT/bpe/SPLIT.LANG     with BPE, and OUT/bpe.codes
    OUT/data-bin/          for fairseq, with dict.LANG.txt and bpe.codes

Steps of ``resume.Steps`` write these, so the command resumes when it is run again.
"""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass
from itertools import chain, count
from pathlib import Path

from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.binarising import dictionary_flags, latin_vocabulary, preprocess
from specdec_plugins.corpus.cleaning import KEPT, HeldOutSentences, LengthRules, keys_of, split_off
from specdec_plugins.corpus.cli import logger, option
from specdec_plugins.corpus.reading import (
    BadLines,
    Pair,
    ParallelFile,
    check_file,
    count_lines,
    read_pairs,
    warn_of_repeats,
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
from specdec_plugins.errors import UserError, imported, located, require
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.output import check_output, written_whole
from specdec_plugins.formats.pretrained.languages import code_of
from specdec_plugins.formats.text import load_codes


class Preparation:
    """The steps of one preparation, in the folder ``args.out``."""

    def __init__(
        self,
        args: PrepareOptions,  # the flags of specdec prepare, except its corpora
        train: Sequence[ParallelFile],
        valid: Sequence[ParallelFile],  # empty: split off
        tests: Sequence[ParallelFile],  # one test set each: test, test1, ...
    ) -> None:
        """Raises UserError if flags conflict or a file is missing."""
        _check_flags(args, bool(valid), bool(tests))
        _check_output(args, [*train, *valid, *tests])
        self._args = args
        self._folder = args.out.resolve()
        self._dictionaries = [path.resolve() for path in (args.dict, args.dict_tgt) if path]
        for path in self._dictionaries:
            check_file(path, "a dictionary with a token and its count on each line")
            Dictionary.load(path)
        self._given_codes = args.codes and args.codes.resolve()
        if self._given_codes:
            check_file(self._given_codes, "a file of BPE codes")
            load_codes(self._given_codes)
        self.text = TextSettings(
            args.src,
            args.tgt,
            "moses" if args.tokenizer == "moses" else None,
            lowercase=args.lowercase == "yes",
            dash_splits=args.dash_splits == "yes"
            or (args.dash_splits == "auto" and _splits_dashes(self._dictionaries[:1])),
            strip_diacritics=args.strip_diacritics == "yes",
        )
        self._rules = LengthRules(args.min_length, args.max_length, args.max_ratio)
        self._corpora = {"train": train, "valid": valid}
        self._corpora |= {f"test{number or ''}": [test] for number, test in enumerate(tests)}
        self._splits = [*self._corpora, *(["test"] if args.split_test else [])]
        self._steps = Steps(self._folder)
        # Path of the codes; None: no BPE.
        self._codes = None if args.bpe == "none" else self._folder / "bpe.codes"

    def run(self) -> None:
        with locked(self._folder):
            for split, corpora in self._corpora.items():
                if corpora:
                    self._collect(split, corpora)
            for split in self._splits:
                self._tokenise(split)
            self._learn()
            for split in self._splits:
                self._segment(split)
            self._binarise()
        references = [str(self._pair("raw", split)[1]) for split in self._splits[1:]]
        logger.info("ready: %s", self._folder / "data-bin")
        logger.info("references for scoring: %s", ", ".join(references))

    def _pair(self, kind: str, split: str) -> list[Path]:
        languages = (self.text.source_lang, self.text.target_lang)
        return [self._folder / kind / f"{split}.{language}" for language in languages]

    def _collect(self, split: str, corpora: Sequence[ParallelFile]) -> None:
        """Write a raw split; for the training text also the dev and test sets split off from it."""
        args, training = self._args, split == "train"
        sizes = (args.split_valid, args.split_test) if training else (0, 0)
        made = [split, *(name for name, size in zip(("valid", "test"), sizes, strict=True) if size)]
        bad = BadLines(training and args.bad_lines == "skip", can_skip=training)

        def collect(parts: Sequence[Path]) -> None:
            sides = dict(zip(made, zip(parts[::2], parts[1::2], strict=True), strict=True))
            chosen = _split_off(corpora, BadLines(bad.skip, bad.can_skip), sizes)
            held, dropped = HeldOutSentences(chain(*chosen.values())), 0
            for name in made[1:]:
                write_clean(sides[name], chosen[name], None)
            with writing(sides[split]) as write:
                for pair in _all_pairs(corpora, bad, f"reading {split}"):
                    if chosen and held.verdict(keys_of(pair)) != KEPT:
                        dropped += 1
                    else:
                        write(pair)
            if dropped:
                logger.info("dropped %d pairs that have a held-out sentence", dropped)
            bad.warn()

        self._steps.run(
            f"collect-{split}",
            collect,
            inputs=[path for corpus in corpora for path in corpus.paths],
            outputs=[path for name in made for path in self._pair("raw", name)],
            settings={
                "columns": [corpus.columns for corpus in corpora],
                "parts": [(corpus.first, corpus.last) for corpus in corpora],
                "split-valid": sizes[0], "split-test": sizes[1], "skip-bad-lines": bad.skip,
            },
        )  # fmt: skip

    def _tokenise(self, split: str) -> None:
        raw = self._pair("raw", split)
        rules = self._rules if split == "train" else None
        counts = self._folder / "tok" / f"{split}.counts.json"
        work = Work(self.text, None, self._args.workers)

        def tokenise(parts: Sequence[Path]) -> None:
            pairs = work.over(read_prepared(raw), count_lines(raw[0]), f"tokenising {split}")
            write_json(parts[2], dict(write_clean(parts, pairs, rules)))

        self._steps.run(
            f"tokenise-{split}",
            tokenise,
            inputs=raw,
            outputs=[*self._pair("tok", split), counts],
            settings={**asdict(self.text), **(asdict(rules) if rules else {})},
        )
        found = dict(read_json(counts))
        dropped = ", ".join(f"{n} {reason}" for reason, n in sorted(found.items()) if n)
        logger.info("%s pairs: %s", split, dropped)

    def _learn(self) -> None:
        tokenised, given, more = self._pair("tok", "train"), self._given_codes, self._args.more
        merges = more if given else self._args.merges

        def learn(parts: Sequence[Path]) -> None:
            if given and not more:
                shutil.copyfile(given, parts[0])
            else:
                learn_codes(tokenised, parts[0], merges, given)

        if self._codes:
            self._steps.run(
                "codes",
                learn,
                inputs=[*([given] if given else []), *(tokenised if merges else [])],
                outputs=[self._codes],
                settings={"merges": merges, "given": bool(given)},
            )

    def _segment(self, split: str) -> None:
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

        self._steps.run(
            f"bpe-{split}",
            segment,
            inputs=[*tokenised, *([self._codes] if self._codes else [])],
            outputs=[*self._pair("bpe", split), *([self._vocabulary] if covers else [])],
            settings={
                "bpe": self._codes is not None, "max-subwords": limit, "cover-latin": covers
            },
        )  # fmt: skip

    @property
    def _vocabulary(self) -> Path:
        """The dictionary of --cover-latin."""
        return self._folder / "bpe" / "dict.txt"

    def _binarise(self) -> None:
        inputs = [path for split in self._splits for path in self._pair("bpe", split)]
        largest = max(count_lines(path) for path in inputs)
        given = [self._vocabulary] if self._args.cover_latin else self._dictionaries
        workers = min(self._args.workers, 1 + largest // 10_000)
        command = ["--source-lang", self.text.source_lang, "--target-lang", self.text.target_lang]
        command += ["--workers", str(workers), *dictionary_flags(given)]
        for flag in ("train", "valid", "test"):
            prefixes = [self._folder / "bpe" / s for s in self._splits if s.startswith(flag)]
            if prefixes:
                command += [f"--{flag}pref", ",".join(map(str, prefixes))]
        log, data = self._folder / "preprocess.log", self._folder / "data-bin"

        def binarise(parts: Sequence[Path]) -> None:
            preprocess(command, parts[0], log, self._codes, self._args.force)
            _keep_dictionaries(data, parts[0])

        self._steps.run(
            "binarise",
            binarise,
            inputs=[*inputs, *given, *([self._codes] if self._codes else [])],
            outputs=[data],
            settings={"splits": self._splits, "dictionaries": len(given)},
        )


def _keep_dictionaries(old: Path, new: Path) -> None:
    """Copy dictionaries and codes of a folder that others are about to replace.

    Models that were trained with them are of no use without them.
    """
    files = [path for name in ("dict.*.txt", "bpe.codes") for path in sorted(old.glob(name))]
    if all((new / path.name).is_file() and _is_same(path, new / path.name) for path in files):
        return
    places = (old.with_name(f"dictionaries.old{number or ''}") for number in count())
    place = next(place for place in places if not place.exists())
    with written_whole(place) as part:
        part.mkdir()
        for path in files:
            shutil.copyfile(path, part / path.name)
    logger.warning("dictionaries have changed; models of the earlier ones need %s", place)


def _is_same(path: Path, other: Path) -> bool:
    if path.suffix != ".txt":
        return path.read_bytes() == other.read_bytes()
    return Dictionary.load(path) == Dictionary.load(other)  # whatever their counts


def _check_flags(args: PrepareOptions, has_valid: bool, has_tests: bool) -> None:
    require(
        has_valid != bool(args.split_valid),
        "give either --valid FILE or --split-valid N, with N above 0",
    )
    require(
        not (has_tests and args.split_test), "give either --test FILE or --split-test N, not both"
    )
    require(args.src != args.tgt, f"--src and --tgt are both {args.src!r}; they must differ")
    for flag, language in (("--src", args.src), ("--tgt", args.tgt)):
        require(
            "-" not in language,
            f"{flag} {language}: fairseq's file names have '-' between languages; write "
            f"{language.replace('-', '_')}",
        )
        if args.tokenizer == "moses":
            _check_language(flag, language)
    require(not (args.more and not args.codes), "--more needs --codes, the merges to go on from")
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


def _splits_dashes(dictionaries: Sequence[Path]) -> bool:
    """Whether the text of a dictionary had ``@-@`` for a dash inside a word."""
    lines = (line for path in dictionaries for line in path.read_text(encoding="utf-8").split("\n"))
    return any(line.startswith("@-@ ") for line in lines)


def _counted(pairs: Iterable[Pair], tokens: Counter[str]) -> Iterator[Pair]:
    for pair in pairs:
        for side in pair:
            tokens.update(side.split())
        yield pair


def _split_off(
    corpora: Sequence[ParallelFile], bad: BadLines, sizes: tuple[int, int]
) -> dict[str, list[Pair]]:
    """A dev and a test set of these sizes, all with letters on both sides; none if both are 0.

    Raises UserError if the corpora are too small.
    """
    if not any(sizes):
        return {}
    pairs = _all_pairs(corpora, bad, "choosing held-out pairs")
    with located("--split-valid, --split-test"):
        telling = (pair for pair in pairs if all(keys_of(pair)))
        valid, test = split_off(telling, HeldOutSentences(), "", sizes)
    return {"valid": valid, "test": test}


def _all_pairs(corpora: Sequence[ParallelFile], bad: BadLines, name: str) -> tqdm[Pair]:
    pairs = (pair for corpus in corpora for pair in read_pairs(corpus, bad))
    return tqdm(pairs, desc=name, unit=" pairs", mininterval=0.5)


@dataclass(kw_only=True)
class PreparationOptions:
    """The flags that every preparation has."""

    # fmt: off
    merges: int = option(10_000, "joint BPE merges", least=1)
    codes: Path | None = option(None, "reuse these BPE codes instead of learning them")
    more: int = option(0, "further merges to learn after those of --codes", least=0)
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
    workers: int = option(len(os.sched_getaffinity(0)), "parallel processes", least=1)
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
    warn_of_repeats(train, [*valid, *tests])
    Preparation(args, train, valid, tests).run()


_SPLIT = "take this many pairs out of the training set instead of"


@dataclass(kw_only=True)
class PrepareOptions(PreparationOptions):
    """Prepare any parallel text for fairseq.

    A corpus is a TSV file or SOURCE_FILE,TARGET_FILE (plain, .gz or .xz). The command resumes
    when it is run again.
    """

    # fmt: off
    src: str = option(MISSING, "source language, such as en")
    tgt: str = option(MISSING, "target language, such as de")
    train: Sequence[str] = option(MISSING, "training corpora", "CORPUS")
    valid: Sequence[str] = option((), "dev set", "CORPUS")
    test: Sequence[str] = option((), "test sets, one per corpus", "CORPUS")
    split_valid: int = option(0, f"{_SPLIT} --valid", least=0)
    split_test: int = option(0, f"{_SPLIT} --test", least=0)
    columns: str | None = option(None, "source and target column of TSV files, such as 2,1 "
        "(default: the only two)")
    tokenizer: str = option("moses", "none: the text is tokenised already",
        choices=("moses", "none"))
    bpe: str = option("subword_nmt", "none: the text has BPE already, or needs none",
        choices=("subword_nmt", "none"))
    out: Path = option(MISSING, "folder to write")
    # fmt: on


COMMAND = cli.CommandLine("specdec prepare", main, PrepareOptions)  # fmt: skip
