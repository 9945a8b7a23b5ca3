"""The steps of `drafter.py`: encode text, translate it, train on the translations, and measure.

Training reads ids only, so the dictionaries of its data hold numbers in place of the tokenizer's
symbols. It runs in pieces. Each piece ends in a checkpoint, which is measured. The curve of the
measurements is an append-only log on disk, after whose last entry training resumes.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from specdec_plugins.app import convert
from specdec_plugins.app.codec import Codec, check_language
from specdec_plugins.app.loading import make_settings, read_words
from specdec_plugins.app.report import TIMED, measure, pays
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.corpus import binarising, cli, distill
from specdec_plugins.corpus.checkpoints import LAST, kept_precision, restored
from specdec_plugins.corpus.cli import UNFINISHED, logger
from specdec_plugins.corpus.reading import BadLines, check_file, read_lines
from specdec_plugins.corpus.resume import Log, read_json, sha256
from specdec_plugins.corpus.teacher import DataBin, Teacher
from specdec_plugins.decoding.networks import best_set
from specdec_plugins.decoding.types import Request
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.bundle import read_bundle
from specdec_plugins.formats.checkpoints import load_checkpoint, save_checkpoint
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.models import DIGESTS
from specdec_plugins.formats.output import written_whole
from specdec_plugins.training.commands import flags, running

LEAST_LINES = 200  # different lines of text
_HELD_OUT = 200  # maximum lines to measure with
_ROWS = 64  # sentences translated at once
SIDES = ("source", "target")  # language names in the data, whatever the model's are
HELD_OUT_FILE = "held-out.txt"
BEST, CARD = "best.pt", "card.md"
_MEASURED, _LISTED, _CURVE, _INITIAL = "measured.pt", "shortlist.pt", "curve.jsonl", "initial.pt"
_RISE = 0.01  # accepted tokens; smaller gains do not count
_ALIGNED = 30_000  # sentences that the shortlist is computed from
_MOST_UPDATES = 10**7  # never reached: the hours end first
# The best recipe found: benchmarks/results/sequential-head.md.
_RECIPE = (
    "--arch block_fast --lr 2e-3 --warmup 200 --best-by loss --max-tokens 100000 "
    f"--batch-tokens 100000 --updates {_MOST_UPDATES}"
).split()
_TRAINER = [
    *("--batch-size", "64", "--adam-betas", "(0.9, 0.98)", "--disable-validation"),
    *("--no-epoch-checkpoints", "--num-workers", "0", "--required-batch-size-multiple", "1"),
    *("--log-format", "simple", "--log-interval", "10"),
    *("--source-lang", SIDES[0], "--target-lang", SIDES[1]),
    # A running mean over about the last 500 updates gives a usable drafter at any time, as if the
    # learning rate had decayed. After one hour of four, the mean of two checkpoints a quarter of an
    # hour apart had 2.85 accepted tokens; the checkpoints had 2.68 and 2.78.
    *("--store-ema", "--ema-fp32", "--ema-decay", "0.98", "--ema-update-freq", "10"),
    *("--ema-start-update", "200"),
]
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


def encode(args: argparse.Namespace) -> None:
    """Write a data folder without targets, and the held-out lines as text."""
    lines = read_monolingual(args.text)
    words = read_words(make_settings({"data": str(args.bundle), "strategy": "AR"}))
    longest = read_bundle(args.bundle).verifier.architecture["encoder"]["max_positions"]
    check_language(args.text, lines, words.codec)
    num_kept, num_held_out = 0, min(_HELD_OUT, len(lines) // 5)
    with written_whole(args.output) as part:
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
                    write(torch.tensor(ids, dtype=torch.int64), "")
                    num_kept += 1
    logger.info("%s: %d of %d lines, to train on", args.output, num_kept, len(lines))


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
    ) -> Iterator[list[tuple[int, str | None]]]:
        """One sentence at a time; None if its translation does not end."""
        requests = [self._request(index) for index in indices]
        requests.sort(key=lambda request: len(request.source_ids), reverse=True)
        for result in self._translator.decoder.run(requests):
            *ids, last = result.token_ids
            has_ended = last == self._dictionary.eos
            # Including `<s>`, which begins BART's texts and is in a drafter's prefix.
            symbols = " ".join(self._dictionary.symbols[i] for i in ids)
            yield [(int(result.id), symbols if has_ended else None)]

    def _request(self, index: int) -> Request:
        translator, source_ids = self._translator, self._sources[index].tolist()
        limit = translator.settings.max_len(len(source_ids), translator.limits.target)
        params = translator.settings.decode_params(min(limit, 2 * len(source_ids) + 20))
        return Request(str(index), source_ids, params, list(translator.codec.first_ids))


def translate(args: argparse.Namespace) -> None:
    """Translate the data. Raises SystemExit with UNFINISHED if some is left to do."""
    distill.main(args, EngineTeacher)
    if not args.output.exists():
        raise SystemExit(UNFINISHED)


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16 products, which train 1.4 times as fast."""
    tell: Any = getattr(torch.cpu, "get_capabilities", dict)  # missing in older torch
    has = tell()
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))


