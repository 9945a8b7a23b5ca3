"""From parallel text to a bundled pair and a report on it: the commands, in order.

They are those that a user would type, and ``--list`` prints them; each can be stopped and resumes.
Each is a process of its own, so that its memory is free again when the next one begins. The command
line is that of ``scripts/recipe.sh``.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import UNFINISHED
from specdec_plugins.corpus.resume import read_json, write_json
from specdec_plugins.errors import UserError
from specdec_plugins.training.commands import Command, Paused, Runner, updates
from specdec_plugins.training.presets import PRESETS, Preset, make_preset

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLES = "data/samples/en-de.tsv"
TRAININGS = ("teacher", "verifier", "drafter")


def flags(**values: object) -> list[str]:
    """``width=3`` becomes ``--width 3``; a true flag stands alone, a list gives all its values, and
    what is empty is left out.
    """
    words = []
    for name, value in values.items():
        if value is None or value is False or value in ("", [], ()):
            continue
        words.append("--" + name.strip("_").replace("_", "-"))
        if isinstance(value, list | tuple):
            words += map(str, value)
        elif value is not True:
            words.append(f"{value:g}" if isinstance(value, float) else str(value))
    return words


def script(name: str, *words: str, **values: object) -> list[str]:
    return [f"scripts/{name}", *words, *flags(**values)]


@dataclass(frozen=True)
class Recipe:
    """What a pair is made from, and where."""

    out: str
    source: str
    target: str
    preset: Preset
    train: Sequence[str] = ()  # corpora of scripts/decontaminate.sh
    valid: Sequence[str] = ()
    tests: Sequence[str] = ()
    also: Sequence[str] = ()  # held out, too
    prepared: str = ""  # a folder of a preparation script, instead of corpora
    research_data: bool = False
    cpu: bool = False
    workers: int | None = None  # GPUs or processes
    drafter_arch: str = "block"  # or block_fast
    precision: str = ""  # of the trainings; empty: fp16 on GPUs, fp32 on CPUs
    ray: str = ""  # address of a Ray cluster to distil on
    report_flags: str = ""  # of scripts/reproduce.sh

    @property
    def pair(self) -> str:
        return f"{self.source}-{self.target}"

    @property
    def text(self) -> str:
        return self.prepared or self.path("prepared")

    @property
    def verifier(self) -> str:
        """The teacher itself where it is not trained again on what it says."""
        return self.path("verifier.pt" if self.preset.retrain_updates else "teacher.pt")

    def path(self, name: str) -> str:
        return f"{self.out}/{name}"

    def commands(self) -> list[Command]:
        """Everything, in order."""
        p, distilled = self.preset, self.path("distilled")
        teacher = self._verifier(f"{self.text}/data-bin", p.verifier_lr, p.verifier_warmup)
        found = [] if self.prepared else self._data()
        found += self._trained("teacher", "train the teacher", p.verifier_updates, teacher)
        found += [self._distillation(), self._bigrams()]
        if p.retrain_updates:
            again = self._verifier(distilled, p.retrain_lr, p.retrain_warmup, "teacher.pt")
            title = "train the verifier on it"
            found += self._trained("verifier", title, p.retrain_updates, again)
        drafter = self._drafter(distilled)
        found += self._trained("drafter", "train the drafter", p.drafter_updates, drafter)
        return [*found, self._bundle(), *self._reports()]

    def _data(self) -> list[Command]:
        p, mix = self.preset, self.path("mix")
        clean = script(
            "decontaminate.sh", pair=self.pair, train=self.train, valid=self.valid,
            test=self.tests, also=[*self.also, *([SAMPLES] if self.pair == "en-de" else [])],
            research_data=self.research_data, split_off=p.split_off, out=mix,
        )  # fmt: skip
        own = [name.split("=")[0] for name in p.split_off]  # sets taken from a training corpus
        tests = [f"{mix}/test{number or ''}.tsv" for number in range(len(self.tests))]
        prepare = script(
            "prepare-tsv.sh", src=self.source, tgt=self.target, train=f"{mix}/train.tsv",
            valid=[f"{mix}/valid.tsv", *(f"{mix}/{name}.dev.tsv" for name in own)],
            test=[*tests, *(f"{mix}/{name}.test.tsv" for name in own)],
            merges=p.merges, max_length=p.max_words, max_ratio=p.max_ratio,
            out=self.path("prepared"),
        )  # fmt: skip
        return [
            Command("mix the training files without held-out sentences", [*clean, *p.mix], (mix,)),
            Command(
                "prepare tokens, subwords, binary data",
                [*prepare, *p.vocabulary],
                (self.path("prepared"),),
            ),
        ]

    def _verifier(self, data: str, lr: float, warmup: int, start: str = "") -> list[str]:
        p = self.preset
        return script(
            "train-verifier.sh", data=data, from_=start and self.path(start), lr=lr, warmup=warmup,
            encoder_layers=p.encoder_layers, decoder_layers=p.verifier_layers, width=p.width,
            ffn=p.ffn, heads=p.heads, batch_tokens=p.verifier_tokens,
        )  # fmt: skip

    def _drafter(self, data: str) -> list[str]:
        p = self.preset
        return script(
            "train.sh", data=data, verifier=self.verifier, arch=self.drafter_arch,
            block_size=p.block_size, decoder_layers=p.drafter_layers, lr=p.drafter_lr,
            warmup=p.drafter_warmup, batch_tokens=p.drafter_tokens, best_by="loss",
        )  # fmt: skip

    def _trained(self, name: str, title: str, num: int, words: list[str]) -> list[Command]:
        """Training one of the models in so many updates, and averaging its last checkpoints."""
        p, folder = self.preset, self.path(name)
        train = words + flags(
            save_dir=folder, updates=num, dropout=p.dropout, max_tokens=p.max_tokens,
            workers=self.workers, precision=self.precision, cpu=self.cpu,
        )  # fmt: skip
        train += ["--", *flags(
            save_interval_updates=p.save_updates, keep_interval_updates=p.averaged,
            no_epoch_checkpoints=True, log_format="simple", log_interval=20,
        )]  # fmt: skip
        average = script("average-checkpoints", folder, last=p.averaged, by="update",
                         output=f"{folder}.pt")  # fmt: skip
        return [
            Command(title, train, (folder,), updates(num)),
            Command(f"average the {name}", average, (f"{folder}.pt",)),
        ]

    def _distillation(self) -> Command:
        output = self.path("distilled")
        # A weak teacher repeats itself without end on some sentences.
        words = script(
            "distill.sh", f"{self.text}/data-bin", path=self.path("teacher.pt"), output=output,
            beam=self.preset.beam, max_len_a=2, max_len_b=20, cpu=self.cpu, ray=self.ray,
        )  # fmt: skip
        return Command("distil the training set", words, (output, f"{output}.parts"))

    def _bigrams(self) -> Command:
        output = self.path("bigrams.safetensors")
        words = script("count-bigrams.sh", self.path("distilled"), output=output)
        return Command("count what follows what in it", words, (output,))

    def _bundle(self) -> Command:
        words = script(
            "convert.sh", "bundle", f"{self.text}/data-bin", path=self.path("drafter.pt"),
            bigrams=self.path("bigrams.safetensors"), bpe_codes=f"{self.text}/bpe.codes",
            source_lang=self.source, target_lang=self.target, output=self.path("bundle"),
        )  # fmt: skip
        words += ["--AR-path", self.verifier]
        return Command("bundle both models", words, (self.path("bundle"),))

    def _reports(self) -> list[Command]:
        found = []
        count = 1 if self.prepared else len(self.tests) + len(self.preset.split_off)
        for name in (f"test{number or ''}" for number in range(count)):
            output = self.path(f"report-{name}")
            raw = f"{self.text}/raw/{name}"
            words = script(
                "reproduce.sh", self.path("bundle"), input=f"{raw}.{self.source}",
                reference=f"{raw}.{self.target}", output=output, training=self.out, cpu=self.cpu,
            )  # fmt: skip
            words += shlex.split(self.report_flags)
            outputs = [f"{output}.md", f"{output}.json"]
            found.append(Command(f"report on {name}", words, outputs))
        return found


def make_parser() -> argparse.ArgumentParser:
    return cli.parser(
        "Train a verifier and a block drafter: mix, prepare, train a teacher, distil, train the "
        "verifier and the drafter on what it says, average, bundle, report. Run again, it goes on "
        "where it stopped. Run it in the root of the repository.",
        ("--preset", "small", tuple(PRESETS), "sizes"),
        ("--set", [], "NAME=VALUE", "change values of the preset"),
        ("--pair", "en-de", str, "languages"),
        ("--train", [], "CORPUS", "files, or folders of train.*"),
        ("--valid", [], "CORPUS", "dev set; FILE:FROM-TO takes some lines"),
        ("--test", [], "CORPUS", "test sets"),
        ("--also", [], "CORPUS", "held out, and no test set here"),
        ("--research-data", False, bool, "take Multi30k too, which is left out"),
        ("--prepared", "", str, "instead: OUT of a preparation script"),
        ("--out", cli.REQUIRED, str, "where everything is kept"),
        ("--minutes", None, float, "train and distil for so long in this call; loading and "
         "validation come on top"),
        ("--workers", None, int, "GPUs, or processes on CPUs"),
        ("--precision", "", ("fp32", "fp16", "bf16"), "of the trainings (default: fp16 on GPUs, "
         "fp32 on CPUs)"),
        ("--drafter-arch", "block", ("block", "block_fast"), "block: as published; block_fast: the "
         "cheaper one of scripts/train.sh"),
        ("--cpu", False, bool, "use no GPU"),
        ("--ray", "", str, "distil on the Ray cluster of this address, or on 'local'"),
        ("--report-flags", "", str, "of scripts/reproduce.sh, in one word"),
        ("--list", False, bool, "print the commands and do nothing"),
        prog="recipe.sh",
        epilog=f"Exit status: 0 done, 2 bad input or settings, {UNFINISHED} time is up and the "
        "same command goes on.",
    )  # fmt: skip


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Raises UserError where flags do not go together."""
    source, dash, target = args.pair.partition("-")
    if not (source and dash and target):
        raise UserError(f"--pair {args.pair}: expected two languages, such as en-de.")
    if bool(args.prepared) == bool(args.train):
        raise UserError("give either --train and --valid, or --prepared.")
    if args.train and not args.valid:
        raise UserError("--train needs a dev set; give --valid.")
    if args.minutes is not None and args.minutes <= 0:
        raise UserError(f"--minutes {args.minutes:g}: must be more than 0.")
    same = ("out", "valid", "also", "prepared", "research_data", "cpu", "workers")
    more = ("precision", "drafter_arch", "ray", "report_flags")
    return Recipe(
        source=source,
        target=target,
        preset=make_preset(args.preset, args.set),
        train=[item for word in args.train for item in _split(word)],
        tests=[item for word in args.test for item in _split(word)],
        **{name: getattr(args, name) for name in (*same, *more)},
    )


