"""Trained models in files: read from bundles and fairseq checkpoints of any age, and written as
checkpoints that fairseq's trainer and fairseq-generate load.
"""

from __future__ import annotations

import os
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.networks import BlockConfig, StackConfig, TransformerConfig
from specdec_plugins.decoding.networks.reading import all_read
from specdec_plugins.decoding.networks.trained import (
    NETWORKS,
    Digests,
    Model,
    State,
    TrainedNetwork,
    check_digests,
    kind_of,
)
from specdec_plugins.errors import UserError, located, require
from specdec_plugins.formats.bundle import WEIGHTS_SUFFIX, read_weights
from specdec_plugins.formats.checkpoints import load_checkpoint, untrained
from specdec_plugins.formats.dictionaries import (
    Dictionaries,
    Dictionary,
    Languages,
    load_dictionaries,
)

_VERSION = 3.0  # from 2 on, a stack may end in a norm; from 3 on, layers have today's layout
DIGESTS = "dictionaries"  # the entry of a checkpoint's settings

# Buffers that mark the format of a file, and position tables that are computed anyway.
_IGNORED = re.compile(r"\.version$|\.embed_positions\.(_float_tensor|weights)$")

_OLD_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


def read_model(path: str | Path) -> Model:
    """The model of a file. Raises UserError where it is missing, damaged or of another kind."""
    if Path(path).suffix == WEIGHTS_SUFFIX:
        return read_weights(path)
    return read_checkpoint(path)


def read_model_of(
    cls: type[TrainedNetwork], path: str | Path, source: Dictionary, target: Dictionary
) -> Model:
    """The model of a file. UserError also for another class, direction or size of dictionaries."""
    model = read_model(path)
    kind = NETWORKS.get(model.kind)
    require(
        kind is cls,
        f"{path}: this is {kind.noun} (arch {model.arch}), where {cls.noun} is needed; give a "
        f"checkpoint that was trained with --arch {cls.arch}.",
    )
    check_direction(path, model.languages, (source.language, target.language))
    model.check_dictionaries(source, target)
    return model


def dictionaries_of(folder: str | Path, asked: Languages, model: str | Path | None) -> Dictionaries:
    """As `load_dictionaries`; where file names do not tell the direction, the model does."""
    return load_dictionaries(
        folder, *asked, lambda: read_model(model).languages if model is not None else (None, None)
    )


def check_direction(path: str | Path, trained: Languages, asked: Languages) -> None:
    """Raises UserError if a model is asked to translate in the opposite direction.

    Other names may mean the same languages, so only exchanged ones are refused.
    """
    source, target = trained
    require(
        asked != (target, source) or source == target,
        f"{path}: was trained from {source} to {target}; swap --source-lang and --target-lang, or "
        "give a checkpoint of the other direction.",
    )


class TrainingRecord:
    """The settings of a checkpoint: flat or nested, in today's or an old format."""

    def __init__(self, checkpoint: dict[str, Any], path: Path) -> None:
        config = checkpoint.get("cfg")
        self._path = path
        self._task = config.get("task") if config is not None else None
        self._model = config.get("model") if config is not None else checkpoint.get("args")
        self._digests = _read(checkpoint.get("args") if config is None else config, DIGESTS)
        if self._model is None:
            raise UserError(
                f"{path}: the checkpoint does not say what its model is (neither 'cfg' nor "
                "'args'); give one that fairseq-train wrote."
            )

    @property
    def arch(self) -> str:
        return str(self.get("_name") or self.get("arch") or "unknown")

    @property
    def digests(self) -> Digests:
        """Of the dictionaries, as train.py records them."""
        return self._digests or (None, None)

    def check_dictionaries(self, both: Dictionaries) -> None:
        """Raises UserError if others are recorded."""
        check_digests(self._path, self.digests, both.source, both.target)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a flag of the model, or else of the task.

        `encoder_layers` may also be stored as `encoder.layers`.
        """
        group, _, rest = name.partition("_")
        holders = ((self._model, name), (_read(self._model, group), rest), (self._task, name))
        found = (_read(holder, key) for holder, key in holders)
        return next((value for value in found if value is not None), default)


def _read(holder: Any, name: str) -> Any:
    """A value of a Namespace, a DictConfig or a dictionary; None where there is none."""
    if holder is None or isinstance(holder, (str, int, float)) or not name:
        return None
    if hasattr(holder, "get"):
        return holder.get(name)
    return getattr(holder, name, None)


def read_checkpoint(path: str | Path) -> Model:
    """The model of a fairseq checkpoint; its `--arch` determines the kind of network (`kind_of`).

    Raises UserError if the file is no such checkpoint, or uses an option that the network does not
    have.
    """
    path = Path(path)
    require(
        os.pathsep not in str(path) or path.exists(),
        f"{path}: ensembles are not supported; give one checkpoint, or average them first.",
    )
    checkpoint = load_checkpoint(path)
    record = TrainingRecord(checkpoint, path)
    state = upgrade(checkpoint["model"])
    tied = record.get("share_decoder_input_output_embed") or record.get("share_all_embeddings")
    if tied and "decoder.embed_tokens.weight" in state:
        # Older versions did not store a projection that is tied to the embeddings.
        state.setdefault("decoder.output_projection.weight", state["decoder.embed_tokens.weight"])
    kind = kind_of(record.arch)
    with located(path):
        config = NETWORKS.get(kind).configure(state, record)
    languages = (record.get("source_lang"), record.get("target_lang"))
    return Model(path, kind, record.arch, config, state, languages, record.digests)


def upgrade(state: State) -> State:
    """The state dict of a fairseq checkpoint in today's names, whatever version wrote it."""
    upgraded: State = {}
    for name, tensor in state.items():
        if not _IGNORED.search(name):
            upgraded.update(_modern(name, tensor))
    return upgraded


