"""Training a drafter in pieces, each of which ends in a checkpoint that is measured.

The curve is a log on disk: whatever is stopped goes on behind its last piece.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from specdec_plugins.app.drafting import HELD_OUT_FILE, SIDES, measure
from specdec_plugins.corpus import binarising, cli
from specdec_plugins.corpus.checkpoints import LAST
from specdec_plugins.corpus.cli import logger
from specdec_plugins.corpus.resume import Log, read_json, sha256
from specdec_plugins.formats.checkpoints import load_checkpoint, save_checkpoint

BEST, CARD = "best.pt", "card.md"
_MEASURED, _LISTED, _CURVE, _INITIAL = "measured.pt", "shortlist.pt", "curve.jsonl", "initial.pt"
_RISE = 0.01  # accepted tokens; less is none
_ALIGNED = 30_000  # sentences that the shortlist is made of
_MOST_UPDATES = 10**7  # the hours end before them
# The recipe that was found best: benchmarks/results/sequential-head.md.
_RECIPE = (
    "--arch block_fast --lr 2e-3 --warmup 200 --dropout 0.1 --best-by loss --max-tokens 100000 "
    f"--batch-tokens 100000 --updates {_MOST_UPDATES}"
).split()
_TRAINER = [
    *("--batch-size", "64", "--adam-betas", "(0.9, 0.98)", "--disable-validation"),
    *("--no-epoch-checkpoints", "--num-workers", "0", "--required-batch-size-multiple", "1"),
    *("--log-format", "simple", "--log-interval", "10"),
    *("--source-lang", SIDES[0], "--target-lang", SIDES[1]),
]
_CARD = """\
# {name}, with a drafter

The model of `{model}`, as it was, and a drafter that was trained on {sentences:,} sentences of its
own greedy output, for the text `{text}`. The drafter changes no word of what the model says.

| hours of training | updates | accepted tokens | times as fast as greedy | same texts |
|---:|---:|---:|---:|---:|
{rows}

Measured on lines of the text that were held out, one at a time on {device}, beside whatever else
that machine did. The best of them is in this bundle. It was made by

    {command}

On what data the model was trained, under which licence, and what it is not good for, is said where
it comes from; say it here, too, before you pass the bundle on.
"""


class Training:
    """The folder of a training, and how far it is."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.folder = args, args.output
        record = read_json(args.data / "distilled.json")
        counts = record["counts"]
        self.num_sentences = int(counts["sentences"] - counts["left_out"])
        # Translating took its part of the hours, where it was not shared.
        self.hours = args.hours - min(counts["seconds"] / 3600, args.hours / 2)
        self.every = (args.every or min(30.0, 6 * args.hours)) / 60
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
        """Train up to the next checkpoint. Raises SystemExit where that fails."""
        begun, end = self._at, min(self.hours, self._at + self.every)
        args = self.args
        command = [sys.executable, "-m", "specdec_plugins.training.run", "drafter", *_RECIPE]
        command += ["--data", args.data, "--verifier", args.bundle / "verifier.safetensors"]
        command += ["--save-dir", self.folder, "--block-size", args.block_size]
        command += ["--hours", self.hours, *(["--cpu"] if args.cpu else [])]
        command += ["--precision", args.precision] if args.precision else []
        command += ["--", *_TRAINER, "--stop-time-hours", end]
        began = time.monotonic()
        with subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                sys.stdout.write(line)
                hours = begun + (time.monotonic() - began) / 3600
                self._say(line, max(0.0, self.hours - hours))
        if process.returncode:
            raise SystemExit(process.returncode)

    def _say(self, line: str, hours_left: float) -> None:
        """How far it is, behind a line of the trainer that says so."""
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
        self.curve.add({"hours": round(progress, 4), "updates": updates, **found})
        logger.info("%s", points[-1])

    def _whole(self, last: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint with the shortlist, and what is the verifier's as that has it.

        Training in half precision rounds what is frozen, too.
        """
        initial = load_checkpoint(self.folder / _INITIAL)["model"]
        state = {n: t.float() if t.is_floating_point() else t for n, t in last["model"].items()}
        tables = [initial[f"{side}.embed_tokens.weight"] for side in ("encoder", "decoder")]
        frozen = {name for name in initial if name.startswith("encoder.")}
        if tables[0].shape == tables[1].shape and bool((tables[0] == tables[1]).all()):
            frozen |= {"decoder.embed_tokens.weight", "decoder.output_projection.weight"}
        state |= {name: initial[name] for name in frozen & state.keys()}
        if "decoder.head.state.bias" in state:
            state |= self._shortlist()
        return {"args": last.get("args"), "cfg": last.get("cfg"), "model": state}

    def _shortlist(self) -> dict[str, Any]:
        """Its tensors, of the data alone; made once."""
        path = self.folder / _LISTED
        if not path.is_file():
            words = (self.args.data, "--path", self.folder / _INITIAL, "--output", path)
            binarising.SHORTLIST(*words, "--sentences", _ALIGNED)
        state = load_checkpoint(path)["model"]
        return {name: t for name, t in state.items() if name.startswith("decoder.shortlist.")}

    def card(self) -> str:
        """Markdown that holds the curve."""
        names = ("hours", "updates", "accepted", "speedup", "same")
        rows = [[f"{point[name]:g}" for name in names] for point in self.curve.entries]
        args = self.args
        return _CARD.format(
            name=args.model.name,
            model=args.model,
            text=args.text.name,
            sentences=self.num_sentences,
            rows="\n".join(f"| {' | '.join(row)} |" for row in rows),
            device="a CPU" if args.cpu else "whatever torch found first, a GPU or a CPU",
            command=f"scripts/drafter.sh {args.model} --text {args.text} --output BUNDLE "
            f"--hours {args.hours:g}",
        )


def main(args: argparse.Namespace) -> None:
    os.makedirs(args.output, exist_ok=True)
    training = Training(args)
    while not training.is_over:
        training.piece()
        training.measure()
    (args.output / CARD).write_text(training.card(), encoding="utf-8")


_NUMBER = cli.at_least(1)
COMMAND = cli.CommandLine(
    "drafter_training",
    "Train a drafter on what a bundle's verifier says, until that brings no more.",
    main,
    [
        ("--bundle", cli.REQUIRED, Path, "the verifier's"),
        ("--data", cli.REQUIRED, Path, "of drafting translate"),
        ("--output", cli.REQUIRED, Path, "folder of the checkpoints"),
        ("--model", cli.REQUIRED, Path, "where the verifier is from, for the card"),
        ("--text", cli.REQUIRED, Path, "likewise"),
        ("--hours", cli.REQUIRED, cli.at_least(0, float), "with translating, all calls together"),
        ("--every", None, cli.at_least(0, float), "minutes between two checkpoints"),
        ("--patience", 4, _NUMBER, "end where so many measurements brought no more"),
        ("--block-size", 8, _NUMBER, "tokens drafted at once"),
        ("--cpu", False, bool, "use no GPU"),
        ("--precision", None, ("fp32", "fp16", "bf16"), "of the training"),
    ],
    environment="cpu precision",
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
