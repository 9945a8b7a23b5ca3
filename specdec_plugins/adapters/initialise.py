"""The drafter's first weights, taken from a verifier where the two networks agree."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.models.transformer import base_architecture as transformer_architecture
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

from specdec_plugins.adapters.safe_load import load_checkpoint
from specdec_plugins.adapters.vocabularies import (
    Vocabularies,
    numbered_vocabularies,
    read_vocabularies,
    refuse_other_dictionaries,
)
from specdec_plugins.errors import UserError
from specdec_plugins.models.block_drafter import BlockDrafter, block_architecture

StateDict = dict[str, Tensor]

ENCODER_SIZES = (
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "encoder_layers",
)
DECODER_SIZES = ("decoder_embed_dim", "decoder_ffn_embed_dim", "decoder_attention_heads")

_SOURCE_EMBEDDING = "encoder.embed_tokens.weight"
_TARGET_EMBEDDING = "decoder.embed_tokens.weight"
_PROJECTION = "decoder.output_projection.weight"


@dataclass
class _Copy:
    """The drafter's weights while they are replaced; ``report`` says to people what happened."""

    state: StateDict
    report: list[str] = field(default_factory=list)

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.state if name.startswith(prefix)]

    def take(self, names: list[str], source: StateDict, what: str) -> None:
        for name in names:
            self.state[name] = source[name].to(self.state[name].dtype).clone()
        self.report.append(f"copied      {what}: {self._count(names)}")

    def keep(self, names: list[str], what: str, why: str) -> None:
        if names:
            self.report.append(f"not copied  {what}: {self._count(names)}; {why}")

    def _count(self, names: list[str]) -> str:
        number = sum(self.state[name].numel() for name in names)
        return f"{len(names)} tensors, {number:,} weights"


def initialise_drafter(args: Namespace) -> tuple[dict[str, Any], list[str]]:
    """Build the checkpoint that ``encoder_initial.py`` writes, and the list of what it did.

    ``args`` are that command's. Raises ``UserError`` where sizes or dictionaries of the verifier
    and the drafter differ, or where the verifier is not a fairseq Transformer.
    """
    checkpoint = load_checkpoint(args.verifier)
    source: StateDict = checkpoint["model"]
    verifier = verifier_settings(checkpoint, args.verifier)
    drafter = _drafter_settings(args, verifier, source)
    _refuse_other_sizes(args, drafter, verifier)
    vocabularies = _vocabularies(args, source)
    with torch.random.fork_rng(devices=[]):  # fairseq's modules take no generator
        torch.default_generator.manual_seed(args.seed)
        model = BlockDrafter.build_model(drafter, vocabularies)
    copy = _Copy(dict(model.state_dict()))
    _copy_encoder(copy, source, drafter, verifier)
    _copy_encoder_positions(copy, source, args)
    _copy_decoder(copy, source, args)
    model.load_state_dict(copy.state, strict=True)
    return _as_checkpoint(model, drafter), copy.report


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
    transformer_architecture(settings)
    return settings


def _drafter_settings(args: Namespace, verifier: Namespace, source: StateDict) -> Namespace:
    """The architecture of the drafter: the flags, and the verifier's where none was given."""
    settings = Namespace(
        arch="block",
        _name="block",
        activation_fn="gelu",
        src_embedding_copy=args.src_embedding_copy,
        apply_bert_init=args.apply_bert_init,
        encoder_learned_pos=args.encoder_learned_pos,
        decoder_learned_pos=args.decoder_learned_pos,
        max_source_positions=args.max_source_positions,
        max_target_positions=args.max_target_positions,
    )
    shared = _equal(source, _SOURCE_EMBEDDING, _TARGET_EMBEDDING)
    if args.share_all_embeddings and not shared:
        raise UserError(
            f"--share-all-embeddings is given, but the source and target embeddings of "
            f"{args.verifier} differ; leave it out, or train a verifier with it"
        )
    tied = shared or _equal(source, _TARGET_EMBEDDING, _PROJECTION)
    derived = {"share_all_embeddings": shared, "share_decoder_input_output_embed": tied}
    for name in (*ENCODER_SIZES, *DECODER_SIZES, "decoder_layers"):
        derived[name] = getattr(verifier, name)
    for name, value in derived.items():
        given = getattr(args, name)
        setattr(settings, name, value if given is None else given)
    block_architecture(settings)
    return settings


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


