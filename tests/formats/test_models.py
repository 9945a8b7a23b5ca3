"""What loads and what is refused. That loaded networks compute what fairseq's do is tested with
the networks."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from specdec_plugins.decoding.networks import BlockDrafter, Transformer
from specdec_plugins.decoding.networks.reading import Weights
from specdec_plugins.decoding.networks.trained import kind_of
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.models import upgrade
from tests import fairseq_checkpoints
from tests.decoding.networks.toys import full_logits, load_network
from tests.refusals import refused

pytestmark = pytest.mark.fairseq

Saved = tuple[nn.Module, Namespace, Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fairseq_checkpoints.dictionaries(tmp_path_factory.mktemp("data"), 30, 30)


def saved(folder: Path, arch: str, **shape: Any) -> Saved:
    args = fairseq_checkpoints.settings(arch, **shape)
    model = fairseq_checkpoints.build(args, folder)
    return model, args, fairseq_checkpoints.save(model, args, folder / f"{arch}.pt")


@pytest.fixture(scope="module")
def verifier(folder: Path) -> Saved:
    return saved(folder, "transformer", share_all_embeddings=True)


@pytest.fixture(scope="module")
def drafter(folder: Path) -> Saved:
    return saved(folder, "block", block_size=4, src_embedding_copy=True)


def dictionary(folder: Path) -> Dictionary:
    return Dictionary.load(folder / "dict.en.txt")


def load(path: Path, folder: Path, **options: Any) -> Transformer:
    symbols = dictionary(folder)
    return load_network(Transformer, path, symbols, symbols, **options)


def logits(network: Transformer) -> Tensor:
    return full_logits(network, torch.tensor([[5, 6, 2]]), torch.tensor([[2, 7, 8, 9]]))


def test_networks_are_ready_for_inference(verifier: Saved, folder: Path) -> None:
    network = load_network(Transformer, verifier[2], dictionary(folder), dictionary(folder))
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float64}
    assert network.decoder.output.weight is network.encoder.embedding.tokens.weight
    names = [name for name, _ in network.named_parameters()]
    assert names.count("encoder.embedding.tokens.weight") == 1


def test_an_old_checkpoint_is_the_same_model(verifier: Saved, folder: Path, tmp_path: Path) -> None:
    """Settings in 'args', fused projections, numbered norms, no version, no tied projection."""
    model, args, path = verifier
    old: dict[str, Tensor] = {"decoder.embed_positions._float_tensor": torch.zeros(1)}
    state = model.state_dict()
    norms = {
        "encoder": ["self_attn_layer_norm", "final_layer_norm"],
        "decoder": ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"],
    }
    for name, tensor in state.items():
        head, _, tail = name.rpartition("_proj.")
        if head.endswith((".k", ".v")) or name.endswith("version") or "output_projection" in name:
            continue
        if head.endswith(".q"):
            stem = head[:-1]
            parts = [state[f"{stem}{letter}_proj.{tail}"] for letter in "qkv"]
            old[f"{stem}in_proj_{tail}"] = torch.cat(parts)
            continue
        for number, norm in enumerate(norms[name.split(".")[0]]):
            if "layers" in name:
                name = name.replace(f".{norm}.", f".layer_norms.{number}.")
        old[name] = tensor
    old_path = tmp_path / "old.pt"
    torch.save({"args": args, "model": old}, old_path)
    assert torch.equal(logits(load(old_path, folder)), logits(load(path, folder)))


def test_a_decoder_may_be_left_early(verifier: Saved, folder: Path, tmp_path: Path) -> None:
    """As a checkpoint that never had the layers behind the exit."""
    model, args, path = verifier
    state = {n: t for n, t in model.state_dict().items() if "decoder.layers.1." not in n}
    torch.save({"args": args, "model": state}, tmp_path / "short.pt")
    short = logits(load(path, folder, exit_layer=1))
    assert torch.equal(short, logits(load(tmp_path / "short.pt", folder)))
    whole = logits(load(path, folder))
    assert not torch.allclose(short, whole)
    assert torch.equal(logits(load(path, folder, exit_layer=2)), whole)
    for exit_layer in (0, 3):
        message = f"no exit after layer {exit_layer} of its 2 .* 1 to 2"
        refused(message, load, path, folder, exit_layer=exit_layer)


def test_exits_are_those_that_were_trained(folder: Path) -> None:
    import specdec_plugins.models.early_exit_transformer  # noqa: F401 - registers the arch

    shape = {"decoder_layers": 3, "decoder_normalize_before": True, "share_all_embeddings": True}
    model, _, path = saved(folder, "early_exit_transformer", **shape)
    source, target = torch.tensor([[5, 6, 2]]), torch.tensor([[2, 7, 8, 9]])
    with fairseq_checkpoints.double_precision(), torch.no_grad():
        _, extra = model(source, torch.tensor([3]), target)
    for exit_layer in (1, 2, 3):
        want = model.decoder.exit_logits(extra["inner_states"][exit_layer])
        got = logits(load(path, folder, exit_layer=exit_layer))
        torch.testing.assert_close(got, want, rtol=0, atol=1e-9)


def test_settings_may_be_nested(verifier: Saved, folder: Path, tmp_path: Path) -> None:
    from omegaconf import DictConfig

    model, args, path = verifier
    flat = {k: v for k, v in vars(args).items() if not k.startswith(("encoder_", "decoder_"))}
    flat = {k: v for k, v in flat.items() if isinstance(v, (str, int, float, bool))}
    stacks = {
        side: {
            key.removeprefix(f"{side}_"): value
            for key, value in vars(args).items()
            if key.startswith(f"{side}_") and isinstance(value, (int, bool))
        }
        for side in ("encoder", "decoder")
    }
    config = DictConfig({"model": {**flat, **stacks}, "task": None})
    torch.save({"cfg": config, "model": dict(model.state_dict())}, tmp_path / "nested.pt")
    assert torch.equal(logits(load(tmp_path / "nested.pt", folder)), logits(load(path, folder)))


def test_drafter_and_verifier_are_not_confused(
    verifier: Saved, drafter: Saved, folder: Path
) -> None:
    symbols = dictionary(folder)
    assert load_network(BlockDrafter, drafter[2], symbols, symbols).config.block_size == 4
    for kind, path, message in (
        (Transformer, drafter[2], "block.pt: this is a block drafter"),
        (BlockDrafter, verifier[2], "arch transformer.*, where a block drafter is needed"),
    ):
        refused(message, load_network, kind, path, symbols, symbols)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (Transformer, {"adaptive_softmax_cutoff": "10,20"}, "with --adaptive-softmax-cutoff"),
        (Transformer, {"quant_noise_pq": 0.1}, "with --quant-noise-pq, which is not sup"),
        (Transformer, {"cross_self_attention": True}, "with --cross-self-attention"),
        (BlockDrafter, {"decoder_normalize_before": True}, "--decoder-normalize-before"),
        (BlockDrafter, {"block_size": None}, "not say for which --block-size it was trained"),
    ],
)
def test_settings_that_no_network_has_are_named(
    kind: Any,
    changes: dict[str, Any],
    message: str,
    verifier: Saved,
    drafter: Saved,
    folder: Path,
    tmp_path: Path,
) -> None:
    model, args, _ = verifier if kind is Transformer else drafter
    changed = Namespace(**{**vars(args), **changes})
    path = fairseq_checkpoints.save(model, changed, tmp_path / "m.pt")
    symbols = dictionary(folder)
    refused(f"m.pt: .*{message}", load_network, kind, path, symbols, symbols)


def test_dictionaries_of_another_size_are_refused(verifier: Saved, folder: Path) -> None:
    symbols, smaller = dictionary(folder), Dictionary(["a", "b"])
    for side, both in (("source", (smaller, symbols)), ("target", (symbols, smaller))):
        message = f"has 34 {side} symbols and the {side} dictionary 6;"
        refused(message, load_network, Transformer, verifier[2], *both)


def test_other_models_are_refused(verifier: Saved, folder: Path, tmp_path: Path) -> None:
    _, args, _ = verifier
    torch.save({"args": args, "model": {"encoder.conv.weight": torch.zeros(1)}}, tmp_path / "c.pt")
    refused("c.pt: not a fairseq translation Transformer: it has", load, tmp_path / "c.pt", folder)
    torch.save({"model": {"encoder.conv.weight": torch.zeros(1)}}, tmp_path / "n.pt")
    refused("ensembles are not supported", load, Path(f"{verifier[2]}:{verifier[2]}"), folder)
    refused("n.pt: the checkpoint does not say what its model is", load, tmp_path / "n.pt", folder)


def test_old_names_become_new_ones() -> None:
    """Those that no checkpoint above has; tables that are computed anyway are left out."""
    weight = torch.arange(6.0)[:, None]
    state = {"decoder.embed_positions.weights": torch.zeros(9, 1), "decoder.embed_out": weight}
    assert upgrade(state) == {"decoder.output_projection.weight": weight}


def test_weights_that_do_not_fit_are_named() -> None:
    def fill(state: dict[str, Tensor]) -> None:
        Weights(nn.Linear(2, 3), state).read()

    fits = {"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}
    fill(fits)
    refused("the checkpoint lacks the weights bias;", fill, {"weight": fits["weight"]})
    refused("weights of another kind of model: gate;", fill, {**fits, "gate": torch.zeros(1)})
    refused("weights of unexpected size: bias;", fill, {**fits, "bias": torch.zeros(4)})
    refused("a, b, c and 2 more", fill, {**fits, **dict.fromkeys("abcde", torch.zeros(1))})


def test_the_architecture_of_training_says_the_kind() -> None:
    archs = ("block", "block_fast", "block_6e6d512", "medusa_heads", "transformer_wmt_en_de")
    archs += ("assistant_transformer", "early_exit_transformer")
    kinds = ["block"] * 3 + ["medusa_heads"] + ["transformer"] * 3
    assert [kind_of(arch) for arch in archs] == kinds
