"""The inference twin of a drafter that is being trained, so that validation decodes for real."""

from __future__ import annotations

from typing import Any

from fairseq.modules import SinusoidalPositionalEmbedding

from specdec_plugins.decoding.networks import BlockConfig, StackConfig
from specdec_plugins.decoding.networks import BlockDrafter as BlockNetwork
from specdec_plugins.formats.fairseq_weights import fill, network_state, upgrade
from specdec_plugins.models.block_drafter import BlockDrafter


def inference_twin(model: BlockDrafter, block_size: int) -> BlockNetwork:
    """A copy of the model's present weights as an inference network, in eval mode.

    The copy is float32 on the model's device, whatever the precision of the training.
    """
    encoder, decoder = model.encoder, model.decoder
    config = BlockConfig(
        encoder=_stack(encoder),
        decoder=_stack(decoder),
        pad=decoder.padding_idx,
        activation=model.cfg.activation_fn,
        scale_embedding=encoder.embed_scale != 1.0,
        share_embeddings=encoder.embed_tokens is decoder.embed_tokens,
        tie_output=decoder.output_projection.weight is decoder.embed_tokens.weight,
        mask=decoder.mask,
        block_size=block_size,
        copy_source=decoder.copy_attn is not None,
        scale_decoder=decoder.embed_scale != 1.0,
        cached_prefix=decoder.cached_prefix,
    )
    network = BlockNetwork(config)
    state = network_state(upgrade(model.state_dict()), bidirectional=True)
    fill(network, state, "the drafter in training")
    device = decoder.embed_tokens.weight.device
    return network.to(device).eval().requires_grad_(False)


def _stack(stack: Any) -> StackConfig:
    layer = stack.layers[0]
    sinusoidal = isinstance(stack.embed_positions, SinusoidalPositionalEmbedding)
    return StackConfig(
        num_layers=len(stack.layers),
        dim=layer.fc1.in_features,
        ffn_dim=layer.fc1.out_features,
        num_heads=layer.self_attn.num_heads,
        vocab_size=stack.embed_tokens.num_embeddings,
        max_positions=int(stack.max_positions()),
        positions="sinusoidal" if sinusoidal else "learned",
    )
