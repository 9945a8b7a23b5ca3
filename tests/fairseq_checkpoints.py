"""Small random fairseq models, and checkpoints of them as fairseq writes them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

from specdec_plugins.formats.dictionaries import Dictionary

LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}
PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
# What a Transformer may look like, switch by switch.
SHAPES: dict[str, dict[str, Any]] = {
    "shared": {"share_all_embeddings": True, "encoder_ffn_embed_dim": 20},
    "separate": {},
    "tied output": {"share_decoder_input_output_embed": True},
    "pre-norm": PRE_NORM,
    "no final norm": {"decoder_normalize_before": True, "no_decoder_final_norm": True},
    "learned": {**LEARNED, "activation_fn": "gelu"},
    "unscaled": {"no_scale_embedding": True, "layernorm_embedding": True},
    "no positions": {"no_token_positional_embeddings": True},
    "narrow": {"decoder_output_dim": 12},
}


def dictionaries(folder: Path, source_symbols: int = 30, target_symbols: int = 30) -> Path:
    """Write `dict.en.txt` and `dict.de.txt`, and say where."""
    for side, count in (("en", source_symbols), ("de", target_symbols)):
        lines = [f"s{i} {100 - i}\n" for i in range(count)]
        (folder / f"dict.{side}.txt").write_text("".join(lines), encoding="utf-8")
    return folder


def settings(arch: str, **changes: Any) -> Namespace:
    """What the command line would have given, small."""
    values: dict[str, Any] = {
        "arch": arch,
        "_name": arch,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_embed_dim": 16,
        "decoder_embed_dim": 16,
        "encoder_ffn_embed_dim": 24,
        "decoder_ffn_embed_dim": 20,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 2,
        "max_source_positions": 40,
        "max_target_positions": 40,
        "dropout": 0.0,
    }
    return Namespace(**{**values, **changes})


def build(args: Namespace, folder: Path, seed: int = 0) -> nn.Module:
    """A random model in double precision and eval mode, no parameter at its initial value."""
    from fairseq.data import Dictionary
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    if args.arch == "block":
        import specdec_plugins.models.block_drafter  # noqa: F401 - registers the arch
    ARCH_CONFIG_REGISTRY[args.arch](args)
    task = Namespace(
        source_dictionary=Dictionary.load(str(folder / "dict.en.txt")),
        target_dictionary=Dictionary.load(str(folder / "dict.de.txt")),
    )
    args.encoder_vocab = len(task.source_dictionary)
    if args.share_all_embeddings:
        task.target_dictionary = task.source_dictionary
    model = _with_narrow_target(ARCH_MODEL_REGISTRY[args.arch]).build_model(args, task)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        # large embeddings and small biases, or every position would predict the same token
        spread = 1.5 if "embed" in name else 0.3 if parameter.dim() > 1 else 0.1
        parameter.data = noise * spread
        if "norm" in name and name.endswith("weight"):
            parameter.data += 1.0
    for module in model.modules():
        if hasattr(module, "activation_fn") and args.activation_fn == "gelu":
            module.activation_fn = F.gelu  # fairseq's own rounds to single precision inside
    return model.double().eval()


def _with_narrow_target(cls: Any) -> Any:
    """That model, heeding --decoder-input-dim, which fairseq's decoder does and its model not."""

    class Narrow(cls):
        @classmethod
        def build_embedding(
            cls, args: Any, dictionary: Any, embed_dim: int, path: Any = None
        ) -> nn.Module:
            target = len(dictionary) != args.encoder_vocab and not args.share_all_embeddings
            width = args.decoder_input_dim if target else embed_dim
            return super().build_embedding(args, dictionary, width, path)

    return Narrow


@contextmanager
def double_precision() -> Iterator[None]:
    """Keep fairseq's attention from rounding to single precision inside."""
    with mock.patch("fairseq.utils.softmax", lambda x, dim, onnx_trace=False: x.softmax(dim)):
        yield


def save(model: nn.Module, args: Namespace, path: Path) -> Path:
    """A checkpoint of today: settings as a DictConfig with a Namespace for the model."""
    from omegaconf import DictConfig

    task = {"_name": "translation", "data": "bin", "source_lang": "en", "target_lang": "de"}
    config = DictConfig({"model": None, "task": task}, flags={"allow_objects": True})
    config.model = args
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    last = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 1}
    extra = {"train_iterator": {"epoch": 1}, "val_loss": 0.0}
    checkpoint = {"cfg": config, "args": None, "model": state, "optimizer_history": [last]}
    torch.save({**checkpoint, "extra_state": extra}, path)
    return path


def write(folder: Path, arch: str = "transformer", seed: int = 0, **shape: Any) -> Path:
    """A random model with the dictionaries that are there, in ``ARCH.pt``."""
    args = settings(arch, **shape)
    return save(build(args, folder, seed), args, folder / f"{arch}.pt")


def translating_pair(folder: Path, target_symbols: int = 30) -> Path:
    """Dictionaries, a verifier that tells sources apart, and a drafter of blocks of 6.

    Embeddings are shared where both sides have the same symbols.
    """
    data = dictionaries(folder, target_symbols=target_symbols)
    shared = target_symbols == 30
    args = settings("transformer", share_all_embeddings=shared)
    verifier = build(args, data)
    # So that translations differ from line to line, and some of them end.
    for name, parameter in verifier.named_parameters():
        if "encoder_attn" in name:
            parameter.data *= 4
        elif name == "encoder.embed_tokens.weight":
            parameter.data[Dictionary.eos] *= 2
    save(verifier, args, data / "verifier.pt")
    shape = {"src_embedding_copy": True, "share_all_embeddings": shared, **LEARNED}
    args = settings("block", block_size=6, **shape)
    save(build(args, data, seed=3), args, data / "drafter.pt")
    return data


def assistant(folder: Path, target_symbols: int = 30) -> Path:
    """A smaller model with a source dictionary of its own, and the dictionaries beside it."""
    folder.mkdir()
    data = dictionaries(folder, source_symbols=25, target_symbols=target_symbols)
    args = settings("transformer", encoder_layers=1, decoder_layers=1)
    save(build(args, data, seed=5), args, data / "assistant.pt")
    return data
