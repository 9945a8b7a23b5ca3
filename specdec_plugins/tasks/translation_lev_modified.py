"""``--task translation_lev_modified``: translation in which one block of each target is masked."""

# No postponed annotations here: fairseq makes flags from the types of the settings' fields.
import logging
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.distributed.utils import get_global_rank
from fairseq.tasks import FairseqTask, register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import II
from torch import Tensor

from specdec_plugins.errors import UserError, require
from specdec_plugins.models.block_drafter import Glance, context_share
from specdec_plugins.tasks.block_mask import (
    MaskedBlocks,
    draw_prefix_lengths,
    fixed_prefix_lengths,
    mask_blocks,
)

logger = logging.getLogger(__name__)
_SELDOM = 0.05  # share of targets


@dataclass
class BlockTranslationConfig(TranslationConfig):
    left_pad_source: bool = field(default=False, metadata={"help": "pad the source on the left"})
    noise: ChoiceEnum(["block_mask"]) = field(  # type: ignore[valid-type]
        default="block_mask",
        metadata={"help": "what is masked in a target: block_mask masks one block after a prefix"},
    )
    block_size: int = field(default=25, metadata={"help": "tokens masked at once, 1 or more"})
    start_p: float = field(
        default=0.5,
        metadata={"help": "glancing: share of wrong predictions revealed at the first update"},
    )
    minus_p: float = field(
        default=0.2, metadata={"help": "glancing: by how much that share falls in total"}
    )
    total_up: int = field(
        default=300_000, metadata={"help": "glancing: updates until the share is lowest"}
    )
    seed: int = II("common.seed")


@register_task("translation_lev_modified", dataclass=BlockTranslationConfig)
class BlockTranslationTask(TranslationTask):
    """Masks a block of each target for the drafter; the name is the published one."""

    cfg: BlockTranslationConfig

    def __init__(self, cfg: BlockTranslationConfig, src_dict: Any, tgt_dict: Any) -> None:
        check_settings(cfg)
        super().__init__(cfg, src_dict, tgt_dict)
        self._update = -1
        self._num_batches = 0  # seen in the present update

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Load a split; warns of blocks that nearly no target fills."""
        super().load_dataset(split, epoch, combine, **kwargs)
        long = float((self.datasets[split].tgt_sizes >= self.cfg.block_size).mean())
        if split == self.cfg.train_subset and long < _SELDOM:
            logger.warning(
                "--block-size %d: only %.1f %% of the targets have so many tokens; smaller blocks "
                "train and draft faster",
                self.cfg.block_size,
                100 * long,
            )

    def build_generator(self, models: Any, args: Any, **kwargs: Any) -> Any:
        raise UserError(
            "fairseq's search cannot decode with a drafter; run inference.py, with the drafter as "
            "--path and its verifier as --AR-path"
        )

    def train_step(
        self,
        sample: dict[str, Any],
        model: torch.nn.Module,
        criterion: torch.nn.Module,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """fairseq's own step on a freshly masked sample, with glancing."""
        generator = self._generator(update_num, sample["target"].device)
        lengths = sample["target"].ne(self.tgt_dict.pad()).sum(dim=1)  # [B]
        cfg = self.cfg
        blocks = self._mask(sample["target"], draw_prefix_lengths(lengths, generator))
        share = context_share(update_num, cfg.start_p, cfg.minus_p, cfg.total_up)
        # With nothing to reveal, the pass that finds wrong predictions is skipped.
        glancing = Glance(share, generator) if share > 0 else None
        sample = {**sample, "blocks": blocks, "glancing": glancing}
        return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)

    def valid_step(
        self, sample: dict[str, Any], model: torch.nn.Module, criterion: torch.nn.Module
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """The loss of the masked positions, without glancing, each sentence with its own prefix."""
        lengths = sample["target"].ne(self.tgt_dict.pad()).sum(dim=1)  # [B]
        prefix_lengths = fixed_prefix_lengths(lengths, sample["id"], self.cfg.seed)
        sample = {**sample, "blocks": self._mask(sample["target"], prefix_lengths)}
        # Bypasses TranslationTask, whose step would decode with a search that this model lacks.
        return FairseqTask.valid_step(self, sample, model, criterion)

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """fairseq's iterator; outside training it must not drop sentences to round a batch."""
        if dataset is not self.datasets.get(self.cfg.train_subset):
            kwargs["required_batch_size_multiple"] = 1
        return super().get_batch_iterator(dataset, *args, **kwargs)

    def _mask(self, target_tokens: Tensor, prefix_lengths: Tensor) -> MaskedBlocks:
        return mask_blocks(
            target_tokens,
            prefix_lengths,
            self.cfg.block_size,
            mask=self.tgt_dict.unk(),
            pad=self.tgt_dict.pad(),
            max_width=max(self.cfg.max_target_positions, target_tokens.size(1)),
        )

    def _generator(self, update_num: int, device: torch.device) -> torch.Generator:
        """Generator of a batch, from seed, update, rank and turn: a resumed run repeats it."""
        self._num_batches = self._num_batches + 1 if update_num == self._update else 0
        self._update = update_num
        key = (self.cfg.seed, update_num, get_global_rank(), self._num_batches)
        seed = numpy.random.SeedSequence(key).generate_state(1, numpy.uint64)[0]
        return torch.Generator(device=device).manual_seed(int(seed >> numpy.uint64(1)))


def check_settings(cfg: BlockTranslationConfig) -> None:
    """Refuse settings that cannot work; raises ``UserError``."""
    for flag, value, is_possible, wanted in (
        ("block-size", cfg.block_size, cfg.block_size >= 1, "1 or more tokens"),
        ("total-up", cfg.total_up, cfg.total_up >= 1, "1 or more updates"),
        ("start-p", cfg.start_p, 0 <= cfg.start_p <= 1, "a share from 0 to 1"),
        ("minus-p", cfg.minus_p, 0 <= cfg.minus_p <= 1, "a share from 0 to 1"),
    ):
        require(is_possible, f"--{flag} is {value}, expected {wanted}")
    require(
        not cfg.left_pad_source,
        "the drafter does not support --left-pad-source True; leave the flag out",
    )
    require(
        cfg.start_p >= cfg.minus_p,
        f"--start-p {cfg.start_p} is below --minus-p {cfg.minus_p}: the share to reveal would "
        "become negative; raise the first or lower the second",
    )
    require(
        not cfg.eval_bleu,
        "--eval-bleu decodes token by token, which a drafter cannot do; the log says what a "
        "verifier would accept, as expected_length",
    )
