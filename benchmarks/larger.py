"""Makes a model larger that still computes the same.

Net2Net (Chen et al. 2016, arXiv 1511.05641), adapted to layer norms and tied embeddings:

**Width.** Every unit is repeated: a state is [x, x], and heads and inner units likewise. A product
reads the sum of the copies, so its weights are divided by their number. Mean and variance, and so
a layer norm with its epsilon, are unchanged.

**Depth.** New layers follow the old ones, and their attention and feed-forward blocks add zero: the
last product reads two copies with opposite signs, times 2^-20, so that even the rounding of float32
sums stays below the last bit. (Weights of zero have no 8-bit scale.) With pre-norm layers, that is
all. With post-norm layers, each new layer adds two or three norms, and the norm of a normed state
is *not* that state: epsilon enters again. Let s be the standard deviation of x, and let "epsilon r"
stand for x / sqrt(s^2 + r). A norm that reads its input times k has epsilon eps / k^2. A norm of
epsilon 1 after one of epsilon r gives x / sqrt(2 s^2 + r), which is one of epsilon r / 2, divided
by sqrt(2). So the formerly last norm reads its input at the scale where it has epsilon 2^N eps. N
norms later that is eps again, exactly, for every x.

**Words.** A new word's embedding is the mean of all real words', so that its logit is their mean,
less a constant: the last norm adds c to one copy of a state and subtracts it from the other. Real
words read the sum, so they do not see it. A new word never wins; its probability is negligible.

**A sequential head** reads and writes these last states, and reads embeddings through a norm. If
embeddings are scaled, their copies are smaller, so that the norm's epsilon weighs a little more:
drafts are those of the smaller head except for near-ties.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdec_plugins.decoding.networks import BlockConfig, StackConfig, TransformerConfig
from specdec_plugins.decoding.networks.layers import sinusoids
from specdec_plugins.decoding.networks.trained import Model, State, layer_number
from specdec_plugins.errors import UserError, located, require

_EPSILON = 1e-5  # of every layer norm, in every engine
_SILENT = re.compile(r"\.(self_attn\.out_proj|encoder_attn\.out_proj|fc2)\.")
_JOINED = re.compile(r"\.head\.(state|token|key_value)\.")  # of two parts in one product
_FAINT = 2.0**-20
_NUM_SPECIAL = 4  # ids before the first word
_OFFSET = 0.25  # c: added to one copy of a last state, subtracted from the other
_GAP = 50.0  # nats that a new word's logit lies below the mean of the others


@dataclass(frozen=True)
class Size:
    """The target size of a verifier."""

    encoder_layers: int
    decoder_layers: int
    width: int  # of both stacks; a multiple of the old one, twice or more
    types: int  # of each dictionary, special symbols included

    def __str__(self) -> str:
        layers = f"{self.encoder_layers}+{self.decoder_layers} layers"
        return f"{layers}, {self.width} wide, {self.types:,} types"


def enlarged(model: Model, size: Size) -> Model:
    """The model at that size, weights in float64: the same logits for the same tokens.

    Heads keep their width. Sinusoids become learned positions, as those of a wider model differ.
    Raises UserError if the model is already larger, or of a kind that cannot be made larger.
    """
    config = _checked(model, size)
    times = size.width // config.decoder.dim
    lists = {name: tensor for name, tensor in model.state.items() if ".shortlist." in name}
    state = {name: tensor.double() for name, tensor in model.state.items() if name not in lists}
    for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        if stack.positions == "sinusoidal":
            table = sinusoids(stack.max_positions + config.pad + 1, stack.dim)
            state[f"{side}.embed_positions.weight"] = table.double()
        num_layers = size.encoder_layers if side == "encoder" else size.decoder_layers
        state = _deepened(state, side, stack, num_layers)
    state = {name: _widened(name, tensor, config, times) for name, tensor in state.items()}
    _settle(state, config, size, times)
    for name, tensor in lists.items():
        # New source types have no likely targets: they begin where the entries end.
        more = size.types - config.encoder.vocab_size if name.endswith(".starts") else 0
        lists[name] = torch.cat([tensor, tensor[-1:].expand(more)])
    return replace(model, config=_config(config, size, times), state=state | lists)


def stored(model: Model) -> Model:
    """The model with matrices rounded to 16 bits, as in published models.

    Growing multiplies some by factors that are not powers of two. Each keeps 11 binary digits, in
    units of its own power of two, as some are too small for float16 itself. Rounding is to even.
    """
    state = {}
    for name, tensor in model.state.items():
        if tensor.dim() == 2 and tensor.is_floating_point() and ".shortlist." not in name:
            largest = float(tensor.abs().amax()) or 1.0
            unit = math.ldexp(1.0, math.frexp(largest)[1] - 15)
            tensor = (tensor / unit).half().double() * unit
        state[name] = tensor
    return replace(model, state=state)


def _checked(model: Model, size: Size) -> TransformerConfig:
    """The model's configuration. Raises UserError if it cannot be made that large."""
    config = model.config
    if not isinstance(config, TransformerConfig):
        raise UserError(f"{model.path}: {model.arch} cannot be made larger; use a block drafter.")
    encoder, decoder = config.encoder, config.decoder
    with located(model.path):
        one_width = len({encoder.dim, decoder.dim, config.input_dim, config.output_dim}) == 1
        require(one_width, "its stacks or embeddings have several widths; expected one.")
        require(
            size.width % decoder.dim == 0 and size.width > decoder.dim,
            f"the model is {decoder.dim} wide; give a larger multiple of that as the width, not "
            f"{size.width}.",
        )
        for what, now, then in (
            ("encoder layers", encoder.num_layers, size.encoder_layers),
            ("decoder layers", decoder.num_layers, size.decoder_layers),
            ("types", max(encoder.vocab_size, decoder.vocab_size), size.types),
        ):
            require(now <= then, f"the model already has {now} {what}; give at least that many.")
        ends_in_norm = not decoder.normalize_before or decoder.final_norm
        require(ends_in_norm, "its decoder ends without a norm, so it cannot be made larger.")
        if isinstance(config, BlockConfig):
            require(
                config.scale_embedding == config.scale_decoder,
                "the model scales the embeddings of one stack only, so no wider one is equivalent; "
                "use a drafter of specdec drafter.",
            )
            as_deep = decoder.num_layers == size.decoder_layers
            require(as_deep, "every layer of its decoder reads positions, so it stays as deep.")
    return config


