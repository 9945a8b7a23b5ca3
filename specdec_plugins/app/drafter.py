"""Train a drafter for an existing model with one command: `scripts/drafter.sh`.

The model is the teacher: it translates text, a drafter that reads its frozen encoder learns from
the translations, and both become a bundle. Intermediate files are in OUTPUT.work; each step resumes
where it was stopped.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from specdec_plugins.app.codec import check_language
from specdec_plugins.app.drafting import HOW, best, read_monolingual
from specdec_plugins.app.loading import (
    NO_MODEL,
    VERIFIER,
    Words,
    make_settings,
    read_words,
    settings_from_files,
)
from specdec_plugins.app.report import pays
from specdec_plugins.corpus import cli
from specdec_plugins.corpus.checkpoints import LAST
from specdec_plugins.corpus.cli import UNFINISHED
from specdec_plugins.corpus.distill import UNTIL
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.bundle import is_bundle, read_bundle
from specdec_plugins.formats.output import check_output
from specdec_plugins.formats.pretrained.config import is_pretrained
from specdec_plugins.training.commands import REDO, Command, Paused, Runner, flags, running

ROOT = Path(__file__).resolve().parents[2]
_CHECKPOINTS = (VERIFIER, "checkpoint_best.pt", LAST)  # file names of a verifier
_TRANSLATING = 0.25  # largest share of the hours
_ENVIRONMENT = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}  # of the commands


class Plan:
    """The steps of one run of ``drafter.sh`` and their files, from its flags."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Raises UserError if the model, the text or the output is unsuitable."""
        # One spelling of each path, so that another one is no other command.
        for name in ("model", "text", "output", "from"):
            path: Path | None = vars(args)[name]
            vars(args)[name] = path and path.resolve()
        self.args = args
        self.work = args.output.with_name(f"{args.output.name}.work")
        self.verifier, self.data = self.work / "verifier", self.work / "data"
        self.distilled, self.training = self.work / "distilled", self.work / "training"
        self._check_output()
        self.model = self._find_model()
        words = read_words(make_settings(self.model))
        self._check_earlier(words)
        check_language(args.text, read_monolingual(args.text), words.codec)

    def _check_output(self) -> None:
        output = self.args.output
        inputs = (self.args.model, self.args.text, vars(self.args)["from"])
        check_output(output, "--output", inputs=inputs, folder=True)
        is_ours = (self.work / ".stamps").is_dir() and is_bundle(output)
        require(
            is_ours or not output.is_dir() or not any(output.iterdir()),
            f"--output {output}: holds something else; give another folder.",
        )

    def _check_earlier(self, words: Words) -> None:
        folder: Path | None = vars(self.args)["from"]
        if folder is None:
            return
        require(
            is_bundle(folder) and bool((part := read_bundle(folder).drafter) and part.network),
            f"--from {folder}: not a bundle with a trained drafter; give one that drafter.sh "
            "wrote, or omit --from.",
        )
        theirs = read_words(make_settings({"data": str(folder), "strategy": "AR"})).dictionaries
        require(
            theirs.target.symbols == words.dictionaries.target.symbols,
            f"--from {folder}: its target vocabulary differs from that of {self.args.model}; omit "
            "--from.",
        )

    def _find_model(self) -> dict[str, Any]:
        """Settings that decode with the model. Raises UserError if the folder holds none."""
        folder, args = self.args.model, self.args
        given = {"source_lang": args.source_lang, "target_lang": args.target_lang}
        given = {name: value for name, value in given.items() if value}
        given |= {"data": str(folder), "strategy": "AR"}
        if is_bundle(folder) or is_pretrained(folder):
            return given
        found = [folder / name for name in _CHECKPOINTS if (folder / name).is_file()]
        require(bool(found) and any(folder.glob("dict.*.txt")), f"{folder}: {NO_MODEL}")
        return settings_from_files(folder, {**given, "verifier": str(found[0])})

    def commands(self) -> list[Command]:
        """All commands, in order."""
        args, start = self.args, vars(self.args)["from"]
        bundle = flags(bundle=self.verifier, training=self.training, output=args.output)
        return [
            *self._translated(),
            Command(
                "train the drafter",
                _module("drafting", "train", *self._training()),
                [str(self.training)],
                self._aside(),
                inputs=[str(start)] if start else [],
                lengths=("--hours", "--every", "--patience"),
            ),
            Command("bundle both", _module("drafting", "bundle", *bundle), [str(args.output)]),
        ]

    def _translated(self) -> list[Command]:
        args = self.args
        encode = flags(bundle=self.verifier, text=args.text, output=self.data)
        weights = self.verifier / "verifier.safetensors"
        translate = [str(self.data), *flags(path=weights, output=self.distilled)]
        return [
            Command(
                "convert the model",
                _bundle(args.model, *self._conversion(), output=self.verifier),
                [str(self.verifier)],
                inputs=[str(args.model)],
            ),
            Command(
                "encode the text",
                _module("drafting", "encode", *encode),
                [str(self.data)],
                inputs=[str(args.text)],
            ),
            Command(
                "translate it",
                _module("drafting", "translate", *translate),
                [str(self.distilled), f"{self.distilled}.parts"],
                self._translating(),
            ),
        ]

    def result(self) -> str:
        """What a finished run has made."""
        made, speedup = f"the bundle is {self.args.output}", best(self.training)["speedup"]
        if pays(best(self.training)):
            return f"{made}, {speedup:g} times as fast with the drafter as without it"
        return (
            f"{made}, but the drafter does not pay: decoding is {speedup:g} times as fast with it "
            "as without it, so the bundle decodes without it unless --strategy specdec is given; "
            "train longer (--hours) or on more text"
        )

    def _conversion(self) -> list[str]:
        """Flags of scripts/convert.sh."""
        named = ("source_lang", "target_lang", "bpe_codes")
        words = flags(**{name: self.model.get(name) for name in named})
        if "verifier" in self.model:
            words += ["--AR-path", self.model["verifier"]]
            words += [] if "bpe_codes" in self.model else ["--tokenizer", "none"]
        return words

    def _training(self) -> list[str]:
        args = self.args
        return flags(
            bundle=self.verifier, data=self.distilled, output=self.training, hours=args.hours,
            every=args.every, patience=args.patience, block_size=args.block_size,
            dropout=args.dropout, model=args.model.resolve().name, text=args.text.name,
            from_=vars(args)["from"],
        )  # fmt: skip

    def _aside(self) -> list[str]:
        """Flags of the training that do not change it."""
        args = self.args
        return flags(
            told=self._told(), cpu=self._on_cpu, precision=args.precision, until=args.until or None
        )

    def _told(self) -> str:
        """The command as the model card shows it: with names of model and text, without paths."""
        args, parser = self.args, COMMAND.parser()
        chosen = ("source_lang", "target_lang", "every", "patience", "block_size", "dropout")
        more = {n: v for n in chosen if (v := getattr(args, n)) != parser.get_default(n)}
        if earlier := vars(args)["from"]:
            more["from"] = earlier.resolve().name
        words = flags(text=args.text.name, output="BUNDLE", hours=args.hours, **more)
        return shlex.join(["scripts/drafter.sh", args.model.resolve().name, *words])

    @property
    def _on_cpu(self) -> bool:
        return bool(self.args.device == "cpu")

    def _translating(self) -> list[str]:
        """Flags for where and how long to translate."""
        args = self.args
        return flags(
            hours=_TRANSLATING * args.hours if args.num_shards == 1 else None,
            num_shards=args.num_shards, shard_id=args.shard_id, ray=args.ray,
            ray_workers=args.ray_workers, cpu=self._on_cpu, until=args.until or None,
        )  # fmt: skip


