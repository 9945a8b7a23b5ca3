"""From parallel text to a bundled pair and a report on it: the commands, in order.

A user could type the same commands; ``--list`` prints them. Each can be stopped, and resumes. Each
runs in a process of its own, so that its memory is free when the next one starts. The command line
is ``specdec train recipe``.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from itertools import count
from pathlib import Path

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import BY_TIMEOUT, option
from specdec_plugins.corpus.decontaminate import name_of
from specdec_plugins.corpus.reading import ParallelFile, split_item
from specdec_plugins.corpus.resume import read_json, write_json
from specdec_plugins.corpus.steps import Command, Runner, StepOptions, flags, updates
from specdec_plugins.errors import UserError, require, telling
from specdec_plugins.formats.bundle import is_bundle

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLES = "data/samples/en-de.tsv"


@dataclass(frozen=True)
class Preset:
    """The settings of a recipe that depend on the amount of data and time; by default as published
    for WMT14 English-German.
    """

    merges: int = 32000  # joint BPE merges
    max_words: int = 250  # a side of a tokenised training pair
    max_ratio: float = 1.5  # longer side / shorter side, words of a training pair
    encoder_layers: int = 6
    verifier_layers: int = 6  # of its decoder
    drafter_layers: int = 6  # of its decoder
    width: int = 512
    ffn: int = 2048
    heads: int = 8
    dropout: float = 0.1
    max_tokens: int = 8192  # that a process computes at once
    verifier_lr: float = 7e-4
    verifier_warmup: int = 4000
    verifier_updates: int = 100_000
    verifier_tokens: int = 32_000  # target tokens an update
    beam: int = 5  # of the distillation
    retrain_lr: float = 3e-4  # the verifier on distilled data
    retrain_warmup: int = 1000
    retrain_updates: int = 20_000  # 0: the teacher is the verifier
    drafter_lr: float = 5e-4
    drafter_warmup: int = 10_000
    drafter_updates: int = 300_000
    drafter_tokens: int = 128_000
    block_size: int = 25
    save_updates: int = 1500  # between two checkpoints that may be averaged
    averaged: int = 10  # checkpoints
    retrain_smoothing: float = 0.1  # label smoothing there
    verifier_end_lr: float = 0.0  # both trainings fall to it linearly; 0: inverse square root
    drafter_hours: float = 0.0  # of specdec drafter in place of updates; 0: as published
    mix: Sequence[str] = ()  # more flags of specdec prepare mix
    split_off: Sequence[str] = ()  # its --split-off: NAME=TEST,DEV
    masked: float = 0.0  # share of pairs that get symbols of specdec prepare masks; 0: no masks
    vocabulary: Sequence[str] = ()  # more flags of specdec prepare
    distillation: Sequence[str] = ()  # more flags of specdec distill
    bundle: Sequence[str] = ()  # more flags of specdec convert bundle

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)
        for name in ("verifier_lr", "retrain_lr") if self.retrain_updates else ("verifier_lr",):
            rises = f"verifier_end_lr, {self.verifier_end_lr:g}, is above {name}, "
            told = f"{rises}{getattr(self, name):g}, from which the rate falls; lower it."
            require(self.verifier_end_lr <= getattr(self, name), told)
        # One more, since fairseq writes none at an update that also ends an epoch.
        needed = (self.averaged + 1) * self.save_updates
        for name in ("verifier_updates", "retrain_updates", "drafter_updates"):
            number = getattr(self, name)
            require(
                number >= needed or (name == "retrain_updates" and number == 0),
                f"{name} is {number}, too few to save {self.averaged} checkpoints, one every "
                f"{self.save_updates} updates; expected {needed} or more, or a smaller "
                "save_updates or averaged.",
            )


def check_heads(width: int, heads: int) -> None:
    """Raises UserError unless each head gets the same part of the width."""
    nearest = ", ".join(str(n) for n in range(1, width + 1) if width % n == 0)
    require(
        width % heads == 0,
        f"{heads} attention heads cannot share a width of {width}: width must be a multiple of "
        f"heads; give another width, or one of {nearest} heads.",
    )


_TABLES = tomllib.loads(Path(__file__).with_name("presets.toml").read_text(encoding="utf-8"))
PRESETS = {name: Preset(**values) for name, values in _TABLES.items()}
MAY_BE_ZERO = (
    "dropout", "retrain_updates", "retrain_smoothing", "verifier_end_lr", "drafter_hours",
    "masked",
)  # fmt: skip
BELOW_ONE = (
    "dropout", "retrain_smoothing", "masked", "verifier_lr", "verifier_end_lr", "retrain_lr",
    "drafter_lr",
)  # fmt: skip
_NOT_BY_HOURS = tuple(f"drafter_{name}" for name in ("layers", "lr", "warmup", "updates", "tokens"))


def make_preset(name: str, changes: Sequence[str]) -> Preset:
    """A preset with some of its values changed, each as ``name=value``.

    Raises UserError for a value that does not exist, is no number, or that nothing would read.
    """
    preset = PRESETS[name]
    kinds = {field.name: type(getattr(preset, field.name)) for field in fields(Preset)}
    kinds = {name: kind for name, kind in kinds.items() if kind in (int, float)}
    values = {}
    for change in changes:
        key, _, text = change.partition("=")
        if key not in kinds:
            raise UserError(
                f"--set {change}: there is no {key!r}; choose one of: {', '.join(kinds)}."
            )
        try:
            values[key] = kinds[key](text)
        except ValueError as error:
            raise UserError(f"--set {change}: expected a number after '='.") from error
        most = 1 if key in BELOW_ONE else math.inf
        if not 0 <= values[key] < most or (values[key] == 0 and key not in MAY_BE_ZERO):
            told = "more than 0" + " and less than 1" * (most == 1)
            raise UserError(f"--set {change}: must be {told}.")
    changed = replace(preset, **values)
    unread = [name for name in values if name in _NOT_BY_HOURS]
    if changed.drafter_hours and unread:
        raise UserError(
            f"--set {unread[0]}: it has no effect if the drafter is trained for "
            f"{changed.drafter_hours:g} hours; add drafter_hours=0, or leave it out."
        )
    return changed


def spelt(path: str | Path) -> str:
    """The one spelling of a path: without links, relative to the repository in the repository."""
    real = Path(path).resolve()
    return str(real.relative_to(ROOT) if real.is_relative_to(ROOT) else real)


def _item(item: str) -> str:
    """A corpus, and the part of it that is wanted, with paths in that spelling."""
    files, part = split_item(item)
    return ",".join(map(spelt, files)) + part


SPECDEC = ("scripts/python.sh", "-m", "specdec_plugins.cli")  # the command, installed or not


def specdec(name: str, *words: str, **values: object) -> list[str]:
    return [*SPECDEC, *name.split(), *words, *flags(**values)]


class Recipe:
    """What a pair is made from, and where: the flags of ``specdec train recipe``."""

    def __init__(self, args: RecipeOptions) -> None:
        """Raises UserError if flags conflict."""
        self.source, dash, self.target = args.pair.partition("-")
        require(
            bool(self.source and dash and self.target),
            f"--pair {args.pair}: expected two languages, such as en-de.",
        )
        require(
            bool(args.prepared) != bool(args.train),
            "give either --train and --valid, or --prepared.",
        )
        require(bool(args.valid or not args.train), "--train needs a dev set; give --valid.")
        require(
            not args.start or is_bundle(args.start),
            f"--from {args.start}: not a bundle; give a folder with bundle.json.",
        )
        self.args, self.out = args, spelt(args.out)
        self.start = spelt(args.start) if args.start else ""
        self.preset = make_preset(args.preset, args.set)
        self.train, self.valid, self.tests, self.also = (
            [_item(item) for word in words for item in _split(word)]
            for words in (args.train, args.valid, args.test, args.also)
        )
        self.text = spelt(args.prepared) if args.prepared else self.path("prepared")
        if self.start:
            # Imported late: it imports fairseq, which takes seconds.
            from specdec_plugins.training.growing import times_wider

            times_wider(ROOT / self.start, asdict(self.preset))

    @property
    def verifier(self) -> str:
        """The verifier's checkpoint: the teacher's, if it is not retrained on its own output."""
        return self.path("verifier.pt" if self.preset.retrain_updates else "teacher.pt")

    def path(self, name: str) -> str:
        return f"{self.out}/{name}"

    def commands(self) -> list[Command]:
        p, distilled = self.preset, self.path("distilled")
        data = f"{self.text}/data-bin"
        teacher = self._verifier(data, p.verifier_lr, p.verifier_warmup, self.start)
        found = [] if self.args.prepared else self._data()
        found += self._trained("teacher", "train the teacher", p.verifier_updates, teacher)
        found.append(self._distillation())
        if p.retrain_updates:
            again = self._verifier(
                distilled, p.retrain_lr, p.retrain_warmup, self.path("teacher.pt")
            )
            again += flags(label_smoothing=p.retrain_smoothing)
            title = "train the verifier on it"
            found += self._trained("verifier", title, p.retrain_updates, again)
        found += self._drafter_by_hours() if p.drafter_hours else self._drafter(distilled)
        found += self._reports()
        given = set(self._given())
        return [
            replace(
                command,
                inputs=[path for key, path in given if any(key in word for word in command.words)],
            )
            for command in found
        ]

    def _given(self) -> Iterator[tuple[str, str]]:
        """What the user gives: a path as commands name it, and a file or folder that they read."""
        for item in (*self.train, *self.valid, *self.tests, *self.also):
            files, _ = split_item(item)
            for path in map(Path, files):
                found = path.glob(f"train.*.{self.args.pair}.tsv*") if path.is_dir() else [path]
                yield from ((str(path), str(file)) for file in found)
        if self.start:
            yield self.start, self.start
        if self.args.prepared:
            raw = (f"raw/train.{self.source}", f"raw/test.{self.source}", f"raw/test.{self.target}")
            for name in ("data-bin", "bpe.codes", *raw):
                yield f"{self.text}/{name}", f"{self.text}/{name}"

    def _data(self) -> list[Command]:
        p, args, mix = self.preset, self.args, self.path("mix")
        clean = specdec(
            "prepare mix", pair=args.pair, train=self.train, valid=self.valid,
            also=[*self.also, *([SAMPLES] if args.pair == "en-de" else [])],
            research_data=args.research_data, split_off=p.split_off, out=mix,
        )  # fmt: skip
        train = self.path("masked.tsv") if p.masked else f"{mix}/train.tsv"
        masks = specdec("prepare masks", f"{mix}/train.tsv", share=p.masked, output=train)
        prepare = specdec(
            "prepare", src=self.source, tgt=self.target, train=train,
            valid=[f"{mix}/valid.tsv", *(f"{mix}/{name}.dev.tsv" for name in self._own)],
            codes=self.start and f"{self.start}/bpe.codes", merges=None if self.start else p.merges,
            max_length=p.max_words, max_ratio=p.max_ratio, out=self.path("prepared"),
        )  # fmt: skip
        return [
            Command(
                "mix the training files without held-out sentences",
                [*clean, *p.mix],
                (mix,),
                # Held out as well. A set that is added when the mix is made is only scored, and the
                # report says what the mix has of it: otherwise all would have to be trained anew.
                flags(test=self.tests),
            ),
            *[Command("put symbols in place of spans to copy", masks, (train,))] * (p.masked > 0),
            Command(
                "prepare tokens, subwords, binary data",
                [*prepare, *p.vocabulary],
                (self.path("prepared"),),
            ),
        ]

    @property
    def _own(self) -> list[str]:
        """Corpora of which dev and test sets are taken."""
        return [name.split("=")[0] for name in self.preset.split_off]

    def _verifier(self, data: str, lr: float, warmup: int, start: str) -> list[str]:
        p = self.preset
        return specdec(
            "train verifier", data=data, from_=start, lr=lr, warmup=warmup,
            encoder_layers=p.encoder_layers, decoder_layers=p.verifier_layers, width=p.width,
            ffn=p.ffn, heads=p.heads, batch_tokens=p.verifier_tokens,
            end_lr=p.verifier_end_lr or None,
        )  # fmt: skip

    def _drafter(self, data: str) -> list[Command]:
        """Train a drafter by updates, on the data that the verifier learned from."""
        p = self.preset
        words = specdec(
            "train drafter", data=data, verifier=self.verifier, block_size=p.block_size,
            decoder_layers=p.drafter_layers, lr=p.drafter_lr, warmup=p.drafter_warmup,
            batch_tokens=p.drafter_tokens,
        )  # fmt: skip
        both = self._bundle("bundle", path=self.path("drafter.pt"))
        return [
            *self._trained("drafter", "train the drafter", p.drafter_updates, words),
            Command("bundle both models", both, (self.path("bundle"),)),
        ]

    def _drafter_by_hours(self) -> list[Command]:
        """Train a drafter on the verifier's own greedy output, until it stops improving."""
        alone, both = self.path("verifier-bundle"), self.path("bundle")
        words = specdec(
            "drafter", alone, text=f"{self.text}/raw/train.{self.source}", output=both,
            hours=self.preset.drafter_hours, block_size=self.preset.block_size,
            dropout=self.preset.dropout,
        )  # fmt: skip
        machine = flags(
            precision=self.args.precision, device="cpu" if self.args.cpu else "",
            ray=self.args.ray,
        )  # fmt: skip
        return [
            Command("bundle the verifier", self._bundle("verifier-bundle"), (alone,)),
            Command(
                "train its drafter and bundle both",
                words,
                (both, f"{both}.work"),
                machine,
                lengths=("--hours",),
            ),
        ]

    def _trained(self, name: str, title: str, num: int, words: list[str]) -> list[Command]:
        """Train one of the models for ``num`` updates, and average its last checkpoints."""
        p, folder = self.preset, self.path(name)
        train = words + flags(
            save_dir=folder, updates=num, dropout=p.dropout, max_tokens=p.max_tokens
        )
        machine = flags(workers=self.args.workers, precision=self.args.precision, cpu=self.args.cpu)
        train += ["--", *flags(
            save_interval_updates=p.save_updates, keep_interval_updates=p.averaged,
            no_epoch_checkpoints=True, log_format="simple", log_interval=20,
        )]  # fmt: skip
        average = specdec("train average", folder, last=p.averaged, by="update",
                         output=f"{folder}.pt")  # fmt: skip
        return [
            Command(title, train, (folder,), machine, progress=updates(num)),
            Command(f"average the {name}", average, (f"{folder}.pt",)),
        ]

    def _distillation(self) -> Command:
        output = self.path("distilled")
        # A weak teacher repeats itself endlessly on some sentences.
        words = specdec(
            "distill", f"{self.text}/data-bin", path=self.path("teacher.pt"), output=output,
            beam=self.preset.beam, max_len_a=2, max_len_b=20,
        )  # fmt: skip
        machine = flags(cpu=self.args.cpu, ray=self.args.ray)
        outputs = (output, f"{output}.parts")
        return Command(
            "distil the training set", [*words, *self.preset.distillation], outputs, machine
        )

    def _bundle(self, name: str, **drafter: str) -> list[str]:
        """Bundle the verifier with its BPE codes, and with a drafter if one is given."""
        words = specdec(
            "convert bundle", f"{self.text}/data-bin", **drafter,
            bpe_codes=f"{self.text}/bpe.codes", source_lang=self.source, target_lang=self.target,
            output=self.path(name),
        )  # fmt: skip
        return [*words, "--AR-path", self.verifier, *self.preset.bundle]

    def _reports(self) -> list[Command]:
        found = []
        for name, words in self._test_sets():
            output = self.path(f"report-{name}")
            words = specdec("bench reproduce", self.path("bundle"), *words, output=output)
            words += shlex.split(self.args.report_flags)
            outputs = [f"{output}.md", f"{output}.json"]
            found.append(Command(f"report on {name}", words, outputs, flags(cpu=self.args.cpu)))
        return found

    def _test_sets(self) -> Iterator[tuple[str, list[str]]]:
        """The name of each test set, which is that of its file, and the flags that give it."""
        if self.args.prepared:
            raw = f"{self.text}/raw/test"
            yield "test", flags(input=f"{raw}.{self.source}", reference=f"{raw}.{self.target}")
            return
        mix, names = self.path("mix"), list[str]()
        for item in (*self.tests, *(f"{mix}/{name}.test.tsv" for name in self._own)):
            name = name_of(ParallelFile(Path(split_item(item)[0][0])))
            numbered = (f"{name}{number or ''}" for number in count())
            names.append(next(free for free in numbered if free not in names))
            yield names[-1], flags(test=item, seen=f"{mix}/train.tsv")


