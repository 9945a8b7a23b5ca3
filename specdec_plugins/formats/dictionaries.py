"""fairseq's dictionaries (`dict.xx.txt`) without fairseq: one, and the two of a folder.

Ids are numbered as in fairseq: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, then the other symbols.
M2M-100, NLLB, BART and mBART come from fairseq and use the same numbers. MarianMT has its special
symbols elsewhere and no `<s>`. An *order* maps each of our ids to the id in such a model's files.
"""

from __future__ import annotations

import hashlib
import io
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_plugins.decoding.contract import SpecialTokens
from specdec_plugins.errors import UserError, read_text, require

_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3 of every dictionary; not in the file
_OVERWRITE = "#fairseq:overwrite"
_FEW = 1000  # times that a sign was in the training text, and too few to learn it
_SHARE = 1e-5  # of all tokens of that text, which is too few to learn a letter
# Letters with accents and the like: in few words of a language that is written without them.
_LATIN = re.compile("[\u00a1-\u00ac\u00ae-\u024f\u1e00-\u1eff\u2020-\u2038]")
Languages = tuple[str | None, str | None]  # source, target


class Dictionary:
    bos, pad, eos, unk = range(4)

    def __init__(
        self, symbols: Iterable[str] = (), language: str | None = None, start: int = eos
    ) -> None:
        """The special symbols, then `symbols`; a repeated symbol gets the later id.

        start: the first id of the decoder's input; fairseq starts a target with eos.
        """
        self.language = language
        self.start = start
        self.rare = frozenset[int]()  # ids of characters, such as an arrow, that were hardly seen
        self.symbols = [*_SPECIAL, *symbols]
        self._ids = {symbol: index for index, symbol in enumerate(self.symbols)}

    @classmethod
    def load(cls, path: str | Path, language: str | None = None) -> Dictionary:
        """Read lines of `symbol count`, most frequent first, as fairseq-preprocess writes them.

        Raises UserError with file and line where the file is missing, not UTF-8, or malformed.
        """
        seen, symbols, counts = set(_SPECIAL), list[str](), dict[str, int]()
        text = read_text(path, "the dictionary", "give the folder that fairseq-preprocess wrote")
        for number, line in enumerate(io.StringIO(text), start=1):
            fields = line.rstrip().rsplit(" ", 1)
            overwrite = fields[-1] == _OVERWRITE
            if overwrite:
                fields = fields[0].rsplit(" ", 1)
            if len(fields) != 2 or not re.fullmatch(r"-?\d+", fields[1]):
                what = "; these are BPE codes" if text.startswith("#version:") else ""
                raise UserError(
                    f"{path}, line {number}: expected a symbol, a space and its count{what}; give "
                    "a dictionary that fairseq-preprocess wrote."
                )
            symbol = fields[0]
            if symbol in seen and not overwrite:
                raise UserError(
                    f"{path}, line {number}: the symbol {symbol!r} is defined already; delete one "
                    f"of the lines, or mark the later one with {_OVERWRITE}."
                )
            seen.add(symbol)
            symbols.append(symbol)
            counts[symbol] = int(fields[1])
        read, total = cls(symbols, language), sum(counts.values())
        if len({*counts.values()}) > 1:  # else they are placeholders, not counts
            read.rare = frozenset(
                read.index(symbol) for symbol, n in counts.items() if n < _enough(symbol, total)
            )
        return read

    def __len__(self) -> int:
        return len(self.symbols)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dictionary) and self.symbols == other.symbols

    __hash__ = None  # type: ignore[assignment]

    @property
    def special(self) -> SpecialTokens:
        """The special ids that the decoding core needs."""
        return SpecialTokens(start=self.start, pad=self.pad, eos=self.eos, unk=self.unk)

    @property
    def digest(self) -> str:
        """A hash of the symbols in their order; checkpoints record it."""
        return hashlib.sha256("\n".join(self.symbols).encode()).hexdigest()

    def index(self, symbol: str) -> int:
        """The symbol's id, or that of `<unk>`."""
        return self._ids.get(symbol, self.unk)

    def encode_line(self, line: str, append_eos: bool = True) -> list[int]:
        """Ids of the symbols between white space, as fairseq splits a line."""
        ids = [self.index(symbol) for symbol in line.split()]
        return [*ids, self.eos] if append_eos else ids

    def string(self, ids: Iterable[int]) -> str:
        """The symbols with spaces between them; `<s>` and `</s>` are left out."""
        return " ".join(self.symbols[i] for i in ids if i not in (self.bos, self.eos))

    def ids_in(self, other: Dictionary) -> list[int]:
        """For each symbol of this dictionary, its id in the other one, or that of `<unk>`."""
        return [other.index(symbol) for symbol in self.symbols]


