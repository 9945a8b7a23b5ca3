"""What the tests of this folder share: a tiny verifier, distillation by it, files of pairs."""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


def write_tsv(path: Path, pairs: Sequence[tuple[str, ...]]) -> Path:
    data = "".join("\t".join(pair) + "\n" for pair in pairs).encode()
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)
    return path


@dataclass(frozen=True)
class Verifier:
    """A tiny untrained Transformer and a data-bin with dictionaries that fit it."""

    data: Path
    checkpoint: Path
    num_sentences: int
    too_long: list[int]  # sentences with more source tokens than it has positions


WORDS = [f"w{i}" for i in range(12)]
MAX_POSITIONS = 12  # source tokens, the end mark included


def _sentence(number: int, length: int) -> str:
    return " ".join(WORDS[(number * 5 + i * (number % 3 + 1)) % len(WORDS)] for i in range(length))


def _write_data(folder: Path, lengths: list[int]) -> Any:
    from fairseq.data import Dictionary, indexed_dataset

    dictionary = Dictionary()
    for word in WORDS:
        dictionary.add_symbol(word)
    folder.mkdir()
    for language in ("en", "de"):
        dictionary.save(str(folder / f"dict.{language}.txt"))
        for split, numbers in (("train", lengths), ("valid", [3])):
            stem = str(folder / f"{split}.en-de.{language}")
            builder = indexed_dataset.make_builder(
                f"{stem}.bin", "mmap", vocab_size=len(dictionary)
            )
            for i, length in enumerate(numbers):
                line = _sentence(i, length) if language == "en" else f"{_sentence(i, 2)} gone"
                builder.add_item(dictionary.encode_line(line, add_if_not_exist=False))
            builder.finalize(f"{stem}.idx")
    return dictionary


@pytest.fixture(scope="session")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Verifier:
    import torch
    from fairseq import options, tasks

    folder = tmp_path_factory.mktemp("verifier")
    lengths = [1 + (i * 7) % 11 for i in range(23)]
    lengths[4] = lengths[20] = MAX_POSITIONS  # one too many with the end mark
    _write_data(folder / "data", lengths)
    arguments = [str(folder / "data"), "--arch", "transformer_tiny", "--share-all-embeddings"]
    arguments += ["--max-source-positions", str(MAX_POSITIONS), "--max-target-positions", "30"]
    arguments += ["--source-lang", "en", "--target-lang", "de"]
    args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = tasks.setup_task(args).build_model(args)
    with torch.no_grad():
        for weight in model.parameters():  # untrained weights are too small to heed the source
            weight.mul_(4.0 if weight.dim() > 1 else 1.0)
    history = [{"criterion_name": "x", "optimizer_name": "x", "lr_scheduler_state": {}}]
    state = {
        "args": args,
        "model": model.state_dict(),
        "optimizer_history": history,
        "extra_state": {},
        "last_optimizer_state": {"moments": torch.zeros(3)},
    }
    torch.save(state, folder / "verifier.pt")
    return Verifier(folder / "data", folder / "verifier.pt", len(lengths), [4, 20])


def distil(verifier: Verifier, output: Path, *flags: object) -> None:
    from specdec_plugins.corpus import distill

    arguments = [verifier.data, "--path", verifier.checkpoint, "--output", output, "--cpu"]
    arguments += ["--chunk-size", 5, "--max-len-b", 8, "--max-tokens", 40, "--beam", 2]
    arguments += [*([] if "--processes" in flags else ["--processes", 1]), *flags]
    distill.COMMAND(*arguments)
