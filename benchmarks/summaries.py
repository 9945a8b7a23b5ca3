"""Trains a small BART that summarises functions and classes, and collects the text for it.

    python -m benchmarks.summaries --output runs/summaries --minutes 25

The text is Python code of the standard library and of installed packages with similar licences. A
source is a definition on one line, without the first sentence of its docstring. Its summary is
what an API index prints: the signature without annotations, and that sentence. Names, arguments
and phrases are copied, the rest is not. Writes train, valid and test (`.source`, `.target`; each
code file goes to one of them) and a transformers folder, `model`, with a card. See
benchmarks/results/summaries.md.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import math
import random
import sys
import sysconfig
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specdec_plugins.corpus.cli import REQUIRED, CommandLine, at_least
from specdec_plugins.decoding.drafters import DRAFTERS, DraftContext
from specdec_plugins.decoding.sampling import HashRandom
from specdec_plugins.decoding.types import (
    DecodeParams,
    Drafter,
    DraftRequest,
    Prefix,
    SourceBatch,
    SpecialTokens,
    Verifier,
)
from specdec_plugins.errors import require
from specdec_plugins.formats.marian import import_transformers
from specdec_plugins.formats.output import check_output

# Packages whose licences allow this use, if their notices are kept; others are left out.
LICENCES = {
    "_pytest": "MIT", "click": "BSD", "fastapi": "MIT", "fontTools": "MIT", "fsspec": "BSD",
    "httpx": "BSD", "jinja2": "BSD", "joblib": "BSD", "matplotlib": "PSF", "mypy": "MIT",
    "networkx": "BSD", "numpy": "BSD", "omegaconf": "BSD", "pydantic": "MIT", "pygments": "BSD",
    "rich": "MIT", "scipy": "BSD", "setuptools": "MIT", "sklearn": "BSD", "starlette": "BSD",
    "sympy": "BSD", "torch": "BSD", "urllib3": "MIT", "websockets": "BSD",
}  # fmt: skip
STANDARD = "the standard library"
POSITIONS = 1024  # of a source, as in BART
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BOS, PAD, EOS, UNK = range(4)
VOCABULARY, WIDTH, LAYERS = 4000, 128, 2
SAMPLE = 5000  # pairs that the tokenizer is trained on
CHARACTERS = 3_000  # of sources in a batch; about three make a token
BLOCKS, NUM_REPLAYED = (0, 5, 10, 20), 300  # block sizes of `lookup`; references of the test set
LONGEST = (300, 300, 600, 4 * POSITIONS)  # characters of a source in each quarter of the time
_NEVER = ("test", "tests", "testing", "idlelib", "lib2to3", "site-packages", "_vendor")
_WORDS, _CHARACTERS = (4, 40), 12_000  # of a sentence; of a source, more than is read
RATE, _WARM_UP = 2e-3, 150  # peak learning rate; updates until then
_REPORT_EVERY = 60  # seconds

Pair = tuple[str, str]  # source, summary


# --- text -----------------------------------------------------------------------------------------


def roots() -> dict[str, tuple[Path, str]]:
    """The folder and the licence of each installed package, by name."""
    found = {STANDARD: (Path(sysconfig.get_path("stdlib")), "PSF")}
    for name, licence in LICENCES.items():
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            found[name] = (Path(spec.submodule_search_locations[0]), licence)
    return found


def pairs_of(code: str) -> Iterator[Pair]:
    """Every definition whose docstring begins with a usable sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in other projects' strings
        tree = ast.parse(code)
    lines = code.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            docstring = ast.get_docstring(node)
            first, _, rest = (docstring or "").strip().partition("\n\n")
            sentence = " ".join(first.split())
            least, most = _WORDS
            if sentence.isascii() and least <= len(sentence.split()) <= most:
                yield _source(node, lines, rest), f"{_signature(node)}: {sentence}"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    """As an index prints it: `name(first, second=1)`, or a class and its bases."""
    if isinstance(node, ast.ClassDef):
        return f"{node.name}({', '.join(map(ast.unparse, node.bases))})"
    arguments = node.args
    for one in ast.walk(arguments):
        if isinstance(one, ast.arg):
            one.annotation = None
    return f"{node.name}({ast.unparse(arguments)})"


def _source(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, lines: Sequence[str], rest: str
) -> str:
    """The definition without the sentence, on one line."""
    docstring = node.body[0]
    heading = lines[node.lineno - 1 : docstring.lineno - 1]
    code = lines[docstring.end_lineno : node.end_lineno]
    return " ".join(" ".join([*heading, rest, *code]).split())[:_CHARACTERS]


def part_of(path: Path, root: Path) -> str:
    """A fiftieth of the files is for testing and one for validation, the same on every machine."""
    number = int(sha256(path.relative_to(root).as_posix().encode()).hexdigest(), 16) % 50
    return {0: "test", 1: "valid"}.get(number, "train")


