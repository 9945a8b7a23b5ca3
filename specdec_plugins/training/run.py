"""Train a verifier or a drafter with train.py: defaults and processes.

The command lines are ``specdec train verifier`` and ``specdec train drafter``.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from specdec_plugins.corpus import cli
from specdec_plugins.corpus.checkpoints import LAST, check_save_dir, kept_precision, restored
from specdec_plugins.corpus.cli import BY_TIMEOUT, like, logger, option
from specdec_plugins.corpus.reading import check_file
from specdec_plugins.corpus.resume import locked
from specdec_plugins.corpus.steps import running
from specdec_plugins.errors import require
from specdec_plugins.formats.bundle import is_bundle
from specdec_plugins.formats.checkpoints import save_checkpoint
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.training.recipe import check_heads

# glibc returns large blocks to the system after each use, and the system clears every page before
# the next use. Keeping the memory, in huge pages, avoids this cost.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "268435456",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


class Published(NamedTuple):
    """Settings with which the paper trained a drafter."""

    lr: float
    dropout: float
    warmup: int
    updates: int
    batch_tokens: int


PUBLISHED = {
    "en-de": Published(5e-4, 0.1, 10_000, 300_000, 128_000),
    "en-ro": Published(1e-3, 0.2, 4000, 50_000, 64_000),
}


_PRESETS = "; ".join(
    f"{name}: {p.lr:g}, {p.dropout:g}, {p.warmup}, {p.updates}, {p.batch_tokens}"
    for name, p in PUBLISHED.items()
)
# Sentences of a pass, which has a product for each of their heads, 16 at most in use. Past 65,535
# batched products CUDA gave wrong ones in 16 bits (github.com/pytorch/pytorch/issues/25241), and on
# an H200 passes of 32,768 tokens, but not of 12,400, ended in NaN where sentences were short.
_SENTENCES = 65_535 // 16


@dataclass(kw_only=True)
class TrainingOptions:
    """The flags of both commands."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "--python": "set PYTHON in the environment",
        "--until": BY_TIMEOUT,
    }

    # fmt: off
    data: Path = option(MISSING, "folder that fairseq-preprocess wrote")
    save_dir: Path = option(MISSING, "folder of the checkpoints; a stopped run continues there")
    decoder_layers: int | None = option(None, "decoder layers (default: the verifier's)", least=1)
    lr: float = option(None, "peak learning rate", above=0, most=1)
    dropout: float = option(None, "dropout of the model", least=0, below=1)
    warmup: int = option(None, "warm-up updates until the peak", least=1)
    updates: int = option(None, "total number of updates", least=1)
    batch_tokens: int = option(None, "maximum target tokens per update, over all workers", least=1)
    max_tokens: int = option(4096, "maximum tokens that a worker computes at once", least=1)
    workers: int | None = option(None, "GPUs, or processes on CPUs (default: all GPUs, or one "
        "process)", least=1)
    precision: str | None = option(None, "precision of the training, kept on resuming (default: "
        "fp16 on GPUs, fp32 on CPUs)", choices=("fp32", "fp16", "bf16"))
    seed: int = option(1, "seed of initialisation and training", least=0, most=2**32 - 1)
    cpu: bool = option(False, "do not use a GPU")
    flags: Sequence[str] = ()  # of train.py
    # fmt: on


@dataclass(kw_only=True)
class VerifierOptions(TrainingOptions):
    """Train a verifier, fairseq's Transformer, on prepared or distilled data, from scratch or from
    a checkpoint.
    """

    # fmt: off
    start: str | None = option(None, "checkpoint of the same sizes, or a bundle to grow, to start "
        "from (without its optimizer); a bundle's types are matched by name, and a deeper model "
        "repeats layers", flags=("--from",))
    encoder_layers: int = option(6, "layers of the encoder", least=1)
    decoder_layers: int = option(6, "layers of the decoder", least=1)
    width: int = option(512, "width of embeddings and layers", least=1)
    ffn: int = option(2048, "inner width of the feed-forward layers", least=1)
    heads: int = option(8, "attention heads", least=1)
    label_smoothing: float = option(0.1, "share of probability spread over all types", least=0,
        below=1)
    end_lr: float | None = option(None, "learning rate of the last update, which is reached "
        "linearly (default: the rate falls as the inverse square root of the updates)", least=0,
        most=1)
    best_by: str = option("loss", "criterion of the best checkpoint: the loss, or BLEU of the dev "
        "set, searched with a beam of 5", choices=("loss", "bleu"))
    lr: float = like(TrainingOptions, "lr", default=7e-4)
    dropout: float = like(TrainingOptions, "dropout", default=0.1)
    warmup: int = like(TrainingOptions, "warmup", default=4000)
    updates: int = like(TrainingOptions, "updates", default=100_000)
    batch_tokens: int = like(TrainingOptions, "batch_tokens", default=32_000)
    # fmt: on


