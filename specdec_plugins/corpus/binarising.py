"""Runs fairseq-preprocess, and counts the bigrams of its output: ``specdec convert bigrams``."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path

from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import logger, option
from specdec_plugins.errors import UserError, not_installed, require
from specdec_plugins.formats.bigrams import count_bigrams, write_bigrams
from specdec_plugins.formats.dictionaries import load_dictionaries
from specdec_plugins.formats.indexed import Sentences
from specdec_plugins.formats.output import check_output
from specdec_plugins.formats.text import PROTECTED

# Unknown tokens, in per cent. Above the first, something was made for other text; above the second,
# a model would learn next to nothing.
_SUSPICIOUS, _USELESS = 2.0, 20.0

# Minimum counts in the training text: of a type, and of a non-Latin character.
_MIN_COUNT, _MIN_FOREIGN = 5, 20

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


def main(args: BigramOptions) -> None:
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


@dataclass(kw_only=True)
class BigramOptions:
    """Count target bigrams in binarised text, for the block drafter."""

    # fmt: off
    data: Path = option(MISSING, "folder of distilled data (the verifier's output)",
        positional=True)
    split: str = option("train", "split to count")
    output: Path = option(MISSING, "safetensors file to write")
    source_lang: str | None = option(None, "default: from the file names",
        flags=("--source-lang", "-s"))
    target_lang: str | None = option(None, "default: from the file names",
        flags=("--target-lang", "-t"))
    # fmt: on


COMMAND = cli.CommandLine("specdec convert bigrams", main, BigramOptions)
