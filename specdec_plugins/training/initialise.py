"""The initial checkpoint of a drafter, from its verifier."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from specdec_plugins.errors import require
from specdec_plugins.formats.checkpoints import untrained
from specdec_plugins.formats.dictionaries import load_dictionaries
from specdec_plugins.formats.models import DIGESTS, flags_of, read_model
from specdec_plugins.models.block_drafter import SWITCHES, BlockDrafter, block_architecture

StateDict = dict[str, Tensor]

SOURCE_EMBEDDING = "encoder.embed_tokens.weight"
TARGET_EMBEDDING = "decoder.embed_tokens.weight"
PROJECTION = "decoder.output_projection.weight"

_ENCODER_SIZES, _DECODER_SIZES = (
    tuple(f"{side}_{part}" for part in ("embed_dim", "ffn_embed_dim", "attention_heads", "layers"))
    for side in ("encoder", "decoder")
)
_SHARED = ("share_all_embeddings", "share_decoder_input_output_embed")
_OF_VERIFIER = (*_ENCODER_SIZES, *_DECODER_SIZES, *_SHARED)
# Settings that are not the verifier's, unless a flag says otherwise
_DEFAULTS: dict[str, Any] = {
    "activation_fn": "gelu",
    "src_embedding_copy": True,
    "apply_bert_init": True,
    "encoder_learned_pos": True,
    "decoder_learned_pos": True,
    "max_source_positions": 1000,
    "max_target_positions": 1000,
}


def drafter_settings(args: Namespace, verifier: Namespace) -> Namespace:
    """The architecture of the drafter: the flags, else `_DEFAULTS`, else the verifier's.

    `args` are those of `encoder_initial.py`. Raises ``UserError`` if the flags and the verifier
    conflict.
    """
    require(
        verifier.share_all_embeddings or not args.share_all_embeddings,
        "--share-all-embeddings is given, but the source and target embeddings of "
        f"{args.verifier} differ; leave it out, or train a verifier with it",
    )
    values: dict[str, Any] = {name: getattr(verifier, name) for name in _OF_VERIFIER}
    values |= {**dict.fromkeys(SWITCHES, False), **_DEFAULTS}
    values |= {name: v for name, v in vars(args).items() if name in values and v is not None}
    settings = Namespace(arch="block", _name="block", **values)
    block_architecture(settings)
    _refuse_other_sizes(args, settings, verifier)
    return settings


def _refuse_other_sizes(args: Namespace, drafter: Namespace, verifier: Namespace) -> None:
    for name in _ENCODER_SIZES:
        mine, theirs = getattr(drafter, name), getattr(verifier, name)
        require(
            mine == theirs,
            f"--{name.replace('_', '-')} is {mine} for the drafter but {theirs} for the "
            f"verifier {args.verifier}; layers can only be copied between equal sizes",
        )
    require(
        not verifier.encoder_normalize_before,
        f"{args.verifier} normalises before each encoder layer and the drafter after it, so "
        "layers cannot be copied; train a verifier without --encoder-normalize-before, "
        "or the drafter without an initial checkpoint",
    )


def initialise_drafter(args: Namespace) -> tuple[dict[str, Any], list[str]]:
    """Build the checkpoint that ``encoder_initial.py`` writes, and the report of what was copied.

    ``args`` are that command's. Raises ``UserError`` if sizes or dictionaries of the verifier and
    the drafter differ, or if the verifier is not a fairseq Transformer.
    """
    verifier = read_model(args.verifier)
    require(
        verifier.kind == "transformer",
        f"{args.verifier}: is no verifier but {verifier.arch}; give an ordinary Transformer",
    )
    flags = Namespace(**flags_of(verifier))
    drafter = drafter_settings(args, flags)
    both = load_dictionaries(args.data) if args.data else None
    if both:
        verifier.check_dictionaries(both.source, both.target)
    setattr(drafter, DIGESTS, both.digests if both else verifier.digests)
    sizes = (verifier.config.encoder.vocab_size, verifier.config.decoder.vocab_size)
    with torch.random.fork_rng(devices=[]):  # fairseq's modules take no generator
        torch.default_generator.manual_seed(args.seed)
        model = BlockDrafter.build_model(drafter, numbered_dictionaries(*sizes))
    state: StateDict = model.state_dict()
    report = _copy(verifier.state, state, drafter, flags)
    return untrained(drafter, state, "GlatLoss"), report


def numbered_dictionaries(source_size: int, target_size: int) -> Namespace:
    """Dictionaries of these sizes: all of a fairseq task that building a model needs.

    One dictionary serves both sides if the sizes agree.
    """
    source, target = Dictionary(), Dictionary()
    for dictionary, size in ((source, source_size), (target, target_size)):
        for index in range(size - len(dictionary)):
            dictionary.add_symbol(f"type{index}")
    same = source_size == target_size
    return Namespace(source_dictionary=source, target_dictionary=source if same else target)


def _copy(
    source: Mapping[str, Tensor], state: StateDict, drafter: Namespace, verifier: Namespace
) -> list[str]:
    """Put the verifier's weights into the drafter's state; returns what to tell the user."""
    report: list[str] = []

    def named(prefix: str) -> list[str]:
        return [name for name in state if name.startswith(prefix)]

    def tell(is_copied: bool, what: str, names: list[str], why: str = "") -> None:
        number = sum(state[name].numel() for name in names)
        if names:
            verb = "copied    " if is_copied else "not copied"
            report.append(f"{verb}  {what}: {len(names)} tensors, {number:,} weights{why}")

    layers = named("encoder.layer")  # and norms beside them
    for name in (*layers, SOURCE_EMBEDDING):
        state[name].copy_(source[name])
    tell(True, "encoder layers", layers)
    if drafter.activation_fn != verifier.activation_fn:
        report.append(
            f"note        these layers were trained with {verifier.activation_fn}; the published "
            f"drafter uses {drafter.activation_fn}"
        )
    tell(True, "source embeddings", [SOURCE_EMBEDDING])
    what = "target embeddings and output projection"
    if drafter.share_all_embeddings:
        report.append(f"copied      {what}: shared with the source embeddings")
    else:
        tell(False, what, [TARGET_EMBEDDING, PROJECTION], "; not shared with the source")
    for side in ("encoder", "decoder"):
        tell(False, f"{side} positions", named(f"{side}.embed_positions.weight"), "; learned here")
    tell(False, "decoder layers", named("decoder.layers."), "; fresh")
    fresh = "; fresh; the verifier has no such part"
    tell(False, "copy attention", named("decoder.copy_attn."), fresh)
    return report
