"""Models of sizes that people have, with random weights: this project against CTranslate2.

Weights do not change what a step costs, so the shapes are enough; every translation has the same
number of tokens. There is no drafter: it is greedy decoding and beam search that are compared. In
float32 greedy decoding must say the same; beams end by rules of their own, and 8 bits round apart.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.engines import Lengths, Workload, convert
from benchmarks.measure import Cell, measure
from benchmarks.pair import Pair, Sentence
from benchmarks.reports import Columns, Record, command, describe, in_words, table, write
from benchmarks.run import STOPPED
from benchmarks.systems import BEAM, GREEDY, Options, System
from specdec_plugins.corpus.cli import CommandLine, option
from specdec_plugins.decoding.networks import StackConfig, TransformerConfig
from specdec_plugins.decoding.networks.trained import Model
from specdec_plugins.formats.bundle import Contents, write_bundle
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.output import check_output
from specdec_plugins.formats.pretrained.weights import stored_shapes

ROLES = (GREEDY, BEAM)
_ENGINES = ("ctranslate2", "ours")


def shape_of(layers: tuple[int, int], dim: int, types: int, **switches: Any) -> TransformerConfig:
    stack = StackConfig(
        *(1, dim, 4 * dim, dim // 64, types, 1024),
        normalize_before=switches.pop("pre_norm", False),
        final_norm=switches.pop("final_norm", False),
    )
    encoder, decoder = (replace(stack, num_layers=number) for number in layers)
    return TransformerConfig(encoder, decoder, share_embeddings=True, tie_output=True, **switches)


SHAPES = {
    "opus-mt-en-de": shape_of((6, 6), 512, 58_101, activation="swish"),
    "nllb-200-distilled-600M": shape_of((12, 12), 1024, 256_206, pre_norm=True, final_norm=True),
    "8+2 layers": shape_of((8, 2), 512, 32_000),
}


def random_model(config: TransformerConfig) -> Model:
    """The same weights at every call."""
    generator = torch.Generator().manual_seed(1)

    def weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if len(shape) == 1:  # of norms, and biases
            return torch.full(shape, float(name.endswith("norm.weight")))
        return torch.randn(shape, generator=generator) * shape[1] ** -0.5

    shapes = stored_shapes(config)
    words = weight("", shapes["encoder.embed_tokens.weight"])
    state = {
        name: words if shape == words.shape else weight(name, shape)  # one table, under each name
        for name, shape in shapes.items()
    }
    return Model(Path("random"), "transformer", "transformer", config, state)


def made_up_words(num_types: int) -> list[str]:
    """Words for a dictionary of so many types, as fairseq fills dictionaries up."""
    return [f"madeupword{number:05d}" for number in range(num_types - len(Dictionary()))]


def random_sentences(types: int, count: int, length: int) -> list[Sentence]:
    draw, symbols = random.Random(1), Dictionary(made_up_words(types)).symbols
    sentences = []
    for number in range(1, count + 1):
        ids = [draw.randrange(len(Dictionary()), types) for _ in range(length - 1)]
        sentences.append(Sentence(number, [symbols[i] for i in ids], [*ids, Dictionary.eos]))
    return sentences


@dataclass(frozen=True, kw_only=True)
class SizesOptions:
    """Measure models of sizes that people have, with random weights, against CTranslate2."""

    # fmt: off
    output: Path = option(MISSING, "prefix of the record and the page")
    shapes: Sequence[str] = option(tuple(SHAPES), "which (default: all)", choices=tuple(SHAPES))
    sentences: int = option(3, "sentences; of the largest shape one", least=1)
    tokens: int = option(16, "tokens of a source and of its translation", least=2)
    threads: Sequence[int] = option((1, 2), "threads (default: 1 2)", least=1)
    dtypes: Sequence[str] = option(("float32", "int8"), "precisions (default: float32 int8)",
        choices=("float32", "int8"))
    repeats: int = option(3, "repetitions", least=1)
    work: str = option("runs", "folder for the models, which take 4 GB for a while", "FOLDER")
    # fmt: on


def measured(name: str, options: SizesOptions) -> list[Cell]:
    """All systems over one shape."""
    config = SHAPES[name]
    count = 1 if config.decoder.dim > 512 else options.sentences
    sentences = random_sentences(config.decoder.vocab_size, count, options.tokens)
    turns = Options(
        *(options.output, "", ""),
        threads=options.threads, repeats=options.repeats, turn=1, work=options.work,
    )  # fmt: skip
    Path(options.work).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sizes-", dir=options.work) as folder:
        words = "".join(f"{word} 1\n" for word in made_up_words(config.decoder.vocab_size))
        for language in ("en", "de"):
            (Path(folder) / f"dict.{language}.txt").write_text(words, encoding="utf-8")
        made = Path(folder) / "pair"
        write_bundle(Contents(Path(folder), "en", "de", random_model(config)), made, torch.float16)
        lengths = Lengths(options.tokens, options.tokens)
        pair = Pair.of(made, "en", "de")
        workload = Workload(pair, sentences, lengths, work=folder)
        convert(workload, _ENGINES)
        cells = []
        for dtype in options.dtypes:  # so that all fit into memory
            systems = [System(e, role, dtype) for role in ROLES for e in _ENGINES]
            cells += measure(systems, workload, turns)
        return cells


def figures(shape: str, cells: Sequence[Cell]) -> list[Record]:
    """A record for each system; its seconds are of a sentence, by threads and repetition."""
    records = dict[tuple[str, str], Record]()
    for cell in cells:
        system, tokens = cell.system, cell.tokens
        new = {"shape": shape, **system.to_dict(), "seconds": {}}
        row = records.setdefault((system.name, system.dtype), new)
        rival = replace(system, engine=_ENGINES[0])
        theirs = next(other.tokens for other in cells if other.system == rival)
        row["equal"] = [tokens[number] == theirs[number] for number in tokens]
        row["seconds"][cell.threads] = [
            sum(output.seconds for output in run) / len(tokens) for run in cell.runs
        ]
    return [*records.values()]


def best(record: Record) -> float:
    """Seconds of a sentence with the number of threads that suits it."""
    return min(median(of_threads) for of_threads in record["seconds"].values())


def page(records: Sequence[Record]) -> str:
    rivals = {(r["shape"], r["role"], r["dtype"]): r for r in records if r["engine"] != "ours"}

    def rival(record: Record) -> Record:
        return rivals[record["shape"], record["role"], record["dtype"]]

    def milliseconds(record: Record, threads: int) -> str:
        return f"{1000 * median(record['seconds'][threads]):.1f}"

    columns: Columns = {
        "shape": lambda row: str(row["shape"]),
        "decoding": lambda row: str(row["name"]),
        "precision": lambda row: str(row["dtype"]),
        **{f"ms, threads {n}": partial(milliseconds, threads=n) for n in records[0]["seconds"]},
        "against CTranslate2": lambda row: f"{best(rival(row)) / best(row):.2f}x",
        "same as CTranslate2": lambda row: f"{sum(row['equal'])} of {len(row['equal'])}",
    }
    return table(columns, records)


def main(options: SizesOptions) -> None:
    check_output(f"{options.output}.json", "--output", inputs=[], replaced=True)
    records = [one for name in options.shapes for one in figures(name, measured(name, options))]
    facts = describe("cpu")
    told = [f"`{command()}`", in_words(facts), page(records)]
    record = {"machine": facts, "tokens": options.tokens, "rows": records}
    write(str(options.output), record, "\n\n".join(["# Sizes that people have", *told]))


COMMAND = CommandLine("specdec bench sizes", main, SizesOptions, interrupted=STOPPED)
