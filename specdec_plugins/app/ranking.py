"""The n-best list of a text, of the hypotheses of its sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast

from specdec_plugins.app.codec import Codec
from specdec_plugins.app.planning import Part, Result, Text
from specdec_plugins.app.types import RankedText
from specdec_plugins.decoding.requests import FinishReason, Hypothesis


class Searched(Result, Protocol):
    """A result that a beam search may have found."""

    @property
    def hypotheses(self) -> list[Hypothesis]: ...


S = TypeVar("S", bound=Searched)


@dataclass(frozen=True)
class _Chosen:
    """A hypothesis in place of the best."""

    token_ids: list[int]
    finish_reason: FinishReason | None
    token_scores: list[float]


def ranked(text: Text[S], num: int) -> list[RankedText]:
    """The best translations of a text: the first of all sentences, the second of all, and so on.

    A sentence with fewer is in its last one. None is there twice.
    """
    found = dict[str, RankedText]()
    for rank in range(num):
        chosen, parts = list[tuple[Hypothesis, Codec]](), list[Part[Any]]()
        for part in text.parts:
            row, again = part.result, cast(Part[Any], part)
            if row is not None and row.hypotheses:
                one = row.hypotheses[min(rank, len(row.hypotheses) - 1)]
                chosen.append((one, part.how.codec))
                if one is not row.hypotheses[0]:
                    other = _Chosen(one.token_ids, row.finish_reason, [])
                    again = replace(again, result=other, said=None)
            parts.append(again)
        said = Text(parts, text.end).translation
        if said not in found:
            found[said] = _ranked(said, chosen)
    return [*found.values()]


def _ranked(said: str, chosen: Sequence[tuple[Hypothesis, Codec]]) -> RankedText:
    """A text, given the hypotheses of its sentences."""
    scored = [
        (token, score)
        for one, codec in chosen
        for token_id, score in zip(one.token_ids, one.token_scores, strict=True)
        for token in codec.tokens([token_id])  # none of the end
    ]
    return RankedText(
        said,
        [token for token, _ in scored],
        sum(one.score for one, _ in chosen),
        sum(sum(one.token_scores) for one, _ in chosen),
        [score for _, score in scored],
    )
