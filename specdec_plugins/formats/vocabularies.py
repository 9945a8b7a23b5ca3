"""The dictionaries that a drafter and its verifier must share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairseq.data import Dictionary

from specdec_plugins.errors import UserError


@dataclass(frozen=True)
class Vocabularies:
    """Source and target dictionary: as much of a fairseq task as building a model asks for."""

    source_dictionary: Dictionary
    target_dictionary: Dictionary


def numbered_vocabularies(source_size: int, target_size: int) -> Vocabularies:
    """Stand-ins of the right sizes; one dictionary for both sides where the sizes agree."""
    source = _numbered_dictionary(source_size)
    if source_size == target_size:
        return Vocabularies(source, source)
    return Vocabularies(source, _numbered_dictionary(target_size))


def _numbered_dictionary(size: int) -> Dictionary:
    dictionary = Dictionary()
    for index in range(size - len(dictionary)):
        dictionary.add_symbol(f"type{index}")
    return dictionary


def read_vocabularies(folder: Path) -> Vocabularies:
    """The dictionaries of a folder written by fairseq-preprocess.

    The language pair is in the names of its files. Raises ``UserError`` where that fails.
    """
    pairs = {path.name.split(".")[1] for path in folder.glob("*.*-*.*.idx")}
    if len(pairs) != 1:
        raise UserError(f"{folder}: not the output of fairseq-preprocess for one language pair")
    paths = [folder / f"dict.{language}.txt" for language in pairs.pop().split("-")]
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path}: no such dictionary; run fairseq-preprocess again")
    source, target = (Dictionary.load(str(path)) for path in paths)
    return Vocabularies(source, target)


def refuse_other_dictionaries(mine: Path, theirs: Path) -> None:
    """Compare the dictionaries of two folders; raises ``UserError`` naming where they part."""
    first, second = read_vocabularies(mine), read_vocabularies(theirs)
    for side in ("source", "target"):
        a = getattr(first, f"{side}_dictionary").symbols
        b = getattr(second, f"{side}_dictionary").symbols
        if a == b:
            continue
        index = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        where = f"{len(a)} and {len(b)} types"
        if index is not None:
            where += f", entry {index} is {a[index]!r} and {b[index]!r}"
        raise UserError(
            f"the {side} dictionaries in {mine} and {theirs} differ ({where}); drafter and "
            "verifier must be trained with the same dictionaries"
        )
