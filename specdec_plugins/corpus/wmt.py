"""The training sets on which speculative decoding was published, from archive to data-bin.

Sizes and hashes of the archives are not known beforehand; what arrives must be whole and hold the
files named here, and its hash is recorded for later runs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.archives import Archive, Store, open_member
from specdec_plugins.corpus.prepare import Preparation
from specdec_plugins.corpus.reading import ParallelFile
from specdec_plugins.corpus.recipe import add_recipe_arguments, build_recipe, text_settings
from specdec_plugins.corpus.resume import Steps, locked
from specdec_plugins.corpus.sgm import check_same_segments, parse_sgm
from specdec_plugins.errors import UserError


@dataclass(frozen=True)
class Corpus:
    """One corpus inside an archive; ``{src}`` and ``{tgt}`` stand for the languages."""

    name: str
    archive: str  # its name here
    url: str
    source: str  # base name of the source side; .sgm is parsed
    target: str

    def members(self, source_lang: str, target_lang: str) -> tuple[str, str]:
        names = {"src": source_lang, "tgt": target_lang}
        return self.source.format(**names), self.target.format(**names)


@dataclass(frozen=True)
class DataSet:
    """A published data set: training corpora, the dev set, the test set."""

    train: Sequence[Corpus]
    valid: Corpus
    test: Corpus
    directions: Sequence[str]


_WMT14 = "https://www.statmt.org/wmt14"
_WMT16 = "https://data.statmt.org/wmt16/translation-task"

DATA_SETS = {
    "wmt14-en-de": DataSet(
        train=[
            Corpus(
                "europarl-v7",
                "training-parallel-europarl-v7.tgz",
                "https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
                "europarl-v7.de-en.{src}",
                "europarl-v7.de-en.{tgt}",
            ),
            Corpus(
                "commoncrawl",
                "training-parallel-commoncrawl.tgz",
                "https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
                "commoncrawl.de-en.{src}",
                "commoncrawl.de-en.{tgt}",
            ),
            Corpus(
                "news-commentary-v9",
                "training-parallel-nc-v9.tgz",
                f"{_WMT14}/training-parallel-nc-v9.tgz",
                "news-commentary-v9.de-en.{src}",
                "news-commentary-v9.de-en.{tgt}",
            ),
        ],
        valid=Corpus(
            "newstest2013",
            "wmt14-dev.tgz",
            f"{_WMT14}/dev.tgz",
            "newstest2013.{src}",
            "newstest2013.{tgt}",
        ),
        test=Corpus(
            "newstest2014",
            "wmt14-test-full.tgz",
            f"{_WMT14}/test-full.tgz",
            "newstest2014-deen-src.{src}.sgm",
            "newstest2014-deen-ref.{tgt}.sgm",
        ),
        directions=["en-de", "de-en"],
    ),
    "wmt16-en-ro": DataSet(
        train=[
            Corpus(
                "europarl-v8",
                "training-parallel-ep-v8.tgz",
                f"{_WMT16}/training-parallel-ep-v8.tgz",
                "europarl-v8.ro-en.{src}",
                "europarl-v8.ro-en.{tgt}",
            ),
            Corpus(
                "setimes2",
                "SETIMES.en-ro.txt.zip",
                "https://object.pouta.csc.fi/OPUS-SETIMES/v2/moses/en-ro.txt.zip",
                "SETIMES.en-ro.{src}",
                "SETIMES.en-ro.{tgt}",
            ),
        ],
        valid=Corpus(
            "newsdev2016",
            "wmt16-dev-romanian-updated.tgz",
            f"{_WMT16}/dev-romanian-updated.tgz",
            "newsdev2016-{src}{tgt}-src.{src}.sgm",
            "newsdev2016-{src}{tgt}-ref.{tgt}.sgm",
        ),
        test=Corpus(
            "newstest2016",
            "wmt16-test.tgz",
            f"{_WMT16}/test.tgz",
            "newstest2016-{src}{tgt}-src.{src}.sgm",
            "newstest2016-{src}{tgt}-ref.{tgt}.sgm",
        ),
        directions=["en-ro", "ro-en"],
    ),
}


class Unpacking:
    """Fetches a corpus and writes its two sides as plain text under ``folder``."""

    def __init__(self, store: Store, folder: Path, source_lang: str, target_lang: str) -> None:
        self._store = store
        self._folder = folder
        self._languages = (source_lang, target_lang)
        self._steps = Steps(folder)

    def run(self, corpus: Corpus) -> ParallelFile:
        members = corpus.members(*self._languages)
        packed = self._store.get(Archive(corpus.archive, corpus.url, members))
        outputs = [self._folder / f"{corpus.name}.{lang}" for lang in self._languages]
        is_sgm = members[0].endswith(".sgm")

        def unpack(parts: Sequence[Path]) -> None:
            if is_sgm:
                _unpack_sgm(packed, members, parts, corpus.name)
                return
            for member, part in zip(members, parts, strict=True):
                with open_member(packed, member) as inside, part.open("wb") as out:
                    shutil.copyfileobj(inside, out, 1 << 20)

        self._steps.run(
            f"unpack-{corpus.name}",
            unpack,
            inputs=[packed],
            outputs=outputs,
            settings={"members": members},
        )
        return ParallelFile(outputs[0], outputs[1])


def _unpack_sgm(packed: Path, members: tuple[str, str], parts: Sequence[Path], name: str) -> None:
    sides = []
    for member in members:
        with open_member(packed, member) as inside:
            try:
                sides.append(parse_sgm(inside.read().decode("utf-8"), f"{packed}: {member}"))
            except UnicodeDecodeError as error:
                raise UserError(f"{packed}: {member} is not UTF-8; fetch it again") from error
    check_same_segments(sides[0], sides[1], name)
    for segments, part in zip(sides, parts, strict=True):
        part.write_text("".join(f"{text}\n" for _, _, text in segments), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser(
        "Fetch and prepare a published data set. Downloads resume; run again, the command goes on "
        "where it stopped.",
        prog="prepare-wmt*.sh",
    )
    # Given by the script that the user runs.
    parser.add_argument("data_set", choices=sorted(DATA_SETS), help=argparse.SUPPRESS)
    parser.add_argument("--direction", help="such as ro-en (default: as the data set is named)")
    parser.add_argument("--archives", type=Path, help="folder of archives (default: OUT/archives)")
    parser.add_argument("--mirror", help="address of a folder that holds all archives by name")
    add_recipe_arguments(parser, num_merges=32_000, max_ratio=1.5)
    return parser


def main(args: argparse.Namespace) -> None:
    data_set = DATA_SETS[args.data_set]
    direction = args.direction or data_set.directions[0]
    if direction not in data_set.directions:
        choices = " or ".join(data_set.directions)
        raise UserError(f"--direction {direction}: {args.data_set} has {choices}")
    source_lang, target_lang = direction.split("-")
    out = args.out.resolve()
    store = Store((args.archives or out / "archives").resolve(), args.mirror)
    unpacking = Unpacking(store, out / "orig", source_lang, target_lang)
    with locked(out / "orig"):
        train = [unpacking.run(corpus) for corpus in data_set.train]
        valid, test = unpacking.run(data_set.valid), unpacking.run(data_set.test)
    recipe = build_recipe(
        args,
        text_settings(args, source_lang, target_lang),
        train=train,
        valid=[valid],
        tests=[test],
    )
    Preparation(recipe, out).run()


if __name__ == "__main__":
    sys.exit(cli.run(_parser(), main))
