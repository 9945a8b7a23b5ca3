"""The steps of `drafter.py` that need a translator: encoding text, translating it, measuring.

A training reads ids, so the dictionaries of its data are numbers: what the symbols of a tokenizer
look like concerns nobody there.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from specdec_plugins.app.codec import Codec
from specdec_plugins.app.loading import make_settings, read_words
from specdec_plugins.app.translator import SpeculativeTranslator
from specdec_plugins.corpus import cli, distill
from specdec_plugins.corpus.cli import UNFINISHED, logger
from specdec_plugins.corpus.reading import BadLines, check_file, read_lines
from specdec_plugins.corpus.teacher import DataBin, Teacher
from specdec_plugins.decoding.types import FinishReason, Request
from specdec_plugins.errors import UserError, require
from specdec_plugins.formats.bundle import read_bundle
from specdec_plugins.formats.dictionaries import Dictionary
from specdec_plugins.formats.output import written_whole

LEAST_LINES, HELD_OUT = 200, 40  # lines of text; lines of them that are measured with
_MOST_UNKNOWN = 0.1  # of the pieces of text in the model's language
_SAMPLED = 300  # lines of which that is asked
_ROWS = 64  # sentences translated at once
SIDES = ("source", "target")  # the languages of the data, whatever the model's are
HELD_OUT_FILE = "held-out.txt"


def read_monolingual(path: Path) -> list[str]:
    """The different lines of a text, in an order of chance that is always the same.

    Raises UserError where it is not there, or too small.
    """
    check_file(path, "text in the model's source language, a sentence a line", "--text")
    lines = [line.strip() for line in read_lines(path, BadLines(skip=True)) if line]
    lines = sorted({line for line in lines if line})
    require(
        len(lines) >= LEAST_LINES,
        f"{path}: has {len(lines)} different lines of text; give {LEAST_LINES} at the very least, "
        "and tens of thousands for a drafter that is of use.",
    )
    random.Random(1).shuffle(lines)
    return lines


def check_language(path: Path, lines: Sequence[str], codec: Codec) -> None:
    """Raises UserError for text that the model does not know, or where a language is not chosen."""
    codec.source_ids("")
    _ = codec.first_ids
    num_pieces, num_unknown = 1, 0
    for line in lines[:_SAMPLED]:
        try:
            ids = codec.source_ids(line)
        except UserError:  # the tokenizer knows none of its letters
            ids = [Dictionary.unk]
        num_pieces += len(ids)
        num_unknown += ids.count(Dictionary.unk)
    share = num_unknown / num_pieces
    require(
        share <= _MOST_UNKNOWN,
        f"{path}: the model does not know {share:.0%} of its pieces; give text in the language "
        f"that it reads{f' ({codec.source_lang})' if codec.source_lang else ''}.",
    )


def encode(args: argparse.Namespace) -> None:
    """Write a data folder without targets, and beside it the lines that are held out."""
    lines = read_monolingual(args.text)
    words = read_words(make_settings({"data": str(args.bundle), "strategy": "AR"}))
    longest = read_bundle(args.bundle).verifier.architecture["encoder"]["max_positions"]
    check_language(args.text, lines, words.codec)
    num_kept = 0
    with written_whole(args.output) as part:
        part.mkdir()
        (part / HELD_OUT_FILE).write_text("\n".join(lines[:HELD_OUT]) + "\n", encoding="utf-8")
        both = words.dictionaries
        for side, dictionary in zip(SIDES, (both.source, both.target), strict=True):
            numbers = (f"{index} 1" for index in range(4, len(dictionary)))
            (part / f"dict.{side}.txt").write_text("\n".join(numbers) + "\n", encoding="utf-8")
        with DataBin(part, "train", *SIDES).writing(part) as write:
            for line in tqdm(lines[HELD_OUT:], desc="encoding", unit=" lines"):
                ids = _encoded(words.codec, line)
                if words.codec.num_framing < len(ids) <= longest:
                    write(torch.tensor(ids, dtype=torch.int64), "")
                    num_kept += 1
    logger.info("%s: %d of %d lines, without those too long", args.output, num_kept, len(lines))


def _encoded(codec: Codec, line: str) -> list[int]:
    """Its ids; none where the tokenizer cannot read it."""
    try:
        return codec.source_ids(line)
    except UserError:
        return []


class EngineTeacher(Teacher):
    """A bundle's verifier decoding greedily: what a drafter is to foresee."""

    def __init__(self, data: DataBin, checkpoint: Path, search: Any, device: torch.device) -> None:
        self._translator = SpeculativeTranslator.from_pretrained(
            str(checkpoint.parent), strategy="AR", batch=_ROWS, scores=False, device=str(device)
        )
        self._sources, self._targets = map(data.sentences, data.languages)
        self._longest = self._translator.limits.source
        self._dictionary = Dictionary.load(data.folder / f"dict.{data.target_lang}.txt")

    def translate(
        self, indices: Sequence[int], max_tokens: int
    ) -> Iterator[list[tuple[int, str | None]]]:
        """Sentence after sentence; None where a translation does not end."""
        requests = [self._request(index) for index in indices]
        requests.sort(key=lambda request: len(request.source_ids), reverse=True)
        for result in self._translator.decoder.run(requests):
            *ids, last = result.token_ids
            has_ended = result.finish_reason is FinishReason.EOS and last == self._dictionary.eos
            yield [(int(result.id), self._dictionary.string(ids) if has_ended else None)]

    def _request(self, index: int) -> Request:
        translator, source_ids = self._translator, self._sources[index].tolist()
        limit = translator.settings.max_len(len(source_ids), translator.limits.target)
        params = translator.settings.decode_params(min(limit, 2 * len(source_ids) + 20))
        return Request(str(index), source_ids, params, list(translator.codec.first_ids))


