"""Compares decoding on a device with the CPU's output in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.place import BUNDLED, CAPTIONS, Check, Place
from benchmarks.pair import Pair
from specdec_plugins.app.exactness import forced_logits, rounding
from specdec_plugins.app.settings import DTYPES, Settings
from specdec_plugins.app.translator import SpeculativeTranslator, load_translator, number_sentences
from specdec_plugins.decoding.engine import SpeculativeDecoder
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.schedules import SCHEDULES
from specdec_plugins.decoding.types import Guarantee, Request

# Every drafter, with models that are in the repository.
_OF_BLOCKS = {"drafter_checkpoint": "drafter.pt", "bigrams": "bigrams.safetensors"}
_ASSISTANT = {"drafter": "assistant", "drafter_checkpoint": "assistant.pt", "block_size": 4}
_PLAIN: dict[str, Any] = {"drafter_checkpoint": None, "bigrams": None}
DRAFTERS: dict[str, tuple[Path, dict[str, Any]]] = {
    "block": (CAPTIONS, _OF_BLOCKS),
    "block_fast with head": (BUNDLED, {}),
    "assistant": (CAPTIONS, {**_PLAIN, **_ASSISTANT, "drafter_options": {"encoder": "verifier"}}),
    "assistant, own encoder": (CAPTIONS, {**_PLAIN, **_ASSISTANT}),
    "medusa": (CAPTIONS, {**_PLAIN, "drafter": "medusa", "drafter_checkpoint": "medusa.pt"}),
    "early_exit": (
        CAPTIONS,
        {
            **_PLAIN,
            "verifier": "early_exit.pt",
            "drafter": "early_exit",
            "drafter_options": {"exit_layer": 2},
        },
    ),
    "lookup": (BUNDLED, {**_PLAIN, "drafter": "lookup"}),
}
_RULES: dict[str, dict[str, Any]] = {
    "top_beta": {"beta": 3, "tau": 1.0},
    "speculative_sampling": {"top_k": 4, "seed": 3},
}
_PATHS = ("verifier", "drafter_checkpoint", "bigrams")


def settings_of(folder: Path, given: dict[str, Any]) -> Settings:
    """A pair's settings, overridden by `given`; without the tokenisers, words are tokens."""
    paths = {name: str(folder / given[name]) for name in _PATHS if given.get(name)}
    given = {**given, **paths, "max_len_a": 2.0, "max_len_b": 8}
    if not (find_spec("sacremoses") and find_spec("subword_nmt")):
        given |= {"tokenizer": None, "bpe": None, "bpe_codes": None}
    return replace(Pair.of(folder, "en", "de").settings, **given)


def decodings() -> dict[str, Settings]:
    """Each drafter with each rule, in exact mode with each schedule; batches; no drafter."""
    made = {}
    for drafter, (folder, own) in DRAFTERS.items():
        for rule in RULES.names():
            own_rule = {"rule": rule, **_RULES.get(rule, {})}
            made[f"{drafter}, {rule}"] = settings_of(folder, {**own, **own_rule})
        for schedule in sorted(set(SCHEDULES.names()) - {"constant"}):
            name = f"{drafter}, exact, {schedule}"
            made[name] = settings_of(folder, {**own, "schedule": schedule})
    for batch in (1, 8):
        made[f"block_fast with head, exact, batch {batch}"] = settings_of(BUNDLED, {"batch": batch})
    for strategy in ("AR", "drafter"):
        made[f"strategy {strategy}"] = settings_of(BUNDLED, {"strategy": strategy})
    return made