def _split(word: str) -> list[str]:
    """Split a comma-separated list of TSV files; two plain sides of one corpus stay together."""
    parts = word.split(",")
    return parts if all(".tsv" in part or Path(part).is_dir() for part in parts) else [word]


def write_record(recipe: Recipe, command: Sequence[str], seconds: float) -> None:
    """``recipe.json``: the settings, every call and how long it took."""
    path = Path(recipe.path("recipe.json"))
    before = read_json(path)["calls"] if path.is_file() else []
    record = {
        "pair": recipe.args.pair,
        "preset": asdict(recipe.preset),
        "calls": [*before, {"command": list(command), "seconds": round(seconds, 1)}],
    }
    write_json(path, record)


def main(args: RecipeOptions) -> None:
    recipe = Recipe(args)
    os.chdir(ROOT)  # from which its commands name files
    if args.list:
        sys.stdout.writelines(map(Command.told, recipe.commands()))
        return
    began = time.time()
    environment = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    with telling(f"--out {recipe.out}", "cannot be written", "."):
        Path(recipe.out).mkdir(parents=True, exist_ok=True)
    Runner(Path(recipe.out), environment).run(
        recipe.commands(),
        args.redo,
        lambda: write_record(recipe, sys.argv[1:], time.time() - began),
    )
    sys.stdout.write(f"recipe: done; the bundle is {recipe.path('bundle')}\n")


