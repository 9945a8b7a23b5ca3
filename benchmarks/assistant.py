"""Trains a small MarianMT model that assists a large one in transformers' generation.

    python -m benchmarks.assistant MODEL --text TEXT --output FOLDER

It has the large one's vocabulary, token table and some of its layers, and is trained on the large
one's translations of the text, which this project's engine decodes greedily.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from specdec_plugins.app.drafting import read_monolingual
from specdec_plugins.app.loading import make_settings, read_words
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.corpus import cli
from specdec_plugins.corpus.cli import logger
from specdec_plugins.decoding.types import FinishReason, Request
from specdec_plugins.errors import require
from specdec_plugins.formats.marian import import_transformers, load_marian
from specdec_plugins.formats.output import new_folder
from specdec_plugins.formats.pretrained.config import CONFIG, GENERATION, read_config

_ROWS = 64  # sentences of a batch in translation, and of an update
_WARM_UP = 50  # updates
_IGNORED = -100

Pair = tuple[list[int], list[int]]  # source and target in the file's ids, their ends included


def translations(model: Path, lines: Sequence[str]) -> list[Pair]:
    """The model's translations of the lines, without those that do not end; short lines first."""
    given = {"data": str(model), "strategy": "AR"}
    translator = SpeculativeTranslator.from_pretrained(**given, batch=_ROWS, scores=False)
    source_order, target_order = read_words(make_settings(given)).orders
    sources = sorted((translator.codec.source_ids(line) for line in lines), key=len)
    requests = []
    for number, ids in enumerate(sources):
        longest = min(2 * len(ids) + 20, translator.limits.target)
        requests.append(Request(str(number), ids, translator.settings.decode_params(longest)))
    found = []
    for result in tqdm(translator.decoder.run(requests), total=len(requests), desc="translating"):
        if result.finish_reason is FinishReason.EOS:
            ids = sources[int(result.id)]
            target = [target_order[i] for i in result.token_ids]
            found.append(([source_order[i] for i in ids], target))
    return sorted(found, key=lambda pair: len(pair[0]))


def small(large: Any, num_layers: int) -> Any:
    """A MarianMTModel of so many layers a side: the first ones of the large model, and its last."""
    config = type(large.config)(**large.config.to_dict())
    config.encoder_layers = config.decoder_layers = config.num_hidden_layers = num_layers
    made = type(large)(config)
    state = large.state_dict()
    for side in ("encoder", "decoder"):
        layers = getattr(large.model, side).layers
        require(
            num_layers <= len(layers),
            f"--layers {num_layers}: the model's {side} has {len(layers)} layers; give fewer.",
        )
        for layer in range(num_layers):
            origin = layer if layer < num_layers - 1 else len(layers) - 1
            for name, tensor in layers[origin].state_dict().items():
                state[f"model.{side}.layers.{layer}.{name}"] = tensor
    made.load_state_dict({name: state[name] for name in made.state_dict()})
    return made


def batches(
    pairs: Sequence[Pair], pad: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Endless batches: sources [B, S], their masks, and targets [B, T] padded with _IGNORED."""
    starts = list(range(0, len(pairs), _ROWS))
    while True:
        for at in torch.randperm(len(starts), generator=generator).tolist():
            rows = pairs[starts[at] : starts[at] + _ROWS]
            sources, targets = (
                pad_sequence([torch.tensor(row[side]) for row in rows], True, value)
                for side, value in ((0, pad), (1, _IGNORED))
            )
            yield sources, (sources != pad).long(), targets


def train(
    model: Any, pairs: Sequence[Pair], num_updates: int, peak: float, generator: torch.Generator
) -> float:
    """Train with Adam, its rate falling to 0; returns the mean loss of the last tenth."""
    start, pad = model.config.decoder_start_token_id, model.config.pad_token_id
    optimizer = torch.optim.AdamW(model.parameters(), peak, betas=(0.9, 0.98), weight_decay=0.0)
    losses: list[float] = []
    shown = tqdm(islice(batches(pairs, pad, generator), num_updates), "training", num_updates)
    for update, (sources, mask, targets) in enumerate(shown):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1.0, (update + 1) / _WARM_UP) * (1 - update / num_updates)
        inputs = targets.masked_fill(targets == _IGNORED, pad).roll(1, 1)
        inputs[:, 0] = start
        with torch.autocast("cpu", torch.bfloat16):
            found = model(input_ids=sources, attention_mask=mask, decoder_input_ids=inputs)
        logits = found.logits.flatten(0, 1)[targets.flatten() != _IGNORED].float()
        loss = cross_entropy(logits, targets[targets != _IGNORED])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        shown.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
    last = losses[-math.ceil(len(losses) / 10) :]
    return sum(last) / len(last)


def write(model: Any, origin: Path, output: Path) -> None:
    """Write the folder: `save_pretrained` would omit the position table."""
    config = json.loads((origin / CONFIG).read_text(encoding="utf-8"))
    for name in ("encoder_layers", "decoder_layers", "num_hidden_layers"):
        config[name] = model.config.encoder_layers
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    shared = state.get("model.shared.weight")
    tied = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    for name in (*tied, "lm_head.weight"):
        if shared is not None and torch.equal(state[name], shared):
            del state[name]
    with new_folder(output, CONFIG, force=True) as made:
        (made / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        if (origin / GENERATION).is_file():
            shutil.copyfile(origin / GENERATION, made / GENERATION)
        save_file(state, made / "model.safetensors", {"format": "pt"})


def main(args: argparse.Namespace) -> None:
    kind = read_config(args.model).model_type
    require(kind == "marian", f"{args.model}: model type is {kind!r}; give a MarianMT folder.")
    import_transformers().utils.logging.disable_progress_bar()
    lines = read_monolingual(args.text)[: args.sentences]
    torch.manual_seed(args.seed)  # transformers takes no generator
    model = small(load_marian(args.model), args.layers).train()
    pairs = translations(args.model, lines)
    require(
        bool(pairs),
        f"{args.text}: no translation ended in an end-of-sentence token; give other text.",
    )
    generator = torch.Generator().manual_seed(args.seed)
    loss = train(model, pairs, args.updates, args.lr, generator)
    write(model, args.model, args.output)
    logger.info("%s: trained on %d sentences, final loss %.3f", args.output, len(pairs), loss)


COMMAND = cli.CommandLine(
    "benchmarks.assistant",
    "Train a small MarianMT model on a large one's translations, to assist it in transformers.",
    main,
    [
        ("model", None, Path, "MarianMT folder"),
        ("--text", cli.REQUIRED, Path, "text in the model's source language, one sentence a line"),
        ("--output", cli.REQUIRED, Path, "folder to write"),
        ("--layers", 2, cli.at_least(1), "layers of the encoder, and of the decoder"),
        ("--sentences", 8_000, cli.at_least(1), "sentences of the text to use, at most"),
        ("--updates", 400, cli.at_least(1), f"updates of {_ROWS} sentences each"),
        ("--lr", 1e-3, cli.at_least(0, float), "peak learning rate"),
        ("--seed", 1, int, "seed of new weights, dropout and the order of the text"),
    ],
    interrupted="interrupted; nothing was written",
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
