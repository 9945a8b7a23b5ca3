"""The initial checkpoint of a drafter, from its verifier."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import base_architecture as transformer_architecture
from torch import Tensor

from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.bundle import WEIGHTS_SUFFIX
from specdec_plugins.formats.checkpoints import load_checkpoint, untrained
from specdec_plugins.formats.dictionaries import Dictionaries, load_dictionaries
from specdec_plugins.formats.models import DIGESTS, TrainingRecord, flags_of, read_model
from specdec_plugins.models.block_drafter import SWITCHES, BlockDrafter, block_architecture

StateDict = dict[str, Tensor]

ENCODER_SIZES, DECODER_SIZES = (
    tuple(f"{side}_{part}" for part in ("embed_dim", "ffn_embed_dim", "attention_heads", "layers"))
    for side in ("encoder", "decoder")
)

SOURCE_EMBEDDING = "encoder.embed_tokens.weight"
TARGET_EMBEDDING = "decoder.embed_tokens.weight"
PROJECTION = "decoder.output_projection.weight"
_COPY_ATTENTION = "decoder.copy_attn.weight"  # only block drafters have it

# Settings taken from the verifier unless a flag, or the architecture, says otherwise.
_OF_VERIFIER = (
    *(*ENCODER_SIZES, *DECODER_SIZES, "activation_fn"),
    *("encoder_learned_pos", "decoder_learned_pos"),
    *("max_source_positions", "max_target_positions"),
)
_DEFAULTS: dict[str, Any] = {
    "activation_fn": "gelu",
    "src_embedding_copy": True,
    "apply_bert_init": True,
    "encoder_learned_pos": True,
    "decoder_learned_pos": True,
    "max_source_positions": 1000,
    "max_target_positions": 1000,
}


def verifier_settings(checkpoint: dict[str, Any], path: Path) -> Namespace:
    """The model settings of a checkpoint, by the names of flags, defaults filled in.

    Raises ``UserError`` if there are none, or if they are not of a Transformer.
    """
    record, state = TrainingRecord(checkpoint, path), checkpoint["model"]
    if "encoder.layers.0.fc1.weight" not in state or "decoder.layers.0.fc1.weight" not in state:
        raise UserError(f"{path}: not an encoder-decoder Transformer of fairseq")
    if record.arch.startswith("block") or _COPY_ATTENTION in state:
        raise UserError(
            f"{path}: this is a block drafter; give the checkpoint of a verifier, an ordinary "
            "fairseq Transformer"
        )
    names = (*_OF_VERIFIER, "encoder_normalize_before", "decoder_normalize_before")
    told = {name: record.get(name) for name in names}
    settings = Namespace(**{name: value for name, value in told.items() if value is not None})
    transformer_architecture(settings)
    return settings


def drafter_settings(args: Namespace, verifier: Namespace, source: StateDict) -> Namespace:
    """The architecture of the drafter: the flags, else `_DEFAULTS`, else the verifier's.

    `args` are those of `encoder_initial.py`. Raises ``UserError`` if the flags and the verifier
    conflict.
    """
    shared = _equal(source, SOURCE_EMBEDDING, TARGET_EMBEDDING)
    require(
        shared or not args.share_all_embeddings,
        "--share-all-embeddings is given, but the source and target embeddings of "
        f"{args.verifier} differ; leave it out, or train a verifier with it",
    )
    values: dict[str, Any] = {name: getattr(verifier, name) for name in _OF_VERIFIER}
    values |= dict.fromkeys(SWITCHES, False)
    values |= {
        "share_all_embeddings": shared,
        "share_decoder_input_output_embed": shared or _equal(source, TARGET_EMBEDDING, PROJECTION),
        **_DEFAULTS,
    }
    values |= {name: v for name, v in vars(args).items() if name in values and v is not None}
    settings = Namespace(arch="block", _name="block", **values)
    block_architecture(settings)
    _refuse_other_sizes(args, settings, verifier)
    return settings


def _equal(state: StateDict, first: str, second: str) -> bool:
    # Checkpoints older than the separate output projection lack its name.
    return first in state and second in state and torch.equal(state[first], state[second])


def _refuse_other_sizes(args: Namespace, drafter: Namespace, verifier: Namespace) -> None:
    for name in ENCODER_SIZES:
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


@dataclass
class _Copy:
    """The drafter's weights during replacement; ``report`` tells the user what happened."""

    state: StateDict
    report: list[str] = field(default_factory=list)

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.state if name.startswith(prefix)]

    def take(self, what: str, names: list[str], given: Mapping[str, Tensor], why: str = "") -> None:
        """Replace those of the named weights that are given; why: the reason that others stay."""
        taken = [name for name in names if name in given]
        for name in taken:
            self.state[name] = given[name].to(self.state[name].dtype).clone()
        left = [name for name in names if name not in given]
        for verb, some, reason in (("copied    ", taken, ""), ("not copied", left, f"; {why}")):
            number = sum(self.state[name].numel() for name in some)
            if some:
                told = f"{verb}  {what}: {len(some)} tensors, {number:,} weights{reason}"
                self.report.append(told)


