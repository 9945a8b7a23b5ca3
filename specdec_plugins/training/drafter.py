"""Trains a block drafter: a plain loop over pairs of sentences, on the network that decodes.

It runs in one process, or in each of several that torch.distributed has connected, on a CPU or one
GPU each. All random numbers of an update depend on the seed, the update and the process alone, and
the batches of an epoch on the seed and the epoch. So a training that is stopped goes on with the
next sentence as if it had not been stopped.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import torch
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import ProcessExitedException, spawn
from torch.nn.utils.rnn import pad_sequence

from specdec_plugins.corpus.cli import logger
from specdec_plugins.corpus.resume import Log, Watch, sha256
from specdec_plugins.corpus.teacher import DataBin
from specdec_plugins.decoding.networks import Transformer, with_fast_products
from specdec_plugins.decoding.networks.reading import give_back
from specdec_plugins.errors import ENDING, Stopped, UserError, handling, require
from specdec_plugins.formats.checkpoints import load_checkpoint, save_checkpoint
from specdec_plugins.formats.models import read_model
from specdec_plugins.training.networks import checkpoint_of, go_on_from, new_drafter, new_shortlist
from specdec_plugins.training.objective import BLOCKS, Objective, Teacher, cut_blocks, draw_starts

LAST, BEST, CURVE = "last.pt", "best.pt", "curve.jsonl"
_MEASURED, _LISTED = "measured.pt", "shortlist.pt"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_RISE = 0.01  # accepted tokens; smaller gains do not count
_SHOWN = 10  # updates between two lines of progress
# A running mean over about the last 500 updates gives a usable drafter at any time, as if the
# learning rate had decayed.
_DECAY, _TAKEN, _FROM = 0.98, 10, 200  # of the mean, at every so many updates, from this one on
_KEPT = 2**30  # bytes of the encoder's states, on a CPU: of some 100,000 sentences
Measure = Callable[[Path], Mapping[str, float]]  # of a drafter's checkpoint; "accepted" among them


@dataclass(frozen=True)
class Plan:
    """What is trained, on what, and for how long."""

    verifier: Path  # a checkpoint, or the file of weights in a bundle
    data: Path  # folder of a split `train`: sources, and the verifier's greedy output
    folder: Path  # of the training
    start_token: int  # which opens the verifier's input
    hours: float  # over all calls; the learning rate falls until then
    updates: int | None = None  # in place of the hours
    every: float = 0.5  # hours between measurements
    patience: int = 4  # measurements without improvement, at which it ends
    start: Path | None = None  # a drafter to start from
    block_size: int = 8
    dropout: float = 0.1
    precision: str | None = None  # of DTYPES; None = what the device is fast in
    device: str | None = None  # cpu or cuda; None = a GPU if there is one
    seed: int = 1
    rows: int = 64  # sentences an update and process
    lr: float | None = None  # at the peak; None: less from a start, which more would undo
    warmup: int = 200  # updates
    tensorboard_logdir: Path | None = None


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16 products, which train 1.4 times as fast."""
    has: Any = torch.cpu.get_capabilities()
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))


class Pairs:
    def __init__(self, data: DataBin, seed: int, rows: int) -> None:
        self.sources, self.targets = map(data.sentences, data.languages)
        self._seed, self._rows = seed, rows

    def batches(self, epoch: int) -> list[Any]:
        """Indices [rows] of sentences of similar length, in the order of an epoch."""
        chance = numpy.random.default_rng((self._seed, epoch))
        order = numpy.lexsort(
            (chance.permutation(len(self.targets)), self.targets.sizes, self.sources.sizes)
        )
        cuts = range(self._rows, len(order), self._rows)
        batches = numpy.split(order, cuts)
        return [batches[i] for i in chance.permutation(len(batches))]

    def padded(self, indices: Any, padding: int) -> tuple[Tensor, Tensor]:
        """Sources [B, S] and targets [B, T], both int64."""
        sides = ([side[i] for i in indices] for side in (self.sources, self.targets))
        sources, targets = (pad_sequence(side, True, padding) for side in sides)
        return sources, targets


class Encoded:
    """What the frozen encoder makes of sentences, kept in memory for later epochs."""

    def __init__(self, encoder: nn.Module, most: int, dtype: torch.dtype = torch.float32) -> None:
        """most: bytes that are kept. dtype: of the states."""
        self._encoder, self._left, self._dtype = encoder, most, dtype
        self._kept: dict[int, Tensor] = {}

    @torch.no_grad()
    def __call__(self, indices: Any, sources: Tensor, padding: int) -> tuple[Tensor, Tensor]:
        """States [B, S, D] and padding [B, S] bool of sources [B, S] int64 at these indices."""
        is_padding, numbers = sources == padding, list(map(int, indices))
        if all(number in self._kept for number in numbers):
            return pad_sequence([self._kept[number] for number in numbers], True), is_padding
        states: Tensor = self._encoder(sources)[0].to(self._dtype)
        for row, number in enumerate(numbers):
            if self._left > 0 and number not in self._kept:
                self._kept[number] = states[row, ~is_padding[row]]
                self._left -= self._kept[number].nbytes
        return states, is_padding


