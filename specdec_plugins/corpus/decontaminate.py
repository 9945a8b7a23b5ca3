"""Training text without the sentences of dev and test sets, and the sets themselves beside it.

    OUT/train.tsv          all training files one after the other, contaminated pairs left out
    OUT/valid.tsv, OUT/test.tsv, OUT/test1.tsv, ...
    OUT/report.json        pairs of each file: read, kept, dropped and why

A training pair goes where either side equals a held-out sentence of its language. Case, punctuation
and spaces do not count, so near-duplicates that differ in these alone go, too.
"""

from __future__ import annotations

import argparse
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import logger
from specdec_plugins.corpus.reading import Faults, Pair, ParallelFile, read_pairs
from specdec_plugins.corpus.resume import write_json, written_whole
from specdec_plugins.errors import UserError

RESEARCH_ONLY = re.compile("multi30k", re.IGNORECASE)


def training_corpora(
    items: Sequence[str], pair: str, with_research: bool
) -> tuple[list[ParallelFile], list[str]]:
    """Corpora of files and folders, and the files of folders that were left out.

    A folder gives its ``train.*.SRC-TGT.tsv`` (plain, .gz, .xz). What is for research only is left
    out of a folder, and refused by name, unless ``with_research``.
    """
    corpora, left_out = [], []
    for item in items:
        if not Path(item).is_dir():
            if RESEARCH_ONLY.search(Path(item).name) and not with_research:
                raise UserError(
                    f"{item}: Multi30k is for research and education only, so models that are "
                    "passed on must not learn from it; leave it out, or give --research-data"
                )
            corpora.append(ParallelFile.parse(item))
            continue
        found = sorted(str(path) for path in Path(item).glob(f"train.*.{pair}.tsv*"))
        if not found:
            raise UserError(f"{item}: holds no train.*.{pair}.tsv, .tsv.gz or .tsv.xz")
        out = [name for name in found if RESEARCH_ONLY.search(name) and not with_research]
        left_out += out
        corpora += [ParallelFile.parse(name) for name in found if name not in out]
    return corpora, left_out


def key(sentence: str) -> str:
    """What must be equal for two sentences to be the same; empty for one without letters."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return "".join(character for character in folded if character.isalnum())


class HeldOutSentences:
    """The sentences that training must not see, each side for itself."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        keys = [(key(source), key(target)) for source, target in pairs]
        self._sources = {source for source, _ in keys if source}
        self._targets = {target for _, target in keys if target}

    def verdict(self, pair: Pair) -> str:
        """ "kept", or why not."""
        if key(pair[0]) in self._sources:
            return "source is held out"
        return "target is held out" if key(pair[1]) in self._targets else "kept"


def write_clean(
    out: TextIO, corpora: Sequence[ParallelFile], held: HeldOutSentences, faults: Faults
) -> dict[str, Counter[str]]:
    """Write what is kept; returns the verdicts of each corpus."""
    counts: dict[str, Counter[str]] = {}
    for corpus in corpora:
        found = counts.setdefault(corpus.given, Counter())
        name = Path(corpus.given).name
        for pair in tqdm(read_pairs(corpus, faults), desc=name, unit=" pairs", mininterval=0.5):
            verdict = held.verdict(pair)
            found[verdict] += 1
            if verdict == "kept":
                out.write(line(pair))
    return counts


def line(pair: Pair) -> str:
    return "\t".join(side.replace("\t", " ") for side in pair) + "\n"


def _write_sets(out: Path, sets: dict[str, ParallelFile]) -> list[Pair]:
    """Write dev and test sets; returns their pairs."""
    held = []
    for name, corpus in sets.items():
        pairs = list(read_pairs(corpus, Faults()))
        with written_whole(out / f"{name}.tsv") as part:
            part.write_text("".join(map(line, pairs)), encoding="utf-8")
        held += pairs
    return held


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser(
        "Put training files together without the sentences of dev and test sets. A corpus is a TSV "
        "file, or SOURCE_FILE,TARGET_FILE; plain, .gz or .xz; FILE:FROM-TO takes some lines.",
        prog="decontaminate.sh",
    )
    add = parser.add_argument
    add("--pair", required=True, help="languages, such as en-de")
    add("--train", nargs="+", required=True, metavar="CORPUS", help="files, or folders of train.*")
    add("--valid", required=True, metavar="CORPUS", help="dev set")
    add("--test", nargs="+", default=[], metavar="CORPUS", help="test sets")
    add("--also", nargs="*", default=[], metavar="CORPUS", help="held out, and no test set here")
    add("--out", type=Path, required=True, help="folder to write")
    add("--research-data", action="store_true", help="take Multi30k too: for research only")
    add("--bad-lines", choices=["refuse", "skip"], default="refuse", help="of the training files")
    return parser


def main(args: argparse.Namespace) -> None:
    corpora, left_out = training_corpora(args.train, args.pair, args.research_data)
    sets = {"valid": ParallelFile.parse(args.valid, (1, 2))}
    for number, item in enumerate(args.test):
        sets[f"test{number or ''}"] = ParallelFile.parse(item, (1, 2))
    others = [ParallelFile.parse(item, (1, 2)) for item in args.also]
    faults = Faults(args.bad_lines == "skip")
    held = _write_sets(args.out, sets)
    held += [pair for corpus in others for pair in read_pairs(corpus, Faults())]
    with written_whole(args.out / "train.tsv") as part, part.open("w", encoding="utf-8") as file:
        counts = write_clean(file, corpora, HeldOutSentences(held), faults)
    report = {
        "training": {name: dict(found) for name, found in counts.items()},
        "left_out": left_out,
        "held_out": {name: corpus.given for name, corpus in sets.items()} | {"also": args.also},
        "held_out_pairs": len(held),
        "bad_lines": faults.skipped,
    }
    write_json(args.out / "report.json", report)
    for name in left_out:
        logger.info("%s: left out, for research only", name)
    for name, found in counts.items():
        words = ", ".join(f"{number} {verdict}" for verdict, number in sorted(found.items()))
        logger.info("%s: %s", name, words)


if __name__ == "__main__":
    sys.exit(cli.run(_parser(), main))