@dataclass(kw_only=True)
class DrafterOptions(TrainingOptions):
    """Train a drafter for a trained verifier: write an initial checkpoint, then run train.py as
    published. A small run on a CPU: specdec train drafter --data D --verifier V.pt --save-dir S
    --cpu --block-size 8 --updates 3000 --warmup 300 --batch-tokens 4096 --lr 1e-3
    """

    REMOVED: ClassVar[Mapping[str, str]] = {
        **TrainingOptions.REMOVED,
        "--best-by": "the best checkpoint has the most expected_length in the log; omit it",
        **dict.fromkeys(
            ("--arch", "--sequential-head", "--blocks"),
            "this command trains the drafter as published; specdec drafter trains the faster one",
        ),
    }

    # fmt: off
    verifier: str = option(MISSING, "checkpoint whose encoder the drafter starts from")
    preset: str = option("en-de", f"defaults of lr to batch-tokens: {_PRESETS}",
        choices=tuple(PUBLISHED))
    block_size: int = option(25, "tokens drafted at once", least=1)
    # fmt: on


def _check(args: TrainingOptions, checkpoint: str | None, flag: str) -> None:
    """Raises UserError if an input file is missing, before anything is written."""
    require(args.data.is_dir(), f"--data {args.data}: no such folder")
    if checkpoint is not None:
        check_file(checkpoint, "a checkpoint of fairseq", flag)
        check_save_dir(args.save_dir, [checkpoint])


def train_verifier(args: VerifierOptions) -> None:
    check_heads(args.width, args.heads)
    rises = f"--end-lr {args.end_lr} is above --lr {args.lr}, from which the rate falls; lower it"
    require((args.end_lr or 0) <= args.lr, rises)
    start: str | Path | None = args.start
    grows = args.start is not None and is_bundle(args.start)
    _check(args, None if grows else args.start, "--from")
    if args.start and grows and _is_new(args):
        with locked(args.save_dir):
            start = _grow(args, Path(args.start))
    # One table serves targets and output, and sources too if the vocabulary is joint.
    vocabularies = {Dictionary.load(path).digest for path in args.data.glob("dict.*.txt")}
    shared = "decoder-input-output-embed" if len(vocabularies) > 1 else "all-embeddings"
    flags = [
        "--task", "translation", "--arch", "transformer", f"--share-{shared}",
        *_sizes(args, "encoder"), *_sizes(args, "decoder"), *(_positions(args) if start else ()),
        "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", args.label_smoothing,
        "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", 1,
        *(["--finetune-from-model", start] if start and _is_new(args) else []),
    ]  # fmt: skip
    if args.best_by == "bleu":
        flags += ["--eval-bleu", "--eval-bleu-remove-bpe", *_best_by("bleu")]
    _train(args, flags)


def _grow(args: VerifierOptions, bundle: Path) -> Path:
    """Write the checkpoint that a verifier of these sizes starts from."""
    from specdec_plugins.training.growing import grown_verifier  # late, as it imports fairseq

    checkpoint, told = grown_verifier(bundle, args.data, vars(args), args.seed)
    path: Path = args.save_dir / "initial.pt"
    save_checkpoint(checkpoint, path)
    logger.info("starting from %s: %s", told, path)
    return path


def _is_new(args: TrainingOptions) -> bool:
    """Whether there is no checkpoint to go on from."""
    return not (args.save_dir / LAST).is_file() and restored(args.save_dir, False) is None


def _sizes(args: VerifierOptions, side: str) -> list[Any]:
    return [
        f"--{side}-layers", getattr(args, f"{side}_layers"), f"--{side}-embed-dim", args.width,
        f"--{side}-ffn-embed-dim", args.ffn, f"--{side}-attention-heads", args.heads,
    ]  # fmt: skip


def _best_by(metric: str) -> list[str]:
    return ["--best-checkpoint-metric", metric, "--maximize-best-checkpoint-metric"]


def _positions(args: VerifierOptions) -> list[str]:
    """The flags of the positions of what it starts from."""
    from specdec_plugins.training.growing import learns_positions

    learned = learns_positions(Path(str(args.start)), vars(args))
    return ["--encoder-learned-pos", "--decoder-learned-pos"] if learned else []


def train_drafter(args: DrafterOptions) -> None:
    _check(args, args.verifier, "--verifier")
    for name, value in PUBLISHED[args.preset]._asdict().items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    initial = args.save_dir / "initial.pt"
    # Rebuilt each time, since its flags describe the network; it takes seconds. It comes first,
    # since it refuses a verifier that does not fit, and then leaves no folder.
    with locked(args.save_dir):
        network = initial_flags(args, initial)
    resets = [f"--reset-{what}" for what in ("optimizer", "dataloader", "lr-scheduler", "meters")]
    flags = [
        "--task", "translation_lev_modified",
        "--noise", "block_mask", "--block-size", args.block_size, *network,
        "--criterion", "glat_loss", "--label-smoothing", 0.1, "--total-up", args.updates,
        "--optimizer", "adam", "--adam-betas", "(0.9, 0.999)", "--adam-eps", 1e-6,
        "--weight-decay", 0.01, "--clip-norm", 5,
        *_best_by("expected_length"),
        *(["--restore-file", initial, *resets] if _is_new(args) else []),
    ]  # fmt: skip
    _train(args, flags)