class Training:
    """A training in its folder, and its progress."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.folder = args, args.output
        record = read_json(args.data / "distilled.json")
        counts = record["counts"]
        self.num_sentences = int(counts["sentences"] - counts["left_out"])
        require(
            self.num_sentences > 0,
            f"{args.model}: none of {counts['sentences']} translations ended in an end-of-sentence "
            "token; check the model's output for this text, or give other text.",
        )
        # Translating used part of the hours: at most half, as several shards share the work.
        self.seconds = counts["seconds"]
        self.hours = args.hours - min(self.seconds / 3600, args.hours / 2)
        # A shorter piece would spend most of its time on starting, saving and measuring.
        self.every = (args.every or min(30.0, max(2.0, 6 * args.hours))) / 60
        held_out = args.bundle.parent / "data" / HELD_OUT_FILE
        self.lines = held_out.read_text(encoding="utf-8").splitlines()
        about = {"data": sha256(args.data / "distilled.json"), "block_size": args.block_size}
        self.curve = Log(self.folder / _CURVE, about)

    @property
    def is_over(self) -> bool:
        points = self.curve.entries
        if not points:
            return False
        best = max(point["accepted"] for point in points)
        first = next(n for n, point in enumerate(points) if point["accepted"] > best - _RISE)
        return self._at >= self.hours or len(points) - 1 - first >= self.args.patience

    @property
    def _at(self) -> float:
        """Hours of training when the last checkpoint was measured."""
        return float(self.curve.entries[-1]["hours"]) if self.curve.entries else 0.0

    def piece(self) -> None:
        """Train up to the next checkpoint that is measured.

        Raises SystemExit if training fails, and with UNFINISHED if this call's time is up.
        """
        began, begun = time.monotonic(), self._done
        end = min(self.hours, self._at + self.every)
        left = (self.args.until - time.time()) / 3600 if self.args.until else self.hours
        stop = min(end, begun + left)
        if stop > begun:
            self._train(stop, began, begun)
        if stop < end:
            raise SystemExit(UNFINISHED)

    @property
    def _done(self) -> float:
        """Hours of training when the last checkpoint was written, measured or not."""
        path = self.folder / LAST
        if not path.is_file():
            return 0.0
        return float(load_checkpoint(path)["extra_state"]["previous_training_time"]) / 3600

    def _train(self, stop: float, began: float, begun: float) -> None:
        reading = {"stdout": subprocess.PIPE, "text": True, "errors": "replace"}
        with running(self.command(stop), **reading) as process:
            assert process.stdout is not None
            for line in process.stdout:
                sys.stdout.write(line)
                hours = begun + (time.monotonic() - began) / 3600
                self._say(line, max(0.0, self.hours - hours))
        if process.returncode:
            raise SystemExit(process.returncode)

    def command(self, end: float) -> list[str]:
        """The command that trains until `end` hours of training are done."""
        args = self.args
        words = read_words(make_settings({"data": str(args.bundle), "strategy": "AR"}))
        command: list[Any] = [sys.executable, "-m", "specdec_plugins.training.run", "drafter"]
        command += _RECIPE
        command += flags(
            data=args.data, verifier=args.bundle / "verifier.safetensors", save_dir=self.folder,
            block_size=args.block_size, dropout=args.dropout, from_=vars(args)["from"],
            hours=self.hours, cpu=args.cpu, precision=self._precision(),
        )  # fmt: skip
        command += ["--", *_TRAINER, "--stop-time-hours", end]
        # The head reads the same start token in decoding.
        command += ["--start-token", words.dictionaries.target.start]
        return list(map(str, command))

    def _precision(self) -> str | None:
        """The precision given, that of a resumed training, or bf16 if the CPU has bf16 products.

        Raises UserError if a resumed training has another precision than the one given.
        """
        kept = kept_precision(self.folder, self.args.precision)
        on_cpu = self.args.cpu or not torch.cuda.is_available()
        return kept or ("bf16" if on_cpu and multiplies_bfloat16() else None)

    def _say(self, line: str, hours_left: float) -> None:
        """Print the progress after a line of the trainer that reports it."""
        found = re.search(r"train_inner.*?\bloss=([\d.]+).*?num_updates=(\d+)", line)
        if found:
            last = self.curve.entries[-1:] or [{"accepted": "-"}]
            sys.stdout.write(
                f"update {found[2]}, loss {found[1]}, accepted {last[0]['accepted']}, "
                f"{60 * hours_left:.0f} minutes left at most\n"
            )
            sys.stdout.flush()

    def measure(self) -> None:
        """Put the last checkpoint on the curve, and keep it if it is the best."""
        last = load_checkpoint(self.folder / LAST)
        path = self.folder / _MEASURED
        save_checkpoint(self._whole(last), path)
        device = "cpu" if self.args.cpu else None
        found = measure(self.args.bundle, path, self.lines, device)
        points = self.curve.entries
        if all(found["accepted"] > point["accepted"] for point in points):
            path.replace(self.folder / BEST)
        progress = last["extra_state"]["previous_training_time"] / 3600
        updates = last["optimizer_history"][-1]["num_updates"]
        self.curve.add({"hours": progress, "updates": updates, **found})  # unrounded, as `_done`
        logger.info("%s", points[-1])

    def _whole(self, last: dict[str, Any]) -> dict[str, Any]:
        """The mean weights and the shortlist, with the verifier's parts as the verifier has them.

        Training in half precision rounds frozen weights, too.
        """
        initial = load_checkpoint(self.folder / _INITIAL)["model"]
        weights = last["extra_state"].get("ema_fp32_params", last["model"])
        state = {n: t.float() if t.is_floating_point() else t for n, t in weights.items()}
        tables = [initial[f"{side}.embed_tokens.weight"] for side in ("encoder", "decoder")]
        frozen = {name for name in initial if name.startswith("encoder.")}
        if tables[0].shape == tables[1].shape and bool((tables[0] == tables[1]).all()):
            frozen |= {"decoder.embed_tokens.weight", "decoder.output_projection.weight"}
        state |= {name: initial[name] for name in frozen & state.keys()}
        if "decoder.head.state.bias" in state:
            state |= self._shortlist()
        # Without the digests of dictionaries: the data's have numbers in place of symbols.
        return {"args": None, "cfg": {**last["cfg"], DIGESTS: None}, "model": state}

    def _shortlist(self) -> dict[str, Any]:
        """The shortlist's tensors; computed once, from data and dictionaries alone."""
        path = self.folder / _LISTED
        if not path.is_file():
            words = (self.args.data, "--path", self.folder / _INITIAL, "--output", path)
            binarising.SHORTLIST(*words, "--sentences", _ALIGNED)
        state = load_checkpoint(path)["model"]
        return {name: t for name, t in state.items() if name.startswith("decoder.shortlist.")}

    def card(self) -> str:
        """The model card: Markdown with the curve."""
        names = ("hours", "updates", "accepted", "speedup")
        timed = len(self.lines[:TIMED])
        rows = [
            [*(f"{point[name]:.4g}" for name in names), f"{point['same'] * timed:.0f} of {timed}"]
            for point in self.curve.entries
        ]
        args = self.args
        return _CARD.format(
            model=args.model, text=args.text, command=args.told, sentences=self.num_sentences,
            minutes=self.seconds / 60, lines=len(self.lines), timed=timed,
            default="" if pays(best(self.folder)) else "; it decodes without it by default",
            rows="\n".join(f"| {' | '.join(row)} |" for row in rows),
            device="a CPU" if args.cpu else "whatever torch found first, a GPU or a CPU",
        )  # fmt: skip


