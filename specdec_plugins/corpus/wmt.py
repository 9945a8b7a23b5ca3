"""The training sets on which speculative decoding was published, from archive to data-bin.

Archives are fetched with resumption, checked, and read member by member. Their sizes and hashes are
not known beforehand; what arrives must be complete and hold the files named here, and its hash is
recorded for later runs. Test sets are in the SGML in which WMT distributes them.
"""

from __future__ import annotations

import argparse
import gzip
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import logger
from specdec_plugins.corpus.prepare import (
    Preparation,
    add_arguments,
    preparation_settings,
    text_settings,
)
from specdec_plugins.corpus.reading import ParallelFile
from specdec_plugins.corpus.resume import Steps, locked, read_json, sha256, write_json
from specdec_plugins.errors import UserError
from specdec_plugins.formats.output import remove

_BLOCK = 1 << 20  # bytes
_DOC = re.compile(r'<doc\b[^>]*\bdocid\s*=\s*"([^"]*)"[^>]*>', re.IGNORECASE)
_SEGMENT = re.compile(
    r'<seg\b[^>]*\bid\s*=\s*"?(\w+)"?[^>]*>(.*?)</seg\s*>', re.IGNORECASE | re.DOTALL
)
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&amp;": "&"}
_ENTITY = re.compile("|".join(_ENTITIES))

Segment = tuple[str, str, str]  # document, number in it, text


@dataclass(frozen=True)
class ArchivedCorpus:
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

    train: Sequence[ArchivedCorpus]
    valid: ArchivedCorpus
    test: ArchivedCorpus
    directions: Sequence[str]


_WMT14 = "https://www.statmt.org/wmt14"
_WMT16 = "https://data.statmt.org/wmt16/translation-task"

DATA_SETS = {
    "wmt14-en-de": DataSet(
        train=[
            ArchivedCorpus(
                "europarl-v7",
                "training-parallel-europarl-v7.tgz",
                "https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
                "europarl-v7.de-en.{src}",
                "europarl-v7.de-en.{tgt}",
            ),
            ArchivedCorpus(
                "commoncrawl",
                "training-parallel-commoncrawl.tgz",
                "https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
                "commoncrawl.de-en.{src}",
                "commoncrawl.de-en.{tgt}",
            ),
            ArchivedCorpus(
                "news-commentary-v9",
                "training-parallel-nc-v9.tgz",
                f"{_WMT14}/training-parallel-nc-v9.tgz",
                "news-commentary-v9.de-en.{src}",
                "news-commentary-v9.de-en.{tgt}",
            ),
        ],
        valid=ArchivedCorpus(
            "newstest2013",
            "wmt14-dev.tgz",
            f"{_WMT14}/dev.tgz",
            "newstest2013.{src}",
            "newstest2013.{tgt}",
        ),
        test=ArchivedCorpus(
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
            ArchivedCorpus(
                "europarl-v8",
                "training-parallel-ep-v8.tgz",
                f"{_WMT16}/training-parallel-ep-v8.tgz",
                "europarl-v8.ro-en.{src}",
                "europarl-v8.ro-en.{tgt}",
            ),
            ArchivedCorpus(
                "setimes2",
                "SETIMES.en-ro.txt.zip",
                "https://object.pouta.csc.fi/OPUS-SETIMES/v2/moses/en-ro.txt.zip",
                "SETIMES.en-ro.{src}",
                "SETIMES.en-ro.{tgt}",
            ),
        ],
        valid=ArchivedCorpus(
            "newsdev2016",
            "wmt16-dev-romanian-updated.tgz",
            f"{_WMT16}/dev-romanian-updated.tgz",
            "newsdev2016-{src}{tgt}-src.{src}.sgm",
            "newsdev2016-{src}{tgt}-ref.{tgt}.sgm",
        ),
        test=ArchivedCorpus(
            "newstest2016",
            "wmt16-test.tgz",
            f"{_WMT16}/test.tgz",
            "newstest2016-{src}{tgt}-src.{src}.sgm",
            "newstest2016-{src}{tgt}-ref.{tgt}.sgm",
        ),
        directions=["en-ro", "ro-en"],
    ),
}


@dataclass(frozen=True)
class Archive:
    """A .tgz or .zip: its name here, where it lies, and files that it must hold (base names)."""

    name: str
    url: str
    members: tuple[str, ...]


