"""Two updates of each training, and gradients on the device itself."""

from __future__ import annotations

import math
import re
import sys
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace

import torch

from benchmarks.gpu.place import CAPTIONS, SAMPLES, Check, Place
from benchmarks.pair import Pair
from specdec_plugins.app.settings import DTYPES

_STOCK = "--task translation --optimizer adam --max-tokens 512 --max-update 2 --lr 1e-2"
_SMALL = "--encoder-layers 1 --decoder-layers 2 --width 32 --ffn 64 --heads 2"
_RUN = "--updates 2 --warmup 1 --lr 1e-2 --batch-tokens 512 --max-tokens 512 --workers 1"
_DRAFTER = f"{_RUN} --best-by loss --decoder-layers 1"
_ON_VERIFIER = f"--verifier-path {CAPTIONS}/verifier.pt"
# Each training: a command of specdec_plugins.training.run (None = train.py itself), and its flags.
TRAININGS = {
    "verifier": ("verifier", f"{_RUN} {_SMALL}"),
    "block": ("drafter", f"{_DRAFTER} --arch block --block-size 5"),
    "block_fast with head": ("drafter", f"{_DRAFTER} --arch block_fast --block-size 5"),
    "medusa": (
        None,
        f"{_STOCK} {_ON_VERIFIER} --arch medusa_heads --num-heads 3 --criterion medusa_loss",
    ),
    "early exit": (
        None,
        f"{_STOCK} --arch early_exit_transformer --encoder-layers 1 --decoder-layers 2 "
        "--encoder-embed-dim 32 --decoder-embed-dim 32 --share-all-embeddings "
        "--criterion early_exit_loss --label-smoothing 0.1",
    ),
    "assistant": (
        None,
        f"{_STOCK} {_ON_VERIFIER} --arch assistant_transformer --decoder-layers 1 "
        "--decoder-embed-dim 128 --decoder-ffn-embed-dim 128 --decoder-attention-heads 2 "
        "--share-decoder-input-output-embed --criterion label_smoothed_cross_entropy",
    ),
}


PRECISIONS = ("fp16", "bf16")


