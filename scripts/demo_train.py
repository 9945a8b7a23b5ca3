"""From nothing to scored speculative translations: the main job on the sample corpus.

Runs the commands that a user would run, and prints them. What is finished is skipped the next
time; where a command changed, it and all after it run again. Everything is kept in runs/demo-train.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.decodings import BEAM, EXACT, FAIRSEQ_GREEDY, GREEDY, RELAXED, Decoding, summary
from specdec_plugins.app.exactness import exactness_of
from specdec_plugins.app.main import parse_options
from specdec_plugins.app.translator import number_sentences
from specdec_plugins.errors import UserError
from specdec_plugins.training.commands import Command, Runner, last_words, updates

ROOT = Path(__file__).resolve().parent.parent
# Relative, so that the commands can be typed as they are printed.
PYTHON = os.path.relpath(sys.executable, ROOT)
OUT = "runs/demo-train"

# Small enough for minutes on two cores. The verifier's decoder is deeper than the drafter's, as
# speculation wants it: a round costs one pass of each.
ENCODER_LAYERS, VERIFIER_LAYERS, DRAFTER_LAYERS = 2, 4, 2
BLOCK_SIZE = 8
VERIFIER_UPDATES, DRAFTER_UPDATES = 600, 1200

VERIFIER = f"{OUT}/verifier/checkpoint_last.pt"
INITIAL, DRAFTER = f"{OUT}/initial.pt", f"{OUT}/drafter/checkpoint_last.pt"
BIGRAMS = f"{OUT}/bigrams.safetensors"
CORPUS, BINARY, CODES = "data/sample", f"{OUT}/prepared/data-bin", f"{OUT}/prepared/bpe.codes"

SPECDEC = f"--strategy specdec --greedy-like fairseq --path {DRAFTER} --bigrams {BIGRAMS}"

SPLIT_OF = {"train": "train", "valid": "dev", "test": "test"}  # by flag

DECODINGS = {
    BEAM: "--strategy fairseq --beam 5",
    FAIRSEQ_GREEDY: "--strategy fairseq --beam 1",
    # fairseq's search bans <pad> and empty translations, so here the others do too.
    GREEDY: "--strategy AR --greedy-like fairseq",
    EXACT: SPECDEC,
    RELAXED: f"{SPECDEC} --beta 3 --tau 1.0",
}


def sizes(side: str, layers: int) -> str:
    return (
        f"--{side}-layers {layers} --{side}-embed-dim 128 --{side}-ffn-embed-dim 512 "
        f"--{side}-attention-heads 4"
    )


# Learning rates fall to nothing: a short training ends before others have fallen.
def train(arguments: str, decoder_layers: int, num_updates: int, folder: str, cpu: str) -> str:
    return (
        f"{PYTHON} train.py {arguments} --dropout 0.1 {sizes('encoder', ENCODER_LAYERS)} "
        f"{sizes('decoder', decoder_layers)} --label-smoothing 0.1 --max-tokens 2048 "
        f"--max-update {num_updates} --optimizer adam --lr 4e-3 --lr-scheduler polynomial_decay "
        f"--warmup-updates 100 --total-num-update {num_updates} --save-dir {folder} "
        f"--no-epoch-checkpoints --num-workers 0 --log-format simple --log-interval 20 {cpu}"
    )


TRAIN_VERIFIER = (
    f"{BINARY} --arch transformer --share-all-embeddings --criterion label_smoothed_cross_entropy "
    "--adam-betas '(0.9, 0.98)' --clip-norm 1"
)
# Its encoder is the verifier's and stays so, which trains in half the time of one that learns, and
# its decoder starts from layers of the verifier's.
TRAIN_DRAFTER = (
    f"{OUT}/distilled --task translation_lev_modified --noise block_mask "
    f"--block-size {BLOCK_SIZE} --arch block_fast --activation-fn relu --share-all-embeddings "
    "--share-decoder-input-output-embed --src-embedding-copy --decoder-learned-pos "
    "--max-source-positions 1024 --max-target-positions 1024 "
    f"--finetune-from-model {INITIAL} --criterion glat_loss --total-up {DRAFTER_UPDATES} "
    "--adam-betas '(0.9, 0.999)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 5"
)
SPLITS = (f"--{flag} {CORPUS}/{split}.en,{CORPUS}/{split}.de" for flag, split in SPLIT_OF.items())
PREPARE = (
    f"scripts/prepare-tsv.sh --src en --tgt de {' '.join(SPLITS)} --merges 3000 "
    f"--out {OUT}/prepared"
)
# Beam 1 takes half the time of the published recipe's beam 5; the drafter learns what the verifier
# says, whichever way it says it.
DISTIL = f"scripts/distill.sh {BINARY} --path {VERIFIER} --output {OUT}/distilled --beam 1"
COUNT_BIGRAMS = f"scripts/count-bigrams.sh {OUT}/distilled --output {BIGRAMS}"
INITIALISE = (
    f"{PYTHON} encoder_initial.py --verifier {VERIFIER} --output {INITIAL} --data {OUT}/distilled "
    f"--arch block_fast --decoder-layers {DRAFTER_LAYERS} --copy-positions "
    "--init-decoder-from-verifier"
)


def output(decoding: str) -> str:
    """The path of its output, without an ending."""
    return f"{OUT}/output/{decoding.lower().replace(' ', '-')}"


def decode(name: str, cpu: str) -> str:
    return (
        f"{PYTHON} inference.py {BINARY} --AR-path {VERIFIER} {DECODINGS[name]} --batch 1 "
        f"--tokenizer moses --bpe subword_nmt --bpe-codes {CODES} --input-path {CORPUS}/test.en "
        f"--output-path {output(name)}.de --json-path {output(name)}.jsonl --progress {cpu}"
    )


def step(
    title: str,
    command: str,
    outputs: Sequence[str],
    progress: Callable[[str], str | None] = last_words,
) -> Command:
    return Command(title, shlex.split(command), outputs, progress)


def steps(cpu: str) -> list[Command]:
    """The job in order; cpu: the flag that keeps a program off a GPU, or nothing."""
    distilled = f"{OUT}/distilled"
    verifier, drafter = f"{OUT}/verifier", f"{OUT}/drafter"
    of_verifier = (TRAIN_VERIFIER, VERIFIER_LAYERS, VERIFIER_UPDATES, verifier, cpu)
    of_drafter = (TRAIN_DRAFTER, DRAFTER_LAYERS, DRAFTER_UPDATES, drafter, cpu)
    first = [
        step(
            "prepare the sample corpus: tokens, subwords, binary data",
            PREPARE,
            (f"{OUT}/prepared",),
        ),
        step("train the verifier", train(*of_verifier), (verifier,), updates(VERIFIER_UPDATES)),
        step(
            "distil: translate the training set",
            f"{DISTIL} {cpu}",
            (distilled, f"{distilled}.parts"),
        ),
        step("count what follows what in it", COUNT_BIGRAMS, (BIGRAMS,)),
        step("initialise the drafter", INITIALISE, (INITIAL,)),
        step("train the drafter", train(*of_drafter), (drafter,), updates(DRAFTER_UPDATES)),
    ]
    decodings = [
        step(f"translate: {name}", decode(name, cpu), (f"{output(name)}.jsonl",))
        for name in DECODINGS
    ]
    return [*first, *decodings]


def report(cpu: str) -> bool:
    """Print the table; whether exact decoding is greedy decoding, but for near-ties."""
    loaded = {name: Decoding.load(name, Path(f"{output(name)}.jsonl")) for name in DECODINGS}
    sources, references = (
        Path(f"{CORPUS}/test.{side}").read_text(encoding="utf-8").splitlines()
        for side in ("en", "de")
    )
    print(f"\n{summary(loaded.values(), references, (3, 1.0))}")
    settings, _ = parse_options(shlex.split(decode(EXACT, cpu))[2:])
    differing = loaded[EXACT].differing(loaded[GREEDY])
    exact, words = exactness_of(settings, number_sentences(sources), differing)
    print(words)
    return exact


def main() -> int:
    os.chdir(ROOT)
    began = time.monotonic()
    cpu = "" if torch.cuda.is_available() else "--cpu"
    runner = Runner(Path(OUT), {"PYTHON": PYTHON, "PYTHONPATH": "."})
    print(
        f"demo-train: the commands below run here as they stand, with PYTHON={PYTHON} PYTHONPATH=."
    )
    try:
        Path(OUT, "output").mkdir(parents=True, exist_ok=True)
        num_run = runner.run(steps(cpu))
        exact = report(cpu)
    except UserError as error:
        print(f"demo-train: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo-train: stopped; make demo-train continues here", file=sys.stderr)
        return 130
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    print(f"\ndemo-train: {num_run} steps run in {minutes} min {seconds} s; everything is in {OUT}")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
