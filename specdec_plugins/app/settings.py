"""The settings of a translator: one frozen record that declares each setting once.

Flags, bounds, help and the server's descriptions of a setting derive from its declaration here (see
`corpus/cli.py`). Combinations are checked when a record is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from specdec_plugins.corpus.cli import check, option, or_none
from specdec_plugins.decoding.contract import AcceptanceRule, Guarantee
from specdec_plugins.decoding.drafters import DRAFTERS, Needs, needs_of
from specdec_plugins.decoding.networks import KERNELS, best_set
from specdec_plugins.decoding.registry import Registry
from specdec_plugins.decoding.requests import LEAST, BeamParams, DecodeParams
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.schedules import SCHEDULES
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.bundle import CODES, PRETRAINED
from specdec_plugins.formats.bundle import SETTINGS as BUNDLE_SETTINGS

STRATEGIES: Registry[object] = Registry(
    "strategy", {"fairseq": "--strategy AR --beam 5 finds the same translations, and faster"}
)
_ = [STRATEGIES.register(name)(object) for name in ("AR", "specdec", "drafter", "early-exit")]
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.float32,  # of the rest; only products are quantised
}
VERIFIER, DRAFTER = "verifier.pt", "drafter.pt"  # usual names of checkpoints in a folder
EXACT = {"beta": 1, "tau": 0.0}  # no tolerance, whatever a bundle was tuned to
TOKENIZERS = ("moses", PRETRAINED)
BPES = ("subword_nmt",)

NO_TOLERANCE = "--tau {value:g} has no effect with --beta 1; add --beta 3, or omit --tau."
_JUDGED = ("specdec", "AR", "early-exit")  # strategies that use an acceptance rule
_SAMPLING = ("temperature", "top_k", "top_p")  # settings of rules that sample
REPEATS = ("no_repeat_ngram_size", "repetition_penalty")
_SEARCH_ONLY = ("n_best", "glossary", "lenpen", "unkpen")  # of a beam search
_GROWTH = 3  # target tokens of a source token: no translation needs as many
BY_SENTENCE = {"split": True, "protect": True}  # how text is translated, unless lines are asked for
RAW_TEXT = ("lowercase", "dash_splits", "strip_diacritics")

_model = partial(option, group="models")
_machine = partial(option, group="machine")
_decoding = partial(option, group="decoding")
_limit = partial(option, group="limits and search")
_text = partial(option, group="text")
_line = partial(option, group="forced beginnings, and long lines")


@dataclass(frozen=True)
class Settings:
    """How to translate. None = not given."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "--bigrams": "the head of a drafter that specdec drafter trains does more; omit it",
        "--tree": "drafts are chains, which took half the time of trees; omit it",
        "--whole-lines": "give --no-split",
    }

    # fmt: off
    data: str = option(MISSING,
        "a bundle, which brings models, languages and codes (flags override them), a transformers "
        "model (MarianMT, M2M-100, NLLB, BART, mBART, T5), or a folder with dict.<lang>.txt and, "
        f"if no flags name others, {VERIFIER}, {DRAFTER} and {CODES} (default: the bundled pair)",
        "FOLDER", flags=("--model",), positional=True, optional=True, group="models")
    verifier: str | None = _model(None, f"checkpoint of the verifier (default: FOLDER/{VERIFIER})",
        "FILE", flags=("--AR-path", "--verifier"))
    drafter_checkpoint: str | None = _model(None,
        f"checkpoint of the drafter (default: FOLDER/{DRAFTER})", "FILE",
        flags=("--path", "--speculative-model"))
    drafter_data: str | None = _model(None, "folder with the dict.<lang>.txt of an assistant with "
        "another source dictionary (default: the positional FOLDER); symbols are matched by name; "
        "target dictionaries must be the same", "FOLDER")
    source_lang: str | None = _model(None, "source language of a model with several, as the model "
        "calls it or by two letters (default: the model's own, or from the names of the "
        "dictionaries)", "LANG", flags=("--source-lang", "-s"))
    target_lang: str | None = _model(None, "target language of a model with several, as the model "
        "calls it or by two letters (default: the model's own, or from the names of the "
        "dictionaries)", "LANG", flags=("--target-lang", "-t"))

    device: str | None = _machine(None, "such as cpu, cuda or cuda:1 (default: a GPU if there is "
        "one)", "NAME", alias=("--cpu", "cpu"))
    dtype: str = _machine("float32", "precision of the networks (default: float32); int8: 8-bit "
        "integer products, CPU only", choices=tuple(DTYPES), alias=("--fp16", "float16"))
    drafter_dtype: str | None = _machine(None, "precision of the drafter's network, which never "
        "changes exact output (default: int8 beside a float32 verifier on a CPU with this "
        "project's kernels, for exact output and sampling; else the verifier's)",
        choices=("float32", "int8"))
    kernels: str = _machine("native", "kernels on a CPU: native, this project's own, if they were "
        "built (default), or torch's, which have no int8", choices=KERNELS)
    cuda_graphs: bool = _machine(False, "record rounds as CUDA graphs, with --drafter block or "
        "--strategy AR; a round takes a fourth to a seventh of its time on an H200 (default: no)")

    strategy: str = _decoding("specdec", "AR: one token at a time; specdec: drafter and verifier "
        "(default); drafter: the drafter's blocks as they are, unverified; early-exit: one token "
        "at a time with the first --exit-layer decoder layers alone, unverified",
        choices=STRATEGIES)
    exit_layer: int | None = _decoding(None, "decoder layers to use, for --strategy early-exit")
    batch: int = _decoding(1, "sentences decoded at once (default: 16, of bundles and transformers "
        "models on a CPU where no flag asks for drafts; else 1)", flags=("--batch", "--max-rows"),
        least=1)
    beam: int | None = _decoding(None, "search with a beam of N, for --strategy AR, which --beam "
        "alone means; other strategies do without, as published (default: 1, greedy decoding)",
        least=1, most=999)
    n_best: int = _decoding(1, "with --beam: the N best translations of a line, each as 'line "
        "number from 0 ||| text ||| F0= log-probability ||| score' (default: 1, its text alone)",
        least=1, most=999)
    glossary: str | None = _decoding(None, "terms of the source and the translations that they "
        "must have, a pair a line, with a tab between them; needs a beam (default: --beam 5)",
        "FILE")
    beta: int = _decoding(1, "accept any of the verifier's N best tokens (default: 1, exactly its "
        "greedy output)", least=1)
    tau: float = _decoding(0.0, "accept none more than X nats below the verifier's best (default: "
        "0)", least=0)
    block_size: int | None = _decoding(None, "tokens drafted a round (default: what the drafter "
        "was trained for)", flags=("--block-size", "--speculative-steps"), least=1,
        advice="--strategy AR decodes without drafts")
    drafter: str = _decoding("block", "how to draft (default: block), or none", choices=DRAFTERS,
        read=or_none)
    drafter_options: Mapping[str, Any] = _decoding({}, "settings of the drafter")
    rule: str | None = _decoding(None, "default: exact for beta 1, else top_beta", choices=RULES)
    schedule: str = _decoding("constant", "how many tokens to draft (default: constant; of "
        "bundles on a CPU and of a server: few_rows)", choices=SCHEDULES)
    schedule_options: Mapping[str, Any] = _decoding({}, "settings of the schedule")
    temperature: float = _decoding(1.0, "for rules that sample (default: 1)", least=LEAST,
        most=1000, advice="for the best token alone, ask for top_k 1")
    top_k: int = _decoding(0, "for rules that sample (default: 0, all)", least=0)
    top_p: float = _decoding(1.0, "for rules that sample (default: 1, all)", least=LEAST, most=1)
    seed: int = _decoding(0, "for rules that sample; line n uses N + n")

    greedy_like: str = _limit("published", "published: the plain argmax (default); fairseq: never "
        "<pad>, and no end of sentence as first token, as in fairseq's own search",
        choices=("published", "fairseq"))
    max_len_a: float | None = _limit(None, "cut a translation at A * source tokens + B target "
        "tokens (if only one is given: A 0, B 200); counts each sentence's own source, its end "
        "included, and never exceeds the model's positions (default: 200 or, if more, three times "
        "the source; a sentence that needs more is translated in pieces)", "A", least=0)
    max_len_b: int | None = _limit(None, "see --max-len-a", "B", least=0)
    min_len: int | None = _limit(None, "no end of sentence before N target tokens", least=0)
    lenpen: float | None = _limit(None, "with --beam: a translation's log-probability is divided "
        "by its length to the power of X (default: 1, or the model's own)", least=-10, most=10)
    unkpen: float = _limit(0.0, "with --beam: nats off a translation for each <unk> (default: 0)")
    no_repeat_ngram_size: int = _limit(0, "no N tokens in a row occur twice (default: 0, off, or "
        "the model's own)", least=0)
    repetition_penalty: float = _limit(1.0, "above 1: tokens that a translation has become less "
        "likely in it (default: 1, off, or the model's own)", least=LEAST)

    tokenizer: str | None = _text(None,
        f"raw text in and out, with --bpe and --bpe-codes: {', '.join(TOKENIZERS)}, or none",
        "NAME", choices=TOKENIZERS, read=or_none)
    bpe: str | None = _text(None, f"how words become tokens: {', '.join(BPES)}, or none", "NAME",
        choices=BPES, read=or_none)
    bpe_codes: str | None = _text(None, "codes from subword-nmt learn-bpe", "FILE")
    split: bool = _text(False, "split lines of raw text into sentences, unless their translations "
        "must begin with a prefix; white space is kept", negative=True)
    protect: bool = _text(False, "keep placeholders, tags, addresses, code and characters that the "
        "model lacks, in raw text", negative=True)
    protect_numbers: bool = _text(False, "keep numbers that have units (5 GB, 20 °C, $3), too")
    lowercase: bool = _text(False, "lower-case raw text, for models trained on lower case")
    dash_splits: bool = _text(False, "split a-b into a @-@ b, for models trained so")
    strip_diacritics: bool = _text(False, "strip Romanian diacritics, for models trained without "
        "them")
    remove_bpe: str | None = _text("@@ ", "how to join subwords if the input is BPE text: the mark "
        "between them, or 'sentencepiece' (default: '@@ '); 'none' leaves them apart. A bundle's "
        "input is BPE text if this is given, else raw text", "SYMBOL",
        flags=("--remove-bpe", "--post-process"), alone="@@ ", read=or_none)
    prefix_size: int = _line(0, "force only the first N tokens of each prefix, which is then read "
        "as a whole reference whose end counts as a token, as in fairseq (default: 0, all)",
        least=0)
    truncate_source: bool = _line(False, "cut lines that are longer than the model's positions "
        "(default: in pieces)")
    on_unreadable: str = _line("copy", "copy lines that the model cannot read, such as those in "
        "another script, to the output and end with status 1, or fail", choices=("copy", "fail"))
    # fmt: on

    # The model's own A and B, where --max-len-a and --max-len-b are not given.
    usual_len: tuple[float, int] = (0.0, 200)
    # The model's own length penalty, and when its search is over: `BeamParams`.
    usual_search: tuple[float, str] = (1.0, "fairseq")

    def __post_init__(self) -> None:
        check(self)
        self._check_models()
        self._check_precision()
        self._check_decoding()
        self._check_belonging()
        self.decode_params(max_len=1)  # refuses numbers that the engine cannot hold

    def _check_models(self) -> None:
        wants = f"--strategy {self.strategy} needs"
        lacks = self.verifier is None and self.strategy != "drafter"
        require(
            not lacks or Path(self.data).is_dir(),
            f"{self.data}: not a folder; give the folder that holds the models, or ORG/NAME of the "
            "hub.",
        )
        require(
            not lacks,
            f"{self.data} holds no {BUNDLE_SETTINGS} and no config.json of transformers, so it is "
            f"not a bundle, and {wants} the verifier's checkpoint; give it with --AR-path.",
        )
        network = self.needs.network if self.drafts else None
        require(
            network is None or self.drafter_checkpoint is not None,
            f"{wants} the drafter's checkpoint; give it with --path.",
        )
        require(
            (self.bpe is None) == (self.bpe_codes is None),
            "--bpe subword_nmt and --bpe-codes FILE belong together; give both or neither.",
        )

    def _check_precision(self) -> None:
        network = self.needs.network if self.drafts else None
        require(
            self.kernels == "native" or "int8" not in (self.dtype, self.drafter_dtype),
            "int8 needs this project's kernels; omit --kernels torch, or use float32.",
        )
        require(
            self.drafter_dtype is None or (network is not None and network.int8),
            f"--drafter-dtype needs a drafter network that can run in int8, and {self.drafter} has "
            "none in use; omit the flag.",
        )
        require(
            self.drafter_dtype in (None, self.dtype) or self.dtype == "float32",
            f"--drafter-dtype {self.drafter_dtype} needs --dtype float32, not {self.dtype}.",
        )
        fits = self.strategy != "drafter" and not self.searches
        require(
            not self.cuda_graphs or (fits and choose_device(self.device).type == "cuda"),
            "--cuda-graphs needs a GPU, and greedy decoding or drafts that are verified; omit it.",
        )

    def _check_decoding(self) -> None:
        """Checks that need no checkpoint; the others are made when checkpoints are loaded."""
        DRAFTERS.configure(self.drafter, self.drafter_options)
        SCHEDULES.configure(self.schedule, self.schedule_options)
        require(
            (self.strategy == "early-exit") == (self.exit_layer is not None),
            "--strategy early-exit and --exit-layer N belong together; give both or neither.",
        )
        require(
            self.strategy != "drafter" or not self.needs.verifier,
            f"The drafter {self.drafter!r} needs a verifier, so it cannot decode alone; "
            "use it with --strategy specdec.",
        )
        require(
            not (self.strategy == "drafter" and (self.min_len or self.greedy_like != "published")),
            "--strategy drafter takes the drafter's tokens as they are; "
            "it cannot follow --min-len or --greedy-like fairseq.",
        )
        require(
            self.rule is None or self.strategy in _JUDGED,
            f"--strategy {self.strategy} verifies nothing, so --rule {self.rule} would have "
            "nothing to judge; omit it, or use --strategy specdec.",
        )
        told = "a beam search takes no --rule; omit it, or --beam."
        require(not self.searches or self.rule in (None, "exact"), told)
        tolerates = self.acceptance.guarantee(2) is not self.acceptance.guarantee(1)
        require(
            tolerates or self.beta == 1 or self.strategy != "specdec",
            f"--rule {self.rule} takes no tolerance; omit --beta {self.beta}, or use top_beta.",
        )

    def _check_belonging(self) -> None:
        """Refuse settings that have no effect without others."""
        told = "{flag} belongs to a beam search; add --strategy AR --beam 5, or omit it."
        self._refuse(_SEARCH_ONLY, not self.searches, told)
        told = "{flag} applies to raw text only; add --tokenizer or --bpe."
        self._refuse(RAW_TEXT, not self.raw_text, told)
        self._refuse(("protect_numbers",), not self.protect, "{flag} needs --protect; add it.")
        takers = [name for name in DRAFTERS.names() if needs_of(name).own_source]
        told = f"{{flag}} is for --drafter {' or '.join(takers)}; omit it with {self.drafter}."
        self._refuse(("drafter_data",), self.drafter not in takers, told)
        self._refuse(("tau",), self.beta == 1, NO_TOLERANCE)
        is_judged = self.strategy in _JUDGED
        in_force = f"--rule {self.rule_name}" if is_judged else f"--strategy {self.strategy}"
        told = "{flag} {value:g} is for rules that sample, and " + in_force + " does not; add "
        told += "--rule speculative_sampling, or omit {flag}."
        self._refuse(_SAMPLING, not (is_judged and self.acceptance.samples), told)

    def _refuse(self, names: Sequence[str], is_refused: bool, told: str) -> None:
        """Raises UserError for the first of these settings that is not at its default.

        told: the message, with placeholders {flag} and {value}.
        """
        for name in names if is_refused else ():
            value = getattr(self, name)
            flag = "--" + name.replace("_", "-")
            require(value == getattr(Settings, name), told.format(flag=flag, value=value))

    @property
    def needs(self) -> Needs:
        return needs_of(self.drafter)

    @property
    def on_cpu(self) -> bool:
        return choose_device(self.device).type == "cpu"

    @property
    def drafts(self) -> bool:
        return self.strategy in ("specdec", "drafter")

    @property
    def searches(self) -> bool:
        return self.strategy == "AR" and (self.beam or 1) > 1

    @property
    def drafting_dtype(self) -> str:
        """The dtype of the drafting network: the one asked for, else int8 or the verifier's.

        The default is int8 beside a float32 verifier where this project's kernels compute, which
        takes half the time, if the rule gives the verifier's text or distribution whatever is
        drafted. Other drafts are computed as precisely as the settings ask, because text would
        depend on it.
        """
        has_kernels = self.on_cpu and self.kernels == "native" and best_set() is not None
        network = self.needs.network
        can_be_quick = has_kernels and network is not None and network.int8
        fixed = self.acceptance.guarantee(self.beta) is not Guarantee.NONE
        quick = can_be_quick and fixed and (self.strategy, self.dtype) == ("specdec", "float32")
        return self.drafter_dtype or ("int8" if quick else self.dtype)

    @property
    def raw_text(self) -> bool:
        """True if lines are raw text; False if they are the model's tokens."""
        return self.tokenizer is not None or self.bpe is not None

    @property
    def rule_name(self) -> str:
        if self.rule is not None:
            return self.rule
        return "exact" if self.beta == 1 or not self.drafts else "top_beta"

    @property
    def acceptance(self) -> AcceptanceRule:
        rule: AcceptanceRule = RULES.get(self.rule_name)()
        return rule

    @property
    def ban_pad(self) -> bool:
        """True if padding may not be emitted, as in fairseq's own search."""
        searches_so = self.searches and self.usual_search[1] == "fairseq"
        return self.greedy_like == "fairseq" or searches_so

    @property
    def minimum(self) -> int:
        """Target tokens before which eos is banned: `min_len` in force."""
        if self.min_len is not None:
            return self.min_len
        return int(self.ban_pad)  # fairseq's own search never begins with eos

    @property
    def is_bounded(self) -> bool:
        """True if a translation that reaches its length limit stays cut, as in fairseq."""
        return self.max_len_a is not None or self.max_len_b is not None

    @property
    def max_lens(self) -> tuple[float, int]:
        """A and B in force: at most A * source tokens + B target tokens."""
        a, b = self.usual_len
        return (
            a if self.max_len_a is None else self.max_len_a,
            b if self.max_len_b is None else self.max_len_b,
        )

    def max_len(self, num_source: int, longest: int) -> int:
        """Maximum target tokens for a source of that many tokens, eos included in both.

        longest: the model's positions.
        """
        a, b = self.max_lens
        limit = int(min(a * num_source + b, longest))
        if not self.is_bounded:
            limit = max(limit, _GROWTH * num_source)
        return max(1, min(limit, longest))

    def decode_params(self, max_len: int, seed: int = 0, block_size: int = 0) -> DecodeParams:
        """The engine's parameters for one sentence. Raises UserError for impossible values."""
        names = ("beta", "tau", *_SAMPLING, *REPEATS)
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.searches:
            own["beam"] = self.search_params(self.beam or 1, self.n_best)
        return DecodeParams(block_size, max_len, self.minimum, seed=seed, **own)

    def search_params(self, size: int, n_best: int) -> BeamParams:
        """A beam search by these settings, for so many texts.

        For several it gives all hypotheses, as some may be the same text. Raises UserError unless
        there are as many.
        """
        usual, finishing = self.usual_search
        penalty = usual if self.lenpen is None else self.lenpen
        asked = BeamParams(size, n_best, penalty, self.unkpen, finishing)
        return asked if n_best == 1 else replace(asked, num_best=size)


def use_cores(threads: int | None = None) -> None:
    """Let torch compute on so many threads; by default on those of its choice, but no more than
    this process has cores, where a container's limit counts, too."""
    from joblib import cpu_count

    torch.set_num_threads(threads or min(torch.get_num_threads(), cpu_count()))


def choose_device(name: str | None) -> torch.device:
    """The device of that name; by default a GPU if there is one.

    Raises UserError if torch cannot compute there.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=name).item()  # meta has no values
    except (RuntimeError, AssertionError) as error:  # the latter from CPU builds
        reason = str(error).splitlines()[0].split(". ")[0]
        raise UserError(
            f"--device {name} cannot be used ({reason}); leave it out, or give cpu."
        ) from error
    return torch.device(name)
