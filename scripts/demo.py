"""Translates sentences with every decoding method and the bundled pair of models: `make demo`.

Everything is loaded once; all systems translate each sentence in turn. Exit status 1 if exact
decoding is not greedy decoding.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from specdec_plugins.corpus.cli import option

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.decodings import (  # noqa: E402
    BEAM,
    EXACT,
    FAIRSEQ_BEAM,
    FAIRSEQ_GREEDY,
    GREEDY,
    RELAXED,
    Decoding,
    by_fairseq,
    decode,
    quiet_libraries,
    same_networks,
    summary,
)
from specdec_plugins.app.defaults import make_settings  # noqa: E402
from specdec_plugins.app.exactness import exactness_of  # noqa: E402
from specdec_plugins.app.settings import Settings  # noqa: E402
from specdec_plugins.app.translator import SpeculativeTranslator, load_translator, number_sentences  # noqa: E402
from specdec_plugins.corpus import cli  # noqa: E402
from specdec_plugins.corpus.reading import BadLines, ParallelFile, read_pairs  # noqa: E402
from specdec_plugins.formats.bundle import read_bundle  # noqa: E402

SAMPLES = str(ROOT / "data" / "samples" / "en-de.tsv")
# fairseq's search bans <pad> and empty translations, so here the others do too.
COMMON: dict[str, Any] = {"greedy_like": "fairseq", "batch": 1, "beta": 1, "tau": 0.0}
NUM_SHOWN = 6  # sentences


def load_systems(
    settings: Settings, relaxed: tuple[int, float]
) -> dict[str, SpeculativeTranslator]:
    """All systems, fairseq's if it is installed; the engine's networks are loaded once."""
    beta, tau = relaxed
    exact = load_translator(settings)
    search = {FAIRSEQ_BEAM: 5, FAIRSEQ_GREEDY: 1}
    if find_spec("fairseq") is None:
        print("demo: fairseq is not installed, so its rows are left out")
        search.clear()
    return {
        **{name: by_fairseq(settings, n) for name, n in search.items()},
        BEAM: same_networks(exact, strategy="AR", drafter_checkpoint=None, beam=5),
        GREEDY: same_networks(exact, strategy="AR", drafter_checkpoint=None),
        EXACT: exact,
        RELAXED: same_networks(exact, beta=beta, tau=tau),
    }


def show_sentences(named: Mapping[str, Decoding], pairs: Sequence[tuple[str, str]]) -> None:
    """Print some of the sentences with their exact and relaxed translations."""
    for index in range(0, len(pairs), -(-len(pairs) // NUM_SHOWN)):
        exact, freer = (named[name].texts[index] for name in (EXACT, RELAXED))
        print(f"{index + 1:4d} {pairs[index][0]}")
        print(f"     exact    {exact}")
        if freer != exact:
            print(f"     relaxed  {freer}")
        print(f"     by hand  {pairs[index][1]}")


def run(data: str | None, device: str | None, test: str, num_sentences: int | None = None) -> bool:
    """True if exact decoding was greedy decoding. test: as `ParallelFile.parse` reads it."""
    corpus = ParallelFile.parse(test, columns=(1, 2))
    pairs = list(islice(read_pairs(corpus, BadLines()), num_sentences))
    if data is not None:
        read_bundle(data)  # raises UserError if it is none
    bundle = make_settings({"data": data, "device": device, "strategy": "specdec"})
    # The tolerance that the bundle was tuned to, or a mild one if it has none.
    relaxed = (bundle.beta, bundle.tau) if bundle.beta > 1 else (3, 1.0)
    settings = replace(bundle, **COMMON)
    print(f"demo: loading {os.path.relpath(settings.data)}", flush=True)
    systems = load_systems(settings, relaxed)
    sentences = number_sentences([source for source, _ in pairs])
    decodings = decode(systems, sentences, 1)
    print(f"\n{summary(decodings, [reference for _, reference in pairs], relaxed)}\n")
    named = {decoding.name: decoding for decoding in decodings}
    show_sentences(named, pairs)
    differing = named[EXACT].differing(named[GREEDY])
    exact, words = exactness_of(settings, sentences, differing)
    print(f"\n{words}")
    return exact


def main(args: DemoOptions) -> int:
    """Exit status."""
    began = time.monotonic()
    with quiet_libraries():
        exact = run(args.data, "cpu" if args.cpu else None, args.test, args.sentences)
    seconds = time.monotonic() - began
    print(f"\ndemo: {seconds:.0f} s in total. To translate your own sentences: make translate")
    return 0 if exact else 1


@dataclass(kw_only=True)
class DemoOptions:
    """Translate sample sentences with every decoding method and the bundled pair of models."""

    # fmt: off
    data: str | None = option(None, "folder of a bundle (default: the bundled pair)",
        positional=True)
    test: str = option(SAMPLES, "TSV, or SOURCE,TARGET (default: samples)")
    sentences: int | None = option(None, "translate only the first N (default: all)")
    cpu: bool = option(False, "do not use a GPU")
    # fmt: on


COMMAND = cli.CommandLine("demo.py", main, DemoOptions, interrupted="interrupted")

if __name__ == "__main__":
    sys.exit(COMMAND.run())
