"""Runs fairseq-preprocess, and counts its output for drafting.

The command lines are those of ``specdec convert bigrams`` and ``specdec convert shortlist``; the
latter also reads types from files of other engines.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import logger
from specdec_plugins.corpus.reading import BadLines, check_file, read_lines
from specdec_plugins.errors import UserError, not_installed, require
from specdec_plugins.formats.bigrams import count_bigrams, write_bigrams
from specdec_plugins.formats.checkpoints import load_checkpoint, save_checkpoint
from specdec_plugins.formats.dictionaries import Dictionaries, Dictionary, load_dictionaries
from specdec_plugins.formats.indexed import Sentences
from specdec_plugins.formats.models import TrainingRecord
from specdec_plugins.formats.output import check_output
from specdec_plugins.formats.text import PROTECTED

# Unknown tokens, in per cent. Above the first, something was made for other text; above the second,
# a model would learn next to nothing.
_SUSPICIOUS, _USELESS = 2.0, 20.0

# Minimum counts in the training text: of a type, and of a non-Latin character.
_MIN_COUNT, _MIN_FOREIGN = 5, 20

# Flags that only some sources of the types accept, with their defaults.
_BEST = {"types": 40, "least": 0.005}
_ALIGNED = {"iterations": 4, "sentences": 100_000, "split": "train"}
_WAYS: dict[str, dict[str, Any]] = {"text": {**_BEST, **_ALIGNED}, "lexical": _BEST, "vmap": {}}

_REPORT = re.compile(
    r"\[(?P<lang>[^\]]+)\] (?P<file>.+): (?P<sents>\d+) sents, (?P<tokens>\d+) tokens, "
    r"(?P<percent>[\d.]+)% replaced"
)


def dictionary_flags(paths: Sequence[Path]) -> list[str]:
    """fairseq-preprocess flags that reuse dictionaries: one serves both sides; without any,
    fairseq-preprocess learns a joined one.
    """
    named = zip(("--srcdict", "--tgtdict"), map(str, paths), strict=False)
    flags = [word for words in named for word in words]
    return flags if len(paths) == 2 else [*flags, "--joined-dictionary"]


def _latin() -> list[str]:
    """Printable characters of Basic Latin, Latin-1, Latin Extended-A, and common signs."""
    blocks = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x180)]
    return [*map(chr, blocks), *"ȘșȚțẞ‐‑‒–—‘’‚“”„•…‰′″‹›€™←→−"]


def latin_vocabulary(counts: Counter[str]) -> list[tuple[str, int]]:
    """A joint vocabulary that can spell any text in Latin letters, frequent types first.

    Every character of ``_latin`` is a type, within a word and at its end, and so is each symbol
    that stands for a protected span. Rare types, and rare characters of other scripts, would waste
    embeddings and are left out.
    """
    types = {
        token: number
        for token, number in counts.items()
        if number >= (_MIN_FOREIGN if _is_foreign(token.removesuffix("@@")) else _MIN_COUNT)
    }
    for character in _latin():
        for token in (character, f"{character}@@"):
            types.setdefault(token, counts[token] or 1)
    for symbol in PROTECTED:
        types.setdefault(symbol, counts[symbol] or 1)
    return sorted(types.items(), key=lambda item: (-item[1], item[0]))


def _is_foreign(token: str) -> bool:
    return len(token) == 1 and ord(token) > 0x24F


def preprocess(
    command: Sequence[str], output: Path, log: Path, codes: Path | None, force: bool
) -> None:
    """Run fairseq-preprocess with these flags; copies BPE codes beside the dictionaries.

    Raises UserError, naming the log, if it fails, and (without `force`) if a dictionary lacks much
    of a text.
    """
    if importlib.util.find_spec("fairseq_cli") is None:
        raise not_installed("fairseq", "train")
    output.mkdir()
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--destdir", str(output), *command]
    status = _watched(command, output, log)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().split("\n")
    if status != 0:
        raise UserError(f"fairseq-preprocess failed: {lines[-1]} (full log: {log})")
    for found in filter(None, map(_REPORT.search, lines)):
        _report(found, force)
    (output / "preprocess.log").unlink(missing_ok=True)  # names the temporary folder
    if codes is not None:
        shutil.copyfile(codes, output / "bpe.codes")


def _watched(command: Sequence[str], output: Path, log: Path) -> int:
    """Run a program that fills a folder, with a progress bar; returns its exit status."""
    environment = {**os.environ, "PYTHONUTF8": "1"}
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment
        ) as process,
        tqdm(desc="fairseq-preprocess", unit="B", unit_scale=True) as bar,
    ):
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.5)
                written = sum(path.stat().st_size for path in output.glob("*.bin"))
                bar.update(max(0, written - bar.n))
        finally:
            process.terminate()  # after ctrl-C; otherwise it has ended
    return process.returncode


def _report(found: re.Match[str], force: bool) -> None:
    """Say what was binarised. Raises UserError if much of it is unknown, unless `force`."""
    name, percent = Path(found["file"]).name, float(found["percent"])
    told = f"{name}: {found['sents']} lines, {found['tokens']} tokens, {percent} % unknown"
    if percent <= _SUSPICIOUS:
        logger.info("%s", told)
        return
    told += (
        f" to the dictionary; check that it is text in {found['lang']}, and that dictionary and "
        "BPE codes were made together, for these languages and this tokenisation"
    )
    require(force or percent <= _USELESS, f"{told}; --force binarises it all the same")
    logger.warning("%s", told)


def main(args: argparse.Namespace) -> None:
    check_output(args.output, "--output", inputs=_files(args.data))
    dictionaries = load_dictionaries(args.data, args.source_lang, args.target_lang)
    source, target = dictionaries.source_lang, dictionaries.target_lang
    prefix = args.data / f"{args.split}.{source}-{target}.{target}"
    bigrams = count_bigrams(_sentences(prefix), dictionaries.target)
    write_bigrams(bigrams, args.output, dictionaries.target)
    logger.info("wrote %s: %s pairs", args.output, f"{len(bigrams.tokens):,}")


def _files(data: Path) -> list[Path]:
    """What fairseq-preprocess has written there."""
    return [path for kind in ("dict.*.txt", "*.bin", "*.idx") for path in data.glob(kind)]


def _sentences(prefix: Path) -> Iterator[list[int]]:
    """Token ids of every sentence. Raises UserError if there are none."""
    dataset = Sentences(prefix) if Path(f"{prefix}.idx").exists() else None
    if dataset is None or len(dataset) == 0:
        raise UserError(
            f"{prefix}: no binarised sentences; give a folder that specdec distill or "
            "fairseq-preprocess wrote, and a --split that it contains"
        )
    for index in tqdm(range(len(dataset)), desc="reading", unit=" sentences"):
        yield dataset[index].tolist()


class Likely(NamedTuple):
    """Target types by source type, likeliest first, and those that every sentence may draft."""

    sources: NDArray[numpy.int64]  # [N], ascending
    targets: NDArray[numpy.int64]  # [N]
    common: NDArray[numpy.int64]  # [C]


def likely_types(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], iterations: int
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64], NDArray[numpy.float64]]:
    """Source types, target types and t(target | source), sorted by source, likeliest first.

    IBM model 1 (Brown et al. 1993): each target token translates one source token of its sentence,
    at any position; t is the share of a source type's expected translations.
    """
    places, firsts, seconds = 0, [], []
    positions = []
    for source, target in zip(sources, targets, strict=True):
        firsts.append(numpy.tile(numpy.asarray(source, numpy.int64), len(target)))
        seconds.append(numpy.repeat(numpy.asarray(target, numpy.int64), len(source)))
        positions.append(numpy.repeat(numpy.arange(places, places + len(target)), len(source)))
        places += len(target)
    width = 1 + max(map(max, targets))
    keys, pair = numpy.unique(
        numpy.concatenate(firsts) * width + numpy.concatenate(seconds), return_inverse=True
    )
    position = numpy.concatenate(positions)
    t: NDArray[numpy.float64] = numpy.ones(len(keys))
    for _ in range(iterations):
        share = t[pair]
        share /= numpy.bincount(position, share)[position]
        t = numpy.bincount(pair, share).astype(numpy.float64)
        t /= numpy.bincount(keys // width, t)[keys // width]
    order = numpy.lexsort((-t, keys // width))
    return keys[order] // width, keys[order] % width, t[order]


def read_lexical(path: Path, both: Dictionaries) -> dict[tuple[int, int], float]:
    """Probabilities of Marian's lexical shortlist, by ids of source and target type.

    Each line of the text form (``lex.s2t``, by ``extract_lex`` from fast_align's alignments) has a
    target type, a source type and a probability. The last of equal pairs counts, as in Marian. NULL
    (no word) and types missing from the dictionaries are left out. Raises UserError, naming the
    line, for any other line.
    """
    pairs, unknown = dict[tuple[int, int], float](), 0
    for number, line in _lines(path):
        fields = line.split()
        share = _share(fields[2]) if len(fields) == 3 else math.nan
        if not 0 <= share <= 1:
            raise UserError(
                f"{path}, line {number}: expected a target type, a source type and a probability "
                f"from 0 to 1, found {_quoted(line)}; give Marian's lexical shortlist as text "
                "(lex.s2t)"
            )
        if "NULL" in fields[:2]:
            continue
        target, source = both.target.index(fields[0]), both.source.index(fields[1])
        if Dictionary.unk in (source, target):
            unknown += 1
        else:
            pairs[source, target] = share
    _check_known(path, len(pairs), unknown)
    return pairs


def read_vmap(path: Path, both: Dictionaries) -> tuple[dict[tuple[int, int], float], list[int]]:
    """Pairs of source and target type of CTranslate2's vocabulary map, and types always likely.

    A line has space-separated source types (none = any sentence), a tab, and target types. Target
    types of several source types are listed under the rarest of these, the last one in the
    dictionary: every sentence that has them all has it, so nothing is lost. The values of pairs
    fall from line to line. Types missing from the dictionaries are left out. Raises UserError,
    naming the line, unless it has exactly one tab.
    """
    pairs, always, unknown = dict[tuple[int, int], float](), list[int](), 0
    for number, line in _lines(path):
        if line.count("\t") != 1:
            raise UserError(
                f"{path}, line {number}: expected source types, a tab and target types, found "
                f"{_quoted(line)}; give CTranslate2's vocabulary map"
            )
        source, target = (part.split() for part in line.split("\t"))
        together = [both.source.index(symbol) for symbol in source]
        for likely in (both.target.index(symbol) for symbol in target):
            if Dictionary.unk in (likely, *together):
                unknown += 1
            elif together:
                pairs.setdefault((max(together), likely), -len(pairs))
            else:
                always.append(likely)
    _check_known(path, len(pairs) + len(always), unknown)
    return pairs, always


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(read_lines(path, BadLines()), 1):
        assert line is not None, "bad lines are refused"
        yield number, line


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _quoted(line: str) -> str:
    return repr(line if len(line) <= 60 else f"{line[:60]}...")


def _check_known(path: Path, known: int, unknown: int) -> None:
    """Raises UserError if the file is for other vocabularies."""
    require(
        known > 0,
        f"{path}: no pair has both types in the dictionaries; give a file made with the models' "
        "own subwords and translation direction",
    )
    if unknown:
        logger.warning("%s: skipped %d pairs with a type not in the dictionaries", path, unknown)


def _counted(args: argparse.Namespace, both: Dictionaries) -> Likely:
    """Likely types, from aligning the verifier's output with its source."""
    stem = f"{args.data}/{args.split}.{both.source_lang}-{both.target_lang}"
    read = (_sentences(Path(f"{stem}.{x}")) for x in (both.source_lang, both.target_lang))
    sources, targets = (list(islice(side, args.sentences)) for side in read)
    first, second, t = likely_types(sources, targets, args.iterations)
    counts = numpy.bincount(numpy.concatenate(targets))
    common = numpy.argsort(-counts, kind="stable")[: args.common]
    return _best(args, Likely(first, second, common[counts[common] > 0]), t)


def _read(args: argparse.Namespace, both: Dictionaries) -> Likely:
    """Likely types, from a file of another engine."""
    always = [both.target.eos]
    if args.lexical is not None:
        pairs = read_lexical(args.lexical, both)
    else:
        pairs, more = read_vmap(args.vmap, both)
        always += more
    # The dictionary lists frequent types first, after the special ones.
    frequent = range(Dictionary.unk + 1, len(both.target))[: args.common]
    common = list(dict.fromkeys([*always, *frequent]))
    keys = numpy.array(list(pairs), dtype=numpy.int64).reshape(-1, 2)
    values = numpy.array(list(pairs.values()), dtype=numpy.float64)
    order = numpy.lexsort((-values, keys[:, 0]))
    likely = Likely(keys[order, 0], keys[order, 1], numpy.array(common))
    return likely if args.lexical is None else _best(args, likely, values[order])


def _best(args: argparse.Namespace, likely: Likely, shares: NDArray[numpy.float64]) -> Likely:
    """Keep only the likeliest types of each source type."""
    rank = numpy.arange(len(shares)) - numpy.searchsorted(likely.sources, likely.sources)
    kept = (rank < args.types) & (shares >= args.least)
    return likely._replace(sources=likely.sources[kept], targets=likely.targets[kept])


def _way(args: argparse.Namespace) -> str:
    """The source of the types; fills in its flags. Raises UserError for flags of other sources."""
    files = [name for name in ("lexical", "vmap") if getattr(args, name) is not None]
    require(len(files) < 2, "give either --lexical or --vmap, not both")
    way = files[0] if files else "text"
    for name in {**_BEST, **_ALIGNED}:
        is_given = getattr(args, name) is not None
        require(
            name in _WAYS[way] or not is_given,
            f"--{name} does not apply to --{way}, whose file lists the types; leave it out",
        )
        if not is_given:
            setattr(args, name, _WAYS[way].get(name))
    if files:
        check_file(getattr(args, way), "a text file of another engine", f"--{way}")
    return way


def shortlist(args: argparse.Namespace) -> None:
    """Write the drafter with a shortlist of the types that it may draft."""
    inputs = (args.path, args.lexical, args.vmap, *_files(args.data))
    check_output(args.output, "--output", inputs=inputs, replaced=True)
    way = _way(args)
    checkpoint = load_checkpoint(args.path)
    model = checkpoint["model"]
    if "decoder.head.state.bias" not in model:
        raise UserError(f"{args.path}: not a drafter with a sequential head, as a shortlist needs")
    both = load_dictionaries(args.data, args.source_lang, args.target_lang)
    sizes = [len(model[f"{side}.embed_tokens.weight"]) for side in ("encoder", "decoder")]
    require(
        sizes == [len(both.source), len(both.target)],
        f"{args.path}: trained with dictionaries of {sizes[0]} and {sizes[1]} types, but those in "
        f"{args.data} have {len(both.source)} and {len(both.target)}; give its own data folder",
    )
    TrainingRecord(checkpoint, args.path).check_dictionaries(both)
    likely = (_counted if way == "text" else _read)(args, both)
    model |= _stored(likely, sizes[0])
    save_checkpoint(checkpoint, args.output)
    logger.info("wrote %s: %s pairs of types", args.output, f"{len(likely.targets):,}")


def aligned_shortlist(data: Path, num_sentences: int) -> dict[str, torch.Tensor]:
    """The tensors of a shortlist, as a drafter's checkpoint has them, from that many sentences."""
    words = (data, "--path", "", "--output", "", "--sentences", num_sentences)
    args, both = SHORTLIST.parse(*words), load_dictionaries(data)
    _way(args)
    return _stored(_counted(args, both), len(both.source))


def _stored(likely: Likely, num_sources: int) -> dict[str, torch.Tensor]:
    starts = numpy.searchsorted(likely.sources, numpy.arange(num_sources + 1))
    tensors = {"common": likely.common, "types": likely.targets, "starts": starts}
    return {f"decoder.shortlist.{n}": torch.from_numpy(v).int() for n, v in tensors.items()}


COMMAND = cli.CommandLine(
    "specdec convert bigrams",
    "Count target bigrams in binarised text, for the block drafter.",
    main,
    [
        ("data", None, Path, "folder of distilled data (the verifier's output)"),
        ("--split", "train", str, "split to count"),
        ("--output", cli.REQUIRED, Path, "safetensors file to write"),
        ("-s --source-lang", None, str, "default: from the file names"),
        ("-t --target-lang", None, str, "default: from the file names"),
    ],
)

SHORTLIST = cli.CommandLine(
    "specdec convert shortlist",
    "Add a shortlist to a drafter with a sequential head: the likely target types of each source "
    "type, counted in the verifier's output or read from a file of another engine.",
    shortlist,
    [
        ("data", None, Path, "folder of distilled data (the verifier's output); with --lexical or "
         "--vmap, a folder of dictionaries"),
        ("--path", cli.REQUIRED, Path, "checkpoint of the drafter"),
        ("--output", cli.REQUIRED, Path, "checkpoint to write"),
        ("--lexical", None, Path, "Marian's lexical shortlist as text (lex.s2t): target type, "
         "source type, probability; plain, .gz or .xz"),
        ("--vmap", None, Path, "CTranslate2's vocabulary map (vmap.txt): source types, a tab, "
         "target types; plain, .gz or .xz"),
        ("--types", None, cli.at_least(1), "most target types per source type (Marian's "
         "'best'; default: 40; --vmap: all)"),
        ("--least", None, cli.at_least(0, float), "smallest share of a source type's "
         "translations that a target type needs (default: 0.005; --vmap: all)"),
        ("--common", 200, cli.at_least(0), "number of frequent target types that every sentence "
         "may draft (Marian's 'first'); with --lexical or --vmap, by dictionary order"),
        ("--iterations", None, cli.at_least(1), "iterations of IBM model 1 (default: 4)"),
        ("--sentences", None, cli.at_least(1), "sentences to align, about 10 KB of memory each "
         "(default: 100000)"),
        ("--split", None, str, "split to align (default: train)"),
        ("-s --source-lang", None, str, "default: from the file names"),
        ("-t --target-lang", None, str, "default: from the file names"),
    ],
)  # fmt: skip