def _split(word: str) -> list[str]:
    """A list of TSV files behind commas; two plain sides of one corpus stay together."""
    parts = word.split(",")
    return parts if all(".tsv" in part or Path(part).is_dir() for part in parts) else [word]


def write_record(recipe: Recipe, command: Sequence[str], seconds: float) -> None:
    """``recipe.json``: the settings, every call and how long it took, and the pieces."""
    path = Path(recipe.path("recipe.json"))
    before = read_json(path)["calls"] if path.is_file() else []
    # How each training was cut, as `corpus.checkpoints` records it.
    records = {name: Path(recipe.path(name), "pieces.json") for name in TRAININGS}
    record = {
        "pair": recipe.pair,
        "preset": asdict(recipe.preset),
        "calls": [*before, {"command": list(command), "seconds": round(seconds, 1)}],
        "pieces": {name: read_json(file) for name, file in records.items() if file.is_file()},
    }
    write_json(path, record)


def main(args: argparse.Namespace) -> None:
    if Path.cwd() != ROOT:
        raise UserError(f"run it in {ROOT}, where the scripts are that its commands name.")
    recipe = recipe_of(args)
    if args.list:
        for command in recipe.commands():
            sys.stdout.write(f"{command.title}\n    {command}\n")
        return
    began = time.time()
    # Read by the scripts that train and distil; 0 is no end.
    until = "0" if args.minutes is None else str(int(began + 60 * args.minutes))
    environment = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "UNTIL": until}
    try:
        Path(recipe.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {recipe.out}: cannot be written ({error.strerror}).") from error
    try:
        Runner(Path(recipe.out), environment).run(recipe.commands())
    except Paused as paused:
        sys.stdout.write(f"recipe: time is up in: {paused}; the same command goes on\n")
        raise SystemExit(UNFINISHED) from None
    finally:
        write_record(recipe, sys.argv[1:], time.time() - began)
    sys.stdout.write(f"recipe: done; the bundle is {recipe.path('bundle')}\n")


if __name__ == "__main__":
    sys.exit(cli.run(make_parser(), main))