class Training:
    """Two updates of each training by train.py itself."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @cached_property
    def _data(self) -> Path:
        """The sample sentences, binarised with the dictionaries of the captions pair."""
        from specdec_plugins.corpus.reading import BadLines, ParallelFile, read_pairs

        folder, text = self._place.folder / "work/data", Pair.of(CAPTIONS, "en", "de").text()
        folder.mkdir()
        pairs = list(read_pairs(ParallelFile.parse(str(SAMPLES), columns=(1, 2)), BadLines()))
        for side, language in enumerate(("en", "de")):
            lines = [text.encode(pair[side]) if side == 0 else pair[side] for pair in pairs]
            path = folder / f"train.{language}"
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._place.call("preprocess", sys.executable, "-m", "fairseq_cli.preprocess",
            "--source-lang", "en", "--target-lang", "de", "--trainpref", folder / "train",
            "--srcdict", CAPTIONS / "dict.en.txt", "--tgtdict", CAPTIONS / "dict.de.txt",
            "--destdir", folder / "bin", seconds=60,
        )  # fmt: skip
        return folder / "bin"

    def check(self, name: str, precision: str) -> str:
        """Raises where a loss is not finite, or weights did not move between the two updates."""
        run, flags = TRAININGS[name]
        label = _label(name, precision)
        saved = self._place.folder / "work" / label
        last = ["--save-interval-updates", 1, "--disable-validation", "--log-interval", 1]
        last += ["--no-epoch-checkpoints", "--log-format", "simple"]
        cpu = ["--cpu"] if self._place.rehearses else []
        command: list[object] = ["train.py", self._data, "--save-dir", saved, *flags.split()]
        command += [f"--{precision}", *cpu, *last]
        if run is not None:
            models = ["--verifier", CAPTIONS / "verifier.pt"] if run == "drafter" else []
            command = ["-m", "specdec_plugins.training.run", run, "--data", self._data, *models]
            command += ["--save-dir", saved, "--precision", precision, *flags.split(), *cpu]
            command += ["--", *last]
        said = self._place.call(label, sys.executable, *command, seconds=120)
        losses = [float(x) for x in re.findall(r"train_inner.*?\bloss=([^,\s]+)", said)]
        assert losses, "no loss in the log"
        assert all(map(math.isfinite, losses)), f"losses {losses}"
        return f"losses {losses}, {_moved(saved)}"


def _label(name: str, precision: str) -> str:
    return f"train.{name.replace(' ', '-')}.{precision}"


def _moved(folder: Path) -> str:
    from specdec_plugins.formats.checkpoints import load_checkpoint

    states = [load_checkpoint(str(folder / f"checkpoint_1_{n}.pt"))["model"] for n in (1, 2)]
    floating = [name for name, w in states[1].items() if w.is_floating_point()]
    bad = [name for name in floating if not states[1][name].isfinite().all()]
    assert not bad, f"not finite: {', '.join(bad)}"
    moved = [name for name in floating if not torch.equal(states[0][name], states[1][name])]
    assert moved, "no weight changed"
    return f"{len(moved)} of {len(floating)} tensors changed"


def training(place: Place) -> list[Check]:
    done = Training(place)
    return [
        Check(
            f"{name}, {precision}",
            "finite losses, and weights that change",
            partial(done.check, name, precision),
            needs=("fairseq", "sacremoses", "subword_nmt"),
        )
        for at, name in enumerate(TRAININGS)
        # Both would take long on a CPU.
        for precision in (PRECISIONS[at % 2 :][:1] if place.rehearses else PRECISIONS)
    ]


class Gradients:
    """Each training's loss and gradients on the device, from the checkpoint that it left."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def check(self, name: str, dtype: str) -> str:
        """Raises if the loss in float32 is not the CPU's, or anything is not finite."""
        loss, norm = self._update(name, dtype, self._place.device)
        assert math.isfinite(loss), f"loss {loss}"
        assert math.isfinite(norm), f"norm of the gradients {norm}"
        assert norm > 0, "no gradient"
        told = f"loss {loss:.4f}, norm of the gradients {norm:.3g}"
        if dtype != "float32" or name.startswith("block"):  # the device draws a block's masks
            return told
        expected, _ = self._update(name, dtype, "cpu")
        assert math.isclose(loss, expected, rel_tol=1e-3), f"loss {loss}, on the CPU {expected}"
        return f"{told}, as on the CPU"

    def _update(self, name: str, dtype: str, device: str) -> tuple[float, float]:
        """Loss of a batch and norm of its gradients, without dropout and glancing."""
        from fairseq import checkpoint_utils, utils

        import specdec_plugins

        specdec_plugins.register()
        left = sorted((self._place.folder / "work").glob(f"{_label(name, '*')}/checkpoint_last.pt"))
        assert left, "the training left no checkpoint"
        still = {"dropout": 0.0, "start_p": 0.0, "minus_p": 0.0, "max_layer_skip": 0.0}
        (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(left[-1])], still)
        criterion = task.build_criterion(cfg.criterion)
        task.load_dataset("train")
        data = task.dataset("train")
        sample = data.collater([data[i] for i in range(8)])
        with self._place.entered():
            model = model.to(DTYPES[dtype]).to(device)
            sample = utils.apply_to_sample(lambda x: x.to(device), sample)
            backward = SimpleNamespace(backward=lambda loss: loss.backward())
            loss, size, _ = task.train_step(sample, model, criterion, backward, update_num=1)
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            norms = [float(g.float().norm()) for g in gradients]
            return float(loss) / float(size), math.hypot(*norms)


def gradients(place: Place) -> list[Check]:
    done = Gradients(place)
    return [
        Check(
            f"{name}, {dtype}",
            "finite gradients, and in float32 the CPU's loss",
            partial(done.check, name, dtype),
            needs=("fairseq",),
        )
        for name in TRAININGS
        for dtype in ("float32", "float16", "bfloat16")
    ]
