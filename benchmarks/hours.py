"""What the published recipe must take on GPUs, counted: python -m benchmarks.hours writes a table.

One update of each training runs on this CPU, forwards and backwards, in 32 bits. Its operations are
counted as in `counted`, with half of the bytes, as in fp16. So hours are lower bounds by this
model, not measurements. Needs fairseq and 12 GB of memory.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from fairseq.models.transformer import TransformerModel, base_architecture
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.counted import EAGER, GPUS, LENGTH, SYSTEMS, TYPES, Counted, sentence, traced
from specdec_plugins.criterions.glat_loss import block_loss
from specdec_plugins.models.block_drafter import BlockDrafter, Glance, block_architecture
from specdec_plugins.tasks.block_mask import draw_prefix_lengths, mask_blocks
from specdec_plugins.training.initialise import numbered_dictionaries
from specdec_plugins.training.recipe import PRESETS

BASE = PRESETS["base"]
PAIRS = 4_500_000  # of WMT14 English-German
ADAM = 12  # launches, each over all weights: fairseq keeps them in one tensor in fp16 training
WIDE = 160  # hypotheses of beam 5 that a GPU extends at once
# A model, and its loss for text [B, T] int64
Trained = tuple[nn.Module, Callable[[Any, Tensor, torch.Generator], Tensor]]


def _model(kind: Any, architecture: Callable[[Namespace], None], **given: Any) -> Any:
    shape = {"embed_dim": BASE.width, "ffn_embed_dim": BASE.ffn, "attention_heads": BASE.heads}
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in shape.items()}
    args = Namespace(**sides, share_all_embeddings=True, dropout=BASE.dropout, **given)
    architecture(args)
    return kind.build_model(args, numbered_dictionaries(TYPES, TYPES)).train()


def _verifier() -> Trained:
    def loss(model: Any, text: Tensor, chance: torch.Generator) -> Tensor:
        lengths = torch.full((len(text),), text.shape[1])
        logits = model(text, lengths, text)[0].flatten(0, 1)
        return F.cross_entropy(logits, text.flatten(), label_smoothing=0.1)

    return _model(TransformerModel, base_architecture), loss


def _drafter() -> Trained:
    def loss(model: Any, text: Tensor, chance: torch.Generator) -> Tensor:
        lengths = torch.full((len(text),), text.shape[1])
        prefix = draw_prefix_lengths(lengths, chance)
        blocks = mask_blocks(text, prefix, BASE.block_size, mask=3, pad=1)
        out = model(text, lengths, *blocks, Glance(0.5, chance))
        return block_loss(out.logits, out.targets, 0.1).loss

    learned = {"encoder_learned_pos": True, "decoder_learned_pos": True}
    given = {"arch": "block", "src_embedding_copy": True, "apply_bert_init": True, **learned}
    return _model(BlockDrafter, block_architecture, activation_fn="gelu", **given), loss


def counted_update(
    make: Callable[[], Trained], tokens: int, chance: torch.Generator
) -> tuple[Counted, int, float]:
    """What an update of so many target tokens launches, its weights, and bytes in fp16.

    chance: draws the tokens, and what is masked. The bytes are those of weights (fp16, and 32 bits
    for themselves, gradients and two moments) and of what is kept for going backwards.
    """
    model, loss = make()
    num_weights = sum(weight.numel() for weight in model.parameters())
    text = torch.randint(4, TYPES, (tokens // LENGTH, LENGTH), generator=chance)
    text[:, -1] = 2
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with Counted(on="cpu") as counted:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = loss(model, text, chance)
        activations = sum(kept.values()) - 4 * num_weights
        result.backward()
    return counted, num_weights, 18 * num_weights + activations / 2


def hours(counted: Counted, num_weights: int, updates: int, pieces: float, gpu: Any) -> float:
    """Hours of so many updates, each in pieces of what was counted."""
    once = sum(
        max(EAGER, launch.num_bytes / 2 / gpu.bandwidth, launch.products / gpu.products)
        for launch in counted.launches
    )
    adam = ADAM * max(EAGER, 12 * num_weights / gpu.bandwidth)
    return updates * (pieces * once + adam) / 3600


def main(seed: int = 0) -> None:
    """Write the table, in Markdown."""
    chance = torch.Generator().manual_seed(seed)
    found = {
        make: {n: counted_update(make, BASE.max_tokens // n, chance) for n in (1, 2)}
        for make in (_verifier, _drafter)
    }
    names = [f"{gpus} {gpu.name}" for gpu in GPUS for gpus in (1, 8)]
    sys.stdout.write(f"| step | tokens | {' | '.join(names)} | GB on a GPU |\n")
    sys.stdout.write(f"|---|{'---:|' * (len(names) + 2)}\n")
    steps = [
        ("teacher", _verifier, BASE.verifier_updates, BASE.verifier_tokens),
        ("verifier", _verifier, BASE.retrain_updates, BASE.verifier_tokens),
        ("drafter", _drafter, BASE.drafter_updates, BASE.drafter_tokens),
    ]
    for name, make, updates, tokens in steps:
        cells = [f"{updates * tokens / 1e9:.1f} billion"]
        for gpu in GPUS:
            for gpus in (1, 8):
                # A GPU's share that is smaller than a whole piece is counted as it is.
                part = 1 if tokens / gpus >= BASE.max_tokens else 2
                counted, num_weights, _ = found[make][part]
                pieces = tokens / gpus / (BASE.max_tokens / part)
                cells.append(f"{hours(counted, num_weights, updates, pieces, gpu):.1f}")
        memory = found[make][1][2]
        sys.stdout.write(f"| {name} | {' | '.join(cells)} | {memory / 1e9:.1f} |\n")
    parts = traced(SYSTEMS[0], WIDE)
    once = [PAIRS * 5 * sentence(SYSTEMS[0], parts, WIDE, gpu, EAGER) / 3.6e6 for gpu in GPUS]
    cells = [f"{time / gpus:.1f}" for time in once for gpus in (1, 8)]
    sys.stdout.write(f"| beam 5 of {PAIRS:,} pairs | | {' | '.join(cells)} | |\n")


if __name__ == "__main__":
    main()
