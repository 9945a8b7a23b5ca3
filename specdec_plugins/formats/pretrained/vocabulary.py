"""Which row of a transformers model is which symbol of ours.

Everything here counts as fairseq does: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, then the others.
M2M-100, NLLB, BART and mBART come from fairseq and count so themselves; MarianMT has its special
symbols elsewhere and no `<s>`. An *order* says for each of our ids which id of the file's it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specdec_plugins.formats.dictionaries import Dictionary

_OURS = (Dictionary.pad, Dictionary.eos, Dictionary.unk)


def order_of(size: int, pad: int, eos: int, unk: int, start: int) -> list[int]:
    """Our ids to those of the file, which the arguments are; `size` is that of its table.

    Where the file counts as we do, it is the identity. Else our `<s>` opens the decoder's input: it
    is a second copy of the row `start`, so that padding, with which MarianMT begins a target, never
    stands in a prefix. A model may not emit a copy.
    """
    if (pad, eos, unk) == _OURS:
        return list(range(size))
    special = (pad, eos, unk)
    return [start, *special, *(i for i in range(size) if i not in special)]


def start_of(order: Sequence[int], start: int) -> int:
    """Our id of what opens the decoder's input; `start` is the file's."""
    return order.index(start)  # a copy comes first


def ours(order: Sequence[int]) -> dict[int, int]:
    """The file's ids to ours; a copy has none of its own."""
    return {theirs: index for index, theirs in enumerate(order)}  # a copy comes first


def dictionary_of(
    vocabulary: Mapping[str, int], order: Sequence[int], start: int, language: str | None = None
) -> Dictionary:
    """The symbols of a file in our order; rows that it has no symbol for are made up.

    start: the file's id of what opens the decoder's input.
    """
    symbols = {index: symbol for symbol, index in vocabulary.items()}
    num_special = 1 + len(_OURS)
    named = [symbols.get(theirs, f"madeupword{theirs:04d}") for theirs in order[num_special:]]
    return Dictionary(named, language, start=start_of(order, start))