class Training:
    """A training in its folder, and where it is."""

    def __init__(self, plan: Plan) -> None:
        """Raises UserError if model, data or an earlier state cannot be used."""
        self.plan = plan
        is_alone = not distributed.is_initialized()
        self.rank = 0 if is_alone else distributed.get_rank()
        self.num_workers = 1 if is_alone else distributed.get_world_size()
        on_gpu = torch.cuda.is_available() if plan.device is None else plan.device == "cuda"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else _CPU
        default = "fp16" if on_gpu else "bf16" if multiplies_bfloat16() else "fp32"
        self.dtype = DTYPES[plan.precision or default]
        self.verifier = read_model(plan.verifier)
        drafter = new_drafter(self.verifier, plan.block_size, plan.seed)
        if plan.start is not None:
            go_on_from(plan.start, drafter)
        self.data = DataBin.find(plan.data, "train")
        self.pairs = Pairs(self.data, plan.seed, plan.rows)
        require(len(self.pairs.targets) > 0, f"{plan.data}: there is no sentence to train on")
        network = self._network(on_gpu)
        self._teacher = Teacher(network, plan.start_token)
        drafter.encoder.to(self.dtype)  # and with it a table of tokens that is shared
        self.drafter = drafter.to(self.device)
        named = dict(drafter.named_parameters())
        self.learnt = {name: weight for name, weight in named.items() if weight.requires_grad}
        self.mean = {name: weight.detach().clone() for name, weight in self.learnt.items()}
        self.optimizer = torch.optim.AdamW(
            self.learnt.values(), betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01, fused=True
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype is torch.float16)
        self.update = self.epoch = self.taken = 0  # taken: batches of the epoch
        self.seconds = 0.0
        self.loss = torch.zeros((), device=self.device)  # of the last update
        board = plan.tensorboard_logdir if self.rank == 0 else None
        self._board = _board(board) if board else None
        self._restore()
        self._encoded = Encoded(network.encoder, 0 if on_gpu else _KEPT, self.dtype)
        self._objective: nn.Module = Objective(drafter, plan.dropout)
        if self.num_workers > 1:
            self._objective = nn.parallel.DistributedDataParallel(self._objective)

    def _network(self, on_gpu: bool) -> Transformer:
        """The verifier's."""
        network = self.verifier.network(self.dtype if on_gpu else torch.float32, self.device)
        assert isinstance(network, Transformer)
        # The kernels read a sentence alike beside any others, so runs can repeat.
        return network if on_gpu else with_fast_products(network)

    @cached_property
    def curve(self) -> Log:
        """The measurements; written by the first process alone."""
        data = sha256(self.plan.data / f"{self.data.stem(self.data.target_lang)}.idx")
        return Log(self.plan.folder / CURVE, {"data": data, "block_size": self.plan.block_size})

    # --- updates ----------------------------------------------------------------------------------

    @property
    def progress(self) -> float:
        """From 0 to 1, at which it ends."""
        if self.plan.updates is not None:
            return self.update / self.plan.updates
        return self.seconds / (3600 * self.plan.hours)

    def _step(self) -> None:
        plan, number = self.plan, self.update
        key = int(numpy.random.SeedSequence((plan.seed, number, self.rank)).generate_state(1)[0])
        chance = torch.default_generator.manual_seed(key)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(key)
        indices, sources, targets, blocks = self._batch(chance)
        warmth = min(1.0, (number + 1) / plan.warmup)
        peak = plan.lr or (5e-4 if plan.start else 2e-3)
        end = min(1e-5, peak)
        rate = warmth * (end + (peak - end) * max(0.0, 1 - self.progress))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        encoded = self._encoded(indices, sources, self.drafter.config.pad)
        likely = self._teacher(encoded, targets)
        with torch.autocast(self.device.type, self.dtype, self.dtype is not torch.float32):
            loss = self._objective(sources, encoded, blocks, likely)
        self.loss = loss.detach()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.learnt.values(), 5.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.update += 1
        if self.update % _TAKEN == 0:
            share = 1 - _DECAY if self.update >= _FROM else 1.0
            with torch.no_grad():
                torch._foreach_lerp_([*self.mean.values()], [*self.learnt.values()], share)

    def _batch(self, chance: torch.Generator) -> tuple[Any, Tensor, Tensor, Any]:
        """This process's batch of the next update: indices, sources, targets and their blocks."""
        if self.taken >= len(self._batches):
            self.epoch, self.taken = self.epoch + 1, 0
            del self._batches
        own = (self.taken + self.rank) % len(self._batches)
        self.taken += self.num_workers
        padding, mask = self.drafter.config.pad, self.drafter.config.mask
        indices = self._batches[own]
        sources, targets = self.pairs.padded(indices, padding)
        starts = draw_starts((targets != padding).sum(1), BLOCKS, chance)
        given = (starts, self.plan.block_size, mask, padding, self.plan.start_token)
        blocks = cut_blocks(targets, *given)
        sources, targets, *there = (
            part.to(self.device, non_blocking=True) for part in (sources, targets, *blocks)
        )
        return indices, sources, targets, type(blocks)(*there)

    @cached_property
    def _batches(self) -> list[Any]:
        return self.pairs.batches(self.epoch)

    def _train(self, due: float) -> None:
        """Train until so many hours are done, or the training is over, and save.

        Raises Stopped on a signal, with the state saved, and UserError if the loss is no number any
        more.
        """
        signals: list[int] = []
        with handling(signals.append, (signal.SIGINT, *ENDING)):
            stop = False
            while not stop and self.progress < 1 and self.seconds < 3600 * due:
                watch = Watch()
                self._step()
                if self.update % _SHOWN == 0:
                    self._show()
                self.seconds += watch.seconds
                stop = self._agree(bool(signals))
            self._check()  # what is no number is not saved
            self.save()
        if stop:  # by a signal to one of the processes, or to all
            raise Stopped(signals[0] if signals else signal.SIGTERM)

    def _agree(self, stop: bool) -> bool:
        """Whether any process is to stop. All take over the clock of the first."""
        if self.num_workers == 1:
            return stop
        told = torch.tensor([float(stop), self.seconds if self.rank == 0 else 0.0]).double()
        distributed.all_reduce(told, distributed.ReduceOp.MAX)
        self.seconds = float(told[1])
        return bool(told[0])

    def _check(self) -> float:
        """The loss. Raises UserError if it is no number."""
        loss = float(self.loss)
        if not math.isfinite(loss):
            raise UserError(
                f"update {self.update}: the loss is NaN or infinite, so the training has diverged; "
                f"run the same command again, which goes on from {self.plan.folder / LAST}, with "
                "--precision fp32"
            )
        return loss

    def _show(self) -> None:
        loss = self._check()
        if self.rank == 0:
            last = self.curve.entries[-1]["accepted"] if self.curve.entries else "-"
            left = 60 * self.plan.hours - self.seconds / 60
            most = f"{left:.0f} minutes" if self.plan.updates is None else "-"
            line = f"update {self.update}, loss {loss / math.log(2):.3f}, accepted {last}, "
            sys.stdout.write(f"{line}{most} left at most\n")
            sys.stdout.flush()
            self._log({"loss": loss, "lr": self.optimizer.param_groups[0]["lr"]})

    def _log(self, figures: Mapping[str, float]) -> None:
        if self._board is not None:
            for name, value in figures.items():
                self._board.add_scalar(name, value, self.update)

    # --- files ------------------------------------------------------------------------------------

    def save(self) -> None:
        """The state from which this training goes on."""
        if self.rank == 0:
            state = {
                "model": {name: weight.detach() for name, weight in self.learnt.items()},
                "mean": self.mean,
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                **{name: getattr(self, name) for name in _COUNTS},
            }
            save_checkpoint(state, self.plan.folder / LAST)

    def _restore(self) -> None:
        path = self.plan.folder / LAST
        if not path.is_file():
            return
        state = load_checkpoint(path)
        with torch.no_grad():
            for mine, theirs in ((self.learnt, state["model"]), (self.mean, state["mean"])):
                for name, weight in mine.items():
                    weight.copy_(theirs[name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"] or self.scaler.state_dict())
        for name in _COUNTS:
            setattr(self, name, state[name])
        logger.info("going on after update %d of %s", self.update, path)

    def result(self) -> dict[str, Any]:
        """A checkpoint of the mean weights, with a shortlist if there is a head."""
        learnt = {name: weight.cpu() for name, weight in self.mean.items()}
        made = checkpoint_of(self.drafter, learnt, self.verifier)
        if self.drafter.decoder.head is not None:
            made["model"] |= self._shortlist()
        return made

    def _shortlist(self) -> dict[str, Tensor]:
        """The shortlist's tensors; computed once, from the data and the start alone."""
        path = self.plan.folder / _LISTED
        if not path.is_file():
            found = new_shortlist(self.plan.data, self.plan.start)
            save_checkpoint({"model": found}, path)
        return load_checkpoint(path)["model"]

    # --- the whole --------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        points = [point for point in self.curve.entries if point["updates"]]
        if not points:
            return False
        best = max(point["accepted"] for point in points)
        first = next(n for n, point in enumerate(points) if point["accepted"] > best - _RISE)
        is_last = points[-1]["updates"] == self.update and self.progress >= 1
        return is_last or len(points) - 1 - first >= self.plan.patience

    def run(self, measure: Measure) -> None:
        """Train and measure by turns, until more training brings no more or the time is up.

        Raises Stopped on a signal, and UserError if the loss is no number any more; the same call
        then goes on.
        """
        with _keeping_memory() if self.device.type == "cpu" else nullcontext():
            if self.plan.start and not self.update and self.rank == 0 and not self.curve.entries:
                self._measure(measure)  # what comes out is no worse
            while not self._agree(self.rank == 0 and self.is_over):
                points = self.curve.entries if self.rank == 0 else []
                at = points[-1]["hours"] if points else 0.0
                self._train(_of_first(at) + self.plan.every)
                if self.rank == 0:
                    self._measure(measure)

    def _measure(self, measure: Measure) -> None:
        """Put the mean weights on the curve, and keep them if they are the best."""
        path = self.plan.folder / _MEASURED
        save_checkpoint(self.result(), path)
        found = measure(path)
        if all(found["accepted"] > point["accepted"] for point in self.curve.entries):
            path.replace(self.plan.folder / BEST)
        self.curve.add({"hours": self.seconds / 3600, "updates": self.update, **found})
        self._log(found)
        logger.info("%s", self.curve.entries[-1])


_CPU = torch.device("cpu")
# M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD of malloc.h: while training, and as glibc has them
_MALLOC = ((-4, 0, 65536), (-1, 2**31 - 1, 1 << 17), (-2, 1 << 28, 1 << 17))
_COUNTS = ("update", "epoch", "taken", "seconds")


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            "--tensorboard-logdir: tensorboard is not installed; pip install tensorboard"
        ) from error
    return SummaryWriter(str(folder))


@contextmanager
def _keeping_memory() -> Iterator[None]:
    """Keep memory after each use; glibc returns large blocks to the system, which clears them."""
    library = ctypes.CDLL(None)
    tell: Any = getattr(library, "mallopt", lambda *_: 0)  # other C libraries have none
    for number, value, _ in _MALLOC:
        tell(number, value)
    try:
        yield
    finally:  # the process may go on to translate
        for number, _, value in _MALLOC:
            tell(number, value)
        give_back()


def connect(device: str | None, **how: Any) -> None:
    """Connect the processes that torchrun started, or that `how` describes; one GPU each."""
    if device != "cpu" and torch.cuda.is_available():
        distributed.init_process_group("cpu:gloo,cuda:nccl", timeout=_LONG, **how)
        torch.cuda.set_device(distributed.get_rank() % torch.cuda.device_count())
    else:
        distributed.init_process_group("gloo", timeout=_LONG, **how)


_LONG = timedelta(days=30)  # of translating, while the others wait


def is_launched() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def train(plan: Plan, measure: Measure) -> None:
    """Train in this process, in those that wait for it (`follow`), or in one for each GPU.

    Raises as `Training.run` does.
    """
    on_gpu = torch.cuda.is_available() and plan.device != "cpu"
    if distributed.is_initialized():
        _of_first(plan)
    elif on_gpu and torch.cuda.device_count() > 1:
        _spawn(plan, measure, torch.cuda.device_count())
        return
    Training(plan).run(measure)


def follow() -> None:
    """Train with the first process what that trains, until it has no more to do."""
    while (plan := _of_first(None)) is not None:
        with suppress(KeyboardInterrupt):  # of all of them, and told by the first
            Training(plan).run(lambda path: {})


def dismiss() -> None:
    """End the processes that `follow`."""
    if distributed.is_initialized():
        _of_first(None)
        distributed.destroy_process_group()


def _of_first(value: Any) -> Any:
    """What the first process gives."""
    told = [value]
    if distributed.is_initialized():
        distributed.broadcast_object_list(told)
    return told[0]


def _spawn(plan: Plan, measure: Measure, num_workers: int) -> None:
    with TemporaryDirectory() as folder:
        given = (plan, measure, num_workers, f"file://{folder}/store")
        context = spawn(_spawned, given, nprocs=num_workers, join=False)
        try:
            while not context.join():
                pass
        except ProcessExitedException as error:
            raise SystemExit(error.exit_code) from error
        except KeyboardInterrupt:  # each saves, unless it has heard the signal itself
            for process in context.processes:
                process.terminate()
                process.join()
            raise


def _spawned(rank: int, plan: Plan, measure: Measure, num_workers: int, store: str) -> None:
    connect(plan.device, init_method=store, rank=rank, world_size=num_workers)
    Training(plan).run(measure)
    distributed.destroy_process_group()