def _module(name: str, *words: str) -> list[str]:
    """A command of this package."""
    return [str(ROOT / "scripts" / "python.sh"), "-m", f"specdec_plugins.app.{name}", *words]


def _bundle(model: Path, *words: str, **outputs: Path) -> list[str]:
    return _module("convert", "bundle", "--force", str(model), *words, *flags(**outputs))


def main(args: argparse.Namespace) -> None:
    plan = Plan(args)
    commands = plan.commands()
    if args.list:
        for command in commands:
            sys.stdout.write(f"{command.title} ({command.name})\n    {command}\n")
        return
    try:
        plan.work.mkdir(parents=True, exist_ok=True)
        if args.shard_id:
            _help_out(plan, commands[2])
            return
        Runner(plan.work, _ENVIRONMENT).run(commands, args.redo)
    except OSError as error:
        raise UserError(f"{plan.work}: cannot be written ({error.strerror}).") from error
    except Paused as paused:
        sys.stdout.write(f"drafter.sh: unfinished: {paused}; run the same command to resume\n")
        raise SystemExit(UNFINISHED) from None
    sys.stdout.write(f"drafter.sh: done; {plan.result()}\n")


def _help_out(plan: Plan, translation: Command) -> None:
    """Translate one shard; shard 0 runs the steps before and after."""
    require(
        plan.data.is_dir(),
        f"{plan.data}: does not exist yet; first start the command with --shard-id 0, which "
        "encodes the text.",
    )
    with running(translation.line, env={**os.environ, **_ENVIRONMENT}) as process:
        status = process.wait()
    if status not in (0, UNFINISHED):
        raise SystemExit(status)


_NUMBER = cli.at_least(1)
COMMAND = cli.CommandLine(
    "drafter.sh",
    "Train a drafter for an existing model: translate text with the model, train on its output, "
    "measure at intervals, and bundle both. The same command resumes an interrupted run.",
    main,
    [
        ("model", None, Path, "a bundle, a transformers model (MarianMT, M2M-100, NLLB, BART, "
         "mBART), or a folder with fairseq's verifier.pt, dict.<lang>.txt and bpe.codes"),
        ("--text", cli.REQUIRED, Path, "text in the model's source language, a sentence a line; "
         "plain, .gz or .xz"),
        ("--output", cli.REQUIRED, Path, "bundle to write; its parts are kept in OUTPUT.work"),
        ("-s --source-lang", None, str, "source language of a model with several"),
        ("-t --target-lang", None, str, "target language of a model with several"),
        ("--hours", 4.0, cli.at_least(0.001, float), "hours to translate (a quarter at most) and "
         "train, over all calls; starting, saving and measuring come on top"),
        *HOW,
        ("--device", None, ("cpu", "cuda"), "default: a GPU if there is one"),
        ("--num-shards", 1, _NUMBER, "machines that translate, in a shared folder"),
        ("--shard-id", 0, cli.at_least(0), "number of this machine, from 0; 0 runs all else"),
        ("--ray", None, str, "address of a Ray cluster to translate on, or 'local'"),
        ("--ray-workers", 2, _NUMBER, "verifiers on the cluster"),
        UNTIL,
        REDO,
        ("--list", False, bool, "print the steps and their commands without running them"),
    ],
    epilog=f"Exit status: 0 done, 2 bad input or settings, {UNFINISHED} time is up, or other "
    "shards are unfinished; the same command resumes.",
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(COMMAND.run())
