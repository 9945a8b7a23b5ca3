"""The drafter's first weights, taken from a verifier where the two networks agree."""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import base_architecture as transformer_architecture
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

from specdec_plugins.adapters.safe_load import load_checkpoint
from specdec_plugins.errors import UserError
from specdec_plugins.models.block_drafter import BlockDrafter, block_architecture

StateDict = dict[str, Tensor]

_DECODER_SIZES = ("decoder_embed_dim", "decoder_ffn_embed_dim", "decoder_attention_heads")
_ENCODER_SIZES = (
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "encoder_layers",
)


@dataclass
class _Vocabularies:
    """As much of a fairseq task as building a model asks for."""

    source_dictionary: Dictionary
    target_dictionary: Dictionary


@dataclass
class _Copy:
    """Which parameters of the drafter came from where; ``report`` is for people."""

    state: StateDict
    copied: list[str] = field(default_factory=list)
    report: list[str] = field(default_factory=list)

    def take(self, names: list[str], source: StateDict, what: str) -> None:
        for name in names:
            self.state[name] = source[name].to(self.state[name].dtype).clone()
        self.copied += names
        self.report.append(f"copied      {what}: {_count(names, self.state)}")

    def keep(self, names: list[str], what: str, why: str) -> None:
        if names:
            self.report.append(f"not copied  {what}: {_count(names, self.state)}; {why}")


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
    dictionaries = _dictionaries(args, source)
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(args.seed)
    model = BlockDrafter.build_model(drafter, dictionaries)
    torch.random.set_rng_state(torch_state)
    copy = _Copy(dict(model.state_dict()))
    _copy_encoder(copy, source, drafter, verifier)
    _copy_positions(copy, source, args)
    _copy_decoder(copy, source, args, drafter, verifier)
    model.load_state_dict(copy.state, strict=True)
    return _as_checkpoint(model, drafter), copy.report


def verifier_settings(checkpoint: dict[str, Any], path: Path) -> Namespace:
    """The model settings inside a checkpoint as a plain namespace, defaults filled in."""
    found = checkpoint.get("args")
    if checkpoint.get("cfg"):
        found = checkpoint["cfg"]["model"]
    if found is None:
        raise UserError(f"{path}: holds no model settings; give a checkpoint of fairseq-train")
    settings = Namespace(**(vars(found) if isinstance(found, Namespace) else dict(found)))
    state = checkpoint["model"]
    if "encoder.layers.0.fc1.weight" not in state or "decoder.layers.0.fc1.weight" not in state:
        raise UserError(f"{path}: not an encoder-decoder Transformer of fairseq")
    if hasattr(settings, "encoder") and not hasattr(settings, "encoder_embed_dim"):
        _flatten(settings)
    transformer_architecture(settings)
    return settings


def _flatten(settings: Namespace) -> None:
    """Structured settings (``encoder.embed_dim``) under the names that flags have."""
    for side in ("encoder", "decoder"):
        for key, value in dict(getattr(settings, side)).items():
            setattr(settings, f"{side}_{key}", value)
        delattr(settings, side)


def _drafter_settings(args: Namespace, verifier: Namespace, source: StateDict) -> Namespace:
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
    for name in (*_ENCODER_SIZES, *_DECODER_SIZES, "decoder_layers"):
        given = getattr(args, name)
        setattr(settings, name, getattr(verifier, name) if given is None else given)
    shared = torch.equal(
        source["encoder.embed_tokens.weight"], source["decoder.embed_tokens.weight"]
    )
    tied = shared or torch.equal(
        source["decoder.embed_tokens.weight"], source["decoder.output_projection.weight"]
    )
    for name, derived in (
        ("share_all_embeddings", shared),
        ("share_decoder_input_output_embed", tied),
    ):
        given = getattr(args, name)
        setattr(settings, name, derived if given is None else given)
    block_architecture(settings)
    return settings


def _refuse_other_sizes(args: Namespace, drafter: Namespace, verifier: Namespace) -> None:
    names = list(_ENCODER_SIZES)
    if args.init_decoder_from_verifier:
        names += _DECODER_SIZES
    for name in names:
        mine, theirs = getattr(drafter, name), getattr(verifier, name)
        if mine != theirs:
            raise UserError(
                f"--{name.replace('_', '-')} is {mine} for the drafter but {theirs} for the "
                f"verifier {args.verifier}; its layers can only be copied between equal sizes"
            )
    if verifier.encoder_normalize_before:
        raise UserError(
            f"{args.verifier} normalises before each encoder layer, the drafter after it: its "
            "layers cannot be reused; train a verifier without --encoder-normalize-before, or "
            "train the drafter without an initial checkpoint"
        )