class Words:
    """Decoded token ids, on the device and on the CPU in float64."""

    def __init__(self, place: Place, dtype: str) -> None:
        self.place, self.dtype = place, dtype
        size = place.size(10, 3)
        short = sorted(place.lines, key=len)[: 4 * size]
        self.lines = short[:: max(1, len(short) // size)][:size]
        self._known: dict[str, list[list[int]]] = {}

    def found(
        self, settings: Settings, translator: SpeculativeTranslator
    ) -> list[tuple[Request, list[int]]]:
        """Each sentence's request and output."""
        sentences = number_sentences(self.lines)
        requests = [r for r in map(translator.prepare, sentences) if isinstance(r, Request)]
        done = {result.id: result.token_ids for result in translator.decoder.run(requests)}
        return [(request, done[request.id]) for request in requests]

    def expected(self, settings: Settings) -> list[list[int]]:
        """The output on the CPU in float64; the verifier's own if it must be greedy."""
        if settings.drafts and _is_greedy(settings):
            settings = replace(settings, **_PLAIN, strategy="AR", drafter="lookup", rule=None,
                               schedule="constant", drafter_options={})  # fmt: skip
        key = str(replace(settings, batch=1))
        if key not in self._known:
            settings = _in_double(settings)
            pairs = self.found(settings, load_translator(settings))
            self._known[key] = [ids for _, ids in pairs]
        return self._known[key]

    def check(self, settings: Settings) -> str:
        """Raises AssertionError for a difference that rounding does not explain."""
        on_device = replace(settings, device=self.place.device, dtype=self.dtype)
        with self.place.entered():
            found = self.found(settings, load_translator(on_device))
        if settings.strategy == "drafter" and self.dtype != "float32":
            return f"{len(found)} sentences, not compared, as nothing verifies them"
        # Drafts in 16 bits differ, and with them relaxed output and samples.
        is_told = self.dtype == "float32" or _is_greedy(settings)
        expected = self.expected(settings) if is_told else [[] for _ in found]
        differing = [pair for pair, ids in zip(found, expected, strict=True) if pair[1] != ids]
        if not differing:
            return f"{len(found)} sentences, all words the same"
        assert settings.strategy != "drafter", _difference(differing[0], expected)
        gaps = [self._gap(settings, *pair) for pair in differing]
        same = f"{len(found) - len(differing)} of {len(found)} sentences the same, in the others"
        same = same if is_told else f"{len(found)} sentences,"
        return f"{same} no word more than {max(gaps):.1e} nats below what the rule allows"

    def _gap(self, settings: Settings, request: Request, ids: list[int]) -> float:
        """The most nats, in float64, by which a token of an output misses what the rule allows.

        Raises AssertionError if rounding does not explain it.
        """
        plain = replace(settings, **_PLAIN, strategy="AR", drafter="lookup", rule=None, beta=1,
                        tau=0.0, top_k=0, drafter_options={})  # fmt: skip
        decoder = load_translator(_in_double(plain)).decoder
        assert isinstance(decoder, SpeculativeDecoder)
        logits = forced_logits(decoder.verifier, request, ids)  # [T, V]
        tau = math.inf if settings.acceptance.samples else settings.tau
        width = settings.top_k if settings.acceptance.samples else settings.beta
        allowed = logits.topk(width).values[:, -1]
        allowed = torch.maximum(allowed, logits.max(1).values - tau)
        gaps = allowed - logits.gather(1, torch.tensor(ids)[:, None])[:, 0]  # [T]
        for at, gap in enumerate(gaps.tolist()):
            tolerance = rounding(DTYPES[self.dtype], logits[at])
            assert gap < tolerance, (
                f"sentence {request.id}, token {at}: {ids[at]} is {gap:.1e} nats below what the "
                f"rule allows (rounding: up to {tolerance:.1e})"
            )
        return max(0.0, float(gaps.max()))

    def check_streams(self) -> str:
        """Interleaved streams give each sentence the text that it gets alone."""
        settings = settings_of(BUNDLED, {"device": self.place.device, "dtype": self.dtype})
        with self.place.entered():
            translator = load_translator(settings)
            lines = self.lines[:3]
            alone = [translator.translate([line])[0].text for line in lines]
            streams, last = {line: translator.stream(line) for line in lines}, dict[str, str]()
            while streams:
                for line, stream in list(streams.items()):
                    text = next(stream, None)
                    if text is None:
                        del streams[line]
                    else:
                        last[line] = text
        assert [last[line] for line in lines] == alone, f"{last}, alone {alone}"
        return f"{len(lines)} streams, the same texts"


def _in_double(settings: Settings) -> Settings:
    return replace(settings, device="cpu", dtype="float64", drafter_dtype=None)


def _is_greedy(settings: Settings) -> bool:
    return settings.strategy in ("AR", "specdec") and (
        settings.acceptance.guarantee(settings.beta) is Guarantee.GREEDY
    )


def _difference(pair: tuple[Request, list[int]], expected: Sequence[list[int]]) -> str:
    return f"sentence {pair[0].id}: {pair[1]}, expected {expected[int(pair[0].id) - 1]}"


def decoding(dtype: str, place: Place) -> list[Check]:
    words = Words(place, dtype)
    batch = place.size(4, 2)  # fewer than the sentences, so that rows join and leave
    chosen = decodings()
    if place.rehearses and dtype != "float32":  # a CPU takes long for them
        chosen = {name: s for name, s in chosen.items() if s.schedule == "constant"}
    told = "the CPU's output in float64"
    if dtype != "float32":
        told = "tokens that the rule allows in float64, up to rounding"
    made = [
        Check(name, told, partial(words.check, s if "batch" in name else replace(s, batch=batch)))
        for name, s in chosen.items()
    ]
    return [*made, Check("streams in turns", "each as when alone", words.check_streams)]
