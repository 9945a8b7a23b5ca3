"""Models by their names on the Hugging Face hub: the files that are needed, downloaded once.

huggingface_hub does the work. Its cache, tokens and variables (HF_TOKEN, HF_ENDPOINT, HF_HOME,
HF_HUB_OFFLINE) are those of transformers, which may have downloaded the model before.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from specdec_plugins.errors import UserError, imported, require
from specdec_plugins.formats.bundle import SETTINGS, is_bundle, read_bundle
from specdec_plugins.formats.pretrained.config import CONFIG, GENERATION, is_pretrained, read_config
from specdec_plugins.formats.pretrained.tokenizer import FILES, read_tokenizer
from specdec_plugins.formats.pretrained.weights import weights_among
from specdec_plugins.formats.tensors import INDEX, PICKLED, SAFE

_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w.-][\w./-]*))?")
# What says which model it is, and which files hold its weights.
_DESCRIBING = (SETTINGS, "dict.*.txt", CONFIG, GENERATION, *FILES, SAFE + INDEX, PICKLED + INDEX)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def local_model(given: str | Path) -> Path:
    """The folder of a model: a path that exists, or else a model of the hub, ORG/NAME[@REVISION].

    What is missing in the hub's cache is downloaded; what is neither is returned as it is. Raises
    UserError if the hub does not have the model or cannot be reached, or if the model cannot be
    decoded, before its weights are downloaded.
    """
    name = _NAME.fullmatch(str(given))
    if Path(given).exists() or name is None:
        return Path(given)
    return _Download(str(given), name[1], name[2]).folder()


class _Silent(tqdm):
    """No progress bar, for files that are small."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **{**named, "disable": True})


def _weights(folder: Path, names: Collection[str]) -> list[str]:
    """Which of these files hold the weights of the bundle or model that the folder describes."""
    return read_bundle(folder).files if is_bundle(folder) else weights_among(names, folder)


@dataclass(frozen=True)
class _Download:
    name: str  # as the user gave it
    repository: str
    revision: str | None

    def folder(self) -> Path:
        """The folder in the cache, complete."""
        hub = imported("huggingface_hub", "text")
        for client in ("httpx", "httpx2"):  # they log each request
            logging.getLogger(client).setLevel(logging.WARNING)
        with self._explained(hub):
            folder = self._fetched(hub, self.revision, _DESCRIBING, tqdm_class=_Silent)
        with self._named(folder):
            here = {path.name for path in folder.iterdir()}  # they appear when they are complete
            weights = _weights(folder, here)
            if weights and here.issuperset(weights):
                return folder
        with self._explained(hub):
            names = hub.HfApi().list_repo_files(self.repository, revision=folder.name)
        with self._named(folder):
            weights = _weights(folder, names)
            if not is_bundle(folder):
                self._check(folder, weights, names)
        with self._explained(hub):
            return self._fetched(hub, folder.name, weights)

    def _fetched(self, hub: Any, revision: str | None, files: Sequence[str], **how: Any) -> Path:
        """The folder of that revision in the cache, with these files as far as they exist."""
        found = hub.snapshot_download(
            self.repository, revision=revision, allow_patterns=[*files], **how
        )
        return Path(found)

    def _check(self, folder: Path, weights: Sequence[str], names: Collection[str]) -> None:
        """Raises UserError if this is no model of transformers that can be decoded."""
        listed = ", ".join(sorted(name for name in names if not name.startswith("."))[:6])
        require(
            is_pretrained(folder),
            f"{self.name}: is neither a model of transformers (its {CONFIG} with a model_type) nor "
            f"a bundle ({SETTINGS}), as it holds {listed or 'nothing'}; name another.",
        )
        config = read_config(folder)  # the reason may be that it is of another kind
        require(
            bool(weights),
            f"{self.name}: holds no weights that can be read, neither {SAFE} nor {PICKLED}, but "
            f"{listed}; name another model or revision.",
        )
        read_tokenizer(folder, config)

    @contextmanager
    def _named(self, folder: Path) -> Iterator[None]:
        """Messages of UserErrors call the folder by the model's name."""
        try:
            yield
        except UserError as error:
            raise UserError(str(error).replace(str(folder), self.name)) from error

    @contextmanager
    def _explained(self, hub: Any) -> Iterator[None]:
        """Turns what huggingface_hub raises into a sentence; a full disk stays what it is."""
        try:
            yield
        except Exception as error:
            told = self._explanation(hub, error)
            if told is None:
                raise
            raise UserError(f"{self.name}: {told}") from error

    def _explanation(self, hub: Any, error: BaseException) -> str | None:
        """What to do about an error; None if it is not about the download."""
        errors, where = hub.errors, hub.constants.ENDPOINT
        if isinstance(error, OSError) and error.errno in _FULL:
            return None
        if isinstance(error, errors.GatedRepoError):
            return (
                f"{where} gives it only to users who have accepted its terms; accept them on its "
                "page, and set HF_TOKEN to your token."
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return "the model exists, but not this revision; give another after the @, or none."
        is_io = isinstance(error, (OSError, errors.HTTPError))
        if hub.constants.HF_HUB_OFFLINE and is_io:
            return (
                f"is no folder here, and not or only partly in {hub.constants.HF_HUB_CACHE}; unset "
                "HF_HUB_OFFLINE to download it, or give a folder."
            )
        if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
            return self._explanation(hub, error.__cause__)
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403, 404):
            return (
                f"is no folder here, and {where} has no model of this name, or not for you (status "
                f"{status}); check the name, or set HF_TOKEN if it is private."
            )
        if isinstance(error, (ValueError, KeyError, TypeError, errors.FileMetadataError)):
            return (
                f"{where} answers what no hub answers, such as the page of a proxy "
                f"({type(error).__name__}); check HF_ENDPOINT and the connection."
            )
        if is_io:
            reason = " ".join(str(error).split())[:150]
            return (
                f"cannot be downloaded from {where} ({reason}); run the same command again, which "
                "keeps the files that are complete, or give a folder."
            )
        return None
