"""Decode one test file in several ways, interleaved in one process, and tabulate what came of it.

Every way sees the same sentences in the same order and batches, under the same limits and bans
(those of fairseq's search). The file is cut into chunks; each chunk is decoded by every way before
the next, in an order that rotates, so that a noisy machine disturbs all of them alike. Ratios are
taken within one repetition; medians over repetitions are reported.

    python -m benchmarks.compare DICT_FOLDER --AR-path V.pt --path D.pt \\
        --input-path test.en --reference test.de --output benchmarks/results/NAME
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.machine import describe
from specdec_plugins.app.bundles import make_settings
from specdec_plugins.app.comparison import Decoding, markdown
from specdec_plugins.app.loading import load_translator
from specdec_plugins.app.settings import Settings
from specdec_plugins.app.translator import Sentence, Translation, number_sentences
from specdec_plugins.corpus import scoring
from specdec_plugins.errors import UserError

BEAM, FAIRSEQ_GREEDY, GREEDY, EXACT = "fairseq beam 5", "fairseq greedy", "AR greedy", "exact"
NUM_WARM_UP = 5  # sentences, not counted


@dataclass
class Contender:
    """One way to decode, and what it produced."""

    name: str
    settings: Settings
    translations: list[Translation] = field(default_factory=list)  # of the last repetition
    seconds: list[float] = field(default_factory=list)  # for the whole file, by repetition
    latencies: list[float] = field(default_factory=list)  # a sentence, all repetitions

    def ratios(self, baseline: Contender) -> list[float]:
        """How many times faster than the baseline, by repetition."""
        return [theirs / own for own, theirs in zip(self.seconds, baseline.seconds, strict=True)]

    def decoding(self) -> Decoding:
        return Decoding.of(self.name, self.translations)


def contenders(base: Settings, relaxed: Sequence[tuple[int, float]]) -> list[Contender]:
    """The fixed four, and one for each (beta, tau)."""
    search = replace(base, strategy="fairseq", greedy_like="published", drafter_checkpoint=None)
    ways = [
        Contender(BEAM, replace(search, beam=5)),
        Contender(FAIRSEQ_GREEDY, replace(search, beam=1)),
        Contender(GREEDY, replace(base, strategy="AR", drafter_checkpoint=None)),
        Contender(EXACT, base),
    ]
    for beta, tau in relaxed:
        name = f"relaxed, beta {beta}, tau {tau:g}"
        ways.append(Contender(name, replace(base, beta=beta, tau=tau)))
    return ways


def run(ways: Sequence[Contender], sentences: Sequence[Sentence], repeats: int, chunk: int) -> None:
    """Decode everything with every way, `repeats` times."""
    translators = [load_translator(way.settings) for way in ways]
    for translator in translators:
        translator.translate_sentences(sentences[:NUM_WARM_UP])
    chunks = [sentences[i : i + chunk] for i in range(0, len(sentences), chunk)]
    bar = tqdm(total=repeats * len(ways) * len(sentences), unit="sentence", file=sys.stderr)
    for repeat in range(repeats):
        for way in ways:
            way.translations = []
            way.seconds.append(0.0)
        for turn, part in enumerate(chunks):
            for index in range(len(ways)):
                # The order rotates, so that nobody always runs in another's wake.
                at = (index + turn + repeat) % len(ways)
                start = time.perf_counter()
                done = translators[at].translate_sentences(part)
                ways[at].seconds[-1] += time.perf_counter() - start
                ways[at].translations += done
                ways[at].latencies += [t.seconds for t in done]
                bar.update(len(part))
    bar.close()


def row(
    way: Contender, ways: dict[str, Contender], references: Sequence[str], language: str
) -> dict[str, Any]:
    """All figures of one way."""
    decoding = way.decoding()
    scores = scoring.score(decoding.texts, references)
    if language == "de":
        scores.append(scoring.compound_bleu(decoding.texts, references, language))
    return {
        "name": way.name,
        "scores": {score.metric: score.value for score in scores},
        "signatures": {score.metric: score.signature for score in scores},
        "differs_from_greedy": [n + 1 for n in decoding.differing(ways[GREEDY].decoding())],
        "mean_accepted_tokens": decoding.mean_accepted_tokens,
        "seconds_per_sentence": [s / len(references) for s in way.seconds],
        "latency_p50_ms": 1000 * statistics.median(way.latencies),
        "latency_p95_ms": 1000 * statistics.quantiles(way.latencies, n=20)[-1],
        "speed_against_fairseq_greedy": way.ratios(ways[FAIRSEQ_GREEDY]),
        "speed_against_ar_greedy": way.ratios(ways[GREEDY]),
    }


def table(rows: Sequence[dict[str, Any]], num_sentences: int) -> str:
    """What people read."""
    metrics = list(rows[0]["scores"])
    header = ["decoding", *metrics, "same as greedy", "accepted tokens"]
    header += ["ms a sentence", "p50", "p95", "against fairseq greedy", "against our AR"]
    cells = []
    for r in rows:
        accepted = r["mean_accepted_tokens"]
        same = num_sentences - len(r["differs_from_greedy"])
        cells.append(
            [
                r["name"],
                *(f"{r['scores'][metric]:.2f}" for metric in metrics),
                f"{same} of {num_sentences}",
                "" if accepted is None else f"{accepted:.2f}",
                f"{1000 * statistics.median(r['seconds_per_sentence']):.1f}",
                f"{r['latency_p50_ms']:.1f}",
                f"{r['latency_p95_ms']:.1f}",
                _spread(r["speed_against_fairseq_greedy"]),
                _spread(r["speed_against_ar_greedy"]),
            ]
        )
    return markdown(header, cells)


def _spread(ratios: Sequence[float]) -> str:
    middle = f"{statistics.median(ratios):.2f}x"
    return middle if len(ratios) == 1 else f"{middle} ({min(ratios):.2f} to {max(ratios):.2f})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.compare", description=__doc__)
    add = parser.add_argument
    add("data", nargs="?", help="bundle, or folder with dict.<lang>.txt (default: the bundle)")
    add("--AR-path", dest="verifier", metavar="FILE")
    add("--path", dest="drafter_checkpoint", metavar="FILE")
    add("--source-lang", "-s")
    add("--target-lang", "-t")
    add("--input-path", type=Path, required=True, help="raw text")
    add("--reference", type=Path, required=True, help="raw text")
    add("--bpe-codes", help="where the folder is no bundle")
    add("--output", type=Path, required=True, help="writes OUTPUT.json and OUTPUT.md")
    add("--relaxed", nargs="*", default=["3:1.0", "5:3.0"], metavar="BETA:TAU")
    add("--block-size", type=int)
    add("--batch", type=int, default=1)
    add("--threads", type=int, default=torch.get_num_threads())
    add("--repeats", type=int, default=3)
    add("--chunk", type=int, default=50, help="sentences between two ways' turns")
    return parser


def _settings(args: argparse.Namespace) -> Settings:
    named = ("data", "verifier", "drafter_checkpoint", "source_lang", "target_lang", "block_size")
    given = {name: getattr(args, name) for name in named if getattr(args, name) is not None}
    if args.bpe_codes is not None:
        given |= {"tokenizer": "moses", "bpe": "subword_nmt", "bpe_codes": args.bpe_codes}
    return make_settings({**given, "beta": 1, "greedy_like": "fairseq", "batch": args.batch})


def main() -> int:
    args = _parser().parse_args()
    torch.set_num_threads(args.threads)
    relaxed = [(int(b), float(t)) for b, t in (pair.split(":") for pair in args.relaxed)]
    try:
        base = _settings(args)
        ways = contenders(base, relaxed)
        lines = {str(p): scoring.read_lines(p) for p in (args.input_path, args.reference)}
        scoring.check_same_length(lines)
        sources, references = lines.values()
        run(ways, number_sentences(sources), args.repeats, args.chunk)
    except UserError as error:
        sys.stderr.write(f"compare: {error}\n")
        return 2
    by_name = {way.name: way for way in ways}
    rows = [row(way, by_name, references, base.target_lang or "") for way in ways]
    setting = {"batch": args.batch, "repeats": args.repeats, "dtype": base.dtype}
    record = {
        "command": shlex.join(["python", "-m", "benchmarks.compare", *map(_shown, sys.argv[1:])]),
        "machine": describe(),
        "setting": {**setting, "limits": "those of fairseq's search, at most 200 tokens"},
        "num_sentences": len(sources),
        "rows": rows,
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{args.output}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    text = table(rows, len(sources))
    Path(f"{args.output}.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def _shown(argument: str) -> str:
    """Paths as a reader can use them: relative to the checkout where they lie in it."""
    path = Path(argument)
    return os.path.relpath(path) if path.is_absolute() else argument


if __name__ == "__main__":
    sys.exit(main())
