"""fairseq's trainer, whose training goes on as if it had not stopped.

``Trainer`` writes whole checkpoints of finite numbers; ``Batches`` and ``FP16Optimizer`` save what
fairseq's own would lose.
"""

import copy
import hashlib
import json
import logging
import os
from collections.abc import Callable
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any

import numpy
import torch
from fairseq import optim, utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.file_io import PathManager
from fairseq.models.transformer import TransformerModel
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer as FairseqTrainer
from torch import Tensor

from specdec_plugins.corpus.checkpoints import FLOAT32, LAST
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.checkpoints import copy_checkpoint, not_finite, save_checkpoint
from specdec_plugins.tasks.evaluation import SEARCH, BeamEvaluation, verifier_twin

logger = logging.getLogger(__name__)


class Trainer(FairseqTrainer):
    """Trains as fairseq's, in one process or several, each of which may stop and go on."""

    def get_train_iterator(self, epoch: int, *given: Any, **named: Any) -> Any:
        batches = super().get_train_iterator(epoch, *given, **named)
        batches.__class__ = Batches  # fairseq's tasks name the class that they make
        batches.made_for = self._batches
        batches.limits = {
            "max_tokens": self.cfg.dataset.max_tokens,
            "max_sentences": self.cfg.dataset.batch_size,
            "required_batch_size_multiple": self.cfg.dataset.required_batch_size_multiple,
        }
        return batches

    def _batches(self, epoch: int) -> Any:
        fresh = {"load_dataset": False, "disable_iterator_cache": True}
        return super().get_train_iterator(epoch, **fresh).frozen_batches

    def begin_valid_epoch(self, epoch: int) -> None:
        """As fairseq's; a Transformer's --eval-bleu then searches with this project's beam."""
        super().begin_valid_epoch(epoch)
        task, model = self.task, self.get_model()
        if type(task) is not TranslationTask or not task.cfg.eval_bleu:
            return
        options = json.loads(task.cfg.eval_bleu_args)
        if type(model) is TransformerModel and options.keys() <= SEARCH.keys():
            try:
                network = verifier_twin(model)
            except UserError as error:
                logger.info("--eval-bleu: fairseq searches, since %s", error)
            else:
                task.sequence_generator = BeamEvaluation(network, task.tgt_dict, options)

    def state_dict(self) -> dict[str, Any]:
        """fairseq's, but with the float32 weights of a model in 16 bits, which training goes by."""
        state: dict[str, Any] = super().state_dict()
        if whole := (state.get("last_optimizer_state") or {}).get(FLOAT32):
            pairs = zip(self.optimizer.fp16_params, whole, strict=True)
            at = {rounded.data_ptr(): weight for rounded, weight in pairs}
            weights = state["model"].items()
            state["model"] = {name: at.get(w.data_ptr(), w) for name, w in weights}
        return state

    def load_checkpoint(self, filename: str, *given: Any, **named: Any) -> Any:
        """Raises UserError if the checkpoint is of another model, criterion or optimizer."""
        try:
            extra_state = super().load_checkpoint(filename, *given, **named)
        except Exception as error:
            if "does not match" in str(error):  # criterion or optimizer, with the way out
                raise UserError(f"{filename}: {error}") from error
            if not isinstance(fault := error.__context__, RuntimeError):
                raise
            _, *unlike = (line.strip() for line in str(fault).splitlines())
            raise UserError(
                f"{filename}: is a model of other sizes, types or --arch ({unlike[0]}); give those "
                "with which it was trained, or another --save-dir"
            ) from error
        if extra_state is not None and self.cfg.ema.store_ema:
            # The mean takes in the weights of every so many updates, wherever training stopped.
            self.ema.update_freq_counter = self.get_num_updates() % self.cfg.ema.ema_update_freq
        return extra_state

    def save_checkpoint(self, filename: str, extra_state: dict[str, Any]) -> str | None:
        """Raises UserError if the file cannot be written, or a loss or weight is not finite."""
        if not self.should_save_checkpoint_on_current_rank:
            return None
        state = utils.move_to_cpu(self.state_dict())
        state["extra_state"].update(extra_state)
        if (name := not_finite(state["model"])) is not None:
            raise self._diverged(name, self.get_num_updates())
        value = extra_state.get("val_loss")
        if value is not None and not isfinite(value):
            metric = f"the validation's {self.cfg.checkpoint.best_checkpoint_metric}"
            raise self._diverged(metric, self.get_num_updates())
        save_checkpoint(state, filename)
        return os.path.abspath(filename)

    def clip_grad_norm(self, clip_norm: float) -> Tensor:
        """The norm of the gradient. Raises UserError if it is not finite, as the loss then."""
        try:  # fairseq raises this error where, in float16, no scale of the loss is small enough
            norm: Tensor = super().clip_grad_norm(clip_norm)
            if not (self.cfg.common.amp or bool(torch.isfinite(norm).all())):
                raise FloatingPointError(f"a norm of {norm}")
        except FloatingPointError as error:
            raise self._diverged("the gradient", self.get_num_updates() + 1) from error
        return norm

    def _diverged(self, what: str, update: int) -> UserError:
        last = Path(self.cfg.checkpoint.save_dir, LAST)
        start = f"from {last}, or give an earlier checkpoint as --restore-file"
        if not last.is_file():
            start = "from the start, as nothing was saved yet"
        return UserError(
            f"update {update}: {what} is NaN or infinite, so the training has diverged; "
            f"lower --lr and run the same command again, which goes on {start}"
        )


