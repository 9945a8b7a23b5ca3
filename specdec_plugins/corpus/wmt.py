"""The training sets on which speculative decoding was published, from archive to data-bin.

Downloads of archives resume. Each archive must be complete and hold the files named here, as sizes
and hashes are not known beforehand, and is read member by member. Test sets are in WMT's SGML.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple
from xml.sax.saxutils import unescape

from tqdm import tqdm

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import build, like, logger, option
from specdec_plugins.corpus.prepare import Preparation, PreparationOptions, PrepareOptions
from specdec_plugins.corpus.reading import ParallelFile
from specdec_plugins.corpus.resume import written_together
from specdec_plugins.corpus.steps import Command, Runner
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.output import remove

_BLOCK = 1 << 20  # bytes
_MERGES = 32_000  # as published
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg\s*>", re.IGNORECASE | re.DOTALL)
_QUOTES = {"&quot;": '"', "&apos;": "'"}


class ArchivedCorpus(NamedTuple):
    """One corpus inside an archive, a .tgz or .zip."""

    name: str
    url: str
    files: str  # base names of its sides; {lang}: a side's language, {role}: src or ref
    archive: str = ""  # its file name here; empty: as in the URL

    @property
    def archive_name(self) -> str:
        return self.archive or self.url.rpartition("/")[2]

    def members(self, source: str, target: str) -> list[str]:
        """The base names of the source and the target side; those in .sgm are parsed."""
        sides = ((source, "src"), (target, "ref"))
        return [self.files.format(lang=x, role=role, pair=source + target) for x, role in sides]


class DataSet(NamedTuple):
    """A published data set: training corpora, the dev set, the test set."""

    directions: Sequence[str]
    train: Sequence[ArchivedCorpus]
    valid: ArchivedCorpus
    test: ArchivedCorpus


def _data_set(table: dict[str, Any]) -> DataSet:
    train = [ArchivedCorpus(**corpus) for corpus in table["train"]]
    valid, test = (ArchivedCorpus(**table[split]) for split in ("valid", "test"))
    return DataSet(table["directions"], train, valid, test)


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
DATA_SETS = {name: _data_set(table) for name, table in _TABLES.items()}


@dataclass(frozen=True)
class Store:
    """A folder of archives, and where those come from that are not in it."""

    folder: Path
    mirror: str | None = None

    def get(self, name: str, url: str, members: Sequence[str]) -> Path:
        """The path of a complete archive; downloads it if it is missing.

        members: base names of files that it must hold.
        """
        path, part = self.folder / name, self.folder / f"{name}.part"
        if path.is_file():  # put there by hand, or by an earlier run
            fault = _fault(path, members)
            require(fault is None, f"{path}: {fault}; fetch {url} again")
            return path
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.mirror is not None:
            url = f"{self.mirror.rstrip('/')}/{name}"
        # A complete part (stopped between download and rename) needs no network.
        if not (part.is_file() and _fault(part, members) is None):
            _fetch(url, part, path)
            if (fault := _fault(part, members)) is not None:
                remove(part)
                raise UserError(f"{url}: {fault}; it was removed, run the command again")
        return part.rename(path)


def _fetch(url: str, part: Path, path: Path) -> None:
    by_hand = f"fetch {url} by hand and put it at {path}, then run the same command again"
    logger.info("fetching %s", url)
    require(bool(shutil.which("curl")), f"curl is not installed; install it, or {by_hand}")
    command = ["curl", "--fail", "--location", "--retry", "3", "--connect-timeout", "30"]
    command += ["--progress-bar", "--continue-at", "-", "--output", str(part), url]
    status = subprocess.run(command, check=False).returncode
    require(status == 0, f"the download failed (curl status {status}); {by_hand}")


def _fault(path: Path, members: Sequence[str]) -> str | None:
    """Read an archive to its end; returns what is wrong with it, or None."""
    try:
        if ".zip" in path.suffixes:
            with zipfile.ZipFile(path) as packed:
                damaged = packed.testzip()
                names = packed.namelist()
            if damaged is not None:
                return f"damaged at {damaged}"
        else:
            names = _names_of_tar(path)
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        return f"damaged or cut off ({error})"
    missing = [name for name in members if name not in {Path(name).name for name in names}]
    return f"does not hold {', '.join(missing)}" if missing else None


def _names_of_tar(path: Path) -> list[str]:
    with (
        path.open("rb") as packed,
        tqdm.wrapattr(
            packed, "read", path.stat().st_size, desc=f"checking {path.name}", mininterval=0.5
        ) as watched,
        gzip.open(watched) as file,
    ):
        with tarfile.open(fileobj=file, mode="r|") as tar:
            names = tar.getnames()
        while file.read(_BLOCK):  # gzip compares the checksum at the end
            pass
    return names


@contextmanager
def open_member(path: Path, member: str) -> Iterator[IO[bytes]]:
    """Yields the file of this base name inside an archive that `Store.get` returned."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            name = next(name for name in packed.namelist() if Path(name).name == member)
            with packed.open(name) as file:
                yield file
        return
    with tarfile.open(path, "r:gz") as packed_tar:
        info = next(info for info in packed_tar if Path(info.name).name == member)
        inside = packed_tar.extractfile(info)
        if inside is None:
            raise UserError(f"{path}: {member} is not a file; fetch it again")
        yield inside


