"""The verifier as a teacher: beam search of fairseq over a binarised training set."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdec_plugins.errors import UserError
from specdec_plugins.formats.checkpoints import allow_fairseq_checkpoints, load_checkpoint


@dataclass(frozen=True)
class Search:
    """fairseq's search settings; those that change a translation."""

    beam: int = 5  # 1 is greedy
    lenpen: float = 1.0  # above 1 favours longer sentences
    max_len_a: float = 0.0  # at most max_len_a * source length + max_len_b tokens
    max_len_b: int = 200
    fp16: bool = False


@dataclass(frozen=True)
class DataBin:
    """One split of a folder that fairseq-preprocess wrote (its mmap format)."""

    folder: Path
    subset: str
    source_lang: str
    target_lang: str

    @classmethod
    def find(cls, folder: Path, subset: str) -> DataBin:
        found = sorted(folder.glob(f"{subset}.*-*.*.idx")) if folder.is_dir() else []
        pairs = {tuple(path.name.split(".")[1].split("-")) for path in found}
        if len(pairs) != 1 or len(found) != 2:
            raise UserError(
                f"{folder}: expected {subset}.SRC-TGT.LANG.bin and .idx for two languages, as "
                "fairseq-preprocess writes them; prepare it with scripts/prepare-tsv.sh"
            )
        source_lang, target_lang = pairs.pop()
        return cls(folder, subset, source_lang, target_lang)

    def stem(self, language: str) -> str:
        """The name of one side's files, without .bin or .idx."""
        return f"{self.subset}.{self.source_lang}-{self.target_lang}.{language}"

    def num_sentences(self) -> int:
        from fairseq.data import indexed_dataset

        stem = str(self.folder / self.stem(self.source_lang))
        if not indexed_dataset.MMapIndexedDataset.exists(stem):
            raise UserError(f"{stem}.idx: not in fairseq's mmap format; binarise the text again")
        return len(indexed_dataset.MMapIndexedDataset(stem))


class Teacher:
    """A verifier and the split that it translates."""

    def __init__(
        self, data: DataBin, checkpoint: Path, search: Search, device: torch.device
    ) -> None:
        from fairseq import utils
        from fairseq.sequence_generator import SequenceGenerator

        model, task = _load(data, checkpoint)
        task.load_dataset(data.subset, combine=False)
        self._device = device
        self._dataset: Any = task.dataset(data.subset)
        self._dictionary = task.target_dictionary
        self._max_source, _ = utils.resolve_max_positions(
            task.max_positions(), model.max_positions()
        )
        if search.fp16:
            model.half()
        model.to(device).eval()
        self._generator = SequenceGenerator(
            [model],
            task.target_dictionary,
            beam_size=search.beam,
            max_len_a=search.max_len_a,
            max_len_b=search.max_len_b,
            len_penalty=search.lenpen,
        )
        self._generator.to(device)

    def too_long(self, index: int) -> bool:
        """Whether a source, its end mark included, has more tokens than the model has positions."""
        return bool(self._dataset.src_sizes[index] > self._max_source)

    def original(self, index: int) -> str:
        """The target that the data-bin holds, as space-separated BPE tokens."""
        return str(self._dictionary.string(self._dataset.tgt[index]))

    def translate(self, indices: Sequence[int], max_tokens: int) -> Iterator[list[tuple[int, str]]]:
        """Batch after batch of (index, translation); every index comes exactly once."""
        for batch in self._batches(indices, max_tokens):
            sample = self._dataset.collater([self._dataset[index] for index in batch])
            with torch.no_grad():
                found = self._generator.generate([], _to(sample, self._device))
            yield [
                (index, str(self._dictionary.string(hypotheses[0]["tokens"].int().cpu())))
                for index, hypotheses in zip(sample["id"].tolist(), found, strict=True)
            ]

    def _batches(self, indices: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
        # fairseq's own batching drops a last partial batch by default; this one cannot.
        batch: list[int] = []
        for index in sorted(indices, key=lambda i: (self._dataset.src_sizes[i], i)):
            # Sorted, so this sentence is the longest and sets the width of the batch.
            if batch and (len(batch) + 1) * self._dataset.src_sizes[index] > max_tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch


def translate_chunk(
    teacher: Teacher,
    span: range,
    max_tokens: int,
    on_done: Callable[[int], object] = lambda number: None,
) -> dict[str, Any]:
    """The content of a chunk's file: its lines, and which are the originals for being too long."""
    originals = [index for index in span if teacher.too_long(index)]
    lines = {index: teacher.original(index) for index in originals}
    on_done(len(originals))
    wanted = [index for index in span if index not in lines]
    for batch in teacher.translate(wanted, max_tokens):
        lines.update(batch)
        on_done(len(batch))
    return {"lines": [lines[index] for index in span], "originals": originals}


def _load(data: DataBin, checkpoint: Path) -> tuple[Any, Any]:
    """The verifier (fp32, CPU) and its task, reading ``data``; refuses other dictionaries."""
    from fairseq import checkpoint_utils
    from fairseq.data import Dictionary

    weights = load_checkpoint(checkpoint)["model"]
    for side, language in (("encoder", data.source_lang), ("decoder", data.target_lang)):
        embedding = weights.get(f"{side}.embed_tokens.weight")
        if embedding is None or "decoder.copy_attn.weight" in weights:
            raise UserError(
                f"{checkpoint}: not an autoregressive Transformer; distil with the verifier"
            )
        path = data.folder / f"dict.{language}.txt"
        num_types = len(Dictionary.load(str(path)))
        if len(embedding) != num_types:
            raise UserError(
                f"{checkpoint} has {len(embedding)} {side} embeddings, but {path} has "
                f"{num_types} types; prepare the data with the verifier's codes and dictionary"
            )
    del weights
    allow_fairseq_checkpoints()
    overrides = {
        "data": str(data.folder),
        "source_lang": data.source_lang,
        "target_lang": data.target_lang,
        "eval_bleu": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # fairseq uses old names of hydra
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(checkpoint)], arg_overrides=overrides
        )
    return models[0], task


def _to(value: Any, device: torch.device) -> Any:
    """A sample's tensors on ``device``; its structure of dictionaries unchanged."""
    if isinstance(value, dict):
        return {key: _to(inner, device) for key, inner in value.items()}
    return value.to(device) if isinstance(value, torch.Tensor) else value