def _dictionaries(args: Namespace, source: StateDict) -> _Vocabularies:
    """Dictionaries as large as the verifier's embeddings, read from data folders if given."""
    sizes = {
        "source": source["encoder.embed_tokens.weight"].size(0),
        "target": source["decoder.embed_tokens.weight"].size(0),
    }
    if args.data is None:
        joint = _numbered_dictionary(sizes["source"])
        if sizes["source"] == sizes["target"]:
            return _Vocabularies(joint, joint)
        return _Vocabularies(joint, _numbered_dictionary(sizes["target"]))
    mine = _read_dictionaries(args.data)
    if args.verifier_data is not None:
        theirs = _read_dictionaries(args.verifier_data)
        if [d.symbols for d in mine] != [d.symbols for d in theirs]:
            raise UserError(
                f"the dictionaries in {args.data} and {args.verifier_data} differ; drafter and "
                "verifier must be trained with the same dictionaries"
            )
    for (side, size), dictionary in zip(sizes.items(), mine, strict=True):
        if len(dictionary) != size:
            raise UserError(
                f"the {side} dictionary in {args.data} has {len(dictionary)} types, the verifier "
                f"{args.verifier} {size}; binarise the data with the verifier's dictionaries"
            )
    return _Vocabularies(*mine)


def _read_dictionaries(folder: Path) -> list[Dictionary]:
    """Source and target dictionary of a binarised folder; the language pair is in its names."""
    pairs = {p.name.split(".")[1] for p in folder.glob("train.*-*.*.idx")}
    if len(pairs) != 1:
        raise UserError(
            f"{folder}: expected the output of fairseq-preprocess for one language pair"
        )
    paths = [folder / f"dict.{language}.txt" for language in pairs.pop().split("-")]
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path}: no such dictionary; run fairseq-preprocess again")
    return [Dictionary.load(str(path)) for path in paths]


def _numbered_dictionary(size: int) -> Dictionary:
    """A stand-in of the right size: building a model asks for nothing else."""
    dictionary = Dictionary()
    for index in range(size - len(dictionary)):
        dictionary.add_symbol(f"type{index}")
    return dictionary


def _copy_encoder(copy: _Copy, source: StateDict, drafter: Namespace, verifier: Namespace) -> None:
    layers = [name for name in copy.state if name.startswith("encoder.layers.")]
    copy.take(layers, source, "encoder layers")
    if drafter.activation_fn != verifier.activation_fn:
        copy.report.append(
            f"note        the copied layers were trained with {verifier.activation_fn}; the "
            f"published recipe continues with {drafter.activation_fn}"
        )
    copy.take(["encoder.embed_tokens.weight"], source, "source embeddings")
    tied = ["decoder.embed_tokens.weight", "decoder.output_projection.weight"]
    if drafter.share_all_embeddings:
        for name in tied:
            copy.state[name] = copy.state["encoder.embed_tokens.weight"]
        copy.report.append("copied      target embeddings and output projection: shared with these")
        return
    copy.keep(tied, "target embeddings and output projection", "not shared with the source")


def _copy_positions(copy: _Copy, source: StateDict, args: Namespace) -> None:
    name = "encoder.embed_positions.weight"
    if name not in copy.state:
        return
    if not args.copy_positions:
        copy.keep([name], "encoder positions", "learned here, of another kind or scale there")
        return
    rows, width = copy.state[name].shape
    if name in source:
        theirs = source[name]
        shared = min(rows, theirs.size(0))
        copy.state[name][:shared] = theirs[:shared]
        what = f"{shared} of {rows} encoder positions (learned)"
    else:
        copy.state[name] = SinusoidalPositionalEmbedding.get_embedding(rows, width, padding_idx=1)
        what = f"{rows} encoder positions (the verifier's sinusoids)"
    copy.copied.append(name)
    copy.report.append(f"copied      {what}")


def _copy_decoder(
    copy: _Copy, source: StateDict, args: Namespace, drafter: Namespace, verifier: Namespace
) -> None:
    layers = [name for name in copy.state if name.startswith("decoder.layers.")]
    if args.init_decoder_from_verifier:
        present = [n for n in layers if n in source and source[n].shape == copy.state[n].shape]
        copy.take(
            present,
            source,
            f"{min(drafter.decoder_layers, verifier.decoder_layers)} layers of the decoder",
        )
        layers = [name for name in layers if name not in set(present)]
        copy.keep(layers, "decoder layers", "the verifier has none to match")
    else:
        copy.keep(layers, "decoder layers", "the drafter's decoder starts fresh")
    rest = [
        n for n in ("decoder.embed_positions.weight", "decoder.copy_attn.weight") if n in copy.state
    ]
    copy.keep(rest, "decoder positions and copy attention", "the verifier has no such part")


def _count(names: list[str], state: StateDict) -> str:
    numbers = sum(state[name].numel() for name in names)
    return f"{len(names)} tensors, {numbers:,} weights"


def _as_checkpoint(model: BlockDrafter, settings: Namespace) -> dict[str, Any]:
    """A checkpoint as fairseq's trainer reads it, before the first update."""
    return {
        "args": settings,
        "cfg": None,
        "model": model.state_dict(),
        "criterion": None,
        "optimizer_history": [
            {
                "criterion_name": "GlatLoss",
                "optimizer_name": None,
                "lr_scheduler_state": {},
                "num_updates": 0,
            }
        ],
        "task_state": {},
        "extra_state": {"epoch": 1, "train_iterator": {"epoch": 1}},
        "last_optimizer_state": None,
    }


def write_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Write beside the target and rename, so that a reader never sees half a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(checkpoint, file)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        Path(temporary).unlink(missing_ok=True)