def _modern(name: str, tensor: Tensor) -> State:
    if name == "decoder.embed_out":
        return {"decoder.output_projection.weight": tensor}
    norm = re.fullmatch(r"((encoder|decoder)\.layers\.\d+)\.layer_norms\.(\d)\.(\w+)", name)
    if norm:
        layer, side, number, kind = norm.groups()
        return {f"{layer}.{_OLD_NORMS[side][int(number)]}.{kind}": tensor}
    fused = re.fullmatch(r"(.*)\.in_proj_(weight|bias)", name)
    if fused:
        prefix, kind = fused.groups()
        names = [f"{prefix}.{letter}_proj.{kind}" for letter in "qkv"]
        return dict(zip(names, tensor.chunk(3), strict=True))
    return {name: tensor}


def to_checkpoint(model: Model, source_lang: str, target_lang: str) -> dict[str, Any]:
    """A checkpoint as fairseq's trainer reads it, before the first update; float32 weights.

    Raises UserError if fairseq has no option for some part of the model.
    """
    if not isinstance(model.config, TransformerConfig):
        raise UserError(
            f"{model.path}: {NETWORKS.get(model.kind).noun} is not a fairseq encoder-decoder; "
            "convert its verifier."
        )
    _check_expressible(model, model.config.encoder, model.config.decoder)
    settings = {**flags_of(model), "source_lang": source_lang}
    settings |= {"target_lang": target_lang, "data": None, DIGESTS: list(model.digests)}
    state = _in_float32(all_read(model.state))
    for side, stack in (("encoder", model.config.encoder), ("decoder", model.config.decoder)):
        state[f"{side}.version"] = torch.tensor([_VERSION])
        if stack.positions == "sinusoidal":
            state[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
    return untrained(Namespace(**settings), state)


def _in_float32(state: State) -> State:
    """The state in float32, but for integers. Tied weights stay one tensor, stored once."""
    converted: dict[int, Tensor] = {}
    for tensor in state.values():
        converted.setdefault(id(tensor), tensor.float() if tensor.is_floating_point() else tensor)
    return {name: converted[id(tensor)] for name, tensor in state.items()}


def _check_expressible(model: Model, encoder: StackConfig, decoder: StackConfig) -> None:
    """Raises UserError where no flags of fairseq build these stacks."""
    for fits, rule in (
        (
            encoder.final_norm == encoder.normalize_before,
            "its encoder ends in a norm if its layers begin with one, and only then",
        ),
        (
            decoder.normalize_before or not decoder.final_norm,
            "its decoder ends in a norm only if its layers begin with one",
        ),
        (not encoder.switches and not decoder.switches, "it does not have the layers of T5"),
        (not model.config.output_bias, "its logits have no bias"),
        (model.config.activation != "swish", "it does not have the activation swish"),
        (
            (encoder.positions == "none") == (decoder.positions == "none"),
            "it has positions on both sides or on neither",
        ),
    ):
        require(fits, f"{model.path}: cannot be written as a checkpoint of fairseq: {rule}.")


def flags_of(model: Model) -> dict[str, Any]:
    """The fairseq flags that build this network, as far as they exist; defaults are spelt out."""
    config: TransformerConfig = model.config
    encoder, decoder = config.encoder, config.decoder
    settings: dict[str, Any] = {
        "no_token_positional_embeddings": encoder.positions == "none",
        "activation_fn": config.activation,
        "layernorm_embedding": config.norm_embedding,
        "share_all_embeddings": config.share_embeddings and config.tie_output,
        "share_decoder_input_output_embed": config.tie_output,
        "decoder_input_dim": config.input_dim,
        "decoder_output_dim": config.output_dim,
        **_stack("encoder", encoder),
        **_stack("decoder", decoder),
        "no_decoder_final_norm": decoder.normalize_before and not decoder.final_norm,
        "left_pad_source": False,
    }
    if not isinstance(config, BlockConfig):
        scaling = {"no_scale_embedding": not config.scale_embedding}
        return {**settings, **scaling, "arch": "transformer", "task": "translation"}
    return {
        **settings,
        "arch": model.kind,
        "task": "translation_lev_modified",
        "block_size": config.block_size,
        "src_embedding_copy": config.copy_source,
        "apply_bert_init": False,
        "scale_encoder_embedding": config.scale_embedding,
        "scale_decoder_embedding": config.scale_decoder,
        "sequential_head": config.sequential_head,
        "head_attention": config.head_attention,
        "cached_prefix": config.cached_prefix,
    }


def _stack(side: str, stack: StackConfig) -> dict[str, Any]:
    return {
        f"{side}_layers": stack.num_layers,
        f"{side}_embed_dim": stack.dim,
        f"{side}_ffn_embed_dim": stack.ffn_dim,
        f"{side}_attention_heads": stack.num_heads,
        f"{side}_normalize_before": stack.normalize_before,
        f"{side}_learned_pos": stack.positions == "learned",
        f"max_{'source' if side == 'encoder' else 'target'}_positions": stack.max_positions,
        **({f"{side}_switches": stack.switches} if stack.switches else {}),
    }