def _config(config: TransformerConfig, size: Size, times: int) -> TransformerConfig:
    def stack(old: StackConfig, num_layers: int) -> StackConfig:
        return replace(
            old,
            num_layers=num_layers,
            dim=size.width,
            ffn_dim=times * old.ffn_dim,
            num_heads=times * old.num_heads,
            vocab_size=size.types,
            positions="none" if old.positions == "none" else "learned",
        )

    if isinstance(config, BlockConfig):
        heads = times * config.head_attention
        config = replace(
            config, sequential_head=times * config.sequential_head, head_attention=heads
        )
    return replace(
        config,
        encoder=stack(config.encoder, size.encoder_layers),
        decoder=stack(config.decoder, size.decoder_layers),
        decoder_input_dim=None,
        decoder_output_dim=None,
    )


def _last_norm(config: TransformerConfig, num_layers: int) -> str:
    """The name of the norm whose output the output projection reads."""
    if config.decoder.final_norm:
        return "decoder.layer_norm"
    return f"decoder.layers.{num_layers - 1}.final_layer_norm"


def _deepened(state: State, side: str, stack: StackConfig, num_layers: int) -> State:
    """The state with copies of the last layer after it, which `_widened` silences."""
    state = dict(state)
    last = stack.num_layers - 1
    old = {name: tensor for name, tensor in state.items() if layer_number(side, name) == last}
    for number in range(stack.num_layers, num_layers):
        for name, tensor in old.items():
            state[name.replace(f".{last}.", f".{number}.", 1)] = tensor
    if num_layers > stack.num_layers and not stack.normalize_before:
        _chain_norms(state, side, last, num_layers)
    return state