def _copy(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    """PathManager.copy, which leaves half a file where it is interrupted."""
    copy_checkpoint(src_path, dst_path)
    return True


PathManager.copy = staticmethod(_copy)


class Batches(EpochBatchIterator):
    """The batches of an epoch, which depend on no earlier one.

    What is left of an epoch goes on in batches of another size, or with other workers: each
    sentence is in one batch of the epoch, however often the training stops.
    """

    made_for: Callable[[int], Any]  # an epoch's batches
    limits: dict[str, Any]  # of a batch, as the dataset's batch_by_size takes them
    before: Tensor | None = None  # [N], bool: sentences that other batches of this epoch had

    def next_epoch_itr(self, *given: Any, **named: Any) -> Any:
        # fairseq keeps the batches of the epoch in which a process began.
        if self.next_epoch_idx != self.epoch:
            self._frozen_batches, self.before = self.made_for(self.next_epoch_idx), None
        return super().next_epoch_itr(*given, **named)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = super().state_dict()
        if done := state["iterations_in_epoch"]:
            dealt = self._dealt()
            seen = torch.zeros(len(self.dataset), dtype=torch.bool)
            seen[numpy.concatenate([batch for worker in dealt for batch in worker[:done]])] = True
            seen = seen if self.before is None else seen | self.before
            state["sentences"] = {"of": _digest(dealt), "before": self.before, "seen": seen}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises ``UserError`` if the data has another number of sentences."""
        if sentences := state_dict.get("sentences"):
            self.epoch, self.shuffle = state_dict["epoch"], state_dict["shuffle"]
            self._leave_out(sentences["before"])
            if _digest(self._dealt()) != sentences["of"]:
                self._leave_out(sentences["seen"])
                state_dict = {**state_dict, "iterations_in_epoch": 0}
        super().load_state_dict(state_dict)

    def _leave_out(self, sentences: Tensor | None) -> None:
        if sentences is None:
            return
        require(
            len(sentences) == len(self.dataset),
            f"The data has {len(self.dataset)} sentences, and {len(sentences)} where this training "
            "stopped; restore the data, or add --reset-dataloader to begin with the new one.",
        )
        ids = numpy.concatenate(self.frozen_batches)  # shortest first
        left = ids[~sentences.cpu().numpy()[ids]]
        if len(left):  # else all that is left is too long for a batch now
            self._frozen_batches = tuple(self.dataset.batch_by_size(left, **self.limits))
            self.before = sentences.cpu()

    def _dealt(self) -> list[list[Any]]:
        """The batches of each worker in this epoch, in its order."""
        workers = [copy.copy(self) for _ in range(self.num_shards)]
        for number, worker in enumerate(workers):
            worker.shard_id, worker._supports_prefetch = number, False
        return [worker.ordered_batches(self.epoch, False, self.shuffle) for worker in workers]


def _digest(dealt: list[list[Any]]) -> str:
    digest = hashlib.sha256()
    for batch in chain.from_iterable(dealt):
        digest.update(numpy.array([len(batch), *batch]).tobytes())
    return digest.hexdigest()


class FP16Optimizer(optim.FP16Optimizer):
    """fairseq's, for fp16 and bf16, with all of its state.

    It updates float32 weights, and rounds them into the model. fairseq saves the model alone, and
    of the loss scale neither its age nor its overflows. The name is in checkpoints.
    """

    def state_dict(self) -> dict[str, Any]:
        state = {**super().state_dict(), FLOAT32: [weight.cpu() for weight in self._whole()]}
        if self.scaler is not None:
            state["scaler"] = {n: v for n, v in vars(self.scaler).items() if n.startswith("_")}
        return state

    def load_state_dict(self, state_dict: dict[str, Any], optimizer_overrides: Any = None) -> None:
        super().load_state_dict(state_dict, optimizer_overrides)
        if FLOAT32 in state_dict:  # not in older checkpoints
            for weight, saved in zip(self._whole(), state_dict[FLOAT32], strict=True):
                weight.copy_(saved)
        for name, value in state_dict.get("scaler", {}).items():
            setattr(self.scaler, name, value)

    def step(self, closure: Any = None, groups: Any = None) -> None:
        super().step(closure, groups)
        # Nothing else resets it where an optimizer takes a scale and there is no loss scale.
        self._multiply_factor = 1.0

    def _whole(self) -> list[Tensor]:
        """The float32 weights, each in the shape of its parameter."""
        if not self.has_flat_params:
            return [weight.data for weight in self.fp32_params]
        (flat,) = self.fp32_params.values()
        parts = flat.data.split([weight.numel() for weight in self.fp16_params])
        return [part.view_as(w) for part, w in zip(parts, self.fp16_params, strict=True)]


optim.FP16Optimizer = FP16Optimizer  # which the trainer makes
