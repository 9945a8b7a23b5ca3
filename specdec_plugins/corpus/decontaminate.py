"""Merges corpora into one training text, without the sentences of dev and test sets.

    OUT/train.tsv          all training files concatenated, without contaminated pairs
    OUT/valid.tsv, OUT/test.tsv, OUT/test1.tsv, ...
    OUT/NAME.test.tsv, OUT/NAME.dev.tsv    taken from a corpus, if asked for
    OUT/report.json        pairs of each file: read, kept, dropped and why

A training pair is dropped if either side equals a held-out sentence of its language. Case,
punctuation and spaces are ignored, so near-duplicates that differ only in these are dropped too.
``--clean`` also drops pairs that are not translations, and near-duplicates among training pairs.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TextIO, TypeVar

from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cleaning import (
    KEPT,
    HeldOutSentences,
    NearDuplicates,
    PairRules,
    keys_of,
    scripts_of,
    split_off,
    tidy,
    unescape,
)
from specdec_plugins.corpus.cli import logger, option
from specdec_plugins.corpus.reading import BadLines, Pair, ParallelFile, read_pairs, warn_of_repeats
from specdec_plugins.corpus.resume import locked, write_json
from specdec_plugins.errors import UserError, located, require
from specdec_plugins.formats.output import check_output, written_whole
from specdec_plugins.formats.pretrained.languages import code_of

RESEARCH_ONLY = re.compile("multi30k", re.IGNORECASE)
_NAME = re.compile(r"(?:train|dev|test)\.(?P<name>.+)\.\w+-\w+\.tsv(?:\.[gx]z)?")
_MIN_WORDS = 4  # of a source that --split-off takes
_N = TypeVar("_N", int, float)
_WRITTEN: dict[type, tuple[re.Pattern[str], str]] = {
    int: (re.compile(r"\d+"), "whole numbers"),
    float: (re.compile(r"\d+(\.\d+)?"), "numbers"),
}
_REPORT = "report.json"
_PARTS = ("test", "dev")  # that --split-off takes
_ONE_CELL = {ord(character): " " for character in "\t\n"}


def training_corpora(
    items: Sequence[str], pair: str, with_research: bool
) -> tuple[list[ParallelFile], list[str]]:
    """The corpora of files and folders, and the files of folders that were left out.

    A folder contributes its ``train.*.SRC-TGT.tsv`` (plain, .gz, .xz). Unless ``with_research``,
    research-only files are left out of a folder, and refused if given by name.
    """
    corpora, left_out = [], []
    for item in items:
        if not Path(item).is_dir():
            if RESEARCH_ONLY.search(Path(item).name) and not with_research:
                raise UserError(
                    f"{item}: Multi30k is for research and education only, so models to be "
                    "distributed must not learn from it; leave it out, or add --research-data"
                )
            corpora.append(ParallelFile.parse(item))
            continue
        found = sorted(str(path) for path in Path(item).glob(f"train.*.{pair}.tsv*"))
        require(bool(found), f"{item}: holds no train.*.{pair}.tsv, .tsv.gz or .tsv.xz")
        out = [name for name in found if RESEARCH_ONLY.search(name) and not with_research]
        left_out += out
        corpora += [ParallelFile.parse(name) for name in found if name not in out]
    return corpora, left_out


@dataclass(frozen=True)
class Mix:
    """How training corpora become one text."""

    rules: PairRules | None  # None: pairs are taken as they are
    weights: Mapping[str, float]  # how often each pair of a corpus is written; 1 if not named
    per_source: Mapping[str, int]  # near-duplicates kept of a source; 1 if not named
    split_off: Mapping[str, Sequence[int]]  # sizes of the test and dev set taken from a corpus
    joined: float = 0.0  # the share of pairs that are also written with those before them

    def write(
        self, out: TextIO, corpora: Sequence[ParallelFile], held: HeldOutSentences, bad: BadLines
    ) -> dict[str, Counter[str]]:
        """Write the pairs that are kept; returns the counts of verdicts of each corpus."""
        counts: dict[str, Counter[str]] = {}
        for corpus in corpora:
            name = name_of(corpus)
            found = counts.setdefault(corpus.given, Counter())
            seen = NearDuplicates(self.per_source.get(name, 1)) if self.rules else None
            last = deque[Pair](maxlen=3)
            for pair in tqdm(self.read(corpus, bad), desc=name, unit=" pairs"):
                pair = unescape(pair) if self.rules else pair
                verdict = self._verdict(pair, held, seen)
                found[verdict] += 1
                if verdict == KEPT:
                    text = line(pair)
                    out.write(text * times(text, self.weights.get(name, 1)))
                    last.append(pair)
                    if times(text, self.joined):
                        # Two or three sentences in, so that as many come out.
                        together = list(last)[-2 - times(f"three: {text}", 0.5) :]
                        out.write(line([" ".join(side) for side in zip(*together, strict=True)]))
        return counts

    def read(self, corpus: ParallelFile, bad: BadLines) -> Iterator[Pair]:
        pairs = read_pairs(corpus, bad)
        return map(tidy, pairs) if self.rules else pairs

    def _verdict(self, pair: Pair, held: HeldOutSentences, seen: NearDuplicates | None) -> str:
        if self.rules and (reason := self.rules.verdict(*pair)):
            return reason
        keys = keys_of(pair)
        verdict = held.verdict(keys)
        return "near-duplicate" if verdict == KEPT and seen and seen.has(keys) else verdict


def name_of(corpus: ParallelFile) -> str:
    """``NAME`` of ``train.NAME.en-de.tsv.xz``, or the file name up to the first dot."""
    name = corpus.source.name
    found = _NAME.fullmatch(name)
    return found["name"] if found else name.split(".")[0]


def line(cells: Sequence[str]) -> str:
    return "\t".join(cell.translate(_ONE_CELL) for cell in cells) + "\n"


def times(text: str, weight: float) -> int:
    """How often to write a line of a corpus. A weight of 2.3 writes every line twice and three
    lines of ten once more, selected by the BLAKE2b hash (8 bytes) of the line.
    """
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int(weight) + (int.from_bytes(digest, "big") < weight % 1 * 2**64)


def _by_name(
    flag: str, items: Sequence[str], names: Sequence[str], number: type[_N], count: int = 1
) -> dict[str, list[_N]]:
    """Parses ``NAME=N`` or ``NAME=N,N``. Raises UserError unless N > 0 and NAME is one corpus."""
    found = {}
    written, kind = _WRITTEN[number]
    for item in items:
        name, _, text = item.partition("=")
        parts = text.split(",")
        numbers = [n for part in parts if written.fullmatch(part) and (n := number(part))]
        if len(numbers) != count or len(parts) != count:
            wanted = ",".join(["N"] * count)
            raise UserError(f"{flag} {item}: expected NAME={wanted} with {kind} above 0")
        if names.count(name) != 1:
            raise UserError(
                f"{flag} {item}: {names.count(name)} corpora are named {name!r}, expected one: "
                f"{', '.join(names)}"
            )
        found[name] = numbers
    return found


def _languages(pair: str) -> tuple[str, str]:
    found = pair.split("-")
    require(
        len(found) == 2 and all(found),
        f"--pair {pair}: expected two languages, such as en-de or en_GB-de",
    )
    return code_of(found[0], "--pair"), code_of(found[1], "--pair")


def _mix(args: MixOptions, names: Sequence[str]) -> Mix:
    """The mix that the flags describe, of corpora of these names."""
    require(
        args.clean or not (args.max_words or args.per_source or args.split_off),
        "--max-words, --per-source and --split-off are part of cleaning; add --clean",
    )
    weights = {n: w for n, [w] in _by_name("--weights", args.weights, names, float).items()}
    numbers = _by_name("--per-source", args.per_source, names, int)
    per_source = {name: number for name, [number] in numbers.items()}
    most = args.max_words or PairRules.max_words
    rules = PairRules(*_languages(args.pair), most) if args.clean else None
    sizes = _by_name("--split-off", args.split_off, names, int, 2)
    return Mix(rules, weights, per_source, sizes, args.joined)


def main(args: MixOptions) -> None:
    _languages(args.pair)
    corpora, left_out = training_corpora(args.train, args.pair, args.research_data)
    warn_of_repeats(corpora)
    mix, bad = _mix(args, list(map(name_of, corpora))), BadLines(args.bad_lines == "skip", True)
    given = {"valid": args.valid}
    given |= {f"test{number or ''}": [item] for number, item in enumerate(args.test)}
    given["also"] = args.also
    sets = {name: [ParallelFile.parse(i, (1, 2)) for i in items] for name, items in given.items()}
    _check_output(args.out, mix, corpora, sets)
    held = HeldOutSentences()
    with locked(args.out), _writing(args.out) as place:
        held_out = _hold_out(place, sets, held)
        if mix.rules:
            scripts = [scripts_of(side) for side in zip(*held_out, strict=True)]
            mix = replace(mix, rules=replace(mix.rules, scripts=scripts))
        chosen = _choose(place, mix, corpora, held)
        with place("train.tsv").open("w", encoding="utf-8") as file:
            counts = mix.write(file, corpora, held, bad)
        require(
            any(found[KEPT] for found in counts.values()),
            f"no training pair is left ({_told(sum(counts.values(), Counter()))}); check that the "
            "dev and test sets are other text, and which rules of --clean fit it",
        )
        report = {
            "training": {name: dict(found) for name, found in counts.items()},
            "weights": mix.weights,
            "left_out": left_out,
            "held_out": given,
            "held_out_pairs": len(held_out),
            "chosen": chosen,
            "bad_lines": bad.skipped,
        }
        write_json(place(_REPORT), report)
    _say(counts, left_out)
    bad.warn()


def _check_output(
    out: Path, mix: Mix, corpora: Sequence[ParallelFile], sets: Mapping[str, Sequence[ParallelFile]]
) -> None:
    """Raises UserError if a file to be written is an input, or was not written by this command."""
    inputs = [path for corpus in (*corpora, *chain(*sets.values())) for path in corpus.paths]
    taken = [f"{name}.{part}" for name in mix.split_off for part in _PARTS]
    for path in (out / f"{name}.tsv" for name in ("train", *(sets.keys() - {"also"}), *taken)):
        check_output(path, "--out", inputs=inputs, replaced=True)
        require(
            not path.exists() or (out / _REPORT).exists(),
            f"--out {path}: exists, and was not written by this command; give another folder",
        )


@contextmanager
def _writing(out: Path) -> Iterator[Callable[[str], Path]]:
    """Yields a function that names a place to write a file; all are put in place at the end."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(written_whole(out / name))


