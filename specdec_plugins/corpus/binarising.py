"""Binary data for fairseq: written by fairseq-preprocess, and counted for drafting.

The command lines are those of ``scripts/count-bigrams.sh`` and ``scripts/add-shortlist.sh``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import logger
from specdec_plugins.errors import UserError, not_installed
from specdec_plugins.formats.bigrams import count_bigrams, write_bigrams
from specdec_plugins.formats.checkpoints import load_checkpoint, save_checkpoint
from specdec_plugins.formats.dictionaries import load_dictionaries
from specdec_plugins.formats.output import check_output

# Above this share of unknown tokens, the dictionary was not made for this text.
_SUSPICIOUS_PERCENT = 1.0

# How often a type must occur in the training text, and a character that is not Latin.
_MIN_COUNT, _MIN_FOREIGN = 5, 20

_REPORT = re.compile(
    r"\[(?P<lang>[^\]]+)\] (?P<file>\S+): (?P<sents>\d+) sents, (?P<tokens>\d+) tokens, "
    r"(?P<percent>[\d.]+)% replaced"
)


def dictionary_flags(paths: Sequence[Path]) -> list[str]:
    """Of fairseq-preprocess, to reuse dictionaries: no path learns a joined one, one is for both
    sides.
    """
    named = zip(("--srcdict", "--tgtdict"), map(str, paths), strict=False)
    flags = [word for words in named for word in words]
    return flags if len(paths) == 2 else [*flags, "--joined-dictionary"]


def _latin() -> list[str]:
    """Printable characters of Basic Latin, Latin-1, Latin Extended-A, and common signs."""
    blocks = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x180)]
    return [*map(chr, blocks), *"ȘșȚțẞ‐‑‒–—‘’‚“”„•…‰′″‹›€™←→−"]


def latin_vocabulary(counts: Counter[str]) -> list[tuple[str, int]]:
    """A joint vocabulary that can spell whatever is written in Latin letters, frequent types first.

    Every character of ``_latin`` is a type, within a word and at its end. Rare types, and rare
    characters of other scripts, which would waste embeddings, are left out.
    """
    types = {
        token: number
        for token, number in counts.items()
        if number >= (_MIN_FOREIGN if _is_foreign(token.removesuffix("@@")) else _MIN_COUNT)
    }
    for character in _latin():
        for token in (character, f"{character}@@"):
            types.setdefault(token, counts[token] or 1)
    return sorted(types.items(), key=lambda item: (-item[1], item[0]))


def _is_foreign(token: str) -> bool:
    return len(token) == 1 and ord(token) > 0x24F


def preprocess(command: Sequence[str], output: Path, log: Path, codes: Path | None) -> None:
    """Run fairseq-preprocess with these flags; BPE codes go beside the dictionaries for decoding.

    Raises UserError, naming the log, where it fails.
    """
    if importlib.util.find_spec("fairseq_cli") is None:
        raise not_installed("fairseq", "train")
    output.mkdir()
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--destdir", str(output), *command]
    status = _watched(command, output, log)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().split("\n")
    if status != 0:
        raise UserError(f"fairseq-preprocess failed: {lines[-1]} (all of it: {log})")
    for line in lines:
        _report(line)
    (output / "preprocess.log").unlink(missing_ok=True)  # names the temporary folder
    if codes is not None:
        shutil.copyfile(codes, output / "bpe.codes")


def _watched(command: Sequence[str], output: Path, log: Path) -> int:
    """The exit status of a program that fills a folder, with a progress bar."""
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
            process.terminate()  # where ctrl-C came; else it has ended
    return process.returncode


def _report(line: str) -> None:
    found = _REPORT.search(line)
    if found is None:
        return
    name, percent = Path(found["file"]).name, found["percent"]
    logger.info(
        "%s: %s lines, %s tokens, %s %% unknown", name, found["sents"], found["tokens"], percent
    )
    if float(percent) > _SUSPICIOUS_PERCENT and name.startswith("train"):
        logger.warning(
            "%s: %s %% of the tokens are not in the dictionary; the BPE codes and the "
            "dictionary belong together, and to this tokenisation",
            name,
            percent,
        )


def main(args: argparse.Namespace) -> None:
    check_output(args.output, "--output")
    dictionaries = load_dictionaries(args.data, args.source_lang, args.target_lang)
    source, target = dictionaries.source_lang, dictionaries.target_lang
    prefix = args.data / f"{args.split}.{source}-{target}.{target}"
    bigrams = count_bigrams(_sentences(prefix), dictionaries.target)
    write_bigrams(bigrams, args.output)
    logger.info("wrote %s: %s pairs", args.output, f"{len(bigrams.tokens):,}")


def _sentences(prefix: Path) -> Iterator[list[int]]:
    """Ids of every target sentence. Raises UserError where there are none."""
    # fairseq takes seconds to import.
    from fairseq.data.data_utils import load_indexed_dataset

    dataset = load_indexed_dataset(str(prefix)) if Path(f"{prefix}.idx").exists() else None
    if dataset is None or len(dataset) == 0:
        raise UserError(
            f"{prefix}: no binarised sentences; give a folder that scripts/distill.sh or "
            "fairseq-preprocess has written, and the --split that is there"
        )
    for index in tqdm(range(len(dataset)), desc="reading", unit=" sentences"):
        yield dataset[index].tolist()


def likely_types(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], iterations: int
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64], NDArray[numpy.float64]]:
    """Pairs of source and target types and t(target | source), by source, the likeliest first.

    IBM model 1 (Brown et al. 1993): each target token is a translation of one source token of its
    sentence, whichever; t is the share of a source type's expected translations.
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