class Store:
    """A folder of archives. Sizes and hashes are recorded when an archive is first accepted."""

    def __init__(self, folder: Path, mirror: str | None = None) -> None:
        self._folder = folder
        self._mirror = mirror
        self._record = folder / "archives.json"

    def get(self, archive: Archive) -> Path:
        """The path of a whole, verified archive; fetches it if it is not there."""
        path = self._folder / archive.name
        if path.is_file():
            self._verify(path, archive)
            return path
        part = self._folder / f"{archive.name}.part"
        self._folder.mkdir(parents=True, exist_ok=True)
        # A part that is whole already (stopped between fetching and renaming) needs no network.
        if not (part.is_file() and _fault(part, archive) is None):
            self._fetch(archive, part, path)
            fault = _fault(part, archive)
            if fault is not None:
                remove(part)
                raise UserError(f"{self._url(archive)}: {fault}; removed, so run it again")
        part.rename(path)
        self._remember(path)
        return path

    def _url(self, archive: Archive) -> str:
        if self._mirror is None:
            return archive.url
        return f"{self._mirror.rstrip('/')}/{archive.name}"

    def _fetch(self, archive: Archive, part: Path, path: Path) -> None:
        url = self._url(archive)
        by_hand = f"fetch {url} by hand and put it at {path}, then run the same command again"
        logger.info("fetching %s", url)
        if shutil.which("curl") is None:
            raise UserError(f"curl is not installed; install it, or {by_hand}")
        command = ["curl", "--fail", "--location", "--retry", "3", "--connect-timeout", "30"]
        command += ["--progress-bar", "--continue-at", "-", "--output", str(part), url]
        status = subprocess.run(command, check=False).returncode
        if status != 0:
            raise UserError(f"the download failed (curl status {status}); {by_hand}")

    def _verify(self, path: Path, archive: Archive) -> None:
        known = read_json(self._record) if self._record.is_file() else {}
        if archive.name not in known:  # put there by hand
            fault = _fault(path, archive)
            if fault is not None:
                raise UserError(f"{path}: {fault}; fetch {archive.url} again")
            self._remember(path)
            return
        size, digest = known[archive.name]["bytes"], known[archive.name]["sha256"]
        if path.stat().st_size != size or sha256(path) != digest:
            raise UserError(
                f"{path}: not the archive that was accepted before ({size} bytes, sha256 "
                f"{digest[:12]}...); remove it to fetch it again, or remove {self._record} to "
                "accept what is there"
            )
        logger.info("%s: as recorded", path.name)

    def _remember(self, path: Path) -> None:
        known = read_json(self._record) if self._record.is_file() else {}
        known[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        write_json(self._record, known)


def _fault(path: Path, archive: Archive) -> str | None:
    """What is wrong with an archive, read to its end; None where nothing is."""
    try:
        if archive.name.endswith(".zip"):
            with zipfile.ZipFile(path) as packed:
                damaged = packed.testzip()
                names = packed.namelist()
            if damaged is not None:
                return f"damaged at {damaged}"
        else:
            _read_to_end(path)
            with tarfile.open(path, "r:gz") as packed_tar:
                names = packed_tar.getnames()
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        return f"damaged or cut off ({error})"
    present = {Path(name).name for name in names}
    missing = [name for name in archive.members if name not in present]
    return f"does not hold {', '.join(missing)}" if missing else None


def _read_to_end(path: Path) -> None:
    """Read a gzip file whole, so that its checksum is compared."""
    with (
        path.open("rb") as raw,
        gzip.open(raw, "rb") as file,
        tqdm(desc=f"checking {path.name}", unit="B", unit_scale=True, mininterval=0.5) as bar,
    ):
        while block := file.read(_BLOCK):
            bar.update(len(block))


@contextmanager
def open_member(path: Path, member: str) -> Iterator[IO[bytes]]:
    """Yields the bytes of the file of this base name inside an archive."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            name = next(name for name in packed.namelist() if Path(name).name == member)
            with packed.open(name) as file:
                yield file
        return
    with tarfile.open(path, "r:gz") as packed_tar:
        for info in packed_tar:
            if info.isfile() and Path(info.name).name == member:
                inside = packed_tar.extractfile(info)
                if inside is not None:
                    yield inside
                    return
    raise UserError(f"{path}: does not hold {member}")


class Unpacking:
    """Fetches a corpus and writes its two sides as plain text under ``folder``."""

    def __init__(self, store: Store, folder: Path, source_lang: str, target_lang: str) -> None:
        self._store = store
        self._folder = folder
        self._languages = (source_lang, target_lang)
        self._steps = Steps(folder)

    def run(self, corpus: ArchivedCorpus) -> ParallelFile:
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


def parse_sgm(text: str, name: str) -> list[Segment]:
    """Every segment in order; an empty one stays. Only XML's five entities are resolved.

    (These files are not well-formed XML: many hold bare ampersands.)
    """
    segments: list[Segment] = []
    starts = [(found.start(), found.group(1)) for found in _DOC.finditer(text)]
    starts.append((len(text), ""))
    for (start, document), (end, _) in zip(starts, starts[1:], strict=False):
        for number, line in _SEGMENT.findall(text[start:end]):
            plain = _ENTITY.sub(lambda found: _ENTITIES[found.group()], " ".join(line.split()))
            segments.append((document, number, plain))
    if not segments:
        raise UserError(f"{name}: no <seg> found; expected a WMT test set in SGML")
    return segments


def check_same_segments(source: list[Segment], target: list[Segment], name: str) -> None:
    """Refuse a source and a reference that do not hold the same segments in the same order."""
    if len(source) != len(target):
        raise UserError(f"{name}: {len(source)} source segments, {len(target)} in the reference")
    for left, right in zip(source, target, strict=True):
        if left[:2] != right[:2]:
            raise UserError(
                f"{name}: segment {left[1]} of document {left[0]!r} stands where the reference "
                f"has {right[1]} of {right[0]!r}; fetch the archive again"
            )


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
    add_arguments(parser, num_merges=32_000, max_ratio=1.5)
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
    settings = preparation_settings(
        args,
        text_settings(args, source_lang, target_lang),
        train=train,
        valid=[valid],
        tests=[test],
    )
    Preparation(settings, out).run()


if __name__ == "__main__":
    sys.exit(cli.run(_parser(), main))
