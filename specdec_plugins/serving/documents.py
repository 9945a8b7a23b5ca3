"""Markup and files: their texts are translated as others are, some at a time."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from specdec_plugins.app.planning import Translated
from specdec_plugins.documents.base import Document
from specdec_plugins.documents.job import Job
from specdec_plugins.errors import UserError
from specdec_plugins.serving.errors import ServiceError
from specdec_plugins.serving.schemas import Parameters
from specdec_plugins.serving.service import Service
from specdec_plugins.serving.settings import ServerSettings

_PAUSE = 1.0  # seconds until a part of a file is sent again while the server is busy
_KEPT = 600.0  # seconds that a translated file can be fetched
_TOKEN = 32  # letters of a name that nobody guesses
_LONGEST = 200  # bytes of a file's own name behind it; file systems take 255


@dataclass(frozen=True)
class Translation:
    """A document in another language, and what it lacks."""

    data: bytes
    texts: Sequence[Translated]
    lost: Sequence[str]  # texts that stay, as a translation would have lost markup
    others: Sequence[bytes]  # with the second best translations of its texts, and so on

    @property
    def note(self) -> str | None:
        """What of it is not translated."""
        if not self.lost:
            return None
        return (
            f"Some texts stay, as markup would be lost: {len(self.lost)}, first {self.lost[0]!r}."
        )


async def job_of(reads: Callable[[bytes], Document], data: bytes) -> Job:
    """What is to be translated of a document. Raises ServiceError if it cannot be read."""
    # A large file takes seconds, so it is read beside the thread for texts, which others wait for.
    try:
        return Job(await asyncio.to_thread(reads, data))
    except UserError as error:
        raise ServiceError(400, f"The document {error}") from error


async def translate_document(
    service: Service, job: Job, options: Parameters, num: int = 0
) -> Translation:
    """options, num: as for `Service.translate`. Raises ServiceError as that does."""
    done, others = dict[str, Translated](), dict[str, list[str]]()
    for part in _parts(job.texts, service.settings):
        best, rest = await _translated(service, part, options, num, waits=bool(done))
        done.update(zip(part, best, strict=True))
        others.update(zip(part, rest, strict=True))
    language = options.target_lang or service.model.codec.target_lang

    def written() -> list[tuple[bytes, list[str]]]:
        """By rank of translations (the last where there are fewer); each with texts that stay."""
        said = {text: one.text for text, one in done.items() if one.text}
        ranks = (
            {t: [one, *others[t]][: n + 1][-1] for t, one in said.items()} for n in range(num + 1)
        )
        return [(job.written(rank, language), job.lost) for rank in ranks]

    (data, lost), *more = await asyncio.to_thread(written)
    # A page whose texts stay is no alternative.
    pages = dict.fromkeys(page for page, own in more if len(own) <= len(lost) and page != data)
    return Translation(data, [*done.values()], lost, [*pages])


async def _translated(
    service: Service, part: list[str], options: Parameters, num: int, waits: bool
) -> tuple[list[Translated], list[list[str]]]:
    """waits: for a busy server, as far as the time of a request; a document is begun then."""
    while True:
        try:
            return await service.translate(part, options, num)
        except ServiceError as error:
            if error.status != 429 or not waits:
                raise
            await asyncio.sleep(_PAUSE)


def _parts(texts: Sequence[str], settings: ServerSettings) -> Iterator[list[str]]:
    """Texts in lots that a request may have."""
    part, size = list[str](), 0
    for text in texts:
        if part and (len(part) == settings.max_texts or size + len(text) > settings.max_characters):
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield part


def _folder() -> Path:
    """Where files wait to be fetched, by whichever process of this user is asked for them."""
    folder = Path(tempfile.gettempdir()) / f"specdec-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ServiceError(500, f"{folder} belongs to somebody else; remove it.")
    return folder


def keep(name: str, data: bytes) -> str:
    """Keep a file for a while; returns the name that it is fetched by."""
    folder, now = _folder(), time.time()
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another request removes it, too
            if now - path.stat().st_mtime > _KEPT:
                path.unlink()
    own = PurePath(name.replace("\\", "/").replace("\0", "")).name.encode()
    kept = f"{secrets.token_hex(_TOKEN // 2)}.{own[-_LONGEST:].decode(errors='ignore')}"
    (folder / kept).write_bytes(data)
    return kept


def kept_file(name: str) -> tuple[str, Path]:
    """The file's own name, and where it is. Raises ServiceError if there is none of that name."""
    token, _, own = name.partition(".")
    path = _folder() / PurePath(name).name
    # Unlike `Path.is_file`, which raises an error for a name that is too long.
    if len(token) != _TOKEN or path.name != name or not os.path.isfile(path):
        told = "There is no such file, or it was fetched too late; send it again."
        raise ServiceError(404, told)
    return own, path
