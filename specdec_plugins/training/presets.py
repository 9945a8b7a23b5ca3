"""Sizes and lengths of a training recipe; ``presets.toml`` has them under their names."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from specdec_plugins.errors import UserError


@dataclass(frozen=True)
class Preset:
    """Everything of a recipe that depends on how much data and time there is."""

    merges: int  # joint BPE merges
    max_words: int  # a side of a tokenised training pair
    max_ratio: float  # longer side / shorter side, words of a training pair
    encoder_layers: int
    verifier_layers: int  # of its decoder
    drafter_layers: int  # of its decoder
    width: int
    ffn: int
    heads: int
    dropout: float
    max_tokens: int  # a process computes at once
    verifier_lr: float
    verifier_warmup: int
    verifier_updates: int
    verifier_tokens: int  # target tokens an update
    beam: int  # of the distillation
    retrain_lr: float  # the verifier on distilled data
    retrain_warmup: int
    retrain_updates: int  # 0: the teacher is the verifier
    drafter_lr: float
    drafter_warmup: int
    drafter_updates: int
    drafter_tokens: int
    block_size: int
    save_updates: int  # between two checkpoints that may be averaged
    averaged: int  # checkpoints
    mix: tuple[str, ...] = ()  # more flags of scripts/decontaminate.sh
    split_off: tuple[str, ...] = ()  # of it: NAME=TEST,DEV
    vocabulary: tuple[str, ...] = ()  # more flags of scripts/prepare-tsv.sh

    def __post_init__(self) -> None:
        for name in ("verifier_updates", "retrain_updates", "drafter_updates"):
            # One more, since fairseq writes none where an update ends an epoch as well.
            needed = (self.averaged + 1) * self.save_updates
            if name == "retrain_updates" and self.retrain_updates == 0:
                continue
            if getattr(self, name) < needed:
                raise UserError(
                    f"{name} is {getattr(self, name)}, too few to save {self.averaged} "
                    f"checkpoints, one every {self.save_updates} updates; expected {needed} or "
                    "more, or a smaller save_updates or averaged."
                )


def _preset(values: dict[str, Any]) -> Preset:
    """Of a table, which has lists where the record has tuples."""
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Preset(**{**values, **lists})


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PRESETS = {name: _preset(values) for name, values in _TABLES.items()}
MAY_BE_ZERO = ("dropout", "retrain_updates")


def make_preset(name: str, changes: Sequence[str]) -> Preset:
    """A preset with some of its values changed, each as ``name=value``.

    Raises UserError for a name that does not exist, and for a value that is not a number.
    """
    if name not in PRESETS:
        raise UserError(f"There is no preset {name!r}; choose one of: {', '.join(PRESETS)}.")
    preset = PRESETS[name]
    kinds = {field.name: type(getattr(preset, field.name)) for field in fields(Preset)}
    kinds = {name: kind for name, kind in kinds.items() if kind is not tuple}
    values = {}
    for change in changes:
        key, _, text = change.partition("=")
        if key not in kinds:
            raise UserError(f"--set {change}: there is no {key!r}; one of: {', '.join(kinds)}.")
        try:
            values[key] = kinds[key](text)
        except ValueError as error:
            raise UserError(f"--set {change}: expected a number behind '='.") from error
        if values[key] < 0 or (values[key] == 0 and key not in MAY_BE_ZERO):
            raise UserError(f"--set {change}: must be more than 0.")
    return replace(preset, **values)