def initialise_drafter(args: Namespace) -> tuple[dict[str, Any], list[str]]:
    """Build the checkpoint that ``encoder_initial.py`` writes, and the report of what was copied.

    ``args`` are that command's. Raises ``UserError`` if sizes or dictionaries of the verifier and
    the drafter differ, or if the verifier is not a fairseq Transformer.
    """
    checkpoint = _read(args.verifier)
    source: StateDict = checkpoint["model"]
    verifier = verifier_settings(checkpoint, args.verifier)
    drafter = drafter_settings(args, verifier, source)
    target = source.get(TARGET_EMBEDDING, source[SOURCE_EMBEDDING])
    sizes = {"source": len(source[SOURCE_EMBEDDING]), "target": len(target)}
    recorded = TrainingRecord(checkpoint, args.verifier)
    both = _check_dictionaries(args, sizes, recorded)
    setattr(drafter, DIGESTS, both.digests if both else recorded.digests)
    with torch.random.fork_rng(devices=[]):  # fairseq's modules take no generator
        torch.default_generator.manual_seed(args.seed)
        model = BlockDrafter.build_model(drafter, numbered_dictionaries(*sizes.values()))
    copy = _Copy(dict(model.state_dict()))
    _copy_encoder(copy, source, drafter, verifier)
    _copy_decoder(copy, drafter)
    model.load_state_dict(copy.state, strict=True)
    return untrained(drafter, model.state_dict(), "GlatLoss"), copy.report


def _read(path: Path) -> dict[str, Any]:
    """A verifier's settings and weights, from a checkpoint or a bundle's file of weights."""
    if path.suffix != WEIGHTS_SUFFIX:
        return load_checkpoint(path)
    model = read_model(path)
    settings = Namespace(**flags_of(model))
    return {"args": settings, "model": {n: t.float() for n, t in model.state.items()}}


def _check_dictionaries(
    args: Namespace, sizes: dict[str, int], recorded: TrainingRecord
) -> Dictionaries | None:
    """The data's dictionaries, if it was given.

    Raises ``UserError`` if they differ from the verifier's, or in size.
    """
    if args.data is None:
        return None
    mine = load_dictionaries(args.data)
    for side, size in sizes.items():
        found = len(getattr(mine, side))
        require(
            found == size,
            f"the {side} dictionary in {args.data} has {found} types, the verifier "
            f"{args.verifier} has {size}; binarise the data with the verifier's dictionaries",
        )
    recorded.check_dictionaries(mine)
    return mine


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


def _copy_encoder(copy: _Copy, source: StateDict, drafter: Namespace, verifier: Namespace) -> None:
    copy.take("encoder layers", copy.names("encoder.layer"), source)  # and norms beside them
    if drafter.activation_fn != verifier.activation_fn:
        copy.report.append(
            f"note        these layers were trained with {verifier.activation_fn}; the published "
            f"drafter uses {drafter.activation_fn}"
        )
    copy.take("source embeddings", [SOURCE_EMBEDDING], source)


def _copy_decoder(copy: _Copy, drafter: Namespace) -> None:
    """The published drafter's own parts, and the output where it shares the source's table."""
    names, what = [TARGET_EMBEDDING, PROJECTION], "target embeddings and output projection"
    if drafter.share_all_embeddings:
        for name in names:
            copy.state[name] = copy.state[SOURCE_EMBEDDING]
        copy.report.append(f"copied      {what}: shared with the source embeddings")
    else:
        copy.take(what, names, {}, "not shared with the source")
    for side in ("encoder", "decoder"):
        positions = copy.names(f"{side}.embed_positions.weight")
        copy.take(f"{side} positions", positions, {}, "learned here")
    copy.take("decoder layers", copy.names("decoder.layers."), {}, "fresh")
    fresh = "fresh; the verifier has no such part"
    copy.take("copy attention", copy.names("decoder.copy_attn."), {}, fresh)