def _vocabularies(args: Namespace, source: StateDict) -> Vocabularies:
    """Dictionaries as large as the verifier's embeddings, from the data folder if one is given."""
    target = source.get(_TARGET_EMBEDDING, source[_SOURCE_EMBEDDING])
    sizes = {"source": source[_SOURCE_EMBEDDING].size(0), "target": target.size(0)}
    if args.data is None:
        if args.verifier_data is not None:
            raise UserError("--verifier-data is compared with --data; give both")
        return numbered_vocabularies(sizes["source"], sizes["target"])
    if args.verifier_data is not None:
        refuse_other_dictionaries(args.data, args.verifier_data)
    vocabularies = read_vocabularies(args.data)
    for side, size in sizes.items():
        dictionary = getattr(vocabularies, f"{side}_dictionary")
        if len(dictionary) != size:
            raise UserError(
                f"the {side} dictionary in {args.data} has {len(dictionary)} types, the verifier "
                f"{args.verifier} has {size}; binarise the data with the verifier's dictionaries"
            )
    return vocabularies


def _copy_encoder(copy: _Copy, source: StateDict, drafter: Namespace, verifier: Namespace) -> None:
    copy.take(copy.names("encoder.layers."), source, "encoder layers")
    if drafter.activation_fn != verifier.activation_fn:
        copy.report.append(
            f"note        these layers were trained with {verifier.activation_fn}; the published "
            f"drafter goes on with {drafter.activation_fn}"
        )
    copy.take([_SOURCE_EMBEDDING], source, "source embeddings")
    if drafter.share_all_embeddings:
        for name in (_TARGET_EMBEDDING, _PROJECTION):
            copy.state[name] = copy.state[_SOURCE_EMBEDDING]
        copy.report.append("copied      target embeddings and output projection: shared with these")
    else:
        names = [_TARGET_EMBEDDING, _PROJECTION]
        copy.keep(names, "target embeddings and output projection", "not shared with the source")


def _copy_encoder_positions(copy: _Copy, source: StateDict, args: Namespace) -> None:
    name = "encoder.embed_positions.weight"
    if name not in copy.state:
        copy.report.append("not copied  encoder positions: sinusoids here, nothing to learn")
        return
    if not args.copy_positions:
        copy.keep([name], "encoder positions", "learned here; --copy-positions would copy them")
        return
    rows, width = copy.state[name].shape
    if name not in source:
        sinusoids = SinusoidalPositionalEmbedding.get_embedding(rows, width, padding_idx=1)
        copy.take([name], {name: sinusoids}, "encoder positions (the verifier's sinusoids)")
        return
    shared = min(rows, source[name].size(0))
    positions = torch.cat([source[name][:shared], copy.state[name][shared:]])
    copy.take([name], {name: positions}, f"encoder positions (learned, the first {shared})")


def _copy_decoder(copy: _Copy, source: StateDict, args: Namespace) -> None:
    layers = copy.names("decoder.layers.")
    if args.init_decoder_from_verifier:
        matching = [n for n in layers if n in source and source[n].shape == copy.state[n].shape]
        copy.take(matching, source, "decoder layers")
        deeper = [name for name in layers if name not in source]
        copy.keep(deeper, "decoder layers", "the verifier's decoder is less deep")
    else:
        copy.keep(layers, "decoder layers", "fresh; --init-decoder-from-verifier would copy them")
    own = copy.names("decoder.embed_positions.") + copy.names("decoder.copy_attn.")
    copy.keep(own, "decoder positions and copy attention", "fresh; the verifier has no such part")


def _as_checkpoint(model: BlockDrafter, settings: Namespace) -> dict[str, Any]:
    """A checkpoint as fairseq's trainer reads it, before the first update."""
    history: dict[str, Any] = {
        "criterion_name": "GlatLoss",
        "optimizer_name": None,
        "lr_scheduler_state": {},
        "num_updates": 0,
    }
    return {
        "args": settings,
        "cfg": None,
        "model": model.state_dict(),
        "criterion": None,
        "optimizer_history": [history],
        "task_state": {},
        "extra_state": {"epoch": 1, "train_iterator": {"epoch": 1}},
        "last_optimizer_state": None,
    }