def shortlist(args: argparse.Namespace) -> None:
    """Write the drafter with the types that it may draft; see ``networks.heads.Shortlist``."""
    check_output(args.output, "--output")
    checkpoint = load_checkpoint(args.path)
    model = checkpoint["model"]
    if "decoder.head.state.bias" not in model:
        raise UserError(f"{args.path}: no drafter with a sequential head, which alone has a use")
    dictionaries = load_dictionaries(args.data, args.source_lang, args.target_lang)
    source, target = dictionaries.source_lang, dictionaries.target_lang
    stem = f"{args.data}/{args.split}.{source}-{target}"
    read = (islice(_sentences(Path(f"{stem}.{x}")), args.sentences) for x in (source, target))
    sources, targets = map(list, read)
    first, second, t = likely_types(sources, targets, args.iterations)
    rank = numpy.arange(len(first)) - numpy.searchsorted(first, first)
    kept = (rank < args.types) & (t >= args.least)
    sizes = [len(model[f"{x}.embed_tokens.weight"]) for x in ("encoder", "decoder")]
    counts = numpy.bincount(numpy.concatenate(targets), minlength=sizes[1])
    tensors = {
        "common": numpy.argsort(-counts, kind="stable")[: args.common],
        "types": second[kept],
        "starts": numpy.searchsorted(first[kept], numpy.arange(sizes[0] + 1)),
    }
    for name, values in tensors.items():
        model[f"decoder.shortlist.{name}"] = torch.from_numpy(values).int()
    save_checkpoint(checkpoint, args.output)
    logger.info("wrote %s: %s pairs of types", args.output, f"{int(kept.sum()):,}")


COMMAND = cli.CommandLine(
    "count-bigrams.sh",
    "Count which target token follows which in binarised text, for the block drafter.",
    main,
    [
        ("data", None, Path, "folder of distilled data: what the verifier says"),
        ("--split", "train", str, "which part to count"),
        ("--output", cli.REQUIRED, Path, "safetensors file to write"),
        ("-s --source-lang", None, str, "default: from the names of files"),
        ("-t --target-lang", None, str, "default: from the names of files"),
    ],
)

SHORTLIST = cli.CommandLine(
    "add-shortlist.sh",
    "Give a drafter with a sequential head the target types that source types make likely.",
    shortlist,
    [
        ("data", None, Path, "folder of distilled data: what the verifier says"),
        ("--path", cli.REQUIRED, Path, "checkpoint of the drafter"),
        ("--output", cli.REQUIRED, Path, "checkpoint to write"),
        ("--types", 40, int, "the most target types of a source type"),
        ("--least", 0.005, float, "a target type's least share of a source type's translations"),
        ("--common", 200, int, "most frequent target types, which every sentence may draft"),
        ("--iterations", 4, int, "of the alignment, IBM model 1"),
        ("--sentences", 100_000, int, "to align; they take about 10 KB of memory each"),
        ("--split", "train", str, "which part to align"),
        ("-s --source-lang", None, str, "default: from the names of files"),
        ("-t --target-lang", None, str, "default: from the names of files"),
    ],
)
COMMANDS = {"bigrams": COMMAND, "shortlist": SHORTLIST}

if __name__ == "__main__":
    sys.exit(COMMANDS[sys.argv[1]].run(sys.argv[2:]))
