"""The options of a run, and the systems that it compares: engine, role, precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from specdec_plugins.app.settings import DTYPES
from specdec_plugins.corpus.cli import option
from specdec_plugins.errors import require

GREEDY, BEAM, EXACT, RELAXED, SCRIPTED = "greedy", "beam 5", "exact", "relaxed", "scripted"
PROMPT_LOOKUP, ASSISTED = "prompt lookup", "assisted"
FLOATS = ("float32", "float64", "float16", "bfloat16")
# The precisions of each peer; ours are those of the command line.
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
    role: str  # "greedy", "exact" and so on: what ratios look for
    dtype: str
    # Of the engine; "threads" is a number that it uses instead of the run's larger one, "workers" a
    # number of translators that share a batch, each with as many of the threads; "graphs" = True
    # records rounds as CUDA graphs.
    options: Mapping[str, Any] = field(default_factory=dict)
    only_single: bool = False  # no batches, or none worth measuring
    only_batches: bool = False

    @property
    def name(self) -> str:
        """The displayed name, which is unique in a run."""
        options = self.options.items()
        detail = ", ".join(key if value is True else f"{key} {value:g}" for key, value in options)
        return f"{self.engine} {self.role}" + (f" ({detail})" if detail else "")

    def is_like(self, patterns: Sequence[str]) -> bool:
        """True if its name matches one of the patterns."""
        return any(fnmatch(self.name, pattern) for pattern in patterns)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "name": self.name, "options": dict(self.options)}


def _tolerance(text: str) -> tuple[int, float]:
    beta, _, tau = text.partition(":")
    try:
        return int(beta), float(tau)
    except ValueError as error:
        raise ValueError(f"expected BETA:TAU such as 3:1.0, not {text!r}") from error


def _probability(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError(f"expected a probability from 0 to 1, not {text}")
    return share


_language = "language code (default: from the names of the dictionaries)"
_what = partial(option, group="what is measured")
_how = partial(option, group="how it is measured")
_rows = partial(option, group="rows")


@dataclass(frozen=True)
class Options:
    """Decode one test file with one set of verifier weights in every engine: fairseq's search,
    transformers, CTranslate2 and this project's. Rows are interleaved and repeated on the same
    cores. The command writes OUTPUT.json, OUTPUT.md and plots as OUTPUT.<plot>.png.
    """

    # fmt: off
    REMOVED: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("--random-weights", "--length"), "give a trained pair as --pair"),
        **dict.fromkeys(("--grow", "--grow-bits"), "data/models/en-de is a trained pair of the "
            "paper's size; `specdec bench sizes` measures other shapes")}

    output: Path = _how(MISSING, "prefix of the names of the results", "OUTPUT")
    pair: str = _what(MISSING, "verifier, drafter, dictionaries and BPE codes", "FOLDER")
    test: str = _what(MISSING, "raw text: a TSV with source and target in columns 1 and 2, or "
        "SOURCE,TARGET", "FILE")
    sentences: int | None = _what(None, "the first N of the test file (default: all)", least=1)
    source_lang: str | None = _what(None, _language, "LANG", flags=("--source-lang", "-s"))
    target_lang: str | None = _what(None, _language, "LANG", flags=("--target-lang", "-t"))
    model: str | None = _what(None, "MarianMT folder that the pair, a bundle, was made from: "
        "transformers and CTranslate2's converter read it as it is; fairseq cannot read it and has "
        "no rows", "FOLDER")
    device: str = _how("cpu", "device that all engines compute on", choices=("cpu", "cuda"))
    work: str = _how("runs/bench", "folder for converted weights", "FOLDER")
    threads: Sequence[int] = _how((2,), "threads (default: 2)", "N", least=1)
    batches: Sequence[int] = _how((1,), "batch sizes (default: 1)", "N", least=1)
    repeats: int = _how(3, "repetitions", least=1)
    turn: int = _how(25, "sentences that a row decodes before the next one does", least=1)
    dtypes: Sequence[str] = _rows(("float32", "int8"), "precisions; each engine runs those that it "
        "supports (default: float32 int8)",
        choices=sorted({dtype for dtypes in PRECISIONS.values() for dtype in dtypes}))
    relaxed: Sequence[tuple[int, float]] = _rows(((3, 1.0), (5, 3.0)),
        "tolerances of relaxed decoding (default: 3:1 5:3)", "BETA:TAU", read=_tolerance)
    block_sizes: Sequence[int] = _rows((), "further block sizes of exact decoding (default: none)",
        "K", least=1)
    scripted: Sequence[float] = _rows((), "rows whose drafts are the greedy output, each token "
        "right with this probability (default: none)", "P", flags="--scripted-acceptance",
        read=_probability)
    rows: Sequence[str] = _rows("*", "only rows whose name matches, such as 'ours *' (default: all)"
        "", "PATTERN")
    batch_rows: Sequence[str] = _rows("*", "of these, the rows to measure at batch sizes above 1 "
        "(default: all that can be)", "PATTERN")
    # fmt: on

    def __post_init__(self) -> None:
        """Raises UserError where flags do not fit together."""
        usable = self.device == "cpu" or torch.cuda.is_available()
        require(usable, "--device cuda: torch sees no GPU here; leave the flag out.")

    def takes(self, system: System, batch: int) -> bool:
        """True if the system is measured at that batch."""
        if batch == 1:
            return not system.only_batches
        return system.is_like(self.batch_rows) and not system.only_single

    def systems(self, drafter: str | None, assistant: bool = False) -> list[System]:
        """The selected systems, in the order of the table: fairseq, the peers, then ours.

        drafter: registered name of the pair's; None = it has none. assistant: the pair has a
        smaller model to assist transformers. Raises UserError if no system is left.
        """
        systems = [
            one
            for one in self._all(drafter, assistant)
            if one.dtype in PRECISIONS[one.engine]
            and not (self.device == "cuda" and one.engine == "ours" and one.dtype == "int8")
            and not (self.model is not None and one.engine == "fairseq")
        ]
        chosen = [one for one in systems if one.is_like(self.rows)]
        names = ", ".join(sorted({one.name for one in systems}))
        require(bool(chosen), f"--rows: no row has a name that matches; there are: {names}.")
        return chosen

    def _all(self, drafter: str | None, assistant: bool) -> Iterator[System]:
        for dtype in self.dtypes:
            yield System("fairseq", BEAM, dtype)
            yield System("fairseq", GREEDY, dtype)
        for dtype in self.dtypes:
            yield System("transformers", GREEDY, dtype)
            yield System("transformers", PROMPT_LOOKUP, dtype, only_single=True)
            if assistant:
                yield System("transformers", ASSISTED, dtype, only_single=True)
        for dtype in self.dtypes:
            for role in (BEAM, GREEDY):
                system = System("ctranslate2", role, dtype)
                yield from self._variants(system)
                if self.device == "cpu" and (most := max(self.threads)) > 1:
                    yield replace(system, options={"workers": most}, only_batches=True)
        if drafter == "block":
            yield System("published", EXACT, self.dtypes[0])
        for dtype in self.dtypes:
            yield from self._variants(System("ours", BEAM, dtype))
            yield from self._variants(System("ours", GREEDY, dtype))
            if drafter:
                yield from self._speculative(dtype, drafter == "block")

    def _speculative(self, dtype: str, of_block_drafter: bool) -> Iterator[System]:
        yield from self._variants(System("ours", EXACT, dtype))
        for block_size in self.block_sizes:
            yield System("ours", EXACT, dtype, {"k": block_size})
        for beta, tau in self.relaxed:
            yield from self._variants(System("ours", RELAXED, dtype, {"beta": beta, "tau": tau}))
        # Only with a block drafter: early exit needs the verifier to score what it drafted.
        for share in self.scripted if of_block_drafter else ():
            yield System("ours", SCRIPTED, dtype, {"acceptance": share})

    def _variants(self, system: System) -> Iterator[System]:
        """The system, and again on one thread, as a second one may slow down small products, or on
        a GPU with rounds recorded as CUDA graphs.
        """
        yield system
        if self.device == "cpu" and max(self.threads) > 1:
            yield replace(system, options={**system.options, "threads": 1})
        if self.device == "cuda" and system.engine == "ours" and system.role != BEAM:
            yield replace(system, options={**system.options, "graphs": True})
