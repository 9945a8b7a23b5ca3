"""Train a drafter for an existing model with one command: `specdec drafter`.

The model is the teacher: it translates text, a drafter that reads its frozen encoder learns from
the translations, and both become a bundle. Intermediate files are in OUTPUT.work; each step resumes
where it was stopped.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import distributed
from tqdm import tqdm

from specdec_plugins.app import convert
from specdec_plugins.app.codec import Codec, check_language
from specdec_plugins.app.defaults import NO_MODEL, make_settings, settings_from_files
from specdec_plugins.app.gain import TIMED, measure, most_rows, pays
from specdec_plugins.app.loading import Words, read_words
from specdec_plugins.app.settings import VERIFIER, Settings
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.corpus import cli, distill
from specdec_plugins.corpus.checkpoints import LAST
from specdec_plugins.corpus.cli import BY_TIMEOUT, declared, like, logger, option
from specdec_plugins.corpus.reading import BadLines, check_file, read_lines
from specdec_plugins.corpus.resume import read_json
from specdec_plugins.corpus.steps import Command, Runner, StepOptions, flags
from specdec_plugins.corpus.teacher import DataBin, Teacher
from specdec_plugins.decoding.networks import best_set
from specdec_plugins.decoding.requests import Request
from specdec_plugins.errors import Stopped, UserError, require, telling
from specdec_plugins.formats.bundle import is_bundle, read_bundle
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.hub import local_model
from specdec_plugins.formats.output import check_output, written_whole
from specdec_plugins.formats.pretrained.config import is_pretrained, model_name
from specdec_plugins.training import drafter as loop

LEAST_LINES = 200  # different lines of text
_HELD_OUT = 200  # maximum lines to measure with
_ROWS = 64  # sentences translated at once
SIDES = ("source", "target")  # language names in the data, whatever the model's are
HELD_OUT_FILE, CARD = "held-out.txt", "card.md"
_CHECKPOINTS = (VERIFIER, "checkpoint_best.pt", LAST)  # file names of a verifier
_TRANSLATING = 0.25  # largest share of the hours
_CARD = """\
# {model}, with a drafter

The unchanged model `{model}`, and a drafter that was trained on {sentences:,} sentences of the
model's greedy output for the text `{text}`. The drafter does not change the model's output.
Translating took {minutes:.1f} minutes. Training:

| hours of training | updates | accepted tokens | times as fast as greedy | same texts |
|---:|---:|---:|---:|---:|
{rows}

Measured on {lines} held-out lines of the text; speed and texts on the first {timed} of them, one at
a time on {device}, which may have had other load. This bundle holds the drafter with the most
accepted tokens{default}. It was made by

    {command}

