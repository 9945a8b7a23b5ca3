"""What a user may ask of a translator: one frozen record, checked when it is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from specdec_plugins.app.combinations import check_method
from specdec_plugins.decoding.networks import KERNELS
from specdec_plugins.decoding.types import DecodeParams
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.bundle import SETTINGS as BUNDLE_SETTINGS

STRATEGIES = ("fairseq", "AR", "specdec", "drafter", "early-exit")
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.float32,  # what is left in floating point; products are quantised
}
GREEDY_LIKE = ("published", "fairseq")
TOKENIZERS = ("moses",)
BPES = ("subword_nmt",)

WITH_CHECKPOINT = ("block", "assistant", "medusa")  # drafters that were trained
_ALONE = ("block", "assistant")  # those of them that need no verifier

# Settings of fairseq's search that a greedy or speculative decoder cannot follow.
_SEARCH_ONLY = {"lenpen": 1.0, "unkpen": 0.0, "no_repeat_ngram_size": 0}


@dataclass(frozen=True)
class Settings:
    """How to translate. The command line's flags carry the same names."""

    data: str  # folder with dict.<lang>.txt of both sides
    verifier: str | None = None  # checkpoint of the stock Transformer
    drafter_checkpoint: str | None = None  # checkpoint of the network that drafts
    drafter_data: str | None = None  # folder with the assistant's own dict.<lang>.txt; None = data
    source_lang: str | None = None  # None = read from the names of the dictionaries
    target_lang: str | None = None

    strategy: str = "specdec"
    drafter: str = "block"  # registered name
    drafter_options: Mapping[str, Any] = field(default_factory=dict)
    bigrams: str | None = None  # file that scripts/count-bigrams.sh wrote; the block drafter's
    rule: str | None = None  # registered name; None = exact for beta 1, else top_beta
    schedule: str = "constant"  # registered name
    schedule_options: Mapping[str, Any] = field(default_factory=dict)

    exit_layer: int | None = None  # strategy early-exit only: decoder layers that are used
    batch: int = 1  # sentences decoded at once
    beam: int = 5  # strategy fairseq only
    beta: int = 1  # accept among the verifier's beta best tokens; 1 = its greedy output
    tau: float = 0.0  # nats below the best logit that an accepted token may be
    block_size: int | None = None  # tokens drafted a round; None = what the drafter was trained for
    temperature: float = 1.0  # > 0; rules that sample
    top_k: int = 0  # 0 = all; rules that sample
    top_p: float = 1.0  # 1 = all; rules that sample
    seed: int = 0  # line n of the input draws with seed + n

    greedy_like: str = "published"  # plain argmax, or with the bans of fairseq's own search
    max_len_a: float = 0.0  # at most a * source tokens (its eos included) + b target tokens
    max_len_b: int = 200
    min_len: int | None = None  # eos is banned before so many tokens; None = as greedy_like says
    lenpen: float = 1.0  # strategy fairseq only, as the next two
    unkpen: float = 0.0
    no_repeat_ngram_size: int = 0

    tokenizer: str | None = None  # None = words in and out are separated by spaces already
    bpe: str | None = None  # None = tokens of the model are separated by spaces already
    bpe_codes: str | None = None
    lowercase: bool = False  # raw text only, as the next two: see TextPipeline
    dash_splits: bool = False
    strip_diacritics: bool = False
    remove_bpe: str | None = "@@ "  # how to join subwords of BPE output; None = leave them
    prefix_size: int = 0  # first tokens of a reference to force; 0 = the whole given prefix
    truncate_source: bool = False  # cut lines that are longer than the model's positions

    device: str | None = None  # None = a GPU where there is one
    dtype: str = "float32"
    drafter_dtype: str | None = None  # "int8", or None = the verifier's
    kernels: str = "native"  # whose products a CPU computes in float32 and 8 bits

    def __post_init__(self) -> None:
        _check_choice("strategy", self.strategy, STRATEGIES)
        _check_choice("dtype", self.dtype, tuple(DTYPES))
        _check_choice("kernels", self.kernels, KERNELS)
        _check_choice("greedy-like", self.greedy_like, GREEDY_LIKE)
        require(self.batch >= 1, f"--batch must be 1 or more, not {self.batch}.")
        require(self.beam >= 1, f"--beam must be 1 or more, not {self.beam}.")
        require(
            self.block_size is None or self.block_size >= 1,
            f"--block-size must be 1 or more, not {self.block_size}; "
            "--strategy AR decodes without drafts.",
        )
        require(self.max_len_a >= 0, f"--max-len-a must be 0 or more, not {self.max_len_a}.")
        require(self.max_len_b >= 0, f"--max-len-b must be 0 or more, not {self.max_len_b}.")
        require(self.prefix_size >= 0, f"--prefix-size must be 0 or more, not {self.prefix_size}.")
        self._check_models()
        self._check_strategy()
        check_method(self)
        self._check_text()
        self.decode_params(max_len=1)  # beta, tau and the sampling settings have their own bounds

    def _check_models(self) -> None:
        require(
            not (self.quantised and self.strategy == "fairseq"),
            "fairseq's search has no int8; use --dtype float32, or another --strategy.",
        )
        self._check_drafter_dtype()
        wants = f"--strategy {self.strategy} needs"
        lacks = f"holds no {BUNDLE_SETTINGS}" if Path(self.data).is_dir() else "is no folder"
        require(
            self.verifier is not None or self.strategy == "drafter",
            f"{self.data} {lacks}, so it is no bundle, and {wants} the verifier's checkpoint; give "
            "it with --AR-path.",
        )
        require(
            not (
                self.drafts and self.drafter in WITH_CHECKPOINT and self.drafter_checkpoint is None
            ),
            f"{wants} the drafter's checkpoint; give it with --path.",
        )

    def _check_drafter_dtype(self) -> None:
        if self.drafter_dtype is None:
            return
        _check_choice("drafter-dtype", self.drafter_dtype, ("int8",))
        require(
            self.drafts and self.drafter in ("block", "assistant"),
            "--drafter-dtype is about a network that drafts: --drafter block or assistant.",
        )
        require(
            self.dtype in ("float32", "int8"),
            f"a drafter in int8 goes with --dtype float32, not {self.dtype}.",
        )

    def _check_strategy(self) -> None:
        require(
            (self.strategy == "early-exit") == (self.exit_layer is not None),
            "--strategy early-exit and --exit-layer N belong together; give both or neither.",
        )
        if self.strategy == "fairseq":
            self._check_search()
            return
        for name, neutral in _SEARCH_ONLY.items():
            flag = "--" + name.replace("_", "-")
            require(
                getattr(self, name) == neutral,
                f"{flag} belongs to fairseq's search; use it with --strategy fairseq only.",
            )
        require(
            self.strategy != "drafter" or self.drafter in _ALONE,
            f"The drafter {self.drafter!r} is no model of its own, so it cannot decode alone; "
            "use it with --strategy specdec.",
        )
        require(
            not (self.strategy == "drafter" and (self.min_len or self.greedy_like != "published")),
            "--strategy drafter takes the drafter's tokens as they are; "
            "it cannot follow --min-len or --greedy-like fairseq.",
        )

    def _check_search(self) -> None:
        require(
            self.min_len is None or self.min_len >= 0,
            f"--min-len must be 0 or more, not {self.min_len}.",
        )
        require(
            self.no_repeat_ngram_size >= 0,
            f"--no-repeat-ngram-size must be 0 or more, not {self.no_repeat_ngram_size}.",
        )

    def _check_text(self) -> None:
        if self.tokenizer is not None:
            _check_choice("tokenizer", self.tokenizer, TOKENIZERS)
        if self.bpe is not None:
            _check_choice("bpe", self.bpe, BPES)
        require(
            (self.bpe is None) == (self.bpe_codes is None),
            "--bpe subword_nmt and --bpe-codes FILE belong together; give both or neither.",
        )
        for name in ("lowercase", "dash_splits", "strip_diacritics"):
            require(
                self.raw_text or not getattr(self, name),
                f"--{name.replace('_', '-')} is about raw text; add --tokenizer or --bpe.",
            )

    @property
    def quantised(self) -> bool:
        """True if matrix products are to be computed in 8-bit integers."""
        return self.dtype == "int8"

    @property
    def drafts(self) -> bool:
        """True if a drafter takes part."""
        return self.strategy in ("specdec", "drafter")

    @property
    def raw_text(self) -> bool:
        """True if lines are text of words; False if they are the model's tokens."""
        return self.tokenizer is not None or self.bpe is not None

    @property
    def rule_name(self) -> str:
        """The acceptance rule in force."""
        if self.rule is not None:
            return self.rule
        return "exact" if self.beta == 1 or not self.drafts else "top_beta"

    @property
    def ban_pad(self) -> bool:
        """True if padding may not be emitted, as in fairseq's own search."""
        return self.greedy_like == "fairseq"

    @property
    def minimum(self) -> int:
        """Target tokens before which eos is banned: `min_len` in force."""
        if self.min_len is not None:
            return self.min_len
        # fairseq's own search never ends a sentence at once.
        return 1 if self.strategy == "fairseq" or self.greedy_like == "fairseq" else 0

    def max_len(self, num_source: int, longest: int) -> int:
        """Target tokens at most for a source of that many tokens, eos included in both.

        longest: what the model has positions for; fairseq's search clamps to it as well.
        """
        return max(1, min(int(self.max_len_a * num_source + self.max_len_b), longest))

    def decode_params(self, max_len: int, seed: int = 0, block_size: int = 0) -> DecodeParams:
        """What one sentence asks of the engine. Raises UserError for impossible values."""
        return DecodeParams(
            block_size=block_size,
            max_len=max_len,
            min_len=self.minimum,
            beta=self.beta,
            tau=self.tau,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=seed,
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    require(
        value in choices,
        f"There is no --{name} {value!r}; choose one of: {', '.join(choices)}.",
    )


def choose_device(name: str | None) -> torch.device:
    """The device of that name; by default a GPU where there is one.

    Raises UserError where torch cannot compute there.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # the latter from a build for CPUs
        reason = str(error).splitlines()[0].split(". ")[0]
        raise UserError(
            f"--device {name} cannot be used ({reason}); leave it out, or give cpu."
        ) from error
    return torch.device(name)