def _say(counts: Mapping[str, Counter[str]], left_out: Sequence[str]) -> None:
    for name in left_out:
        logger.info("%s: left out, for research only", name)
    for name, found in counts.items():
        logger.info("%s: %s", name, _told(found))
        verdict, number = found.most_common(1)[0]
        if verdict != KEPT and number > found.total() / 2:
            logger.warning("%s: most pairs were dropped (%s); is it meant so?", name, verdict)


def _told(found: Counter[str]) -> str:
    return ", ".join(f"{number} {verdict}" for verdict, number in sorted(found.items()) if number)


def _write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    path.write_text("".join(map(line, rows)), encoding="utf-8")


def _hold_out(
    place: Callable[[str], Path], sets: Mapping[str, Sequence[ParallelFile]], held: HeldOutSentences
) -> list[Pair]:
    """Hold out the pairs of these files, and write each set except "also"; returns the pairs."""
    found = []
    for name, corpora in sets.items():
        pairs = [pair for corpus in corpora for pair in read_pairs(corpus, BadLines())]
        found += pairs
        held.add(pairs)
        if name != "also":
            _write(place(f"{name}.tsv"), pairs)
    return found


def _choose(
    place: Callable[[str], Path], mix: Mix, corpora: Sequence[ParallelFile], held: HeldOutSentences
) -> dict[str, int]:
    """Write the sets taken from training corpora, hold them out, and return their sizes.

    They exclude pairs that are held out already; one pair may be in two of them.
    """
    taken: list[Pair] = []
    found = {}
    for corpus in corpora:
        name = name_of(corpus)
        if name in mix.split_off:
            pairs = mix.read(corpus, BadLines(True))
            telling = (pair for pair in pairs if len(pair[0].split()) >= _MIN_WORDS)
            with located(f"--split-off {name}"):
                parts = split_off(telling, held, name, mix.split_off[name])
            for split, part in zip(_PARTS, parts, strict=True):
                _write(place(f"{name}.{split}.tsv"), part)
                taken += part
                found[f"{name}.{split}"] = len(part)
    held.add(taken)
    return found


