"""The rows of the table: which engine, doing what, in which precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from specdec_plugins.app.settings import DTYPES

GREEDY, BEAM, EXACT, RELAXED, SCRIPTED = "greedy", "beam 5", "exact", "relaxed", "scripted"
PROMPT_LOOKUP, ASSISTED = "prompt lookup", "assisted"
FLOATS = ("float32", "float64", "float16", "bfloat16")
# What each peer can compute with; ours is whatever the command line offers.
PRECISIONS: dict[str, Sequence[str]] = {
    "fairseq": FLOATS,
    "transformers": FLOATS,
    "ctranslate2": ("float32", "float16", "bfloat16", "int8"),
    "published": FLOATS,
    "ours": tuple(DTYPES),
}


@dataclass(frozen=True)
class Row:
    """One way to decode."""

    engine: str  # a name in ENGINES
    role: str  # "greedy", "exact" and so on: what bars and ratios look for
    dtype: str
    # Of the engine; "threads" is a number that it takes instead of the run's, which is larger.
    options: Mapping[str, Any] = field(default_factory=dict)
    only_single: bool = False  # no batches, or none worth measuring

    @property
    def name(self) -> str:
        """As people read it; no two rows of a run share one."""
        detail = ", ".join(f"{key} {value:g}" for key, value in self.options.items())
        return f"{self.engine} {self.role}" + (f" ({detail})" if detail else "")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "name": self.name, "options": dict(self.options)}


@dataclass(frozen=True)
class Choice:
    """What a run is asked to compare."""

    dtypes: Sequence[str] = ("float32", "int8")
    relaxed: Sequence[tuple[int, float]] = ((3, 1.0), (5, 3.0))  # (beta, tau)
    block_sizes: Sequence[int] = ()  # beside the one that the drafter was trained for
    scripted: Sequence[float] = ()  # acceptance of each drafted token
    drafter: str | None = "block"  # registered name of the pair's; None = it has none
    assistant: bool = False  # the pair has a smaller model to assist transformers
    threads: int = 1  # the most that an engine gets

    def rows(self) -> list[Row]:
        """In the order of the table: fairseq, the peers, then ours."""
        return [row for row in self._all() if row.dtype in PRECISIONS[row.engine]]

    def _all(self) -> Iterator[Row]:
        for dtype in self.dtypes:
            yield Row("fairseq", BEAM, dtype)
            yield Row("fairseq", GREEDY, dtype)
        for dtype in self.dtypes:
            yield Row("transformers", GREEDY, dtype)
            yield Row("transformers", PROMPT_LOOKUP, dtype, only_single=True)
            if self.assistant:
                yield Row("transformers", ASSISTED, dtype, only_single=True)
        for dtype in self.dtypes:
            yield from self._with_fewer_threads(Row("ctranslate2", BEAM, dtype))
            yield from self._with_fewer_threads(Row("ctranslate2", GREEDY, dtype))
        if self.drafter == "block":
            yield Row("published", EXACT, self.dtypes[0])
        for dtype in self.dtypes:
            yield from self._with_fewer_threads(Row("ours", GREEDY, dtype))
            if self.drafter:
                yield from self._speculative(dtype)

    def _speculative(self, dtype: str) -> Iterator[Row]:
        drafters: list[dict[str, float]] = [{}]
        if dtype == "float32" and "int8" in self.dtypes and self.drafter == "block":
            drafters.append({"drafter bits": 8})
        for options in drafters:
            yield from self._with_fewer_threads(Row("ours", EXACT, dtype, options))
        for block_size in self.block_sizes:
            for options in drafters:
                yield Row("ours", EXACT, dtype, {**options, "k": block_size})
        for beta, tau in self.relaxed:
            yield Row("ours", RELAXED, dtype, {"beta": beta, "tau": tau})
        # Other drafters than the block drafter draft what the verifier has computed already.
        for share in self.scripted if self.drafter == "block" else ():
            yield Row("ours", SCRIPTED, dtype, {"acceptance": share})

    def _with_fewer_threads(self, row: Row) -> Iterator[Row]:
        """The row, and again on one thread: on small products a second one may cost time."""
        yield row
        if self.threads > 1:
            yield replace(row, options={**row.options, "threads": 1})
