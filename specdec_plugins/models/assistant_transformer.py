"""``--arch assistant_transformer``: a small decoder on a trained verifier's own encoder.

It learns to read encoder states that the verifier computes anyway, so the drafter `assistant` with
`{"encoder": "verifier"}` encodes no source a second time. Source: Distil-Whisper (Gandhi et al.
2023, section 3.1), which freezes the encoder and initialises the decoder from evenly spaced layers.
A checkpoint is a stock Transformer with all its weights, and also runs alone.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer import base_architecture as transformer_architecture
from torch import Tensor

from specdec_plugins.errors import require

# Settings of the verifier's encoder whose names do not begin with "encoder_".
_OF_THE_ENCODER = (
    "activation_fn",
    "layernorm_embedding",
    "max_source_positions",
    "no_scale_embedding",
    "no_token_positional_embeddings",
)


def load_verifier(args: Any, task: Any, purpose: str) -> tuple[Any, Any]:
    """The model at ``--verifier-path``, and its settings. Raises UserError if it does not exist."""
    path = getattr(args, "verifier_path", None)
    require(
        path is not None and Path(path).is_file(),
        f"--verifier-path is {path}, expected the checkpoint of the verifier to {purpose}",
    )
    (verifier,), cfg = checkpoint_utils.load_model_ensemble([path], task=task)
    return verifier, cfg


def spaced_layers(num_wanted: int, num_given: int) -> list[int]:
    """Numbers, from 0, of the given layers that initialise the wanted ones.

    First and last, and evenly between, as in Shleifer and Rush 2020 (pre-trained summarization
    distillation), section 3.2. A single layer starts as the last, whose output the output
    projection reads; started as the first, it learns much more slowly.
    """
    if num_wanted == 1:
        return [num_given - 1]
    return [index * (num_given - 1) // (num_wanted - 1) for index in range(num_wanted)]


def chosen_layers(
    state: dict[str, Tensor], chosen: Sequence[int], prefix: str = "layers."
) -> dict[str, Tensor]:
    """Weights of some layers, counted from 0, under the names of a model that has these alone."""
    return {
        name.replace(f"{prefix}{old}.", f"{prefix}{new}.", 1): tensor
        for new, old in enumerate(chosen)
        for name, tensor in state.items()
        if name.startswith(f"{prefix}{old}.")
    }


@register_model("assistant_transformer")
class AssistantTransformer(TransformerModel):
    """See the module; train it with any criterion of a stock Transformer."""

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        TransformerModel.add_args(parser)
        parser.add_argument(
            "--verifier-path", metavar="FILE", help="verifier checkpoint whose encoder it reads"
        )

    @classmethod
    def build_model(cls, args: Any, task: Any) -> AssistantTransformer:
        """Raises UserError if there is no verifier, or embeddings would have to be shared."""
        require(
            not args.share_all_embeddings,
            "--share-all-embeddings would change the verifier's encoder; for "
            "--arch assistant_transformer use --share-decoder-input-output-embed",
        )
        verifier, cfg = load_verifier(args, task, "assist")
        for name, value in vars(cfg.model).items():
            if name.startswith("encoder_") or name in _OF_THE_ENCODER:
                setattr(args, name, value)
        model: AssistantTransformer = super().build_model(args, task)
        model.begin_from(verifier)
        return model

    def begin_from(self, verifier: Any) -> None:
        """Copy and freeze the encoder; initialise the decoder with weights of the same shape."""
        self.encoder.load_state_dict(verifier.encoder.state_dict())
        self.encoder.eval().requires_grad_(False)
        wanted, state = self.decoder.state_dict(), verifier.decoder.state_dict()
        layers = (self.decoder.layers, verifier.decoder.layers)
        given = {name: tensor for name, tensor in state.items() if not name.startswith("layers.")}
        given |= chosen_layers(state, spaced_layers(*map(len, layers)))
        same = {n: t for n, t in given.items() if n in wanted and t.shape == wanted[n].shape}
        self.decoder.load_state_dict(same, strict=False)

    def train(self, mode: bool = True) -> AssistantTransformer:
        """The encoder never has dropout: the decoder reads the states that decoding gives it."""
        super().train(mode)
        self.encoder.eval()
        return self


@register_model_architecture("assistant_transformer", "assistant_transformer")
def assistant_architecture(args: Namespace) -> None:
    """One decoder layer by default; the rest as in the base Transformer."""
    args.decoder_layers = getattr(args, "decoder_layers", 1)
    transformer_architecture(args)
