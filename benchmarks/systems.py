"""The systems that a run compares: which engine, doing what, in which precision."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from typing import Any

from specdec_plugins.app.options import option
from specdec_plugins.app.settings import DTYPES
from specdec_plugins.corpus.cli import at_least

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
class System:
    """One line of the table."""

    engine: str  # a name in ENGINES
    role: str  # "greedy", "exact" and so on: what bars and ratios look for
    dtype: str
    # Of the engine; "threads" is a number that it takes instead of the run's, which is larger.
    options: Mapping[str, Any] = field(default_factory=dict)
    only_single: bool = False  # no batches, or none worth measuring

    @property
    def name(self) -> str:
        """As people read it; no two systems of a run share one."""
        detail = ", ".join(f"{key} {value:g}" for key, value in self.options.items())
        return f"{self.engine} {self.role}" + (f" ({detail})" if detail else "")

    def is_like(self, patterns: Sequence[str]) -> bool:
        """True if its name is like one of the patterns."""
        return any(fnmatch(self.name, pattern) for pattern in patterns)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "name": self.name, "options": dict(self.options)}


def _tolerance(text: str) -> tuple[int, float]:
    beta, _, tau = text.partition(":")
    try:
        return int(beta), float(tau)
    except ValueError as error:
        raise ArgumentTypeError(f"expected BETA:TAU such as 3:1.0, not {text!r}") from error


def _probability(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise ArgumentTypeError(f"a probability is from 0 to 1, not {text}")
    return share


_rows = partial(option, group="rows")


@dataclass(frozen=True)
class Choice:
    """What a run is asked to compare."""

    dtypes: Sequence[str] = _rows(
        ("float32", "int8"),
        "precisions; each engine runs those that it has (default: float32 int8)",
        nargs="+",
        choices=sorted({dtype for dtypes in PRECISIONS.values() for dtype in dtypes}),
    )
    relaxed: Sequence[tuple[int, float]] = _rows(
        ((3, 1.0), (5, 3.0)),
        "tolerances of relaxed decoding (default: 3:1 5:3)",
        "BETA:TAU",
        nargs="*",
        type=_tolerance,
    )
    block_sizes: Sequence[int] = _rows(
        (),
        "further block sizes of exact decoding (default: none)",
        "K",
        nargs="*",
        type=at_least(1),
    )
    scripted: Sequence[float] = _rows(
        (),
        "rows whose drafts are the greedy output, each token right with this probability "
        "(default: none)",
        "P",
        flags=("--scripted-acceptance",),
        nargs="*",
        type=_probability,
    )
    rows: Sequence[str] = _rows(
        ("*",),
        "only rows whose name matches, such as 'ours *' (default: all)",
        "PATTERN",
        nargs="+",
    )
    drafter: str | None = "block"  # registered name of the pair's; None = it has none
    assistant: bool = False  # the pair has a smaller model to assist transformers
    most_threads: int = 1  # that an engine gets

    def systems(self) -> list[System]:
        """In the order of the table: fairseq, the peers, then ours."""
        return [one for one in self._all() if one.dtype in PRECISIONS[one.engine]]

    def _all(self) -> Iterator[System]:
        for dtype in self.dtypes:
            yield System("fairseq", BEAM, dtype)
            yield System("fairseq", GREEDY, dtype)
        for dtype in self.dtypes:
            yield System("transformers", GREEDY, dtype)
            yield System("transformers", PROMPT_LOOKUP, dtype, only_single=True)
            if self.assistant:
                yield System("transformers", ASSISTED, dtype, only_single=True)
        for dtype in self.dtypes:
            yield from self._with_fewer_threads(System("ctranslate2", BEAM, dtype))
            yield from self._with_fewer_threads(System("ctranslate2", GREEDY, dtype))
        if self.drafter == "block":
            yield System("published", EXACT, self.dtypes[0])
        for dtype in self.dtypes:
            yield from self._with_fewer_threads(System("ours", GREEDY, dtype))
            if self.drafter:
                yield from self._speculative(dtype)

    def _speculative(self, dtype: str) -> Iterator[System]:
        drafters: list[dict[str, float]] = [{}]
        if dtype == "float32" and "int8" in self.dtypes and self.drafter == "block":
            drafters.append({"drafter bits": 8})
        for options in drafters:
            yield from self._with_fewer_threads(System("ours", EXACT, dtype, options))
        for block_size in self.block_sizes:
            for options in drafters:
                yield System("ours", EXACT, dtype, {**options, "k": block_size})
        for beta, tau in self.relaxed:
            yield System("ours", RELAXED, dtype, {"beta": beta, "tau": tau})
        # Other drafters than the block drafter draft what the verifier has computed already.
        for share in self.scripted if self.drafter == "block" else ():
            yield System("ours", SCRIPTED, dtype, {"acceptance": share})

    def _with_fewer_threads(self, system: System) -> Iterator[System]:
        """The system, and again on one thread: on small products a second one may cost time."""
        yield system
        if self.most_threads > 1:
            yield replace(system, options={**system.options, "threads": 1})