def collect(folder: Path) -> dict[str, int]:
    """Write the text; returns the number of pairs of each package."""
    texts: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    seen: set[str] = set()
    counts = {}
    for name, (root, _) in roots().items():
        counts[name] = 0
        for path in sorted(root.rglob("*.py")):
            if set(_NEVER) & set(path.relative_to(root).parts):
                continue
            try:
                found = list(pairs_of(path.read_text(encoding="utf-8")))
            except (SyntaxError, UnicodeDecodeError):
                continue  # code for another Python, or a test of bad code
            fresh = [pair for pair in found if pair[1] not in seen]
            seen.update(summary for _, summary in fresh)
            texts[part_of(path, root)] += fresh
            counts[name] += len(fresh)
    for part, pairs in texts.items():
        random.Random(1).shuffle(pairs)
        for column, kind in enumerate(("source", "target")):
            text = "".join(f"{pair[column]}\n" for pair in pairs)
            (folder / f"{part}.{kind}").write_text(text, encoding="utf-8")
    return counts


def read_pairs(folder: Path, part: str) -> list[Pair]:
    sides = [(folder / f"{part}.{k}").read_text("utf-8").split("\n") for k in ("source", "target")]
    return list(zip(*(side[:-1] for side in sides), strict=True))


# --- model ----------------------------------------------------------------------------------------


@dataclass
class Data:
    """Pairs, encoded when needed: `<s>`, text, `</s>` on both sides, as in BART."""

    tokenizer: ByteLevelBPETokenizer
    pairs: list[Pair]

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Ids, padded on the right and cut to what the model reads: [B, T] int64."""
        encoded = self.tokenizer.encode_batch(list(texts))
        rows = [torch.tensor([BOS, *text.ids[: POSITIONS - 2], EOS]) for text in encoded]
        return pad_sequence(rows, batch_first=True, padding_value=PAD)

    def batches(self, longest: int, dice: random.Random) -> Iterator[list[Pair]]:
        """Endless batches of sources of similar length, in random order; longest: in characters."""
        while True:
            chosen = [pair for pair in self.pairs if len(pair[0]) <= longest]
            chosen.sort(key=lambda pair: len(pair[0]) * (1 + 0.2 * dice.random()))
            batches: list[list[Pair]] = [[]]
            for pair in chosen:
                if (len(batches[-1]) + 1) * min(len(pair[0]), LONGEST[-1]) > CHARACTERS:
                    batches.append([])
                batches[-1].append(pair)
            dice.shuffle(batches)
            yield from filter(None, batches)

    def loss(self, model: Any, batch: Sequence[Pair]) -> Tensor:
        """Mean negative log-likelihood of a target token."""
        source, target = (self.encode(texts) for texts in zip(*batch, strict=True))
        # BART's decoder input begins with eos; the model then emits bos itself.
        inputs = torch.cat([torch.full((len(batch), 1), EOS), target[:, :-1]], 1)
        hidden = model.model(
            input_ids=source, attention_mask=source != PAD, decoder_input_ids=inputs
        ).last_hidden_state
        counts = target != PAD
        logits = model.lm_head(hidden[counts]) + model.final_logits_bias
        return torch.nn.functional.cross_entropy(logits.float(), target[counts])


def new_model(seed: int) -> Any:
    transformers = import_transformers()
    stacks = {"layers": LAYERS, "attention_heads": WIDTH // 32, "ffn_dim": 4 * WIDTH}
    shape = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in stacks.items()}
    config = transformers.BartConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, max_position_embeddings=POSITIONS, dropout=0.0,
        bos_token_id=BOS, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=EOS,
        forced_eos_token_id=EOS, **shape,
    )  # fmt: skip
    torch.manual_seed(seed)  # transformers takes no generator
    model = transformers.BartForConditionalGeneration(config)
    # As in bart-large-cnn.
    asked = {"forced_bos_token_id": BOS, "no_repeat_ngram_size": 3, "max_length": 100}
    model.generation_config.update(**asked)
    for stack in (model.model.encoder, model.model.decoder):
        table = stack.embed_positions.weight.data
        table.copy_(config.init_std * sinusoids(*table.shape))
    return model


def sinusoids(count: int, width: int) -> Tensor:
    """Initial positions: when text is copied, the next position is a rotation away."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
    angles = torch.arange(count)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1) * math.sqrt(2)


