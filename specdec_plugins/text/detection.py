"""Which language a text is in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from specdec_plugins.errors import imported
from specdec_plugins.formats.pretrained.languages import find

_READ = 2000  # characters; more change nothing
_SHORT = 20  # letters; a shorter text is taken to be in a language of the model
_LEAST = 0.01  # the least share that is told
_NONE = "zxx"  # the detector's word for what is in no language


class Guess(NamedTuple):
    """A language, and how probable it is."""

    code: str
    share: float


def detect(text: str, known: Sequence[str] = (), only_known: bool = False) -> list[Guess]:
    """The languages that a text may be in, the best first; empty if nothing in it tells.

    known: languages by a model's names, which the guesses have where they can; only_known: there
    are no others. Raises UserError if the detector is not installed.
    """
    detector = imported("py3langid", "detect")
    num_letters = sum(map(str.isalpha, text[:_READ]))
    only_known = only_known or (num_letters < _SHORT and len(known) > 0)
    ranked = [(code, float(score)) for code, score in detector.rank(text[:_READ])]
    if not num_letters or ranked[0][1] == ranked[-1][1] or ranked[0][0] == _NONE:
        return []
    scores = dict[str, float]()
    for code, score in ranked:
        name = _name(code, tuple(known))
        if name is not None or not only_known:
            scores.setdefault(name or code, score)
    best = max(scores.values(), default=0.0)
    shares = {name: math.exp(score - best) for name, score in scores.items()}
    whole = sum(shares.values())
    guesses = (Guess(name, share / whole) for name, share in shares.items())
    return [guess for guess in guesses if guess.share >= _LEAST]


@cache
def _name(code: str, known: Sequence[str]) -> str | None:
    """What a model calls a language of the detector, if it has it."""
    return find(code, known)
