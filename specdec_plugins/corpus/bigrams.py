"""Count which target token follows which in binarised text, for drafters that choose by it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import logger
from specdec_plugins.errors import UserError
from specdec_plugins.formats.bigrams import count_bigrams, write_bigrams
from specdec_plugins.formats.dictionaries import load_dictionaries
from specdec_plugins.formats.output import check_output


def _parser() -> argparse.ArgumentParser:
    made = cli.parser(__doc__ or "", prog="count-bigrams.sh")
    made.add_argument("data", type=Path, help="folder of distilled data: what the verifier says")
    made.add_argument("-s", "--source-lang", help="default: from the names of files")
    made.add_argument("-t", "--target-lang", help="default: from the names of files")
    made.add_argument("--split", default="train", help="which part to count")
    made.add_argument("--output", type=Path, required=True, help="safetensors file to write")
    return made


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


if __name__ == "__main__":
    sys.exit(cli.run(_parser(), main))