def train(folder: Path, minutes: float, seed: int) -> tuple[Any, list[str]]:
    """The model after that many minutes of process time, and its loss curve."""
    tokenizer = ByteLevelBPETokenizer()
    pairs = read_pairs(folder, "train")
    texts = (text for pair in pairs[:SAMPLE] for text in pair)
    tokenizer.train_from_iterator(texts, VOCABULARY, special_tokens=list(SPECIAL))
    (folder / "model").mkdir(exist_ok=True)
    tokenizer.save_model(str(folder / "model"))
    data, valid = Data(tokenizer, pairs), Data(tokenizer, read_pairs(folder, "valid"))
    model, dice, curve = new_model(seed), random.Random(seed), list[str]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    began = told = time.process_time()
    updates, quarters = 0, [data.batches(longest, dice) for longest in LONGEST]
    while (done := (time.process_time() - began) / (60 * minutes)) < 1:
        model.train()
        with torch.autocast("cpu", torch.bfloat16):
            loss = data.loss(model, next(quarters[min(int(4 * done), 3)]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        updates += 1
        rate = RATE * min(updates / _WARM_UP, 1.0 if done < 0.5 else 2.02 - 2 * done)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        if time.process_time() - told > _REPORT_EVERY:
            told = time.process_time()
            curve.append(
                f"| {(told - began) / 60:.0f} | {updates} | {validate(model, valid):.2f} |"
            )
            print(curve[-1], flush=True)
            model.save_pretrained(folder / "model")
    return model, curve


@torch.inference_mode()
def validate(model: Any, valid: Data) -> float:
    model.eval()
    batches = valid.batches(LONGEST[-1], random.Random(1))
    with torch.autocast("cpu", torch.bfloat16):
        return sum(float(valid.loss(model, next(batches))) for _ in range(8)) / 8


# --- how much can be copied -----------------------------------------------------------------------


@dataclass(frozen=True)
class Words:
    """The target side, for a drafter that has no verifier."""

    vocab_size: int = VOCABULARY
    special: SpecialTokens = SpecialTokens(start=EOS, pad=PAD, eos=EOS, unk=UNK)
    device: torch.device = torch.device("cpu")
    max_target_positions: int = POSITIONS


def tokens_a_round(data: Data, block_size: int, **options: int) -> float:
    """Tokens a round of `lookup` if the model wrote exactly the references; eos not counted.

    options: of the drafter.
    """
    context = DraftContext(cast(Verifier, Words()))
    num_tokens = num_rounds = 0
    for pair in data.pairs:
        drafter = DRAFTERS.build("lookup", context, options=options)
        source, target = (data.encode([text])[0] for text in pair)
        num_tokens += len(target) - 2  # without bos and eos
        num_rounds += rounds_of(drafter, source, target, block_size)
    return num_tokens / num_rounds


def rounds_of(drafter: Drafter, source: Tensor, target: Tensor, block_size: int) -> int:
    """Rounds with a verifier whose greedy output is the target; source [S], target [T] int64."""
    one, start = torch.ones(1, dtype=torch.int64), torch.full((1, 1), EOS)
    lengths = torch.tensor([len(source)])
    drafter.admit(SourceBatch(source[None], lengths, start, one, hints=start[:, :0]))
    params = DecodeParams.stack([DecodeParams(block_size, len(target) + 1)], start.device)
    tokens = torch.cat([start, target[None]], 1)
    rounds, done = 0, 1  # the first token of a target is forced
    while done < len(target):
        prefix = Prefix(tokens[:, : done + 1], one * (done + 1), one.bool(), done + 1)
        asked = DraftRequest(prefix, one * block_size, block_size, params, HashRandom(params.seed))
        draft = drafter.propose(asked)
        drafted = draft.tokens[0, : int(draft.lengths[0])].tolist()
        pairs = zip(drafted, target[done:].tolist(), strict=False)
        done += len(list(takewhile(lambda both: both[0] == both[1], pairs))) + 1
        rounds += 1
    return rounds


def main(args: argparse.Namespace) -> None:
    folder: Path = args.output
    check_output(folder, "--output", inputs=(), folder=True)
    model_file = folder / "model" / "model.safetensors"
    require(not model_file.exists(), f"{model_file}: already exists; name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    counts = collect(folder)
    torch.set_num_threads(args.threads)
    model, curve = train(folder, args.minutes, args.seed)
    model.save_pretrained(folder / "model")
    limits = {"model_max_length": POSITIONS}
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(limits), encoding="utf-8")
    card = ["# Summaries of Python definitions", "", __doc__.split("\n\n")[2], ""]
    packages = [f"| {n} | {licence} | {counts[n]} |" for n, (_, licence) in roots().items()]
    card += ["| package | licence | pairs |", "| --- | --- | ---: |", *packages, ""]
    card += ["| CPU minutes | updates | valid loss |", "| ---: | ---: | ---: |", *curve, ""]
    card += copied(folder)
    (folder / "model" / "README.md").write_text("\n".join(card), encoding="utf-8")


def copied(folder: Path) -> list[str]:
    """A table of what `lookup` would gain with a model that writes the references."""
    files = (str(folder / "model" / name) for name in ("vocab.json", "merges.txt"))
    data = Data(ByteLevelBPETokenizer(*files), read_pairs(folder, "test")[:NUM_REPLAYED])
    rows = ["| `lookup`, block size | tokens a round on the references |", "| ---: | ---: |"]
    return [*rows, *(f"| {size} | {tokens_a_round(data, size):.2f} |" for size in BLOCKS), ""]


COMMAND = CommandLine(
    "summaries.py",
    "Collect Python's definitions and their docstrings, and train a small BART to summarise them.",
    main,
    [
        ("--output", REQUIRED, Path, "folder for text and model"),
        ("--minutes", 25.0, at_least(0.01, float), "CPU minutes of training"),
        ("--threads", 1, at_least(1), "CPU threads of training"),
        ("--seed", 1, int, "seed of the initial weights and the order of the text"),
    ],
    interrupted="stopped; the text and the last saved model are on disk",
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