def _enough(symbol: str, total: int) -> float:
    """How often a model must have seen a symbol, of BPE or not, among so many to know it.

    0 unless it is one character, and neither ASCII nor of a script that a translation does not
    copy.
    """
    character = symbol.removesuffix("@@")
    if len(character) != 1 or character.isascii():
        return 0
    if unicodedata.category(character) in ("Sc", "Sm", "So"):
        return _FEW
    return total * _SHARE if _LATIN.match(character) else 0


@dataclass(frozen=True)
class Dictionaries:
    """The dictionaries of both sides, and the languages that name their files."""

    source: Dictionary
    target: Dictionary
    source_lang: str
    target_lang: str

    @property
    def digests(self) -> list[str]:
        """Of the source's and the target's dictionary."""
        return [self.source.digest, self.target.digest]


def load_dictionaries(
    folder: str | Path,
    source_lang: str | None = None,
    target_lang: str | None = None,
    trained: Callable[[], Languages] = lambda: (None, None),
) -> Dictionaries:
    """The two dictionaries of a folder; languages that are not given come from file names.

    The data files of a prepared folder name its direction (`train.en-de.en.idx`). trained: that of
    the model, asked for where file names do not tell. Raises UserError if the folder, a dictionary,
    or the direction cannot be found.
    """
    require(
        Path(folder).is_dir(), f"{folder}: not a folder; give the folder that holds dict.*.txt."
    )
    if source_lang is None or target_lang is None:
        given = (source_lang, target_lang, trained)
        source_lang, target_lang = _infer_languages(Path(folder), *given)
    sides = [
        Dictionary.load(Path(folder) / f"dict.{lang}.txt", lang)
        for lang in (source_lang, target_lang)
    ]
    return Dictionaries(sides[0], sides[1], source_lang, target_lang)


def _infer_languages(
    folder: Path, source: str | None, target: str | None, trained: Callable[[], Languages]
) -> tuple[str, str]:
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
    known = trained()
    if {*known} <= {*found} and source in (None, known[0]) and target in (None, known[1]):
        return str(known[0]), str(known[1])
    raise UserError(
        f"{folder}: the file names do not tell which of {', '.join(found)} is the source; set "
        "--source-lang and --target-lang."
    )


# --- for transformers' models --------------------------------------------------------------------

_OURS = (Dictionary.pad, Dictionary.eos, Dictionary.unk)


def order_of(size: int, pad: int, eos: int, unk: int, start: int) -> list[int]:
    """Maps our ids to the file's. The arguments are ids of the file; `size` is that of its table.

    If the file has our numbers, this is the identity. Otherwise our `<s>` opens the decoder's
    input. It is a copy of the row `start`, so that padding, with which MarianMT begins a target,
    never occurs in a prefix. A model must not emit the copy.
    """
    if (pad, eos, unk) == _OURS:
        return list(range(size))
    special = (pad, eos, unk)
    return [start, *special, *(i for i in range(size) if i not in special)]


def start_of(order: Sequence[int], start: int) -> int:
    """Our id of the token that opens the decoder's input; `start` is the file's id.

    If that is padding, it is the copy. Others may be emitted, too, so constraints must know them.
    """
    own = ours(order)[start]
    return Dictionary.bos if own == Dictionary.pad else own


def ours(order: Sequence[int]) -> dict[int, int]:
    """Maps the file's ids to ours, but never to a copy."""
    return {theirs: index for index, theirs in enumerate(order)}  # a copy comes first


def dictionary_of(vocabulary: Mapping[str, int], order: Sequence[int], start: int) -> Dictionary:
    """The symbols of a file in our order; rows without a symbol get a made-up one.

    start: the file's id of the token that opens the decoder's input.
    """
    symbols = {index: symbol for symbol, index in vocabulary.items()}
    num_special = 1 + len(_OURS)
    named = [symbols.get(theirs, f"madeupword{theirs:04d}") for theirs in order[num_special:]]
    return Dictionary(named, start=start_of(order, start))