See the model's own documentation for its training data, licence and limits, and repeat them here
before you pass the bundle on.
"""


def read_monolingual(path: Path) -> list[str]:
    """The different lines of a text, in a reproducible random order.

    Raises UserError if the file is missing or too small.
    """
    check_file(path, "text in the model's source language, a sentence a line", "--text")
    bad = BadLines(skip=True)
    given = [line and line.strip() for line in read_lines(path, bad)]
    lines = sorted({line for line in given if line})
    bad.warn()
    logger.info(
        "%s: %d of %d lines are empty or repeated", path, len(given) - len(lines), len(given)
    )
    require(
        len(lines) >= LEAST_LINES,
        f"{path}: has {len(lines)} different lines of text; give at least {LEAST_LINES}, and tens "
        "of thousands for a useful drafter.",
    )
    random.Random(1).shuffle(lines)
    return lines


def encode(bundle: Path, text: Path, output: Path) -> None:
    """Write a data folder without targets, and the held-out lines as text.

    Its dictionaries hold numbers in place of the tokenizer's symbols, as training reads ids only.
    """
    lines = read_monolingual(text)
    words = read_words(make_settings({"data": str(bundle), "strategy": "AR"}))
    longest = read_bundle(bundle).verifier.architecture["encoder"]["max_positions"]
    check_language(text, lines, words.codec)
    num_kept, num_held_out = 0, min(_HELD_OUT, len(lines) // 5)
    with written_whole(output) as part:
        part.mkdir()
        held_out = "\n".join(lines[:num_held_out]) + "\n"
        (part / HELD_OUT_FILE).write_text(held_out, encoding="utf-8")
        both = words.dictionaries
        for side, dictionary in zip(SIDES, (both.source, both.target), strict=True):
            numbers = (f"{index} 1" for index in range(4, len(dictionary)))
            (part / f"dict.{side}.txt").write_text("\n".join(numbers) + "\n", encoding="utf-8")
        with DataBin(part, "train", *SIDES).writing(part) as write:
            for line in tqdm(lines[num_held_out:], desc="encoding", unit=" lines"):
                ids = _encoded(words.codec, line)
                if words.codec.num_framing < len(ids) <= longest:
                    write(ids, "")
                    num_kept += 1
    logger.info("%s: %d of %d lines, to train on", output, num_kept, len(lines))


def _encoded(codec: Codec, line: str) -> list[int]:
    """Ids of a line; none if the tokenizer cannot read it."""
    try:
        return codec.source_ids(line)
    except UserError:
        return []


class EngineTeacher(Teacher):
    """A bundle's verifier decoding greedily: the output that a drafter learns to predict.

    It runs in 8 bits where there are kernels for it: 1.6 times as fast as float32 with 64 sentences
    at once. Tokens differ only where two of them are nearly equally likely.
    """

    def __init__(self, data: DataBin, checkpoint: Path, search: Any, device: torch.device) -> None:
        folder = checkpoint.parent
        in_8_bits = device.type == "cpu" and best_set() is not None
        self._translator = SpeculativeTranslator.from_pretrained(
            str(folder), strategy="AR", batch=_ROWS, scores=False, device=str(device),
            dtype="int8" if in_8_bits else "float32",
        )  # fmt: skip
        self._sources, self._targets = map(data.sentences, data.languages)
        self._longest = self._translator.limits.source
        self._dictionary = Dictionary.load(data.folder / f"dict.{data.target_lang}.txt")

    def translate(
        self, indices: Sequence[int], max_tokens: int
    ) -> Iterator[tuple[int, str | None]]:
        """One sentence at a time; None if its translation does not end."""
        requests = [self._request(index) for index in indices]
        requests.sort(key=lambda request: len(request.source_ids), reverse=True)
        for result in self._translator.decoder.run(requests):
            *ids, last = result.token_ids
            has_ended = last == self._dictionary.eos
            # Including `<s>`, which begins BART's texts and is in a drafter's prefix.
            symbols = " ".join(self._dictionary.symbols[i] for i in ids)
            yield int(result.id), symbols if has_ended else None

    def _request(self, index: int) -> Request:
        translator, source_ids = self._translator, self._sources[index].tolist()
        limit = translator.settings.max_len(len(source_ids), translator.limits.target)
        params = translator.settings.decode_params(min(limit, 2 * len(source_ids) + 20))
        return Request(str(index), source_ids, params, list(translator.codec.first_ids))


class Plan:
    """The steps of one run of ``specdec drafter`` and their files, from its flags."""

    def __init__(self, args: DrafterOptions) -> None:
        """Raises UserError if the model, the text or the output is unsuitable."""
        for name in ("model", "start"):
            if (given := vars(args)[name]) is not None:
                setattr(args, name, local_model(given))
        # One spelling of each path, so that another one is no other command.
        for name in ("model", "text", "output", "start"):
            path: Path | None = vars(args)[name]
            setattr(args, name, path and path.resolve())
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
        inputs = (self.args.model, self.args.text, self.args.start)
        check_output(output, "--output", inputs=inputs, folder=True)
        is_ours = (self.work / ".stamps").is_dir() and is_bundle(output)
        require(
            is_ours or not output.is_dir() or not any(output.iterdir()),
            f"--output {output}: holds something else; give another folder.",
        )

    def _check_earlier(self, words: Words) -> None:
        folder: Path | None = self.args.start
        if folder is None:
            return
        require(
            is_bundle(folder) and bool((part := read_bundle(folder).drafter) and part.network),
            f"--from {folder}: not a bundle with a trained drafter; give one that specdec drafter "
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
        """All steps, in order. This process does them; their words are what they depend on."""
        args, start = self.args, self.args.start
        encoding = flags(bundle=self.verifier, text=args.text, output=self.data)
        bundling = flags(bundle=self.verifier, training=self.training, output=args.output)
        return [
            Command(
                "convert the model",
                ["bundle", str(args.model), *self._conversion()],
                [str(self.verifier)],
                inputs=[str(args.model)],
                act=self._convert,
            ),
            Command(
                "encode the text",
                ["encode", *encoding],
                [str(self.data)],
                inputs=[str(args.text)],
                act=lambda: encode(self.verifier, args.text, self.data),
            ),
            Command(
                "translate it",
                ["translate", *flags(bundle=self.verifier, data=self.data)],
                [str(self.distilled), f"{self.distilled}.parts"],
                act=self.translate,
            ),
            Command(
                "train the drafter",
                ["train", *self._training()],
                [str(self.training)],
                inputs=[str(start)] if start else [],
                lengths=("--hours", "--every", "--patience"),
                act=self._train,
            ),
            Command("bundle both", ["bundle", *bundling], [str(args.output)], act=self._bundle),
        ]

    def _conversion(self) -> list[str]:
        """Flags of specdec convert."""
        named = ("source_lang", "target_lang", "bpe_codes")
        words = flags(**{name: self.model.get(name) for name in named})
        if "verifier" in self.model:
            words += ["--AR-path", self.model["verifier"]]
            words += [] if "bpe_codes" in self.model else ["--tokenizer", "none"]
        return words

    def _convert(self) -> None:
        _bundle(self.args.model, self.verifier, *self._conversion())

    def translate(self) -> None:
        args = self.args
        distill.main(
            distill.DistillOptions(
                data=self.data, path=self.verifier / "verifier.safetensors", output=self.distilled,
                beam=1, max_len_a=2.0, max_len_b=20, chunk_size=256,
                hours=_TRANSLATING * args.hours, ray=args.ray, ray_workers=args.ray_workers,
                cpu=args.device == "cpu", processes=1,
            ),
            EngineTeacher,
        )  # fmt: skip

    def _training(self) -> list[str]:
        args = self.args
        return flags(
            bundle=self.verifier, data=self.distilled, hours=args.hours, every=args.every,
            patience=args.patience, block_size=args.block_size, dropout=args.dropout,
            from_=args.start,
        )  # fmt: skip

    def _train(self) -> None:
        args, counts = self.args, read_json(self.distilled / "distilled.json")["counts"]
        num_sentences = counts["sentences"] - counts["left_out"]
        require(
            num_sentences > 0,
            f"{args.model}: none of {counts['sentences']} translations ended in an end-of-sentence "
            "token; check the model's output for this text, or give other text.",
        )
        lines = self._held_out()
        words = read_words(make_settings({"data": str(self.verifier), "strategy": "AR"}))
        own = {
            "verifier": self.verifier / "verifier.safetensors",
            "data": self.distilled,
            "folder": self.training,
            "start_token": words.dictionaries.target.start,
            # Translating used part of the hours: at most half, as several workers share the work.
            "hours": args.hours - min(counts["seconds"] / 3600, args.hours / 2),
            "every": interval(args.every, args.hours) / 60,
        }
        plan = cli.build(loop.Plan, {**vars(args), **own})
        # No function of its own: one process for each GPU gets it by pickle.
        loop.train(plan, partial(measure, self.verifier, lines=lines, device=args.device))
        told = self.card(num_sentences, counts["seconds"] / 60, lines)
        (self.training / CARD).write_text(told, encoding="utf-8")

    def card(self, num_sentences: int, minutes: float, lines: Sequence[str]) -> str:
        """The model card: Markdown with the curve. minutes: of translating."""
        names, timed = ("hours", "updates", "accepted", "speedup"), len(lines[:TIMED])
        rows = [
            [*(f"{point[name]:.4g}" for name in names), f"{point['same'] * timed:.0f} of {timed}"]
            for point in _curve(self.training)
        ]
        args = self.args
        return _CARD.format(
            model=model_name(args.model), text=args.text.name, command=self._told(),
            sentences=num_sentences, minutes=minutes, lines=len(lines), timed=timed,
            default="" if pays(best(self.training)) else "; it decodes without it by default",
            rows="\n".join(f"| {' | '.join(row)} |" for row in rows),
            device="a CPU" if args.device == "cpu" else "whatever torch found first, a GPU or a "
            "CPU",
        )  # fmt: skip

    def _told(self) -> str:
        """The command as the model card shows it: with names of model and text, without paths."""
        args = self.args
        chosen = ("source_lang", "target_lang", "every", "patience", "block_size", "dropout")
        more = {
            n: v for n in chosen if (v := getattr(args, n)) != declared(DrafterOptions, n).default
        }
        if earlier := args.start:
            more["from"] = model_name(earlier)
        words = flags(text=args.text.name, output="BUNDLE", hours=args.hours, **more)
        return shlex.join(["specdec", "drafter", model_name(args.model), *words])

    def _bundle(self) -> None:
        """Bundle the model and its best drafter, which decodes on request only if it pays not."""
        files = flags(path=self.training / loop.BEST, card=self.training / CARD)
        if pays(best(self.training)):
            drafter, lines = self.training / loop.BEST, self._held_out()
            more = flags(few_rows=most_rows(self.verifier, drafter, lines, self.args.device))
        else:
            more = flags(strategy="AR")
        _bundle(self.verifier, self.args.output, *files, *more)

    def _held_out(self) -> list[str]:
        return (self.data / HELD_OUT_FILE).read_text(encoding="utf-8").splitlines()

    def result(self) -> str:
        """What a finished run has made."""
        made, speedup = f"the bundle is {self.args.output}", best(self.training)["speedup"]
        if not best(self.training)["updates"]:
            made += ", whose drafter is the one it started from, as training made none better"
        if pays(best(self.training)):
            return f"{made}, {speedup:g} times as fast with the drafter as without it"
        return (
            f"{made}, but the drafter does not pay: decoding is {speedup:g} times as fast with it "
            "as without it, so the bundle decodes without it unless --strategy specdec is given; "
            "train longer (--hours) or on more text"
        )


def interval(minutes: float | None, hours: float) -> float:
    """Minutes between measurements, if not given a tenth; a shorter one would be spent on them."""
    return minutes or min(30.0, max(2.0, 6 * hours))


def _bundle(data: Path, output: Path, *words: str) -> None:
    convert.BUNDLE("--force", data, *words, "--output", output)


def _curve(training: Path) -> list[dict[str, float]]:
    _, *points = (training / loop.CURVE).read_text(encoding="utf-8").splitlines()
    return list(map(json.loads, points))


def best(training: Path) -> dict[str, float]:
    """The measurement of the drafter that is kept: the first with the most accepted tokens."""
    return max(_curve(training), key=lambda point: float(point["accepted"]))


def main(args: DrafterOptions) -> None:
    if loop.is_launched():
        loop.connect(args.device)
        if distributed.get_rank():
            loop.follow()
            return
    try:
        _run(Plan(args))
    except (Stopped, SystemExit):
        loop.dismiss()
        raise
    loop.dismiss()


def _run(plan: Plan) -> None:
    args, commands = plan.args, plan.commands()
    if args.list:
        sys.stdout.writelines(map(Command.told, commands))
        return
    with telling(plan.work, "cannot be written", "."):
        plan.work.mkdir(parents=True, exist_ok=True)
        Runner(plan.work, os.environ).run(commands, args.redo)
    sys.stdout.write(f"specdec drafter: done; {plan.result()}\n")


@dataclass(kw_only=True)
class DrafterOptions(StepOptions):
    """Train a drafter for an existing model: translate text with the model, train on its output,
    measure at intervals, and bundle both.

    The same command resumes an interrupted run.
    """

    REMOVED: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("--num-shards", "--shard-id"), "--ray shares the text out to machines"),
        "--until": BY_TIMEOUT,
    }

    # fmt: off
    model: Path = option(MISSING, "a bundle, a transformers model (MarianMT, M2M-100, NLLB, BART, "
        "mBART, T5), or a folder with fairseq's verifier.pt, dict.<lang>.txt and bpe.codes",
        flags=("--model",), positional=True)
    text: Path = option(MISSING, "text in the model's source language, a sentence a line; plain, "
        ".gz or .xz")
    output: Path = option(MISSING, "bundle to write; its parts are kept in OUTPUT.work")
    source_lang: str | None = like(Settings, "source_lang", group=None)
    target_lang: str | None = like(Settings, "target_lang", group=None)
    hours: float = option(4.0, "hours to translate (a quarter at most) and train, over all calls; "
        "starting, saving and measuring come on top", least=0.001)
    start: Path | None = option(None, "a bundle whose drafter is trained further; it is kept "
        "unless one with more accepted tokens comes of it", flags=("--from",))
    every: float | None = option(None, "minutes between checkpoints, each of which is measured "
        "(default: a tenth of the hours, between 2 and 30)", least=0.01)
    patience: int = option(4, "stop after so many measurements without improvement", least=1)
    block_size: int = option(8, "tokens drafted at once", least=1)
    dropout: float = option(0.1, "of the training; 0 learns faster if the text is too large to be "
        "read more than a few times", least=0, below=1)
    precision: str | None = option(None, "precision of the training (default: fp16 on GPUs, bf16 "
        "on CPUs with bf16 products, else fp32)", choices=("fp32", "fp16", "bf16"))
    device: str | None = option(None, "default: a GPU if there is one", choices=("cpu", "cuda"))
    ray: str | None = like(distill.DistillOptions, "ray")
    ray_workers: int = like(distill.DistillOptions, "ray_workers")
    tensorboard_logdir: Path | None = option(None, "folder for a TensorBoard log of the training")
    # fmt: on


COMMAND = cli.CommandLine("specdec drafter", main, DrafterOptions)