@dataclass(kw_only=True)
class RecipeOptions(StepOptions):
    """Train a verifier and a block drafter: mix, prepare, train a teacher, distil, train the
    verifier and the drafter on its output, average, bundle, report.

    The command resumes when it is run again.
    """

    # fmt: off
    preset: str = option("small", "preset of sizes and training lengths", choices=tuple(PRESETS))
    set: Sequence[str] = option((), "change values of the preset", "NAME=VALUE")
    pair: str = option("en-de", "languages")
    train: Sequence[str] = option((), "files, or folders with train.* files", "CORPUS")
    valid: Sequence[str] = option((), "dev set; FILE:FROM-TO takes only those lines", "CORPUS")
    test: Sequence[str] = option((), "test sets", "CORPUS")
    also: Sequence[str] = option((), "further held-out files, not test sets here", "CORPUS")
    research_data: bool = option(False, "include Multi30k, which is left out by default")
    prepared: str = option("", "OUT of a preparation script, instead of --train and --valid")
    start: str = option("", "start from the verifier of this bundle, with its subwords and "
        "weights; layers are repeated if it is shallower", flags=("--from",))
    out: Path = option(MISSING, "folder for everything")
    workers: int | None = option(None, "GPUs, or processes on CPUs")
    precision: str = option("", "precision of the trainings (default: fp16 on GPUs, fp32 on CPUs)",
        choices=("fp32", "fp16", "bf16"))
    cpu: bool = option(False, "do not use a GPU")
    ray: str = option("", "distil on the Ray cluster at this address, or on 'local' processes")
    report_flags: str = option("", "flags of specdec bench reproduce: --report-flags='--taus 1'")
    # fmt: on


COMMAND = cli.CommandLine(
    "specdec train recipe",
    main,
    RecipeOptions,
    removed={
        "--drafter-arch": "a preset, or --set, with drafter_hours trains the faster drafter",
        "--minutes": BY_TIMEOUT,
    },
)