def unpacking(corpus: ArchivedCorpus, store: Store, outputs: Sequence[Path]) -> Command:
    """Fetch a corpus, unless that was done, and write its two sides as plain text."""
    members = corpus.members(*(path.suffix[1:] for path in outputs))

    def unpack() -> None:
        packed = store.get(corpus.archive_name, corpus.url, members)
        with written_together(outputs) as parts:
            for member, part in zip(members, parts, strict=True):
                with open_member(packed, member) as inside, part.open("wb") as out:
                    if member.endswith(".sgm"):
                        out.write(plain_text(inside.read(), f"{packed}: {member}"))
                    else:
                        shutil.copyfileobj(inside, out, _BLOCK)

    words = ["unpack", corpus.archive_name, *members]
    return Command(f"unpack {corpus.name}", words, list(map(str, outputs)), act=unpack)


def plain_text(sgm: bytes, name: str) -> bytes:
    """All segments of SGML in order, a line each, empty ones too; only XML's entities are resolved.

    (These files are not well-formed XML: many hold bare ampersands.)
    """
    try:
        segments = _SEGMENT.findall(sgm.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8; fetch it again") from error
    require(bool(segments), f"{name}: no <seg> found; expected a WMT test set in SGML")
    lines = (unescape(" ".join(segment.split()), _QUOTES) for segment in segments)
    return "".join(f"{line}\n" for line in lines).encode()


def main(args: WmtOptions) -> None:
    data_set = DATA_SETS[args.data_set]
    direction = args.direction or data_set.directions[0]
    if direction not in data_set.directions:
        choices = " or ".join(data_set.directions)
        raise UserError(f"--direction {direction}: expected {choices} for {args.data_set}")
    src, tgt = direction.split("-")
    out = (args.out or Path("work", args.data_set)).resolve()
    store = Store((args.archives or out / "archives").resolve(), args.mirror)
    corpora = [*data_set.train, data_set.valid, data_set.test]
    folder = out / "orig"
    sides = [[folder / f"{one.name}.{language}" for language in (src, tgt)] for one in corpora]
    steps = [unpacking(one, store, paths) for one, paths in zip(corpora, sides, strict=True)]
    *train, valid, test = [ParallelFile(one, other) for one, other in sides]
    merges = args.merges or (None if args.codes else _MERGES)
    own = {"src": src, "tgt": tgt, "train": (), "valid": (), "out": out, "merges": merges}
    options = build(PrepareOptions, {**vars(args), **own})
    preparation = Preparation(options, train, [valid], [test])  # checks flags before downloads
    Runner(folder, {}, sys.stderr, can_redo=False).run(steps)
    preparation.run()


@dataclass(kw_only=True)
class WmtOptions(PreparationOptions):
    """Fetch and prepare a published data set.

    Downloads and steps resume when the command is run again.
    """

    # fmt: off
    data_set: str = option(MISSING, "name of the data set", positional=True,
        choices=tuple(sorted(DATA_SETS)))
    direction: str | None = option(None, "such as ro-en (default: that of the data set's name)")
    archives: Path | None = option(None, "folder of archives (default: OUT/archives)")
    mirror: str | None = option(None, "address of a folder that holds all archives by name")
    out: Path | None = option(None, "folder to write (default: work/ and the name of the data set)")
    merges: int | None = like(PreparationOptions, "merges", help="joint BPE merges (default: "
        f"{_MERGES})")
    max_ratio: float = like(PreparationOptions, "max_ratio", default=1.5)
    bad_lines: str = like(PreparationOptions, "bad_lines", default="skip")
    # fmt: on


COMMAND = cli.CommandLine("specdec prepare wmt", main, WmtOptions)