def _chain_norms(state: State, side: str, last: int, num_layers: int) -> None:
    """Make the norms after layer `last`, formerly the last one, act as one with its last norm."""
    before = {"encoder": "self_attn_layer_norm", "decoder": "encoder_attn_layer_norm"}[side]
    layer, norm = f"{side}.layers.{last}", "final_layer_norm"
    new = [f"{side}.layers.{number}" for number in range(last + 1, num_layers)]
    inner = ["self_attn_layer_norm", before] if side == "decoder" else [before]
    norms = [f"{one}.{name}" for one in new for name in (*inner, norm)]
    scale = 2.0 ** (-len(norms) / 2)  # of the old norm's input: its state and what is added
    for name in (f"{before}.weight", f"{before}.bias", "fc2.weight", "fc2.bias"):
        state[f"{layer}.{name}"] = scale * state[f"{layer}.{name}"]
    state[f"{layer}.fc1.weight"] = state[f"{layer}.fc1.weight"] / scale
    gain, bias = (state[f"{layer}.{norm}.{kind}"] for kind in ("weight", "bias"))
    small = torch.full_like(gain, math.sqrt(_EPSILON))  # makes the next epsilon 1 in effect
    for number, name in enumerate([f"{layer}.{norm}", *norms]):
        is_last = number == len(norms)
        restored = 1.0 if number == 0 else math.sqrt(2)
        state[f"{name}.weight"] = restored * (gain if is_last else small)
        state[f"{name}.bias"] = bias if is_last else torch.zeros_like(bias)


def _widened(name: str, tensor: Tensor, config: TransformerConfig, times: int) -> Tensor:
    """One weight for states of `times` copies; `_settle` completes the tables and the last norm."""
    if isinstance(config, BlockConfig) and config.head_attention and _JOINED.search(name):
        first = config.decoder.dim if "key_value" in name else config.sequential_head
        parts = tensor.tensor_split([first])
        return torch.cat([_repeated(part, times) for part in parts])
    if tensor.dim() == 1:
        is_new = _is_new(name, config) and _SILENT.search(name)
        return torch.zeros_like(tensor).repeat(times) if is_new else tensor.repeat(times)
    if "embed_" in name or "output_projection" in name:
        return tensor.repeat(1, times)
    if _is_new(name, config) and _SILENT.search(name):
        silent = torch.cat([tensor, -tensor, *[torch.zeros_like(tensor)] * (times - 2)], 1)
        return _FAINT * silent.repeat(times, 1)
    # The scores of the copy attention are not divided by the width of the embeddings.
    num_sums = 2 if "copy_attn" in name else 1
    return _repeated(tensor, times, num_sums)


def _repeated(tensor: Tensor, times: int, num_sums: int = 1) -> Tensor:
    """Repeat a bias; repeat weights and divide them by the number of copies that they add up."""
    if tensor.dim() == 1:
        return tensor.repeat(times)
    return tensor.repeat(times, times) / times**num_sums


def _is_new(name: str, config: TransformerConfig) -> bool:
    """True if the weight belongs to a new layer."""
    stacks = (("encoder", config.encoder), ("decoder", config.decoder))
    return any(layer_number(side, name) >= stack.num_layers for side, stack in stacks)


def _settle(state: State, config: TransformerConfig, size: Size, times: int) -> None:
    """Set the tables, their new rows, and the last norm, which the output projection reads."""
    scales = {"encoder": config.scale_embedding, "decoder": config.scale_embedding}
    if isinstance(config, BlockConfig):
        scales["decoder"] = config.scale_decoder
    factors = {side: times**-0.5 if scaled else 1.0 for side, scaled in scales.items()}
    output = factors["decoder"] if config.tie_output else 1 / times
    tables = {f"{side}.embed_tokens.weight": factor for side, factor in factors.items()}
    tables["decoder.output_projection.weight"] = output
    for name, factor in tables.items():
        state[name] = _with_new_words(factor * state[name], config.decoder.dim, size.types)
    norm, scale = _last_norm(config, size.decoder_layers), 1 / (times * output)
    for kind in ("weight", "bias"):
        state[f"{norm}.{kind}"] = scale * state[f"{norm}.{kind}"]
    if isinstance(config, BlockConfig) and config.sequential_head:
        state["decoder.head.state.weight"] = state["decoder.head.state.weight"] / scale
        for kind in ("weight", "bias"):
            state[f"decoder.head.out.{kind}"] = scale * state[f"decoder.head.out.{kind}"]
    offset = torch.full((config.decoder.dim,), _OFFSET, dtype=torch.float64)
    rest = torch.zeros((times - 2) * config.decoder.dim, dtype=torch.float64)
    state[f"{norm}.bias"] = state[f"{norm}.bias"] + torch.cat([offset, -offset, rest])


def _with_new_words(table: Tensor, dim: int, types: int) -> Tensor:
    """Extend a table from [V, D] to [types, D]; one copy of a state has `dim` numbers."""
    word = table[_NUM_SPECIAL:].mean(0)
    step = _GAP / (2 * dim * _OFFSET)
    word[:dim] -= step
    word[dim : 2 * dim] += step
    return torch.cat([table, word.expand(types - len(table), -1)])
