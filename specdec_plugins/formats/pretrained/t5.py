"""T5 and its relatives: how their config.json describes our network, and their weights' names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from specdec_plugins.decoding.networks import StackConfig, TransformerConfig
from specdec_plugins.decoding.networks.reading import Parts, now
from specdec_plugins.formats.dictionaries import Dictionary

# Nothing in the network limits a text: positions are relative. Training did, to 512 or 1,024.
_LONGEST = 2048
_GATED = "gated-"

# By the names of blocks, and of sublayers whose number differs between the sides.
_NAMES = {
    "SelfAttention.relative_attention_bias": "self_attn.relative",
    **{f"SelfAttention.{part}": f"self_attn.{part}_proj" for part in "qkv"},
    **{f"EncDecAttention.{part}": f"encoder_attn.{part}_proj" for part in "qkv"},
    "SelfAttention.o": "self_attn.out_proj",
    "EncDecAttention.o": "encoder_attn.out_proj",
    **{"DenseReluDense.wi": "fc1", "DenseReluDense.wi_0": "fc1", "DenseReluDense.wi_1": "gate"},
    "DenseReluDense.wo": "fc2",
}
_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
_BLOCK = re.compile(r"(encoder|decoder)\.block\.(\d+)\.layer\.(\d)\.(.+)\.weight")
_TASK = re.compile("translation_([a-z]+)_to_([a-z]+)")
# Old files have a table of positions in cross-attention, which nothing reads.
_UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def prefixes(config: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """What a text begins with that is to be translated, by its languages and those of the result.

    Of T5's config.json; most of its relatives were trained without.
    """
    found = dict[tuple[str, str], str]()
    tasks = config.get("task_specific_params")
    for name, how in tasks.items() if isinstance(tasks, dict) else ():
        task = _TASK.fullmatch(name)
        if task and isinstance(how, dict) and isinstance(how.get("prefix"), str):
            found[task[1], task[2]] = how["prefix"]
    return found


def activation_of(fields: Mapping[str, Any]) -> str:
    """The activation's name in transformers."""
    named: str = fields["feed_forward_proj"]
    # "gated-gelu" is older than the names of activations, and means the tanh form.
    return "gelu_new" if named == f"{_GATED}gelu" else named.removeprefix(_GATED)


def network(
    fields: Mapping[str, Any],
    num_source: int,
    num_target: int,
    activation: str,
    bias_each_layer: bool,
) -> TransformerConfig:
    """The network's configuration for tables of that size. activation: by our name."""

    def stack(num_layers: int, vocab_size: int) -> StackConfig:
        return StackConfig(
            num_layers=num_layers,
            dim=fields["d_model"],
            ffn_dim=fields["d_ff"],
            num_heads=fields["num_heads"],
            vocab_size=vocab_size,
            max_positions=_LONGEST,
            positions="relative",
            normalize_before=True,
            final_norm=True,
            attention_dim=fields["num_heads"] * fields["d_kv"],
            scales_scores=False,
            norm="rms",
            norm_epsilon=fields["layer_norm_epsilon"],
            biases=False,
            gated=fields["feed_forward_proj"].startswith(_GATED),
            num_buckets=fields["relative_attention_num_buckets"],
            max_distance=fields["relative_attention_max_distance"],
            bias_each_layer=bias_each_layer,
        )

    num_encoding = fields["num_layers"]
    return TransformerConfig(
        encoder=stack(num_encoding, num_source),
        decoder=stack(fields["num_decoder_layers"] or num_encoding, num_target),
        pad=Dictionary.pad,
        activation=activation,
        scale_embedding=False,
    )


def own_names(stored: Parts, fields: Mapping[str, Any]) -> Parts:
    """The weights under the names of the other families, which are fairseq's.

    Where the states are scaled before the projection, the factor becomes a part of the last norm.
    """
    state = {_own_name(name): tensor for name, tensor in stored.items() if name != _UNUSED}
    last = "decoder.layer_norm.weight"
    if fields["scale_decoder_outputs"] and last in state:
        state[last] = now(state[last]).float() * fields["d_model"] ** -0.5
    return state


def _own_name(name: str) -> str:
    found = _BLOCK.fullmatch(name)
    if found is None:
        return name.replace(".final_layer_norm.", ".layer_norm.")
    side, block, layer, part = found.groups()
    own = _NAMES.get(part, part)
    if part == "layer_norm" and int(layer) < len(_NORMS[side]):
        own = _NORMS[side][int(layer)]
    return f"{side}.layers.{block}.{own}.weight"
