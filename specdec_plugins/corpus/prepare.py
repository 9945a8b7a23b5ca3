"""Any parallel text to a data-bin: collect, tokenise and clean, BPE, binarise.

    OUT/raw/SPLIT.LANG     as it came (references for scoring; never cleaned, never tokenised)
    OUT/tok/SPLIT.LANG     normalised, tokenised; training cleaned by length and ratio
    OUT/bpe/SPLIT.LANG     with BPE, and OUT/bpe.codes
    OUT/data-bin/          for fairseq, with dict.LANG.txt and bpe.codes

Each of these is a step of ``steps.Steps``: run again, the command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.binarising import Binarising
from specdec_plugins.corpus.cleaning import HeldOut
from specdec_plugins.corpus.cli import logger
from specdec_plugins.corpus.reading import Faults, Pair, ParallelFile, read_pairs
from specdec_plugins.corpus.recipe import (
    Recipe,
    add_recipe_arguments,
    add_text_arguments,
    build_recipe,
    text_settings,
)
from specdec_plugins.corpus.resume import Steps, locked, read_json
from specdec_plugins.corpus.tokenising import (
    Work,
    count_lines,
    learn_codes,
    read_prepared,
    write_clean,
)
from specdec_plugins.errors import UserError


class Preparation:
    """Runs the steps of one recipe in one folder."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self._recipe = recipe
        self._folder = folder
        self._steps = Steps(folder)
        self._codes = folder / "bpe.codes"

    def run(self) -> None:
        with locked(self._folder):
            self._collect()
            for split in self._recipe.splits:
                self._tokenise(split)
            self._learn()
            for split in self._recipe.splits:
                self._segment(split)
            self._binarise()
        self._say()

    def _pair(self, kind: str, split: str) -> list[Path]:
        text = self._recipe.text
        return [self._folder / kind / f"{split}.{x}" for x in (text.source_lang, text.target_lang)]

    def _collect(self) -> None:
        recipe = self._recipe
        split_off = {"valid": recipe.split_valid, "test": recipe.split_test}
        here = ["train", *(split for split, number in split_off.items() if number)]
        self._collect_step(here, recipe.train, Faults(recipe.skip_bad_lines))
        if recipe.valid:
            self._collect_step(["valid"], recipe.valid, Faults())
        for split, corpus in zip(recipe.splits[2:], recipe.tests, strict=False):
            self._collect_step([split], [corpus], Faults())

    def _collect_step(
        self, splits: Sequence[str], corpora: Sequence[ParallelFile], faults: Faults
    ) -> None:
        recipe = self._recipe
        training = splits[0] == "train"

        def collect(parts: Sequence[Path]) -> None:
            held = HeldOut((), ())
            if len(splits) > 1:
                first = _all_pairs(corpora, Faults(faults.skip), "choosing held-out pairs")
                held = HeldOut.choose(first, recipe.split_valid, recipe.split_test)
            pairs = _all_pairs(corpora, faults, f"reading {splits[0]}")
            dropped = _write_splits(dict(zip(splits, _twos(parts), strict=True)), pairs, held)
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
                "split-valid": recipe.split_valid if training else 0,
                "split-test": recipe.split_test if training else 0,
                "skip-bad-lines": faults.skip,
            },
        )

    def _tokenise(self, split: str) -> None:
        recipe = self._recipe
        raw = self._pair("raw", split)
        rules = recipe.rules if split == "train" else None
        counts = self._folder / "tok" / f"{split}.counts.json"
        work = Work(recipe.text, None, recipe.num_workers)

        def tokenise(parts: Sequence[Path]) -> None:
            pairs = work.over(read_prepared(raw), count_lines(raw[0]), f"tokenising {split}")
            write_clean(parts, pairs, rules)

        self._steps.run(
            f"tokenise-{split}",
            tokenise,
            inputs=raw,
            outputs=[*self._pair("tok", split), counts],
            settings={**asdict(recipe.text), **(asdict(rules) if rules else {})},
        )
        found = read_json(counts)
        dropped = ", ".join(f"{n} {reason}" for reason, n in sorted(found.items()) if n)
        logger.info("%s pairs: %s", split, dropped)

    def _learn(self) -> None:
        recipe = self._recipe
        if not recipe.bpe:
            return
        tokenised = self._pair("tok", "train")
        given = recipe.codes

        def learn(parts: Sequence[Path]) -> None:
            if given is not None:
                shutil.copyfile(given, parts[0])
            else:
                learn_codes(tokenised, parts[0], recipe.num_merges)

        self._steps.run(
            "codes",
            learn,
            inputs=tokenised if given is None else [given],
            outputs=[self._codes],
            settings={"merges": recipe.num_merges if given is None else "given"},
        )

    def _segment(self, split: str) -> None:
        recipe = self._recipe
        tokenised = self._pair("tok", split)
        work = Work(recipe.text, self._codes, recipe.num_workers)

        def segment(parts: Sequence[Path]) -> None:
            pairs = read_prepared(tokenised)
            if recipe.bpe:
                pairs = work.over(pairs, count_lines(tokenised[0]), f"applying BPE to {split}")
            write_clean([*parts, parts[0].with_suffix(".counts")], pairs, None)
            parts[0].with_suffix(".counts").unlink()

        self._steps.run(
            f"bpe-{split}",
            segment,
            inputs=[*tokenised, *([self._codes] if recipe.bpe else [])],
            outputs=self._pair("bpe", split),
            settings={"bpe": recipe.bpe},
        )

    def _binarise(self) -> None:
        recipe = self._recipe
        text = recipe.text
        inputs = [path for split in recipe.splits for path in self._pair("bpe", split)]
        codes = self._codes if recipe.bpe else None
        largest = max(count_lines(path) for path in inputs)
        binarising = Binarising(
            self._folder / "bpe",
            text.source_lang,
            text.target_lang,
            recipe.splits,
            recipe.dictionaries,
            min(recipe.num_workers, 1 + largest // 10_000),
        )
        self._steps.run(
            "binarise",
            lambda parts: binarising.run(parts[0], self._folder / "preprocess.log", codes),
            inputs=[*inputs, *recipe.dictionaries.paths, *([codes] if codes else [])],
            outputs=[self._folder / "data-bin"],
            settings={"splits": recipe.splits, "dictionaries": len(recipe.dictionaries.paths)},
        )

    def _say(self) -> None:
        references = [str(self._pair("raw", split)[1]) for split in self._recipe.splits[1:]]
        logger.info("ready: %s", self._folder / "data-bin")
        logger.info("references for scoring: %s", ", ".join(references))


def _twos(paths: Sequence[Path]) -> list[tuple[Path, Path]]:
    return list(zip(paths[::2], paths[1::2], strict=True))


def _all_pairs(corpora: Sequence[ParallelFile], faults: Faults, name: str) -> tqdm[Pair]:
    pairs = (pair for corpus in corpora for pair in read_pairs(corpus, faults))
    return tqdm(pairs, desc=name, unit=" pairs", mininterval=0.5)


def _write_splits(outputs: dict[str, tuple[Path, Path]], pairs: tqdm[Pair], held: HeldOut) -> int:
    """Write each pair to its split (the first one, unless held out); returns how many have none."""
    dropped = 0
    main = next(iter(outputs))
    with ExitStack() as stack:
        files = {
            split: [
                stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
                for path in paths
            ]
            for split, paths in outputs.items()
        }
        for pair in pairs:
            place = held.place(pair)
            if place is None:
                dropped += 1
                continue
            for file, line in zip(files[main if place == "train" else place], pair, strict=True):
                file.write(line + "\n")
    return dropped


def corpus_files(
    items: Sequence[str], columns: tuple[int, int] | None = None
) -> list[ParallelFile]:
    """``FILE`` is a TSV, ``FILE,FILE`` the source and the target side of a corpus."""
    corpora = []
    for item in items:
        sides = [item] if Path(item).is_file() else item.split(",")
        if len(sides) > 2:
            raise UserError(f"{item}: expected one TSV file, or SOURCE_FILE,TARGET_FILE")
        paths = [Path(side).resolve() for side in sides]
        if len(paths) == 2:
            corpora.append(ParallelFile(paths[0], paths[1]))
        else:
            corpora.append(ParallelFile(paths[0], columns=columns))
    return corpora


def _columns(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    numbers = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if len(numbers) != 2 or min(numbers) < 1 or numbers[0] == numbers[1]:
        raise UserError(f"--columns {text}: expected two different numbers from 1, such as 2,1")
    return numbers[0], numbers[1]


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser(
        "Prepare any parallel text for fairseq. A corpus is a TSV file, or SOURCE_FILE,TARGET_FILE;"
        " plain, .gz or .xz. Run again, the command goes on where it stopped.",
        prog="prepare-tsv.sh",
    )
    parser.add_argument("--src", required=True, help="source language, such as en")
    parser.add_argument("--tgt", required=True, help="target language, such as de")
    parser.add_argument("--train", nargs="+", required=True, metavar="CORPUS", help="to learn from")
    parser.add_argument("--valid", nargs="+", default=[], metavar="CORPUS", help="dev set")
    parser.add_argument(
        "--test", nargs="+", default=[], metavar="CORPUS", help="each becomes a test set"
    )
    parser.add_argument(
        "--columns", help="source and target column of TSV files, such as 2,1 (default: the two)"
    )
    add_text_arguments(parser)
    add_recipe_arguments(parser, num_merges=10_000, max_ratio=3.0)
    return parser


def main(args: argparse.Namespace) -> None:
    columns = _columns(args.columns)
    recipe = build_recipe(
        args,
        text_settings(args, args.src, args.tgt, args.tokenizer),
        train=corpus_files(args.train, columns),
        valid=corpus_files(args.valid, columns),
        tests=corpus_files(args.test, columns),
        split_valid=args.split_valid,
        split_test=args.split_test,
        bpe=args.bpe == "subword_nmt",
    )
    Preparation(recipe, args.out.resolve()).run()


if __name__ == "__main__":
    sys.exit(cli.run(_parser(), main))
