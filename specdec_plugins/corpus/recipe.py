"""What is prepared, from what, how: the settings that every preparation script shares."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.binarising import Dictionaries
from specdec_plugins.corpus.cleaning import LengthRules
from specdec_plugins.corpus.reading import ParallelFile, check_file
from specdec_plugins.corpus.tokenising import TextSettings
from specdec_plugins.errors import UserError
from specdec_plugins.formats.text import load_codes


@dataclass(frozen=True)
class Recipe:
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
        self._check_files()

    def _check_files(self) -> None:
        for corpus in self.all_files:
            expected = (
                "one side of a corpus" if corpus.target else "a TSV, or two sides with a comma"
            )
            for path in corpus.paths:
                check_file(path, f"a file of text: {expected}")
        for path in self.dictionaries.paths:
            check_file(path, "a dictionary, a token and its count on each line")
        if self.codes is not None:
            check_file(self.codes, "a file of BPE codes")
            load_codes(self.codes)

    @property
    def all_files(self) -> list[ParallelFile]:
        return [*self.train, *self.valid, *self.tests]

    @property
    def splits(self) -> list[str]:
        num_tests = len(self.tests) or int(self.split_test > 0)
        return ["train", "valid", *(f"test{i or ''}" for i in range(num_tests))]


def add_recipe_arguments(
    parser: argparse.ArgumentParser, num_merges: int, max_ratio: float
) -> None:
    """The flags that every preparation script has, with the script's own defaults."""
    number = cli.at_least(1)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--merges", type=number, default=num_merges, help="joint BPE merges")
    parser.add_argument("--codes", type=Path, help="reuse these BPE codes instead of learning")
    parser.add_argument("--dict", type=Path, help="reuse this dictionary (for both sides)")
    parser.add_argument("--dict-tgt", type=Path, help="the target's own dictionary, with --dict")
    parser.add_argument("--min-length", type=number, default=1, help="words a side, training")
    parser.add_argument("--max-length", type=number, default=250, help="words a side, training")
    parser.add_argument(
        "--max-ratio", type=cli.at_least(1, float), default=max_ratio, help="longer/shorter side"
    )
    parser.add_argument("--lowercase", choices=["yes", "no"], default="no", help="both sides")
    parser.add_argument(
        "--strip-diacritics", choices=["yes", "no"], default="no", help="Romanian without marks"
    )
    parser.add_argument(
        "--dash-splits",
        choices=["auto", "yes", "no"],
        default="auto",
        help="write a-b as a @-@ b; auto: where the given dictionary has it",
    )
    parser.add_argument(
        "--bad-lines",
        choices=["refuse", "skip"],
        default="refuse",
        help="training lines that are not UTF-8 or have a wrong shape",
    )
    parser.add_argument(
        "--workers", type=number, default=len(os.sched_getaffinity(0)), help="processes at once"
    )


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags for text that is no published data set."""
    for split in ("valid", "test"):
        parser.add_argument(
            f"--split-{split}",
            type=cli.at_least(0),
            default=0,
            metavar="PAIRS",
            help=f"take so many pairs out of the training set instead of --{split}",
        )
    parser.add_argument(
        "--tokenizer",
        choices=["moses", "none"],
        default="moses",
        help="none: words are separated by spaces already",
    )
    parser.add_argument(
        "--bpe",
        choices=["subword_nmt", "none"],
        default="subword_nmt",
        help="none: the text is BPE already, or is to stay words",
    )


def text_settings(
    args: argparse.Namespace, source_lang: str, target_lang: str, tokenizer: str = "moses"
) -> TextSettings:
    dash_splits = args.dash_splits == "yes"
    if args.dash_splits == "auto" and args.dict and args.dict.is_file():
        dash_splits = Dictionaries(args.dict).has_split_dashes()
    return TextSettings(
        source_lang,
        target_lang,
        "moses" if tokenizer == "moses" else None,
        lowercase=args.lowercase == "yes",
        dash_splits=dash_splits,
        strip_diacritics=args.strip_diacritics == "yes",
    )


def build_recipe(args: argparse.Namespace, text: TextSettings, **corpora: Any) -> Recipe:
    """A recipe of the shared flags and of the corpora (fields of ``Recipe``) of one script."""
    if args.dict_tgt and not args.dict:
        raise UserError("--dict-tgt needs --dict, the source's dictionary")
    codes, source, target = (
        path and path.resolve() for path in (args.codes, args.dict, args.dict_tgt)
    )
    return Recipe(
        text,
        rules=LengthRules(args.min_length, args.max_length, args.max_ratio),
        num_merges=args.merges,
        codes=codes,
        dictionaries=Dictionaries(source, target),
        skip_bad_lines=args.bad_lines == "skip",
        num_workers=args.workers,
        **corpora,
    )