@dataclass(kw_only=True)
class MixOptions:
    """Merge training files without the sentences of dev and test sets.

    A corpus is a TSV file or SOURCE_FILE,TARGET_FILE (plain, .gz or .xz); FILE:FROM-TO takes only
    those lines.
    """

    # fmt: off
    pair: str = option(MISSING, "languages, such as en-de")
    train: Sequence[str] = option(MISSING, "files, or folders with train.* files", "CORPUS")
    valid: Sequence[str] = option(MISSING, "dev set", "CORPUS")
    test: Sequence[str] = option((), "test sets", "CORPUS")
    also: Sequence[str] = option((), "further held-out files, not written as test sets", "CORPUS")
    out: Path = option(MISSING, "folder to write")
    clean: bool = option(False, "drop pairs that do not look like translations, or have letters "
        "that are neither Latin nor of a script of the dev and test sets, and near-duplicates")
    max_words: int | None = option(None, "words per side, with --clean (default: "
        f"{PairRules.max_words})", least=1)
    weights: Sequence[str] = option((), "write each pair of the corpus train.NAME.* N times; 0.3: "
        "three of ten pairs (default: 1)", "NAME=N")
    per_source: Sequence[str] = option((), "keep N of the pairs whose sources differ only in case, "
        "digits and punctuation (default: 1)", "NAME=N")
    joined: float = option(0.0, "share of pairs that are also written as one pair with one or two "
        "of the same corpus before them, so that several sentences in give several out", least=0,
        below=1)
    split_off: Sequence[str] = option((), "move TEST and DEV pairs of a corpus to NAME.test.tsv "
        "and NAME.dev.tsv", "NAME=TEST,DEV")
    research_data: bool = option(False, "include Multi30k: for research only")
    bad_lines: str = option("refuse", "bad lines of the training files", choices=("refuse", "skip"))
    # fmt: on


COMMAND = cli.CommandLine(
    "specdec prepare mix",
        main,
    MixOptions,
    removed={"--hints": "nothing drafts from hints any more; omit it"},
    interrupted="stopped; nothing was written",
)  # fmt: skip