def translate(args: argparse.Namespace) -> None:
    """Raises SystemExit with UNFINISHED where it is not all there."""
    distill.main(args, EngineTeacher)
    if not args.output.exists():
        raise SystemExit(UNFINISHED)


def measure(
    bundle: Path, drafter: Path, lines: Sequence[str], device: str | None
) -> dict[str, float]:
    """Accepted tokens of a drafter, its speed against greedy, and how many texts are the same.

    One sentence at a time, both ways in turns, so that what else a machine does is shared.
    """
    common: dict[str, Any] = {"data": str(bundle), "scores": False, "device": device}
    load = SpeculativeTranslator.from_pretrained
    plain = load(**common, strategy="AR")
    fast = load(**common, drafter="block", drafter_checkpoint=str(drafter))
    for translator in (plain, fast):  # what is built at the first call
        translator.translate(lines[:1])
    before, same = replace(fast.stats), 0
    seconds = {id(plain): 0.0, id(fast): 0.0}
    for line in lines:
        texts = []
        for translator in (plain, fast):
            began = time.perf_counter()
            texts.append([str(text) for text in translator.translate([line])])
            seconds[id(translator)] += time.perf_counter() - began
        same += texts[0] == texts[1]
    stats = fast.stats
    rounds = stats.rounds - before.rounds
    emitted = stats.emitted - before.emitted - (stats.eos - before.eos)
    return {
        "accepted": round(emitted / max(1, rounds), 3),
        "speedup": round(seconds[id(plain)] / max(1e-9, seconds[id(fast)]), 3),
        "same": round(same / len(lines), 3),
    }


_NUMBER = cli.at_least(1)
_GREEDY = {"beam": 1, "lenpen": 1.0, "max_len_a": 2.0, "max_len_b": 20, "fp16": False}


def _translate_greedily(args: argparse.Namespace) -> None:
    vars(args).update(_GREEDY, subset="train", merge=False, until=0.0, max_tokens=4096)
    translate(args)


COMMANDS: dict[str, cli.CommandLine] = {
    "encode": cli.CommandLine(
        "drafting encode",
        "Encode text as a model reads it, into a folder of fairseq's data without targets.",
        encode,
        [
            ("--bundle", cli.REQUIRED, Path, "the model"),
            ("--text", cli.REQUIRED, Path, "a sentence a line"),
            ("--output", cli.REQUIRED, Path, "folder to write"),
        ],
    ),
    "translate": cli.CommandLine(
        "drafting translate",
        "Give such a folder the model's greedy translations. Run again, it goes on.",
        _translate_greedily,
        [
            ("data", None, Path, "of drafting encode"),
            ("--path", cli.REQUIRED, Path, "weights in a bundle"),
            ("--output", cli.REQUIRED, Path, "folder to write"),
            ("--chunk-size", 256, _NUMBER, "sentences lost by a stop"),
            ("--hours", 0.0, cli.at_least(0, float), "go on with what is there then"),
            ("--cpu", False, bool, "leave a GPU alone"),
            ("--num-shards", 1, _NUMBER, "machines at work"),
            ("--shard-id", 0, cli.at_least(0), "from 0"),
            ("--ray", None, str, "address of a Ray cluster, or 'local'"),
            ("--ray-workers", 2, _NUMBER, "verifiers on the cluster"),
        ],
        environment="hours cpu num-shards shard-id ray ray-workers",
    ),
}

if __name__ == "__main__":
    sys.exit(cli.run_named(COMMANDS))
