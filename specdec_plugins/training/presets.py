"""Sizes and lengths of a training recipe, under names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

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


PRESETS = {
    # As published for WMT14 English-German; both models 6+6 layers, 512 wide.
    "base": Preset(
        merges=32000, max_words=250, max_ratio=1.5,
        encoder_layers=6, verifier_layers=6, drafter_layers=6,
        width=512, ffn=2048, heads=8, dropout=0.1, max_tokens=8192,
        verifier_lr=7e-4, verifier_warmup=4000, verifier_updates=100_000, verifier_tokens=32_000,
        beam=5, retrain_lr=3e-4, retrain_warmup=1000, retrain_updates=20_000,
        drafter_lr=5e-4, drafter_warmup=10_000, drafter_updates=300_000, drafter_tokens=128_000,
        block_size=25, save_updates=1500, averaged=10,
    ),
    # For about a million pairs and a bundle of less than 60 MB.
    "small": Preset(
        merges=12000, max_words=250, max_ratio=2.5,
        encoder_layers=6, verifier_layers=6, drafter_layers=6,
        width=256, ffn=1024, heads=4, dropout=0.1, max_tokens=8192,
        verifier_lr=1e-3, verifier_warmup=4000, verifier_updates=40_000, verifier_tokens=32_000,
        beam=5, retrain_lr=5e-4, retrain_warmup=500, retrain_updates=10_000,
        drafter_lr=1e-3, drafter_warmup=4000, drafter_updates=60_000, drafter_tokens=64_000,
        block_size=25, save_updates=800, averaged=10,
    ),
    # For the sample corpus and minutes of two cores: `make demo-train`.
    "demo": Preset(
        merges=3000, max_words=60, max_ratio=3,
        encoder_layers=2, verifier_layers=4, drafter_layers=2,
        width=128, ffn=512, heads=4, dropout=0.1, max_tokens=2048,
        verifier_lr=4e-3, verifier_warmup=100, verifier_updates=1500, verifier_tokens=2048,
        beam=1, retrain_lr=1e-3, retrain_warmup=100, retrain_updates=0,
        drafter_lr=4e-3, drafter_warmup=100, drafter_updates=600, drafter_tokens=2048,
        block_size=8, save_updates=60, averaged=4,
    ),
    # For short sentences and some hours of two cores.
    "tiny-cpu": Preset(
        merges=8000, max_words=20, max_ratio=2.5,
        encoder_layers=3, verifier_layers=3, drafter_layers=3,
        width=256, ffn=512, heads=4, dropout=0.1, max_tokens=2048,
        verifier_lr=2e-3, verifier_warmup=1000, verifier_updates=8000, verifier_tokens=4096,
        beam=5, retrain_lr=1e-3, retrain_warmup=200, retrain_updates=1500,
        drafter_lr=2e-3, drafter_warmup=500, drafter_updates=8000, drafter_tokens=4096,
        block_size=25, save_updates=200, averaged=5,
    ),
    # For English-German corpora of several kinds and days of two cores; docs/recipes.md has the
    # whole command. The mix bounds lengths, in raw words.
    "en-de": Preset(
        merges=9400, max_words=400, max_ratio=10,
        encoder_layers=6, verifier_layers=6, drafter_layers=2,
        width=256, ffn=1024, heads=4, dropout=0.1, max_tokens=4096,
        verifier_lr=1e-3, verifier_warmup=3000, verifier_updates=40_000, verifier_tokens=8192,
        beam=5, retrain_lr=3e-4, retrain_warmup=200, retrain_updates=2400,
        drafter_lr=1e-3, drafter_warmup=1000, drafter_updates=20_000, drafter_tokens=8192,
        block_size=25, save_updates=300, averaged=6,
        mix=(
            "--clean", "--max-words", "60",
            "--weights", "msdocs=1", "tatoeba=3", "phpdoc=1", "chat=3", "newstest2008-2013=2",
            "--per-source", "tatoeba=2", "chat=2", "--hints", "msdocs=500",
        ),
        split_off=("tatoeba=1000,500",),
        vocabulary=("--cover-latin", "--max-subwords", "100"),
    ),
}  # fmt: skip
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
