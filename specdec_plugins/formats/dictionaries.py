"""The two dictionaries of a folder, and which language is which."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.dictionary import Dictionary


@dataclass(frozen=True)
class Dictionaries:
    """Both sides' symbols, and the languages that name their files."""

    source: Dictionary
    target: Dictionary
    source_lang: str
    target_lang: str


def load_dictionaries(
    folder: str | Path, source_lang: str | None = None, target_lang: str | None = None
) -> Dictionaries:
    """The two dictionaries of a folder; languages that are not given come from file names.

    A prepared folder names its direction by its data files (`train.en-de.en.idx`). Raises
    UserError where the folder, a dictionary, or the direction cannot be found.
    """
    require(Path(folder).is_dir(), f"{folder}: is no folder; give the one that holds dict.*.txt.")
    if source_lang is None or target_lang is None:
        source_lang, target_lang = _infer_languages(Path(folder), source_lang, target_lang)
    sides = [
        Dictionary.load(Path(folder) / f"dict.{lang}.txt") for lang in (source_lang, target_lang)
    ]
    return Dictionaries(sides[0], sides[1], source_lang, target_lang)


def _infer_languages(folder: Path, source: str | None, target: str | None) -> tuple[str, str]:
    pairs = {path.name.split(".")[1] for path in folder.glob("*.*-*.*.idx")}
    if len(pairs) == 1 and source is None and target is None:
        first, _, second = pairs.pop().partition("-")
        return first, second
    found = sorted(path.name[len("dict.") : -len(".txt")] for path in folder.glob("dict.*.txt"))
    require(
        bool(found),
        f"{folder}: holds no dict.<lang>.txt; give the folder that fairseq-preprocess wrote.",
    )
    others = [lang for lang in found if lang not in (source, target)]
    if len(found) == 2 and len(others) == 1:
        return source or others[0], target or others[0]
    raise UserError(
        f"{folder}: which of {', '.join(found)} is the source is not clear from the file names; "
        "say it with --source-lang and --target-lang."
    )
