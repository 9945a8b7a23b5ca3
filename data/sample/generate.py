"""Write the sample English-German corpus: `python data/sample/generate.py --output DIR`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from sample_corpus import corpus  # noqa: E402  (the package lies beside this file)

SPLITS = {"train": (24000, "training"), "dev": (1000, "validation"), "test": (1000, "held-out")}


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def show(split: str, done: int, wanted: int) -> None:
    if done % 2000 == 0 or done == wanted:
        print(f"{split}: {done}/{wanted} pairs", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder for the seven files")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same bytes")
    for split, (size, name) in SPLITS.items():
        parser.add_argument(f"--{split}", type=positive, default=size, help=f"{name} pairs")
    options = parser.parse_args(arguments)
    sizes = {split: getattr(options, split) for split in SPLITS}
    try:
        made = corpus.generate(options.seed, sizes, show)
        digest = corpus.write(made, options.output)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"generate.py: {error}", file=sys.stderr)
        return 1
    for split, sentences in made.items():
        print(
            f"{split}: {len(sentences)} pairs, {len({s.structure for s in sentences})} structures"
        )
    print(f"sha256 {digest}  {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
