"""The architecture of a drafter that starts from a verifier: flags, defaults, refusals."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from fairseq.models.transformer import base_architecture as transformer_architecture
from torch import Tensor

from specdec_plugins.errors import UserError
from specdec_plugins.models.block_drafter import SWITCHES, block_architecture

StateDict = dict[str, Tensor]

ENCODER_SIZES = (
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "encoder_layers",
)
DECODER_SIZES = ("decoder_embed_dim", "decoder_ffn_embed_dim", "decoder_attention_heads")

SOURCE_EMBEDDING = "encoder.embed_tokens.weight"
TARGET_EMBEDDING = "decoder.embed_tokens.weight"
PROJECTION = "decoder.output_projection.weight"
_COPY_ATTENTION = "decoder.copy_attn.weight"  # what block drafters alone have

# What each architecture has where no flag says otherwise; the rest is the verifier's.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "block": {
        "activation_fn": "gelu",
        "src_embedding_copy": True,
        "apply_bert_init": True,
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
        "max_source_positions": 1000,
        "max_target_positions": 1000,
    },
    "block_fast": {
        "decoder_layers": 2,
        "src_embedding_copy": True,
        "decoder_learned_pos": True,
        "freeze_encoder": True,
        "cached_prefix": True,
        "scale_decoder_embedding": True,
        "copy_positions": True,
        "init_decoder_from_verifier": True,
    },
}

# Encoders that the drafter's class cannot compute.
_OTHER_ENCODERS = {
    "encoder_normalize_before": "normalises before each encoder layer, the drafter after it",
    "layernorm_embedding": "normalises its embeddings, the drafter does not",
    "no_token_positional_embeddings": "has no positions, the drafter has",
}


def verifier_settings(checkpoint: dict[str, Any], path: Path) -> Namespace:
    """The model settings inside a checkpoint under the names of flags, defaults filled in.

    Raises ``UserError`` where there are none, or where they are not of a Transformer.
    """
    found = checkpoint["cfg"]["model"] if checkpoint.get("cfg") else checkpoint.get("args")
    if found is None:
        raise UserError(f"{path}: holds no model settings; give a checkpoint of fairseq-train")
    state = checkpoint["model"]
    if "encoder.layers.0.fc1.weight" not in state or "decoder.layers.0.fc1.weight" not in state:
        raise UserError(f"{path}: not an encoder-decoder Transformer of fairseq")
    settings = Namespace(**(vars(found) if isinstance(found, Namespace) else dict(found)))
    for side in ("encoder", "decoder"):  # structured settings, as --config-dir makes them
        for key, value in dict(vars(settings).pop(side, {})).items():
            setattr(settings, f"{side}_{key}", value)
    if str(getattr(settings, "arch", "")).startswith("block") or _COPY_ATTENTION in state:
        raise UserError(
            f"{path}: this is a block drafter; give the checkpoint of a verifier, an ordinary "
            "fairseq Transformer"
        )
    transformer_architecture(settings)
    return settings


def drafter_settings(args: Namespace, verifier: Namespace, source: StateDict) -> Namespace:
    """The architecture of the drafter: the flags, else `_DEFAULTS`, else the verifier's.

    `args` are those of `encoder_initial.py`; its flags `copy_positions` and
    `init_decoder_from_verifier` are filled in too. Raises ``UserError`` where the flags and the
    verifier cannot go together.
    """
    shared = _equal(source, SOURCE_EMBEDDING, TARGET_EMBEDDING)
    if args.share_all_embeddings and not shared:
        raise UserError(
            f"--share-all-embeddings is given, but the source and target embeddings of "
            f"{args.verifier} differ; leave it out, or train a verifier with it"
        )
    values = dict.fromkeys(SWITCHES, False) | _of_verifier(verifier)
    values |= {"copy_positions": False, "init_decoder_from_verifier": False}
    values["share_all_embeddings"] = shared
    values["share_decoder_input_output_embed"] = shared or _equal(
        source, TARGET_EMBEDDING, PROJECTION
    )
    values |= _DEFAULTS[args.arch]
    values |= {name: v for name, v in vars(args).items() if name in values and v is not None}
    if values["freeze_encoder"]:
        values |= _frozen_encoder(args, verifier)
    for name in ("copy_positions", "init_decoder_from_verifier"):
        setattr(args, name, values.pop(name))
    settings = Namespace(arch=args.arch, _name=args.arch, **values)
    block_architecture(settings)
    _refuse_other_sizes(args, settings, verifier)
    return settings


def _of_verifier(verifier: Namespace) -> dict[str, Any]:
    names = (
        *(*ENCODER_SIZES, *DECODER_SIZES, "decoder_layers", "activation_fn"),
        *("encoder_learned_pos", "decoder_learned_pos"),
        *("max_source_positions", "max_target_positions"),
    )
    return {name: getattr(verifier, name) for name in names}


def _frozen_encoder(args: Namespace, verifier: Namespace) -> dict[str, Any]:
    """What an encoder must have that stays the verifier's; raises ``UserError`` if it cannot."""
    for name, fact in _OTHER_ENCODERS.items():
        if getattr(verifier, name, False):
            raise UserError(
                f"{args.verifier} {fact}: its encoder cannot be kept; add --no-freeze-encoder"
            )
    scaled = not verifier.no_scale_embedding
    if args.scale_encoder_embedding not in (None, scaled):
        raise UserError(
            f"{args.verifier} {'scales' if scaled else 'does not scale'} its embeddings, and a "
            "frozen encoder must do the same; leave the flag about it out"
        )
    return {
        "activation_fn": verifier.activation_fn,
        "scale_encoder_embedding": scaled,
        "copy_positions": True,
    }


def _equal(state: StateDict, first: str, second: str) -> bool:
    # Checkpoints older than the separate output projection lack its name.
    return first in state and second in state and torch.equal(state[first], state[second])


def _refuse_other_sizes(args: Namespace, drafter: Namespace, verifier: Namespace) -> None:
    copies_decoder = args.init_decoder_from_verifier
    for name in (*ENCODER_SIZES, *(DECODER_SIZES if copies_decoder else ())):
        mine, theirs = getattr(drafter, name), getattr(verifier, name)
        if mine != theirs:
            raise UserError(
                f"--{name.replace('_', '-')} is {mine} for the drafter but {theirs} for the "
                f"verifier {args.verifier}; layers can only be copied between equal sizes"
            )
    for side in ("encoder", "decoder") if copies_decoder else ("encoder",):
        if getattr(verifier, f"{side}_normalize_before"):
            raise UserError(
                f"{args.verifier} normalises before each {side} layer, the drafter after it: its "
                f"layers are of no use here; train a verifier without --{side}-normalize-before, "
                "or the drafter without an initial checkpoint"
            )
