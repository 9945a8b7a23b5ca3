"""fairseq's dictionaries (`dict.xx.txt`), read without fairseq."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from specdec_plugins.decoding.types import SpecialTokens
from specdec_plugins.errors import UserError

_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3 of every dictionary; not in the file
_OVERWRITE = "#fairseq:overwrite"


class Dictionary:
    """Symbols and their ids."""

    bos, pad, eos, unk = range(4)

    def __init__(self, symbols: Iterable[str] = ()) -> None:
        """The special symbols, then these; a repeated one takes the later id."""
        self.symbols = [*_SPECIAL, *symbols]
        self._ids = {symbol: index for index, symbol in enumerate(self.symbols)}

    @classmethod
    def load(cls, path: str | Path) -> Dictionary:
        """Read lines of `symbol count`, most frequent first, as fairseq-preprocess writes them.

        Raises UserError with file and line where the file is missing, not UTF-8, or malformed.
        """
        path = Path(path)
        seen, symbols = set(_SPECIAL), []
        for number, line in enumerate(_read_lines(path), start=1):
            fields = line.rstrip().rsplit(" ", 1)
            overwrite = fields[-1] == _OVERWRITE
            if overwrite:
                fields = fields[0].rsplit(" ", 1)
            if len(fields) != 2 or not fields[1].lstrip("-").isdigit():
                raise UserError(
                    f"{path}, line {number}: expected a symbol, a space and its count; is this "
                    "a dictionary of fairseq-preprocess?"
                )
            symbol = fields[0]
            if symbol in seen and not overwrite:
                raise UserError(
                    f"{path}, line {number}: the symbol {symbol!r} is there already; delete one "
                    f"of the lines, or mark the later one with {_OVERWRITE}."
                )
            seen.add(symbol)
            symbols.append(symbol)
        return cls(symbols)

    def __len__(self) -> int:
        return len(self.symbols)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dictionary) and self.symbols == other.symbols

    __hash__ = None  # type: ignore[assignment]

    @property
    def special(self) -> SpecialTokens:
        """What the decoding core needs; fairseq starts a target with its eos."""
        return SpecialTokens(start=self.eos, pad=self.pad, eos=self.eos, unk=self.unk)

    def index(self, symbol: str) -> int:
        """Its id, or that of `<unk>`."""
        return self._ids.get(symbol, self.unk)

    def encode_line(self, line: str, append_eos: bool = True) -> list[int]:
        """Ids of the symbols between white space, as fairseq splits a line."""
        ids = [self.index(symbol) for symbol in line.split()]
        return [*ids, self.eos] if append_eos else ids

    def string(self, ids: Iterable[int]) -> str:
        """The symbols with spaces between them; `<s>` and `</s>` are left out."""
        return " ".join(self.symbols[i] for i in ids if i not in (self.bos, self.eos))

    def ids_in(self, other: Dictionary) -> list[int]:
        """For each symbol here its id in the other dictionary, or that of `<unk>`."""
        return [other.index(symbol) for symbol in self.symbols]


def _read_lines(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8") as file:
            return file.readlines()
    except OSError as error:
        raise UserError(
            f"{path}: the dictionary cannot be read ({error.strerror or error}); "
            "give the folder that fairseq-preprocess wrote."
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: the dictionary is not UTF-8 (byte {error.start}); convert it."
        ) from error