def initial_flags(args: DrafterOptions, output: Path) -> list[str]:
    """Write the initial checkpoint; returns the flags of train.py that describe its network."""
    command: list[Any] = [
        sys.executable, "-m", "specdec_plugins.training.initial", "--verifier", args.verifier,
        "--output", output, "--data", args.data, "--seed", args.seed,
        "--print-flags",
    ]  # fmt: skip
    if args.decoder_layers:
        command += ["--decoder-layers", args.decoder_layers]
    logger.info("initial checkpoint %s", output)
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout.split()


def _train(args: TrainingOptions, flags: Sequence[Any]) -> None:
    launcher, device, num_workers, environment = _processes(args)
    if (args.save_dir / LAST).is_file():
        logger.info("continuing from %s", args.save_dir / LAST)
    command = [
        *launcher, "-m", "specdec_plugins.training.fairseq_train", args.data, *flags,
        "--dropout", args.dropout,
        "--lr", args.lr, "--warmup-updates", args.warmup, "--lr-scheduler", *_schedule(args),
        "--keep-last-epochs", 10, "--log-interval", 20, "--max-update", args.updates,
        *_batch(args, num_workers), "--seed", args.seed,
        "--save-dir", args.save_dir, *device, *args.flags,
    ]  # fmt: skip
    words = list(map(str, command))
    logger.info("%s", shlex.join(words))
    if status := call(words, environment):
        raise SystemExit(status)


def _batch(args: TrainingOptions, num_workers: int) -> list[Any]:
    """The flags for updates of --batch-tokens, or a few less if the workers cannot share them."""
    num_passes = -(-args.batch_tokens // (args.max_tokens * num_workers))
    tokens = max(1, args.batch_tokens // (num_passes * num_workers))  # of a worker's pass
    logger.info(
        "%s updates of at most %d tokens: %d worker(s), %d passes each, %d tokens a pass",
        args.updates, num_workers * num_passes * tokens, num_workers, num_passes, tokens,
    )  # fmt: skip
    whole = ["--max-tokens-valid", args.max_tokens]
    return ["--max-tokens", tokens, *whole, "--batch-size", _SENTENCES, "--update-freq", num_passes]


def _schedule(args: TrainingOptions) -> list[Any]:
    """The learning-rate schedule, and its flags."""
    end = getattr(args, "end_lr", None)
    if end is None:
        return ["inverse_sqrt", "--warmup-init-lr", 1e-7]
    return ["polynomial_decay", "--end-learning-rate", end, "--total-num-update", args.updates]


def _processes(args: TrainingOptions) -> tuple[list[Any], list[Any], int, dict[str, str]]:
    """The launcher of train.py, its flags for devices, the workers, and the environment."""
    num_gpus = 0 if args.cpu else torch.cuda.device_count()
    num_workers = args.workers or num_gpus or 1
    if num_gpus:
        few = f"--workers {num_workers}: this machine has {num_gpus} GPUs; lower it, or add --cpu"
        require(num_workers <= num_gpus, few)
    launcher: list[Any] = [sys.executable]
    if num_workers > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", num_workers]
    kept = kept_precision(args.save_dir, args.precision)
    needed = "--precision fp16 needs a GPU; give bf16 or fp32"
    require(num_gpus > 0 or args.precision != "fp16", needed)
    precision = kept or ("fp16" if num_gpus else "fp32")
    # Seconds that torchrun leaves its workers to save in; its default may be too few.
    environment = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600", **os.environ}
    if num_gpus:
        device = ["--distributed-world-size", num_workers]
    else:
        device = ["--cpu"]
        environment = KEEP_MEMORY | environment
    if precision != "fp32":
        device.append(f"--{precision}")
    return launcher, device, num_workers, environment


def call(command: Sequence[str], environment: Mapping[str, str]) -> int:
    with running(command, env=environment) as process:
        return process.wait()


def _command(name: str, train: Any, record: type) -> cli.CommandLine:
    behind = "Arguments after -- are passed to train.py."
    stopped = "stopped; the same command goes on from the last checkpoint, if one was saved"
    return cli.CommandLine(name, train, record, epilog=behind, interrupted=stopped, passes="flags")


VERIFIER = _command("specdec train verifier", train_verifier, VerifierOptions)
DRAFTER = _command("specdec train drafter", train_drafter, DrafterOptions)
