"""Binary data for fairseq: written by fairseq-preprocess; its bigrams counted for drafting.

The command line is that of ``scripts/count-bigrams.sh``.
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
from pathlib import Path

from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import logger
from specdec_plugins.errors import UserError, not_installed
from specdec_plugins.formats.bigrams import count_bigrams, write_bigrams
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
    for index in tqdm(range(len(dataset)), desc="counting", unit=" sentences"):
        yield dataset[index].tolist()


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

if __name__ == "__main__":
    sys.exit(COMMAND.run())