def best(training: Path) -> dict[str, float]:
    """The measurement of the drafter that is kept: the first with the most accepted tokens."""
    _, *points = (training / _CURVE).read_text(encoding="utf-8").splitlines()
    return max(map(json.loads, points), key=lambda point: float(point["accepted"]))


def bundle(args: argparse.Namespace) -> None:
    """Bundle the model and its best drafter, which decodes only on request if it does not pay."""
    words = ["bundle", "--force", args.bundle, "--path", args.training / BEST]
    words += ["--card", args.training / CARD, "--output", args.output]
    words += [] if pays(best(args.training)) else ["--strategy", "AR"]
    raise SystemExit(convert.main(list(map(str, words))))


def train(args: argparse.Namespace) -> None:
    args.output.mkdir(parents=True, exist_ok=True)
    restored(args.output)
    training = Training(args)
    while not training.is_over:
        training.piece()
        training.measure()
    (args.output / CARD).write_text(training.card(), encoding="utf-8")


_NUMBER = cli.at_least(1)
_GREEDY = {"beam": 1, "lenpen": 1.0, "max_len_a": 2.0, "max_len_b": 20, "fp16": False}


def _translate_greedily(args: argparse.Namespace) -> None:
    vars(args).update(_GREEDY, subset="train", merge=False, max_tokens=4096)
    translate(args)


