"""Real sentences, translated by the bundled pair of models four ways: `make demo`.

Everything is loaded once; the ways take turns on each sentence. Exit status 1 where exact decoding
is not greedy decoding.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.comparison import HEADER, Comparison, markdown  # noqa: E402
from benchmarks.turns import (  # noqa: E402
    Contender,
    decode_in_turns,
    hushed,
    search_settings,
    variant,
)
from specdec_plugins.app.bundles import make_settings  # noqa: E402
from specdec_plugins.app.exactness import exactness_of  # noqa: E402
from specdec_plugins.app.settings import Settings  # noqa: E402
from specdec_plugins.app.translator import load_translator, number_sentences  # noqa: E402
from specdec_plugins.errors import Parser, UserError, refuse  # noqa: E402
from specdec_plugins.formats.bundle import read_bundle  # noqa: E402

SAMPLES = ROOT / "data" / "samples" / "en-de.tsv"
BEAM, FAIRSEQ_GREEDY, GREEDY, EXACT, RELAXED = (
    "fairseq beam 5",
    "fairseq greedy",
    "AR greedy",
    "SpecDec exact",
    "SpecDec relaxed",
)
# fairseq's search bans <pad> and empty translations, so here the others do too.
COMMON: dict[str, Any] = {"greedy_like": "fairseq", "batch": 1, "beta": 1, "tau": 0.0}
NUM_SHOWN = 6  # sentences


@dataclass(frozen=True)
class Samples:
    """Sentences with references, in the order of the file."""

    sources: list[str]
    references: list[str]
    domains: list[str]

    @classmethod
    def read(cls, path: Path, number: int | None = None) -> Samples:
        """The first so many, or all."""
        lines = path.read_text(encoding="utf-8").splitlines()[:number]
        rows = [line.split("\t") for line in lines]
        return cls(*(list(column) for column in zip(*rows, strict=True)))

    def shown(self) -> list[int]:
        """The first sentence of so many domains, from 0."""
        firsts = [self.domains.index(domain) for domain in dict.fromkeys(self.domains)]
        return firsts[:: max(1, len(firsts) // NUM_SHOWN)][:NUM_SHOWN]


def load_ways(settings: Settings, relaxed: tuple[int, float], folder: str) -> list[Contender]:
    """All ways, the networks of the engine loaded once; folder: for fairseq's own checkpoint."""
    beta, tau = relaxed
    exact = load_translator(settings)
    search = search_settings(settings, folder)
    return [
        Contender(BEAM, load_translator(replace(search, beam=5))),
        Contender(FAIRSEQ_GREEDY, load_translator(replace(search, beam=1))),
        Contender(GREEDY, variant(exact, strategy="AR", drafter_checkpoint=None)),
        Contender(EXACT, exact),
        Contender(RELAXED, variant(exact, beta=beta, tau=tau)),
    ]


def translate(ways: Sequence[Contender], samples: Samples) -> Comparison:
    """Every sentence in every way, with progress."""
    sentences = number_sentences(samples.sources)
    with tqdm(total=len(ways) * len(sentences), unit=" translations", file=sys.stderr) as bar:
        decodings = decode_in_turns(ways, sentences, bar.update)
    named = {decoding.name: decoding for decoding in decodings}
    return Comparison(decodings, named[GREEDY], named[FAIRSEQ_GREEDY], samples.references)


def show(comparison: Comparison, relaxed: tuple[int, float], samples: Samples) -> None:
    """The table, and some sentences."""
    beta, tau = relaxed
    print(f"\n{len(samples.sources)} sentences, one at a time, on {place()}:\n")
    print(markdown(HEADER, comparison.rows()))
    print(
        f"\nBLEU: {comparison.signature()}"
        "\naccepted tokens: a round's mean, the verifier's own counted, the end of sentence not"
        "\nlimits of all: 200 tokens, no <pad>, no empty translation; "
        f"relaxed: beta {beta}, tau {tau:g}\n"
    )
    named = {decoding.name: decoding for decoding in comparison.decodings}
    for index in samples.shown():
        exact, freer = (named[way].texts[index] for way in (EXACT, RELAXED))
        print(f"[{samples.domains[index]}] {samples.sources[index]}")
        print(f"    exact    {exact}")
        if freer != exact:
            print(f"    relaxed  {freer}")
        print(f"    by hand  {samples.references[index]}")


def place() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{len(os.sched_getaffinity(0))} CPU cores"


def run(data: str | None, device: str | None, num_sentences: int | None = None) -> bool:
    """Whether exact decoding was greedy decoding."""
    samples = Samples.read(SAMPLES, num_sentences)
    if data is not None:
        read_bundle(data)  # says in a sentence where it is none
    bundle = make_settings({"data": data, "device": device, "strategy": "specdec"})
    # What the bundle was tuned to, or a mild tolerance where it says none.
    relaxed = (bundle.beta, bundle.tau) if bundle.beta > 1 else (3, 1.0)
    settings = replace(bundle, **COMMON)
    print(f"demo: loading {os.path.relpath(settings.data)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        ways = load_ways(settings, relaxed, folder)
    comparison = translate(ways, samples)
    show(comparison, relaxed, samples)
    named = {decoding.name: decoding for decoding in comparison.decodings}
    differing = named[EXACT].differing(named[GREEDY])
    exact, words = exactness_of(settings, number_sentences(samples.sources), differing)
    print(f"\n{words}")
    return exact


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="demo.py", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("data", nargs="?", metavar="BUNDLE", help="folder of a bundle (default: the bundled pair)")
    add("--sentences", type=int, metavar="N", help="only the first N (default: all)")
    add("--cpu", dest="device", action="store_const", const="cpu", help="leave a GPU alone")
    add("--debug", action="store_true", help="show where an error was raised")
    return parser


def main() -> int:
    args = make_parser().parse_args()
    began = time.monotonic()
    try:
        with hushed():
            exact = run(args.data, args.device, args.sentences)
    except UserError as error:
        if args.debug:
            raise
        return refuse("demo.py", error)
    except KeyboardInterrupt:
        return 130
    seconds = time.monotonic() - began
    print(f"\ndemo: {seconds:.0f} s in all. Now type sentences of your own: make translate")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
