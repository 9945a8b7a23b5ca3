"""``--arch early_exit_transformer``: the stock Transformer, trained for early exit.

Source: LayerSkip (Elhoushi et al., ACL 2024), section 4.1. Parameters have the stock model's names,
so decoders treat its checkpoints as stock checkpoints.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Any

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder, TransformerModel
from fairseq.models.transformer import base_architecture as transformer_architecture
from torch import Tensor, nn

from specdec_plugins.errors import require

# Flags that would skip layers in another way, or remove the output projection.
_REFUSED = ("adaptive_softmax_cutoff", "decoder_layerdrop", "decoder_layers_to_keep")


def skip_probability(index: int, num_layers: int, last: float) -> float:
    """How often a sentence skips decoder layer `index`, from 0: 0 for the first, `last` at the end.

    The paper's D(l) p_max, D(l) = exp(l ln 2 / (L - 1)) - 1, without the growth over time, which
    the paper uses only for training from scratch. A single layer is never skipped.
    """
    if num_layers == 1:
        return 0.0
    return float(last * (2 ** (index / (num_layers - 1)) - 1))


def skip_layer(
    probability: float,
    layer: nn.Module,
    inputs: tuple[Tensor, ...],  # the first is T x B x C
    outputs: tuple[Any, ...],  # the first likewise
) -> tuple[Any, ...] | None:
    """Forward hook: in training, some sentences skip the layer."""
    if not layer.training or probability == 0:
        return None
    before, after = inputs[0], outputs[0]
    skipped = torch.rand(before.size(1), device=before.device) < probability  # [B]
    return (torch.where(skipped[:, None], before, after), *outputs[1:])


class EarlyExitDecoder(TransformerDecoder):
    """A stock decoder whose layers are skipped in training, later ones more often."""

    def __init__(self, args: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        for index, layer in enumerate(self.layers):
            probability = skip_probability(index, len(self.layers), args.max_layer_skip)
            layer.register_forward_hook(partial(skip_layer, probability))

    def exit_logits(self, state: Tensor) -> Tensor:
        """Logits [B, T, V] of a layer's output, T x B x C, by the final norm and the projection."""
        x = state.transpose(0, 1)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        logits: Tensor = self.output_layer(x)
        return logits


@register_model("early_exit_transformer")
class EarlyExitTransformer(TransformerModel):
    """See the module; train it with ``--criterion early_exit_loss``."""

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        TransformerModel.add_args(parser)
        parser.add_argument(
            "--max-layer-skip",
            type=float,
            metavar="P",
            help="how often a sentence skips the last decoder layer in training, from 0 to 1; "
            "layers before it are skipped less often, the first never (default: 0.1)",
        )

    @classmethod
    def build_model(cls, args: Any, task: Any) -> EarlyExitTransformer:
        for name in _REFUSED:
            require(
                not getattr(args, name, None),
                f"--{name.replace('_', '-')} is not supported by --arch early_exit_transformer; "
                "leave it out",
            )
        skip = args.max_layer_skip
        require(0 <= skip <= 1, f"--max-layer-skip is {skip}, expected 0 to 1")
        return super().build_model(args, task)

    @classmethod
    def build_decoder(
        cls, args: Any, tgt_dict: Any, embed_tokens: nn.Embedding
    ) -> EarlyExitDecoder:
        return EarlyExitDecoder(args, tgt_dict, embed_tokens)


@register_model_architecture("early_exit_transformer", "early_exit_transformer")
def early_exit_architecture(args: Namespace) -> None:
    """The base Transformer; every flag given by the user stays."""
    args.max_layer_skip = getattr(args, "max_layer_skip", 0.1)
    transformer_architecture(args)
