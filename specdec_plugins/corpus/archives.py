"""Archives of published corpora: fetched with resumption, checked, read member by member."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm

from specdec_plugins.corpus.cli import logger
from specdec_plugins.corpus.resume import read_json, remove, sha256, write_json
from specdec_plugins.errors import UserError

_BLOCK = 1 << 20  # bytes


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