HOW: tuple[cli.Flag, ...] = (  # flags for training
    ("--from", None, Path, "a bundle whose drafter is trained further"),
    ("--every", None, cli.at_least(0.01, float), "minutes between checkpoints, each of which is "
     "measured (default: a tenth of the hours, between 2 and 30)"),
    ("--patience", 4, _NUMBER, "stop after so many measurements without improvement"),
    ("--block-size", 8, _NUMBER, "tokens drafted at once"),
    ("--dropout", 0.1, cli.at_least(0, float, 1), "of the training; 0 learns faster if the "
     "text is too large to be read more than a few times"),
    ("--precision", None, ("fp32", "fp16", "bf16"), "precision of the training, kept on resuming "
     "(default: fp16 on GPUs, bf16 on CPUs with bf16 products, else fp32)"),
)  # fmt: skip
COMMANDS: dict[str, cli.CommandLine] = {
    "encode": cli.CommandLine(
        "drafting encode",
        "Encode text for a model, as a fairseq data folder without targets.",
        encode,
        [
            ("--bundle", cli.REQUIRED, Path, "the model"),
            ("--text", cli.REQUIRED, Path, "a sentence a line"),
            ("--output", cli.REQUIRED, Path, "folder to write"),
        ],
    ),
    "translate": cli.CommandLine(
        "drafting translate",
        "Add the model's greedy translations to such data. The same command resumes.",
        _translate_greedily,
        [
            ("data", None, Path, "output of drafting encode"),
            ("--path", cli.REQUIRED, Path, "weights in a bundle"),
            ("--output", cli.REQUIRED, Path, "folder to write"),
            ("--chunk-size", 256, _NUMBER, "sentences lost if it is stopped"),
            ("--hours", 0.0, cli.at_least(0, float), "translate for so long; 0 = all"),
            ("--cpu", False, bool, "do not use a GPU"),
            *distill.SHARED_OUT,
            distill.UNTIL,
        ],
    ),
    "bundle": cli.CommandLine(
        "drafting bundle",
        "Bundle a model and its trained drafter.",
        bundle,
        [
            ("--bundle", cli.REQUIRED, Path, "the verifier's bundle"),
            ("--training", cli.REQUIRED, Path, "output of drafting train"),
            ("--output", cli.REQUIRED, Path, "bundle to write"),
        ],
    ),
    "train": cli.CommandLine(
        "drafting train",
        "Train a drafter on the translations, measuring at intervals, until it stops improving.",
        train,
        [
            ("--bundle", cli.REQUIRED, Path, "the verifier's bundle"),
            ("--data", cli.REQUIRED, Path, "output of drafting translate"),
            ("--output", cli.REQUIRED, Path, "folder of the checkpoints"),
            ("--model", cli.REQUIRED, str, "name of the original model, for the card"),
            ("--text", cli.REQUIRED, str, "name of the text, for the card"),
            ("--told", cli.REQUIRED, str, "the whole command, for the card"),
            ("--hours", cli.REQUIRED, cli.at_least(0, float), "translating included, in all calls"),
            *HOW,
            ("--cpu", False, bool, "do not use a GPU"),
            distill.UNTIL,
        ],
    ),
}

if __name__ == "__main__":
    sys.exit(cli.run_named(COMMANDS))
